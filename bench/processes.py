"""What a process and its children use, from ``/proc``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

__all__ = ["children", "cpu_seconds", "until_quiet"]

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int, *, ended_children: bool = False) -> float:
    """Return the processor time that a process used, with that of its children that have ended if that is wanted."""
    with contextlib.suppress(OSError):
        fields = _stat(pid)
        return sum(map(int, fields[11 : 15 if ended_children else 13])) / TICKS
    return 0.0


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and their children, those alive."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return sorted(found - {pid})


def _stat(pid: int) -> list[str]:
    """Return the fields of a process' state, from the third on: a name may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def until_quiet(pids: list[int], *, share: float = 0.2, seconds: float = 240.0) -> float:
    """Return, as seconds from now, when the processes together began to use less than that share of a processor."""
    begun = quiet = time.monotonic()
    while time.monotonic() - begun < seconds:
        before, at = sum(map(cpu_seconds, pids)), time.monotonic()
        await asyncio.sleep(1)
        if (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - at) > share:
            quiet = time.monotonic()
        elif time.monotonic() - quiet > 4:
            break
    return quiet - begun
