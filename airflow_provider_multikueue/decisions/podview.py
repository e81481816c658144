"""What a pod's status says about the runs of its containers, and how people tell its pods apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Run", "coordinator", "leads", "ordinal", "rank", "role", "runs", "short_name"]

Object = Mapping[str, Any]

_ROLES = (
    "jobset.sigs.k8s.io/replicatedjob-name",
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/job-role",  # the MPI operator's; the training operator's tells its leader alone
    "ray.io/group",
    "ray.io/node-type",
)
_ORDINALS = (
    "jobset.sigs.k8s.io/job-index",
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
)
_COORDINATOR = "jobset.sigs.k8s.io/coordinator"
_LEADER = ("training.kubeflow.org/job-role", "master")
_GLOBAL = "jobset.sigs.k8s.io/job-global-index"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one container: from a start to the end before the next restart. Only runs that began are known."""

    namespace: str
    pod: str
    uid: str
    container: str
    restart: int
    container_id: str
    ended: bool
    exit_code: int | None
    previous: bool
    """Another run has begun since, so that the log API has this one's log as ``previous``."""
    init: bool
    """An init container, other than one that keeps running beside the main ones."""
    started: str
    finished: str

    @property
    def key(self) -> str:
        """What tells the run from all others, in any cluster."""
        return f"{self.uid}/{self.container}/{self.restart}"

    @property
    def failed(self) -> bool:
        """Whether it ended with an exit code that is not 0."""
        return self.ended and self.exit_code != 0


def runs(pod: Object) -> list[Run]:
    """Return the runs that the pod's status tells of, in the order in which they began for each container."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    sidecars = {c.get("name") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    found: list[Run] = []
    for entry in status.get("initContainerStatuses") or ():
        found += _runs_of(pod, entry, init=entry.get("name") not in sidecars)
    for entry in status.get("containerStatuses") or ():
        found += _runs_of(pod, entry, init=False)
    return found


def _runs_of(pod: Object, entry: Object, *, init: bool) -> Iterator[Run]:
    state, last = entry.get("state") or {}, (entry.get("lastState") or {}).get("terminated")
    restart = int(entry.get("restartCount") or 0)
    present = state.get("running") or state.get("terminated")
    if last and last.get("containerID"):
        # While it waits for its next start the container's own id is still that of the run that ended.
        waiting = present is None
        same = waiting and entry.get("containerID") in (None, "", last["containerID"])
        yield _run(pod, entry, last, restart if same else max(restart - 1, 0), previous=not waiting, init=init)
    if present is not None and (entry.get("containerID") or present.get("containerID")):
        yield _run(pod, entry, present, restart, previous=False, init=init)


def _run(pod: Object, entry: Object, state: Object, restart: int, *, previous: bool, init: bool) -> Run:
    meta = pod["metadata"]
    ended = "exitCode" in state
    return Run(
        namespace=str(meta.get("namespace") or "default"),
        pod=str(meta["name"]),
        uid=str(meta["uid"]),
        container=str(entry["name"]),
        restart=restart,
        container_id=str(state.get("containerID") or entry.get("containerID") or ""),
        ended=ended,
        exit_code=int(state["exitCode"]) if ended else None,
        previous=previous,
        init=init,
        started=str(state.get("startedAt") or ""),
        finished=str(state.get("finishedAt") or ""),
    )


def _labels(pod: Object) -> dict[str, str]:
    meta = pod["metadata"]
    return {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}


def role(pod: Object) -> str:
    """Return what the pod is within its job, such as ``worker``; "" where all pods are alike."""
    labels = _labels(pod)
    return next((str(labels[name]) for name in _ROLES if labels.get(name)), "")


def ordinal(pod: Object) -> tuple[int, ...]:
    """Return the pod's number within its role; () where pods have none."""
    labels = _labels(pod)
    numbers = (str(labels.get(name, "")) for name in _ORDINALS)
    return tuple(int(number) for number in numbers if number.isdecimal())


def coordinator(pod: Object) -> str:
    """Return the host name of the pod that coordinates the JobSet of ``pod``; "" where its manifest names none."""
    return str(_labels(pod).get(_COORDINATOR) or "")


def leads(pod: Object, leader: str | None) -> bool:
    """Whether the pod is the one that its controller says leads the job, or else has the role ``leader``.

    A JobSet names its coordinator on each of its pods; Kubeflow's operators mark the leader, whatever its role.
    """
    labels = _labels(pod)
    if named := coordinator(pod):
        own = (labels.get(name) for name in ("jobset.sigs.k8s.io/jobset-name", _ROLES[0]))
        return named.partition(".")[0] == "-".join([*map(str, own), *map(str, ordinal(pod))])
    if labels.get(_LEADER[0]) == _LEADER[1]:
        return True
    return leader is not None and role(pod).lower() == leader.lower()


def rank(pod: Object) -> int:
    """Return the place of the pod's group in a JobSet's manifest, from 0; 0 for pods of other kinds."""
    number = str(_labels(pod).get(_GLOBAL, ""))
    return int(number) if number.isdecimal() else 0


def short_name(pod: Object) -> str:
    """Return the shortest name that usually tells the pod from the job's others: ``worker-0-1``, ``2``, ``x7k9p``."""
    parts = [role(pod), *map(str, ordinal(pod))]
    return "-".join(filter(None, parts)) if ordinal(pod) else str(pod["metadata"]["name"]).rsplit("-", 1)[-1]
