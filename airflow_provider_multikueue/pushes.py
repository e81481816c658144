"""XComs written by triggers: queued, the newest value of a key only, and never at the expense of everyone else.

A write passes through the triggerer's supervisor, one synchronous thread that meanwhile sends no heartbeat, reads no
log and submits no event of any trigger. So one queue per event loop writes one at a time and then rests four times as
long as the write took, which keeps all our writes under 20 % of the supervisor's time.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_multikueue._compat import TaskInstanceKeys, push_xcom, task_state

__all__ = ["PushQueue", "TaskPushes", "shared_pushes"]

log = logging.getLogger(__name__)

REST = 4.0


Write = Callable[[TaskInstanceKeys, str, Any], Awaitable[object]]
Ask = Callable[[TaskInstanceKeys], Awaitable[object]]


@dataclass(slots=True, eq=False)
class PushQueue:
    """What the triggers of one event loop have to write, a task at a time."""

    _write: Write = push_xcom
    _ask: Ask = task_state
    _waiting: dict[TaskPushes, TaskInstanceKeys] = field(default_factory=dict)
    _writer: asyncio.Task[None] | None = None
    _preparing: asyncio.Task[None] | None = None

    def of(self, ti: TaskInstanceKeys | None) -> TaskPushes:
        """Return the part of one trigger; None, as in ``dag.test()``: there is nobody to write for."""
        return TaskPushes(self, ti)

    def prepare(self, ti: TaskInstanceKeys) -> None:
        """Let the supervisor get ready for the first write, once a process.

        Its first answer takes it seconds in which it shows no log: better while a job waits than while its pods print.
        """
        if self._preparing is None:
            self._preparing = asyncio.get_running_loop().create_task(self._warm_up(ti), context=contextvars.Context())

    def add(self, pushes: TaskPushes, ti: TaskInstanceKeys) -> None:
        """Write what ``pushes`` has when it is its turn."""
        self._waiting[pushes] = ti
        if self._writer is None or self._writer.done():
            # No trigger owns the writer: cancelling one must not lose the writes of the others.
            self._writer = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    def remove(self, pushes: TaskPushes) -> None:
        """Take back a turn."""
        self._waiting.pop(pushes, None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            begun = loop.time()
            await self._write_one(*next(iter(self._waiting.items())))
            await asyncio.sleep(REST * (loop.time() - begun))

    async def _write_one(self, pushes: TaskPushes, ti: TaskInstanceKeys) -> None:
        key, value = pushes.take()
        if not pushes.values:
            del self._waiting[pushes]
        try:
            await self._write(ti, key, value)
        except Exception:
            log.warning("XCom %s of %s.%s could not be written", key, ti.dag_id, ti.task_id, exc_info=True)

    async def _warm_up(self, ti: TaskInstanceKeys) -> None:
        try:
            await self._ask(ti)
        except Exception:
            log.debug("the supervisor did not answer", exc_info=True)


@dataclass(slots=True, eq=False)
class TaskPushes:
    """What one trigger has to write: that of another try of its task is not touched."""

    queue: PushQueue
    ti: TaskInstanceKeys | None
    values: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        """Let the supervisor get ready for the first write."""
        if self.ti is not None:
            self.queue.prepare(self.ti)

    def put(self, key: str, value: Any) -> None:
        """Write ``value`` when it is this task's turn, without blocking; a value still waiting is replaced."""
        if self.ti is not None:
            self.values[key] = value
            self.queue.add(self, self.ti)

    def take(self) -> tuple[str, Any]:
        """Take out what has waited longest."""
        key = next(iter(self.values))
        return key, self.values.pop(key)

    def drop(self) -> None:
        """Forget what waits, once the task is done with deferring: its own process writes what it reports."""
        self.values.clear()
        self.queue.remove(self)


_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PushQueue] = weakref.WeakKeyDictionary()


def shared_pushes() -> PushQueue:
    """Return the queue of the running event loop."""
    return _queues.setdefault(asyncio.get_running_loop(), PushQueue())
