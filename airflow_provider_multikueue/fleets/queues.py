"""What a LocalQueue on the manager leads to: read once before a job is submitted, then judged.

A wrong queue is the commonest mistake and Kueue is silent about it (the job is accepted and waits for ever), so it is
refused here, before anything exists. What the credentials may not read is left out, never guessed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.decisions.conditions import items_at, text_at
from airflow_provider_multikueue.decisions.kinds import get_at
from airflow_provider_multikueue.exceptions import FleetConfigurationError, RegionUnavailableError
from airflow_provider_multikueue.fleets.remembered import recall, remember

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster

__all__ = [
    "QueueFacts",
    "choose_queue",
    "judge_queue",
    "list_queues",
    "read_queue",
    "recall_queue",
    "remember_queue",
    "stays_within",
]

KUEUE = "kueue.x-k8s.io"
MULTIKUEUE_CONTROLLER = "kueue.x-k8s.io/multikueue"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """What is known of one LocalQueue; ``None`` means that it could not be read."""

    name: str
    namespace: str
    exists: bool | None = None
    cluster_queue: str | None = None
    cluster_queue_exists: bool | None = None
    stopped: str | None = None
    multikueue: bool | None = None
    clusters: tuple[str, ...] | None = None
    siblings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """What our account may not read of it, in the server's words."""


async def read_queue(manager: Cluster, namespace: str, name: str) -> QueueFacts:
    """Follow LocalQueue -> ClusterQueue -> AdmissionCheck -> MultiKueueConfig as far as rights and objects go."""
    reader = _Reader(manager)
    exists, local = await reader.read("localqueues", name, namespace)
    if local is None:
        siblings = tuple(await list_queues(manager, namespace)) if exists is False else ()
        facts = QueueFacts(name=name, namespace=namespace, exists=exists, siblings=siblings)
    else:
        facts = await _read_cluster_queue(reader, QueueFacts(name=name, namespace=namespace, exists=True), local)
    return replace(facts, refused=tuple(reader.refused))


def recall_queue(fleet: str, namespace: str, name: str) -> QueueFacts | None:
    """Return what this host read of a queue in the last seconds, if nothing was to be said against it."""
    plain = recall(fleet, "queue", namespace, name)
    if not isinstance(plain, dict):
        return None
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in plain.items()}
    with contextlib.suppress(TypeError):  # another version of this provider wrote it
        return QueueFacts(**values)
    return None


def remember_queue(fleet: str, facts: QueueFacts) -> None:
    """Leave what was read of a queue to the submissions that follow; ``fleet`` is its connection's digest."""
    remember(asdict(facts), fleet, "queue", facts.namespace, facts.name)


async def list_queues(manager: Cluster, namespace: str) -> list[str]:
    """Return the names of the namespace's LocalQueues, sorted; empty where they may not be listed."""
    from airflow_provider_multikueue.clusters.client import ApiError

    try:
        resource = await manager.resource(KUEUE, "localqueues")
        items, _ = await manager.list(resource, namespace)
    except ApiError:
        return []
    return sorted(name for item in items if (name := text_at(item, "metadata", "name")))


def judge_queue(facts: QueueFacts, *, regions: Sequence[str] | None, region_of: Mapping[str, str | None]) -> list[str]:
    """Refuse a queue that can never run the job; return what is worth saying about one that can.

    Raises:
        FleetConfigurationError: the queue, or what it leads to, does not exist or is not a MultiKueue queue.
        RegionUnavailableError: the queue reaches clusters outside ``regions``.
    """
    where = f"LocalQueue {facts.namespace}/{facts.name} on the manager"
    if facts.exists is False:
        others = ", ".join(facts.siblings) or "none that these credentials can see"
        raise FleetConfigurationError(
            f"{where} does not exist; the namespace has: {others}. "
            f"Set queue_name= to one of them, or create the queue. Nothing was submitted."
        )
    if facts.cluster_queue_exists is False:
        raise FleetConfigurationError(
            f"{where} leads to ClusterQueue {facts.cluster_queue}, which does not exist. "
            f"Create it or correct the LocalQueue. Nothing was submitted."
        )
    if facts.multikueue is False:
        raise FleetConfigurationError(
            f"{where} leads to ClusterQueue {facts.cluster_queue}, which has no MultiKueue admission check: the job "
            f"would run on the manager itself. Use a queue that has one. Nothing was submitted."
        )
    if regions is not None:
        _judge_regions(facts, regions, region_of)
    notes = [f"{where} can't be checked before the job is submitted: {text}" for text in facts.refused]
    if facts.stopped:
        notes.append(f"{where} is stopped ({facts.stopped}): the job waits until someone resumes it")
    return notes


def outside(clusters: Iterable[str], regions: Sequence[str], region_of: Mapping[str, str | None]) -> list[str]:
    """Return the clusters whose region is unknown or not among ``regions``, each with what is known of it."""
    return [
        f"{name} ({region_of.get(name) or 'region unknown'})" for name in clusters if region_of.get(name) not in regions
    ]


