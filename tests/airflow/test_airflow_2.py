"""The main job on Airflow 2.11: submitted, deferred, its output shown live, its region handed on, killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, RecordingAirflow, Watcher, job, prefix, start, started, until_gone

pytestmark = [pytest.mark.airflow, pytest.mark.broad, pytest.mark.timeout(400)]

PYTHON = os.environ.get("MULTIKUEUE_TEST_AIRFLOW_2_PYTHON")


@pytest.fixture(scope="module")
def airflow_2(fleet: Sandbox) -> Iterator[LocalAirflow]:
    """An Airflow 2.11 that knows the fleet."""
    if PYTHON is None:
        pytest.skip("MULTIKUEUE_TEST_AIRFLOW_2_PYTHON names no interpreter; `scripts/test.sh` sets it")
    connections = {"multikueue_default": fleet.connection()}
    with RecordingAirflow(dags=HERE / "dags", python=Path(PYTHON), connections=connections) as airflow:
        yield airflow


def test_a_deferred_job_is_followed_and_its_region_handed_on(
    airflow_2: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    manifest = job("for i in range(3): print('line', i, flush=True)", pods=2)
    run = start(airflow_2, "deferred", manifest)
    assert airflow_2.sync(airflow_2.wait_run("deferred", run, within=180)) == "success"
    assert airflow_2.sync(airflow_2.xcom("deferred", run, "after")) == "us-east4"
    text = airflow_2.sync(airflow_2.task_text("deferred", run, "train"))
    assert [text.count(f"line {i}") for i in range(3)] == [2, 2, 2]
    assert not watcher.jobs(prefix(manifest))


def test_a_deferred_task_marked_failed_takes_its_job_along(
    airflow_2: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    run, name = started(airflow_2, "deferred")
    airflow_2.sync(airflow_2.mark("deferred", run, "train", "failed"))
    until_gone(airflow_2, watcher, name)
