"""Clusters that freeze and die under a job, one after the other: each test has the whole fleet to itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import JOBS
from tests.sandbox.faults import ASIA, EU, REGIONS, US, Site, shell
from tests.sandbox.overlap import BOTH, overlapping

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.asyncio(loop_scope="module")]

AT_ONCE = 1
Object = dict[str, Any]


def ticks(seconds: int) -> Object:
    """Return a job that says each second that it runs, so many times."""
    return shell(f"for i in {{1..{seconds}}}; do echo tick $i; sleep 1; done; echo it ran")


def heard(log: list[str]) -> list[int]:
    """Return the numbers of the ticks in a log."""
    return [int(line.removeprefix("tick ")) for line in log if line.startswith("tick ")]


@overlapping(kueue=BOTH)
async def test_a_frozen_worker_is_told_by_the_job_that_runs_there_and_by_those_that_wait(site: Site) -> None:
    await site.whole()
    site.only(US)
    running = await site.start(ticks(50))
    await running.log.says("tick 3")
    site.only(EU)
    with site.hurt("pause", f"{US}-apiserver"):
        waiting = await site.start(shell("echo it runs"))
        await running.log.says("Worker us-east4 cannot be reached since")
        await waiting.log.says("the manager asks no region", US, "cannot be reached")
    await running.log.says("It can be reached again")
    for job in (running, waiting):
        outcome = await job.outcome(200)
        assert outcome.error is None
        assert outcome.report is not None
        assert len(outcome.report["dispatches"]) == 1
    assert heard(running.log.output) == list(range(1, 51))


@overlapping(kueue=BOTH)
async def test_of_two_copies_after_a_lost_worker_the_one_that_finished_counts(site: Site) -> None:
    await site.whole()
    site.only(US)
    job = await site.start(ticks(60))
    await job.log.says("tick 3")
    site.only(EU)
    with site.hurt("stop", f"{US}-apiserver"):
        await job.log.says("Worker us-east4 cannot be reached since")
        await job.log.says("Evicted from us-east4")
    outcome = await job.outcome(280)
    assert outcome.error is None
    assert outcome.report is not None
    assert outcome.report["phase"] == "SUCCEEDED"
    assert "it ran" in job.log.output


@overlapping
async def test_workers_whose_kueue_is_down_are_named_while_the_job_has_quota(site: Site) -> None:
    await site.whole()
    for region in REGIONS:
        site.sandbox.pause(f"{region}-kueue")
    try:
        job = await site.start(shell("echo it runs"))
        await job.log.says("It has quota, but no region has answered")
    finally:
        for region in REGIONS:
            site.sandbox.resume(f"{region}-kueue")
    outcome = await job.outcome(200)
    assert outcome.error is None


@overlapping
async def test_a_manager_whose_kueue_pauses_takes_new_jobs_later_and_runs_ending_ones_once(site: Site) -> None:
    await site.whole()
    site.only(ASIA)
    job = await site.start(shell("echo begun; sleep 5; echo it ran", ttlSecondsAfterFinished=0))
    await job.log.says("begun")
    with site.hurt("pause", "manager-kueue"):
        later = asyncio.create_task(site.start(shell("echo it runs")))
        await asyncio.sleep(20)  # the length of the outage is the case
        assert not later.done()
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert len(outcome.report["dispatches"]) == 1
    assert job.log.output.count("it ran") == 1
    assert (await (await later).outcome(200)).error is None
    assert len((await site.fleet.manager.list(JOBS, site.namespace))[0]) <= 2


@overlapping
async def test_a_manager_that_freezes_does_not_stop_the_log(site: Site) -> None:
    await site.whole()
    site.only(US)
    job = await site.start(ticks(40))
    await job.log.says("tick 3")
    with site.hurt("pause", "manager-apiserver"):
        await job.log.says("The manager cannot be reached since")
    await job.log.says("It can be reached again")
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert heard(job.log.output) == list(range(1, 41))
