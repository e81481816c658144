"""The command that says of a job what its task's log would say, on a real fleet."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from airflow_provider_multikueue.cli import main
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.test_hook import manifest

pytestmark = [pytest.mark.sandbox, pytest.mark.broad]

Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hook(multikueue_connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> MultiKueueHook:
    monkeypatch.setenv("AIRFLOW_CONN_MULTIKUEUE_DEFAULT", json.dumps(multikueue_connection))
    return MultiKueueHook()


@pytest.fixture
def explain(hook: MultiKueueHook, capsys: pytest.CaptureFixture[str]) -> Explain:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()  # what the hook has logged before
        code = main(["explain", *words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def capacity(fleet: Sandbox, multikueue_namespace: str) -> Callable[..., None]:
    """Script what this test's requests for capacity are answered, and no other's."""
    return partial(fleet.capacity, namespace=multikueue_namespace)


@pytest.fixture
def submitted(hook: MultiKueueHook, multikueue_namespace: str) -> Any:
    """Submit jobs that sleep, and delete them afterwards."""
    jobs: list[Any] = []

    def submit() -> Any:
        identity = Identity(deployment="tests", dag_id="none", run_id=uuid.uuid4().hex, task_id="hook", map_index=-1)
        jobs.append(hook.submit(manifest("sleep 60"), identity=identity))
        return jobs[-1]

    yield submit
    for job in jobs:
        hook.delete(job)


def test_a_job_that_runs_is_explained_with_its_region(
    explain: Explain, hook: MultiKueueHook, submitted: Any, capacity: Any
) -> None:
    capacity(None, mode="starve")
    capacity("us-east4", mode="grant", after=0)
    job = submitted()
    hook.wait(job, until="admitted")
    code, told, _ = explain(job["name"])
    assert code == 0
    assert told.startswith(f"Job {job['namespace']}/{job['name']}: ")
    assert "placement: us-east4 (multikueue-dws-worker-us)" in told
    assert "Admitted in us-east4 (multikueue-dws-worker-us)" in told
    code, report, _ = explain(f"{job['namespace']}/{job['name']}", "--json")
    assert json.loads(report)["placement"]["region"] == "us-east4"


def test_a_job_that_waits_is_explained_region_by_region(explain: Explain, submitted: Any, capacity: Any) -> None:
    capacity(None, mode="starve")
    job = submitted()
    tries = (explain(json.dumps(job))[1] for _ in range(20))  # each gives the fleet a moment
    told = next(told for told in tries if "Asking 3 regions: " in told)
    assert "PLACING" in told
    assert "placement" not in told


def test_without_a_job_those_of_the_namespace_are_listed(
    explain: Explain, hook: MultiKueueHook, submitted: Any, multikueue_namespace: str
) -> None:
    assert explain()[1] == f"No job in namespace {multikueue_namespace} has a Workload on the manager.\n"
    jobs = [submitted(), submitted()]
    for job in jobs:
        hook.wait(job, until="admitted")
    code, told, _ = explain()
    head, *rows = told.splitlines()
    assert (code, head.split()) == (0, ["JOB", "KIND", "QUEUE", "PHASE", "REGION", "SUBMITTED"])
    assert {row.split()[0] for row in rows} == {job["name"] for job in jobs}
    entries = json.loads(explain("--json")[1])
    assert all(entry["placement"]["region"] in told for entry in entries)
    assert {entry["job"]["name"] for entry in entries} == {job["name"] for job in jobs}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-job"], 1, "is not on the manager"),
        (["no-such-job", "--kind", "Deployment"], 1, "not a kind of job"),
        (["../../etc/passwd"], 1, "names no job"),
        (["x", "--file", "nowhere.json"], 2, "nowhere.json can't be read: No such file"),
    ],
    ids=["gone", "no-job", "path", "file"],
)
def test_what_cannot_be_explained_is_said(explain: Explain, words: list[str], code: int, said: str) -> None:
    found, _, error = explain(*words)
    assert found == code
    assert said in error
