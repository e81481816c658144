"""The sweep over our jobs on a manager: find them, ask Airflow about their tasks, delete what nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_multikueue.decisions.jobs import identity_of, lifetime_of, owner_of
from airflow_provider_multikueue.decisions.kinds import KINDS, find_kind, get_at
from airflow_provider_multikueue.decisions.names import DEPLOYMENT_LABEL, Identity, Owner, label_value
from airflow_provider_multikueue.decisions.reap import AirflowState, ReapDecision, decide, needs_run
from airflow_provider_multikueue.decisions.report import job_part
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets import stop
from airflow_provider_multikueue.fleets.listing import list_kind

if TYPE_CHECKING:
    from airflow_provider_multikueue.airflow_api import AirflowApi
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.logs.emit import Sink

__all__ = ["OLDER_THAN", "Reaper", "find_jobs"]

OLDER_THAN = timedelta(minutes=5)
ATTEMPTS = 5
AT_ONCE = 5
UNASKED = AirflowState(known=False, why="Airflow was not asked")

Action = Literal["deleted", "would delete", "kept", "failed"]
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaper:
    """Deletes what is left of one deployment on one manager.

    ``airflow`` opens that deployment's REST API, when there is a job to ask for. ``witness`` is a task instance that
    must be running there, which tells the right Airflow from another one that knows none of the tasks.
    """

    fleet: Fleet
    deployment: str
    airflow: Callable[[], AbstractAsyncContextManager[AirflowApi]]
    sink: Sink
    dry_run: bool = False
    older_than: timedelta = OLDER_THAN
    namespace: str | None = None
    witness: tuple[Identity, Owner] | None = None
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    async def sweep(self) -> list[dict[str, Any]]:
        """Return, for each job that was found, what was done and why: plain JSON, by namespace and name.

        ``{"job": {...}, "task": {...} | None, "action": "deleted" | "would delete" | "kept" | "failed", "reason"}``.
        Raises `ApiError` when the manager refuses, MultiKueueError when Airflow does not answer,
        FleetConfigurationError when it is another Airflow.
        """
        found = await find_jobs(self.fleet, self.deployment, self.sink, self.namespace)
        decided = await self._decide(found) if found else []
        slots = asyncio.Semaphore(AT_ONCE)

        async def act(job: Object, decision: ReapDecision) -> dict[str, Any]:
            async with slots:
                action, reason = await self._act(job, decision)
            return _entry(job, action, reason)

        return list(await asyncio.gather(*(act(job, decision) for job, decision in decided)))

    async def _decide(self, found: list[Object]) -> list[tuple[Object, ReapDecision]]:
        ours = [identity for job in found if (identity := identity_of(job)) and identity.deployment == self.deployment]
        async with self.airflow() as airflow:
            tasks = await airflow.tasks([*ours, *([self.witness[0]] if self.witness else [])])
            self._check_airflow(tasks)
            asking = [job for job in found if needs_run(job, _of(tasks, identity_of(job)))]
            runs = await airflow.runs(filter(None, map(identity_of, asking)))
        right = any(state.known and state.there for state in tasks.values())
        return [(job, self._decide_one(job, tasks, runs, right=right)) for job in found]

    def _decide_one(
        self,
        job: Object,
        tasks: Mapping[Identity, AirflowState],
        runs: Mapping[tuple[str, str], AirflowState],
        *,
        right: bool,
    ) -> ReapDecision:
        identity = identity_of(job)
        task = _of(tasks, identity)
        run = runs.get((identity.dag_id, identity.run_id), UNASKED) if identity else UNASKED
        if not right:
            task, run = _doubtful(task), _doubtful(run)
        return decide(job, task, run, self.clock(), deployment=self.deployment, older_than=self.older_than)

    def _check_airflow(self, tasks: Mapping[Identity, AirflowState]) -> None:
        if self.witness is None:
            return
        identity, owner = self.witness
        state = tasks[identity]
        if state.known and state.there and state.state == "running" and state.ti in (None, owner.ti):
            return
        raise FleetConfigurationError(
            f"The Airflow that was asked does not know that task {identity.dag_id}.{identity.task_id} is running here"
            f"{': ' + state.why if state.why else ''}. Correct the connection in airflow_conn_id=: it must lead to "
            "this Airflow, with the right to read all of its DAGs."
        )

    async def _act(self, job: Object, decision: ReapDecision) -> tuple[Action, str]:
        if not decision.delete:
            return "kept", decision.reason
        if self.dry_run:
            return "would delete", decision.reason
        from airflow_provider_multikueue.clusters.client import ApiError

        try:
            deleted = await _delete(self.fleet, job, self.sink)
        except ApiError as error:
            return "failed", str(error)
        return ("deleted", decision.reason) if deleted else ("kept", "it has changed meanwhile")


async def find_jobs(fleet: Fleet, deployment: str, sink: Sink, namespace: str | None = None) -> list[Object]:
    """Return the jobs on the manager that bear the deployment's label, of every kind that it serves, sorted.

    Without a namespace all are searched, or the connection's own where our account may not read all. What may not be
    read at all is said in a line. Raises `ApiError` when nothing may be read, or the manager does not answer.
    """
    from airflow_provider_multikueue.clusters.client import ApiError

    labels = f"{DEPLOYMENT_LABEL}={label_value(deployment)}"
    listed = await asyncio.gather(*(list_kind(fleet, kind, labels, namespace) for kind in KINDS))
    if refused := [error for error in listed if isinstance(error, ApiError)]:
        if len(refused) == len(listed):
            raise refused[0]
        sink.record(logging.WARNING, f"Jobs of some kinds can't be seen: {'; '.join(map(str, refused))}")
    jobs = [job for some in listed if isinstance(some, list) for job in some]
    return sorted(jobs, key=lambda job: (job["metadata"]["namespace"], job["metadata"]["name"], job["kind"]))


async def _delete(fleet: Fleet, job: Object, sink: Sink) -> bool:
    """Delete the job unless somebody takes it over; return whether it is gone.

    Kueue writes to jobs too, so a conflict alone says nothing: what counts is whose it is and what for.
    """
    part = job_part(job)
    current: Object | None = job
    for _ in range(ATTEMPTS):
        if current is None or _claim(current) != _claim(job):
            return current is None
        version = str(current["metadata"]["resourceVersion"])
        if await stop.delete_job(fleet, part, sink, resource_version=version):
            return True
        current = await _current(fleet, job)
    return False


async def _current(fleet: Fleet, job: Object) -> Object | None:
    from airflow_provider_multikueue.clusters.client import ApiError

    kind = find_kind(job["apiVersion"], job["kind"])
    try:
        resource = await fleet.manager.resource(kind.group, kind.plural)
        return await fleet.manager.get(resource, job["metadata"]["name"], job["metadata"]["namespace"])
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _claim(job: Object) -> tuple[object, ...]:
    """Return what must not have changed between the decision and the deletion."""
    return (get_at(job, ("metadata", "uid")), identity_of(job), owner_of(job), lifetime_of(job))


def _of(tasks: Mapping[Identity, AirflowState], identity: Identity | None) -> AirflowState:
    return tasks.get(identity, UNASKED) if identity else UNASKED


def _doubtful(state: AirflowState) -> AirflowState:
    """Return what a state means in an Airflow that knows nothing of what it was asked for: it may be another one."""
    if state.known and not state.there:
        return AirflowState(known=False, why="this Airflow knows none of these tasks; is it the right one?")
    return state


def _entry(job: Object, action: Action, reason: str) -> dict[str, Any]:
    identity = identity_of(job)
    task = identity and {
        "dag_id": identity.dag_id,
        "run_id": identity.run_id,
        "task_id": identity.task_id,
        "map_index": identity.map_index,
    }
    return {"job": dict(job_part(job)), "task": task, "action": action, "reason": reason}
