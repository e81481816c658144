"""How to read Kubernetes objects that may hold anything: conditions, times, texts. Nothing here raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from airflow_provider_multikueue.decisions.kinds import get_at

__all__ = [
    "COPY_GONE",
    "WORKER_LOST",
    "condition",
    "eviction_cause",
    "is_false",
    "is_true",
    "items_at",
    "parse_time",
    "refusal_of",
    "text_at",
    "time_at",
    "told",
    "transition",
]


def items_at(node: Any, *path: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at ``path``; none for anything else."""
    value = get_at(node, path)
    return [item for item in value if isinstance(item, (dict, Mapping))] if isinstance(value, (list, tuple)) else []


def text_at(node: Any, *path: str) -> str:
    """Return the text at ``path``, or empty text."""
    value = get_at(node, path)
    return value if isinstance(value, str) else ""


def time_at(node: Any, *path: str) -> datetime | None:
    """Return the time at ``path``, or None."""
    return parse_time(get_at(node, path))


def condition(node: Any, name: str) -> Mapping[str, Any] | None:
    """Return the condition of type ``name``; None if the object has none, which means that it is pending."""
    return next((item for item in items_at(node, "status", "conditions") if item.get("type") == name), None)


def is_true(node: Any, name: str) -> bool:
    """Whether the condition is there and its status is the text ``True``."""
    return text_at(condition(node, name), "status") == "True"


def is_false(node: Any, name: str) -> bool:
    """Whether the condition is there and its status is the text ``False``."""
    return text_at(condition(node, name), "status") == "False"


def transition(node: Any, name: str) -> datetime | None:
    """Return when the condition last changed."""
    return time_at(condition(node, name), "lastTransitionTime")


def told(node: Any, name: str) -> str:
    """Return what a condition says to people: its message, else its reason."""
    found = condition(node, name)
    return text_at(found, "message").strip() or text_at(found, "reason")


def refusal_of(node: Any) -> str:
    """Return what a check of a Workload said when it refused; empty if none does, or does no more."""
    for check in items_at(node, "status", "admissionChecks"):
        message = text_at(check, "message").removeprefix("Retrying after failure: ")
        if text_at(check, "state") in ("Retry", "Rejected") and message:
            return message
    return ""


def eviction_cause(node: Any) -> str:
    """Return why an object was evicted, for people: the check's own words, where Kueue's sentence quotes them.

    Empty where Kueue gives no cause, as before 0.18.
    """
    text = told(node, "Evicted")
    if text.startswith("At least one admission check is false"):
        return ""
    for theirs, ours in _PLAINLY.items():
        if theirs in text:
            return ours
    text = text.partition("; preemptor path: ")[0]
    quoted = re.search(r'AdmissionCheck in \w+ state: "[^"]*" \((.+)\)$', text, re.DOTALL)
    return quoted[1].removeprefix("Retrying after failure: ") if quoted else text


COPY_GONE: Final = "the job's copy on the worker is gone"
WORKER_LOST: Final = "the worker was lost: the manager has not reached it for longer than it waits"

_PLAINLY: Final = {"remote no longer exists": COPY_GONE, "remote lost": WORKER_LOST}
"""What Kueue calls the things that can happen to a worker's copy, and what a reader would."""


def parse_time(value: object) -> datetime | None:
    """Return an RFC 3339 time as an aware UTC time; nanoseconds are cut to microseconds. None for anything else."""
    return _parsed(value) if isinstance(value, str) else None


@lru_cache(maxsize=4096)
def _parsed(value: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
