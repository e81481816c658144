"""A task process that is told to stop while it waits."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from airflow_provider_multikueue.exceptions import MultiKueueError
from airflow_provider_multikueue.tasks import Waiting


def test_a_killed_wait_never_ends_as_a_success() -> None:
    waiting = Waiting()

    def on_term(*_: object) -> None:
        waiting.killed = True
        waiting.interrupt()

    before = signal.signal(signal.SIGTERM, on_term)
    try:
        started = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        started.start()
        with pytest.raises(MultiKueueError, match="told to stop"):
            waiting.run(asyncio.Event().wait)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_submission_is_let_finish_and_then_fails_the_killed_task() -> None:
    waiting = Waiting()
    done = []

    async def submit() -> None:
        waiting.killed = True
        waiting.interrupt()
        await asyncio.sleep(0)
        done.append("submitted")

    with pytest.raises(MultiKueueError, match="told to stop"):
        waiting.run(submit, interruptible=False)
    assert done == ["submitted"]


def test_a_wait_that_nobody_disturbs_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert Waiting().run(work) == 7


def test_a_cancellation_that_is_no_kill_stays_one() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        Waiting().run(work)
