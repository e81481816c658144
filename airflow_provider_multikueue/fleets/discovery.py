"""Workers that are found instead of listed: which cluster each MultiKueueCluster of the manager is.

Nothing is guessed: a worker counts as found when its name, an annotation or a label says which cluster it is, since
regions, and with them where data may go, follow from it. What could not be matched is logged with what would match it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_multikueue.clusters.client import NODES, SECRETS, ApiError, Cluster
from airflow_provider_multikueue.clusters.credentials import Access, InlineKubeconfig, Source
from airflow_provider_multikueue.clusters.gke import GkeCluster, clusters_of_project, default_project
from airflow_provider_multikueue.clusters.google_account import GoogleAccount
from airflow_provider_multikueue.clusters.kubeconfig import configuration_error, parse
from airflow_provider_multikueue.decisions.conditions import text_at
from airflow_provider_multikueue.decisions.connection import FleetConfig, Form, gke_region
from airflow_provider_multikueue.decisions.rights import KUEUE_NAMESPACE
from airflow_provider_multikueue.fleets.cluster_profiles import members

__all__ = ["GKE_ANNOTATION", "GKE_LABEL", "Found", "find_workers", "region_of_nodes"]

log = logging.getLogger(__name__)

Object = dict[str, Any]

GKE_ANNOTATION = "airflow-provider-multikueue/gke-cluster"
"""On a MultiKueueCluster: the resource name of its GKE cluster."""
GKE_LABEL = "multikueue-cluster"
"""On a GKE cluster, as a resource label: the name of its MultiKueueCluster."""
REGION_LABEL = "topology.kubernetes.io/region"
SECRET_TIMEOUT = 60.0
NODES_SEEN = 20
NODES_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """How a worker is reached, and its region where that is known."""

    source: Source
    region: str | None = None


async def find_workers(config: FleetConfig, manager: Cluster) -> dict[str, Found]:
    """Return the workers by the names of their MultiKueueClusters.

    Raises FleetConfigurationError, `ApiError` when the manager refuses or does not answer.
    """
    clusters, _ = await manager.list(await manager.resource("kueue.x-k8s.io", "multikueueclusters"))
    if config.workers_from == "manager_secrets":
        return _by_secrets(config, manager, clusters)
    if config.workers_from == "cluster_profiles":
        found = await members(manager, clusters, _account(config))
        return {name: Found(source, region) for name, (source, region) in found.items()}
    return await asyncio.to_thread(_by_gke, config, clusters)


async def region_of_nodes(cluster: Cluster) -> str | None:
    """Return the region that all of a cluster's nodes are labelled with; None where they can't be read or differ."""
    regions: set[str | None] = set()
    try:
        async with asyncio.timeout(NODES_TIMEOUT):
            async for page, _ in cluster.pages(NODES, limit=NODES_SEEN, repeat=False):
                regions.update(text_at(node, "metadata", "labels", REGION_LABEL) or None for node in page)
    except (ApiError, TimeoutError):
        return None
    return regions.pop() if len(regions) == 1 else None


# -- GKE


def _by_gke(config: FleetConfig, clusters: list[Object]) -> dict[str, Found]:
    """Match MultiKueueClusters to GKE clusters: by annotation, else by label, else by name; blocks."""
    account = _account(config)
    project = _project(config, account)
    by_name: dict[str, list[str]] = {}
    for cluster in clusters_of_project(project, account):
        name = _resource_name(cluster, project)
        by_name.setdefault(dict(cluster.resource_labels).get(GKE_LABEL) or cluster.name, []).append(name)
    found = {}
    for worker in clusters:
        metadata = _metadata(worker)
        stated = text_at(worker, "metadata", "annotations", GKE_ANNOTATION)
        names = [stated] if stated else by_name.get(str(metadata.get("name")), [])
        if len(names) == 1 and gke_region(names[0]):
            source = GkeCluster(name=names[0], account=account, endpoint=config.gke_endpoint, key="workers")
            found[str(metadata["name"])] = Found(source, gke_region(names[0]))
        else:
            _say_unmatched(str(metadata.get("name")), names, project)
    return found


def _account(config: FleetConfig) -> GoogleAccount:
    return config.google or config.manager.google or GoogleAccount(where="application default credentials")


def _project(config: FleetConfig, account: GoogleAccount) -> str:
    if config.manager.form is Form.GKE:
        return config.manager.value.split("/")[1]
    project = default_project(account)
    if project:
        return project
    raise configuration_error(
        f'Connection {config.conn_id!r}: `"workers": "gke"` needs a project, and {account.where} names none.',
        "Set `project` in the connection that `gcp_conn_id` names.",
    )


def _resource_name(cluster: Any, project: str) -> str:
    match = re.search(r"projects/[^/]+/(?:locations|zones)/[^/]+/clusters/[^/]+$", cluster.self_link)
    name = match[0] if match else f"projects/{project}/locations/{cluster.location}/clusters/{cluster.name}"
    return name.replace("/zones/", "/locations/")


def _say_unmatched(worker: str, names: list[str], project: str) -> None:
    why = f"{len(names)} GKE clusters match ({', '.join(names)})" if names else "no GKE cluster has its name"
    log.warning(
        "MultiKueueCluster %s is not used as a worker: %s in project %s. Annotate it on the manager with %s: "
        "projects/P/locations/L/clusters/C, or give the GKE cluster the label %s=%s.",
        *(worker, why, project, GKE_ANNOTATION, GKE_LABEL, worker),
    )


# -- the Secrets that Kueue uses


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSecret:
    """A kubeconfig in a Secret of the manager, read anew at each load."""

    name: str
    read: Callable[[], Object] = field(repr=False, compare=False)

    def describe(self) -> str:
        """Return the Secret's name."""
        return f"Secret {KUEUE_NAMESPACE}/{self.name} of the manager"

    def load(self) -> Access:
        """Read the Secret; blocks."""
        try:
            data = self.read().get("data") or {}
        except ApiError as error:
            raise _unread(error) from error
        except TimeoutError as error:
            raise ConnectionError(f"{self.describe()} was not read within {SECRET_TIMEOUT:.0f} s") from error
        try:
            text = base64.b64decode(data["kubeconfig"], validate=True).decode()
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise configuration_error(
                f"{self.describe()} has no kubeconfig.", "Kueue reads the key `kubeconfig` too: correct the Secret."
            ) from None
        return InlineKubeconfig(config=parse(text, where=self.describe()), key=self.describe()).load()


