"""Deleting on purpose: a job with preconditions and to its last pod, a dead copy on a worker to make it ask again.

Nothing else in the provider deletes. A deletion names the uid that it means, so that it can't hit a successor of the
same name, and follows the pods on the workers, since a job that is gone on the manager may still hold its GPUs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.names import JOB_LABEL
from airflow_provider_multikueue.exceptions import MultiKueueError

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.workload import DeadRegion
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.logs.emit import Sink

__all__ = ["Healer", "delete_job", "delete_on_manager", "left_on_workers"]

GONE_SECONDS = 20.0
"""How long a deletion follows the pods; measured: 0.1 to 4.1 s, plus the pod's own grace period."""
ANSWER_SECONDS = 5.0
"""How long a worker may take to say what is left of a job on it."""

FIRST_PAUSE = 60.0
LONGEST_PAUSE = 600.0


async def delete_job(
    fleet: Fleet, job: Mapping[str, Any], sink: Sink, *, resource_version: str | None = None, wait: float = GONE_SECONDS
) -> bool:
    """Delete the job on the manager and follow its pods on the workers until they are gone.

    Returns False when it was not deleted because it had changed since ``resource_version``. A job that is gone already
    counts as deleted. What is left at the end of ``wait`` seconds is said in one line for each worker.
    """
    if not await delete_on_manager(fleet, job, resource_version=resource_version):
        return False
    namespace, name = str(job["namespace"]), str(job["name"])
    pod_label = find_kind(str(job["api_version"]), str(job["kind"])).pod_label
    left = await _until_gone(fleet, namespace, name, wait, pod_label)
    if not left:
        sink.record(logging.INFO, f"Deleted {job['kind']} {namespace}/{name}; no pod of it is left on any worker")
    for cluster, what in left.items():
        sink.record(logging.WARNING, f"Deleted {job['kind']} {namespace}/{name} on the manager; on {cluster}: {what}")
    return True


async def delete_on_manager(fleet: Fleet, job: Mapping[str, Any], *, resource_version: str | None = None) -> bool:
    """Delete the job on the manager; False when it had changed since ``resource_version``, True when it is gone."""
    from airflow_provider_multikueue.clusters.client import ApiError

    kind = find_kind(str(job["api_version"]), str(job["kind"]))
    resource = await fleet.manager.resource(kind.group, kind.plural)
    try:
        await fleet.manager.delete(
            resource,
            str(job["name"]),
            str(job["namespace"]),
            uid=str(job["uid"]),
            resource_version=resource_version,
            propagation="Background",
        )
    except ApiError as error:
        if error.status not in (404, 409):
            raise
        return error.status == 404
    return True


async def left_on_workers(fleet: Fleet, namespace: str, name: str, pod_label: str | None = None) -> dict[str, str]:
    """Return, by worker, what of the job is still there, in words; a worker that can't be asked is named too.

    ``pod_label`` is the label with the job's name that its own controller gives to pods, for those without ours.
    """
    names = sorted(fleet.worker_names)
    found = await asyncio.gather(*(_left_on(fleet, worker, namespace, name, pod_label) for worker in names))
    return {worker: what for worker, what in zip(names, found, strict=True) if what}


async def _until_gone(fleet: Fleet, namespace: str, name: str, wait: float, pod_label: str | None) -> dict[str, str]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    pause = 0.2
    while (left := await left_on_workers(fleet, namespace, name, pod_label)) and loop.time() < deadline:
        # A worker that does not answer will not do so sooner for being asked often.
        await asyncio.sleep(min(pause, max(deadline - loop.time(), 0.0)))
        pause = min(pause * 2, 2.0)
    return left


async def _left_on(fleet: Fleet, worker: str, namespace: str, name: str, pod_label: str | None) -> str | None:
    from airflow_provider_multikueue.clusters.client import PODS, ApiError

    try:
        cluster = await fleet.worker(worker)
        if cluster is None:
            return "its pods can't be seen, as this worker is not in the connection"
        async with asyncio.timeout(ANSWER_SECONDS):
            labels = [JOB_LABEL] if pod_label is None else [JOB_LABEL, pod_label]
            lists = await asyncio.gather(*(cluster.list(PODS, namespace, labels=f"{each}={name}") for each in labels))
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS:.0f} s; Kueue removes what is left there when the worker is back"
    except ApiError as error:
        return f"unknown, Kueue removes what is left there when the worker is back: {error}"
    except MultiKueueError as error:
        return f"unknown: {error}"
    pods = sorted({str(pod["metadata"]["name"]) for found, _ in lists for pod in found})
    return f"{len(pods)} pods are still ending: {', '.join(pods[:5])}" if pods else None


@dataclass(slots=True)
class Healer:
    """Deletes a job's dead copies on the workers, backing off for each; the manager then makes them anew."""

    _next: dict[str, float] = field(default_factory=dict)
    _pause: dict[str, float] = field(default_factory=dict)
    _forbidden: set[str] = field(default_factory=set)

    def may_heal(self, worker: str) -> bool:
        """Whether ``worker`` has not refused so far."""
        return worker not in self._forbidden

    async def heal(
        self,
        fleet: Fleet,
        dead: Iterable[DeadRegion],
        sink: Sink,
        now: float,
    ) -> None:
        """Delete each copy that is dead, healable and due."""
        for region in dead:
            if region.healable and self.may_heal(region.cluster) and now >= self._due(region):
                pause = min(self._pause.get(region.cluster, FIRST_PAUSE / 2) * 2, LONGEST_PAUSE)
                self._pause[region.cluster], self._next[region.cluster] = pause, now + pause
                await self._ask_again(fleet, region, sink, pause)

    def _due(self, region: DeadRegion) -> float:
        return self._next.get(region.cluster, 0.0)

    async def _ask_again(self, fleet: Fleet, region: DeadRegion, sink: Sink, pause: float) -> None:
        from airflow_provider_multikueue.clusters.client import ApiError

        where = f"{region.region or 'region unknown'} ({region.cluster})"
        try:
            cluster = await fleet.worker(region.cluster)
            if cluster is None:
                return
            workloads = await cluster.resource("kueue.x-k8s.io", "workloads")
            await cluster.delete(workloads, region.name, region.namespace, uid=region.uid or None)
        except ApiError as error:
            if error.status == 403:
                self._forbidden.add(region.cluster)
                sink.record(logging.WARNING, f"{where} can't be made to ask again: {error}")
            elif error.status != 404:
                sink.record(
                    logging.WARNING, f"{where} could not be made to ask again, next try in {pause:.0f} s: {error}"
                )
            return
        sink.record(
            logging.INFO, f"{where} is made to ask for capacity again; the next time not before {pause:.0f} s from now"
        )
