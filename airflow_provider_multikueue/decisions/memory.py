"""What earlier views of a job showed and later ones no longer show, folded into one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.decisions.conditions import (
    COPY_GONE,
    WORKER_LOST,
    condition,
    eviction_cause,
    is_true,
    refusal_of,
    text_at,
    told,
    transition,
)
from airflow_provider_multikueue.decisions.jobs import run_duration_of
from airflow_provider_multikueue.decisions.kinds import outcome
from airflow_provider_multikueue.decisions.regions import (
    asked_clusters,
    blocked_by,
    is_copy,
    is_inactive,
    newest_request,
)

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.views import CopyMemory, Memory, View, WorkerView

__all__ = ["remember"]

USED_UP: Final = 0.95  # of the run time; an eviction after that share of it is its end
CLOCK_STEP: Final = 1.0  # seconds; conditions carry whole seconds
KEPT_REJECTIONS: Final = 20


def remember(memory: Memory, view: View) -> Memory:
    """Return ``memory`` with what ``view`` shows: call it before ``observe`` at each view, and put the result there."""
    if view.job is not None:
        metadata = (text_at(view.job, "metadata", "namespace"), text_at(view.job, "metadata", "name"))
        memory = replace(memory, namespace=metadata[0], name=metadata[1])
    copies = {name: _remember_copy(memory.of(name), view, worker) for name, worker in view.workers.items()}
    memory = replace(
        memory,
        copies={**memory.copies, **copies},
        job_gone_since=_since(memory.job_gone_since, view.now, when=view.job_seen and view.job is None),
        workload_gone_since=_since(
            memory.workload_gone_since, view.now, when=view.workload_seen and view.workload is None
        ),
        inactive_since=_since(memory.inactive_since, view.now, when=is_inactive(view.workload)),
        **_blocked(memory, view.workload, view.now),
    )
    if cluster := _chosen(view):
        memory = replace(memory, cluster=cluster)
    if is_true(view.workload, "Evicted") and memory.cluster:
        at = _epoch(view.workload, "Evicted")
        memory = replace(memory, left=memory.cluster, left_reason=_why_left(memory, view, at), left_at=at)
    if is_true(view.workload, "Admitted"):
        memory = replace(memory, admitted=_epoch(view.workload, "Admitted"))
    return replace(memory, used_up=memory.used_up or _used_up(memory, view))


def _since(known: float | None, now: float, *, when: bool) -> float | None:
    return (known if known is not None else now) if when else None


def _blocked(memory: Memory | CopyMemory, workload: Mapping[str, Any] | None, now: float) -> dict[str, Any]:
    """Return what blocks the queue and since when; another kind of reason has a grace of its own."""
    blocked = blocked_by(workload)
    known = memory.blocked_since if memory.blocked == blocked else None
    return {"blocked": blocked, "blocked_since": _since(known, now, when=bool(blocked))}


def _remember_copy(memory: CopyMemory, view: View, worker: WorkerView) -> CopyMemory:
    memory = replace(memory, **_blocked(memory, worker.workload, view.now))
    memory = _remember_refusal(memory, view, worker)
    memory = _remember_end(memory, view, worker)
    silent = _since(
        memory.silent_since, view.now, when=worker.workload is None and worker.cluster in asked_clusters(view)
    )
    memory = replace(memory, silent_since=silent)
    request = newest_request(worker)
    if is_true(request, "Provisioned"):
        memory = replace(memory, provisioned=_epoch(request, "Provisioned"))
    return _remember_cause(memory, view, worker)


def _chosen(view: View) -> str:
    return text_at(view.workload, "status", "clusterName")


def _remember_cause(memory: CopyMemory, view: View, worker: WorkerView) -> CopyMemory:
    """Keep why the job's worker let it go: its words may be gone before the eviction is seen. Forget at a new stay."""
    request, admitted = newest_request(worker), transition(worker.workload, "Admitted")
    failed = is_true(request, "Failed") and worker.cluster == _chosen(view)
    if failed or _evicts(view, worker):
        cause = told(request, "Failed") if failed else _cause(worker)
        if not cause or cause == memory.cause:
            return memory
        return replace(memory, cause=cause, cause_since=view.now)
    stays = is_true(worker.workload, "Admitted") and not is_true(worker.workload, "Evicted")
    if stays and admitted is not None and admitted.timestamp() > (memory.cause_since or 0.0):
        return replace(memory, cause="", cause_since=None)
    return memory


