"""Many tasks that wait on one event loop, all begun at once, as after a triggerer's restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.names import JOINED
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.decisions.views import DeadRegion, Observation, Phase
from airflow_provider_multikueue.fleets import follow
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from airflow_provider_multikueue.fleets.follow import Following
from tests.unit.apiserver import ApiServer, Feed, fleet_config, listed, obj, until

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
NAMES = [f"train-{number}" for number in range(400)]


class Records(list[str]):
    """What the tasks log."""

    def record(self, level: int, text: str) -> None:
        self.append(text)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        running.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta2"}]})
        running.on("GET", "/apis/kueue.x-k8s.io/v1beta2", {"resources": [{"name": "workloads", "namespaced": True}]})
        running.on("GET", WORKLOADS, listed())
        running.on_watch(JOBS, Feed())
        running.on_watch(WORKLOADS, Feed())
        yield running


@pytest.fixture
async def fleet(server: ApiServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with open_fleet(fleet_config(server, tmp_path)) as opened:
        yield opened


async def begin(fleet: Fleet, records: Records) -> list[Following]:
    """Follow all jobs until each was looked at once; return who followed."""
    parts: list[dict[str, Any]] = [
        {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": name, "uid": f"uid-{name}"}
        for name in NAMES
    ]
    all_ = [Following(fleet, part, Orders(), records) for part in parts]
    running = [asyncio.create_task(following.run()) for following in all_]
    await until(lambda: all(following._seen is not None for following in all_))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for following in all_:
        await following.close()
    return all_


async def test_hundreds_that_begin_at_once_list_once(server: ApiServer, fleet: Fleet) -> None:
    server.on("GET", JOBS, listed(*(obj(name) for name in NAMES)))
    await begin(fleet, Records())
    lists = [seen for seen in server.seen if seen.path in (JOBS, WORKLOADS) and "watch" not in seen.query]
    assert sorted(seen.path for seen in lists) == [JOBS, WORKLOADS]
    assert not [seen for seen in server.seen if seen.path.startswith(f"{JOBS}/")]


async def test_who_goes_on_after_a_restart_logs_nothing(server: ApiServer, fleet: Fleet) -> None:
    joined = {"annotations": {JOINED: "2026-01-01T00:00:00+00:00"}}
    server.on("GET", JOBS, listed(*(obj(name, metadata=joined) for name in NAMES)))
    records = Records()
    await begin(fleet, records)
    assert records == []


async def test_who_begins_says_what_is_waited_for(server: ApiServer, fleet: Fleet) -> None:
    server.on("GET", JOBS, listed(*(obj(name) for name in NAMES)))
    records = Records()
    await begin(fleet, records)
    assert len(records) == len(NAMES)


async def test_who_waits_sleeps_for_minutes_and_does_not_wake_together_with_all_others(
    server: ApiServer, fleet: Fleet
) -> None:
    server.on("GET", JOBS, listed(*(obj(name) for name in NAMES)))
    followings = await begin(fleet, Records())
    seen = Observation(phase=Phase.QUEUED)
    sleeps = [following._longest_sleep(seen, following._told_at) for following in followings]
    assert min(sleeps) >= 600
    assert max(sleeps) - min(sleeps) > 30


async def test_who_waits_for_a_dead_region_looks_again_within_a_minute(server: ApiServer, fleet: Fleet) -> None:
    server.on("GET", JOBS, listed(*(obj(name) for name in NAMES)))
    following, *_ = await begin(fleet, Records())
    region = DeadRegion(cluster="us", region=None, reason="no capacity", since=0.0, healable=True)
    seen = Observation(phase=Phase.PLACING, dead=(region,))
    assert following._longest_sleep(seen, following._told_at) <= 60


def test_hundreds_of_readers_note_their_places_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_saving", set(range(20)))
    assert follow._save_pause() == 5
    monkeypatch.setattr(follow, "_saving", set(range(2000)))
    assert follow._save_pause() == 200
