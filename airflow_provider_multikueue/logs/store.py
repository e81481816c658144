"""The whole output of a job's containers, written to object storage as it comes.

Each run of a container is an object of its own, ``JOB/REGION/POD/CONTAINER-RESTART.log``. Object stores can't append,
so an object is written again as a whole while it grows, ever more seldom; at some megabytes it is left as it is and the
next one begins: ``CONTAINER-RESTART.2.log``. What has come waits in an unnamed file on the local disk, so that a slow
store costs no memory and holds up neither the task's log nor the job.

A store that fails is told once and tried again; no outcome ever depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_multikueue.logs.lines import CONTINUED, CONTINUES, LogCursor, order
from airflow_provider_multikueue.logs.spool import Quota

if TYPE_CHECKING:
    from airflow_provider_multikueue.logs.lines import Line, Mark

__all__ = ["Content", "LogStore", "StoredRun", "Target"]

PART_BYTES: Final = 4 * 1024 * 1024
FIRST_PAUSE: Final = 1.0
PAUSE: Final = 5.0
BYTES_PER_SECOND: Final = 200_000
"""How fast one object may be written again and again while it grows."""
LONGEST_PAUSE: Final = 60.0
CLOSE_SECONDS: Final = 60.0
"""How long the end of a job waits until its output is stored."""
CHUNK: Final = 1 << 20

_disk = Quota(1 << 30)


class Target(Protocol):
    """Where objects go; a failure of any kind is an exception."""

    @property
    def uri(self) -> str:
        """Its address, for people: no secret is in it."""

    async def exists(self, name: str) -> bool:
        """Return whether there is an object of that name."""

    async def write(self, name: str, content: Content) -> None:
        """Make the object, or replace it; other tasks go on meanwhile."""


class Content:
    """The first ``size`` bytes of a file, to be read in any thread while the file grows."""

    def __init__(self, number: int, size: int) -> None:
        self.size = size
        self._number = number

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes in pieces."""
        for start in range(0, self.size, CHUNK):
            yield os.pread(self._number, min(CHUNK, self.size - start), start)


