"""One context of a kubeconfig, checked before anything in it is believed.

A kubeconfig is code: it can name commands to run and files to read. Given by path it is the administrator's; given
inline it is data that came through a form, and what would run or read is refused.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.decisions.plain_yaml import plain_yaml

__all__ = ["USER_TEXTS", "checked", "configuration_error", "parse", "read_file", "select"]

FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
CLUSTER_TEXTS = ("server", "tls-server-name", "proxy-url", "certificate-authority", "certificate-authority-data")
USER_TEXTS = (
    "token",
    "tokenFile",
    "username",
    "password",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
)
CODE = {"exec": "a command", "auth-provider": "an auth provider"}


def configuration_error(what: str, remedy: str) -> Exception:
    """Return a FleetConfigurationError; imported late, since the error tree brings Airflow."""
    from airflow_provider_multikueue.exceptions import FleetConfigurationError

    return FleetConfigurationError(f"{what} {remedy}")


def parse(text: str, *, where: str) -> dict[str, Any]:
    """Return the kubeconfig that ``text`` (YAML or JSON) holds; error texts never quote it."""
    value: object
    try:
        value = plain_yaml(text)
    except ValueError as error:
        value = error
    return checked(value, where=where)


def checked(value: object, *, where: str) -> dict[str, Any]:
    """Return the kubeconfig that was read as ``value``; a ValueError is why it could not be."""
    if isinstance(value, ValueError):
        raise configuration_error(f"{where} can't be read: {value}.", "It must be a kubeconfig.")
    if not isinstance(value, dict):
        raise configuration_error(f"{where} is not a kubeconfig.", "It must be a mapping with clusters and contexts.")
    return value


def read_file(path: str, *, key: str) -> dict[str, Any]:
    """Return the kubeconfig at ``path`` (or several, separated as in KUBECONFIG), its file names made absolute.

    The first file that names a cluster, user or context wins.
    """
    merged: dict[str, Any] = {"clusters": [], "contexts": [], "users": []}
    for part in filter(None, path.split(os.pathsep)):
        file = Path(part).expanduser()
        config = parse(_text(file, key=key), where=f"kubeconfig {file}")
        merged.setdefault("current-context", config.get("current-context"))
        for section in ("clusters", "contexts", "users"):
            known = {item["name"] for item in merged[section]}
            merged[section] += [
                _anchored(item, section[:-1], file.absolute().parent)
                for item in _named(config, section)
                if item["name"] not in known
            ]
    return merged


def _text(file: Path, *, key: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise configuration_error(
            f"The kubeconfig {file} ({key} of the connection) cannot be read on host {socket.gethostname()}: {reason}.",
            "The worker and the triggerer both read it: put it at the same path on both, readable by Airflow's user.",
        ) from error


def _named(config: dict[str, Any], section: str) -> list[dict[str, Any]]:
    items = config.get(section) or []
    items = items if isinstance(items, list) else []
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("name"), str)]


def _anchored(item: dict[str, Any], kind: str, folder: Path) -> dict[str, Any]:
    """Return ``item`` with its relative file names resolved against the kubeconfig's folder."""
    body = item.get(kind)
    if not isinstance(body, dict):
        return item
    body = dict(body)
    for name in FILES:
        if isinstance(body.get(name), str) and body[name]:
            body[name] = str(folder / body[name])
    command = body.get("exec")
    if isinstance(command, dict) and isinstance(command.get("command"), str) and os.sep in command["command"]:
        body["exec"] = {**command, "command": str(folder / command["command"])}
    return {**item, kind: body}


def select(
    config: dict[str, Any], context: str | None, *, where: str, inline: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the cluster and the user of a context (None: the current one).

    Raises FleetConfigurationError for a context that is not there and, when ``inline``, for what would run or read.
    """
    name = context or config.get("current-context")
    if not name:
        raise configuration_error(f"{where} has no current-context.", f"Name one of: {_names(config, 'contexts')}.")
    chosen = _one(config, "contexts", name, where)
    cluster = _one(config, "clusters", chosen.get("cluster"), where)
    user = _one(config, "users", chosen["user"], where) if chosen.get("user") else {}
    if not isinstance(cluster.get("server"), str):
        raise configuration_error(f"{where} names no server for context {name!r}.", "Its cluster needs `server`.")
    _check_types(cluster, user, where)
    if inline:
        _refuse_code(cluster, user, where)
    elif user.get("exec") is not None:
        _check_exec(user["exec"], where)
    return cluster, user


def _one(config: dict[str, Any], section: str, name: object, where: str) -> dict[str, Any]:
    for item in _named(config, section):
        body = item.get(section[:-1])
        if item["name"] == name and isinstance(body, dict):
            return body
    raise configuration_error(
        f"{where} has no {section[:-1]} named {name!r}.", f"It has: {_names(config, section) or 'none'}."
    )


def _names(config: dict[str, Any], section: str) -> str:
    return ", ".join(item["name"] for item in _named(config, section)[:20])


def _check_types(cluster: dict[str, Any], user: dict[str, Any], where: str) -> None:
    """Refuse what would otherwise be taken for something else, such as the text "false" for true."""
    for section, keys in ((cluster, CLUSTER_TEXTS), (user, USER_TEXTS)):
        for key in keys:
            if not isinstance(section.get(key, ""), str):
                raise configuration_error(f"{where}: `{key}` must be text.", "Put it in quotes.")
    if not isinstance(cluster.get("insecure-skip-tls-verify", False), bool):
        raise configuration_error(f"{where}: `insecure-skip-tls-verify` must be true or false.", "Write no quotes.")


def _check_exec(section: Any, where: str) -> None:
    """Refuse a command that can't be run as it is written."""

    def need(good: object, key: str, what: str) -> None:
        if not good:
            raise configuration_error(
                f"{where}: `{key}` must be {what}.",
                "Correct it, or write the kubeconfig anew with the cloud's own tool.",
            )

    need(isinstance(section, dict), "exec", "a mapping")
    for key in ("command", "apiVersion"):
        need(section.get(key) and isinstance(section[key], str), f"exec.{key}", "given as text")
    need(_list_of(section.get("args"), str), "exec.args", "a list of texts (put numbers in quotes)")
    need(_list_of(section.get("env"), dict), "exec.env", "a list of mappings with `name` and `value`")
    for item in section.get("env") or ():
        pair = (item.get("name"), item.get("value", ""))
        need(all(isinstance(text, str) for text in pair), "exec.env", "a list of mappings with texts as name and value")
    need(isinstance(section.get("provideClusterInfo") or False, bool), "exec.provideClusterInfo", "true or false")


def _list_of(value: object, kind: type) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, kind) for item in value))


def _refuse_code(cluster: dict[str, Any], user: dict[str, Any], where: str) -> None:
    for key, words in CODE.items():
        if key in user:
            raise configuration_error(
                f"{where} asks to run {words} (`{key}`), which is not done for an inline configuration.",
                "Put the kubeconfig in a file on the worker and the triggerer and give its path.",
            )
    for key in FILES:
        if (cluster | user).get(key):
            raise configuration_error(
                f"{where} refers to a file (`{key}`), which an inline configuration must not.",
                "Embed the data (`kubectl config view --raw --flatten`), or give the kubeconfig's path.",
            )
