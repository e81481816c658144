"""Bytes of a container's log, in any cuts and over any number of connections, become lines: each once, none missing.

The log API can be asked to begin at a whole second only, so a reader that comes back is sent lines that it has already.
`LogCursor` says where it stood, in the order of the log: the newest time among the lines taken, how many lines were
taken from the first one of that time on, and how far into the last of them. Counting in the log's own order, instead of
comparing times alone, keeps the lines apart that bear the same nanosecond, and those that two writers (stdout, stderr)
or a clock set back brought out of order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

__all__ = [
    "CONTINUED",
    "CONTINUES",
    "PART_BYTES",
    "Line",
    "LineDecoder",
    "LogCursor",
    "Mark",
    "canonical_time",
    "order",
]

PART_BYTES = 48 * 1024
"""A line is held until it is complete or this long; then it is given out in parts, so that memory stays bounded."""

CONTINUES = " ⟪continues⟫"
"""Ends each part of a long line but its last."""

CONTINUED = "⟪continued⟫ "
"""Begins each part of a long line but its first."""

_HEAD_BYTES = 64  # more than any time takes
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: |$)")


Mark = tuple[str, int, int, str]
"""The plain form of a cursor: time, count, offset, since."""

Line = tuple[str, str, Mark]
"""Time ("" if the line came without one), text, and where the cursor stands once this line is taken.

Plain tuples: several hundred thousand of them are made each second.
"""


@dataclass(frozen=True, slots=True)
class LogCursor:
    """Where in one container's log a reader stands; an empty one stands at the beginning."""

    time: str = ""
    """The newest time among the lines taken, RFC 3339 in UTC with nine digits; "" before the first line."""
    count: int = 0
    """Lines taken from the first line of that time on, in the log's order."""
    offset: int = 0
    """Bytes taken of the last of these lines, if it was not taken whole."""
    since: str = ""
    """The second to read from, where that is earlier than the second of ``time``."""

    @property
    def since_time(self) -> str | None:
        """What to ask the log API for as ``sinceTime``; None is the whole log.

        A second earlier than need be, for the line that a second writer stamped just before and wrote just after.
        """
        if not self.time:
            return None
        second = datetime.fromisoformat(f"{(self.since or self.time)[:19]}+00:00") - timedelta(seconds=1)
        return second.strftime("%Y-%m-%dT%H:%M:%SZ")

    @classmethod
    def at(cls, moment: datetime) -> Self:
        """Return the cursor that takes what was written at ``moment`` or later."""
        return cls(time=canonical_time(moment.astimezone(UTC).isoformat()))

    @property
    def mark(self) -> Mark:
        """Its plain form."""
        return (self.time, self.count, self.offset, self.since)

    def to_json(self) -> list[str | int]:
        """Return plain values for JSON."""
        return list(self.mark)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the cursor again; anything that is none gives an empty one, so that nothing is missed."""
        match value:
            case [str(time), int(count), int(offset), str(since)] if canonical_time(time) == time != "":
                return cls(time, max(count, 0), max(offset, 0), since if canonical_time(f"{since}Z") else "")
        return cls()


def order(mark: Mark) -> tuple[str, int, float]:
    """Return what puts marks of one log into the log's order; a line that was taken whole comes after its parts."""
    return mark[0], mark[1], mark[2] or math.inf


def canonical_time(text: str) -> str:
    """Return an RFC 3339 time in UTC with nine digits, so that texts sort as times do; "" if it is none."""
    found = _TIME.match(text)
    return _normalise(found) if found else ""


def _normalise(found: re.Match[str]) -> str:
    seconds, fraction, zone = found.groups()
    if zone != "Z":
        try:
            moment = datetime.fromisoformat(seconds + zone).astimezone(UTC)
        except (ValueError, OverflowError):
            return ""
        seconds = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{seconds}.{(fraction or '').ljust(9, '0')}Z"


def _split(line: str) -> tuple[str, str]:
    """Return a line's time and its text; the time is "" if the line has none."""
    found = _TIME.match(line)
    time = _normalise(found) if found else ""
    return (time, line[found.end() :]) if found and time else ("", line)


