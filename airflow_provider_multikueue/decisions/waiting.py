"""Why a job waits, in one sentence that changes only when the reason does."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_multikueue.decisions.conditions import told
from airflow_provider_multikueue.decisions.kinds import get_at
from airflow_provider_multikueue.decisions.pods import pods_of_stay, startup_problem
from airflow_provider_multikueue.decisions.regions import (
    NOT_ASKED_AFTER,
    SLOW_AFTER,
    blocked_by,
    by_what_they_say,
    is_inactive,
)
from airflow_provider_multikueue.decisions.views import Observation, Phase, RegionCheck, Stage, View

__all__ = ["trouble_of", "waiting_sentence"]


def waiting_sentence(view: View, seen: Observation) -> str:
    """Return why the job, or a part of one that runs, waits; empty text when nothing does."""
    if seen.ending is not None:
        return ""
    if seen.phase is Phase.SUBMITTED:
        return _submitted(view, seen)
    if seen.phase is Phase.QUEUED:
        return _queued(view, seen)
    if seen.phase is Phase.PLACING:
        return _placing(view, seen)
    if seen.phase is Phase.EVICTED and is_inactive(view.workload):
        why = seen.evicted_reason or "no reason given"
        return f"deactivated on the manager ({why}); it goes on only if someone activates it again"
    if seen.phase is Phase.EVICTED:
        return f"evicted ({seen.evicted_reason or 'no reason given'}); waiting to be placed again, from zero"
    if seen.phase is Phase.ADMITTED:
        return f"admitted in {seen.where or 'a worker'}, " + (_problem(view, seen) or "waiting for its first container")
    problem = _problem(view, seen) if seen.phase is Phase.RUNNING else ""
    return f"runs in {seen.where}, {problem}" if problem else ""


def _age(view: View, moment: datetime | None) -> float:
    return view.now - moment.timestamp() if moment else 0.0


def _submitted(view: View, seen: Observation) -> str:
    if view.memory.workload_gone_since is not None:
        return "its Workload was deleted on the manager; it ends unless Kueue makes another"
    if _age(view, seen.submitted) > SLOW_AFTER:
        return (
            f"Kueue on the manager has made no Workload for more than {SLOW_AFTER:.0f} s: "
            f"is it running, and does it manage {view.kind.kind}s?"
        )
    return "waiting for Kueue on the manager"


def _queued(view: View, seen: Observation) -> str:
    message = told(view.workload, "QuotaReserved")
    queue = seen.queue or "its queue"
    blocked = blocked_by(view.workload)
    if blocked == "stopped":
        return f"waiting in {queue}, which takes no jobs now (stopped, or not set up): {message}"
    if blocked:
        return f"cannot be admitted from {queue}: {message}"
    return f"waiting for quota in {queue}" + (f": {message}" if message else "")


def _placing(view: View, seen: Observation) -> str:
    if not seen.asked:
        return _nobody_asked(view, _age(view, seen.quota_reserved))
    if seen.hopeless_since is not None:
        return "it has quota, but no region can run it: " + _each(seen)
    if all(check.stage in _MUTE and _age(view, check.since) > SLOW_AFTER for check in seen.checks):
        return f"it has quota, but no region has answered for more than {SLOW_AFTER:.0f} s: " + _each(seen)
    return "it has quota; waiting for a region to grant capacity"


_MUTE = (Stage.SILENT, Stage.UNANSWERED)


def _nobody_asked(view: View, waited: float) -> str:
    if waited <= NOT_ASKED_AFTER:
        return "it has quota; the manager is about to ask the regions"
    away = [worker.where for worker in view.workers.values() if worker.trouble]
    why = (
        f"{', '.join(away)} cannot be reached, and the manager asks no region while it waits for one that hangs"
        if away
        else "see the MultiKueueClusters and the log of Kueue on the manager"
    )
    return f"it has quota, but the manager asks no region: {why}"


def _each(seen: Observation) -> str:
    """Return what each region says."""
    reasons = {region.cluster: region.reason for region in seen.dead}
    return by_what_they_say((check.where, reasons.get(check.cluster) or _slow_text(check)) for check in seen.checks)


def _slow_text(check: RegionCheck) -> str:
    if check.stage is Stage.SILENT:
        return "no copy of the job has arrived there"
    if check.stage is Stage.UNANSWERED:
        return "its Kueue has not looked at the job"
    return check.text or check.stage.value


def _problem(view: View, seen: Observation) -> str:
    """Say what keeps a pod of this stay from starting; one that is being deleted, or was, no longer matters."""
    worker = view.workers.get(seen.cluster or "")
    pods = pods_of_stay(worker.pods, seen.admitted) if worker else []
    problem = startup_problem(pod for pod in pods if not get_at(pod, ("metadata", "deletionTimestamp")))
    return f"but {problem}" if problem else ""


def trouble_of(view: View, cluster: str | None) -> tuple[str, str]:
    """Return which cluster cannot be reached that matters now, and what that means: the manager, or the job's worker.

    The manager is the empty name; the sentence is empty if all is well.
    """
    if view.manager_trouble:
        since = _clock(view.manager_trouble_since)
        text = f"the manager cannot be reached{since}: {view.manager_trouble.rstrip('.')}; the job goes on without us"
        return "", text
    worker = view.workers.get(cluster or "")
    if worker is not None and worker.trouble:
        since = _clock(worker.trouble_since)
        text = (
            f"worker {worker.where} cannot be reached{since}: {worker.trouble.rstrip('.')}; only Kueue places it again"
        )
        return worker.cluster, text
    return "", ""


def _clock(since: float | None) -> str:
    return f" since {datetime.fromtimestamp(since, UTC):%H:%M:%S} UTC" if since is not None else ""
