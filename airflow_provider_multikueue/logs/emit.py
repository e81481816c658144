"""Lines and records on their way into task logs.

A triggerer's log is a narrow pipe: each record is a blocking write in its event loop, to one supervisor that serves all
triggers. Above some 500 records or half a megabyte a second everything in the process suffers; with a slow database
sooner, since the supervisor reads 4 KiB between two rounds of queries. So all tasks of an event loop share one
`Emitter`: what they have to say waits in a spool of each task, lines that wait together become one record, the tasks
take turns, and nothing is written that would have to wait for the supervisor. A process that has a task's log to itself
needs none of this and uses a `DirectSink`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import re
import select
import stat
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_multikueue._compat import log_output
from airflow_provider_multikueue.bell import Bell
from airflow_provider_multikueue.logs.sinks import (
    DirectSink,
    Headings,
    LineSink,
    Positions,
    Sink,
    count_lines,
    is_late,
    line_sink,
)
from airflow_provider_multikueue.logs.spool import Entry, Quota, Spool, Thinned, make_entry
from airflow_provider_multikueue.logs.text import LATE_SPAN, RECORD_BYTES, Block, pieces

if TYPE_CHECKING:
    from airflow_provider_multikueue.logs.lines import Mark

__all__ = ["DirectSink", "Emitter", "LineSink", "Sink", "TaskSink", "line_sink", "log_pipe", "shared_emitter"]

RECORDS_PER_SECOND: Final = 500.0
BYTES_PER_SECOND: Final = 500_000.0
BURST: Final = 0.25
"""Seconds' worth of the budget that may be spent at once."""
TICK: Final = 0.05
"""Lines that come within this time are joined; it bounds what joining adds to the delay."""
SLICE: Final = 0.008
"""Seconds for which records are written before the event loop may go on with other things."""
SMALL_BYTES: Final = 4 * 1024
"""A record may always be this large, even if the budget is nearly spent."""
CROWD: Final = 2
CROWD_BYTES: Final = 16 * 1024
"""Most bytes in a record while more than that many other tasks wait for their turn."""
DISK_BYTES: Final = 1 << 30
"""What all spools of an event loop may take on disk."""
FLUSH_SECONDS: Final = 60.0
LAST_RECORDS: Final = 8
"""Most records that a sink writes when it is closed in a hurry."""

_FORGED = re.compile(r"^(?=\[\d{4}-[^\]\n]*\] \{)", re.MULTILINE)