class LineDecoder:
    """Turns the streams of one container's log into its lines.

    Feed it what a connection gives, cut anywhere; call `reconnect` before feeding from another connection, which was
    asked for ``cursor.since_time``; call `finish` when a container that has ended was read to its end.
    """

    def __init__(self, cursor: LogCursor | None = None, *, part_bytes: int = PART_BYTES) -> None:
        start = cursor or LogCursor()
        self._time, self._count, self._offset, self._since = start.time, start.count, start.offset, start.since
        self._part_bytes = part_bytes
        self._marked = start.offset > 0
        self.gap: tuple[str, str] | None = None
        """Between these times lines may be missing: the line that we stood at was no longer in the log."""
        self.reconnect()

    @property
    def cursor(self) -> LogCursor:
        """Where the lines given out so far end."""
        return LogCursor(self._time, self._count, self._offset, self._since)

    def reconnect(self) -> None:
        """Forget what is incomplete: the next bytes come from a new connection, read from ``cursor.since_time``."""
        self._pending = b""
        self._inside = False  # within a line that is given out in parts, or passed over
        self._inside_time = ""
        self._overwriting = False
        self._drop: int | None = 0  # bytes of that line that are still to be passed over; None: all
        self._live = not self._time
        self._found = False
        self._left = self._count

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that ``data`` completes."""
        out: list[Line] = []
        data = self._pending + data if self._pending else data
        self._pending = b""
        if self._inside:
            body, newline, data = data.partition(b"\n")
            self._go_on(body, complete=bool(newline), out=out)
            if not newline:
                return out
        if not self._live:
            data = self._pass_over(data, out)
        if self._live:
            head, newline, data = data.rpartition(b"\n")
            if newline:
                # what is not UTF-8 is shown as \xNN; an invalid sequence never eats the newline after it
                self._take(head.decode("utf-8", "backslashreplace").split("\n"), out)
        self._pending = data
        if len(data) > self._part_bytes + _HEAD_BYTES:
            self._begin(data, complete=False, out=out)
        return out

    def finish(self) -> list[Line]:
        """Return the last line if it lacks its newline; only for a log read to its end after its container ended."""
        return self.feed(b"\n") if self._pending else []

    @property
    def incomplete(self) -> bytes:
        """What has come of a line that is not complete."""
        return self._pending

    def progress(self) -> str | None:
        r"""Return the newest state of an incomplete line that is being overwritten (with \r), without taking it."""
        if not self._live or self._drop != 0 or not (self._overwriting or b"\r" in self._pending):
            return None
        text = self._pending.decode("utf-8", "backslashreplace")
        states = [state for state in (text if self._inside else _split(text)[1]).split("\r") if state.strip()]
        return states[-1] if states else None

    # -- which lines are new

    def _admit(self, time: str) -> int | None:
        """Return how many bytes of the next line are already taken: 0 for a new line, None for all."""
        if not self._live:
            if not self._found:
                if time < self._time:
                    return None
                self._found = True
                if self._count and time > self._time:
                    self.gap = (self._time, time)
            if self._left and time <= self._time:
                self._left -= 1
                self._live = self._left == 0
                return (self._offset or None) if self._live else None
            self._live = True
        self._marked = False
        self._advance(time)
        return 0

    def _advance(self, time: str) -> None:
        if time > self._time:
            self._time, self._count, self._since = time, 1, ""
        elif self._time:
            self._count += 1
            if time and time[:19] < (self._since or self._time[:19]):
                self._since = time[:19]
        self._offset = 0

    def _pass_over(self, data: bytes, out: list[Line]) -> bytes:
        """Pass over the lines that were taken on an earlier connection; return what comes after them."""
        start = 0
        while not self._live and (end := data.find(b"\n", start)) >= 0:
            self._begin(data[start:end], complete=True, out=out)
            start = end + 1
        return data[start:]

    def _take(self, lines: Sequence[str], out: list[Line]) -> None:
        """`_advance` for many new lines at once: nearly all lines of a log come this way."""
        newest, count, since = self._time, self._count, self._since
        for line in lines:
            if line[29:31] == "Z " and line[19:20] == "." and line[20:29].isdigit():
                time, text = line[:30], line[31:]
            else:
                time, text = _split(line)
            if time > newest:
                newest, count, since = time, 1, ""
            elif newest:
                count += 1
                if time and time[:19] < (since or newest[:19]):
                    since = time[:19]
            out.append((time, text, (newest, count, 0, since)))
        self._time, self._count, self._offset, self._since = newest, count, 0, since

    # -- single lines, and long ones in parts

    def _begin(self, data: bytes, *, complete: bool, out: list[Line]) -> None:
        """Deal with a line (without its newline) by itself, whether it is complete or not."""
        head = data[:_HEAD_BYTES].decode("utf-8", "backslashreplace")
        self._inside_time, rest = _split(head)
        self._drop = self._admit(self._inside_time)
        self._inside = True
        # a time is ASCII, so its length is the same in bytes
        self._go_on(data[len(head) - len(rest) :] if self._inside_time else data, complete=complete, out=out)

    def _go_on(self, body: bytes, *, complete: bool, out: list[Line]) -> None:
        """Give out as much of the line that we are in as must not be held longer."""
        self._inside, self._pending = not complete, b""
        self._overwriting = self._overwriting and not complete
        if self._drop is None:
            return
        body, self._drop = body[self._drop :], max(self._drop - len(body), 0)
        while not complete and len(body) > self._part_bytes:
            overwritten = _overwritten(body)
            self._overwriting = overwritten > 0
            cut = overwritten or _boundary(body, self._part_bytes)
            self._offset += cut
            if not overwritten:
                self._give(body[:cut], CONTINUES, out)
                self._marked = True
            body = body[cut:]
        if not complete:
            self._pending = body
            return
        self._offset = 0
        if body or not self._marked:
            self._give(body, "", out)

    def _give(self, body: bytes, end: str, out: list[Line]) -> None:
        text = body.decode("utf-8", "backslashreplace")
        begin = CONTINUED if self._marked else ""
        out.append((self._inside_time, f"{begin}{text}{end}", (self._time, self._count, self._offset, self._since)))


def _overwritten(body: bytes) -> int:
    r"""Return how many bytes at the start were overwritten by a later state of the line (\r that begins anew)."""
    shown = body.rstrip(b"\r \t")
    return body.rfind(b"\r", 0, len(shown)) + 1


def _boundary(body: bytes, size: int) -> int:
    """Return where to cut so that no character is torn."""
    for back in range(4):
        if body[size - back] & 0xC0 != 0x80:
            return size - back
    return size
