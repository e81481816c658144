"""The signal that thousands of waiting tasks have one each of."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_multikueue.bell import Bell


async def test_all_who_wait_go_on_when_it_rings() -> None:
    bell = Bell()
    waiting = [asyncio.create_task(bell.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    bell.set()
    bell.set()
    await asyncio.gather(*waiting)
    assert bell.is_set()


async def test_who_comes_after_it_rang_does_not_wait_until_it_is_cleared() -> None:
    bell = Bell()
    bell.set()
    await bell.wait()
    bell.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await bell.wait()


async def test_who_gives_up_takes_nobody_along() -> None:
    bell = Bell()
    leaving, staying = asyncio.create_task(bell.wait()), asyncio.create_task(bell.wait())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert not staying.done()
    bell.set()
    await staying


async def test_a_ring_is_not_lost_when_it_is_cleared_at_once() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait())
    await asyncio.sleep(0)
    bell.set()
    bell.clear()
    await waiting
