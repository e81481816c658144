"""What is watched for a job, on a watch that others began before the job existed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_provider_multikueue.fleets.attention import Attention
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from tests.unit.apiserver import ApiServer, Feed, fleet_config, listed, obj, status, until

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
PART = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "young", "uid": "uid-young"}


class Silence:
    def record(self, level: int, text: str) -> None:
        raise AssertionError(text)


@pytest.fixture
def feed() -> Feed:
    """What the watch of jobs is told."""
    return Feed()


@pytest.fixture
async def server(feed: Feed) -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        for group, version, plural in (("batch", "v1", "jobs"), ("kueue.x-k8s.io", "v1beta2", "workloads")):
            running.on("GET", f"/apis/{group}", {"versions": [{"version": version}], "preferredVersion": {}})
            running.on("GET", f"/apis/{group}/{version}", {"resources": [{"name": plural, "namespaced": True}]})
        running.on("GET", JOBS, listed(obj("old")))
        running.on_watch(JOBS, feed)
        running.on("GET", WORKLOADS, listed())
        yield running


@pytest.fixture
async def fleet(server: ApiServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet whose jobs are watched already for another job."""
    async with open_fleet(fleet_config(server, tmp_path)) as opened:
        watch = await opened.watch_jobs(opened.manager, "default", ("batch", "jobs"))
        other = watch.subscribe("old", lambda: None)
        await until(lambda: other.synced)
        yield opened
        other.close()


async def test_a_job_that_the_watch_has_not_come_to_yet_is_waited_for(
    server: ApiServer, feed: Feed, fleet: Fleet
) -> None:
    server.on("GET", f"{JOBS}/young", obj("young", 2))
    attention = Attention(fleet, PART, Silence())
    starting = asyncio.create_task(attention.start())
    await until(lambda: server.count("GET", f"{JOBS}/young"))
    assert not starting.done()
    feed.send(("ADDED", obj("young", 2)))
    await starting
    assert attention.job is not None
    attention.close()


async def test_a_job_that_is_gone_is_not_waited_for(server: ApiServer, fleet: Fleet) -> None:
    server.on("GET", f"{JOBS}/young", status(404, "gone"), obj("young", 5, metadata={"uid": "a-successor"}))
    for _ in range(2):
        attention = Attention(fleet, PART, Silence())
        await attention.start()
        assert attention.view(0.0).job is None
        attention.close()


async def test_a_job_that_was_made_during_an_outage_is_not_taken_for_gone_after_it(
    server: ApiServer, feed: Feed, fleet: Fleet
) -> None:
    """The watch goes on at once, and comes to the job some moments later."""
    server.on("GET", f"{JOBS}/young", obj("young", 2))
    server.on_watch(JOBS, status(503, "away"))
    feed.send("cut")
    watch = await fleet.watch_jobs(fleet.manager, "default", ("batch", "jobs"))
    await until(lambda: watch.trouble)
    attention = Attention(fleet, PART, Silence())
    await attention.start()
    again = Feed()
    server.on_watch(JOBS, again)
    await until(lambda: watch.trouble is None)
    assert not attention.view(0.0).job_seen
    looking = asyncio.create_task(attention.resolve_doubt())
    await until(lambda: server.count("GET", f"{JOBS}/young"))
    assert not looking.done()
    again.send(("ADDED", obj("young", 2)))
    await looking
    assert attention.job is not None
    attention.close()


async def test_a_job_that_was_deleted_during_an_outage_is_gone_after_it(
    server: ApiServer, feed: Feed, fleet: Fleet
) -> None:
    server.on("GET", f"{JOBS}/young", status(404, "gone"))
    server.on_watch(JOBS, status(503, "away"))
    feed.send("cut")
    watch = await fleet.watch_jobs(fleet.manager, "default", ("batch", "jobs"))
    await until(lambda: watch.trouble)
    attention = Attention(fleet, PART, Silence())
    await attention.start()
    server.on_watch(JOBS, Feed())
    await until(lambda: watch.trouble is None)
    await attention.resolve_doubt()
    assert attention.view(0.0).job_seen
    attention.close()
