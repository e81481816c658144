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
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_multikueue._compat import TaskInstanceKeys, push_xcom, task_state

__all__ = ["PushQueue", "shared_pushes"]

log = logging.getLogger(__name__)

REST = 4.0
LONGEST_REST = 20.0

Key = tuple[str, str, str, int, str]


@dataclass(slots=True)
class PushQueue:
    """Writes waiting to be made; ``put`` never blocks.

    Where the task instance is None, in ``dag.test()``, there is nobody to write for.
    """

    _waiting: dict[Key, tuple[TaskInstanceKeys, Any]] = field(default_factory=dict)
    _writer: asyncio.Task[None] | None = None
    _preparing: asyncio.Task[None] | None = None

    def prepare(self, ti: TaskInstanceKeys | None) -> None:
        """Let the supervisor get ready for the first write, once a process.

        Its first answer takes it seconds in which it shows no log: better while a job waits than while its pods print.
        """
        if ti is not None and self._preparing is None:
            self._preparing = asyncio.get_running_loop().create_task(_ask(ti), context=contextvars.Context())

    def put(self, ti: TaskInstanceKeys | None, key: str, value: Any) -> None:
        """Write ``value`` when it is this key's turn; a value still waiting is replaced."""
        if ti is None:
            return
        self._waiting[_key(ti, key)] = (ti, value)
        if self._writer is None or self._writer.done():
            # No trigger owns the writer: cancelling one must not lose the writes of the others.
            self._writer = asyncio.get_running_loop().create_task(self._write(), context=contextvars.Context())

    def drop(self, ti: TaskInstanceKeys | None) -> None:
        """Forget what waits for a task instance that is done with deferring."""
        if ti is None:
            return
        for key in [key for key in self._waiting if key[:4] == _key(ti, "")[:4]]:
            del self._waiting[key]

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            key = next(iter(self._waiting))
            ti, value = self._waiting.pop(key)
            begun = loop.time()
            try:
                await push_xcom(ti, key[4], value)
            except Exception:
                log.warning("XCom %s of %s.%s could not be written", key[4], key[0], key[2], exc_info=True)
            await asyncio.sleep(min(REST * (loop.time() - begun), LONGEST_REST))


_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PushQueue] = weakref.WeakKeyDictionary()


def shared_pushes() -> PushQueue:
    """Return the queue of the running event loop."""
    return _queues.setdefault(asyncio.get_running_loop(), PushQueue())


async def _ask(ti: TaskInstanceKeys) -> None:
    try:
        await task_state(ti)
    except Exception:
        log.debug("the supervisor did not answer", exc_info=True)


def _key(ti: TaskInstanceKeys, key: str) -> Key:
    return (str(ti.dag_id), str(ti.run_id), str(ti.task_id), int(ti.map_index), key)
