"""One process of an Airflow, with its log, that can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Component", "log_tail"]


def log_tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a log, long ones cut."""
    try:
        with path.open(errors="replace") as file:
            return "\n".join(line.rstrip()[:400] for line in deque(file, maxlen=lines))
    except OSError:
        return ""


class Component:
    """A component such as the scheduler.

    ``command`` and ``environment`` are what its processes are given, ``started`` is the epoch second of the last start.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self.started = 0.0
        self.environment = dict(environment)
        self.command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """How the last process ended; None while it runs, or before it was started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.pid is not None:
            return
        self.started = time.time()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the component's main process alone; one that has ended is left alone."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self, within: float = 30.0) -> int | None:
        """Wait for the end of the process and return its exit code; raises TimeoutError."""
        deadline = time.monotonic() + within
        while self.pid is not None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} did not end within {within:g} s.")
            await asyncio.sleep(0.02)
        return self.exit_code

    async def stop(self, *, grace: float = 20.0) -> None:
        """End the process: by SIGTERM, by SIGKILL after ``grace`` seconds."""
        self.signal(signal.SIGTERM)
        try:
            await self.wait(grace)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.wait()

    def tail(self, lines: int = 20) -> str:
        """Return the last lines that the component printed."""
        return log_tail(self.log, lines)
