"""What can be said of a cluster's credentials: of which sort they are, when they end, how they are renewed."""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.clusters.connect_gateway import FleetMember
from airflow_provider_multikueue.clusters.credentials import InCluster, InlineKubeconfig, KubeconfigFile
from airflow_provider_multikueue.clusters.gke import GkeCluster
from airflow_provider_multikueue.clusters.kubeconfig import read_file, select

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.credentials import Access, Source

__all__ = ["credential_report"]

SOON = 86400.0
"""Seconds before the end of credentials that nothing renews at which it is worth a warning."""


def credential_report(source: Source) -> tuple[dict[str, Any], list[str]]:
    """Return what is known of the credentials, as JSON, and what is worth a warning; blocks, and runs exec plugins."""
    access, now = source.load(), time.time()
    sort, renewed = _sort(source)
    ends = access.expires or (None if renewed else _end_of_token(access.authorization))
    report = {
        "source": source.describe(),
        "sort": sort,
        "expires_in_seconds": None if ends is None else round(ends - now),
        "renewal": _renewal(access, now) if renewed else "none: it is read anew after a 401, in case it was replaced",
        "proxy": _bare(access.proxy),
    }
    return report, list(_warnings(access, None if renewed or ends is None else ends - now))


def _sort(source: Source) -> tuple[str, bool]:
    """Return the sort of credentials in words, and whether something renews them."""
    if isinstance(source, GkeCluster | FleetMember):
        return "token of a Google account", True
    if isinstance(source, InCluster):
        return "mounted service account token", True
    if isinstance(source, KubeconfigFile):
        return _sort_of_user(select(read_file(source.path, key=source.key), source.context, where=source.describe())[1])
    if isinstance(source, InlineKubeconfig):
        return _sort_of_user(select(source.config, source.context, where=source.describe())[1])
    return "kubeconfig in a Secret", True


def _sort_of_user(user: dict[str, Any]) -> tuple[str, bool]:
    if isinstance(user.get("exec"), dict):
        return f"exec plugin {PurePath(str(user['exec'].get('command'))).name}", True
    if "auth-provider" in user:
        return "auth provider", True
    if user.get("tokenFile"):
        return "token file", True
    if user.get("token"):
        return "fixed token", False
    if user.get("username"):
        return "password", False
    if user.get("client-certificate-data") or user.get("client-certificate"):
        return "client certificate", False
    return "none", False


def _end_of_token(authorization: str | None) -> float | None:
    """Return when a token ends that says so itself, as those of service accounts do."""
    parts = (authorization or "").removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return None


def _renewal(access: Access, now: float) -> str:
    if access.renew_at is None:
        return "read anew after a 401; no end is known"
    return f"read anew {max(0, round(access.renew_at - now))} s after they were loaded, and after a 401"


def _warnings(access: Access, lasts: float | None) -> list[str]:
    found = []
    if access.tls is not None and access.tls.verify_mode is ssl.CERT_NONE:
        found.append("TLS is not verified: whoever is in between can read the token.")
    if lasts is not None and lasts < SOON:
        found.append(
            f"its token ends in {round(lasts / 60)} minutes and nothing renews it: longer jobs lose their task."
        )
    return found


def _bare(proxy: str | None) -> str | None:
    """Return the proxy's address without what it may hold of a password."""
    if proxy is None:
        return None
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
