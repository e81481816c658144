"""Ends every process that carries a mark in its environment, also when whoever started them was killed.

Airflow's components start processes of their own, in process groups and sessions of their own, so that neither a group
nor the death of a parent reaches them all. What they cannot shed is the environment that they began with.

``python -m airflow_provider_multikueue.sandbox.leash VARIABLE VALUE [FOLDER]`` waits until its standard input is
closed, which the kernel does when its parent dies, then ends what is marked and removes FOLDER.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["Leash", "end_marked", "marked"]


def marked(variable: str, value: str) -> list[int]:
    """Return the ids of this user's processes that were started with ``variable=value``, zombies and us excluded."""
    needle = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_marked(variable: str, value: str, *, grace: float = 0.0) -> int:
    """End all marked processes, by SIGTERM and after ``grace`` seconds by SIGKILL; return how many there were.

    Does not return before they are gone.
    """
    first = marked(variable, value)
    _signal(first, signal.SIGTERM if grace else signal.SIGKILL)
    deadline = time.monotonic() + grace
    while left := marked(variable, value):
        if time.monotonic() >= deadline:
            # In a loop, since one may have started another between our look and our kill.
            _signal(left, signal.SIGKILL)
        time.sleep(0.02)
    return len(first)


class Leash:
    """A small process that ends what is marked as soon as this process ends, however that happens."""

    def __init__(self, variable: str, value: str, folder: Path | None = None) -> None:
        command = [sys.executable, "-m", __name__, variable, value, *([str(folder)] if folder else [])]
        # A session of its own, so that Ctrl-C in the terminal does not end the one who cleans up after it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def release(self) -> None:
        """End what is marked, remove the folder, and wait until that is done."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def main() -> None:
    """Wait for the end of the parent, then clean up after it."""
    variable, value, *folder = sys.argv[1:]
    sys.stdin.buffer.read()
    end_marked(variable, value)
    if folder:
        shutil.rmtree(folder[0], ignore_errors=True)


if __name__ == "__main__":
    main()
