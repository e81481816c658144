"""What a pod's status says: which containers ran, how they ended, why they cannot start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from airflow_provider_multikueue.decisions.conditions import condition, items_at, parse_time, text_at, time_at
from airflow_provider_multikueue.decisions.kinds import get_at

__all__ = [
    "SKEW",
    "ContainerEnd",
    "container_ends",
    "failed_pods",
    "first_start",
    "node_lost",
    "pods_of_stay",
    "running_pods",
    "startup_problem",
]

Pod = Mapping[str, Any]

SKEW: Final = timedelta(seconds=5)
"""What a worker's clock and the manager's may differ by."""

_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_NODE = frozenset({"NodeLost", "Shutdown", "NodeShutdown", "Terminated", "NodeAffinity", "UnexpectedAdmissionError"})
_DISRUPTIONS = frozenset({"DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnd:
    """How one container of one pod ended; ``reason`` is the kubelet's, such as ``OOMKilled`` or ``Error``."""

    pod: str
    container: str
    exit_code: int | None
    reason: str
    message: str = ""
    created: str = ""  # the pod
    finished: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than with exit code 0."""
        return self.exit_code != 0


def _statuses(pod: Pod) -> Iterator[Mapping[str, Any]]:
    for field in ("initContainerStatuses", "containerStatuses"):
        yield from items_at(pod, "status", field)


def container_ends(pods: Iterable[Pod]) -> tuple[ContainerEnd, ...]:
    """Return the containers that ended, the failed ones first, the earliest first among them.

    Those that were told to stop come after those that failed by themselves: one failure makes many stop with it.
    """
    found = [end for pod in pods for end in _ends_of(pod)]
    stopped = {143, 137}
    return tuple(
        sorted(
            found,
            key=lambda end: (
                not end.failed,
                end.exit_code in stopped and end.reason != "OOMKilled",
                end.finished,
                end.pod,
                end.container,
            ),
        )
    )


def _ends_of(pod: Pod) -> Iterator[ContainerEnd]:
    for status in _statuses(pod):
        ended = get_at(status, ("state", "terminated")) or get_at(status, ("lastState", "terminated"))
        if not isinstance(ended, Mapping):
            continue
        code = ended.get("exitCode")
        yield ContainerEnd(
            pod=text_at(pod, "metadata", "name"),
            container=text_at(status, "name"),
            exit_code=code if isinstance(code, int) else None,
            reason=text_at(ended, "reason"),
            message=text_at(ended, "message").strip(),
            created=text_at(pod, "metadata", "creationTimestamp"),
            finished=text_at(ended, "finishedAt"),
        )


def failed_pods(pods: Iterable[Pod]) -> tuple[str, ...]:
    """Say how each pod failed, the earliest first; without those after which no other is at work, or did better."""
    known = list(pods)
    at_work = any(text_at(pod, "status", "phase") in ("Pending", "Running") for pod in known)
    succeeded = [
        text_at(p, "metadata", "creationTimestamp") for p in known if text_at(p, "status", "phase") == "Succeeded"
    ]
    failed = [
        pod
        for pod in known
        if text_at(pod, "status", "phase") == "Failed"
        and (at_work or max(succeeded, default="") > text_at(pod, "metadata", "creationTimestamp"))
    ]
    failed.sort(key=lambda pod: (text_at(pod, "metadata", "creationTimestamp"), text_at(pod, "metadata", "name")))
    return tuple(f"{text_at(pod, 'metadata', 'name')} ({_how_it_failed(pod)})" for pod in failed)


def _how_it_failed(pod: Pod) -> str:
    end = next((end for end in container_ends([pod]) if end.failed), None)
    if end is None:
        return text_at(pod, "status", "reason") or "no reason given"
    return end.reason if end.reason not in ("", "Error") else f"exit code {end.exit_code}"


def first_start(pods: Iterable[Pod]) -> datetime | None:
    """Return when the first container of ``pods`` began to run; None if none did."""
    times = [
        parse_time(text_at(status, state, phase, "startedAt"))
        for pod in pods
        for status in _statuses(pod)
        for state in ("state", "lastState")
        for phase in ("running", "terminated")
    ]
    return min((time for time in times if time is not None), default=None)


def pods_of_stay(pods: Iterable[Pod], admitted: datetime | None) -> list[Pod]:
    """Return the pods made since the job was ``admitted``: a worker may still show those of an earlier stay."""
    if admitted is None:
        return list(pods)
    return [pod for pod in pods if (time_at(pod, "metadata", "creationTimestamp") or admitted) >= admitted - SKEW]


def running_pods(pods: Iterable[Pod]) -> int:
    """Return how many of ``pods`` have a container that runs now."""
    return sum(any(get_at(status, ("state", "running")) is not None for status in _statuses(pod)) for pod in pods)


def node_lost(pods: Iterable[Pod]) -> str | None:
    """Say which pod went down with its node; None if none did, or if the job had another chance after it, and failed.

    Another chance is a pod made after the loss that failed by itself.
    """
    losses = [(pod, _loss(pod)) for pod in pods]
    failed = (pod for pod, loss in losses if not loss and any(end.failed for end in _ends_of(pod)))
    last = max((text_at(pod, "metadata", "creationTimestamp") for pod in failed), default="")
    return next((loss for pod, loss in losses if loss and (_lost_at(pod) or "~") > last), None)  # "~": after all times


def _lost_at(pod: Pod) -> str:
    """Return when the pod was lost; empty if that is not known. Its replacement may be made before it is quite over."""
    ends = (end.finished for end in _ends_of(pod))
    return text_at(condition(pod, "DisruptionTarget"), "lastTransitionTime") or max(ends, default="")


def _loss(pod: Pod) -> str:
    name, node = text_at(pod, "metadata", "name"), text_at(pod, "spec", "nodeName") or "its node"
    reason = text_at(pod, "status", "reason")
    disruption = condition(pod, "DisruptionTarget")
    if text_at(disruption, "status") == "True" and text_at(disruption, "reason") in _DISRUPTIONS:
        return f"pod {name} went down with {node} ({text_at(disruption, 'message') or disruption_reason(pod)})"
    if text_at(pod, "status", "phase") == "Failed" and reason in _NODE:
        return f"pod {name} went down with {node} ({text_at(pod, 'status', 'message') or reason})"
    return ""


def disruption_reason(pod: Pod) -> str:
    """Return the reason of the pod's disruption, or empty text."""
    return text_at(condition(pod, "DisruptionTarget"), "reason")


