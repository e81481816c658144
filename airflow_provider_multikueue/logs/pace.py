"""How fast records may be written: as fast as the pipe is known to carry, and slower where writes have to wait.

A triggerer's supervisor reads 4 KiB of its triggers' records between two rounds of queries to its database, so how much
it takes depends on a database that we know nothing of. When it is behind, each record blocks the event loop until there
is room. That is noticed here, and answered as TCP answers a full queue: nothing for a moment, then half as much, then
slowly more again.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["Pace"]

BURST: Final = 0.25
"""Seconds' worth of the budget that may be spent at once."""
WAITED: Final = 0.004
"""Seconds; a write that had to wait for longer found the pipe full."""
REST: Final = 0.25
"""Seconds without any writes after that, in which the pipe empties."""
LESS: Final = 0.5
LEAST: Final = 0.25
"""The share of the budget that is always used."""
MORE: Final = 0.05
"""What is added to the share each second."""

_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # Linux knows it of each thread


class Pace:
    """A budget of records and bytes a second, which `share` of is used; times are those of ``time.monotonic``."""

    __slots__ = ("_filled", "_left", "_rates", "share")

    def __init__(self, records_per_second: float, bytes_per_second: float, *, now: float) -> None:
        self.share = 1.0
        self._rates = (records_per_second, bytes_per_second)
        self._left = [records_per_second * BURST, bytes_per_second * BURST]
        self._filled = now

    @property
    def room(self) -> float:
        """How many bytes may be written now; at 0 or below no record may be."""
        return self._left[1] if self._left[0] > 0 else 0.0

    def refill(self, now: float) -> None:
        """Let what has become free since the last time be used."""
        passed, self._filled = now - self._filled, now
        self.share = min(self.share + MORE * passed, 1.0)
        for index, rate in enumerate(self._rates):
            self._left[index] = min(self._left[index] + self.share * rate * passed, self.share * rate * BURST)

    def spend(self, size: int) -> None:
        """Take note of a record that was written."""
        self._left[0] -= 1
        self._left[1] -= size

    def waited(self, seconds: float) -> None:
        """Take note of how long a write had to wait."""
        if seconds > WAITED and self.room > 0:
            self.share = max(self.share * LESS, LEAST)
            self._left = [-self.share * rate * REST for rate in self._rates]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Notice whether what is written inside of this waits, other than for a processor."""
        switches, begun = _switches(), time.monotonic() - time.thread_time()
        try:
            yield
        finally:
            seconds = time.monotonic() - time.thread_time() - begun
            if seconds > WAITED and _switches() > switches:
                self.waited(seconds)


def _switches() -> int:
    """Return how often this thread has given up its processor by itself."""
    return resource.getrusage(_WHOSE).ru_nvcsw
