"""Kueue's conditions, on the manager and on the workers, into what we know of a job."""

from __future__ import annotations

from airflow_provider_multikueue.views import (
    CopyMemory,
    DeadRegion,
    Ending,
    EndingKind,
    Memory,
    Observation,
    Phase,
    RegionCheck,
    Stage,
    View,
    WorkerView,
)

__all__ = [
    "CopyMemory",
    "DeadRegion",
    "Ending",
    "EndingKind",
    "Memory",
    "Observation",
    "Phase",
    "RegionCheck",
    "Stage",
    "View",
    "WorkerView",
    "observe",
    "remember",
]


def remember(memory: Memory, view: View) -> Memory:
    """Return ``memory`` with what ``view`` shows: call it before ``observe`` at each view, and put the result in ``View.memory``."""
    raise NotImplementedError


def observe(view: View) -> Observation:
    """Return what ``view`` means. Total: never raises, whatever the objects hold."""
    raise NotImplementedError
