"""News for metrics, and counts of what happens often: by modules that know no Airflow, for the one that reports them.

The counts are the process's own. Nothing is sent when something is counted, so thousands of waiting tasks cost a
dictionary's update each time; what nobody takes is a handful of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Measure", "Tally", "tally"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric's news: a count to add, or a time that was measured in seconds."""

    name: str
    value: float = 1
    tags: Mapping[str, str] = field(default_factory=dict)
    unit: Literal["count", "seconds"] = "count"


class Tally:
    """Counts by name and tags.

    There is no lock: what counts runs in one event loop, but for short-lived threads of the hook, and a count that two
    threads add to in the same instant may miss one.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}

    def add(self, name: str, amount: int = 1, **tags: str) -> None:
        """Count ``amount`` more."""
        if amount:
            key = (name, tuple(sorted(tags.items())))
            self._counts[key] = self._counts.get(key, 0) + amount

    def take(self) -> list[Measure]:
        """Return what was counted since the last time."""
        taken, self._counts = self._counts, {}
        return [Measure(name, amount, dict(tags)) for (name, tags), amount in taken.items()]


tally = Tally()
"""The one of this process."""
