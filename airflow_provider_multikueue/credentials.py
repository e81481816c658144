"""Where a cluster is and how to prove who we are there.

A *source* knows one way to get at an API server (a kubeconfig file, an inline kubeconfig, the pod we run in). Its
``load`` reads everything anew and returns an `Access`; it blocks, runs exec plugins, and so belongs in a thread.
Reading anew is all there is to renewal: rotated files, exec plugins and service-account tokens take the same way.

To add a way (an Airflow connection, a GKE cluster by its resource name): write a class with ``describe`` and ``load``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_multikueue.kubeconfig import configuration_error, materialize, read_file, select
from airflow_provider_multikueue.proxy import proxy_for

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

__all__ = ["Access", "InCluster", "InlineKubeconfig", "KubeconfigFile", "Source"]

EXEC_TIMEOUT = 45.0
FILE_TOKEN_REREAD = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """All that a request needs besides its path."""

    server: str
    authorization: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    expires: float | None = None
    """Epoch seconds at which the credentials end, where that is known."""
    renew_at: float | None = None
    """Epoch seconds at which to load again, before anything ends."""
    fingerprint: str = ""
    """Equal as long as open connections can be kept."""


class Source(Protocol):
    """One way to get at an API server."""

    def describe(self) -> str:
        """Return in words where the access comes from, without secrets."""
        ...

    def load(self) -> Access:
        """Return fresh access; blocks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigFile:
    """A context of a kubeconfig on this host's disk; the only form whose exec plugins are run."""

    path: str
    context: str | None = None
    key: str = "kube_config_path"
    """The connection's key that holds the path, for error texts."""

    def describe(self) -> str:
        """Return the path and the context."""
        return f"kubeconfig {self.path}" + (f", context {self.context}" if self.context else "")

    def load(self) -> Access:
        """Read the file, run its exec plugin if it has one."""
        merged = read_file(self.path, key=self.key)
        return _load(select(merged, self.context, where=self.describe()))


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineKubeconfig:
    """A kubeconfig that came with the connection: data, so nothing in it may run code or read files."""

    config: dict[str, Any] = field(repr=False)
    context: str | None = None
    key: str = "manager_kube_config"

    def describe(self) -> str:
        """Return the key that the text came from."""
        return f"inline kubeconfig ({self.key})" + (f", context {self.context}" if self.context else "")

    def load(self) -> Access:
        """Check that the configuration is plain data and use it."""
        return _load(select(self.config, self.context, where=self.describe(), inline=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class InCluster:
    """The service account of the pod that we run in."""

    def describe(self) -> str:
        """Return that it is the pod's own account."""
        return "the service account of this pod"

    def load(self) -> Access:
        """Read the mounted token and certificate."""
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config import ConfigException, load_incluster_config

        configuration = Configuration()
        try:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            return _access(configuration, renew_at=time.time() + FILE_TOKEN_REREAD)
        except (ConfigException, OSError) as error:
            raise configuration_error(
                f"The connection says that this process runs inside the cluster, but {error}",
                "Run the worker and the triggerer as pods of that cluster, or give a kubeconfig instead.",
            ) from error


def _load(config: dict[str, Any]) -> Access:
    """Return access for a kubeconfig of one context."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

    user = config["users"][0]["user"]
    with tempfile.TemporaryDirectory(prefix="multikueue-") as folder:
        loader = KubeConfigLoader(config_dict=materialize(config, Path(folder)), temp_file_path=folder)
        configuration = Configuration()
        try:
            asyncio.run(asyncio.wait_for(loader.load_and_set(configuration), EXEC_TIMEOUT))
            expires, renew_at = _renewal(loader, user)
            return _access(configuration, expires=expires, renew_at=renew_at)
        except TimeoutError as error:
            command = user.get("exec", {}).get("command", "its provider")
            raise configuration_error(
                f"No credentials from {command} within {EXEC_TIMEOUT:.0f} s.",
                "Run it by hand as the user of this process; it must not ask questions.",
            ) from error
        except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            raise configuration_error(
                f"The kubeconfig's credentials cannot be loaded: {str(error)[:500]}",
                "Check the context's user and cluster with kubectl on this host, as this user.",
            ) from error


def _renewal(loader: object, user: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return when the credentials end, and when to load again: after 4/5 of their life, at most a minute early."""
    now = time.time()
    expiry = getattr(loader, "exec_plugin_expiry", None)
    if expiry is not None:
        ends = expiry.timestamp()
        return ends, ends - min(60.0, max(0.0, ends - now) / 5)
    if "tokenFile" in user or "auth-provider" in user:
        return None, now + FILE_TOKEN_REREAD
    return None, None


def _access(configuration: Configuration, *, expires: float | None = None, renew_at: float | None = None) -> Access:
    """Return the plain form of what the library has loaded."""
    server = str(configuration.host)
    if not server.startswith(("https://", "http://")):
        raise configuration_error(f"{server!r} is not the address of an API server.", "It must begin with https://.")
    proxy = configuration.proxy or proxy_for(server, os.environ)
    if proxy and not proxy.startswith(("http://", "https://")):
        raise configuration_error(
            "The proxy for this cluster is not an HTTP proxy.", "Only http:// and https:// proxies are supported."
        )
    return Access(
        server=server.rstrip("/"),
        authorization=configuration.api_key.get("BearerToken"),
        tls=_tls(configuration) if server.startswith("https") else None,
        tls_server_name=configuration.tls_server_name,
        proxy=proxy,
        expires=expires,
        renew_at=renew_at,
        fingerprint=_fingerprint(configuration, proxy),
    )


def _tls(configuration: Configuration) -> ssl.SSLContext:
    """Return the TLS settings; certificates need not have the extensions that Python 3.13 began to ask for."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _fingerprint(configuration: Configuration, proxy: str | None) -> str:
    digest = hashlib.sha256()
    for text in (configuration.host, configuration.tls_server_name, configuration.verify_ssl, proxy):
        digest.update(f"{text}\0".encode())
    for path in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
        digest.update(Path(path).read_bytes() if path else b"-")
        digest.update(b"\0")
    return digest.hexdigest()
