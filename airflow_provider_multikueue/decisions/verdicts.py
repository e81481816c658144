"""Whether a job has ended, and how: the manager's word, and one table of where the manager is wrong or mute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from airflow_provider_multikueue.decisions.conditions import (
    condition,
    eviction_cause,
    is_true,
    items_at,
    parse_time,
    text_at,
    told,
    transition,
)
from airflow_provider_multikueue.decisions.kinds import MULTIKUEUE, Outcome, get_at, is_late, outcome
from airflow_provider_multikueue.decisions.regions import (
    NOT_ASKED_AFTER,
    SLOW_AFTER,
    STRANDED_AFTER,
    blocked_by,
    by_what_they_say,
    is_copy,
    is_inactive,
)
from airflow_provider_multikueue.decisions.views import Ending, EndingKind, Observation, Phase, View, WorkerView

__all__ = ["NEVER_SEEN", "OVERRIDES", "managers_word", "next_look", "override"]

NEVER_SEEN: Final = "NotFound"
"""The reason of an ending that nobody saw come: the job was gone when it was first looked for."""

BREATH: Final = 1.0  # seconds in which the worker's end may still arrive
FOLLOW_GRACE: Final = 10.0  # seconds in which a healthy manager follows its worker
GONE_GRACE: Final = 10.0  # seconds for two watches to agree that an object is gone
DEACTIVATED_GRACE: Final = 10.0  # seconds in which a person may undo a deactivation
INADMISSIBLE_GRACE: Final = 60.0  # seconds for a queue that is being set up
STOPPED_GRACE: Final = 3600.0  # seconds for a queue that is stopped
HOPELESS_GRACE: Final = 600.0  # seconds that all regions may be dead

Object = Mapping[str, Any]


def managers_word(view: View) -> Ending | None:
    """Return the ending that the manager shows: its Workload finished, or its job has a terminal condition."""
    result = outcome(view.kind, view.job)
    if not is_true(view.workload, "Finished"):
        return _ending(result) if result else None
    finished = condition(view.workload, "Finished")
    reason, message = text_at(finished, "reason"), text_at(finished, "message")
    if reason == "OwnerNotFound":
        return None  # the job is gone: whether that is an end is decided by the override
    if reason == "Succeeded":
        return Ending(kind="succeeded", reason=result.reason if result else reason, message=message)
    if result is not None and (reason == "Failed") != result.succeeded:
        return _ending(result)
    kind: EndingKind = "deadline" if is_late(view.kind, reason, message) else "failed"
    return Ending(kind=kind, reason=reason, message=message)


def _ending(result: Outcome, source: str = "manager") -> Ending:
    kind: EndingKind = "succeeded" if result.succeeded else "failed"
    if result.late:
        kind = "deadline"
    return Ending(kind=kind, reason=result.reason, message=result.message, source=source)


# -- the table


def _worker_ended(view: View, seen: Observation) -> Ending | None:
    """Believe the worker: a manager that has missed its end for ten seconds may never follow.

    A manager that cannot be reached may have followed; then its word is waited for.
    """
    if view.manager_trouble:
        return None
    for worker in _ended_workers(view):
        result = outcome(view.kind, worker.job)
        chosen = (text_at(view.workload, "status", "clusterName") or seen.cluster) == worker.cluster
        if result is None or not (chosen or result.succeeded):
            continue  # a copy that the manager gave up may fail; the one that it chose goes on
        if _ended_for(view, worker, result) > FOLLOW_GRACE or (view.job is None and result.succeeded):
            return _ending(result, f"worker:{worker.cluster}")
    return None


def _ended_workers(view: View) -> list[WorkerView]:
    """Return the workers whose copy has ended, the manager's choice first."""
    chosen = text_at(view.workload, "status", "clusterName")
    found = [worker for worker in view.workers.values() if is_copy(view, worker.job)]
    return sorted(found, key=lambda worker: (worker.cluster != chosen, worker.cluster))


