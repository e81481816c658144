"""When a wait is over although the job is not: the task's own deadlines and limits, decided in one place.

Deadlines are absolute times: a trigger is stored, restarted and moved, and a duration would begin anew each time. The
one span here, ``startup_seconds``, is anchored on the cluster's own time of admission.

The operators import this module with every DAG file, so what only a wait needs is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_multikueue.exceptions import JobDeadlineError, MultiKueueError, RegionUnavailableError

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.workload import Observation

__all__ = ["LOOK", "Orders", "Verdict", "next_deadline", "outside_regions", "verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What one task wants of the job that it waits for; plain values, as they are stored with a trigger."""

    until: str = "finished"
    admission_deadline: str | None = None
    deadline: str | None = None
    startup_seconds: float | None = None
    max_dispatches: int | None = None
    regions: tuple[str, ...] | None = None
    logs: str = "all"
    heal: bool = True
    read_result: bool | Literal["all"] = False
    may_delete: bool = True
    log_uri: str | None = None
    """Where the whole output is stored: an address without a secret."""

    def to_json(self) -> dict[str, Any]:
        """Return the values that differ from their defaults."""
        plain = asdict(self)
        defaults = {field.name: field.default for field in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items() if v != defaults[k]}

    def after_holding(self, held: timedelta) -> Orders:
        """Return the orders for a job that was kept out of its queue so long: that is no waiting for admission."""
        if self.admission_deadline is None or held <= timedelta():
            return self
        later = datetime.fromisoformat(self.admission_deadline) + held
        return replace(self, admission_deadline=later.isoformat())

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Orders:
        """Return the orders that ``to_json`` wrote; names of a later version are ignored."""
        known = {field.name for field in fields(cls)}
        values = {k: v for k, v in plain.items() if k in known}
        if values.get("regions") is not None:
            values["regions"] = tuple(values["regions"])
        return cls(**values)


LOOK: Final = Orders(until="now", logs="none", may_delete=False, heal=False)
"""Look once, and touch nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The wait ends with ``error``; the job is to be deleted first when ``delete`` is set."""

    error: MultiKueueError
    delete: bool


def verdict(
    seen: Observation,
    orders: Orders,
    *,
    dispatches: Sequence[Mapping[str, Any]],
    pods: Collection[Mapping[str, Any]],
    tried: str,
    now: float,
) -> Verdict | None:
    """Return why the wait for a job within its regions must end now, or None; see `outside_regions`.

    ``tried`` says in words what the job last waited for.
    """
    error = (
        _past_deadline(seen, orders, tried, now)
        or _not_admitted(seen, orders, now)
        or _not_started(seen, orders, pods, now)
        or _moved_too_often(seen, orders, dispatches)
    )
    return Verdict(error, orders.may_delete) if error else None


def next_deadline(seen: Observation, orders: Orders) -> float | None:
    """Return the epoch time at which ``verdict`` can next change by the clock alone."""
    times = [_epoch(orders.deadline)]
    if not _was_admitted(seen):
        times.append(_epoch(orders.admission_deadline))
    elif seen.admitted is not None and orders.startup_seconds is not None and _may_not_start(seen):
        times.append(seen.admitted.timestamp() + orders.startup_seconds)
    known = [t for t in times if t is not None]
    return min(known) if known else None


def outside_regions(seen: Observation, orders: Orders, dispatches: Sequence[Mapping[str, Any]]) -> Verdict | None:
    """Return the end of a job that is, or was, on a worker outside its regions, however it ended."""
    if orders.regions is None:
        return None
    places = {str(stay["cluster"]): stay["region"] for stay in dispatches}
    if seen.cluster is not None:
        places[seen.cluster] = seen.region or places.get(seen.cluster)
    bad = [f"{name} ({region or 'region unknown'})" for name, region in places.items() if region not in orders.regions]
    if not bad:
        return None
    error = RegionUnavailableError(
        f"Job {seen.namespace}/{seen.name} was placed on {', '.join(bad)}, but only {', '.join(orders.regions)} may "
        f"run it. The fleet changed after the submission: check the clusters of the queue's MultiKueueConfig."
    )
    return Verdict(error, orders.may_delete)


def _past_deadline(seen: Observation, orders: Orders, tried: str, now: float) -> MultiKueueError | None:
    deadline = _epoch(orders.deadline)
    if deadline is None or now < deadline:
        return None
    return JobDeadlineError(
        f"Job {seen.namespace}/{seen.name} did not end before the task's deadline {orders.deadline}. Last seen: "
        f"{(tried or seen.phase).rstrip('.')}. Raise the task's execution_timeout, or make the job shorter."
    )


def _not_admitted(seen: Observation, orders: Orders, now: float) -> MultiKueueError | None:
    deadline = _epoch(orders.admission_deadline)
    if deadline is None or _was_admitted(seen) or now < deadline:
        return None
    begun = seen.submitted.timestamp() if seen.submitted else now
    from airflow_provider_multikueue.decisions.endings import admission_timed_out

    return admission_timed_out(seen, timedelta(seconds=round(deadline - begun)))


def _was_admitted(seen: Observation) -> bool:
    """Whether the job was admitted once: one that is moved later has come through in time."""
    return seen.was_admitted or seen.admitted is not None or seen.cluster is not None


def _not_started(
    seen: Observation, orders: Orders, pods: Collection[Mapping[str, Any]], now: float
) -> MultiKueueError | None:
    span = orders.startup_seconds
    if span is None or seen.admitted is None or seen.cluster is None or not _may_not_start(seen):
        return None
    from airflow_provider_multikueue.decisions.endings import startup_timed_out

    return startup_timed_out(seen, timedelta(seconds=span), pods) if now >= seen.admitted.timestamp() + span else None


def _may_not_start(seen: Observation) -> bool:
    """Whether no container has run in this dispatch; where its pods are not seen the job may well run."""
    return seen.started is None and seen.phase == "ADMITTED" and seen.pods_seen


def _moved_too_often(
    seen: Observation, orders: Orders, dispatches: Sequence[Mapping[str, Any]]
) -> MultiKueueError | None:
    limit = orders.max_dispatches
    if limit is None:
        return None
    # The last one it may have lasts until the job leaves; one too many is seen when a move was over between two looks.
    if len(dispatches) < limit + (seen.cluster is not None):
        return None
    from airflow_provider_multikueue.decisions.endings import too_many_dispatches

    return too_many_dispatches(seen, dispatches, limit)


def _epoch(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
