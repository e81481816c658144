"""What an operator and a sensor share: waiting for a job in the worker's process or in the triggerer, and being killed.

A worker's process is told to stop by a signal whose handler runs in the middle of whatever happens, perhaps inside an
event loop. So the handler's work gets a thread and a loop of its own, within a bound, and the wait itself is made to
fail.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from airflow_provider_multikueue.exceptions import MultiKueueError

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.orders import Orders
    from airflow_provider_multikueue.decisions.outcome import Outcome
    from airflow_provider_multikueue.hooks import MultiKueueHook

__all__ = ["Waiting", "WaitsForJob"]

T = TypeVar("T")

KILL_SECONDS = 4.0
"""A task process that was told to stop is killed after 5 s."""


class Waiting:
    """The wait of one task process, as far as a signal handler has to know it."""

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = None
        self.killed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, interruptible: bool = True) -> T:
        """Run a coroutine to its end; one that is not interruptible is let finish although the task was killed.

        Raises:
            MultiKueueError: the task was killed meanwhile; a killed task never ends as a success.
        """

        async def main() -> T:
            if interruptible:
                self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            return await work()

        try:
            result = asyncio.run(main())
        except asyncio.CancelledError:
            if not self.killed:
                raise
        finally:
            self._loop = self._task = None
        if self.killed:
            raise MultiKueueError("The task was told to stop while it waited for its job.")
        return result

    def interrupt(self) -> None:
        """Cancel the wait, from a signal handler or another thread."""
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)


class WaitsForJob:
    """Mixed into an operator that waits for one job; ``_waiting`` is made by its constructor.

    ``_owned`` says whether the job is the task's own, which a sensor's is not.
    """

    multikueue_conn_id: str
    on_kill_action: Literal["delete", "keep"]
    defer: Callable[..., NoReturn]
    log: Any
    _owned: bool
    _waiting: Waiting

    @property
    def hook(self) -> MultiKueueHook:
        """The hook of this task's connection."""
        from airflow_provider_multikueue.hooks import MultiKueueHook

        return MultiKueueHook(self.multikueue_conn_id)

    def on_kill(self) -> None:
        """Do what ``on_kill_action`` says, and make the wait end as a failure."""
        job = self._waiting.job
        self._waiting.killed = True
        if job is not None and self.on_kill_action == "delete":
            deletion = threading.Thread(target=lambda: asyncio.run(self._delete(job)), daemon=True)
            deletion.start()
            deletion.join(KILL_SECONDS)
        self._waiting.interrupt()

    def _defer(self, job: dict[str, Any], orders: Orders) -> NoReturn:
        from airflow_provider_multikueue.triggers import MultiKueueJobTrigger

        trigger = MultiKueueJobTrigger(
            job=job,
            orders=orders.to_json(),
            multikueue_conn_id=self.multikueue_conn_id,
            on_kill_action=self.on_kill_action,
            owned=self._owned,
        )
        self.defer(trigger=trigger, method_name="execute_complete", kwargs={"job": job})

    async def _follow(
        self, job: Mapping[str, Any], orders: Orders, put: Callable[[str, Any], object] = lambda _key, _value: None
    ) -> Outcome:
        """Follow the job; ``put`` writes an XCom."""
        from airflow_provider_multikueue.fleets.follow import follow
        from airflow_provider_multikueue.hooks import LogSink
        from airflow_provider_multikueue.links import PlacementPush
        from airflow_provider_multikueue.object_storage import target_of

        push = PlacementPush(job, put, opened=self.hook.open())
        return await follow(
            push,
            job,
            orders,
            LogSink(self.log),
            on_placement=push.place,
            target=target_of(orders.log_uri),
        )

    async def _delete(self, job: Mapping[str, Any]) -> None:
        from airflow_provider_multikueue.fleets.stop import delete_job
        from airflow_provider_multikueue.hooks import LogSink

        async with self.hook.open() as (fleet, _):
            await delete_job(fleet, job, LogSink(self.log), wait=KILL_SECONDS / 2)
