"""Runs a job of any kind the way a task does: created held, watched, released, followed to its end."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_multikueue.clusters.client import PODS, ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.names import Identity, Lifetime
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.decisions.report import job_part
from airflow_provider_multikueue.fleets.fleet import Fleet
from airflow_provider_multikueue.fleets.follow import Following
from airflow_provider_multikueue.fleets.stop import delete_job
from airflow_provider_multikueue.fleets.submit import submit
from airflow_provider_multikueue.hooks import MultiKueueHook, prepare, run_sync
from airflow_provider_multikueue.sandbox.api import Sandbox

Object = dict[str, Any]
MANAGER = "manager-europe-west4"


class Lines:
    """A task's log."""

    def __init__(self) -> None:
        self.records: list[str] = []

    def record(self, level: int, text: str) -> None:
        del level
        self.records.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self.records)

    @property
    def lines(self) -> list[str]:
        """Each line that is in the log, without the order in which pods happened to speak."""
        return sorted(line for record in self.records for line in record.split("\n"))


@dataclass(slots=True)
class Trial:
    """One job on the fleet, and what came of it."""

    hook: MultiKueueHook
    fleet: Sandbox
    namespace: str
    log: Lines = field(default_factory=Lines)
    job: Object = field(default_factory=dict)
    outcome: Outcome | None = None
    identity: Identity = field(default_factory=lambda: whose())
    released_after: Callable[[Object], Awaitable[None]] | None = None

    def run(self, manifest: Mapping[str, Any], **wishes: Any) -> Outcome:
        """Submit the job held, follow it to its end and return that."""
        self.outcome = run_sync(lambda: self._run(manifest, Orders(**wishes)))
        return self.outcome

    async def _run(self, manifest: Mapping[str, Any], orders: Orders) -> Outcome:
        async with self.hook.open() as (fleet, config):
            self.job = await self.create(fleet, config, manifest)
            if self.released_after is not None:
                await self.released_after(self.job)
            following = Following(fleet, job_part(self.job), orders, self.log)
            try:
                async with asyncio.timeout(120):
                    return await following.run()
            finally:
                await following.close()

    async def create(self, fleet: Fleet, config: Any, manifest: Mapping[str, Any], **wishes: Any) -> Object:
        request = prepare(
            dict(manifest),
            fleet=fleet,
            config=config,
            sink=self.log,
            identity=self.identity,
            lifetime=Lifetime(kind="task"),
            hold=True,
            **wishes,
        )
        return (await submit(fleet, request, self.log)).job

    def delete(self) -> None:
        """Delete the job, as a kill does, and wait until its pods are gone."""

        async def delete() -> None:
            async with self.hook.open() as (fleet, _):
                await delete_job(fleet, job_part(self.job), self.log)

        run_sync(delete)

    def delete_without_leftovers(self, region: str) -> None:
        """Delete the job that runs in a region; nothing of it may be left anywhere."""
        self.delete()
        assert "no pod of it is left on any worker" in self.log.text
        assert self.pods(region) == []
        row = find_kind(self.job["apiVersion"], self.job["kind"])
        assert self.look(MANAGER, (row.group, row.plural)) == []
        assert eventually(lambda: self.look(f"worker-{region}", (row.group, row.plural)) == [])

    def pods(self, region: str) -> list[Object]:
        """Return the pods in the test's namespace of a region."""
        return self.look(f"worker-{region}", PODS)

    def on_manager(self) -> Object:
        """Return the job as the manager has it."""
        kind = find_kind(self.job["apiVersion"], self.job["kind"])
        name = self.job["metadata"]["name"]
        found = self.look(MANAGER, (kind.group, kind.plural))
        return next(each for each in found if each["metadata"]["name"] == name)

    def look(self, context: str, what: Resource | tuple[str, str]) -> list[Object]:
        """Return the objects of a kind in the test's namespace of a cluster; none of a kind that it does not know."""

        async def look() -> list[Object]:
            async with await connect(self.fleet, context) as cluster:
                try:
                    resource = what if isinstance(what, Resource) else await cluster.resource(*what)
                    return (await cluster.list(resource, self.namespace))[0]
                except ApiError as error:
                    if error.status != 404:
                        raise
                    return []

        return asyncio.run(look())


async def connect(fleet: Sandbox, context: str) -> Cluster:
    return await Cluster.from_kubeconfig(context, path=str(fleet.kubeconfig), context=context)


def whose(**known: Any) -> Identity:
    values = {"deployment": "test", "dag_id": "dag", "run_id": uuid.uuid4().hex, "task_id": "train"} | known
    return Identity(**values)


def eventually(true: Callable[[], object], *, seconds: float = 30) -> bool:
    """Whether something becomes true in time: for what another cluster does, which tells nobody."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def running(pods: list[Object]) -> int:
    """How many of the pods run."""
    return sum(each.get("status", {}).get("phase") == "Running" for each in pods)
