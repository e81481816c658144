"""Follows the log of one run of one container, over as many connections as that takes, until it was read to its end.

The pod is deleted about two seconds after its end, so whatever is learned of an end is acted on at once; and no outcome
waits for a stream: a silent one is opened anew, one that cannot be read any more is told with its span.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_multikueue.logs.lines import LineDecoder
from airflow_provider_multikueue.logs.patience import SHORT_PAUSE, Patience
from airflow_provider_multikueue.logs.sinks import is_late

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import ApiError, Cluster
    from airflow_provider_multikueue.decisions.podview import Run
    from airflow_provider_multikueue.logs.lines import Line, LogCursor

log = logging.getLogger(__name__)

__all__ = ["ContainerStream", "Listener"]

LAST_SILENCE: Final = 0.5
"""Seconds after which a silent stream is left once the container has ended: it is stuck."""
SEARCH_SILENCE: Final = 10.0
"""The same where the server has first to find the place in a long log."""
FIRST_PAUSE: Final = 0.025
AGAIN_PAUSE: Final = 0.15
FAILED_PAUSE: Final = 0.1
PAUSE: Final = 5.0
LAST_PAUSE: Final = 0.5
REFUSED_PAUSE: Final = 60.0
TROUBLE: Final = 15.0
"""Seconds of failures in a row after which they are told."""
PROGRESS: Final = 10.0
"""Seconds between two states of a progress bar that are shown."""
LAST_TRIES: Final = 8
SLICE_BYTES: Final = 32 * 1024
"""What is dealt with before other tasks have their turn: about a millisecond's worth."""

# A kubelet that has begun its answer can report trouble only within it.
_KUBELET = re.compile(
    r"unable to retrieve container logs for |rpc error: code = |"
    r"failed to (?:try resolving symlinks|open log file|watch|create fsnotify|read |seek|parse|get container status)"
)


class _UnreadableError(Exception):
    """The kubelet could not read the log; its text says why."""


class Listener(Protocol):
    """Who is told what a stream gives."""

    def deliver(self, lines: Sequence[Line]) -> None:
        """Take new lines, at least one."""

    def progress(self, state: str) -> None:
        """Take the newest state of a line that is being overwritten; not for the first or the last time."""

    def tell(self, level: int, text: str) -> None:
        """Take a sentence about the log itself."""

    def refused(self) -> bool:
        """Hear that the account may not read logs there; return whether there is another way to them."""


