"""A kill outlives the second that a triggerer waits for it; its lines are in the task's log before that is closed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from airflow_provider_multikueue import kill, triggers
from airflow_provider_multikueue._compat import AIRFLOW_2
from airflow_provider_multikueue.fleets import stop
from airflow_provider_multikueue.triggers import MultiKueueJobTrigger


async def stopped(trigger: MultiKueueJobTrigger) -> None:
    """Stop a trigger as Airflow does: it waits for ``on_kill``, is cancelled anew, and cleans up at last."""
    if not AIRFLOW_2:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(trigger.on_kill(), timeout=30)
    await trigger.cleanup()


@pytest.mark.parametrize(("action", "killed"), [("delete", ["begun", "done"]), ("keep", [])])
async def test_a_trigger_that_is_cancelled_again_and_again_ends_after_its_kill(
    monkeypatch: pytest.MonkeyPatch, action: str, killed: list[str]
) -> None:
    said: list[str] = []

    async def slow(self: Any) -> None:
        said.append("begun")
        await asyncio.sleep(0.3)
        said.append("done")

    monkeypatch.setattr(MultiKueueJobTrigger, "_kill", slow)
    trigger = MultiKueueJobTrigger(job={}, orders={}, multikueue_conn_id="fleet", on_kill_action=action)
    stopping = asyncio.create_task(stopped(trigger))
    while not stopping.done():
        await asyncio.sleep(0.02)
        stopping.cancel()
    assert said == killed


def test_pods_are_waited_for_no_longer_than_airflow_waits_for_a_kill() -> None:
    worst = kill.UNCLEAR_SECONDS + triggers.GONE_SECONDS + stop.ANSWER_SECONDS
    assert worst < triggers.KILL_SECONDS < 30
