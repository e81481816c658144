"""A JobSet with a driver and workers, run by a DAG on a real Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, RecordingAirflow, start
from tests.sandbox.kind_manifests import RESULT, jobset

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(600)]

REGION = "us-east4"


@pytest.fixture
def kinds_fleet() -> Iterator[Sandbox]:
    """A fleet with JobSets: the one that the session uses anyway if it has them, else one of its own."""
    name = os.environ.get("MULTIKUEUE_TEST_SANDBOX")
    if name and "jobset" in Sandbox.attach(name).spec.kinds:
        yield Sandbox.attach(name)
        return
    with Sandbox.start_local(regions=[REGION], kinds=("jobset",)) as sandbox:
        yield sandbox


@pytest.fixture
def airflow(kinds_fleet: Sandbox) -> Iterator[LocalAirflow]:
    """An Airflow for this fleet."""
    for region in kinds_fleet.regions:
        kinds_fleet.capacity(region, **({"after": 0.5} if region == REGION else {"mode": "starve"}))
    with RecordingAirflow(dags=HERE / "dags", connections={"multikueue_default": kinds_fleet.connection()}) as airflow:
        yield airflow


def test_driver_and_workers_are_told_apart_and_the_leaders_result_is_handed_on(airflow: LocalAirflow) -> None:
    driver = f"echo steering; sleep 5; {RESULT % 'driver'}"
    worker = f"echo computing; {RESULT % 'worker'}"
    run = start(airflow, "led", jobset({"driver": (1, driver), "worker": (2, worker)}))
    state = airflow.sync(airflow.wait_run("led", run, within=240))
    log = airflow.sync(airflow.task_text("led", run, "train"))
    assert state == "success", log
    for line in ("[driver-0-0] steering", "[worker-0-0] computing", "[worker-0-1] computing"):
        assert log.count(line) == 1, log
    report: dict[str, Any] = airflow.sync(airflow.xcom("led", run, "train"))
    assert (report["job"]["kind"], report["phase"], report["placement"]["region"]) == ("JobSet", "SUCCEEDED", REGION)
    assert airflow.sync(airflow.xcom("led", run, "after")) == report["result"] == {"role": "driver"}
