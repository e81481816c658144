"""A bounded queue of lines that wait for the task log: in memory, then in a file, then only what matters most."""

from __future__ import annotations

import contextlib
import logging
import marshal
import os
import tempfile
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_multikueue.logs.text import byte_length

if TYPE_CHECKING:
    from airflow_provider_multikueue.logs.lines import Mark

__all__ = ["Entry", "Quota", "Spool", "Thinned", "make_entry"]

MEMORY_BYTES = 128 * 1024
DISK_BYTES = 64 * 1024 * 1024
SEGMENT_BYTES = 2 * 1024 * 1024
KEPT_BYTES = 48 * 1024
_HEAD = 4


class Entry(NamedTuple):
    """Text on its way to the task log, made by `make_entry`; plain values only, since it may pass through a file."""

    level: int
    text: str
    lines: int = 1
    time: str = ""
    source: str | None = None
    """The stream that its lines are from; None for text that is a record by itself."""
    mark: Mark | None = None
    size: int = 0
    """Bytes that its text takes."""


def make_entry(
    level: int, text: str, lines: int = 1, time: str = "", source: str | None = None, mark: Mark | None = None
) -> Entry:
    """Return an entry that knows its size: that is asked for several times, and encoding a text takes a while."""
    return Entry(level, text, lines, time, source, mark, byte_length(text))


@dataclass(slots=True)
class Quota:
    """Bytes on disk that spools share."""

    left: int


class _Segment:
    """A file without a name, written once and read once."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="multikueue-log-", buffering=0)  # noqa: SIM115 - closed by the spool
        self.read = self.written = 0

    def append(self, data: bytes) -> bool:
        size = os.pwrite(self.file.fileno(), data, self.written)
        if size < len(data):
            return False
        self.written += size
        return True

    def take(self) -> Entry:
        number = self.file.fileno()
        size = int.from_bytes(os.pread(number, _HEAD, self.read), "big")
        entry = Entry(*marshal.loads(os.pread(number, size, self.read + _HEAD)))  # noqa: S302 - our own file
        self.read += _HEAD + size
        return entry


class Spool:
    """First in, first out, within ``memory`` and ``disk`` bytes, and what is left of a quota that spools share."""

    __slots__ = ("_front", "_front_bytes", "_memory", "_quotas", "_segments")

    def __init__(self, *, memory: int = MEMORY_BYTES, disk: int = DISK_BYTES, quota: Quota | None = None) -> None:
        self._memory = memory
        self._quotas = (Quota(disk), quota or Quota(disk))
        self._front: deque[Entry] | None = None  # an empty one takes as much memory as all else of a quiet task's sink
        self._front_bytes = 0
        self._segments: list[_Segment] = []

    def __len__(self) -> int:
        """Return how much there is: 0 only when it is empty."""
        return len(self._front or ()) + len(self._segments)

    def push(self, entry: Entry) -> bool:
        """Take the entry in; False when there is no room."""
        if not self._segments and (not self._front or self._front_bytes + entry.size <= self._memory):
            self._keep(entry)
            return True
        data = marshal.dumps(tuple(entry))
        return self._write(len(data).to_bytes(_HEAD, "big") + data)

    def peek(self) -> Entry | None:
        """Return the oldest entry and keep it."""
        while not self._front and self._segments:
            self._load()
        return self._front[0] if self._front else None

    def pop(self) -> Entry:
        """Return the oldest entry, which `peek` has shown, and let it go."""
        if self._front is None:
            raise IndexError("nothing is there")
        entry = self._front.popleft()
        self._front_bytes -= entry.size
        if not self._front:
            self._front = None
        return entry

    def _keep(self, entry: Entry) -> None:
        if self._front is None:
            self._front = deque()
        self._front.append(entry)
        self._front_bytes += entry.size

    def close(self) -> None:
        """Drop everything; the files go with it."""
        self._front = None
        self._front_bytes = 0
        while self._segments:
            self._drop()

    def _write(self, data: bytes) -> bool:
        if len(data) > min(quota.left for quota in self._quotas):
            return False
        with contextlib.suppress(OSError):  # a full or read-only disk is no room, too
            if not self._segments or self._segments[-1].written >= SEGMENT_BYTES:
                self._segments.append(_Segment())
            if self._segments[-1].append(data):
                self._spend(len(data))
                return True
        if self._segments and not self._segments[-1].written:
            self._drop(self._segments.pop())
        return False

    def _load(self) -> None:
        first = self._segments[0]
        while first.read < first.written and self._front_bytes < self._memory:
            self._keep(first.take())
        if first.read == first.written:
            self._drop(self._segments.pop(0))

    def _drop(self, segment: _Segment | None = None) -> None:
        segment = segment or self._segments.pop(0)
        segment.file.close()
        self._spend(-segment.written)

    def _spend(self, size: int) -> None:
        for quota in self._quotas:
            quota.left -= size


class Thinned:
    """What is kept of lines that found no room: the first errors and the last lines; and how many are missing."""

    __slots__ = ("_errors", "_errors_bytes", "_kept", "_last", "_last_bytes", "_marks", "_skipped")

    def __init__(self, *, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._begin()

    def _begin(self) -> None:
        self._errors: list[Entry] = []
        self._errors_bytes = 0
        self._last: deque[Entry] | None = None
        self._last_bytes = 0
        self._skipped = 0
        self._marks: dict[str, Mark | None] = {}

    def __bool__(self) -> bool:
        """Return whether it holds anything."""
        return bool(self._last or self._errors or self._skipped)

    @property
    def skipped(self) -> int:
        """How many lines are missing."""
        return self._skipped

    def add(self, entry: Entry) -> None:
        """Take the entry; older ones that are no errors may give way."""
        if entry.size > self._kept // 4:
            entry = self._shorten(entry)
        if self._last is None:
            self._last = deque()
        self._last.append(entry)
        self._last_bytes += entry.size
        while self._last_bytes > self._kept:
            self._give_way(self._last.popleft())

    def take(self, see: str = "") -> list[Entry]:
        """Return what was kept, with a line that says what is missing, and begin anew."""
        out: list[Entry] = []
        if self._skipped:
            out.append(
                make_entry(logging.WARNING, f"── {self._skipped:,} lines skipped: more than this log can carry{see} ──")
            )
            out += [make_entry(logging.INFO, "", 0, "", source, mark) for source, mark in self._marks.items()]
        out += [*self._errors, *(self._last or ())]
        self._begin()
        return out

    def _give_way(self, entry: Entry) -> None:
        self._last_bytes -= entry.size
        if (entry.level >= logging.ERROR or entry.source is None) and self._errors_bytes < self._kept:
            self._errors.append(entry)
            self._errors_bytes += entry.size
            return
        self._skip(entry, entry.lines)

    def _skip(self, entry: Entry, lines: int) -> None:
        self._skipped += lines
        if entry.source is not None:
            self._marks[entry.source] = entry.mark

    def _shorten(self, entry: Entry) -> Entry:
        """Leave the last lines of a large entry."""
        text = entry.text.encode("utf-8", "surrogatepass")[-self._kept // 4 :].decode("utf-8", "ignore")
        text = text[text.find("\n") + 1 :] if "\n" in text else text
        lines = text.count("\n") + 1
        self._skipped += max(entry.lines - lines, 0)
        return entry._replace(text=text, lines=lines, size=byte_length(text))
