"""How a job ended, from the last known statuses of its pods, as the error to raise.

Each text says what happened and where, with exit code, reason and the last lines of the log, and what to do next.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.decisions.narrate import describe_waiting, duration
from airflow_provider_multikueue.decisions.pods import (
    ContainerEnd,
    container_ends,
    node_lost,
    pods_of_stay,
    startup_problem,
)
from airflow_provider_multikueue.decisions.verdicts import NEVER_SEEN
from airflow_provider_multikueue.decisions.workload import Phase
from airflow_provider_multikueue.exceptions import (
    AdmissionRejectedError,
    AdmissionTimeoutError,
    FleetConfigurationError,
    JobDeadlineError,
    JobDeletedError,
    JobEvictedError,
    JobFailedError,
    JobOutOfMemoryError,
    MultiKueueError,
    RunDurationExceededError,
    StartupError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.workload import Ending, Observation

__all__ = [
    "ContainerEnd",
    "admission_timed_out",
    "container_ends",
    "error_for",
    "startup_problem",
    "startup_timed_out",
    "too_many_dispatches",
]

Pods = Collection[Mapping[str, Any]]

SHOWN_FAILURES = 3
SIGNALS = {137: "killed (SIGKILL)", 139: "crashed (SIGSEGV)", 143: "told to stop (SIGTERM)", 134: "aborted (SIGABRT)"}


def error_for(observation: Observation, pods: Pods = (), tail: Sequence[str] = ()) -> MultiKueueError | None:
    """Return the error for an ended job; None while it has not ended, or when it succeeded.

    ``pods`` are the last known pods, also those that are gone by now; ``tail`` is the last lines of the log.
    """
    ending = observation.ending
    if ending is None or ending.kind == "succeeded":
        return None
    pods = pods_of_stay(pods, observation.admitted)
    if ending.kind == "failed":
        return _failed(observation, ending, pods, tail)
    if ending.kind == "deadline":
        return JobDeadlineError(_text(observation, _deadline(ending), _ends(pods), tail, _NEXT["deadline"]))
    cls = _CLASSES[ending.kind]
    what = {
        "run_duration": f"used up its run time: {ending.message}, and its capacity was taken away",
        "rejected": f"can be admitted nowhere: {_said(ending)}",
        "inadmissible": f"cannot be admitted: {_said(ending)}",
        "deactivated": f"was deactivated: {_said(ending)}",
        "deleted": _deleted(ending),
        "workload_deleted": "lost its Workload: someone deleted it on the manager, and Kueue makes no other",
        "not_dispatched": f"was not given to any worker: {ending.message}",
    }[ending.kind]
    return cls(_text(observation, what, _ends(pods), tail, _NEXT[ending.kind]))


_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")
"""A JSON Web Token that a pod printed. Airflow hides them in lines of a log, not in the text of an error."""

_CLASSES: dict[str, type[MultiKueueError]] = {
    "run_duration": RunDurationExceededError,
    "rejected": AdmissionRejectedError,
    "inadmissible": AdmissionRejectedError,
    "deactivated": JobEvictedError,
    "deleted": JobDeletedError,
    "workload_deleted": JobDeletedError,
    "not_dispatched": FleetConfigurationError,
}

_NEXT = {
    "failed": "The job's own code ended so.",
    "memory": "Raise the container's memory limit, or use less of it.",
    "deadline": "Raise its activeDeadlineSeconds, or make the job shorter.",
    "node": "The infrastructure failed, not the job's code: a retry can help.",
    "startup": "Mend the manifest, the image or the worker's objects it needs; nothing of the job's code ran.",
    "run_duration": "Raise max_run_duration, or let the job write checkpoints and retry.",
    "rejected": "This is capacity, not your code: retry later, or ask more regions.",
    "inadmissible": "Correct queue_name, or have the queue set up to cover what the pods ask for.",
    "deactivated": "Ask who or what deactivated it; a retry submits it anew.",
    "deleted": "If that was not meant: a retry submits it anew.",
    "workload_deleted": "A retry submits the job anew.",
    "not_dispatched": "Have a MultiKueue admission check added to its ClusterQueue, or use a queue that has one.",
}


def _deleted(ending: Ending) -> str:
    if ending.reason == NEVER_SEEN:
        return "is no longer on the manager: it ended and was removed, or was deleted"
    return "was deleted on the manager by someone else"


def _said(ending: Ending) -> str:
    told = ending.message or ending.reason
    return told if ending.reason in told else f"{told} ({ending.reason})"


def _deadline(ending: Ending) -> str:
    return f"was stopped at its deadline: {_said(ending)}"


def _failed(seen: Observation, ending: Ending, pods: Pods, tail: Sequence[str]) -> MultiKueueError:
    """Tell the job's own failure from one of memory, node, image or configuration."""
    ends = _ends(pods)
    killed = [end for end in ends if end.reason == "OOMKilled" and not _outlived(end, ends)]
    if killed:
        what = f"ran out of memory: {_said(ending)}"
        return JobOutOfMemoryError(_text(seen, what, (*killed, *(e for e in ends if e not in killed)), tail, "memory"))
    lost = node_lost(pods)
    if lost:
        return WorkerLostError(_text(seen, f"lost its node: {lost}", ends, tail, "node"))
    problem = startup_problem(pods)
    if problem and not ends:
        return StartupError(_text(seen, f"could not start: {problem}", ends, tail, "startup"))
    return JobFailedError(_text(seen, f"failed: {_said(ending)}", ends, tail, "failed"))


