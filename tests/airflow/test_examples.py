"""The example DAGs, run by a real Airflow on a real fleet."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.api import Sandbox

pytestmark = [pytest.mark.airflow, pytest.mark.broad, pytest.mark.timeout(400)]

ON_AIRFLOW_2 = "MULTIKUEUE_TEST_AIRFLOW_PYTHON" in os.environ
"""The long tests run again on Airflow 2.11, which that variable names."""

PROGRAM = {
    "image": "busybox",
    "command": ["sh", "-c"],
    "args": ["for i in $(seq 100); do echo line $i; done; sleep 2"],
}


@pytest.mark.parametrize(("quick", "branch"), [("us-east4", "publish_abroad"), ("europe-west4", "publish_in_europe")])
def test_a_dag_goes_on_with_the_region_that_had_capacity(
    fleet: Sandbox, airflow: LocalAirflow, quick: str, branch: str
) -> None:
    fleet.capacity(mode="starve")
    fleet.capacity(quick, after=1)
    run = airflow.sync(airflow.trigger("train_anywhere", conf=PROGRAM))
    state = airflow.sync(airflow.wait_run("train_anywhere", run, within=120))
    text = airflow.sync(airflow.task_text("train_anywhere", run, "train"))
    assert state == "success", text
    lines = Counter(line.rpartition("] ")[2] for line in text.split("\n") if "line " in line)
    assert lines == {f"line {number}": 3 for number in range(1, 101)}, text
    placement = airflow.sync(airflow.xcom("train_anywhere", run, "train", "placement"))
    assert placement["region"] == quick
    assert f"Trained in {quick}" in airflow.sync(airflow.task_text("train_anywhere", run, "show_region"))
    states = {each["task_id"]: each["state"] for each in airflow.sync(airflow.task_instances("train_anywhere", run))}
    skipped = ({"publish_abroad", "publish_in_europe"} - {branch}).pop()
    assert (states[branch], states[skipped]) == ("success", "skipped")


def test_ten_jobs_spread_over_the_regions(fleet: Sandbox, airflow: LocalAirflow) -> None:
    for region in fleet.regions:
        fleet.capacity(region, after=1, gpus=12)
    run = airflow.sync(airflow.trigger("train_many", conf={**PROGRAM, "args": ["sleep 5"]}))
    state = airflow.sync(airflow.wait_run("train_many", run, within=240))
    assert state == "success", airflow.sync(airflow.task_text("train_many", run, "train", map_index=0))
    counted = airflow.sync(airflow.xcom("train_many", run, "count_regions"))
    assert sum(counted.values()) == 10
    assert set(counted) <= set(fleet.regions)
    assert len(counted) > 1


@pytest.mark.skipif(ON_AIRFLOW_2, reason="Airflow 2 has no retry policies")
def test_code_that_fails_is_not_tried_again_by_the_policy(fleet: Sandbox, airflow: LocalAirflow) -> None:
    fleet.capacity("us-east4", after=1)
    failing = {**PROGRAM, "args": ["exit 3"]}
    run = airflow.sync(airflow.trigger("retry_by_cause", conf=failing))
    assert airflow.sync(airflow.wait_run("retry_by_cause", run, within=120)) == "failed"
    train = airflow.sync(airflow.task_instance("retry_by_cause", run, "train"))
    assert (train["state"], train["try_number"]) == ("failed", 1)
    report = airflow.sync(airflow.xcom("retry_by_cause", run, "train", "report"))
    assert report["phase"] == "FAILED"
