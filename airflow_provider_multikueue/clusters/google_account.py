"""Who we are at Google, in the words of a connection of type ``google_cloud_platform``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_multikueue.exceptions import FleetConfigurationError

__all__ = ["CLOUD_PLATFORM", "DEFAULT_ACCOUNT", "GoogleAccount", "google_account"]

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
PREFIX = "extra__google_cloud_platform__"
KEY_TYPES = ("service_account", "authorized_user")
NOT_HERE = {
    "key_secret_name": "keys kept in Secret Manager",
    "idp_issuer_url": "tokens of an identity provider by client credentials",
    "is_anonymous": "anonymous access",
}
"""What the Google provider can do besides, by the connection's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleAccount:
    """One way to get Google credentials; without a key the application default ones are used."""

    where: str
    """The connection, for error texts."""
    key_path: str | None = None
    key: str | None = field(default=None, repr=False)
    """A key as JSON text."""
    scopes: tuple[str, ...] = (CLOUD_PLATFORM,)
    impersonate: tuple[str, ...] = ()
    """Service accounts, each of which may act as the next; the last one is who we are in the end."""
    project: str | None = None
    quota_project: str | None = None

    @property
    def parts(self) -> list[object]:
        """Return what tells this account from another one."""
        return [self.key_path, self.key, *self.scopes, "as", *self.impersonate, self.project, self.quota_project]

    def secrets(self) -> list[str]:
        """Return the texts of the key that must be masked."""
        values = json.loads(self.key) if self.key else {}
        return [str(values[name]) for name in ("private_key", "refresh_token", "client_secret") if values.get(name)]


DEFAULT_ACCOUNT = GoogleAccount(where="application default credentials")


def google_account(extra: Mapping[str, Any], *, conn_id: str) -> GoogleAccount:
    """Return the account that the ``extra`` of a ``google_cloud_platform`` connection describes.

    Raises FleetConfigurationError for what is contradictory or not supported here.
    """
    where = f"Connection {conn_id!r}"
    values = {str(key).removeprefix(PREFIX): value for key, value in extra.items() if value not in (None, "", False)}
    for name, words in NOT_HERE.items():
        if name in values:
            raise FleetConfigurationError(
                f"{where} has `{name}`, and {words} are not supported here. Give `key_path`, `keyfile_dict`, or "
                "neither for application default credentials."
            )
    given = [name for name in ("key_path", "keyfile_dict", "credential_config_file") if name in values]
    if len(given) > 1:
        raise FleetConfigurationError(f"{where} has {' and '.join(f'`{g}`' for g in given)}; give one of them.")
    return GoogleAccount(
        where=where,
        key_path=_path(values, where),
        key=_key(values["keyfile_dict"], where) if "keyfile_dict" in values else None,
        scopes=_listed(values.get("scope")) or (CLOUD_PLATFORM,),
        impersonate=_listed(values.get("impersonation_chain")),
        project=_text(values.get("project")),
        quota_project=_text(values.get("quota_project_id")),
    )


def _path(values: Mapping[str, Any], where: str) -> str | None:
    path = values.get("key_path") or values.get("credential_config_file")
    if path is None:
        return None
    if not isinstance(path, str) or path.lstrip().startswith("{"):
        raise FleetConfigurationError(
            f"{where}: `credential_config_file` must be a path here, since what it holds can name files to read and "
            "commands to run. Put it in a file on the worker and the triggerer."
        )
    return path


def _key(value: object, where: str) -> str:
    """Return a key as JSON text; the form stores it as text, and its line ends may be escaped twice."""
    try:
        key = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, dict):
        raise FleetConfigurationError(f"{where}: `keyfile_dict` is not a JSON object. Paste the whole key file.")
    if key.get("type") not in KEY_TYPES:
        raise FleetConfigurationError(
            f"{where}: `keyfile_dict` has type {str(key.get('type'))[:40]!r}; it must be one of {', '.join(KEY_TYPES)}."
            " Other types name files or commands: put them in a file and give `key_path`."
        )
    if isinstance(key.get("private_key"), str):
        key["private_key"] = key["private_key"].replace("\\n", "\n")
    try:
        return json.dumps(key, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise FleetConfigurationError(f"{where}: `keyfile_dict` is not plain JSON. Paste the whole key file.") from None


def _listed(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(str(item).strip() for item in items if str(item).strip())


def _text(value: object) -> str | None:
    return str(value).strip() or None if value is not None else None
