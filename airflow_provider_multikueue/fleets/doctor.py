"""Looks over a fleet as its account sees it: what answers, what is missing, what is known to go wrong.

Nothing is changed on any cluster. The answer is plain JSON; ``healthy`` says whether jobs can run and be followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.conditions import condition, is_true, text_at
from airflow_provider_multikueue.decisions.kinds import KINDS
from airflow_provider_multikueue.decisions.kueue_versions import (
    Version,
    known_problems,
    version_of_image,
    version_of_schema,
)
from airflow_provider_multikueue.decisions.rights import (
    KUEUE_NAMESPACE,
    WORKERS_FROM,
    Right,
    Role,
    right_for,
    rights_of,
)
from airflow_provider_multikueue.exceptions import MultiKueueError
from airflow_provider_multikueue.fleets.credential_report import credential_report
from airflow_provider_multikueue.fleets.fleet import MANAGER, Fleet, open_fleet, source_of
from airflow_provider_multikueue.fleets.queues import list_queues, read_queue

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.connection import FleetConfig

__all__ = ["examine", "examine_fleet"]

Json = dict[str, Any]

KUEUE = "kueue.x-k8s.io"
AUTOSCALING = "autoscaling.x-k8s.io"
DEPLOYMENTS = Resource("apps", "v1", "deployments")
KUEUE_DEPLOYMENT = "kueue-controller-manager"
PATIENCE = 45.0
"""Seconds for all that is asked of one cluster."""
LEVELS = {"required": "error", "useful": "warning", "optional": "note"}


async def examine(config: FleetConfig, *, namespace: str | None = None) -> Json:
    """Return what is found of the fleet, its queues and rights those of ``namespace``, else the connection's.

    ``clusters`` has an entry for the manager and each worker, ``queues`` what the queues lead to, ``findings`` of each
    are ``{"level": "error" | "warning" | "note", "text"}``.

    Raises FleetConfigurationError when the manager's credentials cannot be loaded.
    """
    async with open_fleet(config) as fleet:
        return await examine_fleet(fleet, namespace=namespace)


async def examine_fleet(fleet: Fleet, *, namespace: str | None = None) -> Json:
    """Return what `examine` returns, of a fleet that is open."""
    where = namespace or fleet.config.namespace or "default"
    manager = await _cluster(fleet, MANAGER, where)
    workers = await asyncio.gather(*(_cluster(fleet, name, where) for name in fleet.worker_names))
    clusters = [manager, *workers]
    queues: list[Json] = []
    if manager["reached"]:
        async with _patience(manager):
            await _compare_workers(fleet, manager, clusters)
            queues += await _queues(fleet, where, manager)
    for worker in workers:
        worker["region"] = fleet.region(worker["name"])
        if worker["reached"] and worker["region"] is None:
            text = "its region is unknown: state `region` in the connection, or let nodes be listed."
            _find(worker, "warning", text)
    healthy = not any(finding["level"] == "error" for cluster in clusters for finding in cluster["findings"])
    return {
        "connection": fleet.config.conn_id,
        "host": socket.gethostname(),
        "namespace": where,
        "healthy": healthy,
        "clusters": clusters,
        "queues": queues,
    }


def _find(cluster: Json, level: str, text: str) -> None:
    finding = {"level": level, "text": text}
    if finding not in cluster["findings"]:
        cluster["findings"].append(finding)


async def _cluster(fleet: Fleet, name: str, namespace: str) -> Json:
    """Return the entry of one cluster; whatever goes wrong is a finding of it."""
    role = "manager" if name == MANAGER else "worker"
    entry: Json = {"name": name, "role": role, "region": None, "reached": False, "server": None, "kubernetes": None}
    entry |= {"kueue": None, "apis": {}, "active": None, "credentials": None, "rights": [], "findings": []}
    async with _patience(entry):
        source = source_of(fleet.config.manager) if name == MANAGER else await fleet.source(name)
        cluster = fleet.manager if name == MANAGER else await fleet.worker(name)
        if source is None or cluster is None:
            raise MultiKueueError(f"{name} is not among the workers")
        entry["server"] = cluster.server
        entry["credentials"], warnings = await asyncio.to_thread(credential_report, source)
        for warning in warnings:
            _find(entry, "warning", warning)
        entry["kubernetes"] = str((await cluster.version()).get("gitVersion"))
        entry["reached"] = True
        await _kueue(entry, cluster)
        entry["rights"] = await _rights(entry, cluster, namespace, fleet.config.workers_from)
        entry["rights"] += await _rights_for_kinds(entry, cluster, namespace)
    return entry


@contextlib.asynccontextmanager
async def _patience(entry: Json) -> AsyncIterator[None]:
    """Make whatever goes wrong in the block, or takes too long, a finding of the cluster."""
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except (ApiError, MultiKueueError, ConnectionError) as error:
        _find(entry, "error", str(error))
    except TimeoutError:
        _find(
            entry,
            "error",
            f"Cluster {entry['name']} did not answer everything within {PATIENCE:.0f} s. Look at the load of its API "
            "server, and at the network between.",
        )


# -- Kueue


async def _kueue(entry: Json, cluster: Cluster) -> None:
    """Fill in which Kueue there is, and what is known of it."""
    versions = await cluster.versions(KUEUE)
    entry["apis"] = {KUEUE: versions, AUTOSCALING: await cluster.versions(AUTOSCALING)}
    if not versions:
        _find(entry, "error", f"Cluster {cluster.name} does not serve {KUEUE}: install Kueue there.")
        return
    if entry["role"] == "worker" and not entry["apis"][AUTOSCALING]:
        _find(entry, "note", "there are no ProvisioningRequests: capacity is what the cluster has already.")
    version = await _version(cluster, versions[0])
    entry["kueue"] = version.text if version else None
    if entry["role"] == "manager":
        for problem in known_problems(version):
            _find(entry, "note", f"Kueue {version.text if version else 'of any version'}: {problem}")


async def _version(cluster: Cluster, served: str) -> Version | None:
    try:
        found = version_of_image(await cluster.get(DEPLOYMENTS, KUEUE_DEPLOYMENT, KUEUE_NAMESPACE))
        if found is not None:
            return found
    except ApiError:
        pass
    try:
        return version_of_schema(await cluster.schema(KUEUE, served))
    except ApiError:
        return None


async def _compare_workers(fleet: Fleet, manager: Json, clusters: Iterable[Json]) -> None:
    """Compare the connection's workers with the manager's MultiKueueClusters, and say which are not connected."""
    try:
        resource = await fleet.manager.resource(KUEUE, "multikueueclusters")
        items, _ = await fleet.manager.list(resource)
    except ApiError as error:
        if error.status != 403:  # a missing right is among the rights
            _find(manager, "error", str(error))
        return
    there = {text_at(item, "metadata", "name"): item for item in items}
    by_name = {cluster["name"]: cluster for cluster in clusters if cluster["role"] == "worker"}
    for name in sorted(there.keys() - by_name.keys()):
        _find(
            manager, "warning", f"MultiKueueCluster {name} is not in the connection: no logs and no region from there."
        )
    for name, entry in by_name.items():
        if name not in there:
            _find(entry, "error", f"the manager has no MultiKueueCluster {name}; it has: {', '.join(sorted(there))}.")
        else:
            _judge_active(entry, there[name])


def _judge_active(entry: Json, worker: Mapping[str, Any]) -> None:
    active = condition(worker, "Active")
    entry["active"] = is_true(worker, "Active")
    if not entry["active"]:
        said = f"{text_at(active, 'reason')}: {text_at(active, 'message')}"
        why = said if active else "no condition: Kueue has not looked at it"
        _find(entry, "error", f"the manager's Kueue is not connected to it ({why.rstrip('.')}): no job gets there.")


async def _queues(fleet: Fleet, namespace: str, manager: Json) -> list[Json]:
    """Return the namespace's queues with the clusters and regions that they lead to."""
    queues = []
    for name in await list_queues(fleet.manager, namespace):
        try:
            facts = await read_queue(fleet.manager, namespace, name)
        except ApiError as error:
            _find(manager, "error", str(error))
            continue
        queue: Json = {"name": name, "cluster_queue": facts.cluster_queue, "multikueue": facts.multikueue}
        queue |= {"stopped": facts.stopped, "clusters": list(facts.clusters) if facts.clusters is not None else None}
        queue["regions"] = sorted({fleet.region(c) or "unknown" for c in facts.clusters or ()})
        queues.append(queue)
        if facts.multikueue is False or facts.cluster_queue_exists is False:
            _find(manager, "warning", f"LocalQueue {namespace}/{name} is no MultiKueue queue: jobs in it stay here.")
        if facts.stopped:
            _find(manager, "warning", f"LocalQueue {namespace}/{name} is stopped ({facts.stopped}).")
    if not queues:
        _find(manager, "warning", f"namespace {namespace} has no LocalQueue that the account can see.")
    wanted = fleet.config.queue_name
    if queues and wanted and wanted not in {queue["name"] for queue in queues}:
        _find(manager, "error", f"the connection's queue {wanted} is not in namespace {namespace}.")
    return queues


