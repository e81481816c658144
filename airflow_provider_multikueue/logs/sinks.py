"""Where a task's records, and the lines of its containers, go."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from airflow_provider_multikueue.logs.text import LATE_SPAN, Block, pieces
from airflow_provider_multikueue.tally import tally

if TYPE_CHECKING:
    from airflow_provider_multikueue.logs.lines import Mark

__all__ = [
    "SETTLED_SECONDS",
    "DirectSink",
    "Headings",
    "LineSink",
    "Positions",
    "Sink",
    "count_lines",
    "is_late",
    "line_sink",
]

LATE: Final = 3.0
"""Seconds after which it is said when lines were written, because the record's own time no longer tells."""
SETTLED_SECONDS: Final = 5.0
"""After so long a record that was written is taken to be in the task's log, and no longer on its way to it."""


class Sink(Protocol):
    """Where a task's log records go."""

    def record(self, level: int, text: str) -> None:
        """Log ``text`` as one record; a percent sign in it is no placeholder."""


@runtime_checkable
class LineSink(Sink, Protocol):
    """A sink that also takes lines of streams, and knows how far each stream has come out."""

    def lines(self, source: str, block: Block) -> None:
        """Log lines of the stream ``source``, joined with others into records as it fits."""

    def position(self, source: str) -> Mark | None:
        """Return up to where lines of ``source`` are out; None: not one of them is."""

    def settled(self, source: str) -> Mark | None:
        """Return up to where they are in the task log even if this process, or the one that it logs to, is killed."""

    @property
    def lost(self) -> bool:
        """Whether nothing that is written reaches the task log any more, nor what was written just before."""

    def discard(self) -> None:
        """Drop the lines of streams that are not out yet, since another reader will begin at `position`."""

    async def settle(self, seconds: float) -> bool:
        """Wait until all is out, at most that long; return whether it is."""

    async def flush(self, seconds: float) -> bool:
        """Wait until all is out; False when some had to be left out."""


def line_sink(sink: Sink) -> LineSink:
    """Return a sink for lines: ``sink`` itself if it is one, else one that gives all to it at once."""
    return sink if isinstance(sink, LineSink) else DirectSink(sink)


class DirectSink:
    """Writes at once, without a limit: for a process that has a task's log to itself."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._positions: dict[str, Mark] = {}
        self._headings = Headings()

    def record(self, level: int, text: str) -> None:
        """Log one record."""
        self._sink.record(level, text)

    def lines(self, source: str, block: Block) -> None:
        """Log the block as one record."""
        count_lines(block)
        text = self._headings.head(block.text, block.time)
        for piece in pieces(text):
            self._sink.record(max(block.level, logging.INFO), piece)
        self._positions[source] = block.mark

    def position(self, source: str) -> Mark | None:
        """Return where the stream stands."""
        return self._positions.get(source)

    def settled(self, source: str) -> Mark | None:
        """Return the same: who has a log to itself has no successor."""
        return self._positions.get(source)

    @property
    def lost(self) -> bool:
        """Return False: a log that can't be written fails the task."""
        return False

    def discard(self) -> None:
        """Do nothing: all is out."""

    async def settle(self, seconds: float) -> bool:
        """Return True: all is out."""
        return True

    async def flush(self, seconds: float) -> bool:
        """Return True: all is out."""
        return True


def count_lines(block: Block) -> None:
    """Count the lines of a block on its way into a task's log."""
    tally.add("multikueue.log_lines", block.lines)


class Positions:
    """Up to where each stream is out: now, and as it was `SETTLED_SECONDS` ago."""

    __slots__ = ("_clock", "_now", "_recent", "_settled")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: dict[str, Mark] = {}
        self._settled: dict[str, Mark] = {}
        self._recent: deque[tuple[float, str, Mark]] | None = None  # an empty one is large, and most tasks are quiet

    def put(self, marks: Mapping[str, Mark]) -> None:
        """Learn up to where some of them are out now."""
        if not marks:
            return
        self._now.update(marks)
        self._settle()
        now = self._clock()
        if self._recent is None:
            self._recent = deque()
        self._recent.extend((now, source, mark) for source, mark in marks.items())

    def get(self, source: str) -> Mark | None:
        """Return where the stream stands now."""
        return self._now.get(source)

    def settled(self, source: str) -> Mark | None:
        """Return where it stood some seconds ago."""
        self._settle()
        return self._settled.get(source)

    def _settle(self) -> None:
        until = self._clock() - SETTLED_SECONDS
        while self._recent and self._recent[0][0] <= until:
            _, source, mark = self._recent.popleft()
            self._settled[source] = mark
        self._recent = self._recent or None


class Headings:
    """Tells of lines that come late when they were written: once for each minute of theirs."""

    def __init__(self) -> None:
        self._minute = ""

    def head(self, text: str, written: str) -> str:
        """Return the text, under a line with its time if that was a while ago and is not the last heading's minute."""
        minute = written[:LATE_SPAN]
        if minute == self._minute or not is_late(written):
            return text
        self._minute = minute
        return f"── written {written[:10]} {written[11:19]} UTC ──\n{text}"


def is_late(written: str) -> bool:
    """Return whether that time is so long ago that a record's own time would mislead."""
    return bool(written) and time.time() - datetime.fromisoformat(f"{written[:19]}+00:00").timestamp() > LATE