class TaskSink:
    """The records and lines of one task, spooled until the emitter gives them their turn.

    Records are written in the context in which the sink was made: Airflow finds the task that they belong to by it.
    """

    __slots__ = (
        "_broken",
        "_closed",
        "_complete",
        "_context",
        "_emitter",
        "_empty",
        "_headings",
        "_log",
        "_positions",
        "_spool",
        "_thinned",
        "see",
    )

    def __init__(self, emitter: Emitter, log: Any, spool: Spool, *, see: str = "") -> None:
        self.see = see
        """Where the whole output can be found, for the line that says how many lines were skipped."""
        self._emitter = emitter
        self._log = log
        self._context = contextvars.copy_context()
        self._spool = spool
        self._thinned = Thinned()
        self._complete = True
        self._positions = Positions()
        self._headings = Headings()
        self._empty = Bell()
        self._empty.set()
        self._broken = self._closed = False

    async def __aenter__(self) -> Self:
        """Return the sink itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Wait until all is out, within a bound; when the task was cancelled there is no time for it."""
        try:
            if kind is None or issubclass(kind, Exception):
                await self.flush(FLUSH_SECONDS)
        finally:
            self.close()

    def record(self, level: int, text: str) -> None:
        """Log one record, in turn with the lines."""
        self._put(make_entry(level, text))

    def lines(self, source: str, block: Block) -> None:
        """Log the block's lines, joined with what waits beside them."""
        count_lines(block)
        self._put(make_entry(block.level, block.text, block.lines, block.time, source, block.mark))

    def position(self, source: str) -> Mark | None:
        """Return up to where lines of ``source`` are out."""
        return self._positions.get(source)

    def settled(self, source: str) -> Mark | None:
        """Return up to where they have been out for some seconds: what is on its way dies with the supervisor."""
        return self._positions.settled(source)

    @property
    def lost(self) -> bool:
        """Whether the supervisor that writes the task's log is gone: Airflow lets us go on for up to a second."""
        return self._broken or (not isinstance(self._log, logging.Logger) and self._emitter.orphaned)

    def discard(self) -> None:
        """Drop the lines that wait; records stay."""
        waiting = [*self._drain(), *self._thinned.take()]
        for entry in waiting:
            if entry.source is None:
                self._spool.push(entry)

    async def settle(self, seconds: float) -> bool:
        """Wait until all is out, at most that long; return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        return not self.waiting

    async def flush(self, seconds: float) -> bool:
        """Wait until all is out; after that many seconds leave out all but errors and the last lines."""
        if self.waiting:
            self._emitter.hurry()
        if not await self.settle(seconds):
            self._emitter.forget(self)  # what has its turn meanwhile would come before what is older
            for count, entry in enumerate(self._drain()):
                self._thinned.add(entry)
                if count % 16 == 0:
                    await asyncio.sleep(0)
            self._emitter.wake(self)
            await self.settle(FLUSH_SECONDS / 10)
        return self._complete

    def close(self) -> None:
        """Write what can be written at once, and let go of the rest."""
        for _ in range(LAST_RECORDS):
            if not self.waiting:
                break
            self.emit(CROWD_BYTES)
        self._closed = True
        self._spool.close()
        self._thinned = Thinned()
        self._empty.set()
        self._emitter.forget(self)

    # -- for the emitter

    @property
    def waiting(self) -> bool:
        """Whether anything waits for its turn."""
        return len(self._spool) > 0 or bool(self._thinned)

    def emit(self, limit: int) -> int:
        """Write one record of about ``limit`` bytes at most; return its size."""
        entries = self._next(limit)
        text = "\n".join(entry.text for entry in entries if entry.lines)
        for piece in pieces(self._headings.head(text, entries[0].time)) if any(e.lines for e in entries) else ():
            self._write(entries[0].level, piece)
        if not self._broken:
            self._positions.put({e.source: e.mark for e in entries if e.source is not None and e.mark is not None})
        if not self.waiting:
            self._empty.set()
        return sum(entry.size + 1 for entry in entries)

    # -- inside

    def _put(self, entry: Entry) -> None:
        if self._broken:
            return
        if self._closed:
            self._write(entry.level, entry.text)
            return
        if self._thinned or not self._spool.push(entry):
            self._thinned.add(entry)
        self._empty.clear()
        self._emitter.wake(self)

    def _drain(self) -> Iterator[Entry]:
        while self._spool.peek() is not None:
            yield self._spool.pop()

    def _next(self, limit: int) -> list[Entry]:
        """Take the entries that make the next record."""
        if self._spool.peek() is None:
            self._complete = self._complete and not self._thinned.skipped
            for entry in self._thinned.take(self.see):
                self._spool.push(entry)
            self._spool.peek()
        first = self._spool.pop()
        entries = [first]
        size, late = first.size, is_late(first.time)
        while (
            (following := self._spool.peek()) is not None
            and first.source is not None
            and following.source is not None
            and following.level == first.level
            and size + following.size < limit
            and not (late and following.time[:LATE_SPAN] != first.time[:LATE_SPAN])
        ):
            entries.append(self._spool.pop())
            size += following.size + 1
        return entries

    def _write(self, level: int, text: str) -> None:
        try:
            self._context.run(_log, self._log, level, text)
        except Exception:  # noqa: BLE001 - the supervisor is gone: nobody can read it any more
            self._broken = True
            self._spool.close()
            self._thinned = Thinned()


def _log(log: Any, level: int, text: str) -> None:
    if level < logging.INFO and not _enabled(log, level):
        level = logging.INFO  # a line of the job is shown, whatever level Airflow's own records have to have
    if isinstance(log, logging.Logger) and "] {" in text:
        # until 2.11 goes: its log is plain text, in which a line could pass for a record of Airflow
        text = _FORGED.sub(" ", text)
    log.log(level, "%s", text)


def _enabled(log: Any, level: int) -> bool:
    for name in ("is_enabled_for", "isEnabledFor"):
        with contextlib.suppress(Exception):
            return bool(getattr(log, name)(level))
    return False


class Emitter:
    """Shares what the log of this event loop can carry among its tasks, in turn, one record each.

    ``pipe`` is the descriptor of the socket that the records go through, if there is one.
    """

    def __init__(
        self,
        *,
        records_per_second: float = RECORDS_PER_SECOND,
        bytes_per_second: float = BYTES_PER_SECOND,
        disk_bytes: int = DISK_BYTES,
        pipe: int | None = None,
    ) -> None:
        self._rates = (records_per_second, bytes_per_second)
        self._left = [records_per_second * BURST, bytes_per_second * BURST]
        self._filled = time.monotonic()
        self._quota = Quota(disk_bytes)
        self._queue: OrderedDict[TaskSink, None] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._hurried = Bell()
        self._parent = os.getppid()
        self._pipe: select.poll | None = None
        if pipe is not None:
            self._pipe = select.poll()
            self._pipe.register(pipe, select.POLLOUT)

    @property
    def orphaned(self) -> bool:
        """Whether the process that started this one is gone; in Airflow 3 that is the triggerer's supervisor."""
        return os.getppid() != self._parent

    def sink(self, log: Any, *, see: str = "") -> TaskSink:
        """Return a sink for the task whose context this is called in; ``async with`` flushes and closes it."""
        return TaskSink(self, log, Spool(quota=self._quota), see=see)

    def wake(self, sink: TaskSink) -> None:
        """Give the sink its turn soon."""
        self._queue.setdefault(sink)
        if self._task is None or self._task.done():
            # in a context of its own, since it is no task's
            self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    def forget(self, sink: TaskSink) -> None:
        """Drop the sink from the queue."""
        self._queue.pop(sink, None)

    def hurry(self) -> None:
        """Wait for no more lines to join: a task that is done waits for its last ones to be out."""
        self._hurried.set()

    async def _run(self) -> None:
        await self._tick()
        while self._queue:
            if self._serve():
                await asyncio.sleep(SLICE)
            else:
                await self._tick()

    async def _tick(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK):
                await self._hurried.wait()
        self._hurried.clear()

    def _serve(self) -> bool:
        """Write what the budget allows and the pipe takes; return whether there was more to write at once."""
        started = time.monotonic()
        self._refill(started)
        for _ in range(len(self._queue)):
            if min(self._left) <= 0:
                return False
            if time.monotonic() - started > SLICE or self._full():
                return True
            sink, _ = self._queue.popitem(last=False)
            if sink.waiting:
                most = CROWD_BYTES if len(self._queue) > CROWD else RECORD_BYTES
                size = sink.emit(min(most, max(int(self._left[1]), SMALL_BYTES)))
                self._left[0] -= 1
                self._left[1] -= size
            if sink.waiting:
                self._queue.setdefault(sink)
        return bool(self._queue)

    def _full(self) -> bool:
        """Return whether the supervisor is behind: a socket counts as full from a quarter of its buffer on."""
        return self._pipe is not None and not self._pipe.poll(0)

    def _refill(self, now: float) -> None:
        passed, self._filled = now - self._filled, now
        for index, rate in enumerate(self._rates):
            self._left[index] = min(self._left[index] + rate * passed, rate * BURST)


def log_pipe() -> int | None:
    """Return the descriptor of the socket that takes this process' records to its supervisor; None if there is none."""
    try:
        number = int(log_output().fileno())
        return number if stat.S_ISSOCK(os.fstat(number).st_mode) else None
    except (AttributeError, OSError, TypeError, ValueError):
        return None


_emitters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Emitter] = weakref.WeakKeyDictionary()


def shared_emitter() -> Emitter:
    """Return the emitter of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _emitters:
        _emitters[loop] = Emitter(pipe=log_pipe())
    return _emitters[loop]
