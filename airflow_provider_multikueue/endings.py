"""How a job ended, from the last known statuses of its pods, as the error to raise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_provider_multikueue.exceptions import AdmissionTimeoutError, MultiKueueError, StartupError
from airflow_provider_multikueue.workload import Observation

__all__ = [
    "ContainerEnd",
    "admission_timed_out",
    "container_ends",
    "error_for",
    "startup_problem",
    "startup_timed_out",
    "too_many_dispatches",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnd:
    """How one container of one pod ended."""

    pod: str
    container: str
    exit_code: int | None
    reason: str
    message: str = ""
    finished: str = ""


def container_ends(pods: Iterable[Mapping[str, Any]]) -> tuple[ContainerEnd, ...]:
    """Return the containers that ended, the failed ones first, the earliest first among them."""
    raise NotImplementedError


def startup_problem(pods: Iterable[Mapping[str, Any]]) -> str | None:
    """Say why a pod cannot start (image, configuration, scheduling); None if none has such a problem."""
    raise NotImplementedError


def error_for(
    observation: Observation, pods: Collection[Mapping[str, Any]] = (), tail: Sequence[str] = ()
) -> MultiKueueError | None:
    """Return the error for an ended job; None while it has not ended or when it succeeded. ``tail`` is the last lines of its log."""
    raise NotImplementedError


def admission_timed_out(observation: Observation, after: timedelta) -> AdmissionTimeoutError:
    """Return the error for a job that no region admitted within ``after``: what was tried, and what each region said."""
    raise NotImplementedError


def startup_timed_out(
    observation: Observation, after: timedelta, pods: Collection[Mapping[str, Any]] = ()
) -> StartupError:
    """Return the error for an admitted job none of whose containers ran within ``after``."""
    raise NotImplementedError


def too_many_dispatches(observation: Observation, dispatches: Sequence[Mapping[str, Any]], limit: int) -> MultiKueueError:
    """Return the error for a job that was moved more often than ``max_dispatches`` allows."""
    raise NotImplementedError
