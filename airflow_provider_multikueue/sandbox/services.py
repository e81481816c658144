"""Long-running programs of a fleet, each with a log file, none of which outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from airflow_provider_multikueue.sandbox.lifetime import die_with_parent

__all__ = ["Program", "Service", "log_tail"]

_RESTARTS_A_MINUTE = 5

SETTLED: Final = 5.0
"""Seconds for which a program that was started again must have run to be taken for one that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How to start one program, and where its output goes."""

    name: str
    command: Sequence[str]
    log: Path
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def log_tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log, long ones cut."""
    try:
        with path.open(errors="replace") as file:
            return "\n".join(line.rstrip()[:400] for line in deque(file, maxlen=lines))
    except OSError:
        return ""


class Service:
    """A program that is kept running, until it is stopped on purpose, and that may be paused meanwhile.

    A program that ends by itself is started again after a moment, as a cluster would do; one that ends often in a row
    is given up.
    """

    def __init__(self, program: Program, *, changed: Callable[[], None]) -> None:
        self.program = program
        self.state = "stopped"
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._starts: deque[float] = deque(maxlen=_RESTARTS_A_MINUTE)

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def failed(self) -> bool:
        """Whether the program keeps ending by itself."""
        return self.state == "failed"

    @property
    def unsettled(self) -> bool:
        """Whether the program has ended by itself and was started again only just now, or will be."""
        again = len(self._starts) > 1 and time.monotonic() - self._starts[-1] < SETTLED
        return self.state == "restarting" or (again and self.state == "running")

    async def start(self) -> None:
        """Start the program, if it doesn't run, and keep it running."""
        if self._keeper is None or self._keeper.done():
            self._starts.clear()
            await self._spawn()
            self._keeper = asyncio.create_task(self._keep())

    async def stop(self, *, grace: float = 0.0) -> None:
        """End the program: by SIGTERM if there is a grace, by SIGKILL after it."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if (process := self._process) and process.returncode is None:
            if grace:
                self._signal(signal.SIGCONT)
                self._signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), grace)
            self._signal(signal.SIGKILL)
            await process.wait()
        self._become("stopped")

    def pause(self) -> None:
        """Freeze the program: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)
        self._become("paused")

    def resume(self) -> None:
        """Let a frozen program go on."""
        self._signal(signal.SIGCONT)
        self._become("running")

    async def _spawn(self) -> None:
        program = self.program
        program.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._starts.append(time.monotonic())
        with os.fdopen(os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *program.command,
                cwd=program.folder,
                env={key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LANG") if key in os.environ}
                | dict(program.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(os.getpid()),
            )
        self._become("running")

    async def _keep(self) -> None:
        while self._process is not None:
            await self._process.wait()
            starts = self._starts
            if len(starts) == starts.maxlen and time.monotonic() - starts[0] < 60:
                self._become("failed")
                return
            self._become("restarting")
            await asyncio.sleep(0.2 * 2 ** len(starts))
            await self._spawn()

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _become(self, state: str) -> None:
        self.state = state
        self._changed()
