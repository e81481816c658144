"""JobSet, Kubeflow's jobs and single pods, run by their real controllers, followed as a task follows them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_multikueue.decisions.jobs import TTL_FLOOR
from airflow_provider_multikueue.decisions.kinds import MULTIKUEUE, get_at, kind_of
from airflow_provider_multikueue.decisions.names import name_budget
from airflow_provider_multikueue.exceptions import JobFailedError
from tests.sandbox.kind_manifests import RESULT, jobset, kubeflow, pod
from tests.sandbox.kind_trials import MANAGER, Trial, eventually, running, whose

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.timeout(240)]

Object = dict[str, Any]
REGION = "us-east4"

LEADERS = {"PyTorchJob": "Master", "TFJob": "Chief", "PaddleJob": "Master", "XGBoostJob": "Master"}


def led(kind: str, leader: str, worker: str, **policy: Any) -> Object:
    """Return a job of this kind with a leader and two workers."""
    if kind == "JobSet":
        return jobset({"driver": (1, leader), "worker": (2, worker)}, **policy)
    return kubeflow(kind, {LEADERS[kind]: (1, leader), "Worker": (2, worker)}, **policy)


def leader_of(kind: str) -> str:
    return "driver-0-0" if kind == "JobSet" else f"{LEADERS[kind].lower()}-0"


def workers_of(kind: str) -> list[str]:
    return ["worker-0-0", "worker-0-1"] if kind == "JobSet" else ["worker-0", "worker-1"]


KINDS = ["JobSet", *LEADERS]


@pytest.mark.parametrize("kind", KINDS)
def test_leader_and_workers_are_told_apart_and_the_leader_gives_the_result(trial: Trial, kind: str) -> None:
    outcome = trial.run(led(kind, f"sleep 5; echo steering; {RESULT % 'leader'}", "echo computing"), read_result=True)
    assert outcome.error is None
    report = outcome.report
    assert report is not None
    assert (report["phase"], report["placement"]["region"], report["result"]) == (
        "SUCCEEDED",
        REGION,
        {"role": "leader"},
    )
    assert [each["region"] for each in report["dispatches"]] == [REGION]
    said = [f"[{leader_of(kind)}] steering", *(f"[{worker}] computing" for worker in workers_of(kind))]
    assert [line for line in trial.log.lines if line.startswith("[")] == sorted(said), trial.log.text
    assert trial.look(MANAGER, ("", "pods")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_worker_is_named_with_its_exit_code(trial: Trial, kind: str) -> None:
    outcome = trial.run(led(kind, "sleep 20", "echo computing; sleep 3; exit 3"))
    assert type(outcome.error) is JobFailedError
    assert "exit code 3" in str(outcome.error), f"{outcome.error}\n{trial.log.text}"
    assert REGION in str(outcome.error)
    assert "worker-" in str(outcome.error)
    assert outcome.report is not None
    assert outcome.report["phase"] == "FAILED"


@pytest.mark.parametrize("kind", ["JobSet", "PyTorchJob"])
def test_a_killed_job_leaves_no_pod(trial: Trial, kind: str) -> None:
    outcome = trial.run(led(kind, "sleep 600", "sleep 600"), until="admitted")
    assert not outcome.ended
    assert eventually(lambda: running(trial.pods(REGION)) == 3)
    trial.delete_without_leftovers(REGION)


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_name_still_runs(trial: Trial, kind: str) -> None:
    trial.identity = whose(dag_id="d" * 200, task_id="t" * 200)
    manifest = led(kind, "echo steering", "echo computing")
    outcome = trial.run(manifest)
    assert outcome.error is None
    budget = name_budget(kind_of(manifest), manifest)
    assert len(trial.job["metadata"]["name"]) == budget
    assert outcome.report is not None
    assert len(trial.log.lines) > 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suspended", [True, False])
def test_a_short_time_to_live_is_lifted_and_the_manager_keeps_its_hands_off(
    trial: Trial, kind: str, suspended: bool
) -> None:
    manifest = led(kind, "echo steering", "echo computing", ttlSecondsAfterFinished=0, suspend=suspended)
    outcome = trial.run(manifest)
    assert outcome.error is None
    assert outcome.report is not None
    assert len(outcome.report["dispatches"]) == 1
    row, job = kind_of(manifest), trial.on_manager()
    assert get_at(job, row.ttl) == TTL_FLOOR
    assert get_at(job, row.managed_by) == MULTIKUEUE


def test_a_single_pod_is_a_job(trial: Trial) -> None:
    outcome = trial.run(pod(f"echo alone; sleep 2; {RESULT % 'pod'}"), read_result=True)
    assert outcome.error is None
    assert outcome.report is not None
    assert (outcome.report["phase"], outcome.report["placement"]["region"]) == ("SUCCEEDED", REGION)
    assert outcome.report["result"] == {"role": "pod"}
    assert "alone" in trial.log.lines
