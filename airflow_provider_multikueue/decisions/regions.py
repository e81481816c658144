"""What each region says to being asked for capacity, and which regions will not answer any more.

The manager shows nothing of this before admission: a job that waits well and one that can never start look alike there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from airflow_provider_multikueue.decisions.conditions import (
    condition,
    eviction_cause,
    is_true,
    items_at,
    parse_time,
    refusal_of,
    text_at,
    told,
    transition,
)
from airflow_provider_multikueue.decisions.kinds import get_at
from airflow_provider_multikueue.decisions.views import (
    Blocked,
    CopyMemory,
    DeadRegion,
    RegionCheck,
    Stage,
    View,
    WorkerView,
)

__all__ = [
    "asked_clusters",
    "blocked_by",
    "by_what_they_say",
    "dead_regions",
    "is_copy",
    "is_inactive",
    "newest_request",
    "region_checks",
]

ORIGIN: Final = "kueue.x-k8s.io/multikueue-origin"
PREBUILT: Final = "kueue.x-k8s.io/prebuilt-workload-name"

LOOP_LENGTH: Final = 3  # rejections in a row that make a loop
LOOP_AGE: Final = 30.0  # seconds that a copy must live undecided to break it
STRANDED_AFTER: Final = 20.0  # seconds; a wasted round is over after 8 to 12
NOT_ASKED_AFTER: Final = 10.0  # seconds with quota and without a region asked
SLOW_AFTER: Final = 30.0  # seconds without an answer that are worth a word
NOT_BROUGHT: Final = (
    f"it granted capacity more than {SLOW_AFTER:.0f} s ago, and the manager brings no job there (its Kueue is down, or "
    "refused by that worker: its log says)"
)


def asked_clusters(view: View) -> tuple[str, ...]:
    """Return the workers that are asked: the manager's list, sorted; else those that hold a copy that is of use."""
    names = get_at(view.workload, ("status", "nominatedClusterNames"))
    if isinstance(names, list) and names:
        return tuple(sorted({name for name in names if isinstance(name, str)}))
    return tuple(sorted(name for name, worker in view.workers.items() if _is_asked(view, worker)))


def _is_asked(view: View, worker: WorkerView) -> bool:
    """Whether a worker's copy waits for an answer, rather than to be cleared away after an earlier round.

    One that is not cleared away in time is all that the manager will ever ask there.
    """
    copy = worker.workload
    if copy is None or worker.trouble:
        return False
    left = transition(copy, "Evicted")
    over = is_true(copy, "Evicted") or is_inactive(copy)
    return not over or (left is not None and view.now - left.timestamp() > STRANDED_AFTER)


def is_copy(view: View, job: Mapping[str, Any] | None) -> bool:
    """Whether a job on a worker is the copy of this job: made by MultiKueue, for this job's Workload."""
    if not text_at(job, "metadata", "labels", ORIGIN):
        return False
    prebuilt = text_at(job, "metadata", "annotations", PREBUILT) or text_at(job, "metadata", "labels", PREBUILT)
    name = text_at(view.workload, "metadata", "name")
    return not prebuilt or not name or prebuilt == name


def is_inactive(workload: Mapping[str, Any] | None) -> bool:
    """Whether a Workload is deactivated."""
    return get_at(workload, ("spec", "active")) is False


def blocked_by(workload: Mapping[str, Any] | None) -> Blocked:
    """Return what keeps the queue from reserving quota for the Workload, other than that the quota is in use.

    ``unfit`` is a queue that is missing, or lacks a resource for good. Kueue 0.19 says Suspended and Misconfigured for
    Inadmissible where its gate UnadmittedWorkloadsObservability is on.
    """
    found = condition(workload, "QuotaReserved")
    if text_at(found, "status") != "False":
        return ""
    reason, message = text_at(found, "reason"), text_at(found, "message").rstrip(".")
    if reason == "Suspended":
        return "stopped"
    if reason in ("Inadmissible", "Misconfigured"):
        return "stopped" if message.endswith(("is inactive", "is stopped")) else "unfit"
    return "unfit" if "unavailable in ClusterQueue" in message else ""


