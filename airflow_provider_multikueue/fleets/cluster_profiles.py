"""Workers by the ClusterProfiles that a manager's MultiKueueClusters name, as Google's fleets write them.

A profile says where a cluster is and by which kind of plugin Kueue gets at it. Plugins are Kueue's; we go to the same
address as ourselves, which needs no plugin where the kind is ``google``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.clusters.connect_gateway import FleetMember
from airflow_provider_multikueue.decisions.connection import gke_region
from airflow_provider_multikueue.decisions.rights import KUEUE_NAMESPACE

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster
    from airflow_provider_multikueue.clusters.google_account import GoogleAccount

__all__ = ["PROFILE_ANNOTATION", "members", "profile_of"]

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

GROUP = "multicluster.x-k8s.io"
PROFILE_ANNOTATION = "airflow-provider-multikueue/cluster-profile"
"""On a MultiKueueCluster that Kueue reaches by a Secret: the ClusterProfile by which we reach it."""
GOOGLE = "google"
"""The name of the access provider that takes Google accounts."""
CLUSTER_NAME = "fleet.gke.io/clusterName"
ENDPOINT = "gateway.gke.io/endpoint"


async def members(
    manager: Cluster, clusters: list[dict[str, Any]], account: GoogleAccount
) -> dict[str, tuple[FleetMember, str | None]]:
    """Return how each MultiKueueCluster's worker is reached, and its region; those that can't be are logged.

    Raises `ApiError` when the manager does not serve ClusterProfiles, or does not let them be read.
    """
    resource = await manager.resource(GROUP, "clusterprofiles")
    items, _ = await manager.list(resource, KUEUE_NAMESPACE)
    profiles = {_text(_part(item, "metadata").get("name")): item for item in items}
    found = {}
    for cluster in clusters:
        name, reference = _text(_part(cluster, "metadata").get("name")), profile_of(cluster)
        member = _member(profiles[reference], reference, account) if reference in profiles else None
        if member is None:
            log.warning("MultiKueueCluster %s is not used as a worker: %s.", name, _why(reference, profiles))
        else:
            found[name] = (member, gke_region(member.name) if member.name else None)
    return found


def profile_of(cluster: Object) -> str | None:
    """Return the ClusterProfile that a MultiKueueCluster names, by an annotation or for Kueue itself."""
    stated = _text(_part(_part(cluster, "metadata"), "annotations").get(PROFILE_ANNOTATION))
    reference = _part(_part(_part(cluster, "spec"), "clusterSource"), "clusterProfileRef")
    return stated or _text(reference.get("name")) or None


def _member(profile: Object, reference: str, account: GoogleAccount) -> FleetMember | None:
    """Return the cluster at the address for Google accounts."""
    annotations = _part(_part(profile, "metadata"), "annotations")
    cluster = next((cluster for name, cluster in _providers(profile) if name == GOOGLE), None)
    server = _text((cluster or {}).get("server")) or _text(annotations.get(ENDPOINT))
    if not server:
        return None
    return FleetMember(
        server=server,
        authority=_text((cluster or {}).get("certificate-authority-data")) or None,
        where=f"ClusterProfile {KUEUE_NAMESPACE}/{reference}",
        account=account,
        name=_gke_name(_text(annotations.get(CLUSTER_NAME))),
    )


def _providers(profile: Object) -> Iterator[tuple[str, Object]]:
    """Yield the names and clusters of a profile's access providers, the older list's last."""
    status = _part(profile, "status")
    for key in ("accessProviders", "credentialProviders"):
        entries = status.get(key)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping):
                yield _text(entry.get("name")), _part(entry, "cluster")


def _gke_name(text: str) -> str | None:
    """Return a GKE resource name if ``text`` is one."""
    name = re.sub(r"^/*(?:container\.googleapis\.com/)?", "", text).replace("/zones/", "/locations/")
    return name if gke_region(name) else None


def _why(reference: str | None, profiles: Mapping[str, Object]) -> str:
    if reference is None:
        return "it names no ClusterProfile"
    if reference not in profiles:
        return f"there is no ClusterProfile {KUEUE_NAMESPACE}/{reference}"
    kinds = ", ".join(sorted({name for name, _ in _providers(profiles[reference])})) or "none"
    return (
        f"ClusterProfile {reference} gives no address for Google accounts (access providers: {kinds}); list the worker "
        "in the connection"
    )


def _part(obj: Object, key: str) -> Object:
    value = obj.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
