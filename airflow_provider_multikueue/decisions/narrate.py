"""Sentences for the task's log: one line a change, for a reader who pays for the GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from airflow_provider_multikueue.decisions.verdicts import NEVER_SEEN
from airflow_provider_multikueue.decisions.workload import Observation, Phase, RegionCheck, Stage

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.workload import DeadRegion, Ending

__all__ = ["describe_waiting", "duration", "narrate", "next_heartbeat"]

QUIET_WAITING: Final = 600.0
QUIET_RUNNING: Final = 3600.0
"""Seconds without a line of ours; the pods of a job that runs mostly have something to say themselves."""

Line = tuple[int, str]

_SAYS = {
    Stage.SILENT: "asked, no answer yet",
    Stage.UNREADABLE: "asked; what it answers cannot be read with this connection",
    Stage.UNREACHABLE: "cannot be reached",
    Stage.UNANSWERED: "asked; its Kueue has not looked at the job yet",
    Stage.INADMISSIBLE: "cannot take the job",
    Stage.QUOTA: "waits for quota there",
    Stage.ASKED: "asked for capacity",
    Stage.ACCEPTED: "request accepted, waits for capacity",
    Stage.GRANTED: "capacity granted",
    Stage.FAILED: "capacity refused",
    Stage.REJECTED: "capacity rejected",
    Stage.EVICTED: "called off by the manager",
}
# A failed request makes its region dead within a tenth of a second, and that is told.
_QUIET = (Stage.SILENT, Stage.UNANSWERED, Stage.ASKED, Stage.EVICTED, Stage.UNREADABLE, Stage.FAILED)
_BAD = (Stage.INADMISSIBLE, Stage.REJECTED, Stage.UNREACHABLE)


def narrate(previous: Observation | None, current: Observation) -> list[Line]:
    """Return the lines (``logging`` level, text) that tell what changed from ``previous`` to ``current``.

    Empty if nothing changed that a reader needs.
    """
    before = previous or Observation(phase=Phase.SUBMITTED)
    if current.ending is not None:
        if before.ending == current.ending:
            return []
        failures = _failures(before, current) if current.ending.kind == "succeeded" else ()
        return [*_moves(before, current), *failures, *_end(current)]
    return [
        *_moves(before, current),
        *_progress(before, current),
        *_regions(before, current),
        *_waits(before, current),
        *_troubles(before, current),
    ]


def describe_waiting(observation: Observation, *, now: float | None = None) -> str:
    """Return one line for a slow heartbeat: what the job waits for, for how long, and what each region says."""
    waited = ""
    if now is not None and observation.joined is not None:
        waited = f" for {duration(now - observation.joined.timestamp())}"
    if observation.phase is Phase.RUNNING:
        pods = f"{_pods(observation)}{_since(now, observation.started)}"
        problem = f", {problem}" if (problem := observation.waiting.partition(", ")[2]) else ""
        return f"Still running in {observation.place}{pods}{problem.rstrip('.')}."
    text = f"Waiting{waited}: {observation.waiting or observation.phase.value.lower()}"
    said = [_said(check) for check in observation.checks]
    return text + (f". {'; '.join(said)}" if said and observation.hopeless_since is None else "") + "."


def next_heartbeat(observation: Observation, told: float) -> float:
    """Return the epoch time at which a reader wants to hear that nothing has changed, last ``told`` something then."""
    return told + (QUIET_RUNNING if observation.phase is Phase.RUNNING else QUIET_WAITING)


def duration(seconds: float) -> str:
    """Return a length of time for a reader: ``4.4 s``, ``12 min 5 s``, ``3 h 20 min``, ``3 d 3 h``."""
    seconds = max(round(seconds, 1), 0.0)
    if seconds < 60:
        return f"{seconds:g} s"
    whole = round(seconds)
    if whole < 3600:
        return _two_units(whole, 60, "min", 1, "s")
    if whole < 86400:
        return _two_units(whole, 3600, "h", 60, "min")
    return _two_units(whole, 86400, "d", 3600, "h")


def _two_units(whole: int, large: int, name: str, small: int, below: str) -> str:
    first, rest = divmod(whole, large)
    return f"{first} {name} {rest // small} {below}" if rest // small else f"{first} {name}"


def _stop(text: str) -> str:
    return f"{text.rstrip('.')}."


def _since(now: float | None, moment: datetime | None) -> str:
    return f", {duration(now - moment.timestamp())} so far" if now is not None and moment else ""


def _between(first: datetime | None, last: datetime | None) -> str:
    return f" after {duration((last - first).total_seconds())}" if first and last and last >= first else ""


def _pods(seen: Observation) -> str:
    return f": {seen.pods_running} pod{'s' if seen.pods_running != 1 else ''}" if seen.pods_running else ""


def _moves(before: Observation, current: Observation) -> Iterator[Line]:
    """Tell that the job left its worker, and that it came to another one."""
    if current.phase is Phase.EVICTED and before.phase is not Phase.EVICTED:
        left = f" from {before.place}" if before.cluster else ""
        then = (
            "It goes on only if someone activates it again." if current.inactive else "It will start again from zero."
        )
        yield logging.WARNING, f"Evicted{left}: {_stop(current.evicted_reason or 'no reason given')} {then}"
    elif _arrived(before, current) and (current.came_from or before.cluster):
        came_from = current.came_from or before.place
        why = _stop(current.moved_because or before.evicted_reason or "the manager placed it again")
        how = f"Back in {current.place}" if came_from == current.place else f"Moved from {came_from} to {current.place}"
        yield logging.WARNING, f"{how}: {why}"


def _arrived(before: Observation, current: Observation) -> bool:
    """Whether the job came to a worker: from the queue, or from another stay."""
    if not current.phase.placed or current.cluster is None:
        return False
    same = (before.cluster, before.admitted) == (current.cluster, current.admitted)
    return not (before.phase.placed and (same or (before.cluster == current.cluster and before.admitted is None)))


def _progress(before: Observation, current: Observation) -> Iterator[Line]:
    """Tell each step on the way: quota, regions asked, admitted, running."""
    reserved_now = current.phase is Phase.PLACING and before.phase in (Phase.SUBMITTED, Phase.QUEUED, Phase.EVICTED)
    if reserved_now:
        queue = f" in {current.queue}" if current.queue else ""
        after = " again" if current.came_from else _between(current.joined, current.quota_reserved)
        yield logging.INFO, f"Quota reserved{queue}{after}."
    if current.phase is Phase.PLACING and _asked_anew(before, current):
        names = ", ".join(check.where for check in current.checks)
        yield logging.INFO, f"Asking {len(current.asked)} region{'s' if len(current.asked) != 1 else ''}: {names}."
    if _arrived(before, current):
        yield logging.INFO, f"Admitted in {current.place}{_between(current.joined, current.admitted)}."
        if current.region is None:
            yield logging.WARNING, _unlisted(current.cluster)
    if current.phase is Phase.RUNNING and before.phase is not Phase.RUNNING:
        yield logging.INFO, f"Running in {current.where}{_pods(current)}."
    if current.phase is Phase.RUNNING:
        yield from _failures(before, current)


def _failures(before: Observation, current: Observation) -> Iterator[Line]:
    """Tell of pods that failed while the job goes on."""
    for failed in current.failures:
        if failed not in before.failures:
            yield logging.WARNING, f"A pod failed in {current.where}, and the job goes on: {failed}."


def _asked_anew(before: Observation, current: Observation) -> bool:
    """Whether regions are asked that were not before; that some are called off at the choice is no news."""
    known = before.asked if before.phase is Phase.PLACING else ()
    return not set(current.asked) <= set(known)


def _unlisted(cluster: str | None) -> str:
    return (
        f"{cluster} has no region in the connection, so its region is unknown; if it is not listed there at all, its "
        f'logs cannot be read. Add it under "workers" in the connection\'s extra.'
    )


def _regions(before: Observation, current: Observation) -> Iterator[Line]:
    """Tell what a region says when that has changed, and which will not answer any more.

    During an eviction the manager asks once in vain, and calls that off: no news for a reader.
    """
    if current.phase is not Phase.PLACING:
        return
    known = {check.cluster: check for check in before.checks}
    dead = {region.cluster: region for region in current.dead}
    buried = {region.cluster: region.reason for region in before.dead}
    for check in current.checks:
        region = dead.get(check.cluster)
        if region is not None:
            if buried.get(check.cluster) != region.reason:
                yield logging.WARNING, _dead(region, check.stage)
        elif _changed(known.get(check.cluster), check):
            yield (logging.WARNING if check.stage in _BAD else logging.INFO), f"{_said(check)}."


def _changed(before: RegionCheck | None, check: RegionCheck) -> bool:
    if (
        before is not None
        and before.stage is check.stage
        and (before.text == check.text or check.stage is Stage.GRANTED)
    ):
        return False
    return check.stage not in _QUIET


def _said(check: RegionCheck) -> str:
    return f"{check.where}: {_SAYS[check.stage]}" + (f" ({check.text.rstrip('.')})" if check.text else "")


def _dead(region: DeadRegion, stage: Stage) -> str:
    if region.final:
        return f"{region.where} was chosen and cannot run the job: {region.reason}."
    if stage is Stage.INADMISSIBLE:
        return f"{region.where} {_SAYS[stage]}: {region.reason}."
    then = ""
    if region.curable:
        then = " It does not ask again by itself."
        if not region.healable:
            then += " Deleting the job's Workload there would make it: heal=True, with the right to do so, does that."
    return f"{region.where} will not grant capacity any more: {region.reason}.{then}"


def _waits(before: Observation, current: Observation) -> Iterator[Line]:
    """Tell why it waits, where no other line says it already."""
    if not current.waiting or _gist(current) == _gist(before):
        return
    plain = {
        Phase.EVICTED: before.phase is not Phase.EVICTED,
        Phase.ADMITTED: current.waiting.endswith("waiting for its first container"),
        Phase.PLACING: current.hopeless_since is None and current.waiting.startswith("it has quota; "),
    }
    if plain.get(current.phase):
        return
    level = logging.WARNING if _worrying(current) else logging.INFO
    yield level, f"{current.waiting[0].upper()}{current.waiting[1:]}."


def _gist(seen: Observation) -> str:
    """Return why it waits without the details of a start, which change with each attempt to pull an image."""
    return seen.waiting.partition(", ")[2].partition(" (")[0] if seen.phase.placed else seen.waiting


def _worrying(current: Observation) -> bool:
    words = ("cannot", "no longer", "no region", "deleted", "for more than", "fits on no node")
    return any(word in current.waiting for word in words)


def _troubles(before: Observation, current: Observation) -> Iterator[Line]:
    for place in sorted(set(current.elsewhere) - set(before.elsewhere)):
        yield (
            logging.WARNING,
            f"It runs in {place} too: a copy that the manager had given up. The one that finishes first counts.",
        )
    if current.trouble and (not before.trouble or before.trouble_of != current.trouble_of):
        yield logging.WARNING, f"{current.trouble[0].upper()}{current.trouble[1:]}."
    elif before.trouble and not current.trouble and before.trouble_of in ("", current.cluster):
        # else it has left the worker in question, which may still be away
        yield logging.INFO, "It can be reached again."


def _end(current: Observation) -> Iterator[Line]:
    """Tell how it ended, and whose word that is when it is not the manager's."""
    ending = current.ending
    if ending is None:
        return
    where = f" in {current.place}" if current.cluster else ""
    if ending.kind == "succeeded":
        yield logging.INFO, f"Succeeded{_between(current.started, current.finished)}{where}."
    elif ending.reason == NEVER_SEEN:
        yield logging.ERROR, _stop(f"{ending.message[0].upper()}{ending.message[1:]}")
    else:
        after = _between(current.started, current.finished)
        yield logging.ERROR, f"{_ENDS[ending.kind]}{after}{where}{_because(ending)}."
    if ending.source != "manager":
        yield (
            logging.WARNING,
            f"The manager has not followed its worker's end; believing {ending.source.removeprefix('worker:')}.",
        )


_ENDS = {
    "failed": "Failed",
    "deadline": "Stopped at its deadline",
    "run_duration": "Its run time is used up",
    "rejected": "Rejected",
    "inadmissible": "Cannot be admitted",
    "deactivated": "Deactivated",
    "deleted": "Deleted by someone else",
    "workload_deleted": "Its Workload was deleted by someone else",
    "not_dispatched": "Not dispatched to any worker",
}


def _because(ending: Ending) -> str:
    if ending.kind in ("deleted", "workload_deleted"):
        return ""
    known = f"{_ENDS[ending.kind]} {ending.message}".lower()
    words = [ending.reason] if ending.reason.lower() not in known else []
    return ": " + ": ".join([*words, *([ending.message.rstrip(".")] if ending.message else [])] or [ending.reason])
