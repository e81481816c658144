"""What a task run of a real Airflow sends to a real StatsD socket: once a job, from worker and triggerer alike."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, RecordingAirflow, job, start, until_shown
from tests.statsd import Sample, StatsdServer

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(300)]

WHERE = {"namespace": "default", "queue": "dws-local-queue", "region": "us-east4"}


@pytest.fixture(scope="module")
def server() -> Iterator[StatsdServer]:
    """Take what Airflow sends of the provider's metrics."""
    with StatsdServer("airflow.multikueue.") as server:
        yield server


@pytest.fixture(scope="module")
def airflow(server: StatsdServer, multikueue_sandbox: Sandbox) -> Iterator[LocalAirflow]:
    """A real Airflow that sends its metrics to the server."""
    with RecordingAirflow(
        dags=HERE / "dags",
        python=os.environ.get("MULTIKUEUE_TEST_AIRFLOW_PYTHON", sys.executable),
        connections={"multikueue_default": multikueue_sandbox.connection()},
        settings={f"metrics.{name}": value for name, value in server.settings.items()},
    ) as airflow:
        yield airflow


@pytest.fixture(autouse=True)
def forgotten(server: StatsdServer) -> None:
    """Begin each test with no samples."""
    server.samples.clear()


def count(server: StatsdServer, name: str) -> list[Sample]:
    return server.named(f"airflow.multikueue.{name}")


@pytest.mark.parametrize("dag_id", ["deferred", "in_worker"])
def test_a_job_is_counted_once_with_its_region(
    airflow: LocalAirflow, granting: Sandbox, server: StatsdServer, dag_id: str
) -> None:
    run = start(airflow, dag_id, job("for i in range(40): print('line', i)"))
    assert airflow.sync(airflow.wait_run(dag_id, run)) == "success"
    report = airflow.sync(airflow.xcom(dag_id, run, "train"))

    submitted = {key: value for key, value in WHERE.items() if key != "region"}
    assert [each.tags for each in count(server, "submissions")] == [submitted]
    assert [each.tags for each in count(server, "admissions")] == [WHERE]
    assert [each.tags for each in count(server, "dispatches")] == [WHERE]
    (wait,) = count(server, "admission_wait")
    assert (wait.kind, wait.value, wait.tags) == ("ms", pytest.approx(report["waited_seconds"] * 1000, abs=1), WHERE)
    (outcome,) = count(server, "outcomes")
    assert outcome.tags == WHERE | {"phase": "SUCCEEDED", "error": "none"}
    assert not count(server, "evictions")

    async def lines() -> float:
        return sum(each.value for each in count(server, "log_lines"))

    # They are counted in the process that reads them, and sent at the latest ten seconds after.
    airflow.sync(poll(lines, lambda seen: seen >= 40, within=30, what="the lines to be counted"))
    assert airflow.sync(lines()) == 40


def test_a_restart_of_the_triggerer_counts_nothing_twice(
    airflow: LocalAirflow, granting: Sandbox, server: StatsdServer
) -> None:
    run = start(
        airflow, "deferred", job("import time\nprint('begin', flush=True)\ntime.sleep(40)\nraise SystemExit(3)")
    )
    until_shown(airflow, "deferred", run, "begin")
    airflow.signal("triggerer", signal.SIGKILL)
    airflow.sync(airflow.components["triggerer"].wait())
    airflow.sync(airflow.start_component("triggerer"))
    assert airflow.sync(airflow.wait_run("deferred", run, within=150)) == "failed"

    assert (
        len(count(server, "submissions")) == len(count(server, "admissions")) == len(count(server, "dispatches")) == 1
    )
    (outcome,) = count(server, "outcomes")
    assert outcome.tags == WHERE | {"phase": "FAILED", "error": "JobFailedError"}