def by_what_they_say(said: Iterable[tuple[str, str]]) -> str:
    """Return what each place says, given as pairs, in one text; those that say the same stand together."""
    by_text: dict[str, list[str]] = {}
    for where, text in said:
        by_text.setdefault(text, []).append(where)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in by_text.items())


def newest_request(worker: WorkerView) -> Mapping[str, Any] | None:
    """Return the newest ProvisioningRequest of the job on this worker."""
    return max(worker.provisioning, key=lambda item: text_at(item, "metadata", "creationTimestamp"), default=None)


def region_checks(view: View, asked: tuple[str, ...]) -> tuple[RegionCheck, ...]:
    """Return what each asked region says, in the order of ``asked``."""
    return tuple(_check(view, view.workers.get(name) or WorkerView(cluster=name, readable=False)) for name in asked)


def _check(view: View, worker: WorkerView) -> RegionCheck:
    stage, text, since = _stage(view, worker)
    return RegionCheck(cluster=worker.cluster, region=worker.region, stage=stage, text=text, since=since)


Answer = tuple[Stage, str, datetime | None]


def _stage(view: View, worker: WorkerView) -> Answer:
    workload = worker.workload
    if worker.trouble:
        return Stage.UNREACHABLE, worker.trouble, None
    if worker.looking:
        return Stage.SILENT, "", None
    if not worker.readable:
        return Stage.UNREADABLE, "", None
    if _is_blocked(view, worker):
        granted = transition(workload, "Admitted")
        return Stage.FAILED, "another job of the same name is in the way", granted
    if _is_in_vain(view, worker):
        return Stage.FAILED, NOT_BROUGHT, transition(workload, "Admitted")
    if workload is None:
        silent = view.memory.of(worker.cluster).silent_since
        return Stage.SILENT, "", datetime.fromtimestamp(silent, UTC) if silent is not None else None
    if is_true(workload, "Evicted") or is_inactive(workload):
        return _evicted(view, worker)
    if is_true(workload, "Admitted"):
        return Stage.GRANTED, "", transition(workload, "Admitted")
    if not is_true(workload, "QuotaReserved"):
        return _without_quota(view, worker)
    return _with_quota(worker)


def _evicted(view: View, worker: WorkerView) -> Answer:
    since = transition(worker.workload, "Evicted")
    rejected = is_inactive(worker.workload)
    text = _refusal_text(worker) or view.memory.of(worker.cluster).failure or eviction_cause(worker.workload)
    if text_at(condition(worker.workload, "Evicted"), "reason").endswith("EvictedOnManagerCluster"):
        return Stage.EVICTED, told(worker.workload, "Evicted"), since
    return (Stage.REJECTED if rejected else Stage.FAILED), text, since


def _refusal_text(worker: WorkerView) -> str:
    """Return the cause in the words of the check or the request that refused; empty if they were taken away already."""
    request = newest_request(worker)
    return refusal_of(worker.workload) or (told(request, "Failed") if is_true(request, "Failed") else "")


def _without_quota(view: View, worker: WorkerView) -> Answer:
    workload = worker.workload
    if condition(workload, "QuotaReserved") is None:
        return Stage.UNANSWERED, "", parse_time(text_at(workload, "metadata", "creationTimestamp"))
    if not blocked_by(workload):
        return Stage.QUOTA, told(workload, "QuotaReserved"), transition(workload, "QuotaReserved")
    # Kueue keeps the condition's time when only its reason changes.
    since = view.memory.of(worker.cluster).blocked_since
    seen = datetime.fromtimestamp(since, UTC) if since is not None else None
    return Stage.INADMISSIBLE, told(workload, "QuotaReserved"), seen


def _with_quota(worker: WorkerView) -> Answer:
    request = newest_request(worker)
    for name, stage in (("Failed", Stage.FAILED), ("Provisioned", Stage.GRANTED)):
        if is_true(request, name):
            return stage, told(request, name), transition(request, name)
    checks = items_at(worker.workload, "status", "admissionChecks")
    for check in checks:
        refused = {"Retry": Stage.FAILED, "Rejected": Stage.REJECTED}.get(text_at(check, "state"))
        if refused:
            return refused, refusal_of(worker.workload), parse_time(check.get("lastTransitionTime"))
    estimate = text_at(condition(request, "Provisioned"), "message") or next(
        (text_at(check, "message") for check in checks if text_at(check, "message")), ""
    )
    if estimate or is_true(request, "Accepted"):  # the check repeats the estimate of a request that was accepted
        return Stage.ACCEPTED, estimate or told(request, "Accepted"), transition(request, "Accepted")
    return Stage.ASKED, "", transition(worker.workload, "QuotaReserved")