class _Part:
    """One object and what is to be in it."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="multikueue-store-", buffering=0)  # noqa: SIM115 - see `close`
        self.name = ""
        self.size = self.stored = 0
        self.mark: Mark | None = None

    def add(self, data: bytes, mark: Mark) -> bool:
        if len(data) > _disk.left or os.pwrite(self.file.fileno(), data, self.size) < len(data):
            return False
        self.size, self.mark = self.size + len(data), mark
        _disk.left -= len(data)
        return True

    def close(self) -> None:
        _disk.left += self.size
        self.file.close()


class StoredRun:
    """The output of one run of one container on its way to its objects."""

    def __init__(self, store: LogStore, name: str, start: LogCursor) -> None:
        self.start = start
        self.lost = 0
        """Lines that found no room while the store did not answer."""
        self._store, self._name = store, name
        self._skip: Mark | None = start.mark if start.time else None
        self._position: Mark | None = None
        self._inside = start.offset > 0  # a line that comes in parts
        self._parts: deque[_Part] = deque()
        self._number = 0
        self._news, self._hurry = asyncio.Event(), asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    @property
    def position(self) -> Mark:
        """Up to where it is stored."""
        return self._position or self.start.mark

    @property
    def complete(self) -> bool:
        """Whether all is stored and no more is to come."""
        return self._ended and not self.lost and not self._unstored

    def take(self, lines: Sequence[Line]) -> None:
        """Store new lines; those up to the start are stored already."""
        if self._skip is not None:
            after = order(self._skip)
            lines = [line for line in lines if order(line[2]) > after]
            if not lines:
                return
            self._skip = None
        data = self._joined(lines).encode()
        with contextlib.suppress(OSError):  # a full disk is no room, too
            if not self._parts:
                self._parts.append(_Part())
            if self._parts[-1].add(data, lines[-1][2]):
                self._news.set()
                self._start()
                return
        self.lost += len(lines)
        self._store.failed("the local disk has no more room for what waits")

    def finish(self) -> None:
        """Learn that no more is to come."""
        self._ended = True
        self._hurry.set()
        self._news.set()

    async def settle(self, seconds: float) -> bool:
        """Store at once what has come, for at most that long; return whether that is all."""
        self._hurry.set()
        self._news.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
        return not self._unstored and not self.lost

    def close(self) -> None:
        """Let go of what is not stored."""
        if self._task is not None:
            self._task.cancel()
        while self._parts:
            self._parts.popleft().close()

    # -- inside

    @property
    def _unstored(self) -> bool:
        return any(part.stored < part.size for part in self._parts)

    def _joined(self, lines: Sequence[Line]) -> str:
        """Return the lines as the container wrote them: long ones whole."""
        if not self._inside and not any(line[2][2] for line in lines):
            return "\n".join([line[1] for line in lines]) + "\n"
        texts = []
        for _, text, mark in lines:
            body = text.removeprefix(CONTINUED) if self._inside else text
            self._inside = mark[2] > 0
            texts.append(body.removesuffix(CONTINUES) if self._inside else body + "\n")
        return "".join(texts)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), context=contextvars.Context())

    async def _work(self) -> None:
        """Store what comes until all is stored that is to come, or no more is waited for."""
        pause, failures = FIRST_PAUSE, 0
        while True:
            await self._rest(pause)
            self._news.clear()
            try:
                size = await self._write() if self._unstored else 0
            except Exception as error:  # noqa: BLE001 - whatever a file system raises
                failures += 1
                self._store.failed(f"{type(error).__name__}: {error}")
                pause = min(2.0 ** min(failures, 6), LONGEST_PAUSE)
                self._news.set()
            else:
                pause, failures = max(PAUSE, size / BYTES_PER_SECOND), 0
            if self._hurry.is_set() and not self._unstored:
                return
            if failures and self._hurry.is_set():
                await asyncio.sleep(min(pause, PAUSE))
            await self._news.wait()

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _write(self) -> int:
        """Store the oldest part that is not stored; return its size."""
        part = self._parts[0]
        if part.size >= PART_BYTES and len(self._parts) == 1:
            self._parts.append(_Part())
        if not part.name:
            part.name = await self._free_name()
        size, mark = part.size, part.mark
        await self._store.target.write(part.name, Content(part.file.fileno(), size))
        self._store.worked()
        part.stored, self._position = size, mark
        if len(self._parts) > 1 and part.stored == part.size:
            self._parts.popleft().close()
        if self._unstored:
            self._news.set()
        return size

    async def _free_name(self) -> str:
        """Return the next name that nobody has taken: an earlier reader may have stored the beginning."""
        while True:
            self._number += 1
            name = f"{self._name}.log" if self._number == 1 else f"{self._name}.{self._number}.log"
            if not await self._store.target.exists(name):
                return name


@dataclass(slots=True)
class _Trouble:
    """What was told about the store."""

    text: str = ""
    now: bool = False


class LogStore:
    """Stores the output of one job's containers below ``target``; ``tell`` logs a record in the task's log."""

    def __init__(self, target: Target, job: str, tell: Callable[[int, str], None]) -> None:
        self.target = target
        self._job = job
        self._tell = tell
        self._trouble = _Trouble()
        self._runs: list[StoredRun] = []

    @property
    def uri(self) -> str:
        """Where the job's output is."""
        return f"{self.target.uri.rstrip('/')}/{self._job}"

    def run(self, *, region: str, pod: str, container: str, restart: int, start: LogCursor) -> StoredRun:
        """Return where the output of one run of a container goes; it was stored up to ``start`` already."""
        if not self._runs:
            self._tell(logging.INFO, f"── the whole output is written to {self.uri} ──")
        name = "/".join((self._job, region.replace("/", "_"), pod, f"{container}-{restart}"))
        self._runs.append(StoredRun(self, name, start))
        return self._runs[-1]

    def failed(self, why: str) -> None:
        """Say once that the store fails."""
        if not self._trouble.text:
            self._tell(logging.WARNING, f"the output can't be written to {self.uri} for now, trying again: {why[:500]}")
        self._trouble.text, self._trouble.now = why, True

    def worked(self) -> None:
        """Learn that the store answers."""
        self._trouble.now = False

    async def settle(self, seconds: float) -> bool:
        """Store at once all that has come, for at most that long; return whether that worked."""
        return all(await asyncio.gather(*(run.settle(seconds) for run in self._runs)))

    async def finish(self, seconds: float = CLOSE_SECONDS) -> None:
        """Store all, since no more is to come; what could not be stored is told."""
        for run in self._runs:
            run.finish()
        if not await self.settle(seconds):
            lost = sum(run.lost for run in self._runs)
            what = f"{lost:,} lines of it had no room to wait" if lost else f"not all of it in {seconds:.0f} s"
            why = f" ({self._trouble.text[:500]})" if self._trouble.text else ""
            self._tell(logging.WARNING, f"── the output at {self.uri} is incomplete: {what}{why} ──")

    def close(self) -> None:
        """Let go of all."""
        for run in self._runs:
            run.close()
