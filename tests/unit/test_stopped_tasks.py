"""A task process that gets SIGTERM: the job is deleted where nobody will wait for it, and only by its own try."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_multikueue._compat import AirflowTaskTimeout
from airflow_provider_multikueue.decisions.names import OWNER, Owner
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.hooks import owner_of_task
from airflow_provider_multikueue.operators import MultiKueueJobOperator
from airflow_provider_multikueue.sensors import MultiKueueJobSensor
from airflow_provider_multikueue.tasks import WaitsForJob
from tests.unit.apiserver import ApiServer, connection, in_thread, obj
from tests.unit.test_compat import Supervisor, airflow_3, state_answer

JOB = "/apis/batch/v1/namespaces/default/jobs/train"
PART = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train", "uid": "uid-train"}
ID = uuid.UUID(int=7)
MINE = Owner(ti=str(ID), attempt=1)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A manager with the job of the first try, behind the default connection."""
    with in_thread() as server:
        monkeypatch.setenv("AIRFLOW_CONN_MULTIKUEUE_DEFAULT", connection(server))
        server.on("GET", "/apis/batch", {"versions": [{"version": "v1"}], "preferredVersion": {}})
        server.on("GET", "/apis/batch/v1", {"resources": [{"name": "jobs", "namespaced": True}]})
        server.on("GET", JOB, owned_by(MINE))
        server.on("DELETE", JOB, {})
        yield server


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """What tells the process its task's state."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CommsDecoder

    with Supervisor({}) as supervisor:
        comms: Any = CommsDecoder(socket=supervisor.task_side)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
        yield supervisor


def owned_by(owner: Owner, **status: Any) -> dict[str, Any]:
    return obj("train", 5, metadata={"annotations": {OWNER: owner.to_json()}}, status=status)


def waiting(task: WaitsForJob, *, retries: int = 0) -> WaitsForJob:
    """Return a task that waits for the job in its first try."""
    ids = {"dag_id": "training", "run_id": "manual__1", "task_id": "train", "map_index": -1}
    task._waiting.ti = SimpleNamespace(id=ID, **ids, try_number=1, max_tries=retries)
    task._waiting.job = dict(PART)
    return task


def operator(**arguments: Any) -> MultiKueueJobOperator:
    return MultiKueueJobOperator(task_id="train", job={}, **arguments)


def stop(task: WaitsForJob, supervisor: Supervisor, state: str | None) -> None:
    """Stop a task that Airflow has in this state; None: it is gone."""
    tasks = {} if state is None else {"manual__1": {"train": state}}
    supervisor.answers["GetTaskStates"] = state_answer(tasks)
    task.on_kill()


@airflow_3
@pytest.mark.parametrize(
    ("state", "retries", "deleted"),
    [
        ("failed", 0, True),
        ("failed", 3, True),
        ("success", 3, True),
        (None, 3, True),
        ("running", 0, True),
        ("running", 3, False),
        ("restarting", 0, False),
        ("up_for_retry", 3, False),
        ("deferred", 0, False),
    ],
)
def test_the_job_goes_with_its_task_and_stays_for_a_try_that_takes_it_over(
    manager: ApiServer, supervisor: Supervisor, state: str | None, retries: int, deleted: bool
) -> None:
    stop(waiting(operator(), retries=retries), supervisor, state)
    assert manager.count("DELETE", JOB) == deleted


@airflow_3
def test_a_deletion_holds_only_for_the_job_as_it_was_looked_at(manager: ApiServer, supervisor: Supervisor) -> None:
    stop(waiting(operator()), supervisor, "failed")
    (request,) = [seen for seen in manager.seen if seen.method == "DELETE"]
    assert request.body["preconditions"] == {"uid": "uid-train", "resourceVersion": "5"}


@airflow_3
@pytest.mark.parametrize(
    "now",
    [
        owned_by(Owner(ti=str(ID), attempt=2)),
        owned_by(Owner(ti="another", attempt=1)),
        owned_by(MINE, conditions=[{"type": "Complete", "status": "True"}]),
    ],
    ids=["the next try's", "a cleared task's", "ended"],
)
def test_a_job_that_is_for_another_try_to_report_is_kept(
    manager: ApiServer, supervisor: Supervisor, now: dict[str, Any]
) -> None:
    manager.on("GET", JOB, now)
    stop(waiting(operator()), supervisor, "failed")
    assert manager.count("GET", JOB) == 1
    assert manager.count("DELETE", JOB) == 0


@airflow_3
def test_a_resumed_task_that_is_stopped_leaves_its_ended_job_to_the_next_try(
    manager: ApiServer, supervisor: Supervisor
) -> None:
    task = operator(cleanup="never")
    waiting(task)
    task._conclude({"ti": task._waiting.ti}, Outcome(report=None))  # type: ignore[arg-type]
    stop(task, supervisor, "running")
    assert manager.count("GET", JOB) == manager.count("DELETE", JOB) == 0


def test_where_airflow_does_not_say_what_became_of_the_task_no_job_is_left_running(manager: ApiServer) -> None:
    waiting(task := operator(), retries=3)
    task._waiting.ti.map_index = object()  # nobody can be asked about such a task
    manager.on("GET", JOB, owned_by(owner_of_task(task._waiting.ti)))  # 2.11 makes the owner of what names the task
    task.on_kill()
    assert manager.count("DELETE", JOB) == 1


@airflow_3
def test_a_task_that_ran_out_of_time_takes_its_job_along_whatever_follows(
    manager: ApiServer, supervisor: Supervisor
) -> None:
    task = waiting(operator(), retries=3)
    try:
        raise AirflowTaskTimeout
    except AirflowTaskTimeout:
        stop(task, supervisor, "running")
    assert manager.count("DELETE", JOB) == 1


@airflow_3
def test_a_sensor_deletes_somebody_elses_job_only_where_it_is_told_to(
    manager: ApiServer, supervisor: Supervisor
) -> None:
    manager.on("GET", JOB, owned_by(Owner(ti="another", attempt=1)))
    stop(waiting(MultiKueueJobSensor(task_id="see", job=PART)), supervisor, "failed")
    assert manager.count("DELETE", JOB) == 0
    stop(waiting(MultiKueueJobSensor(task_id="see", job=PART, on_kill_action="delete")), supervisor, "failed")
    assert manager.count("DELETE", JOB) == 1
