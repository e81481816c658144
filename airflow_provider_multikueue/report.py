"""The report: what a task returns, the same keys from every path, in plain JSON types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from airflow_provider_multikueue.workload import Observation

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


@dataclass(frozen=True, slots=True)
class Dispatches:
    """The stays of a job on workers, oldest first: a fold over observations that can be stored and resumed."""

    items: tuple[Dispatch, ...] = ()

    def update(self, observation: Observation) -> Dispatches:
        """Return the dispatches after ``observation``; the same object if nothing changed."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the text of the dispatches annotation."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str | None) -> Dispatches:
        """Return the dispatches in ``text``; none if it cannot be read."""
        raise NotImplementedError


def job_part(job: Mapping[str, Any]) -> JobPart:
    """Return which object ``job`` is."""
    raise NotImplementedError


def placement_part(
    observation: Observation, *, zones: Sequence[str] = (), nodes: Sequence[str] = ()
) -> Placement | None:
    """Return where the job runs or ran; None before admission."""
    raise NotImplementedError


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
    raise NotImplementedError


def validate_report(value: object) -> Report:
    """Return ``value`` as a report with all its keys; raises ``ValueError`` naming what is wrong."""
    raise NotImplementedError


def parse_job_reference(value: object) -> JobPart:
    """Return which job ``value`` names: a report, its ``job`` part, JSON text of either, or ``namespace/name`` (a Job; uid None).

    Raises ``ManifestError`` that says what was given and what is wanted.
    """
    raise NotImplementedError