# -- regions that will not answer any more


def dead_regions(view: View, checks: tuple[RegionCheck, ...]) -> tuple[DeadRegion, ...]:
    """Return the asked regions from which no answer can come without help, each with the reason and since when."""
    found = (_dead(view, check, view.workers[check.cluster]) for check in checks if check.cluster in view.workers)
    return tuple(region for region in found if region is not None)


def _dead(view: View, check: RegionCheck, worker: WorkerView) -> DeadRegion | None:
    since = check.since.timestamp() if check.since else view.now
    memory = view.memory.of(worker.cluster)
    if _is_blocked(view, worker) or _is_in_vain(view, worker):
        return replace(_made(worker, check.text, since, healable=False), final=True)
    if check.stage is Stage.INADMISSIBLE and blocked_by(worker.workload) == "unfit":
        return _made(worker, check.text, since, healable=False)
    if _in_a_loop(view, worker, memory):
        reason = f"it refuses each time that it is asked: {memory.failure or check.text}"
        return _made(worker, reason, memory.rejected_since or since, healable=False)
    if _failed_once(worker, check):
        return _made(worker, check.text, since, healable=True)
    if check.stage is Stage.EVICTED and _stranded(view, since):
        return _made(worker, "the manager left a dead copy of the Workload there", since, healable=True)
    return None


def _is_blocked(view: View, worker: WorkerView) -> bool:
    """Whether someone else's job has the name that the copy of ours needs there: the manager then never goes on."""
    return worker.job is not None and worker.workload is not None and not is_copy(view, worker.job)


def _is_in_vain(view: View, worker: WorkerView) -> bool:
    """Whether a worker admitted the job and no job comes, as when its webhook refuses the copy: no wait mends that.

    A worker that hangs holds up the manager in everything.
    """
    granted = transition(worker.workload, "Admitted") if is_true(worker.workload, "Admitted") else None
    if granted is None or worker.job is not None or any(each.trouble for each in view.workers.values()):
        return False
    return not is_true(worker.workload, "Evicted") and view.now - granted.timestamp() > SLOW_AFTER


def _failed_once(worker: WorkerView, check: RegionCheck) -> bool:
    """Whether the copy was evicted before its job existed: its quota is never released, so it never asks again."""
    request = newest_request(worker)
    return (
        check.stage is Stage.FAILED
        and worker.job is None
        and is_true(worker.workload, "Evicted")
        and is_true(worker.workload, "QuotaReserved")
        and (request is None or is_true(request, "Failed"))
    )


def _in_a_loop(view: View, worker: WorkerView, memory: CopyMemory) -> bool:
    """Whether the manager makes a copy anew each time it is rejected, and each is rejected at once."""
    if len(memory.rejected) < LOOP_LENGTH:
        return False
    created = parse_time(text_at(worker.workload, "metadata", "creationTimestamp"))
    return created is None or is_inactive(worker.workload) or view.now - created.timestamp() < LOOP_AGE


def _stranded(view: View, since: float) -> bool:
    waits = is_true(view.workload, "QuotaReserved") and not is_true(view.workload, "Evicted")
    return waits and view.now - since > STRANDED_AFTER


def _made(worker: WorkerView, reason: str, since: float, *, healable: bool) -> DeadRegion:
    return DeadRegion(
        cluster=worker.cluster,
        region=worker.region,
        reason=reason.rstrip("."),
        since=since,
        healable=healable and worker.can_heal,
        curable=healable,
        namespace=text_at(worker.workload, "metadata", "namespace"),
        name=text_at(worker.workload, "metadata", "name"),
        uid=text_at(worker.workload, "metadata", "uid"),
    )
