"""A fleet that is hurt on purpose, and what a task's log says meanwhile."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_multikueue.clusters.client import JOBS, ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.conditions import is_true
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import Identity, Lifetime, Owner
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.decisions.report import job_part
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from airflow_provider_multikueue.fleets.follow import Following
from airflow_provider_multikueue.fleets.submit import Request, submit
from airflow_provider_multikueue.sandbox.api import Sandbox

__all__ = [
    "ASIA",
    "EU",
    "QUEUE",
    "REGIONS",
    "US",
    "Clock",
    "Followed",
    "Site",
    "TaskLog",
    "eventually",
    "get",
    "gpu_job",
    "kueue",
    "shell",
]

T = TypeVar("T")
Object = dict[str, Any]

US, EU, ASIA = "us-east4", "europe-west4", "asia-southeast1"
REGIONS = {US: "multikueue-dws-worker-us", EU: "multikueue-dws-worker-eu", ASIA: "multikueue-dws-worker-asia"}
QUEUE = "dws-local-queue"
API = "kueue.x-k8s.io/v1beta2"
PATIENCE = 120.0
"""Seconds that a test waits for something that it provoked; on a quiet machine all of it comes within 30."""


def shell(script: str, *, image: str = "busybox", **spec: Any) -> Object:
    """Return a job of one pod that runs ``script`` and needs a GPU."""
    return gpu_job({"command": ["bash", "-c", script], "image": image}, **spec)


def gpu_job(container: Mapping[str, Any], **spec: Any) -> Object:
    """Return a job of one pod with this container, which needs a GPU."""
    gpu = {"requests": {"cpu": "10m", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    template = {"spec": {**pod, "containers": [{"name": "main", "resources": gpu, **container}]}}
    metadata = {"generateName": "fault-"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"backoffLimit": 0, "template": template, **spec},
    }


def kueue(kind: str, name: str, spec: Mapping[str, Any]) -> Object:
    """Return an object of Kueue."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


class Clock:
    """The time, and how far a test has turned it on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """Return epoch seconds."""
        return time.time() + self.ahead

    def after(self, seconds: float) -> str:
        """Return the time so many seconds from now, as orders give it."""
        return datetime.fromtimestamp(self() + seconds, UTC).isoformat()


class TaskLog:
    """What a task's log holds, as it comes."""

    def __init__(self) -> None:
        self.records: list[tuple[float, int, str]] = []
        self._begun = time.time()
        self._more = asyncio.Event()

    def record(self, level: int, text: str) -> None:
        """Take a record, as a sink does."""
        self.records.append((time.time() - self._begun, level, text))
        self._more.set()

    @property
    def lines(self) -> list[str]:
        """Return all lines."""
        return [line for _, _, text in self.records for line in text.split("\n")]

    @property
    def output(self) -> list[str]:
        """Return the lines without the name of the pod that they may bear."""
        return [re.sub(r"^\[\w+\] ", "", line) for line in self.lines]

    @property
    def text(self) -> str:
        """Return it as a person reads it, with seconds and levels."""
        return "".join(f"{at:7.1f} {logging.getLevelName(level):8}{text}\n" for at, level, text in self.records)

    def count(self, part: str) -> int:
        """Return how many lines have ``part``."""
        return sum(part in line for line in self.lines)

    async def says(self, *parts: str, within: float = PATIENCE) -> str:
        """Return the first line that has all ``parts``, when it comes."""
        try:
            async with asyncio.timeout(within):
                while True:
                    self._more.clear()
                    for line in self.lines:
                        if all(part in line for part in parts):
                            return line
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"the log does not say {' … '.join(parts)!r} within {within:g} s") from None


