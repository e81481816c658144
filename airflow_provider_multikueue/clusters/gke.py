"""GKE: from the resource name of a cluster to its API server, and the clusters of a project.

The cluster's address and certificate come from GKE's own API at each load, the token from google-auth; both block and
belong in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.clusters.credentials import Access, access_for
from airflow_provider_multikueue.clusters.google_account import CLOUD_PLATFORM, DEFAULT_ACCOUNT, GoogleAccount
from airflow_provider_multikueue.clusters.google_client import google_client
from airflow_provider_multikueue.clusters.kubeconfig import configuration_error

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.connection import ClusterConfig

__all__ = [
    "API_ENDPOINT",
    "GkeCluster",
    "clusters_of_project",
    "credentials_of",
    "default_project",
    "google_errors",
    "source_of_gke",
]

API_ENDPOINT = "AIRFLOW_PROVIDER_MULTIKUEUE_GKE_API"
"""Environment variable: another address of GKE's API, ``https://HOST`` or, without TLS and only on loopback,
``http://127.0.0.1:PORT``."""

TIMEOUT = 20.0
KEY_LOADERS = {
    "service_account": ("google.oauth2.service_account", "Credentials", "from_service_account_info"),
    "authorized_user": ("google.oauth2.credentials", "Credentials", "from_authorized_user_info"),
    "impersonated_service_account": (
        "google.auth.impersonated_credentials",
        "Credentials",
        "from_impersonated_service_account_info",
    ),
    "external_account": ("google.auth.identity_pool", "Credentials", "from_info"),
    "executable": ("google.auth.pluggable", "Credentials", "from_info"),
}
"""What reads a key, by its type: the library's own loader for all types is deprecated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GkeCluster:
    """A GKE cluster by its resource name, with a Google account."""

    name: str
    """projects/PROJECT/locations/LOCATION/clusters/NAME"""
    account: GoogleAccount = DEFAULT_ACCOUNT
    endpoint: str | None = None
    key: str = "gke_cluster"

    def describe(self) -> str:
        """Return the cluster's resource name and who asks."""
        return f"GKE cluster {self.name} ({self.account.where}{_as(self.account)})"

    def load(self) -> Access:
        """Ask GKE where the cluster is and Google for a token."""
        with google_errors(self.describe(), "container.clusters.get"):
            credentials, _ = credentials_of(self.account)
            with _client(credentials) as client:
                cluster = client.get_cluster(name=self.name, timeout=TIMEOUT)
            _refresh(credentials)
        expiry = credentials.expiry
        return access_for(
            _address(cluster, self.endpoint, self.describe()),
            {"token": credentials.token},
            expires=expiry.replace(tzinfo=UTC).timestamp() if expiry else None,
        )


def status_of(source: GkeCluster) -> tuple[str, str]:
    """Return how far GKE is with a cluster ("PROVISIONING", "RUNNING", "ERROR", ...) and what it says of it; blocks."""
    with google_errors(source.describe(), "container.clusters.get"):
        credentials, _ = credentials_of(source.account)
        with _client(credentials) as client:
            cluster = client.get_cluster(name=source.name, timeout=TIMEOUT)
    return str(cluster.status.name), str(cluster.status_message)


def source_of_gke(config: ClusterConfig) -> GkeCluster:
    """Return the source for a cluster that is given by its resource name.

    Raises FleetConfigurationError when its Google connection was not looked up in Airflow.
    """
    if config.google is None and config.google_conn_id is not None:
        raise configuration_error(
            f"`{config.key}` uses the Airflow connection {config.google_conn_id!r}, which was not looked up.",
            "Open the fleet by its Airflow connection id.",
        )
    name = config.value.replace("/zones/", "/locations/")
    if config.google is None:
        return GkeCluster(name=name, endpoint=config.endpoint, key=config.key)
    return GkeCluster(name=name, account=config.google, endpoint=config.endpoint, key=config.key)


def clusters_of_project(project: str, account: GoogleAccount) -> list[Any]:
    """Return the GKE clusters of a project, in all locations; blocks."""
    with google_errors(
        f"the GKE clusters of project {project} ({account.where}{_as(account)})", "container.clusters.list"
    ):
        credentials, _ = credentials_of(account)
        with _client(credentials) as client:
            answer = client.list_clusters(parent=f"projects/{project}/locations/-", timeout=TIMEOUT)
    return list(answer.clusters)


def default_project(account: GoogleAccount) -> str | None:
    """Return the project that the account names, or its credentials belong to; blocks."""
    if account.project:
        return account.project
    with google_errors(f"the project of {account.where}", "nothing"):
        return credentials_of(account)[1]


# -- Google's libraries