def stays_within(facts: QueueFacts, regions: Sequence[str], region_of: Mapping[str, str | None]) -> bool:
    """Whether the queue is known to be a MultiKueue queue that reaches clusters in ``regions`` only."""
    return bool(facts.multikueue and facts.clusters) and not outside(facts.clusters or (), regions, region_of)


def _judge_regions(facts: QueueFacts, regions: Sequence[str], region_of: Mapping[str, str | None]) -> None:
    allowed = ", ".join(regions)
    if facts.clusters is None:
        raise RegionUnavailableError(
            f"regions={allowed} was asked for, but which clusters LocalQueue {facts.namespace}/{facts.name} reaches "
            f"cannot be read on the manager: allow get on clusterqueues, admissionchecks and multikueueconfigs. "
            f"{' '.join(facts.refused)}".rstrip()
        )
    if bad := outside(facts.clusters, regions, region_of):
        raise RegionUnavailableError(
            f"regions={allowed} was asked for, but LocalQueue {facts.namespace}/{facts.name} also reaches "
            f"{', '.join(bad)}. Use a queue whose MultiKueueConfig lists only clusters in {allowed}. "
            f"Nothing was submitted."
        )


async def choose_queue(
    manager: Cluster, namespace: str, *, regions: Sequence[str], region_of: Mapping[str, str | None]
) -> QueueFacts:
    """Return the one LocalQueue of the namespace that stays within ``regions``.

    Raises:
        RegionUnavailableError: none fits, or several do; the text lists the queues with their regions.
    """
    names = await list_queues(manager, namespace)
    queues = await asyncio.gather(*(read_queue(manager, namespace, name) for name in names))
    fitting = [queue for queue in queues if stays_within(queue, regions, region_of)]
    if len(fitting) == 1:
        return fitting[0]
    reach = "; ".join(
        f"{q.name}: {', '.join(sorted({region_of.get(c) or '?' for c in q.clusters or ()})) or '?'}" for q in queues
    )
    what = "no LocalQueue" if not fitting else f"more than one LocalQueue ({', '.join(q.name for q in fitting)})"
    raise RegionUnavailableError(
        f"{what} of namespace {namespace} keeps a job within {', '.join(regions)}. Queues and their regions: "
        f"{reach or 'none'}. Set queue_name=, or create such a queue. Nothing was submitted."
    )


async def _read_cluster_queue(reader: _Reader, facts: QueueFacts, local: Mapping[str, Any]) -> QueueFacts:
    name = text_at(local, "spec", "clusterQueue")
    facts = replace(facts, cluster_queue=name, stopped=_stopped(local, "LocalQueue"))
    exists, cluster_queue = await reader.read("clusterqueues", name, None) if name else (False, None)
    if cluster_queue is None:
        return replace(facts, cluster_queue_exists=exists)
    facts = replace(facts, cluster_queue_exists=True, stopped=facts.stopped or _stopped(cluster_queue, "ClusterQueue"))
    checks = await asyncio.gather(*(reader.read("admissionchecks", c, None) for c in check_names(cluster_queue)))
    known = [check for _, check in checks if check is not None]
    multikueue = [c for c in known if text_at(c, "spec", "controllerName") == MULTIKUEUE_CONTROLLER]
    if not multikueue:
        return replace(facts, multikueue=False if len(known) == len(checks) else None)
    return replace(facts, multikueue=True, clusters=await _clusters(reader, multikueue[0]))


def check_names(cluster_queue: Mapping[str, Any]) -> list[str]:
    """Return the names of a ClusterQueue's admission checks, in either of the two forms that Kueue serves."""
    rules = items_at(cluster_queue, "spec", "admissionChecksStrategy", "admissionChecks")
    names = get_at(cluster_queue, ("spec", "admissionChecks"))
    listed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return [name for rule in rules if (name := text_at(rule, "name"))] + listed


async def _clusters(reader: _Reader, check: Mapping[str, Any]) -> tuple[str, ...] | None:
    name = text_at(check, "spec", "parameters", "name")
    _, config = await reader.read("multikueueconfigs", name, None) if name else (None, None)
    clusters = get_at(config, ("spec", "clusters"))
    return tuple(c for c in clusters if isinstance(c, str)) if isinstance(clusters, list) else None


def _stopped(queue: Mapping[str, Any], kind: str) -> str | None:
    policy = text_at(queue, "spec", "stopPolicy")
    return f"{kind} stopPolicy {policy}" if policy and policy != "None" else None


@dataclass(slots=True)
class _Reader:
    """Reads Kueue's objects on the manager, and remembers what it was refused."""

    manager: Cluster
    refused: list[str] = field(default_factory=list)

    async def read(self, plural: str, name: str, namespace: str | None) -> tuple[bool | None, dict[str, Any] | None]:
        """Return (exists, object): (False, None) when it is not there, (None, None) when it may not be read."""
        from airflow_provider_multikueue.clusters.client import ApiError

        try:
            return True, await self.manager.get(await self.manager.resource(KUEUE, plural), name, namespace)
        except ApiError as error:
            if error.status == 404:
                return False, None
            if error.status == 403:
                self.refused.append(str(error))
                return None, None
            raise
