"""Annotations that we leave on the job for whoever follows it next: best effort, and never in anyone's way.

A manager that hangs must not hold up a decision, so notes are written beside the loop that makes them, one at a time
and only the newest of each name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

__all__ = ["Notes"]


@dataclass(slots=True)
class Notes:
    """Notes on one job; ``write`` puts annotations on it."""

    write: Callable[[dict[str, str]], Awaitable[None]]
    _waiting: dict[str, str] = field(default_factory=dict)
    _writer: asyncio.Task[None] | None = None

    def put(self, name: str, text: str) -> None:
        """Write the annotation soon."""
        self._waiting[name] = text
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def flush(self, seconds: float) -> None:
        """Wait until all is written, at most that long."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=seconds)

    async def close(self) -> None:
        """Let go of what is not written."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])

    async def _write(self) -> None:
        from airflow_provider_multikueue.clusters.client import ApiError

        while self._waiting:
            notes, self._waiting = self._waiting, {}
            with contextlib.suppress(ApiError):
                await self.write(notes)
