"""The report: what a task returns, the same keys from every path, in plain JSON types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict, cast

from airflow_provider_multikueue.decisions.conditions import parse_time, text_at
from airflow_provider_multikueue.decisions.workload import Observation, Phase
from airflow_provider_multikueue.exceptions import ManifestError

__all__ = [
    "Dispatch",
    "Dispatches",
    "JobPart",
    "Placement",
    "Report",
    "Times",
    "build_report",
    "job_part",
    "parse_job_reference",
    "placement_part",
    "validate_report",
]


class JobPart(TypedDict):
    """Which object the job is."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str | None


class Placement(TypedDict):
    """Where the job runs or ran. ``flavors`` is by pod set and resource."""

    cluster: str
    region: str | None
    zones: list[str]
    nodes: list[str]
    flavors: dict[str, dict[str, str]]


class Times(TypedDict):
    """ISO 8601 UTC, or None."""

    submitted: str | None
    quota_reserved: str | None
    admitted: str | None
    started: str | None
    finished: str | None


class Dispatch(TypedDict):
    """One stay on one worker."""

    cluster: str
    region: str | None
    admitted: str | None
    ended: str | None
    reason: str | None


class Report(TypedDict):
    """What a task returns."""

    job: JobPart
    queue: str | None
    cluster_queue: str | None
    priority_class: str | None
    phase: str
    placement: Placement | None
    times: Times
    waited_seconds: float | None
    ran_seconds: float | None
    dispatches: list[Dispatch]
    result: Any


# -- dispatches


@dataclass(frozen=True, slots=True)
class Dispatches:
    """The stays of a job on workers, oldest first: a fold over observations that can be stored and resumed."""

    items: tuple[Dispatch, ...] = ()

    def update(self, observation: Observation) -> Dispatches:
        """Return the dispatches after ``observation``; the same object if nothing changed."""
        items = _fold(self.items, observation)
        return self if items == self.items else Dispatches(items)

    @property
    def open(self) -> Dispatch | None:
        """The stay that has not ended."""
        return self.items[-1] if self.items and self.items[-1]["ended"] is None else None

    def to_json(self) -> str:
        """Return the text of the dispatches annotation."""
        return json.dumps(list(self.items), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: object) -> Dispatches:
        """Return the dispatches in ``text``; none if it cannot be read."""
        try:
            found = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            return cls()
        if not isinstance(found, list) or not all(_is_dispatch(item) for item in found):
            return cls()
        return cls(tuple(cast("Dispatch", {key: item[key] for key in Dispatch.__annotations__}) for item in found))


def _is_dispatch(item: object) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("cluster"), str):
        return False
    return all(key in item and isinstance(item[key], (str, type(None))) for key in Dispatch.__annotations__)


def _fold(items: tuple[Dispatch, ...], seen: Observation) -> tuple[Dispatch, ...]:
    last = items[-1] if items and items[-1]["ended"] is None else None
    here = seen.cluster is not None and (seen.phase.placed or seen.phase.ended)
    if last is not None and here and _same_stay(last, seen):
        return (*items[:-1], _refreshed(last, seen))
    if last is not None and (here or not seen.phase.placed):
        items = (*items[:-1], _closed(last, seen))
    if not here or (seen.phase.ended and any(item["cluster"] == seen.cluster for item in items)):
        return items  # an end on a worker that the manager had left
    begun = _refreshed(_begun(seen), seen)
    return (*items, begun)


def _same_stay(item: Dispatch, seen: Observation) -> bool:
    if item["cluster"] != seen.cluster:
        return False
    return item["admitted"] is None or seen.admitted is None or item["admitted"] == _iso(seen.admitted)


def _begun(seen: Observation) -> Dispatch:
    return {"cluster": seen.cluster or "", "region": seen.region, "admitted": None, "ended": None, "reason": None}


def _refreshed(item: Dispatch, seen: Observation) -> Dispatch:
    """Return the stay with what is known now; an eviction that the worker tells first is kept as the reason."""
    ended = seen.phase.ended
    return {
        "cluster": item["cluster"],
        "region": item["region"] or seen.region,
        "admitted": item["admitted"] or _iso(seen.admitted),
        "ended": _iso(seen.finished) if ended else None,
        "reason": (seen.ending.reason if ended and seen.ending else seen.evicted_reason) or item["reason"],
    }


def _closed(item: Dispatch, seen: Observation) -> Dispatch:
    """Return the stay as ended: at its eviction, or where that was not seen, before the next step."""
    ended = seen.evicted or seen.finished or seen.admitted or seen.quota_reserved
    reason = seen.evicted_reason or item["reason"] or (seen.ending.reason if seen.ending else None)
    return {**item, "ended": _iso(ended) or item["admitted"], "reason": reason or "placed again"}


# -- the report


