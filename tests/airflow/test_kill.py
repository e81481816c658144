"""What stops a task stops its job, and what only looks like it does not."""

from __future__ import annotations

import re
import signal

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import Watcher, job, prefix, start, started, until_gone, until_shown

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("dag_id", ["deferred", "in_worker"])
@pytest.mark.parametrize("state", ["failed", pytest.param("success", marks=pytest.mark.fleet)])
def test_a_task_that_is_marked_takes_its_job_along(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, dag_id: str, state: str
) -> None:
    run, name = started(airflow, dag_id)
    airflow.sync(airflow.mark(dag_id, run, "train", state))
    until_gone(airflow, watcher, name)
    assert airflow.sync(airflow.task_state(dag_id, run, "train")) == state


@pytest.mark.broad
def test_a_kept_job_outlives_its_task(airflow: LocalAirflow, granting: Sandbox, watcher: Watcher) -> None:
    run, name = started(airflow, "kept")
    airflow.sync(airflow.mark("kept", run, "train", "failed"))
    airflow.sync(airflow.wait_run("kept", run))
    until_shown(airflow, "kept", run, "trigger completed")
    assert len(watcher.jobs(name)) == 1


@pytest.mark.broad
def test_a_cleared_task_never_has_two_jobs(airflow: LocalAirflow, granting: Sandbox, watcher: Watcher) -> None:
    run, name = started(airflow, "deferred")
    (before,) = watcher.jobs(name)
    airflow.sync(airflow.clear("deferred", run, "train"))
    airflow.sync(
        poll(
            lambda: airflow.task_instance("deferred", run, "train"),
            lambda ti: ti["try_number"] == 2 and ti["state"] == "deferred",
            within=60,
            what="the second try to wait",
        )
    )
    jobs = [each for each in watcher.jobs(name) if not each["metadata"].get("deletionTimestamp")]
    assert len(jobs) == 1
    taken_over = jobs[0]["metadata"]["uid"] == before["metadata"]["uid"]
    owner = jobs[0]["metadata"]["annotations"]["airflow-provider-multikueue/owner"]
    assert '"try": 2' in owner or '"try":2' in owner
    assert taken_over or before["metadata"]["uid"] not in str(jobs)
    # A trigger that has not begun yet can't be told of a kill.
    until_shown(airflow, "deferred", run, "tick")
    airflow.sync(airflow.mark("deferred", run, "train", "failed"))
    until_gone(airflow, watcher, name)


@pytest.mark.broad
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_triggerer_that_ends_leaves_the_job_to_the_next_and_no_line_is_missing(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, killed: bool
) -> None:
    manifest = job("import time\nfor i in range(45): print('tock', i, flush=True); time.sleep(1)")
    run = start(airflow, "deferred", manifest)
    until_shown(airflow, "deferred", run, "tock 12")
    (before,) = watcher.jobs(prefix(manifest))
    if killed:
        airflow.signal("triggerer", signal.SIGKILL)
    airflow.sync(airflow.restart("triggerer"))
    (still,) = watcher.jobs(prefix(manifest))
    assert still["metadata"]["uid"] == before["metadata"]["uid"]
    assert airflow.sync(airflow.wait_run("deferred", run, within=150)) == "success"
    text = airflow.sync(airflow.task_text("deferred", run, "train"))
    before_loss, lost, after_loss = text.partition("an earlier reader was lost")
    assert bool(lost) == killed, text
    parts = [tocks(before_loss), tocks(after_loss)]
    assert sorted({*parts[0], *parts[1]}) == list(range(45)), text
    assert all(part == sorted(set(part)) for part in parts), f"repeats without a line that says so: {text}"


def tocks(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\btock (\d+)", text)]