def credentials_of(account: GoogleAccount) -> tuple[Any, str | None]:
    """Return credentials without a token yet, and the project they belong to."""
    from google.auth import default, impersonated_credentials

    scopes = [CLOUD_PLATFORM] if account.impersonate else list(account.scopes)
    text = Path(account.key_path).expanduser().read_text("utf-8") if account.key_path else account.key
    if text:
        made, project = _from_key(json.loads(text), scopes)
    else:
        made, project = default(scopes=scopes)
    if account.impersonate:
        *delegates, target = account.impersonate
        made = impersonated_credentials.Credentials(
            source_credentials=made, target_principal=target, delegates=delegates, target_scopes=list(account.scopes)
        )
    if account.quota_project and hasattr(made, "with_quota_project"):
        made = made.with_quota_project(account.quota_project)
    return made, project


def _from_key(key: Mapping[str, Any], scopes: list[str]) -> tuple[Any, str | None]:
    """Return the credentials of a key file, which a file may hold in more types than a connection."""
    kind = str(key.get("type"))
    if kind == "external_account" and "executable" in key.get("credential_source", {}):
        kind = "executable"
    if kind not in KEY_LOADERS:
        raise ValueError(kind)
    module, cls, load = KEY_LOADERS[kind]
    return getattr(getattr(import_module(module), cls), load)(key, scopes=scopes), key.get("project_id")


def _refresh(credentials: Any) -> None:
    from google.auth.transport.requests import Request

    if not credentials.valid:
        credentials.refresh(Request())


def _client(credentials: Any) -> Any:
    from google.cloud.container_v1 import ClusterManagerClient
    from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

    return google_client(ClusterManagerClient, ClusterManagerGrpcTransport, credentials, address_variable=API_ENDPOINT)


@contextmanager
def google_errors(what: str, permission: str, role: str = "roles/container.viewer") -> Iterator[None]:
    """Turn what Google's libraries raise into a FleetConfigurationError, or a ConnectionError where that may pass."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    try:
        yield
    except (api.PermissionDenied, api.Unauthenticated) as error:
        raise configuration_error(
            f"Google refuses {what}: {error.message}.", f"Grant the account {permission} ({role})."
        ) from error
    except api.NotFound as error:
        raise configuration_error(
            f"{what} does not exist: {error.message}.", "Compare it with `gcloud container clusters list`."
        ) from error
    except (api.GoogleAPICallError, api.RetryError, auth.TransportError) as error:
        raise _passing(what, error) from error
    except auth.DefaultCredentialsError as error:
        raise configuration_error(
            f"There are no Google credentials for {what}: {error}",
            "Name a connection of type google_cloud_platform, set GOOGLE_APPLICATION_CREDENTIALS, or use workload "
            "identity, on the worker and on the triggerer.",
        ) from error
    except auth.RefreshError as error:
        if error.retryable:
            raise _passing(what, error) from error
        raise configuration_error(
            f"Google gave no token for {what}: {_first(error)}.",
            "The key may be revoked, or the impersonated account may lack roles/iam.serviceAccountTokenCreator.",
        ) from error
    except (OSError, ValueError) as error:
        raise configuration_error(
            f"The Google credentials for {what} can't be used: {type(error).__name__}.",
            "The key file must be readable JSON at the same path on the worker and on the triggerer.",
        ) from error


def _passing(what: str, error: Exception) -> Exception:
    return ConnectionError(f"Google did not answer for {what}: {_first(error)}")


def _first(error: Exception) -> str:
    said = str(error.args[0]) if error.args else ""
    return (said or type(error).__name__)[:300].rstrip(".")


def _as(account: GoogleAccount) -> str:
    return f", as {account.impersonate[-1]}" if account.impersonate else ""


# -- where the API server is


def _address(cluster: Any, endpoint: str | None, what: str) -> dict[str, Any]:
    """Return the cluster section of a kubeconfig for one of the cluster's endpoints."""
    controls = cluster.control_plane_endpoints_config
    dns = controls.dns_endpoint_config.endpoint
    if endpoint == "dns" or (endpoint is None and dns and _has_no_ip(cluster)):
        # Its certificate is one that the whole world trusts, not the cluster's own.
        return {"server": f"https://{_known(dns, 'DNS-based', what)}"}
    addresses = controls.ip_endpoints_config
    if endpoint == "private":
        address = addresses.private_endpoint or cluster.private_cluster_config.private_endpoint
    elif endpoint == "public":
        address = addresses.public_endpoint or cluster.private_cluster_config.public_endpoint or cluster.endpoint
    else:
        address = cluster.endpoint
    return {
        "server": f"https://{_known(address, endpoint or 'IP', what)}",
        "certificate-authority-data": cluster.master_auth.cluster_ca_certificate,
    }


def _has_no_ip(cluster: Any) -> bool:
    addresses = cluster.control_plane_endpoints_config.ip_endpoints_config
    return not cluster.endpoint or ("enabled" in addresses and not addresses.enabled)


def _known(address: str, kind: str, what: str) -> str:
    if address:
        return address
    raise configuration_error(
        f"{what} has no {kind} endpoint.", "Wait until it is running, or set `gke_endpoint` to public, private or dns."
    )