# -- rights


async def _rights(entry: Json, cluster: Cluster, namespace: str, workers_from: str | None) -> list[Json]:
    """Return each verb of the account's role with the API server's own answer whether it is allowed."""
    roles: tuple[Role, ...] = ("worker", "worker-heal")
    if entry["role"] == "manager":
        finding = WORKERS_FROM.get(workers_from)
        roles = ("manager", "manager-reap", *((finding,) if finding else ()))
    rights = rights_of(*roles)
    asked = await asyncio.gather(*(_allowed(cluster, right, namespace) for right in rights))
    for right, answers in zip(rights, asked, strict=True):
        for verb in _denied(answers):
            _find_missing(entry, cluster, right, verb, namespace)
    return [answer for answers in asked for answer in answers]


async def _rights_for_kinds(entry: Json, cluster: Cluster, namespace: str) -> list[Json]:
    """Return the same for each other kind of job that the cluster has, but for Pods, which all clusters have.

    What is missing is one note a kind: who does not use it does not need it.
    """
    role: Role = "manager" if entry["role"] == "manager" else "worker"
    asked: list[Json] = []
    for kind in KINDS:
        if kind.group in ("", "batch") or not await _serves(cluster, kind.group, kind.plural):
            continue
        right = right_for(kind, role)
        answers = await _allowed(cluster, right, namespace)
        if denied := _denied(answers):
            _find_missing(entry, cluster, right, ", ".join(denied), namespace)
        asked += answers
    return asked


async def _allowed(cluster: Cluster, right: Right, namespace: str) -> list[Json]:
    """Return each verb of a right with the API server's answer."""
    resource = Resource(right.group, "", right.plural, namespaced=right.namespaced)
    where = right.where(namespace)
    answers = await asyncio.gather(
        *(cluster.access(verb, resource, where, subresource=right.subresource) for verb in right.verbs)
    )
    return [
        {"verb": verb, "resource": right.shown, "namespace": where, "allowed": allowed}
        for verb, allowed in zip(right.verbs, answers, strict=True)
    ]


def _denied(answers: Iterable[Json]) -> list[str]:
    return [answer["verb"] for answer in answers if not answer["allowed"]]


def _find_missing(entry: Json, cluster: Cluster, right: Right, verbs: str, namespace: str) -> None:
    where = f"in namespace {right.where(namespace)}" if right.namespaced else "cluster-wide"
    _find(entry, LEVELS[right.need], f"may not {verbs} {right.shown} {where} on {cluster.name}: {right.without}.")


async def _serves(cluster: Cluster, group: str, plural: str) -> bool:
    try:
        await cluster.resource(group, plural)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True