class ContainerStream:
    """One run's log, read by `read`, which is to be run as a task."""

    def __init__(self, cluster: Cluster, run: Run, listener: Listener, *, cursor: LogCursor | None = None) -> None:
        self.run = run
        self.complete = False
        """Whether it was read to its end."""
        self.reopened = False
        """Whether it was opened again after an end of a stream, when another run may have begun already."""
        self._cluster = cluster
        self._decoder = LineDecoder(cursor)
        self._listener = listener
        self._changed = asyncio.Event()
        self._timeout: asyncio.Timeout | None = None
        self._patience = Patience()
        self._cut = self._opened = self._clean = self._following = False
        self._failures = 0
        self._trouble_since: float | None = None
        self._trouble_told = False
        self._shown = 0.0

    @property
    def cursor(self) -> LogCursor:
        """Up to where lines were delivered."""
        return self._decoder.cursor

    def learn(self, run: Run) -> None:
        """Take notice of what the pod's status now says of the run."""
        before, self.run = self.run, run
        if self._failures:
            self._changed.set()  # who tells of the pod has heard from its cluster: no pause any more
        if run.ended and not before.ended:
            self._changed.set()
            self._be_patient(LAST_SILENCE)
        if run.previous and not before.previous:
            self._changed.set()
            if self.reopened:
                self._cut = True
                self._be_patient(0)

    def end(self) -> None:
        """Treat the container as ended, although no status says so."""
        self.learn(replace(self.run, ended=True))

    async def read(self) -> None:
        """Deliver the log until it was read to its end or cannot be read any more; raises nothing."""
        from airflow_provider_multikueue.clusters.client import ApiError

        while True:
            last = self.run.ended
            self._changed.clear()
            try:
                before = self._decoder.incomplete
                follow = not last and self._patience.follow
                news = await self._connect(follow=follow, previous=self.run.previous)
                if not (last or follow):
                    self._patience.read(news=news)
                if last and self._clean and not news and self._decoder.incomplete == before:
                    # twice the same end: a gateway that ends streams early, in good order, would not do that
                    self._finish()
                    return
            except ApiError as error:
                pause = self._after_error(error)
            except Exception as error:  # whatever it is, it must not fail a task
                if not isinstance(error, _UnreadableError):
                    log.exception("reading the log of %s failed", self.run.pod)
                pause = self._after_failure(str(error) or repr(error))
                if last and self._failures > LAST_TRIES:
                    self._lost("it can't be read")
                    return
            else:
                self._recovered()
                self._failures = 0 if news else self._failures + 1
                pause = self._after_read(last=last)
            if pause is None:
                return
            await self._wait(pause)

    def _after_read(self, *, last: bool) -> float:
        if self._patience.short and not last:
            return SHORT_PAUSE
        if (last and self._clean) or not self._patience.follow:
            return FIRST_PAUSE
        return self._backoff(AGAIN_PAUSE, LAST_PAUSE)

    # -- one connection

    async def _connect(self, *, follow: bool, previous: bool) -> bool:
        """Deliver what one connection gives; return whether there was anything new. ``_clean``: it ended in order."""
        self._cut = False
        before, run = self._decoder.cursor, self.run
        self._following = follow
        try:
            async with (
                asyncio.timeout(self._silence(follow=follow)) as self._timeout,
                self._cluster.log(
                    run.namespace,
                    run.pod,
                    run.container,
                    follow=follow,
                    since_time=before.since_time,
                    previous=previous,
                ) as chunks,
            ):
                self.reopened, self._opened, self._clean = self._opened, True, False
                self._decoder.reconnect()
                async for chunk in chunks:
                    if self._cut:
                        break
                    self._be_patient(self._silence(follow=follow))
                    for start in range(0, len(chunk), SLICE_BYTES):
                        self._read_chunk(chunk[start : start + SLICE_BYTES])
                        await asyncio.sleep(0)
                else:
                    self._clean = True
        except TimeoutError:
            self._clean = False
            if follow and not self._cut and not self.run.ended:
                self._patience.silent()
        finally:
            self._timeout = None
        return self._decoder.cursor != before

    def _finish(self) -> None:
        self.complete = True
        self._take(self._decoder.finish())

    def _silence(self, *, follow: bool) -> float:
        if follow:
            return LAST_SILENCE if self.run.ended else self._patience.silence
        return SEARCH_SILENCE

    def _be_patient(self, seconds: float) -> None:
        if self._timeout is not None:
            with contextlib.suppress(RuntimeError):  # it is ending already
                self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)

    def _read_chunk(self, chunk: bytes) -> None:
        lines = self._decoder.feed(chunk)
        if lines:
            self._shown = time.monotonic()
            if self._following and not is_late(lines[-1][0]):
                self._patience.in_time()
            self._take(lines)
        elif time.monotonic() - self._shown > PROGRESS and (state := self._decoder.progress()):
            self._shown = time.monotonic()
            self._listener.progress(state)

    def _take(self, lines: Sequence[Line]) -> None:
        if self._decoder.gap is not None:
            start, end = self._decoder.gap
            self._decoder.gap = None
            self._say(
                logging.WARNING, f"the log was rotated: lines between {_clock(start)} and {_clock(end)} may be missing"
            )
        trouble = next((line[1] for line in lines if not line[0] and _KUBELET.match(line[1])), None)
        if trouble is not None:
            lines = [line for line in lines if line[0] or not _KUBELET.match(line[1])]
        if lines:
            self._listener.deliver(lines)
        if trouble is not None:
            raise _UnreadableError(trouble)

    # -- what went wrong

    def _after_error(self, error: ApiError) -> float | None:
        """Return after how many seconds to try again; None: not any more."""
        if error.status == 404 or (error.status == 400 and self.run.previous):
            if self._clean:
                self._finish()
            else:
                self._lost("its pod is gone" if error.status == 404 else "its log was removed at a restart")
            return None
        if error.status == 400 and "waiting to start" in error.message:
            self._failures += 1
            return self._backoff(FIRST_PAUSE, LAST_PAUSE)
        if error.status == 403 and not error.starting:
            return None if self._listener.refused() or self.run.ended else REFUSED_PAUSE
        pause = self._after_failure(str(error))
        return max(pause, error.retry_after or 0.0)

    def _after_failure(self, text: str) -> float:
        self._failures += 1
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        if now - self._trouble_since > TROUBLE and not self._trouble_told:
            self._trouble_told = True
            self._say(logging.WARNING, f"it can't be read at present: {text}")
        return self._backoff(FAILED_PAUSE, LAST_PAUSE if self.run.ended else PAUSE)

    def _recovered(self) -> None:
        if self._trouble_told:
            self._say(logging.INFO, "it is being read again")
        self._trouble_since, self._trouble_told = None, False

    def _lost(self, why: str) -> None:
        span = f"lines after {_clock(self.cursor.time)}" if self.cursor.time else "all of its lines"
        until = f" until {_clock(self.run.finished)}" if self.run.finished else ""
        self._say(logging.WARNING, f"{why}; {span}{until} may be missing")

    def _say(self, level: int, text: str) -> None:
        self._listener.tell(level, f"── log of {self.run.container} in pod {self.run.pod}: {text} ──")

    def _backoff(self, first: float, most: float) -> float:
        pause: float = min(first * 2 ** min(self._failures, 10), most) * random.uniform(0.7, 1.3)  # noqa: S311
        return pause

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


def _clock(written: str) -> str:
    return f"{written[11:23].rstrip('Z')} UTC"
