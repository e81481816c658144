"""A DAG runs a job on a real fleet, through a real Airflow: what the task returns, shows and raises."""

from __future__ import annotations

import re

import pytest

from airflow_provider_multikueue.decisions.report import validate_report
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import Watcher, job, prefix, start, until_shown

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("dag_id", ["deferred", "in_worker"])
def test_a_job_of_three_pods_brings_its_region_and_its_lines(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, dag_id: str
) -> None:
    manifest = job("import os,time\nfor i in range(5): print('line', i, flush=True); time.sleep(.1)", pods=3)
    run = start(airflow, dag_id, manifest)
    assert airflow.sync(airflow.wait_run(dag_id, run)) == "success"

    report = validate_report(airflow.sync(airflow.xcom(dag_id, run, "train")))
    assert report["phase"] == "SUCCEEDED"
    assert report["placement"] is not None
    assert report["placement"]["region"] == "us-east4"
    assert len(report["dispatches"]) == 1
    assert airflow.sync(airflow.xcom(dag_id, run, "after")) == "us-east4"
    assert airflow.sync(airflow.xcom(dag_id, run, "train", "placement"))["cluster"] == report["placement"]["cluster"]
    text = airflow.sync(airflow.task_text(dag_id, run, "train"))
    assert sorted(re.findall(r"line \d", text)) == sorted(f"line {i}" for i in range(5) for _ in range(3))
    assert not watcher.jobs(prefix(manifest)), "the ended job is removed from the manager"


@pytest.mark.parametrize("suspend", [True, False])
def test_an_instant_job_of_many_lines_is_shown_whole_and_fails_with_its_exit_code(
    airflow: LocalAirflow, granting: Sandbox, suspend: bool
) -> None:
    manifest = job("for i in range(5000): print('number', i)\nraise SystemExit(3)", suspend=suspend)
    run = start(airflow, "deferred", manifest)
    assert airflow.sync(airflow.wait_run("deferred", run)) == "failed"

    text = airflow.sync(airflow.task_text("deferred", run, "train"))
    assert [int(n) for n in re.findall(r"^number (\d+)$", text, re.MULTILINE)][:5000] == list(range(5000))
    assert "JobFailedError" in text
    assert re.search(r"exit(ed with)? code 3|exit code 3", text)
    report = validate_report(airflow.sync(airflow.xcom("deferred", run, "train", "report")))
    assert report["phase"] == "FAILED"


def test_the_region_is_known_while_the_job_still_runs(airflow: LocalAirflow, granting: Sandbox) -> None:
    manifest = job("import time\nprint('begin', flush=True)\ntime.sleep(25)")
    run = start(airflow, "deferred", manifest)

    async def placement() -> object:
        try:
            return await airflow.xcom("deferred", run, "train", "placement")
        except KeyError:
            return None

    seen = airflow.sync(poll(placement, bool, within=60, what="the placement to be known"))
    assert seen["region"] == "us-east4"  # type: ignore[index]
    until_shown(airflow, "deferred", run, "begin")  # the placement is known a moment before
    assert airflow.sync(airflow.task_state("deferred", run, "train")) == "deferred"
    assert airflow.sync(airflow.wait_run("deferred", run)) == "success"


def test_a_job_that_no_region_grants_is_given_up_and_deleted(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    granting.capacity(mode="starve")
    manifest = job("pass")
    run = start(airflow, "impatient", manifest)
    assert airflow.sync(airflow.wait_run("impatient", run)) == "failed"
    text = airflow.sync(airflow.task_text("impatient", run, "train"))
    assert "AdmissionTimeoutError" in text
    assert "capacity, not your code" in text
    assert not watcher.jobs(prefix(manifest))


def test_the_tasks_deadline_holds_while_it_is_deferred(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    manifest = job("import time\ntime.sleep(600)")
    run = start(airflow, "limited", manifest)
    assert airflow.sync(airflow.wait_run("limited", run)) == "failed"
    assert "JobDeadlineError" in airflow.sync(airflow.task_text("limited", run, "train"))
    assert not watcher.jobs(prefix(manifest))
    assert not watcher.pods("us-east4", prefix(manifest))


@pytest.mark.broad
def test_sensors_wait_for_a_job_that_another_task_submitted(airflow: LocalAirflow, granting: Sandbox) -> None:
    run = start(airflow, "split", job("import time\nprint('hello from afar', flush=True)\ntime.sleep(25)"))
    assert airflow.sync(airflow.wait_run("split", run)) == "success"
    admitted = validate_report(airflow.sync(airflow.xcom("split", run, "admitted")))
    ended = validate_report(airflow.sync(airflow.xcom("split", run, "ended")))
    assert admitted["placement"] is not None
    assert admitted["placement"]["region"] == "us-east4"
    assert ended["phase"] == "SUCCEEDED"
    assert "hello from afar" in airflow.sync(airflow.task_text("split", run, "ended"))


def test_mapped_tasks_run_a_job_each(airflow: LocalAirflow, granting: Sandbox) -> None:
    run = start(airflow, "mapped", job("print('one of three')"))
    assert airflow.sync(airflow.wait_run("mapped", run)) == "success"
    names = {airflow.sync(airflow.xcom("mapped", run, "train", map_index=i))["job"]["name"] for i in range(3)}
    assert len(names) == 3
