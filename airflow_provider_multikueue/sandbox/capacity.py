"""What a region's Dynamic Workload Scheduler answers, decided without I/O.

A :class:`Script` says how a region treats requests for capacity. :func:`plan` looks at all requests of the region
at once, since they share its GPUs, and returns which conditions to write now and when to look again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal

__all__ = [
    "ACCEPTED",
    "BOOKING_EXPIRED",
    "CAPACITY_REVOKED",
    "FAILED",
    "PROVISIONED",
    "Answer",
    "Ask",
    "Plan",
    "Script",
    "command_answer",
    "gpus_of_pod",
    "merge_conditions",
    "plan",
    "true_conditions",
]

ACCEPTED = "Accepted"
PROVISIONED = "Provisioned"
FAILED = "Failed"
BOOKING_EXPIRED = "BookingExpired"
CAPACITY_REVOKED = "CapacityRevoked"

GPU_RESOURCE = "nvidia.com/gpu"

QUEUED_TEXT = "Provisioning Request was successfully queued."
PROVISIONED_TEXT = "Provisioning Request was successfully provisioned."
NO_CAPACITY_TEXT = "Provisioning Request failed: no capacity in this region."
BOOKING_TEXT = "Capacity booking has expired; the nodes are now candidates for scale down when underutilized."
REVOKED_TEXT = "Capacity was revoked: the maximum run duration of the Provisioning Request was reached."
REVOKED_EARLY_TEXT = "Capacity was revoked by the region."


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How a region answers until it is told otherwise; plain JSON through :meth:`to_json`.

    ``grant`` gives capacity after ``after`` seconds, while ``gpus`` lasts (None: no limit). ``fail`` fails requests
    after the same time, with ``text``. ``starve`` accepts and never answers. Waiting requests are told an ETA ``eta``
    seconds ahead. A granted request's booking expires after ``booking`` seconds, and its capacity is revoked after its
    own ``maxRunDurationSeconds``.
    """

    mode: Literal["grant", "starve", "fail"] = "grant"
    after: float = 0.0
    gpus: int | None = None
    text: str = NO_CAPACITY_TEXT
    eta: float = 3600.0
    booking: float = 600.0

    def __post_init__(self) -> None:
        if self.mode not in {"grant", "starve", "fail"}:
            raise ValueError(f"A capacity script's mode is grant, starve or fail, not {self.mode!r}.")
        if min(self.after, self.eta, self.booking) < 0 or (self.gpus is not None and self.gpus < 0):
            raise ValueError("A capacity script's times and GPUs cannot be negative.")

    def to_json(self) -> dict[str, Any]:
        """Return the script as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Script:
        """Return the script that :meth:`to_json` described; keys that are left out have their defaults."""
        unknown = set(data) - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(f"A capacity script has no {', '.join(sorted(unknown))}.")
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One ProvisioningRequest as far as answering it goes. Times are epoch seconds.

    ``gpus`` is None until its pod templates have been read. ``accepted`` and ``granted`` are when we answered so.
    """

    uid: str
    namespace: str
    name: str
    gpus: int | None
    run_duration: float | None = None
    accepted: float | None = None
    granted: float | None = None
    eta: float | None = None
    conditions: frozenset[str] = field(default_factory=frozenset)

    @property
    def over(self) -> bool:
        """Whether no answer can follow any more."""
        return bool(self.conditions & {FAILED, CAPACITY_REVOKED})

    @property
    def holds_capacity(self) -> bool:
        """Whether the region's GPUs are taken by this request."""
        return PROVISIONED in self.conditions and not self.over


@dataclass(frozen=True, slots=True)
class Answer:
    """Conditions to write on the request ``uid``, as (type, "True" or "False", reason, message)."""

    uid: str
    conditions: tuple[tuple[str, str, str, str], ...]
    eta: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write now, and the epoch second of the next look (None: at the next change).

    Whoever has written answers plans again at once: a request may be due for its next answer.
    """

    answers: tuple[Answer, ...]
    wake: float | None


def plan(asks: Iterable[Ask], script: Script, *, since: float, now: float) -> Plan:
    """Answer every request of a region, oldest first.

    ``since`` is when the script came into force: a request that waited before is answered ``after`` seconds from then.
    A request that does not fit waits, and a later one that fits may go ahead.
    """
    ordered = sorted(asks, key=lambda ask: (ask.accepted or now, ask.uid))
    free = None if script.gpus is None else script.gpus - sum(ask.gpus or 0 for ask in ordered if ask.holds_capacity)
    answers: list[Answer] = []
    wakes: list[float] = []
    for ask in ordered:
        answer, wake = _answer(ask, script, free=free, since=since, now=now)
        if answer is not None:
            answers.append(answer)
            if free is not None and any(
                kind == PROVISIONED and status == "True" for kind, status, *_ in answer.conditions
            ):
                free -= ask.gpus or 0
        if wake is not None:
            wakes.append(wake)
    return Plan(tuple(answers), min(wakes, default=None))


def command_answer(ask: Ask, act: Literal["revoke", "fail", "expire"], text: str | None = None) -> Answer | None:
    """Return the answer to a command about one request, or None if it does not apply to it.

    Capacity can be revoked, and its booking expire, only when it was granted; a request can fail at any time before it
    is over.
    """
    if ask.over:
        return None
    if act == "fail":
        return Answer(ask.uid, ((FAILED, "True", "Failed", text or NO_CAPACITY_TEXT),))
    if not ask.holds_capacity:
        return None
    if act == "expire":
        return Answer(ask.uid, ((BOOKING_EXPIRED, "True", "BookingExpired", text or BOOKING_TEXT),))
    return Answer(ask.uid, ((CAPACITY_REVOKED, "True", "CapacityRevoked", text or REVOKED_EARLY_TEXT),))


def true_conditions(request: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of the conditions that are True."""
    conditions = request.get("status", {}).get("conditions") or ()
    return frozenset(each["type"] for each in conditions if each.get("status") == "True")


