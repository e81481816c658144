"""MPIJob, TrainJob, RayJob and AppWrapper, run by the sandbox's stand-ins for their controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import Resource
from airflow_provider_multikueue.decisions.kinds import kind_of
from airflow_provider_multikueue.decisions.names import name_budget
from airflow_provider_multikueue.exceptions import JobFailedError
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.kind_manifests import RESULT, app_wrapper, batch_job, mpi, ray, template, train
from tests.sandbox.kind_trials import MANAGER, Trial, connect, eventually, running, whose

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.timeout(240)]

Object = dict[str, Any]
REGION = "us-east4"
BY_INDEX = 'if [ "$JOB_COMPLETION_INDEX" = 0 ]; then %s; else %s; fi'


def wrapped(leader: str, worker: str) -> Object:
    jobs = [batch_job(leader), batch_job(worker, parallelism=2, completions=2)]
    for job, name in zip(jobs, ("leads", "works"), strict=True):
        job["metadata"] = {"name": name}
    return app_wrapper(*jobs)


MAKE: dict[str, Callable[[str, str], Object]] = {
    "MPIJob": mpi,
    "TrainJob": lambda leader, worker: train(BY_INDEX % (leader, worker), nodes=3),
    "RayJob": lambda leader, worker: ray(leader, "sleep 60", worker),
    "AppWrapper": wrapped,
}
KINDS = list(MAKE)


@pytest.fixture(autouse=True)
def _runtime(trial: Trial) -> None:
    """A TrainingRuntime, which TrainJobs refer to, on the manager and on the workers."""
    node = {"name": "node", "template": {"spec": {"backoffLimit": 0, "template": template("exit 9")}}}
    spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [node]}}}
    runtime = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "spec": spec}
    runtime["metadata"] = {"name": "plain"}
    regions = trial.fleet.spec.regions
    asyncio.run(_everywhere(trial.fleet, runtime, trial.namespace, [MANAGER, *(f"worker-{each}" for each in regions)]))


async def _everywhere(fleet: Sandbox, runtime: Object, namespace: str, contexts: list[str]) -> None:
    runtimes = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes")
    for context in contexts:
        async with await connect(fleet, context) as cluster:
            await cluster.create(runtimes, runtime, namespace)


@pytest.mark.parametrize("kind", KINDS)
def test_its_pods_speak_in_the_log_and_its_leader_gives_the_result(trial: Trial, kind: str) -> None:
    leader = f"sleep 4; echo steering; {RESULT % 'leader'}"
    outcome = trial.run(MAKE[kind](leader, "echo computing; sleep 7"), read_result=True)
    assert outcome.error is None, f"{outcome.error}\n{trial.log.text}"
    report = outcome.report
    assert report is not None
    assert (report["phase"], report["placement"]["region"], report["result"]) == (
        "SUCCEEDED",
        REGION,
        {"role": "leader"},
    )
    spoken = [line.partition("] ")[2] for line in trial.log.lines if line.startswith("[")]
    assert sorted(spoken) == ["computing", "computing", "steering"], trial.log.text
    assert len(report["dispatches"]) == 1
    assert trial.look(MANAGER, ("", "pods")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_leader_fails_it_with_its_exit_code(trial: Trial, kind: str) -> None:
    outcome = trial.run(MAKE[kind]("sleep 3; echo no gradient; exit 3", "sleep 20"))
    assert type(outcome.error) is JobFailedError, f"{outcome.error}\n{trial.log.text}"
    assert "exit code 3" in str(outcome.error), f"{outcome.error}\n{trial.log.text}"
    assert "no gradient" in str(outcome.error)
    assert REGION in str(outcome.error)
    assert outcome.report is not None
    assert outcome.report["phase"] == "FAILED"


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_job_leaves_no_pod(trial: Trial, kind: str) -> None:
    outcome = trial.run(MAKE[kind]("sleep 600", "sleep 600"), until="admitted")
    assert not outcome.ended
    assert eventually(lambda: running(trial.pods(REGION)) >= 3), trial.pods(REGION)
    trial.delete_without_leftovers(REGION)


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_name_still_runs(trial: Trial, kind: str) -> None:
    trial.identity = whose(dag_id="d" * 200, task_id="t" * 200)
    manifest = MAKE[kind]("echo steering", "echo computing")
    outcome = trial.run(manifest)
    assert outcome.error is None, f"{outcome.error}\n{trial.log.text}"
    assert len(trial.job["metadata"]["name"]) == name_budget(kind_of(manifest), manifest)


def test_a_ray_job_that_its_operator_finds_invalid_ends_though_kueue_goes_on(trial: Trial) -> None:
    outcome = trial.run(ray("true", "true", "true", runtimeEnvYAML="{not closed"))
    assert type(outcome.error) is JobFailedError, f"{outcome.error}\n{trial.log.text}"
    assert "ValidationFailed" in str(outcome.error)
    assert "failed to unmarshal runtimeEnvYAML" in str(outcome.error)
    trial.delete_without_leftovers(REGION)