def _ended_for(view: View, worker: WorkerView, result: Outcome) -> float:
    seen = view.memory.of(worker.cluster).ended_since
    if seen is not None:
        return view.now - seen
    at = parse_time(result.at)
    return view.now - at.timestamp() if at else 0.0


def _job_deleted(view: View, _seen: Observation) -> Ending | None:
    """End when the job is gone from the manager: nobody but a person or a time to live removes it before its end."""
    if not view.job_seen or view.job is not None or view.manager_trouble:
        return None
    since = view.memory.job_gone_since
    if since is not None and view.now - since < BREATH and is_true(view.workload, "Admitted"):
        return None  # the worker's end may arrive in the same breath
    if not view.memory.name:
        message = "it is no longer on the manager: it ended and was removed, or was deleted"
        return Ending(kind="deleted", reason=NEVER_SEEN, message=message)
    return Ending(kind="deleted", reason="Deleted", message="the job is gone from the manager")


def _workload_deleted(view: View, _seen: Observation) -> Ending | None:
    """End when the Workload is gone and the job is left: Kueue makes no other, and the job stays suspended for ever."""
    since = view.memory.workload_gone_since
    if view.job is None or view.workload is not None or since is None or view.manager_trouble:
        return None
    if view.now - since < GONE_GRACE or get_at(view.job, ("metadata", "deletionTimestamp")):
        return None
    return Ending(kind="workload_deleted", reason="WorkloadDeleted", message="its Workload was deleted on the manager")


def _max_exec_time(view: View, _seen: Observation) -> Ending | None:
    """End when Kueue's own limit on the run time struck: the job stays suspended without a terminal condition."""
    reason = _evicted_reason(view)
    if reason != "DeactivatedDueToMaximumExecutionTimeExceeded":
        return None
    return Ending(kind="deadline", reason=reason, message=told(view.workload, "Evicted"))


def _rejected(view: View, _seen: Observation) -> Ending | None:
    """End when a check of the manager rejected the job."""
    for check in items_at(view.workload, "status", "admissionChecks"):
        if text_at(check, "state") == "Rejected":
            return Ending(kind="rejected", reason="Rejected", message=_check_text(check))
    if _evicted_reason(view) == "DeactivatedDueToAdmissionCheck":  # the check's own state is taken back soon after
        return Ending(kind="rejected", reason="Rejected", message=eviction_cause(view.workload))
    return None


def _check_text(check: Object) -> str:
    return f"check {text_at(check, 'name')}: {text_at(check, 'message') or 'rejected'}"


def _deactivated(view: View, _seen: Observation) -> Ending | None:
    """End when the Workload is deactivated: nothing but a person makes it active again."""
    reason = _evicted_reason(view)
    if not is_inactive(view.workload):
        return None
    if reason in ("", "Deactivated"):
        since = view.memory.inactive_since  # Evicted may be older: it keeps its time when only its reason changes
        if since is not None and view.now - since < DEACTIVATED_GRACE:
            return None
    message = told(view.workload, "Evicted") or "its Workload is deactivated on the manager"
    return Ending(kind="deactivated", reason=reason or "Deactivated", message=message)


def _evicted_reason(view: View) -> str:
    return text_at(condition(view.workload, "Evicted"), "reason") if is_true(view.workload, "Evicted") else ""


def _run_time_used_up(view: View, _seen: Observation) -> Ending | None:
    """End when the capacity was taken away at the end of the run time: a new start from zero would end there too."""
    if not view.memory.used_up:
        return None
    return Ending(kind="run_duration", reason="CapacityRevoked", message=view.memory.used_up)


def _inadmissible(view: View, _seen: Observation) -> Ending | None:
    """End when no quota can ever be reserved: a queue is missing, or does not cover what the pods ask for.

    The grace begins when that was first seen: the condition keeps the time from when the job began to wait for quota.
    """
    blocked, since = blocked_by(view.workload), view.memory.blocked_since
    if not blocked or since is None or is_true(view.workload, "Evicted") or view.manager_trouble:
        return None
    if view.now - since < _GRACES[blocked]:
        return None
    return Ending(kind="inadmissible", reason="Inadmissible", message=told(view.workload, "QuotaReserved"))


