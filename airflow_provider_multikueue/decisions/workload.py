"""Kueue's conditions, on the manager and on the workers, into what we know of a job.

The manager decides: finished, its job's terminal condition, deactivated or rejected, evicted, placed and admitted,
quota reserved. Where it is known to be wrong or mute, a row of ``verdicts.OVERRIDES`` says what to believe instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from airflow_provider_multikueue.decisions.conditions import (
    condition,
    eviction_cause,
    is_true,
    items_at,
    parse_time,
    text_at,
    time_at,
    transition,
)
from airflow_provider_multikueue.decisions.jobs import PRIORITY_LABEL, QUEUE_LABEL, held_for
from airflow_provider_multikueue.decisions.kinds import get_at, outcome
from airflow_provider_multikueue.decisions.memory import remember
from airflow_provider_multikueue.decisions.pods import SKEW, failed_pods, first_start, pods_of_stay, running_pods
from airflow_provider_multikueue.decisions.regions import (
    asked_clusters,
    dead_regions,
    is_copy,
    is_inactive,
    region_checks,
)
from airflow_provider_multikueue.decisions.verdicts import managers_word, next_look, override
from airflow_provider_multikueue.decisions.views import (
    CopyMemory,
    DeadRegion,
    Ending,
    EndingKind,
    Memory,
    Observation,
    Phase,
    RegionCheck,
    Stage,
    View,
    WorkerView,
    place_of,
)
from airflow_provider_multikueue.decisions.waiting import trouble_of, waiting_sentence

__all__ = [
    "CopyMemory",
    "DeadRegion",
    "Ending",
    "EndingKind",
    "Memory",
    "Observation",
    "Phase",
    "RegionCheck",
    "Stage",
    "View",
    "WorkerView",
    "observe",
    "remember",
]


def observe(view: View) -> Observation:
    """Return what ``view`` means. Total: never raises, whatever the objects hold."""
    seen = _placed(view, _basics(view))
    seen = _asked(view, seen)
    seen = _ended(view, seen)
    source, trouble = trouble_of(view, seen.cluster)
    seen = replace(seen, trouble=trouble, trouble_of=source, recheck=next_look(view, seen))
    return replace(seen, waiting=waiting_sentence(view, seen))


def _basics(view: View) -> Observation:
    """Return what does not depend on the placement."""
    job, workload = view.job, view.workload
    reserved = is_true(workload, "QuotaReserved")
    return Observation(
        phase=_phase(view),
        namespace=text_at(job or workload, "metadata", "namespace") or view.memory.namespace,
        name=text_at(job, "metadata", "name") or _owner_name(workload) or view.memory.name,
        submitted=time_at(job or workload, "metadata", "creationTimestamp"),
        joined=_joined(view),
        quota_reserved=transition(workload, "QuotaReserved") if reserved else None,
        admitted=transition(workload, "Admitted") if is_true(workload, "Admitted") else None,
        was_admitted=condition(workload, "Admitted") is not None,  # Kueue sets it to False only after it was True
        queue=text_at(workload, "spec", "queueName") or text_at(job, "metadata", "labels", QUEUE_LABEL) or None,
        cluster_queue=text_at(workload, "status", "admission", "clusterQueue") or None,
        priority_class=_priority_class(view),
        came_from=_came_from(view),
        moved_because=view.memory.left_reason,
        evicted=transition(workload, "Evicted") if is_true(workload, "Evicted") else None,
        evicted_reason=_evicted_reason(view),
        inactive=is_inactive(view.workload),
    )


def _joined(view: View) -> datetime | None:
    created = time_at(view.job or view.workload, "metadata", "creationTimestamp")
    return created + held_for(view.job) if created else None


def _came_from(view: View) -> str:
    left = view.memory.left
    worker = view.workers.get(left or "")
    return place_of(left, worker.region if worker else None)


def _owner_name(workload: Mapping[str, Any] | None) -> str:
    owners = items_at(workload, "metadata", "ownerReferences")
    return text_at(owners[0], "name") if owners else ""


def _priority_class(view: View) -> str | None:
    spec = get_at(view.workload, ("spec",))
    if text_at(spec, "priorityClassRef", "kind") == "WorkloadPriorityClass":
        return text_at(spec, "priorityClassRef", "name") or None
    if text_at(spec, "priorityClassSource") == "kueue.x-k8s.io/workloadpriorityclass":
        return text_at(spec, "priorityClassName") or None
    return text_at(view.job, "metadata", "labels", PRIORITY_LABEL) or None


def _phase(view: View) -> Phase:
    """Return the phase by the manager's conditions alone, without its endings."""
    workload = view.workload
    if workload is None:
        return Phase.SUBMITTED
    if is_true(workload, "Evicted"):
        return Phase.EVICTED
    if is_true(workload, "Admitted"):
        return Phase.ADMITTED
    return Phase.PLACING if is_true(workload, "QuotaReserved") else Phase.QUEUED


