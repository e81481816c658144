"""What is watched for one job: its object and Workload on the manager, its copies and pods on the workers.

A worker is watched from the moment that it is asked until the job is placed elsewhere and its copy is gone; its pods
from the moment that it admits the job, since the pod of an instant job can be read for about a second in all. What can
vanish is kept as it was last seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_multikueue.bell import Bell
from airflow_provider_multikueue.decisions.kinds import Kind, find_kind
from airflow_provider_multikueue.decisions.workload import View, WorkerView
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.watch import SharedWatch, Subscription
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.logs.emit import Sink

__all__ = ["Attention"]

T = TypeVar("T")
Object = dict[str, Any]

RETRY_SECONDS = 5.0
REFUSED = (401, 403)
BLIND_SECONDS = 30.0
REGION_SECONDS = 2.0
"""How long a worker's nodes may take to tell its region before it is watched without."""


@dataclass(slots=True)
class Copies:
    """What is watched on one worker; job and pods once it has admitted the job."""

    workload: Subscription
    provisioning: Subscription
    job: Subscription | None = None
    pods: Subscription | None = None

    @property
    def admitted(self) -> bool:
        """Whether the worker's copy of the Workload is admitted there, which is no placement yet."""
        conditions = (
            condition
            for workload in self.workload.objects.values()
            for condition in workload.get("status", {}).get("conditions") or ()
        )
        return any(c.get("type") == "Admitted" and c.get("status") == "True" for c in conditions)

    @property
    def gone(self) -> bool:
        """Whether the job was never admitted there and no copy is left; one that is not seen may still come to run."""
        seen = self.workload.synced and not self.workload.trouble
        return self.pods is None and seen and not self.workload.objects

    def close(self) -> None:
        """Stop watching."""
        for subscription in (self.workload, self.provisioning, self.job, self.pods):
            if subscription is not None:
                subscription.close()


