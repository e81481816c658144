"""What the operator makes of its arguments before it acts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kubernetes.client import V1Container, V1Job, V1JobSpec, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec

from airflow_provider_multikueue._compat import AIRFLOW_2
from airflow_provider_multikueue.decisions.names import REPORTED, Reported
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.decisions.report import Dispatches, build_report, job_part
from airflow_provider_multikueue.decisions.workload import Observation, Phase
from airflow_provider_multikueue.exceptions import JobFailedError
from airflow_provider_multikueue.operators import MultiKueueJobOperator
from tests.unit.apiserver import ApiServer, connection, in_thread, obj, status


def test_what_is_inside_a_client_model_is_rendered():
    container = V1Container(name="main", image="{{ params.image }}", args=["{{ ds }}"])
    template = V1PodTemplateSpec(spec=V1PodSpec(containers=[container], restart_policy="Never"))
    model = V1Job(metadata=V1ObjectMeta(generate_name="train-"), spec=V1JobSpec(template=template, backoff_limit=0))
    operator = MultiKueueJobOperator(task_id="train", job=model)
    operator.render_template_fields({"params": {"image": "python:3.12"}, "ds": "2026-03-01"})  # type: ignore[arg-type]
    job = operator.job
    assert job["spec"]["template"]["spec"]["containers"] == [
        {"name": "main", "image": "python:3.12", "args": ["2026-03-01"]}
    ]


def test_a_client_model_is_rendered_as_it_is_given():
    model = V1Job(metadata=V1ObjectMeta(name="{{ ds }}"))
    operator = MultiKueueJobOperator(task_id="train", job=model)
    operator.render_template_fields({"ds": "2026-03-01"})  # type: ignore[arg-type]
    assert operator.job == {"metadata": {"name": "2026-03-01"}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"admission_timeout": 60},
        {"startup_timeout": timedelta()},
        {"max_run_duration": timedelta(seconds=-1)},
        {"max_dispatches": 0},
        {"regions": "us-east4"},
        {"wait_until": "sometime"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wish_that_can_not_be_meant_is_refused_before_anything_is_submitted(wrong: dict[str, Any]):
    operator = MultiKueueJobOperator(task_id="train", job={}, **wrong)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        operator.execute({})  # type: ignore[arg-type]


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A manager, behind the default connection, that deletes nothing."""
    with in_thread() as server:
        server.on("DELETE", "/apis/batch/v1/namespaces/default/jobs/train", status(403, "may not"))
        monkeypatch.setenv("AIRFLOW_CONN_MULTIKUEUE_DEFAULT", connection(server))
        yield server


class Pushed(SimpleNamespace):
    """A task instance that remembers its XComs."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.values[key] = value


def ended(error: Exception | None) -> Outcome:
    job = job_part({"apiVersion": "batch/v1", "kind": "Job", **obj("train")})
    seen = Observation(phase=Phase.FAILED if error else Phase.SUCCEEDED, name="train")
    report = build_report(seen, job=job, dispatches=Dispatches())
    return Outcome(report=dict(report), error=error)  # type: ignore[arg-type]


@pytest.mark.skipif(AIRFLOW_2, reason="2.11 calls no callback after it has taken note of a success")
@pytest.mark.parametrize(
    ("cleanup", "state", "removed"),
    [("always", "success", 1), ("on_success", "success", 1), ("never", "success", 0), ("always", "running", 0)],
)
def test_a_job_that_succeeded_is_marked_and_only_deleted_when_airflow_knows(
    refusing: ApiServer, monkeypatch: pytest.MonkeyPatch, cleanup: Any, state: str, removed: int
):
    monkeypatch.setattr("airflow_provider_multikueue.operators.task_state", AsyncMock(return_value=state))
    path, own = "/apis/batch/v1/namespaces/default/jobs/train", []
    refusing.on("PATCH", path, obj("train"))
    refusing.on("DELETE", path, {})
    operator = MultiKueueJobOperator(task_id="train", job={}, cleanup=cleanup, on_success_callback=own.append)
    context: Any = {"ti": Pushed(values={}, try_number=1, max_tries=0)}
    operator._conclude(context, ended(None))
    assert refusing.count("DELETE", path) == 0
    (mark,) = (seen for seen in refusing.seen if seen.method == "PATCH")
    report = Reported.from_json(mark.body["metadata"]["annotations"][REPORTED])
    assert (report.succeeded, report.kept) == (True, cleanup == "never")  # type: ignore[union-attr]
    for callback in operator.on_success_callback:
        callback(context)
    assert refusing.count("DELETE", path) == removed
    assert own == [context]


@pytest.mark.parametrize("error", [None, JobFailedError("exit code 3")], ids=["success", "failure"])
def test_that_the_ended_job_can_not_be_removed_does_not_change_its_outcome(
    refusing: ApiServer, monkeypatch: pytest.MonkeyPatch, error: JobFailedError | None
):
    monkeypatch.setattr("airflow_provider_multikueue.operators.task_state", AsyncMock(return_value="success"))
    operator = MultiKueueJobOperator(task_id="train", job={})
    context: Any = {"ti": Pushed(values={}, try_number=1, max_tries=0)}
    if error is None:
        assert operator._conclude(context, ended(None))["phase"] == "SUCCEEDED"  # type: ignore[index]
        for callback in operator.on_success_callback or ():
            callback(context)
    else:
        with pytest.raises(JobFailedError, match="exit code 3"):
            operator._conclude(context, ended(error))
    assert refusing.count("DELETE", "/apis/batch/v1/namespaces/default/jobs/train") == 1
