"""Members of a Google fleet by the address that its inventory gives, mostly that of the Connect Gateway.

The address comes from an object on the manager, and a Google token goes there that is good for much more than one
cluster: so it goes to Google's own hosts alone, whatever the object says.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_provider_multikueue.clusters.credentials import Access, access_for
from airflow_provider_multikueue.clusters.gke import credentials_of, google_errors
from airflow_provider_multikueue.clusters.google_client import LOOPBACK
from airflow_provider_multikueue.clusters.kubeconfig import configuration_error

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.google_account import GoogleAccount

__all__ = ["GATEWAY", "FleetMember"]

GATEWAY = "AIRFLOW_PROVIDER_MULTIKUEUE_CONNECT_GATEWAY"
"""Environment variable: what stands in for Google's hosts, ``http://127.0.0.1:PORT``; the path stays."""
GOOGLES = re.compile(r"([a-z0-9-]+-)?connectgateway\.googleapis\.com|[a-z0-9.-]+\.gke\.goog")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMember:
    """A cluster by its address in the inventory of a fleet, with a Google account."""

    server: str
    where: str
    """The object that says so, for error texts."""
    account: GoogleAccount
    authority: str | None = field(default=None, repr=False)
    """The certificate authority in base64; None: the public ones."""
    name: str | None = None
    """The resource name of the GKE cluster, where it is known."""

    def describe(self) -> str:
        """Return where the address comes from and who asks."""
        return f"{self.where} ({self.account.where})"

    def load(self) -> Access:
        """Ask Google for a token."""
        from google.auth.transport.requests import Request

        cluster = {"server": _trusted(self.server, self.where)}
        if self.authority:
            cluster["certificate-authority-data"] = self.authority
        with google_errors(self.describe(), "gkehub.gateway.get", "roles/gkehub.gatewayEditor"):
            credentials, _ = credentials_of(self.account)
            credentials.refresh(Request())
        expiry = credentials.expiry
        ends = expiry.replace(tzinfo=UTC).timestamp() if expiry else None
        return access_for(cluster, {"token": credentials.token}, expires=ends)


def _trusted(server: str, where: str) -> str:
    """Return the address if it is one of Google's."""
    try:
        url = urlsplit(server)
        host, port = url.hostname or "", url.port
    except ValueError:
        host, port = "", None
    if not (host and url.scheme == "https" and GOOGLES.fullmatch(host) and port in (None, 443)):
        raise configuration_error(
            f"{where} gives the address {server[:200]!r}, which is not one of Google's: no Google token is sent there.",
            "List this worker in the connection instead.",
        )
    other = os.environ.get(GATEWAY, "").rstrip("/")
    if other and not other.startswith(tuple(f"http://{host}" for host in LOOPBACK)):
        raise configuration_error(f"{GATEWAY} must be http:// on loopback; it is {other!r}.", "Unset it.")
    return f"{other or f'https://{host}'}{url.path}"