def _why_left(memory: Memory, view: View, at: float | None) -> str:
    """Return why the job was evicted, in the worker's words or the manager's, else by what the worker shows of it."""
    if known := memory.of(memory.cluster).cause or eviction_cause(view.workload):
        return known
    if memory.left == memory.cluster and memory.left_at == at and memory.left_reason:
        return memory.left_reason  # the manager clears the worker's copy away later, which is no cause
    worker = view.workers.get(memory.cluster or "")
    if worker is not None and worker.trouble:
        return WORKER_LOST
    if worker is not None and worker.readable and worker.workload is None:
        return COPY_GONE
    return "its admission check no longer holds"


def _evicts(view: View, worker: WorkerView) -> bool:
    """Whether the job's worker evicts it by its own decision, rather than at the manager's word."""
    if worker.cluster != (_chosen(view) or view.memory.cluster) or not is_true(worker.workload, "Evicted"):
        return False
    return not text_at(condition(worker.workload, "Evicted"), "reason").endswith("EvictedOnManagerCluster")


def _cause(worker: WorkerView) -> str:
    """Return why a worker evicted the job, in its own words."""
    request = newest_request(worker)
    if is_true(request, "CapacityRevoked"):
        return told(request, "CapacityRevoked")
    return refusal_of(worker.workload) or eviction_cause(worker.workload)


def _remember_refusal(memory: CopyMemory, view: View, worker: WorkerView) -> CopyMemory:
    """Count the copies that were refused in a row before any of them was granted."""
    if is_true(worker.workload, "Admitted") or _chosen(view) == worker.cluster:
        return replace(memory, rejected=(), rejected_since=None, failure="")
    request = newest_request(worker)
    failure = refusal_of(worker.workload) or (told(request, "Failed") if is_true(request, "Failed") else "")
    refused = text_at(condition(worker.workload, "Evicted"), "reason") == "DeactivatedDueToAdmissionCheck"
    if not failure and not refused:
        return memory
    memory = replace(memory, failure=failure or memory.failure)
    uid = text_at(worker.workload, "metadata", "uid")
    if not uid or uid in memory.rejected:
        return memory
    since = memory.rejected_since if memory.rejected_since is not None else view.now
    return replace(memory, rejected=(*memory.rejected, uid)[-KEPT_REJECTIONS:], rejected_since=since)


def _remember_end(memory: CopyMemory, view: View, worker: WorkerView) -> CopyMemory:
    """Keep when the copy of the job was first seen ended, by our clock, with the manager in reach."""
    ended = not view.manager_trouble and is_copy(view, worker.job) and outcome(view.kind, worker.job) is not None
    uid = text_at(worker.job, "metadata", "uid") if ended else ""
    if not ended:
        return replace(memory, ended_since=None, ended_uid="")
    if memory.ended_since is not None and memory.ended_uid == uid:
        return memory
    return replace(memory, ended_since=view.now, ended_uid=uid)


def _used_up(memory: Memory, view: View) -> str:
    """Say how the run time was used up, if the job was evicted at its end; empty text if it was not."""
    seconds = run_duration_of(view.job)
    if seconds is None or memory.cluster is None:
        return ""
    worker = view.workers.get(memory.cluster)
    started, ended = memory.of(memory.cluster).provisioned or memory.admitted, _revoked(view, worker)
    if started is None or ended is None or ended - started < USED_UP * seconds - CLOCK_STEP:
        return ""
    return f"the {seconds} s of run time that were asked for were over after {ended - started:.0f} s"


def _revoked(view: View, worker: WorkerView | None) -> float | None:
    """Return when the capacity of the placed job was taken away: by the request, the worker's copy, or the manager."""
    request = newest_request(worker) if worker else None
    if is_true(request, "CapacityRevoked"):
        return _epoch(request, "CapacityRevoked")
    copy = worker.workload if worker else None
    if text_at(condition(copy, "Evicted"), "reason") == "DeactivatedDueToAdmissionCheck" and is_true(copy, "Evicted"):
        return _epoch(copy, "Evicted")
    if text_at(condition(view.workload, "Evicted"), "reason") == "AdmissionCheck" and is_true(view.workload, "Evicted"):
        return _epoch(view.workload, "Evicted")
    return None


def _epoch(node: Mapping[str, Any] | None, name: str) -> float | None:
    found = transition(node, name)
    return found.timestamp() if found else None
