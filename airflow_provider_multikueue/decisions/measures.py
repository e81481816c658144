"""Which metrics a submission and an outcome amount to: names, values and tags, for whoever sends them.

A task has one outcome a job, so what is counted from it is counted once, however often a triggerer restarts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.decisions.jobs import HELD, QUEUE_LABEL
from airflow_provider_multikueue.tally import Measure

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.outcome import Outcome

__all__ = ["measures_of_outcome", "measures_of_submission"]

UNKNOWN = "unknown"
NO_ERROR = "none"
_UNSEEN: Mapping[str, Any] = {"queue": None, "phase": None, "ran_seconds": None, "dispatches": ()}
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


def measures_of_submission(job: Mapping[str, Any]) -> list[Measure]:
    """Return the metrics of a job that was created just now."""
    metadata = job.get("metadata") or {}
    held = (metadata.get("annotations") or {}).get(HELD)
    queue = (metadata.get("labels") or {}).get(QUEUE_LABEL) or held
    return [Measure("multikueue.submissions", tags=_tags(namespace=metadata.get("namespace"), queue=queue))]


def measures_of_outcome(outcome: Outcome, job: Mapping[str, Any] | None) -> list[Measure]:
    """Return the metrics of how a task's wait for its own ``job`` (a report's ``job`` part) ended."""
    report = outcome.report or _UNSEEN
    queue = {"namespace": job["namespace"] if job else None, "queue": report["queue"]}
    found = list(_placements(report, queue))
    if not outcome.ended and outcome.error is None:
        return found  # the job goes on, and its task does not wait for its end
    stays = report["dispatches"]
    last = _tags(**queue, region=stays[-1]["region"] if stays else None)
    if report["ran_seconds"] is not None:
        found.append(Measure("multikueue.run_duration", report["ran_seconds"], last, unit="seconds"))
    error = type(outcome.error).__name__ if outcome.error is not None else NO_ERROR
    return [*found, Measure("multikueue.outcomes", tags=last | _tags(phase=report["phase"], error=error))]


def _placements(report: Mapping[str, Any], queue: Mapping[str, str | None]) -> Iterator[Measure]:
    stays = report["dispatches"]
    if stays:
        first = _tags(**queue, region=stays[0]["region"])
        yield Measure("multikueue.admissions", tags=first)
        if report["waited_seconds"] is not None:
            yield Measure("multikueue.admission_wait", report["waited_seconds"], first, unit="seconds")
    for number, stay in enumerate(stays, 1):
        where = _tags(**queue, region=stay["region"])
        yield Measure("multikueue.dispatches", tags=where)
        if stay["ended"] and (number < len(stays) or report["phase"] not in ("SUCCEEDED", "FAILED")):
            yield Measure("multikueue.evictions", tags=where | _tags(reason=stay["reason"]))


def _tags(**values: str | None) -> dict[str, str]:
    """Return the tags in letters that every kind of metrics server takes."""
    return {name: _UNFIT.sub("_", value) if value else UNKNOWN for name, value in values.items()}
