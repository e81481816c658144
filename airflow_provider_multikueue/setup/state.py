"""Looks at one cluster: what of a part of the fleet is there, and what it would take to make it as desired."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource
from airflow_provider_multikueue.setup.desired import FLEET_LABEL, PART_LABEL, WORKER_LABEL, Part
from airflow_provider_multikueue.setup.plan import Action, Change, Plan, compare, deletion_order, making_order

__all__ = ["FIELD_MANAGER", "Place", "resource_of", "survey"]

Object = dict[str, Any]

FIELD_MANAGER: Final = "airflow-provider-multikueue"
AT_ONCE: Final = 8
KUEUE: Final = "kueue.x-k8s.io/v1beta2"
RBAC: Final = "rbac.authorization.k8s.io/v1"
_KUEUE_KINDS: Final = (
    "WorkloadPriorityClass",
    "ResourceFlavor",
    "Cohort",
    "ProvisioningRequestConfig",
    "MultiKueueConfig",
    "AdmissionCheck",
    "ClusterQueue",
    "LocalQueue",
)
KINDS: Final[Mapping[Part, tuple[tuple[str, str], ...]]] = {
    Part.KUEUE: (
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("apiregistration.k8s.io/v1", "APIService"),
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
        *((RBAC, kind) for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")),
        *(("v1", kind) for kind in ("ServiceAccount", "ConfigMap", "Secret", "Service", "Namespace")),
        ("apps/v1", "Deployment"),
    ),
    Part.MONITORING: (
        ("monitoring.googleapis.com/v1", "PodMonitoring"),
        *((RBAC, kind) for kind in ("ClusterRoleBinding", "RoleBinding", "Role")),
        *(("v1", kind) for kind in ("Secret", "ServiceAccount")),
    ),
    Part.WORKER: (("v1", "Namespace"), *((KUEUE, kind) for kind in _KUEUE_KINDS)),
    Part.MANAGER: (("v1", "Namespace"), *((KUEUE, kind) for kind in _KUEUE_KINDS)),
    Part.ACCESS: (
        *(("v1", kind) for kind in ("ServiceAccount", "Secret")),
        *((RBAC, kind) for kind in ("ClusterRole", "ClusterRoleBinding")),
    ),
    Part.LINK: (("v1", "Secret"), (KUEUE, "MultiKueueCluster")),
}
"""Where to look for objects of a part that the description no longer has."""
_NAMESPACED: Final = frozenset(
    {"LocalQueue", "Workload", "Role", "RoleBinding", "ServiceAccount", "ConfigMap", "Secret", "Service", "Deployment"}
    | {"PodMonitoring"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A part of a fleet on one cluster; of one worker, if it is there for that one."""

    cluster: Cluster
    fleet: str
    part: Part
    worker: str | None = None

    @property
    def selector(self) -> str:
        """The labels of what belongs here."""
        labels = {FLEET_LABEL: self.fleet, PART_LABEL: str(self.part), WORKER_LABEL: self.worker}
        return ",".join(f"{key}={value}" for key, value in labels.items() if value)


def resource_of(api_version: str, kind: str) -> Resource:
    """Return the resource of a kind, by Kubernetes' own rule for plurals."""
    group, _, version = api_version.rpartition("/")
    lower = kind.lower()
    plural = f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}es" if lower.endswith("s") else f"{lower}s"
    return Resource(group, version, plural, kind in _NAMESPACED)


async def survey(place: Place, desired: Iterable[Object], *, force: bool = False) -> Plan:
    """Return what it takes to make the part as desired: what to make and change, then what to delete."""
    wanted = making_order(desired)
    slots = asyncio.Semaphore(AT_ONCE)

    async def look(each: Mapping[str, Any]) -> Change:
        async with slots:
            return await _look(place, dict(each), force=force)

    changes = await asyncio.gather(*map(look, wanted))
    keep = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in wanted}
    return Plan((*changes, *await _surplus(place, keep)))


async def _look(place: Place, each: Object, *, force: bool) -> Change:
    cluster, metadata = place.cluster, each["metadata"]
    live = await _live(cluster, resource_of(each["apiVersion"], each["kind"]), metadata)
    applied, conflict = await _rehearse(cluster, each, force=force) if live is not None else (None, "")
    label = (FLEET_LABEL, place.fleet)
    return compare(cluster.name, each, live, applied, label=label, force=force, conflict=conflict)


async def _rehearse(cluster: Cluster, each: Object, *, force: bool) -> tuple[Object | None, str]:
    """Return what the object would be after it was applied, and which fields someone else holds."""
    resource, metadata = resource_of(each["apiVersion"], each["kind"]), each["metadata"]
    try:
        applied = await cluster.patch(
            *(resource, metadata["name"], each, metadata.get("namespace")),
            kind="apply",
            field_manager=FIELD_MANAGER,
            force=force,
            dry_run=True,
        )
    except ApiError as error:
        if error.status == 409:
            held = sorted({f"{cause.get('field')} ({cause.get('message')})" for cause in error.causes})
            return None, f"someone else has set {', '.join(held) or error.message}"
        if not error.passing:
            raise
        return None, ""  # a webhook that does not answer (yet)
    return applied, ""


async def _live(cluster: Cluster, resource: Resource, metadata: Mapping[str, Any]) -> Object | None:
    try:
        return await cluster.get(resource, metadata["name"], metadata.get("namespace"))
    except ApiError as error:
        if error.status == 404:  # neither the object nor, perhaps, its kind
            return None
        raise


async def _surplus(place: Place, keep: set[tuple[str, str | None, str]]) -> list[Change]:
    """Return the deletion of what carries the part's labels and is not to be kept."""
    found: list[Object] = []
    for items in await asyncio.gather(*(_listed(place, *kind) for kind in KINDS[place.part])):
        found += items
    return [
        Change(
            action=Action.DELETE,
            cluster=place.cluster.name,
            kind=each["kind"],
            name=each["metadata"]["name"],
            namespace=each["metadata"].get("namespace"),
            live=each,
        )
        for each in deletion_order(found)
        if (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) not in keep
    ]


async def _listed(place: Place, api_version: str, kind: str) -> list[Object]:
    try:
        items, _ = await place.cluster.list(resource_of(api_version, kind), labels=place.selector)
    except ApiError as error:
        if error.status == 404:  # the kind is not there (yet, any more)
            return []
        raise
    return [{**each, "apiVersion": api_version, "kind": kind} for each in items]
