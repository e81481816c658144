"""What a kill leaves behind that nobody was there to see, and the reaper that finds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.names import LIFETIME, Lifetime
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import Watcher, started, until_gone

pytestmark = [pytest.mark.airflow, pytest.mark.broad, pytest.mark.timeout(300)]


def api_connection(airflow: LocalAirflow) -> dict[str, Any]:
    layout = airflow.layout
    return {"conn_type": "http", "host": layout.url, "login": layout.username, "password": layout.password}


@pytest.fixture(scope="module")
def api(airflow: LocalAirflow) -> Iterator[None]:
    """Airflow's connection to its own API."""
    airflow.sync(airflow.api.post("/connections", {"connection_id": "airflow_api", **api_connection(airflow)}))
    yield
    airflow.sync(airflow.api.delete("/connections/airflow_api"))


def left_behind(airflow: LocalAirflow, watcher: Watcher, lifetime: str = "task") -> tuple[str, str]:
    """Return a run that is over and the prefix of its job, which goes on as after a kill that nobody saw.

    A triggerer that comes back in time still deletes the job of such a task: so the task is one that keeps its job, and
    the job is then made one that should have gone.
    """
    run, name = started(airflow, "kept")
    airflow.sync(airflow.mark("kept", run, "train", "failed"))
    airflow.sync(airflow.wait_run("kept", run, within=60))
    watcher.annotate(name, LIFETIME, Lifetime(kind=lifetime).to_json())  # type: ignore[arg-type]
    return run, name


def actions(entries: list[dict[str, Any]], name: str) -> list[str]:
    return [entry["action"] for entry in entries if entry["job"]["name"].startswith(name)]


def reap(airflow: LocalAirflow, **conf: Any) -> list[dict[str, Any]]:
    run = airflow.sync(airflow.trigger("reaper", conf=conf))
    state = airflow.sync(airflow.wait_run("reaper", run, within=90))
    assert state == "success", airflow.sync(airflow.task_text("reaper", run, "reap"))
    entries: list[dict[str, Any]] = airflow.sync(airflow.xcom("reaper", run, "look" if conf else "reap"))
    return entries


def test_a_job_whose_task_is_over_is_reaped(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, api: None
) -> None:
    _, name = left_behind(airflow, watcher)
    live, live_name = started(airflow, "deferred")
    assert len(watcher.jobs(name)) == 1
    assert actions(reap(airflow, look=True), name) == ["would delete"]
    assert len(watcher.jobs(name)) == 1
    entries = reap(airflow)
    assert (actions(entries, name), actions(entries, live_name)) == (["deleted"], ["kept"])
    until_gone(airflow, watcher, name)
    assert airflow.sync(airflow.task_state("deferred", live, "train")) == "deferred"
    airflow.sync(airflow.mark("deferred", live, "train", "failed"))
    until_gone(airflow, watcher, live_name)


def test_a_kept_job_is_not_reaped(airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, api: None) -> None:
    run, name = left_behind(airflow, watcher, "detached")
    assert actions(reap(airflow), name) == ["kept"]
    airflow.sync(airflow.delete_run("kept", run))
    assert actions(reap(airflow), name) == ["kept"]
    assert len(watcher.jobs(name)) == 1


def test_the_command_finds_the_job_of_a_run_that_was_deleted(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, tmp_path: Path
) -> None:
    known, known_name = left_behind(airflow, watcher, "run")
    run, name = left_behind(airflow, watcher)
    airflow.sync(airflow.delete_run("kept", run))
    fleet, api = tmp_path / "fleet.json", tmp_path / "api.json"
    fleet.write_text(json.dumps(granting.connection()))
    api.write_text(json.dumps(api_connection(airflow)))
    command = [sys.executable, "-m", "airflow_provider_multikueue", "reap", "--json", "--older-than", "0"]
    files = ["--multikueue-connection", str(fleet), "--airflow-connection", str(api)]
    environment = os.environ | {"AIRFLOW_HOME": str(tmp_path)}

    def entries(*more: str) -> list[dict[str, Any]]:
        done = subprocess.run([*command, *files, *more], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    assert actions(entries(), name) == ["would delete"]
    deleted = entries("--delete")
    assert (actions(deleted, name), actions(deleted, known_name)) == (["deleted"], ["deleted"])
    until_gone(airflow, watcher, name)
    assert airflow.sync(airflow.task_state("kept", known, "train")) == "failed"