def _evicted_reason(view: View) -> str | None:
    """Return why the job was evicted: the worker's words where they are known, else the manager's."""
    chosen = text_at(view.workload, "status", "clusterName")
    cause = view.memory.of(chosen or view.memory.cluster).cause
    if is_true(view.workload, "Evicted"):
        return (view.memory.left_reason if view.memory.left else "") or eviction_cause(view.workload)
    worker = view.workers.get(chosen)
    if worker is not None and is_true(worker.workload, "Evicted"):
        return cause or eviction_cause(worker.workload)
    return None


# -- where


def _placed(view: View, seen: Observation) -> Observation:
    """Add the placement: the manager's choice, or the worker whose copy is admitted where the manager names none."""
    cluster = text_at(view.workload, "status", "clusterName")
    # During an eviction the manager's Admitted stays for a while, and names a worker that the job has left.
    missing = not cluster and seen.phase is Phase.ADMITTED
    if missing:
        cluster = _look_up(view)
    if not cluster or seen.phase not in (Phase.ADMITTED, Phase.EVICTED):
        return seen
    return _at(view, replace(seen, override="placement-lookup" if missing else None), cluster)


def _look_up(view: View) -> str:
    """Return the worker whose copy of the Workload is admitted, preferably with a copy of the job; empty if none is."""
    admitted = [worker for worker in view.workers.values() if is_true(worker.workload, "Admitted")]
    admitted.sort(key=lambda worker: (not is_copy(view, worker.job), worker.cluster))
    return admitted[0].cluster if admitted else ""


def _at(view: View, seen: Observation, cluster: str) -> Observation:
    """Return ``seen`` placed on ``cluster``, with what its pods say."""
    worker = view.workers.get(cluster) or WorkerView(cluster=cluster, readable=False)
    pods = pods_of_stay(worker.pods, seen.admitted)
    started = first_start(pods)
    if started is None and not pods and (not worker.readable or seen.phase.ended):
        started = time_at(view.job, "status", "startTime")
    phase = Phase.RUNNING if seen.phase is Phase.ADMITTED and _runs(view, worker, started) else seen.phase
    return replace(
        seen,
        phase=phase,
        cluster=cluster,
        region=worker.region,
        started=started or seen.started,
        flavors=_flavors(worker.workload) or _flavors(view.workload),
        pods_running=running_pods(pods),
        pods_seen=worker.readable and worker.pods_seen and not worker.trouble,
        failures=failed_pods(pods),
        elsewhere=() if seen.phase.ended else _elsewhere(view, cluster),
    )


def _elsewhere(view: View, cluster: str) -> tuple[str, ...]:
    """Return where another copy of the job runs: the manager forgets those of a worker that it had lost."""
    others = [worker for worker in view.workers.values() if worker.cluster != cluster and not worker.trouble]
    active = ((worker, get_at(worker.job, ("status", "active"))) for worker in others if is_copy(view, worker.job))
    return tuple(
        sorted(
            place_of(worker.cluster, worker.region) for worker, count in active if isinstance(count, int) and count > 0
        )
    )


