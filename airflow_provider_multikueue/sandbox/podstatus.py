"""The status of a pod from what is known of its containers, in a kubelet's words. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from airflow_provider_multikueue.sandbox.podenv import Place

__all__ = ["ContainerRecord", "Verdict", "is_sidecar", "pod_phase", "pod_status", "restarts", "rfc3339"]

Object = Mapping[str, Any]


def rfc3339(moment: float | None = None) -> str:
    """Return a time as the API has it, in whole seconds; now without ``moment``."""
    return datetime.fromtimestamp(time.time() if moment is None else moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class ContainerRecord:
    """What is known of one container; ``state`` and ``last`` are the API's ContainerState."""

    name: str
    image: str
    state: dict[str, Any] = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    container_id: str = ""
    image_id: str = ""

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """The exit code of the run that ended, while no other has begun."""
        ended = self.state.get("terminated") or (self.last.get("terminated") if "waiting" in self.state else None)
        return int(ended["exitCode"]) if ended else None

    def status(self, *, sidecar_or_main: bool) -> dict[str, Any]:
        """Return its ContainerStatus."""
        done = not sidecar_or_main and self.state.get("terminated", {}).get("exitCode") == 0
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image_id,
            "containerID": self.container_id,
            "restartCount": self.restarts,
            "ready": done or (self.running and sidecar_or_main),
            "started": self.running,
            "state": self.state,
            "lastState": self.last,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """An end that was put to the pod from outside its containers."""

    reason: str
    message: str
    phase: Literal["Failed"] | None = "Failed"
    disruption: str | None = None


def is_sidecar(container: Object) -> bool:
    """Return whether an init container is one that keeps running beside the others."""
    return container.get("restartPolicy") == "Always"


def restarts(policy: str, exit_code: int) -> bool:
    """Return whether a container that ended so is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def pod_phase(pod: Object, init: Sequence[ContainerRecord], main: Sequence[ContainerRecord], *, ending: bool) -> str:
    """Return the phase; ``ending`` says that nothing will be started any more."""
    spec = pod["spec"]
    policy = spec.get("restartPolicy", "Always")
    one_shot = [
        record for record, entry in zip(init, spec.get("initContainers", ()), strict=True) if not is_sidecar(entry)
    ]
    if any(record.exit_code for record in one_shot) and (policy == "Never" or ending):
        return "Failed"
    initializing = any(record.exit_code != 0 for record in one_shot)
    if initializing or any(not record.running and record.exit_code is None for record in main):
        return "Failed" if ending else "Pending"
    again = any(
        record.running or (not ending and restarts(entry.get("restartPolicy", policy), record.exit_code or 0))
        for record, entry in zip(main, spec["containers"], strict=True)
    )
    if again:
        return "Running"
    return "Failed" if any(record.exit_code for record in main) else "Succeeded"


def pod_status(
    pod: Object,
    init: Sequence[ContainerRecord],
    main: Sequence[ContainerRecord],
    *,
    now: str,
    started: str,
    place: Place,
    ending: bool,
    verdict: Verdict | None,
    previous: Mapping[str, Object],
) -> dict[str, Any]:
    """Return the part of a pod's status that is a kubelet's.

    ``previous`` are the conditions told last, by type: one that did not change keeps its time. A verdict's phase counts
    once no container runs.
    """
    phase = pod_phase(pod, init, main, ending=ending)
    alive = any(record.running for record in [*init, *main])
    if verdict and verdict.phase and not alive:
        phase = verdict.phase
    elif alive and phase in {"Succeeded", "Failed"}:
        phase = "Running"  # a sidecar is still being stopped
    conditions = _conditions(pod, init, main, phase)
    if verdict and verdict.disruption:
        conditions.append(
            {"type": "DisruptionTarget", "status": "True", "reason": verdict.disruption, "message": verdict.message}
        )
    generation = pod["metadata"].get("generation")
    status = {
        "phase": phase,
        "conditions": [_timed(entry, previous.get(entry["type"]), now, generation) for entry in conditions],
        "hostIP": place.host_ip,
        "hostIPs": [{"ip": place.host_ip}],
        "podIP": place.ip,
        "podIPs": [{"ip": place.ip}],
        "startTime": started,
        "containerStatuses": [record.status(sidecar_or_main=True) for record in main],
    }
    if init:
        entries = zip(init, pod["spec"]["initContainers"], strict=True)
        status["initContainerStatuses"] = [
            record.status(sidecar_or_main=is_sidecar(entry)) for record, entry in entries
        ]
    if generation:
        status["observedGeneration"] = generation
    if verdict:
        status |= {"reason": verdict.reason, "message": verdict.message}
    return status


def _timed(condition: dict[str, Any], previous: Object | None, now: str, generation: int | None) -> dict[str, Any]:
    same = previous is not None and previous.get("status") == condition["status"]
    condition["lastTransitionTime"] = previous.get("lastTransitionTime", now) if same and previous else now
    # A strategic merge keeps what is not named: say that reason and message are gone.
    for key in ("reason", "message"):
        condition.setdefault(key, None)
    if generation:
        condition["observedGeneration"] = generation
    return condition


def _conditions(
    pod: Object, init: Sequence[ContainerRecord], main: Sequence[ContainerRecord], phase: str
) -> list[dict[str, Any]]:
    over = phase in {"Succeeded", "Failed"}
    sandbox = not over and any(record.container_id for record in [*init, *main])
    return [
        {"type": "PodReadyToStartContainers", "status": _text(sandbox)},
        _initialized(pod, init, phase),
        *({"type": kind, **_readiness(pod, init, main, phase)} for kind in ("Ready", "ContainersReady")),
    ]


def _text(value: bool) -> str:
    return "True" if value else "False"


def _initialized(pod: Object, init: Sequence[ContainerRecord], phase: str) -> dict[str, Any]:
    waiting = [
        record.name
        for record, entry in zip(init, pod["spec"].get("initContainers", ()), strict=True)
        if not (record.running and is_sidecar(entry)) and record.state.get("terminated", {}).get("exitCode") != 0
    ]
    if phase == "Succeeded":
        return {"type": "Initialized", "status": "True", "reason": "PodCompleted"}
    if waiting:
        return {
            "type": "Initialized",
            "status": "False",
            **_incomplete("ContainersNotInitialized", "incomplete", waiting),
        }
    return {"type": "Initialized", "status": "True"}


def _readiness(
    pod: Object, init: Sequence[ContainerRecord], main: Sequence[ContainerRecord], phase: str
) -> dict[str, Any]:
    if phase == "Succeeded":
        return {"status": "False", "reason": "PodCompleted"}
    if phase == "Failed":
        return {"status": "False", "reason": "PodFailed"}
    sidecars = [r for r, entry in zip(init, pod["spec"].get("initContainers", ()), strict=True) if is_sidecar(entry)]
    unready = [record.name for record in [*sidecars, *main] if not record.running]
    if unready:
        return {"status": "False", **_incomplete("ContainersNotReady", "unready", unready)}
    return {"status": "True"}


def _incomplete(reason: str, word: str, names: Iterable[str]) -> dict[str, str]:
    return {"reason": reason, "message": f"containers with {word} status: [{' '.join(names)}]"}
