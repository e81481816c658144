"""A kubeconfig's credential plugin: a command that prints a token or a certificate.

Run here rather than by a library, since it needs a time limit after which nothing of it is left running, and since what
it prints must not get into an error text. Blocks: call it in a thread.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_multikueue.clusters.kubeconfig import configuration_error

__all__ = ["Credential", "prepared", "run"]

TIMEOUT = 45.0
GROUP = "client.authentication.k8s.io/"
CLUSTER_INFO = {
    "server": "server",
    "tls-server-name": "tls-server-name",
    "insecure-skip-tls-verify": "insecure-skip-tls-verify",
    "certificate-authority-data": "certificate-authority-data",
    "proxy-url": "proxy-url",
}
STDERR_SHOWN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a plugin gave; each part may be absent."""

    token: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    expires: float | None = None
    """Epoch seconds."""


def run(section: Mapping[str, Any], cluster: Mapping[str, Any]) -> Credential:
    """Return what the plugin of a user's ``exec`` section, which `kubeconfig.select` has checked, prints.

    Raises FleetConfigurationError when it is missing, fails, takes longer than 45 s or prints something else.
    """
    command, environment = prepared(section, cluster)
    return _credential(_output(command, environment, section.get("installHint")), section["apiVersion"], command[0])


def prepared(section: Mapping[str, Any], cluster: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the plugin's command and its environment, with what its protocol says it is told."""
    spec: dict[str, Any] = {"interactive": False}
    if section.get("provideClusterInfo"):
        spec["cluster"] = {new: cluster[old] for old, new in CLUSTER_INFO.items() if old in cluster}
    info = {"apiVersion": section["apiVersion"], "kind": "ExecCredential", "spec": spec}
    named = {item["name"]: item.get("value", "") for item in section.get("env") or ()}
    environment = {**os.environ, **named, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    return [section["command"], *(section.get("args") or ())], environment


def _output(command: list[str], environment: dict[str, str], hint: object) -> bytes:
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise configuration_error(
            f"The kubeconfig's credential plugin {command[0]} cannot be run: {getattr(error, 'strerror', error)}.",
            str(hint).strip() if hint else "Install it on the worker and the triggerer, on the PATH of Airflow's user.",
        ) from error
    with process:
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise configuration_error(
                f"The kubeconfig's credential plugin {command[0]} gave nothing within {TIMEOUT:.0f} s.",
                "Run it by hand as Airflow's user; it must not ask questions.",
            ) from None
    if process.returncode:
        said = err.decode("utf-8", "replace").strip()[-STDERR_SHOWN:] or "it printed no error"
        raise configuration_error(
            f"The kubeconfig's credential plugin {command[0]} failed with exit code {process.returncode}: {said}.",
            "Run it by hand as Airflow's user.",
        )
    return out


def _credential(out: bytes, api_version: object, command: str) -> Credential:
    try:
        answer = json.loads(out)
        status = answer["status"]
        if answer["apiVersion"] != api_version or not str(api_version).startswith(GROUP):
            raise configuration_error(
                f"The credential plugin {command} speaks {str(answer['apiVersion'])[:80]}, but the kubeconfig says "
                f"{api_version}.",
                "Update the plugin, or write the kubeconfig anew.",
            )
        ends = status.get("expirationTimestamp")
        credential = Credential(
            token=status.get("token"),
            certificate=status.get("clientCertificateData"),
            key=status.get("clientKeyData"),
            expires=datetime.fromisoformat(ends).timestamp() if ends else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise configuration_error(
            f"The credential plugin {command} did not print an ExecCredential.", "Run it by hand as Airflow's user."
        ) from None
    if not all(_usable(part) for part in (credential.token, credential.certificate, credential.key)):
        raise configuration_error(
            f"The credential plugin {command} printed something that is no credential.",
            "Run it by hand as Airflow's user.",
        )
    if not credential.token and not (credential.certificate and credential.key):
        raise configuration_error(
            f"The credential plugin {command} printed neither a token nor a certificate with its key.",
            "Run it by hand as Airflow's user.",
        )
    return credential


def _usable(part: object) -> bool:
    """Return whether a part of a credential is missing or a text, without a line's end that would forge a header."""
    return part is None or (isinstance(part, str) and not {"\r", "\0"} & set(part))