def _runs(view: View, worker: WorkerView, started: datetime | None) -> bool:
    """Whether a container has run in this dispatch: by its pods where they are read, else by the manager's counts."""
    if started is not None and worker.readable:
        return True
    counts = [get_at(view.job, ("status", name)) for name in ("ready", "succeeded", "failed")]
    active = get_at(view.job, ("status", "active"))
    if not worker.readable or worker.trouble:
        counts.append(active)
    return any(isinstance(count, int) and count > 0 for count in counts) and _has_started(view)


def _has_started(view: View) -> bool:
    """Whether the manager's counts are of this dispatch: after an eviction they stay until the next start is copied."""
    begun, admitted = time_at(view.job, "status", "startTime"), transition(view.workload, "Admitted")
    return begun is None or admitted is None or begun >= admitted - SKEW


def _flavors(workload: Mapping[str, Any] | None) -> dict[str, dict[str, str]]:
    sets = items_at(workload, "status", "admission", "podSetAssignments")
    found = {text_at(item, "name") or "main": get_at(item, ("flavors",)) for item in sets}
    return {
        name: {str(resource): str(flavor) for resource, flavor in flavors.items()}
        for name, flavors in found.items()
        if isinstance(flavors, Mapping)
    }


# -- what the regions say, and the end


def _asked(view: View, seen: Observation) -> Observation:
    """Add what each region says while the job is not placed."""
    if seen.phase not in (Phase.PLACING, Phase.EVICTED):
        return seen
    asked = asked_clusters(view)
    checks = region_checks(view, asked)
    dead = dead_regions(view, checks)
    none_left = bool(dead) and len(dead) == len(asked)
    hopeless = seen.phase is Phase.PLACING and (none_left or any(region.final for region in dead))
    return replace(
        seen,
        asked=asked,
        checks=checks,
        dead=dead,
        hopeless_since=max(region.since for region in dead) if hopeless else None,
    )


def _ended(view: View, seen: Observation) -> Observation:
    """Add the ending, by the manager's word or by the table of overrides."""
    ending, rule = managers_word(view), seen.override
    if ending is None:
        found = override(view, seen)
        if found is None:
            return seen
        rule, ending = found
    seen = replace(seen, phase=ending.phase, ending=ending, override=rule, finished=_finished(view, ending))
    source = ending.source.removeprefix("worker:")
    chosen = text_at(view.workload, "status", "clusterName") or seen.cluster
    if not chosen and ending.kind in _ENDED_WHERE_IT_RAN:
        chosen = view.memory.cluster
    cluster = source if source != ending.source else chosen
    if cluster and cluster != chosen:  # the manager's time is of another stay
        seen = replace(seen, admitted=transition(view.workers[cluster].workload, "Admitted"))
    return _at(view, seen, cluster) if cluster else seen


_ENDED_WHERE_IT_RAN: Final = ("deleted", "workload_deleted", "deactivated", "deadline", "run_duration")


def _finished(view: View, ending: Ending) -> datetime | None:
    """Return when the job was over, by the cluster that says so, or when what ended it was seen."""
    worker = view.workers.get(ending.source.removeprefix("worker:"))
    result = outcome(view.kind, worker.job if worker else view.job)
    at = parse_time(result.at) if result else None
    if at is None:
        told_by = [name for name in ("Finished", "Evicted") if is_true(view.workload, name)]
        at = next((transition(view.workload, name) for name in told_by), None)
    noticed = {
        "deleted": view.memory.job_gone_since,
        "workload_deleted": view.memory.workload_gone_since,
        "deactivated": view.memory.inactive_since,
    }.get(ending.kind)
    return at or (datetime.fromtimestamp(noticed, UTC) if noticed is not None else None)