def _outlived(end: ContainerEnd, ends: Sequence[ContainerEnd]) -> bool:
    """Whether a pod that was made after ``end`` failed too: the job was given another chance, and that decided."""
    return bool(end.finished) and any(other.created > end.finished for other in ends)


def _ends(pods: Pods) -> tuple[ContainerEnd, ...]:
    return tuple(end for end in container_ends(pods) if end.failed)


def _text(seen: Observation, what: str, ends: Sequence[ContainerEnd], tail: Sequence[str], next_step: str) -> str:
    """Return the whole text: what and where, how the containers ended, what to do, the last lines."""
    gone = seen.ending is not None and seen.ending.phase is Phase.LOST
    where = f"{', while' if gone else ''} in {seen.place}" if seen.cluster else ""
    text = f"Job {_job(seen)} {what.rstrip('.')}{where}."
    if ends:
        shown = "; ".join(_end_text(end) for end in ends[:SHOWN_FAILURES])
        more = f"; and {len(ends) - SHOWN_FAILURES} more" if len(ends) > SHOWN_FAILURES else ""
        text += f" {shown}{more}."
    text += f" {_NEXT.get(next_step, next_step)}"
    if tail:
        text += "\nLast lines:\n" + "\n".join(f"  {_TOKEN.sub('eyJ***', line)}" for line in tail)
    return text


def _job(seen: Observation) -> str:
    return f"{seen.namespace}/{seen.name}" if seen.name else "of this task"


def _end_text(end: ContainerEnd) -> str:
    code = f"exit code {end.exit_code}" if end.exit_code is not None else "no exit code"
    signal = SIGNALS.get(end.exit_code or 0)
    details = [code, *([signal] if signal else []), *([end.reason] if end.reason and end.reason != "Error" else [])]
    message = f" ({end.message.splitlines()[-1][:300]})" if end.message else ""
    return f"Container {end.container} of pod {end.pod}: {', '.join(details)}{message}"


def admission_timed_out(observation: Observation, after: timedelta) -> AdmissionTimeoutError:
    """Return the error for a job that no region admitted within ``after``, with what each region said last."""
    waited = describe_waiting(observation).removeprefix("Waiting: ").rstrip(".")
    return AdmissionTimeoutError(
        f"Job {_job(observation)} was admitted nowhere within {duration(after.total_seconds())}. Last state: {waited}. "
        "This is capacity, not your code: retry later, raise admission_timeout, or ask more regions."
    )


def startup_timed_out(observation: Observation, after: timedelta, pods: Pods = ()) -> StartupError:
    """Return the error for an admitted job none of whose containers ran within ``after``."""
    problem = startup_problem(pods) or "its pods give no reason"
    what = f"ran no container within {duration(after.total_seconds())} of its admission: {problem}"
    return StartupError(_text(observation, what, (), (), "startup"))


def too_many_dispatches(
    observation: Observation, dispatches: Sequence[Mapping[str, Any]], limit: int
) -> JobEvictedError:
    """Return the error for a job that was moved more often than ``max_dispatches`` allows."""
    stays = "; ".join(
        f"{item.get('region') or item.get('cluster')}: {item.get('reason') or 'left'}" for item in dispatches
    )
    return JobEvictedError(
        f"Job {_job(observation)} was placed {len(dispatches)} times, and max_dispatches is {limit} ({stays}). "
        "The infrastructure moved it, not its code: retry later, or raise max_dispatches."
    )
