"""Sentences for the task's log: one line a change, for a reader who pays for the GPUs."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_multikueue.workload import Observation

__all__ = ["describe_waiting", "narrate"]

RegionOf = Callable[[str], str | None]


def narrate(
    previous: Observation | None, current: Observation, *, region_of: RegionOf | None = None
) -> list[tuple[int, str]]:
    """Return the lines (``logging`` level, text) that tell what changed from ``previous`` to ``current``; empty if nothing did."""
    raise NotImplementedError


def describe_waiting(observation: Observation, *, now: float | None = None, region_of: RegionOf | None = None) -> str:
    """Return one line for a slow heartbeat: what the job waits for, for how long, and what each region says."""
    raise NotImplementedError
