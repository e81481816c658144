"""The trigger: follows one job in the triggerer, live logs included, and fires once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_multikueue import kill
from airflow_provider_multikueue._compat import AIRFLOW_2, BaseTrigger, TriggerEvent, initialize_metrics, task_state
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.fleets.follow import follow
from airflow_provider_multikueue.masking import hide

__all__ = ["MultiKueueJobTrigger"]

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.outcome import Outcome

T = TypeVar("T")

KILL_SECONDS = 25.0
"""Below the 30 s that Airflow gives an ``on_kill`` in all."""
GONE_SECONDS = 10.0
"""How long of that a killed job's pods are waited for; what is left then is said."""

SETTLED_SECONDS = 10.0
"""How long a task is deferred at least.

Airflow's scheduler fails a task that runs again before it has noticed that the process which deferred it ended: the
executor's late "success" then looks like the end of the new process (``process_executor_events``; apache/airflow#72716,
where 7 s were seen). A job that ends at once would be faster; one that gets GPUs hardly ever is.
"""


class MultiKueueJobTrigger(BaseTrigger):
    """Waits for one job on a fleet.

    Its arguments are stored in Airflow's database: ids and absolute times, never a secret. ``owned`` says whether the
    task that defers owns the job (an operator) or looks on (a sensor).
    """

    def __init__(
        self,
        *,
        job: Mapping[str, Any],
        orders: Mapping[str, Any],
        multikueue_conn_id: str,
        on_kill_action: str = "delete",
        owned: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = dict(job)
        self.orders = dict(orders)
        self.multikueue_conn_id = multikueue_conn_id
        self.on_kill_action = on_kill_action
        self.owned = owned
        self._fired = False
        self._killing: asyncio.Future[None] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path, which is stored and must not change, and the arguments."""
        arguments: dict[str, Any] = {
            "job": self.job,
            "orders": self.orders,
            "multikueue_conn_id": self.multikueue_conn_id,
        }
        if self.on_kill_action != "delete":
            arguments["on_kill_action"] = self.on_kill_action
        if not self.owned:
            arguments["owned"] = False
        return "airflow_provider_multikueue.triggers.MultiKueueJobTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: an ``Outcome`` in its plain form."""
        initialize_metrics()
        settled = asyncio.get_running_loop().time() + SETTLED_SECONDS
        outcome = await self._follow()
        await asyncio.sleep(settled - asyncio.get_running_loop().time())
        # Airflow calls on_kill of a trigger that is slow to return after its event: that is no kill.
        self._fired = True
        yield TriggerEvent(hide(outcome.to_event()))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Delete the job if a person meant it: Airflow also calls this for healthy tasks, such as at a takeover."""
        if not self._fired and self.on_kill_action == "delete":
            self._killing = asyncio.ensure_future(self._kill())
            await uninterrupted(self._killing)

    async def cleanup(self) -> None:
        """Let a kill end, which Airflow waits for a second only: after this the task's log takes no line any more.

        On 2.11, which has no ``on_kill``, look whether this exit was one.
        """
        if AIRFLOW_2:
            await self.on_kill()
        elif self._killing is not None:
            await uninterrupted(self._killing)

    @property
    def _ti(self) -> Any:
        """The task instance that deferred, set by the triggerer before it runs us; none in ``dag.test()``."""
        return self.task_instance

    async def _follow(self) -> Outcome:
        from airflow_provider_multikueue.hooks import MultiKueueHook
        from airflow_provider_multikueue.links import PlacementPush
        from airflow_provider_multikueue.logs.emit import shared_emitter
        from airflow_provider_multikueue.object_storage import target_of
        from airflow_provider_multikueue.pushes import shared_pushes

        pushes, orders = shared_pushes().of(self._ti), Orders.from_json(self.orders)
        push = PlacementPush(
            self.job,
            pushes.put,
            opened=MultiKueueHook(self.multikueue_conn_id).open(),
            ready=pushes.prepare,  # opening asks the supervisor too, and comes first
        )
        see = f", see {orders.log_uri}" if orders.log_uri else ""
        async with shared_emitter().sink(self.log, see=see) as sink:
            try:
                return await follow(
                    push,
                    self.job,
                    orders,
                    sink,
                    on_placement=push.place,
                    on_cancel=lambda following: uninterrupted(following.hand_over()),
                    target=target_of(orders.log_uri),
                    reader=_reader(self._ti),
                )
            finally:
                pushes.drop()

    async def _kill(self) -> None:
        from airflow_provider_multikueue.hooks import LogSink, owner_of_task
        from airflow_provider_multikueue.opening import open_connection

        try:
            async with asyncio.timeout(KILL_SECONDS):
                async with open_connection(self.multikueue_conn_id) as (fleet, _):
                    await kill.kill(
                        fleet,
                        self.job,
                        owner=owner_of_task(self._ti) if self.owned else None,
                        state=lambda: task_state(self._ti),
                        sink=LogSink(self.log),
                        wait=GONE_SECONDS,
                    )
        except Exception:  # whatever it is: Airflow would show nothing of it
            self.log.exception(
                "job %s/%s could not be deleted; it may still run", self.job["namespace"], self.job["name"]
            )


def _reader(ti: Any) -> str | None:
    """Return whose log the trigger's is: that of one try, which the next triggerer goes on with; None if none will."""
    from airflow_provider_multikueue.hooks import owner_of_task

    if ti is None:
        return None
    owner = owner_of_task(ti)
    return f"{owner.ti}/{owner.attempt}"


async def uninterrupted(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Await ``work`` to its end; Airflow cancels a trigger that is being stopped anew every second."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            logging.getLogger(__name__).debug("cancelled again while finishing")
        except Exception:  # noqa: BLE001 - raised by result() below
            break
    return task.result()