@dataclass(slots=True)
class Attention:
    """Everything that is watched for one job; ``changed`` is set at each change of any of it."""

    fleet: Fleet
    part: Mapping[str, Any]
    sink: Sink
    changed: Bell = field(default_factory=Bell)
    job: Object | None = None
    workload: Object | None = None
    pods: dict[str, dict[str, Object]] = field(default_factory=dict)
    _jobs: Subscription | None = None
    _workloads: Subscription | None = None
    _copies: dict[str, Copies] = field(default_factory=dict)
    _refused: frozenset[str] = frozenset()  # most tasks never need theirs, and an empty set takes 200 bytes
    _said: frozenset[str] = frozenset()
    _unattended: bool = False
    _absent: bool = False

    @property
    def kind(self) -> Kind:
        """The row of the job's kind."""
        return find_kind(str(self.part["api_version"]), str(self.part["kind"]))

    @property
    def name(self) -> str:
        """The job's name, which is the same on every cluster."""
        return str(self.part["name"])

    @property
    def namespace(self) -> str:
        """The job's namespace, which is the same on every cluster."""
        return str(self.part["namespace"])

    async def start(self) -> None:
        """Watch the manager, and return when it was seen once or is known not to answer."""
        jobs, workloads = await self._manager_watches()
        self._jobs = jobs.subscribe(self.name, self.changed.set)
        self._workloads = workloads.subscribe(str(self.part["uid"]), self.changed.set)
        for subscription in (self._jobs, self._workloads):
            while not (subscription.synced or subscription.trouble):
                self.changed.clear()
                await self.changed.wait()
            if subscription.trouble and subscription.trouble.status in REFUSED:
                raise FleetConfigurationError(f"The job can't be followed on the manager: {subscription.trouble.text}")
        await self._until_seen(self._jobs)
        self.collect()

    async def _until_seen(self, jobs: Subscription) -> None:
        """Wait until the job is seen, or known to be gone: a watch that others began may not have come to it yet.

        While the manager can't be watched it is neither, which `resolve_doubt` makes up for.
        """
        while True:
            self.changed.clear()
            if jobs.trouble or str(self.part["uid"]) in jobs.objects:
                return
            if not await self.persist(self._exists):
                self._absent = True
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await self.changed.wait()

    async def resolve_doubt(self) -> None:
        """Look for a job that nobody could look for when this began, once the manager is watched again."""
        if self.job is None and not self._absent and self._jobs is not None and not self._jobs.trouble:
            await self._until_seen(self._jobs)
            self.collect()

    async def _exists(self) -> bool:
        from airflow_provider_multikueue.clusters.client import ApiError

        try:
            resource = await self.fleet.manager.resource(self.kind.group, self.kind.plural)
            found = await self.fleet.manager.get(resource, self.name, self.namespace)
        except ApiError as error:
            if error.passing:
                raise
            return False
        return str(found["metadata"]["uid"]) == str(self.part["uid"])

    @property
    def settled(self) -> bool:
        """Whether everything that is watched was seen once, or is known not to answer."""
        return all(s.synced or s.trouble for s in self._watched())

    @property
    def troubled(self) -> bool:
        """Whether a cluster that matters does not answer, or could not be watched yet."""
        return self._unattended or any(s.trouble for s in self._watched())

    def _watched(self) -> list[Subscription]:
        copies = (s for c in self._copies.values() for s in (c.workload, c.provisioning, c.job, c.pods))
        return [s for s in (self._jobs, self._workloads, *copies) if s is not None]

    def close(self) -> None:
        """Stop watching."""
        for watched in (self._jobs, self._workloads, *self._copies.values()):
            if watched is not None:
                watched.close()

    async def widen(self, workers: Iterable[str], placed: str | None) -> None:
        """Watch the copies on ``workers``, and the pods where the job is admitted or ``placed``."""
        if self.workload is None:
            return
        self._unattended = False
        for name in sorted({*workers, *self._copies}):
            copies = self._copies.get(name) or await self._attend(name)
            self._unattended |= copies is None and name not in self._refused
            if copies is not None and copies.pods is None and (name == placed or copies.admitted):
                await self._attend_pods(name, copies)
        self.collect()

    def narrow(self, workers: Iterable[str]) -> None:
        """Let go of all but ``workers`` on which nothing of the job is left.

        Where it was admitted it stays watched: a worker that was lost may come back with a copy that runs or has ended.
        """
        for name in self._copies.keys() - {*workers}:
            if self._copies[name].gone:
                self._copies.pop(name).close()

    def collect(self) -> None:
        """Keep the last state of what can vanish: the job, its Workload, its pods."""
        self.job = _newest(self._jobs, self.part["uid"]) or self.job
        self.workload = _newest(self._workloads) or self.workload
        for name, copies in self._copies.items():
            if copies.pods is not None:
                self.pods.setdefault(name, {}).update(copies.pods.objects)
            self._tell_missing_rights(copies)

    def _tell_missing_rights(self, copies: Copies) -> None:
        """Say once what our account may not watch on a worker: the job goes on, with less known of it."""
        for watched in (copies.workload, copies.provisioning, copies.job, copies.pods):
            trouble = watched.trouble if watched is not None else None
            if trouble is not None and trouble.status in REFUSED:
                self._say_once(f"{trouble.text} The job itself is not affected.")

    def view(self, now: float, can_heal: Callable[[str], bool] = lambda _: True) -> View:
        """Return all that is known at ``now``, for ``observe``; ``can_heal`` says where dead copies can be deleted."""
        trouble = next((s.trouble for s in (self._jobs, self._workloads) if s is not None and s.trouble), None)
        return View(
            kind=self.kind,
            job=_newest(self._jobs, self.part["uid"]),
            job_seen=self.job is not None or self._absent,
            workload=_newest(self._workloads),
            workload_seen=self.workload is not None,
            workers={name: self._worker_view(name, copies, can_heal(name)) for name, copies in self._copies.items()},
            now=now,
            manager_trouble=trouble.text if trouble else None,
            manager_trouble_since=trouble.since if trouble else None,
        )

    def last_pods(self, worker: str | None) -> list[Object]:
        """Return the last known state of the job's pods on ``worker``."""
        return list(self.pods.get(worker or "", {}).values())

    def unfinished(self, worker: str | None) -> bool:
        """Whether a pod on ``worker`` is there and its end, with its exit code, was not seen yet."""
        copies = self._copies.get(worker or "")
        if copies is None or copies.pods is None or copies.pods.trouble:
            return False
        return any(p.get("status", {}).get("phase") in ("Pending", "Running") for p in copies.pods.objects.values())

    def blind(self, worker: str) -> bool:
        """Whether the pods on ``worker`` can't be seen: not allowed, or no answer for a while."""
        copies = self._copies.get(worker)
        trouble = copies.pods.trouble if copies is not None and copies.pods is not None else None
        if trouble is None:
            return worker in self._refused
        return trouble.status in REFUSED or time.time() - trouble.since > BLIND_SECONDS

    def annotation(self, name: str) -> str | None:
        """Return an annotation of the job as it was last seen."""
        annotations = (self.job or {}).get("metadata", {}).get("annotations") or {}
        value = annotations.get(name)
        return value if isinstance(value, str) else None

    @property
    def pods_expected(self) -> int:
        """How many pods the job's Workload asks for; 0 before it is seen."""
        pod_sets = (self.workload or {}).get("spec", {}).get("podSets") or ()
        return sum(int(pod_set.get("count") or 1) for pod_set in pod_sets)

    def _worker_view(self, name: str, copies: Copies, can_heal: bool) -> WorkerView:
        trouble = copies.workload.trouble
        return WorkerView(
            cluster=name,
            region=self.fleet.region(name),
            trouble=trouble.text if trouble else None,
            trouble_since=trouble.since if trouble else None,
            workload=_newest(copies.workload),
            job=_newest(copies.job),
            provisioning=tuple(copies.provisioning.objects.values()),
            pods=tuple(self.last_pods(name)),
            readable=copies.workload.synced or trouble is not None,
            looking=not (copies.workload.synced or trouble),
            can_heal=can_heal,
            pods_seen=copies.pods is not None and copies.pods.synced and not copies.pods.trouble,
        )

    async def _attend(self, name: str) -> Copies | None:
        from airflow_provider_multikueue.clusters.client import ApiError

        if name in self._refused or self.workload is None:
            return None
        try:
            cluster = await self.fleet.worker(name)
        except ApiError as error:
            self._say_once(f"worker {name} can't be reached for now: {error}")
            return None
        except MultiKueueError as error:
            self._refuse(name, str(error))
            return None
        if cluster is None:
            self._refused |= {name}  # said when the job is placed there: that it is asked costs nothing
            return None
        await self.fleet.await_region(name, REGION_SECONDS)
        copy = str(self.workload["metadata"]["name"])
        workloads = await self.fleet.watch_workloads(cluster, self.namespace)
        provisioning = await self.fleet.watch_provisioning(cluster, self.namespace)
        self._copies[name] = Copies(
            workload=workloads.subscribe(copy, self.changed.set),
            provisioning=provisioning.subscribe(copy, self.changed.set),
        )
        return self._copies[name]

    def _refuse(self, name: str, why: str) -> None:
        self._refused |= {name}
        self._say_once(why)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said |= {text}
            self.sink.record(logging.WARNING, text)

    async def _attend_pods(self, name: str, copies: Copies) -> None:
        cluster = await self.fleet.worker(name)
        if cluster is None:
            return
        pods = await self.fleet.watch_pods(cluster, self.namespace)
        copies.pods = pods.subscribe(self.name, self.changed.set)
        jobs = await self.fleet.watch_jobs(cluster, self.namespace, (self.kind.group, self.kind.plural))
        copies.job = jobs.subscribe(self.name, self.changed.set)

    async def _manager_watches(self) -> tuple[SharedWatch, SharedWatch]:
        manager = self.fleet.manager
        return (
            await self.fleet.watch_jobs(manager, self.namespace, (self.kind.group, self.kind.plural)),
            await self.fleet.watch_workloads(manager, self.namespace),
        )

    async def persist(self, look: Callable[[], Awaitable[T]]) -> T:
        """Ask the manager again while it does not answer: its outage is no failure of the job."""
        from airflow_provider_multikueue.clusters.client import ApiError

        told = False
        while True:
            try:
                return await look()
            except ApiError as error:
                if not error.passing:
                    raise
                if not told:
                    self.sink.record(logging.WARNING, f"the manager can't be asked, trying again: {error}")
                told = True
                await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - spreads load


def _newest(subscription: Subscription | None, uid: str | None = None) -> Object | None:
    if subscription is None:
        return None
    if uid is not None:
        return subscription.objects.get(uid)
    return max(subscription.objects.values(), key=lambda o: str(o["metadata"].get("creationTimestamp")), default=None)
