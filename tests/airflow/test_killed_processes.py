"""Airflow's processes are killed at random moments: each job runs once, and each task gets the right report."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.jobs import reported
from airflow_provider_multikueue.decisions.report import validate_report
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, RecordingAirflow, Watcher, job, prefix, task_processes

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(1500)]

RUNS = int(os.environ.get("MULTIKUEUE_TEST_KILL_RUNS", "20"))
COMPONENTS = ("triggerer", "scheduler", "api-server", "dag-processor", "task", "task")
"""What is killed, in random order; tasks' own processes twice as often, since there are more of them."""

QUICK = {
    # How soon Airflow notices that one of its processes is gone; minutes by default.
    "triggerer.triggerer_health_check_threshold": 12,
    "triggerer.job_heartbeat_sec": 2,
    "scheduler.scheduler_health_check_threshold": 15,
    "scheduler.orphaned_tasks_check_interval": 5,
    "scheduler.task_instance_heartbeat_timeout": 30,
    "scheduler.task_instance_heartbeat_timeout_detection_interval": 5,
    "scheduler.task_queued_timeout": 40,
    "scheduler.task_queued_timeout_check_interval": 5,
}


@pytest.fixture
def fragile(fleet: Sandbox) -> Iterator[LocalAirflow]:
    """An Airflow of its own, since its processes will not live long."""
    for region in fleet.regions:
        fleet.capacity(region, mode="grant", after=0.5)
    with RecordingAirflow(
        dags=HERE / "dags", connections={"multikueue_default": fleet.connection()}, settings=QUICK
    ) as airflow:
        yield airflow


def test_jobs_run_once_each_whatever_of_airflow_is_killed(fragile: LocalAirflow, watcher: Watcher) -> None:
    rng = random.Random(RUNS)
    jobs = [job(f"import time\ntime.sleep({rng.uniform(0, 12):.1f})\nprint('done')") for _ in range(RUNS)]
    kills, reports = fragile.sync(under_fire(fragile, jobs, rng))
    print(f"killed: {kills}")
    for manifest, report in zip(jobs, reports, strict=True):
        report = validate_report(report)
        assert report["phase"] == "SUCCEEDED", report
        assert len(report["dispatches"]) == 1, report
        assert report["placement"] is not None
        ran = {region: list(watcher.output(region, prefix(manifest)).values()) for region in watcher.fleet.regions}
        assert ran == {region: [] for region in watcher.fleet.regions} | {report["placement"]["region"]: [b"done\n"]}
        # A process that was killed between the success and the removal leaves the ended job to the reaper.
        left = [reported(found) for found in watcher.jobs(prefix(manifest))]
        assert all(report is not None and report.succeeded and not report.kept for report in left)


async def under_fire(
    airflow: LocalAirflow, jobs: list[dict[str, Any]], rng: random.Random
) -> tuple[dict[str, int], list[Any]]:
    """Run all jobs while processes are killed; return what was killed, and the tasks' reports."""
    runs = [await airflow.trigger("sturdy", conf={"job": manifest}) for manifest in jobs]
    kills: dict[str, int] = {}
    killer = asyncio.create_task(kill_at_random(airflow, rng, kills))
    try:
        states = [await airflow.wait_run("sturdy", run, within=900) for run in runs]
    finally:
        killer.cancel()
        await asyncio.wait([killer])
    await airflow.start_component("api-server")
    for run, state in zip(runs, states, strict=True):
        assert state == "success", await airflow.task_text("sturdy", run, "train")
    return kills, [await airflow.xcom("sturdy", run, "train") for run in runs]


async def kill_at_random(airflow: LocalAirflow, rng: random.Random, kills: dict[str, int]) -> None:
    """Kill a process every few seconds, for ever; a component is started again a moment later."""
    while True:
        await asyncio.sleep(rng.uniform(3, 12))
        victim = rng.choice(COMPONENTS)
        if victim == "task":
            if not (pids := task_processes(airflow)):
                continue
            os.kill(rng.choice(pids), signal.SIGKILL)
        else:
            airflow.signal(victim, signal.SIGKILL)
            await airflow.components[victim].wait()
            await asyncio.sleep(rng.uniform(0, 3))
            airflow.components[victim].start()
        kills[victim] = kills.get(victim, 0) + 1