@dataclass(slots=True)
class Followed:
    """A job, and the reader that follows it."""

    site: Site
    part: Object
    log: TaskLog
    following: Following
    clock: Clock
    placements: list[Object] = field(default_factory=list)
    task: asyncio.Task[Outcome] | None = None

    @property
    def name(self) -> str:
        """The job's name on all clusters."""
        return str(self.part["name"])

    async def outcome(self, within: float = PATIENCE) -> Outcome:
        """Return how it ended."""
        assert self.task is not None
        try:
            return await asyncio.wait_for(asyncio.shield(self.task), within)
        except TimeoutError:
            raise AssertionError(f"it is still followed after {within:g} s") from None

    async def on_manager(self) -> Object | None:
        """Return the job as the manager has it; None when it has none."""
        return await get(self.site.fleet.manager, JOBS, self.name, self.site.namespace)

    async def workload(self, cluster: Cluster | None = None) -> Object:
        """Return the job's Workload on a cluster, the manager's if none is named; wait for it."""
        cluster = cluster or self.site.fleet.manager
        resource = await cluster.resource("kueue.x-k8s.io", "workloads")

        async def found() -> Object | None:
            items, _ = await cluster.list(resource, self.site.namespace)
            mine = f"job-{self.name}-"
            return next((item for item in items if item["metadata"]["name"].startswith(mine)), None)

        return await eventually(found, f"a Workload of {self.name} on {cluster.name}")

    async def change_workload(self, body: Object, cluster: Cluster | None = None) -> None:
        """Merge ``body`` into the job's Workload."""
        cluster = cluster or self.site.fleet.manager
        name = (await self.workload(cluster))["metadata"]["name"]
        resource = await cluster.resource("kueue.x-k8s.io", "workloads")
        await cluster.patch(resource, name, body, self.site.namespace)

    async def delete_workload(self, cluster: Cluster | None = None) -> None:
        """Delete the job's Workload."""
        cluster = cluster or self.site.fleet.manager
        name = (await self.workload(cluster))["metadata"]["name"]
        await cluster.delete(await cluster.resource("kueue.x-k8s.io", "workloads"), name, self.site.namespace)

    async def turn_clock(self, seconds: float) -> None:
        """Let so much time have passed for the reader, and let it notice by a change of the job."""
        self.clock.ahead += seconds
        body = {"metadata": {"annotations": {"example.com/noticed": secrets.token_hex(4)}}}
        try:
            await self.site.fleet.manager.patch(JOBS, self.name, body, self.site.namespace)
        except ApiError as error:
            if error.status != 404:  # it had noticed by itself, and has ended the job
                raise