def job_part(job: Mapping[str, Any]) -> JobPart:
    """Return which object ``job`` is."""
    return {
        "api_version": text_at(job, "apiVersion") or "batch/v1",
        "kind": text_at(job, "kind") or "Job",
        "namespace": text_at(job, "metadata", "namespace") or "default",
        "name": text_at(job, "metadata", "name"),
        "uid": text_at(job, "metadata", "uid") or None,
    }


def placement_part(
    observation: Observation, *, zones: Sequence[str] = (), nodes: Sequence[str] = ()
) -> Placement | None:
    """Return where the job runs or ran; None before admission."""
    if observation.cluster is None or observation.phase is Phase.EVICTED:
        return None
    return {
        "cluster": observation.cluster,
        "region": observation.region,
        "zones": sorted(set(zones)),
        "nodes": sorted(set(nodes)),
        "flavors": {name: dict(flavors) for name, flavors in observation.flavors.items()},
    }


def build_report(
    observation: Observation,
    *,
    job: JobPart,
    dispatches: Dispatches,
    zones: Sequence[str] = (),
    nodes: Sequence[str] = (),
    result: Any = None,
) -> Report:
    """Return the report of a job as it is now."""
    dispatches = dispatches.update(observation)
    first = parse_time(dispatches.items[0]["admitted"]) if dispatches.items else observation.admitted
    last = parse_time(dispatches.items[-1]["admitted"]) if dispatches.items else None
    return {
        "job": cast("JobPart", dict(job)),
        "queue": observation.queue,
        "cluster_queue": observation.cluster_queue,
        "priority_class": observation.priority_class,
        "phase": observation.phase.value,
        "placement": placement_part(observation, zones=zones, nodes=nodes),
        "times": {
            "submitted": _iso(observation.submitted),
            "quota_reserved": _iso(observation.quota_reserved),
            "admitted": _iso(observation.admitted or last),
            "started": _iso(observation.started),
            "finished": _iso(observation.finished),
        },
        "waited_seconds": _seconds(observation.submitted, first),
        "ran_seconds": _seconds(observation.started, observation.finished),
        "dispatches": [cast("Dispatch", dict(item)) for item in dispatches.items],
        "result": result,
    }


def _iso(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat() if moment else None


def _seconds(first: datetime | None, last: datetime | None) -> float | None:
    return max(round((last - first).total_seconds(), 3), 0.0) if first and last else None


# -- what others hand back to us


def validate_report(value: object) -> Report:
    """Return ``value`` as a report with all its keys; raises ``ValueError`` naming what is wrong."""
    if not isinstance(value, Mapping):
        raise ValueError(f"a report is an object, not {type(value).__name__}")
    for name, keys in (("", Report), ("job", JobPart), ("times", Times)):
        part = value.get(name) if name else value
        missing = [key for key in keys.__annotations__ if not isinstance(part, Mapping) or key not in part]
        if missing:
            raise ValueError(f"the report has no {', '.join(f'{name}.{key}'.lstrip('.') for key in missing)}")
    if value["phase"] not in {phase.value for phase in Phase}:
        raise ValueError(f"the report's phase is {value['phase']!r}, which is none of ours")
    if not isinstance(value["dispatches"], list) or not all(_is_dispatch(item) for item in value["dispatches"]):
        raise ValueError("the report's dispatches are not a list of stays on workers")
    return cast("Report", dict(value))


_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""Names of objects as Kubernetes has them (RFC 1123 subdomains)."""


def parse_job_reference(value: object) -> JobPart:
    """Return which job ``value`` names: a report, its ``job`` part, JSON text of either, or ``namespace/name`` (a Job).

    ``uid`` is None where it is not given. Raises ``ManifestError`` that says what was given and what is wanted.
    """
    found = value
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith("{"):
            return _by_name(text)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise _unusable(value) from None
    part = found.get("job", found) if isinstance(found, Mapping) else None
    if not isinstance(part, Mapping) or not _NAME.fullmatch(text_at(part, "name")):
        raise _unusable(value)
    if not _NAME.fullmatch(text_at(part, "namespace") or "default"):
        raise _unusable(value)
    uid = part.get("uid")
    return {
        "api_version": text_at(part, "api_version") or "batch/v1",
        "kind": text_at(part, "kind") or "Job",
        "namespace": text_at(part, "namespace") or "default",
        "name": text_at(part, "name"),
        "uid": uid if isinstance(uid, str) and uid else None,
    }


def _by_name(text: str) -> JobPart:
    namespace, _, name = text.partition("/")
    if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
        raise _unusable(text)
    return {"api_version": "batch/v1", "kind": "Job", "namespace": namespace, "name": name, "uid": None}


def _unusable(value: object) -> ManifestError:
    return ManifestError(
        f"job: {str(value)[:80]!r} names no job. Give a report (what MultiKueueJobOperator returns), its job part, "
        "JSON text of either, or namespace/name of a Job."
    )
