"""One container's log: recorded as it is written, read back as a kubelet would serve it.

The bytes are kept as they came, in one file. Beside them, in memory, is when which part of the file became visible:
a line does so with its newline, a line without end in parts of 16 KiB, the rest when the container ends. The stamp of
a line is that of its first byte. Stamps never go back; lines that came in one piece are told apart by a step of 100 ns.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ContainerLog", "LogOptions", "stamp"]

STEP = 100
PART = 16 * 1024
CHUNK = 128 * 1024
FILE_LIMIT = 1 << 30
"""Bytes after which a container's output is dropped, so that a runaway loop does not fill the disk."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a reader asks for; the same words as in the API. ``since`` is in nanoseconds since the epoch."""

    follow: bool = False
    timestamps: bool = False
    since: int | None = None
    tail_lines: int | None = None
    limit_bytes: int | None = None


def stamp(moment: int) -> bytes:
    """Return nanoseconds since the epoch as RFC 3339 in UTC with nine decimals."""
    seconds, rest = divmod(moment, 1_000_000_000)
    return b"%s.%09dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode(), rest)


class ContainerLog:
    """The log of one run of one container; written on the event loop, read by any number of readers."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self.visible = 0
        self.closed = False
        self._clock = clock
        self._size = 0
        self._starts = array("q")
        self._times = array("q")
        self._last = 0
        self._first = 0
        self._waiters: list[asyncio.Future[None]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Record what the container has written."""
        if self.closed or self._size + len(data) > FILE_LIMIT:
            return
        os.write(self._file, data)
        before, self._size = self._size, self._size + len(data)
        newline = data.rfind(b"\n")
        end = before + newline + 1 if newline >= 0 else self.visible
        if self._size - end >= PART:
            end = self._size
        if end > self.visible:
            self._show(end, data.count(b"\n"))

    def close(self) -> None:
        """Record that the container has ended: what is left of an unfinished line becomes visible."""
        if self.closed:
            return
        if self._size > self.visible:
            self._show(self._size, 0)
        self.closed = True
        os.close(self._file)
        self._wake()

    def rotate(self) -> None:
        """Serve no more what is there now, as when a kubelet has rotated the file away; who follows reads on."""
        self._first = self.visible

    def _show(self, end: int, lines: int) -> None:
        moment = max(self._clock(), self._last + STEP)
        self._starts.append(self.visible)
        self._times.append(moment)
        self._last = moment + lines * STEP
        self.visible = end
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def read(self, options: LogOptions) -> AsyncIterator[bytes]:
        """Yield the log as asked for, in pieces cut anywhere; with ``follow`` until the container has ended."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            async for data in self._pieces(file, options):
                yield data
        finally:
            os.close(file)

    async def _pieces(self, file: int, options: LogOptions) -> AsyncIterator[bytes]:
        left = options.limit_bytes
        cursor = _Cursor(file, self._starts, self._times, position=self._start(file, options))
        stop = self.visible
        while left is None or left > 0:
            if options.follow:
                stop = self.visible
            if cursor.position < stop:
                data = cursor.take(stop, timestamps=options.timestamps)
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                yield data
                await asyncio.sleep(0)
            elif self.closed or not options.follow:
                return
            else:
                await self._change()

    def _start(self, file: int, options: LogOptions) -> int:
        position = self._first
        if options.tail_lines is not None:
            position = max(position, _tail(file, self.visible, options.tail_lines))
        if options.since is not None:
            position = max(position, self._since(file, options.since))
        return position

    def _since(self, file: int, since: int) -> int:
        """Return where the first line with a stamp of at least ``since`` begins."""
        index = bisect_left(self._times, since)
        if index == 0:
            return 0
        after = self._starts[index] if index < len(self._starts) else self.visible
        before, moment = self._starts[index - 1], self._times[index - 1]
        lines_before = -(-(since - moment) // STEP)
        data = os.pread(file, after - before, before)
        position = 0
        for _ in range(lines_before):
            newline = data.find(b"\n", position)
            if newline < 0:
                return after
            position = newline + 1
        return before + position

    def last(self, *, size: int, lines: int) -> bytes:
        """Return the last ``lines`` lines, at most ``size`` bytes of them."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = max(_tail(file, self.visible, lines), self.visible - size)
            return os.pread(file, self.visible - start, start)
        finally:
            os.close(file)


class _Cursor:
    """A place in the log: the byte, the piece that it is in, and the number of the line within that piece."""

    def __init__(self, file: int, starts: array[int], times: array[int], *, position: int) -> None:
        self.position = position
        self._file = file
        self._starts = starts
        self._times = times
        self._index = max(bisect_right(starts, position) - 1, 0)
        self._ordinal = 0
        self._at_line_start = position == 0 or os.pread(file, 1, position - 1) == b"\n"
        if starts and position > starts[self._index]:
            skipped = os.pread(file, position - starts[self._index], starts[self._index])
            self._ordinal = skipped.count(b"\n")

    def take(self, stop: int, *, timestamps: bool) -> bytes:
        """Return the bytes up to ``stop``, at most about CHUNK of them, and move behind them."""
        data = os.pread(self._file, min(stop - self.position, CHUNK), self.position)
        if not data:  # someone has cut the file
            self.position = stop
        if not timestamps:
            self.position += len(data)
            return data
        return b"".join(self._stamped(data))

    def _stamped(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        offset = 0
        while offset < len(data):
            if self._index + 1 < len(self._starts) and self.position >= self._starts[self._index + 1]:
                self._index = bisect_right(self._starts, self.position) - 1
                self._ordinal = 0
            bounded = self._index + 1 < len(self._starts)
            room = self._starts[self._index + 1] - self.position if bounded else len(data)
            part = data[offset : offset + room]
            self._stamp_lines(part, pieces)
            offset += len(part)
            self.position += len(part)
        return pieces

    def _stamp_lines(self, part: bytes, pieces: list[bytes]) -> None:
        """Add the lines of ``part``, which all became visible at one moment, each with its stamp."""
        moment = self._times[self._index] + self._ordinal * STEP
        second, rest = divmod(moment, 1_000_000_000)
        head = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        lines = part.split(b"\n")
        tail = lines.pop()
        for line in lines:
            if self._at_line_start:
                pieces.append(b"%s.%09dZ %s\n" % (head, rest, line))
            else:
                pieces.append(line + b"\n")
                self._at_line_start = True
            rest += STEP
            if rest >= 1_000_000_000:
                rest -= 1_000_000_000
                second += 1
                head = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        self._ordinal += len(lines)
        if tail:
            pieces.append(b"%s.%09dZ %s" % (head, rest, tail) if self._at_line_start else tail)
            self._at_line_start = False


def _tail(file: int, end: int, lines: int) -> int:
    """Return where the last ``lines`` lines before ``end`` begin; an unfinished last line counts as one."""
    if lines <= 0:
        return end
    wanted, position = lines, end
    if end and os.pread(file, 1, end - 1) == b"\n":
        wanted += 1
    while position > 0:
        size = min(CHUNK, position)
        block = os.pread(file, size, position - size)
        count = block.count(b"\n")
        if count >= wanted:
            cut = len(block)
            for _ in range(wanted):
                cut = block.rfind(b"\n", 0, cut)
            return position - size + cut + 1
        wanted -= count
        position -= size
    return 0
