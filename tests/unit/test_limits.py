"""Airflow's own time limits: on a task, which Airflow does not enforce while it is deferred, and on its DAG run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_multikueue._compat import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow_provider_multikueue.decisions.names import Lifetime
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.exceptions import JobDeadlineError
from airflow_provider_multikueue.operators import MultiKueueJobOperator
from airflow_provider_multikueue.sensors import MultiKueueAdmissionSensor, MultiKueueJobSensor
from tests.unit.apiserver import connection, in_thread, listed, obj

PART = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train", "uid": "uid-train"}
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def context(*, run_timeout: timedelta | None = None, start: datetime = START) -> Any:
    ti = SimpleNamespace(start_date=start, try_number=1, max_tries=0, xcom_push=lambda key, value: None)
    run = SimpleNamespace(start_date=START - MINUTE)
    return {"ti": ti, "dag_run": run, "dag": SimpleNamespace(dagrun_timeout=run_timeout)}


# -- the reaper's deadline


@pytest.mark.parametrize(
    ("arguments", "run_timeout", "lifetime"),
    [
        ({}, None, Lifetime(kind="task")),
        ({"execution_timeout": 60 * MINUTE}, None, Lifetime(kind="task", deadline=START + 65 * MINUTE)),
        ({}, 60 * MINUTE, Lifetime(kind="task", deadline=START + 64 * MINUTE)),
        ({"execution_timeout": MINUTE}, 60 * MINUTE, Lifetime(kind="task", deadline=START + 6 * MINUTE)),
        ({"execution_timeout": MINUTE, "wait_until": "admitted"}, None, Lifetime(kind="run")),
        ({"wait_until": "submitted"}, 60 * MINUTE, Lifetime(kind="run", deadline=START + 64 * MINUTE)),
        ({"execution_timeout": MINUTE, "on_kill_action": "keep"}, 60 * MINUTE, Lifetime(kind="detached")),
    ],
)
def test_a_job_outlives_the_limits_of_its_task_by_minutes(
    arguments: dict[str, Any], run_timeout: timedelta | None, lifetime: Lifetime
) -> None:
    operator = MultiKueueJobOperator(task_id="train", job={}, **arguments)
    assert operator._lifetime(context(run_timeout=run_timeout)) == lifetime


def test_a_run_that_has_not_been_started_by_anybody_gives_no_deadline() -> None:
    given = context(run_timeout=MINUTE)
    given["dag_run"].start_date = None
    assert MultiKueueJobOperator(task_id="train", job={})._lifetime(given) == Lifetime(kind="task")


# -- a sensor's two limits


@pytest.mark.parametrize(
    ("limits", "minutes"),
    [
        ({"timeout": 600}, 10),
        ({"timeout": 600, "execution_timeout": 2 * MINUTE}, 2),
        ({"timeout": 60, "execution_timeout": 2 * MINUTE}, 1),
    ],
)
def test_a_deferred_sensor_is_bound_by_what_comes_first(
    limits: dict[str, Any], minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_thread() as server:
        monkeypatch.setenv("AIRFLOW_CONN_MULTIKUEUE_DEFAULT", connection(server))
        for group, version, plural in (("batch", "v1", "jobs"), ("kueue.x-k8s.io", "v1beta2", "workloads")):
            server.on("GET", f"/apis/{group}", {"versions": [{"version": version}], "preferredVersion": {}})
            server.on("GET", f"/apis/{group}/{version}", {"resources": [{"name": plural, "namespaced": True}]})
        server.on("GET", "/apis/batch/v1/namespaces/default/jobs", listed(obj("train")))
        server.on("GET", "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads", listed())
        sensor = MultiKueueJobSensor(task_id="see", job=PART, deferrable=True, **limits)
        begun = datetime.now(UTC)
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute(context(start=begun))
    deadline = datetime.fromisoformat(deferred.value.trigger.orders["deadline"])
    assert timedelta() <= deadline - begun - minutes * MINUTE < timedelta(seconds=30)


@pytest.mark.parametrize("kind", [MultiKueueJobSensor, MultiKueueAdmissionSensor])
@pytest.mark.parametrize(
    ("limits", "failure"),
    [
        ({"timeout": 600}, AirflowSensorTimeout),
        ({"timeout": 600, "execution_timeout": 2 * MINUTE}, JobDeadlineError),
        ({"timeout": 60, "execution_timeout": 2 * MINUTE}, AirflowSensorTimeout),
        ({"timeout": 600, "execution_timeout": 2 * MINUTE, "soft_fail": True}, AirflowSkipException),
    ],
)
def test_a_sensor_past_its_execution_timeout_may_be_tried_again_and_one_past_its_timeout_not(
    kind: type[MultiKueueJobSensor], limits: dict[str, Any], failure: type[Exception]
) -> None:
    sensor = kind(task_id="see", job=PART, deferrable=True, **limits)
    event = Outcome(report=None, error=JobDeadlineError("too late"), ended=False).to_event()
    with pytest.raises(failure):
        sensor.execute_complete(context(), event, PART)