def _unread(error: ApiError) -> Exception:
    return ConnectionError(str(error)) if error.passing else configuration_error(str(error), "")


def _by_secrets(config: FleetConfig, manager: Cluster, clusters: list[Object]) -> dict[str, Found]:
    log.warning(
        "Connection %s uses the Secrets that Kueue itself uses for its workers: whoever can run tasks here can then do "
        "what Kueue may do there, and Kueue's account seldom has the right to read logs. Give each worker an account "
        "of its own.",
        config.conn_id,
    )
    loop = asyncio.get_running_loop()
    found: dict[str, Found] = {}
    for worker in clusters:
        name, secret = str(_metadata(worker).get("name")), secret_of(worker)
        if secret is None:
            log.warning("MultiKueueCluster %s is not used as a worker: it names no Secret.", name)
        else:
            found[name] = Found(ManagerSecret(name=secret, read=_reader(manager, secret, loop)))
    return found


def _reader(manager: Cluster, secret: str, loop: asyncio.AbstractEventLoop) -> Callable[[], Object]:
    """Return what reads the Secret from a thread, through the manager's client on ``loop``."""

    def read() -> Object:
        reading = asyncio.run_coroutine_threadsafe(manager.get(SECRETS, secret, KUEUE_NAMESPACE), loop)
        return reading.result(SECRET_TIMEOUT)

    return read


def secret_of(worker: Mapping[str, Any]) -> str | None:
    """Return the Secret that a MultiKueueCluster names, in either of the two forms that Kueue serves."""
    for path in (("spec", "clusterSource", "kubeConfig"), ("spec", "kubeConfig")):
        location = text_at(worker, *path, "location")
        if location:
            return location if (text_at(worker, *path, "locationType") or "Secret") == "Secret" else None
    return None


def _metadata(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