def merge_conditions(
    existing: Iterable[Mapping[str, Any]], answer: Answer, *, now: float, generation: int
) -> list[dict[str, Any]]:
    """Return the request's conditions with the answer's among them; a transition time changes only with the status."""
    merged = {each["type"]: dict(each) for each in existing}
    for kind, status, reason, message in answer.conditions:
        before = merged.get(kind, {})
        since = before["lastTransitionTime"] if before.get("status") == status else _stamp(now)
        merged[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since,
        }
    return list(merged.values())


def gpus_of_pod(pod_spec: Mapping[str, Any]) -> int:
    """Return the GPUs that one pod occupies: its containers and sidecars together, or a greedier init container."""
    running = sum(_gpus(each) for each in pod_spec.get("containers") or ())
    starting = 0
    for each in pod_spec.get("initContainers") or ():
        if each.get("restartPolicy") == "Always":
            running += _gpus(each)
        else:
            starting = max(starting, _gpus(each))
    return max(running, starting)


def _gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    # An extended resource may be given by its limit alone, which then is the request too.
    asked = (resources.get("requests") or {}).get(GPU_RESOURCE, (resources.get("limits") or {}).get(GPU_RESOURCE, 0))
    return int(asked)


def _answer(
    ask: Ask, script: Script, *, free: int | None, since: float, now: float
) -> tuple[Answer | None, float | None]:
    if ask.over:
        return None, None
    if ACCEPTED not in ask.conditions or ask.accepted is None:
        return _accept(ask, script, now), None
    if ask.holds_capacity:
        return _follow_up(ask, script, now)
    return _decide(ask, script, free=free, since=since, now=now)


def _accept(ask: Ask, script: Script, now: float) -> Answer:
    eta = now + script.eta
    return Answer(ask.uid, ((ACCEPTED, "True", "Accepted", QUEUED_TEXT), _waiting(eta)), eta)


def _follow_up(ask: Ask, script: Script, now: float) -> tuple[Answer | None, float | None]:
    granted = now if ask.granted is None else ask.granted
    if ask.run_duration is not None and now >= granted + ask.run_duration:
        return Answer(ask.uid, ((CAPACITY_REVOKED, "True", "CapacityRevoked", REVOKED_TEXT),)), None
    ends = [] if ask.run_duration is None else [granted + ask.run_duration]
    if BOOKING_EXPIRED in ask.conditions:
        return None, min(ends, default=None)
    if now >= granted + script.booking:
        answer = Answer(ask.uid, ((BOOKING_EXPIRED, "True", "BookingExpired", BOOKING_TEXT),))
        return answer, min(ends, default=None)
    return None, min([*ends, granted + script.booking])


def _decide(
    ask: Ask, script: Script, *, free: int | None, since: float, now: float
) -> tuple[Answer | None, float | None]:
    due = max(ask.accepted or now, since) + script.after
    if script.mode != "starve" and now < due:
        return _renew_eta(ask, script, now, due)
    if script.mode == "fail":
        return Answer(ask.uid, ((FAILED, "True", "Failed", script.text),)), None
    if script.mode == "grant" and _fits(ask, free):
        return Answer(ask.uid, ((PROVISIONED, "True", "Provisioned", PROVISIONED_TEXT),)), None
    return _renew_eta(ask, script, now, None)


def _fits(ask: Ask, free: int | None) -> bool:
    return free is None or (ask.gpus is not None and ask.gpus <= free)


def _renew_eta(ask: Ask, script: Script, now: float, due: float | None) -> tuple[Answer | None, float | None]:
    told = ask.eta if ask.eta is not None else now
    wake = [] if due is None else [due]
    if now < told:
        return None, min([*wake, told])
    # At least a second ahead, or a script with eta 0 would be answered without a pause.
    eta = now + max(script.eta, 1.0)
    return Answer(ask.uid, (_waiting(eta),), eta), min([*wake, eta])


def _waiting(eta: float) -> tuple[str, str, str, str]:
    return PROVISIONED, "False", "NotProvisioned", f"Provisioning Request wasn't provisioned. ETA: {_stamp(eta)}"


def _stamp(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