def _not_dispatched(view: View, _seen: Observation) -> Ending | None:
    """End when the job was admitted to the manager itself: its queue leads to no MultiKueue check."""
    if view.kind.managed_by is None or view.job is None or not is_true(view.workload, "Admitted"):
        return None
    if text_at(view.workload, "status", "clusterName") or get_at(view.job, view.kind.managed_by) == MULTIKUEUE:
        return None
    if get_at(view.job, view.kind.suspend) is not False:
        return None
    return Ending(
        kind="not_dispatched",
        reason="NoMultiKueueCheck",
        message="it was admitted to the manager itself, not to a worker",
    )


def _all_regions_dead(view: View, seen: Observation) -> Ending | None:
    """End a wait in which every region was dead for ten minutes and none can be made to ask again."""
    if seen.phase is not Phase.PLACING or seen.hopeless_since is None or any(region.healable for region in seen.dead):
        return None
    if view.now - seen.hopeless_since < HOPELESS_GRACE:
        return None
    said = by_what_they_say((region.where, region.reason) for region in seen.dead)
    message = f"no region could run it for {HOPELESS_GRACE / 60:.0f} min: {said}"
    return Ending(kind="rejected", reason="Rejected", message=message)


OVERRIDES: tuple[tuple[str, Callable[[View, Observation], Ending | None]], ...] = (
    ("worker-ended", _worker_ended),
    ("job-deleted", _job_deleted),
    ("max-exec-time", _max_exec_time),
    ("rejected", _rejected),
    ("deactivated", _deactivated),
    ("run-time-used-up", _run_time_used_up),
    ("workload-deleted", _workload_deleted),
    ("inadmissible", _inadmissible),
    ("not-dispatched", _not_dispatched),
    ("all-regions-dead", _all_regions_dead),
)
"""Where the manager is wrong, or mute for ever: the first row that applies ends the job; its docstring says why."""


def override(view: View, seen: Observation) -> tuple[str, Ending] | None:
    """Return the first row of the table that applies, by its name, and the ending it gives."""
    for name, rule in OVERRIDES:
        ending = rule(view, seen)
        if ending is not None:
            return name, ending
    return None


def next_look(view: View, seen: Observation) -> float | None:
    """Return the epoch time at which the same view means something else, by the clock alone; None if it never does."""
    if seen.ending is not None:
        return None
    memory, quota = view.memory, transition(view.workload, "QuotaReserved")
    ends = [(copy.ended_since, FOLLOW_GRACE) for copy in memory.copies.values()]
    marks: list[tuple[float | None, float]] = [
        *ends,
        (memory.job_gone_since, BREATH),
        (memory.workload_gone_since, GONE_GRACE),
        (memory.inactive_since, DEACTIVATED_GRACE),
        (memory.blocked_since, _GRACES[memory.blocked]),
        (seen.hopeless_since, HOPELESS_GRACE),
        (seen.submitted.timestamp() if seen.submitted else None, SLOW_AFTER),
        *((quota.timestamp() if quota else None, grace) for grace in _QUOTA_GRACES),
        *((c.since.timestamp() if c.since else None, grace) for c in seen.checks for grace in _COPY_GRACES),
        *((left.timestamp() if left else None, STRANDED_AFTER) for left in _evictions(view)),
    ]
    times = [since + grace for since, grace in marks if since is not None]
    return min((time for time in times if time > view.now), default=None)


def _evictions(view: View) -> list[datetime | None]:
    return [transition(worker.workload, "Evicted") for worker in view.workers.values()]


_COPY_GRACES: Final = (STRANDED_AFTER, SLOW_AFTER)
_QUOTA_GRACES: Final = (NOT_ASKED_AFTER, SLOW_AFTER)
_GRACES: Final[Mapping[str, float]] = {"": 0.0, "stopped": STOPPED_GRACE, "unfit": INADMISSIBLE_GRACE}
