"""A triggerer stalls so long that another takes its tasks over, and then goes on: for a while both read the pods."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_component import Component
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, RecordingAirflow, Watcher, job, prefix, start, until_shown

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(600)]

LINES = 75
LOST = "an earlier reader was lost"
LEFT = "Trigger cancelled by user action, invoking on_kill"
QUICK = {"triggerer.triggerer_health_check_threshold": 12, "triggerer.job_heartbeat_sec": 2}


@pytest.fixture
def airflow(fleet: Sandbox) -> Iterator[LocalAirflow]:
    """An Airflow of its own, which soon holds a triggerer for lost."""
    with RecordingAirflow(
        dags=HERE / "dags", connections={"multikueue_default": fleet.connection()}, settings=QUICK
    ) as running:
        yield running


@contextmanager
def second_triggerer(airflow: LocalAirflow) -> Iterator[Component]:
    """Another triggerer of the same Airflow."""
    first = airflow.components["triggerer"]
    second = Component("second", first.command, first.environment, airflow.layout.home / "second.log")
    second.start()
    try:
        yield second
    finally:
        asyncio.run(second.stop())


def test_two_readers_of_the_same_pods_leave_no_gap_and_say_what_may_repeat(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    manifest = job(f"import time\nfor i in range({LINES}): print('tock', i, flush=True); time.sleep(1)")
    run = start(airflow, "deferred", manifest)
    until_shown(airflow, "deferred", run, "tock 8")
    (before,) = watcher.jobs(prefix(manifest))
    with second_triggerer(airflow):
        airflow.signal("triggerer", signal.SIGSTOP)
        until_shown(airflow, "deferred", run, LOST)
        airflow.signal("triggerer", signal.SIGCONT)
        until_shown(airflow, "deferred", run, LEFT)
        (still,) = watcher.jobs(prefix(manifest))
        assert still["metadata"]["uid"] == before["metadata"]["uid"], "on_kill of the stalled one is no kill"
        assert airflow.sync(airflow.wait_run("deferred", run, within=200)) == "success"
    first, second = logs_of_triggerers(airflow, run)
    text = airflow.sync(airflow.task_text("deferred", run, "train"))
    shown = [tocks(first), tocks(second)]
    assert {*shown[0], *shown[1]} == set(range(LINES)), text
    assert all(each == sorted(set(each)) for each in shown), text
    assert LOST in second, text
    assert LINES - 1 not in shown[0], "the one that was taken over from stops reading"


def logs_of_triggerers(airflow: LocalAirflow, run: str) -> list[str]:
    """Return what each triggerer wrote into the task's log, in the order in which they began."""
    files = airflow.layout.home.glob(f"logs/**/run_id={run}/task_id=train/*.trigger.*.log")
    ordered = sorted(files, key=lambda path: int(path.name.split(".")[-2]))
    return ["\n".join(json.loads(line)["event"] for line in path.read_text().split("\n") if line) for path in ordered]


def tocks(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\btock (\d+)", text)]
