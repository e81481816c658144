"""What else ends a task or begins it anew: timeouts, marks, signals, killed processes, clears."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.names import IDENTITY
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import LONG, Watcher, job, prefix, start, started, task_processes, until_gone, until_shown

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(300)]


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_run_that_is_ended_by_hand_takes_its_job_along(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, state: str
) -> None:
    run, name = started(airflow, "deferred")
    airflow.sync(airflow.mark_run("deferred", run, state))
    until_gone(airflow, watcher, name)


def test_a_job_that_is_killed_while_its_worker_is_away_is_said_to_be_left_there_and_goes_later(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    run, name = started(airflow, "deferred")
    granting.pause("us-east4-apiserver")
    try:
        airflow.sync(airflow.mark("deferred", run, "train", "failed"))
        until_shown(airflow, "deferred", run, "Kueue removes what is left there when the worker is back")
    finally:
        granting.resume("us-east4-apiserver")
    until_gone(airflow, watcher, name)


def test_the_tasks_deadline_holds_in_a_worker_too(airflow: LocalAirflow, granting: Sandbox, watcher: Watcher) -> None:
    manifest = job("import time\ntime.sleep(600)")
    run = start(airflow, "limited_in_worker", manifest)
    assert airflow.sync(airflow.wait_run("limited_in_worker", run, within=90)) == "failed"
    assert "JobDeadlineError" in airflow.sync(airflow.task_text("limited_in_worker", run, "train"))
    until_gone(airflow, watcher, prefix(manifest))


def test_a_run_past_its_timeout_takes_its_job_along(airflow: LocalAirflow, granting: Sandbox, watcher: Watcher) -> None:
    run, name = started(airflow, "timed")
    airflow.sync(airflow.wait_run("timed", run, within=90))
    until_gone(airflow, watcher, name)
    assert airflow.sync(airflow.task_state("timed", run, "train")) != "success"


def test_a_terminated_process_never_ends_as_success(airflow: LocalAirflow, granting: Sandbox, watcher: Watcher) -> None:
    run, name = started(airflow, "in_worker")
    for pid in task_processes(airflow):
        os.kill(pid, signal.SIGTERM)
    state = airflow.sync(airflow.wait_task("in_worker", run, "train", within=90))
    assert state == "failed", airflow.sync(airflow.task_text("in_worker", run, "train"))
    until_gone(airflow, watcher, name)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_is_followed_by_one_that_finds_its_job(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, number: signal.Signals
) -> None:
    manifest = job("import time\nfor i in range(30): print('tock', i, flush=True); time.sleep(1)")
    run = start(airflow, "retried_in_worker", manifest)
    until_shown(airflow, "retried_in_worker", run, "tock 2")
    (before,) = watcher.jobs(prefix(manifest))
    for pid in task_processes(airflow):
        os.kill(pid, number)
    assert airflow.sync(airflow.wait_run("retried_in_worker", run, within=150)) == "success"

    report = airflow.sync(airflow.xcom("retried_in_worker", run, "train"))
    assert report["job"]["uid"] == before["metadata"]["uid"]
    train = airflow.sync(airflow.task_instance("retried_in_worker", run, "train"))
    assert train["try_number"] == 2
    texts = [airflow.sync(airflow.task_text("retried_in_worker", run, "train", try_number=number)) for number in (1, 2)]
    shown = {int(number) for text in texts for number in re.findall(r"tock (\d+)", text)}
    assert shown == set(range(30))
    assert len(watcher.output("us-east4", prefix(manifest))) == 1


@pytest.mark.parametrize("dag", ["unheard", "unheard_in_worker"])
def test_a_success_of_which_airflow_did_not_hear_is_reported_again_and_runs_nothing_twice(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, dag: str
) -> None:
    manifest = job("print('once')")
    run = start(airflow, dag, manifest)
    assert airflow.sync(airflow.wait_run(dag, run, within=150)) == "success"
    train = airflow.sync(airflow.task_instance(dag, run, "train"))
    assert train["try_number"] == 2
    report = airflow.sync(airflow.xcom(dag, run, "train"))
    assert (report["phase"], report["placement"]["region"]) == ("SUCCEEDED", "us-east4")
    assert list(watcher.output("us-east4", prefix(manifest)).values()) == [b"once\n"]
    until_gone(airflow, watcher, prefix(manifest))


def test_a_task_cleared_after_its_success_runs_another_job(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    manifest = job("print('once more')")
    run = start(airflow, "deferred", manifest)
    assert airflow.sync(airflow.wait_run("deferred", run)) == "success"
    first = airflow.sync(airflow.xcom("deferred", run, "train"))
    airflow.sync(airflow.clear("deferred", run, "train"))
    airflow.sync(
        poll(
            lambda: airflow.task_instance("deferred", run, "train"),
            lambda ti: ti["try_number"] == 2 and ti["state"] == "success",
            within=90,
            what="the second try to succeed",
        )
    )
    second = airflow.sync(airflow.xcom("deferred", run, "train"))
    assert second["job"]["uid"] != first["job"]["uid"]
    assert list(watcher.output("us-east4", prefix(manifest)).values()) == [b"once more\n"] * 2


def test_names_of_any_script_lead_to_jobs_of_their_own(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    dag_id, task_id = "Entrenamiento.Campaña_ÑÑ", "grp.Train__Model."
    manifest = job(LONG)
    run, name = start(airflow, dag_id, manifest), prefix(manifest)
    for index in range(3):
        until_shown(airflow, dag_id, run, "tick 0", task_id=task_id, map_index=index)
    jobs = {identity(each)["map_index"]: each["metadata"] for each in watcher.jobs(name)}
    assert sorted(jobs) == [0, 1, 2]
    assert len({each["name"] for each in jobs.values()}) == 3
    assert all(identity({"metadata": each})["dag_id"] == dag_id for each in jobs.values())

    airflow.sync(airflow.mark(dag_id, run, task_id, "failed", map_index=1))
    until_gone(airflow, watcher, jobs[1]["name"])
    assert len(watcher.jobs(name)) == 2
    airflow.sync(airflow.mark_run(dag_id, run, "failed"))
    until_gone(airflow, watcher, name)


def identity(found: dict[str, Any]) -> dict[str, Any]:
    """Return whose job it is, by its annotation."""
    said: dict[str, Any] = json.loads(found["metadata"]["annotations"][IDENTITY])
    return said