def startup_problem(pods: Iterable[Pod]) -> str | None:
    """Say why a pod cannot start (image, configuration, scheduling); None if none has such a problem."""
    for pod in pods:
        if text_at(pod, "status", "phase") in ("Succeeded", "Failed"):
            continue
        problem = _container_problem(pod) or _scheduling_problem(pod)
        if problem:
            return f"pod {text_at(pod, 'metadata', 'name')} {problem}"
    return None


def _container_problem(pod: Pod) -> str | None:
    for status in _statuses(pod):
        reason = text_at(status, "state", "waiting", "reason")
        if reason not in _IMAGE and reason not in _CONFIG:
            continue
        what = f"cannot get its image {text_at(status, 'image')!r}" if reason in _IMAGE else "cannot be started"
        message = text_at(status, "state", "waiting", "message").strip()
        return f"{what} (container {text_at(status, 'name')}, {reason}{': ' + message if message else ''})"
    return None


def _scheduling_problem(pod: Pod) -> str | None:
    scheduled = condition(pod, "PodScheduled")
    if text_at(scheduled, "status") != "False" or text_at(scheduled, "reason") == "SchedulingGated":
        return None
    return f"fits on no node ({text_at(scheduled, 'reason')}: {text_at(scheduled, 'message').strip()})"