@dataclass(slots=True)
class Site:
    """A namespace of one test's own on all clusters of a fleet, and its own answers to requests for capacity."""

    sandbox: Sandbox
    fleet: Fleet
    namespace: str
    path: Path
    jobs: list[Followed] = field(default_factory=list)
    _clusterwide: list[tuple[Cluster, Resource, str]] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def open(cls, sandbox: Sandbox, path: Path) -> AsyncIterator[Site]:
        """Give a site; afterwards nothing of it is left, and what the tasks' logs said is in ``path``."""
        namespace = await asyncio.to_thread(sandbox.make_namespace)
        config = FleetConfig.from_extra(sandbox.connection()["extra"], conn_id="faults")
        async with open_fleet(config) as fleet:
            site = cls(sandbox, fleet, namespace, path)
            try:
                yield site
            except BaseException as error:
                error.add_note(site.text)
                raise
            finally:
                await site._close()

    @property
    def text(self) -> str:
        """What the logs of its tasks say."""
        return "\n".join(f"── {job.name} in {self.namespace}\n{job.log.text}" for job in self.jobs)

    def capacity(self, region: str | None = None, **script: Any) -> None:
        """Let a region (None: all) answer this site's requests so."""
        self.sandbox.capacity(region, namespace=self.namespace, **script)

    def only(self, region: str, **script: Any) -> None:
        """Let one region answer this site's requests, and the others accept them and never answer."""
        for each in self.sandbox.regions:
            self.capacity(each, **(script if each == region else {"mode": "starve"}))

    async def worker(self, region: str) -> Cluster:
        """Return the worker of a region."""
        cluster = await self.fleet.worker(REGIONS[region])
        assert cluster is not None
        return cluster

    def identity(self) -> Identity:
        """Return the identity of a task that ran never before."""
        run = secrets.token_hex(6)
        return Identity(deployment="faults", dag_id=self.path.stem, run_id=run, task_id="t", map_index=-1)

    async def start(self, manifest: Object, *, clock: Clock | None = None, **wishes: Any) -> Followed:
        """Submit a job as a task does, and follow it; ``wishes`` are those of `submit` and of `Orders`."""
        log = TaskLog()
        of_request = {name: wishes.pop(name) for name in tuple(wishes) if name in _OF_REQUEST}
        part = await self.submit(manifest, log=log, **of_request)
        return self.follow(part, log=log, clock=clock, **wishes)

    async def submit(
        self,
        manifest: Object,
        *,
        log: TaskLog | None = None,
        queue: str = QUEUE,
        identity: Identity | None = None,
        fleet: Fleet | None = None,
        **wishes: Any,
    ) -> Object:
        """Submit a job, held out of its queue until it is followed."""
        request = Request(
            manifest=manifest,
            identity=identity or self.identity(),
            owner=Owner(ti="", attempt=1),
            lifetime=Lifetime(kind="task"),
            queue_name=queue,
            namespace=self.namespace,
            hold=True,
            **wishes,
        )
        return dict(job_part((await submit(fleet or self.fleet, request, log or TaskLog())).job))

    async def plant(self, manifest: Object, *, on: Cluster | None = None, queue: str | None = None) -> Object:
        """Make a job past our submission, as someone else would; it is the manager's unless a cluster is named."""
        body = {"kind": "Job", "apiVersion": "batch/v1", **manifest}
        if queue:
            body["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = queue
        return dict(job_part({**body, **await (on or self.fleet.manager).create(JOBS, body, self.namespace)}))

    def follow(
        self,
        part: Object,
        *,
        log: TaskLog | None = None,
        fleet: Fleet | None = None,
        clock: Clock | None = None,
        reader: str | None = "",
        **orders: Any,
    ) -> Followed:
        """Follow a job."""
        log, clock = log or TaskLog(), clock or Clock()
        placements: list[Object] = []
        following = Following(
            fleet or self.fleet,
            part,
            Orders(**orders),
            log,
            on_placement=placements.append,
            clock=clock,
            reader=reader,
        )
        followed = Followed(self, part, log, following, clock, placements)
        followed.task = asyncio.create_task(_run(following))
        self.jobs.append(followed)
        return followed

    async def make(self, cluster: Cluster, *objects: Object) -> None:
        """Make objects of Kueue; those of the whole cluster are removed with the site."""
        for each in objects:
            resource = await cluster.resource("kueue.x-k8s.io", _plural(each["kind"]))
            await cluster.create(resource, each, self.namespace if resource.namespaced else None)
            if not resource.namespaced:
                self._clusterwide.append((cluster, resource, each["metadata"]["name"]))

    async def local_queue(self, name: str, *, on: Cluster, leads_to: str = "dws-cluster-queue") -> None:
        """Make a LocalQueue on a cluster."""
        await self.make(on, kueue("LocalQueue", name, {"clusterQueue": leads_to}))

    async def whole(self) -> None:
        """Return when the manager is in touch with all workers, as after an outage it is not for half a minute."""
        resource = await self.fleet.manager.resource("kueue.x-k8s.io", "multikueueclusters")

        async def active() -> bool:
            items, _ = await self.fleet.manager.list(resource)
            return all(is_true(item, "Active") for item in items)

        await eventually(active, "manager that is in touch with all workers")

    def requests(self, region: str) -> list[str]:
        """Return the requests for capacity that a region has of this site, as ``namespace/name``."""
        known = self.sandbox.requests(region)["requests"]
        return [each["request"] for each in known if each["request"].startswith(f"{self.namespace}/")]

    def act(self, act: str, region: str) -> None:
        """Have a region ``revoke``, ``fail`` or ``expire`` this site's requests."""
        for request in self.requests(region):
            getattr(self.sandbox, act)(region, request=request)

    @contextmanager
    def hurt(self, act: str, component: str) -> Any:
        """Pause or stop a component for the length of the block."""
        undo = {"pause": self.sandbox.resume, "stop": self.sandbox.start}[act]
        getattr(self.sandbox, act)(component)
        try:
            yield
        finally:
            undo(component)

    async def _close(self) -> None:
        for job in self.jobs:
            if job.task is not None:
                job.task.cancel()
        await asyncio.gather(*(job.task for job in self.jobs if job.task is not None), return_exceptions=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text)
        await asyncio.to_thread(self.sandbox.delete_namespace, self.namespace)
        for cluster, resource, name in reversed(self._clusterwide):
            try:
                await cluster.delete(resource, name)
            except ApiError as error:
                if error.status != 404:
                    raise


_OF_REQUEST = ("queue", "identity", "priority_class", "max_run_duration")


async def _run(following: Following) -> Outcome:
    try:
        return await following.run()
    finally:
        await following.close()


def _plural(kind: str) -> str:
    return f"{kind.lower()}es" if kind.endswith("ss") else f"{kind.lower()}s"


async def get(cluster: Cluster, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
    """Return an object, or None when it is not there."""
    try:
        return await cluster.get(resource, name, namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


async def eventually(look: Callable[[], Awaitable[T | None]], what: str, *, within: float = PATIENCE) -> T:
    """Return what ``look`` finds, when it does."""
    try:
        async with asyncio.timeout(within):
            while True:
                found = await look()
                if found is not None and found is not False:
                    return found
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"no {what} within {within:g} s") from None
