"""What an operator and a sensor share: waiting for a job in the worker's process or in the triggerer, and being killed.

A worker's process is told to stop by a signal whose handler runs in the middle of whatever happens, perhaps inside an
event loop. So the handler's work gets a thread and a loop of its own, within a bound, and the wait itself is made to
fail.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from airflow_provider_multikueue.exceptions import MultiKueueError

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.orders import Orders
    from airflow_provider_multikueue.decisions.outcome import Outcome
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.hooks import MultiKueueHook

__all__ = ["Waiting", "WaitsForJob", "will_retry"]

T = TypeVar("T")

KILL_SECONDS = 4.0
"""A task process that was told to stop is killed after 5 s."""

ASK_SECONDS = 1.5
"""How much of that Airflow may take to say what became of the task; the rest is for the deletion."""


def will_retry(ti: Any) -> bool:
    """Whether Airflow runs the task again if this try fails."""
    return int(ti.try_number) <= int(ti.max_tries)


class Waiting:
    """The wait of one task process, as far as a signal handler has to know it."""

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = None
        self.ti: Any = None
        self.killed = False
        self.ended = False
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
    execution_timeout: timedelta | None
    deferrable: bool
    defer: Callable[..., NoReturn]
    log: Any
    _owned: bool
    _waiting: Waiting

    @property
    def hook(self) -> MultiKueueHook:
        """The hook of this task's connection."""
        from airflow_provider_multikueue.hooks import MultiKueueHook

        return MultiKueueHook(self.multikueue_conn_id)

    def _execution_deadline(self, ti: Any) -> datetime | None:
        """Return when ``execution_timeout`` is over, which Airflow does not enforce while a task is deferred.

        A worker process does enforce it, and less kindly than we do: there we are a little earlier.
        """
        timeout = self.execution_timeout
        if timeout is None:
            return None
        early = timedelta() if self.deferrable else min(timedelta(seconds=5), timeout / 10)
        end: datetime = ti.start_date + timeout - early
        return end

    def on_kill(self) -> None:
        """Do what ``on_kill_action`` says if the task is not to go on, and make the wait end as a failure.

        A job that has ended is kept: the next try reports it. So is one that the next try takes over.
        """
        job = self._waiting.job
        self._waiting.killed = True
        if job is not None and not self._waiting.ended and self._gives_up():
            _in_thread(lambda: self._delete(job), KILL_SECONDS - ASK_SECONDS)
        self._waiting.interrupt()

    def _gives_up(self) -> bool:
        """Whether the job is to be deleted as nobody will wait for it any more; so it is where that can't be told.

        Airflow also calls `on_kill` at ``execution_timeout``, for which the job is not to run on.
        """
        if self.on_kill_action == "keep":
            return False
        from airflow_provider_multikueue._compat import AirflowTaskTimeout, task_state
        from airflow_provider_multikueue.kill import judge_process

        if isinstance(sys.exc_info()[1], AirflowTaskTimeout):
            return True
        ti = self._waiting.ti
        states = _in_thread(lambda: task_state(ti), ASK_SECONDS)
        return not states or judge_process(states[0], retried=will_retry(ti))

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
        async with self.hook.open() as (fleet, _):
            await self._delete_if_mine(fleet, job, wait=KILL_SECONDS / 2)

    async def _delete_if_mine(self, fleet: Fleet, job: Mapping[str, Any], **options: float) -> None:
        """Delete the job unless it has ended, or another try of the task has taken it over."""
        from airflow_provider_multikueue.hooks import LogSink, owner_of_task
        from airflow_provider_multikueue.kill import delete_if_mine

        owner = owner_of_task(self._waiting.ti) if self._owned else None
        await delete_if_mine(fleet, job, owner=owner, sink=LogSink(self.log), keep_ended=True, **options)


def _in_thread(work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> list[T]:
    """Return what a coroutine gives in a thread and a loop of its own; nothing if it fails or takes longer."""
    results: list[T] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work()))
        except Exception:
            logging.getLogger(__name__).warning("what a stop of the task asks for failed", exc_info=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results
