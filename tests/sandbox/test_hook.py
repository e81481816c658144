"""The hook in code of one's own, as the documentation shows it, and the fixtures of the pytest plugin."""

import json
import uuid
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox

pytestmark = pytest.mark.sandbox


def manifest(command: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", command],
        "resources": {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "hook-"},
        "spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


@pytest.fixture
def hook(multikueue_connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> MultiKueueHook:
    monkeypatch.setenv("AIRFLOW_CONN_MULTIKUEUE_DEFAULT", json.dumps(multikueue_connection))
    return MultiKueueHook()


@pytest.fixture
def identity() -> Identity:
    return Identity(deployment="tests", dag_id="none", run_id=uuid.uuid4().hex, task_id="hook", map_index=-1)


def test_a_job_is_submitted_once_and_waited_for(
    hook: MultiKueueHook, identity: Identity, multikueue_namespace: str
) -> None:
    job = hook.submit(manifest("echo hello"), identity=identity)
    assert hook.submit(manifest("echo hello"), identity=identity)["uid"] == job["uid"]
    report = hook.wait(job)
    assert report["phase"] == "SUCCEEDED"
    assert report["job"]["namespace"] == multikueue_namespace
    assert report["placement"]["region"]
    hook.delete(job)


def test_the_connection_is_tested_cluster_by_cluster(hook: MultiKueueHook) -> None:
    answers = [hook.test_connection()]
    while not answers[-1][0] and len(answers) < 3:  # a cluster may have been made to restart a moment ago
        answers.append(hook.test_connection())
    ok, text = answers[-1]
    assert ok, answers
    for worker in ("manager", "multikueue-dws-worker-eu", "multikueue-dws-worker-us", "multikueue-dws-worker-asia"):
        assert worker in text


def test_what_the_doctor_holds_to_be_an_error_fails_the_connection(
    fleet: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = fleet.connection()
    connection["extra"]["queue_name"] = "no-such-queue"
    monkeypatch.setenv("AIRFLOW_CONN_OF_NO_QUEUE", json.dumps(connection))
    ok, text = MultiKueueHook("of_no_queue").test_connection()
    assert not ok
    assert "the connection's queue no-such-queue is not in namespace" in text
