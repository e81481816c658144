"""Whether a job that nobody may be waiting for is to be deleted: by its lifetime, and by what Airflow says of its task.

A kill that comes while no triggerer runs calls nobody. What it leaves behind is a job whose task is over, or gone. What
is not known for sure keeps the job: a job too many costs money, a job too few costs somebody's training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.decisions.jobs import identity_of, lifetime_of, owner_of, reported
from airflow_provider_multikueue.decisions.kinds import get_at

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.names import Owner

__all__ = ["GONE", "RUN_OVER", "TASK_OVER", "AirflowState", "ReapDecision", "decide", "needs_run"]

TASK_OVER: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
RUN_OVER: Final = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowState:
    """What Airflow says of a task instance or a run.

    ``known`` is False where it did not say, and ``why`` is the reason. ``there`` is False for one that is gone.
    ``state`` None is one that was never scheduled, or was cleared and not scheduled yet. ``ti`` and ``attempt`` are the
    task instance's id (3.x only) and try.
    """

    known: bool = True
    there: bool = True
    state: str | None = None
    ti: str | None = None
    attempt: int | None = None
    why: str = ""


GONE: Final = AirflowState(there=False)


@dataclass(frozen=True, slots=True)
class ReapDecision:
    """Whether to delete, and why (not), in words that follow the job's name."""

    delete: bool
    reason: str


def needs_run(job: Mapping[str, Any], task: AirflowState) -> bool:
    """Whether `decide` has to know the job's DAG run besides its task."""
    lifetime = lifetime_of(job)
    unscheduled = task.known and task.there and task.state is None
    return lifetime is not None and (lifetime.kind == "run" or (lifetime.kind == "task" and unscheduled))


def decide(
    job: Mapping[str, Any],
    task: AirflowState,
    run: AirflowState,
    now: datetime,
    *,
    deployment: str,
    older_than: timedelta = timedelta(0),
) -> ReapDecision:
    """Decide about one job on the manager; ``task`` and ``run`` must have been asked for after ``job`` was read."""
    identity, lifetime = identity_of(job), lifetime_of(job)
    if identity is None or lifetime is None:
        return _keep("it does not say whose it is, or for how long")
    if identity.deployment != deployment:
        return _keep(f"it belongs to another Airflow, {identity.deployment}")
    if get_at(job, ("metadata", "deletionTimestamp")):
        return _keep("it is being deleted already")
    if (report := reported(job)) and report.kept:
        return _keep("it has ended and was reported; its task keeps it (cleanup=)")
    if lifetime.deadline is not None and now >= lifetime.deadline:
        return _delete(f"its deadline has passed ({lifetime.deadline.isoformat(timespec='seconds')})")
    if lifetime.kind == "detached":
        return _keep("it was submitted to outlive its task")
    if _age(job, now) < older_than:
        return _keep(f"it is younger than {older_than}")
    return _by_task(owner_of(job), task, run) if lifetime.kind == "task" else _by_run(run)


def _by_task(owner: Owner | None, task: AirflowState, run: AirflowState) -> ReapDecision:
    if not task.known:
        return _keep(f"the state of its task is unknown: {task.why}")
    if not task.there:
        return _delete("its task is gone")
    if task.state is None:
        # Nothing in a run that is over will be scheduled; clearing a task starts its run again first.
        over = run.known and run.there and run.state in RUN_OVER
        return _delete(f"its task will not run: the run is over ({run.state})") if over else _keep("its task waits")
    if task.state not in TASK_OVER:
        return _keep(f"its task is {task.state}")
    if _is_newer(owner, task):
        return _keep(f"try {owner.attempt if owner else '?'} of its task owns it, Airflow told of try {task.attempt}")
    return _delete(f"its task is over ({task.state})")


def _by_run(run: AirflowState) -> ReapDecision:
    if not run.known:
        return _keep(f"the state of its DAG run is unknown: {run.why}")
    if not run.there:
        return _delete("its DAG run is gone")
    if run.state in RUN_OVER:
        return _delete(f"its DAG run is over ({run.state})")
    return _keep(f"its DAG run is {run.state or 'not started'}")


def _is_newer(owner: Owner | None, task: AirflowState) -> bool:
    """Whether the job's owner is a try that Airflow's answer does not know yet.

    A task instance that was deleted and made anew has a lower try as well, but another id.
    """
    if owner is None or task.attempt is None or owner.attempt <= task.attempt:
        return False
    return task.ti is None or task.ti == owner.ti


def _age(job: Mapping[str, Any], now: datetime) -> timedelta:
    created = get_at(job, ("metadata", "creationTimestamp"))
    try:
        then = datetime.fromisoformat(str(created))
    except ValueError:
        return timedelta(0)
    return now - (then if then.tzinfo else then.replace(tzinfo=UTC))


def _keep(reason: str) -> ReapDecision:
    return ReapDecision(False, reason)


def _delete(reason: str) -> ReapDecision:
    return ReapDecision(True, reason)
