"""A kind that has no row in the table, which Kueue knows as an external framework: its Workload alone says all.

The test stands in for that kind's own controller: it makes the Workload on the manager, and ends it on the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.exceptions import JobFailedError, ManifestError
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.kind_manifests import template
from tests.sandbox.kind_trials import MANAGER, Trial, connect

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.timeout(300)]

Object = dict[str, Any]
REGION = "us-east4"
WORKER = f"worker-{REGION}"
ACCOUNTS = {MANAGER: "kueue-controller-manager", WORKER: "multikueue-sa"}
EXPERIMENTS = Resource("example.com", "v1", "experiments")


def definition() -> Object:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
    }
    names = {"kind": "Experiment", "listKind": "ExperimentList", "plural": "experiments", "singular": "experiment"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**kind, "metadata": {"name": "experiments.example.com"}, "spec": spec}


def rights(account: str) -> list[tuple[Resource, Object]]:
    api = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["example.com"], "resources": ["*"], "verbs": ["*"]}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "kueue-system"}
    reference = {"apiGroup": api, "kind": "ClusterRole", "name": "experiments"}
    role = {"metadata": {"name": "experiments"}, "rules": [rule]}
    binding = {"metadata": {"name": "experiments"}, "roleRef": reference, "subjects": [subject]}
    return [
        (Resource(api, "v1", "clusterroles", namespaced=False), role),
        (Resource(api, "v1", "clusterrolebindings", namespaced=False), binding),
    ]


async def _introduce(fleet: Sandbox) -> None:
    """Let all clusters know the kind, and the manager's Kueue dispatch it."""
    definitions = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
    for context, account in ACCOUNTS.items():
        async with await connect(fleet, context) as cluster:
            await cluster.create(definitions, definition())
            for resource, each in rights(account):
                await cluster.create(resource, each)
            await _until(lambda cluster=cluster: _answers(cluster))
    configuration = fleet.folder / "run" / "manager-kueue" / "configuration.json"
    changed = json.loads(configuration.read_text())
    changed["multiKueue"]["externalFrameworks"] = [{"name": "Experiment.v1.example.com"}]
    configuration.write_text(json.dumps(changed))
    fleet.restart("manager-kueue")


async def _answers(cluster: Cluster) -> bool:
    try:
        await cluster.list(EXPERIMENTS, "default")
    except ApiError:
        return False
    return True


async def _until(done: Any, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not await done():  # noqa: ASYNC110 - other clusters' state
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def experimental_fleet() -> Iterator[Sandbox]:
    with Sandbox.start_local(regions=[REGION]) as sandbox:
        asyncio.run(_introduce(sandbox))
        yield sandbox


@pytest.fixture
def trial(experimental_fleet: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    namespace = experimental_fleet.make_namespace()
    connection = experimental_fleet.connection()
    connection["extra"]["namespace"] = namespace
    monkeypatch.setenv("AIRFLOW_CONN_OF_EXPERIMENTS", json.dumps(connection))
    yield Trial(MultiKueueHook("of_experiments"), experimental_fleet, namespace)
    experimental_fleet.delete_namespace(namespace)


def experiment() -> Object:
    spec = {"managedBy": "kueue.x-k8s.io/multikueue", "question": "does it converge?"}
    metadata = {"generateName": "experiment-"}
    return {"apiVersion": "example.com/v1", "kind": "Experiment", "metadata": metadata, "spec": spec}


@contextlib.asynccontextmanager
async def clusters(fleet: Sandbox) -> AsyncIterator[tuple[Cluster, Cluster, Resource]]:
    async with await connect(fleet, MANAGER) as manager, await connect(fleet, WORKER) as worker:
        yield manager, worker, await manager.resource("kueue.x-k8s.io", "workloads")


async def queue_up(fleet: Sandbox, job: Object) -> None:
    """Make the job's Workload, as its controller on the manager does."""
    metadata = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    labels = {"kueue.x-k8s.io/job-uid": metadata["uid"]}
    pods = {"name": "main", "count": 1, "template": template("echo never")}
    async with clusters(fleet) as (manager, _, workloads):
        workload = {
            "apiVersion": workloads.api_version,
            "kind": "Workload",
            "metadata": {
                "name": f"experiment-{metadata['name']}",
                "labels": labels,
                "ownerReferences": [owner | {"controller": True}],
            },
            "spec": {
                "queueName": metadata["labels"]["kueue.x-k8s.io/queue-name"],
                "active": True,
                "podSets": [pods],
            },
        }

        async def made() -> bool:
            try:
                await manager.create(workloads, workload, metadata["namespace"])
            except ApiError as error:
                if not error.passing:
                    raise
                return False  # Kueue has only just been started again
            return True

        await _until(made)


async def end(fleet: Sandbox, namespace: str, reason: str, message: str) -> None:
    """Wait for the copy of the job, and end its Workload, as its controller on the worker does."""
    async with clusters(fleet) as (_, worker, workloads):

        async def arrived() -> bool:
            return bool((await worker.list(EXPERIMENTS, namespace))[0])

        await _until(arrived, seconds=60)
        ((copy,), _) = await worker.list(workloads, namespace)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        finished = {"type": "Finished", "status": "True", "reason": reason, "message": message}
        copy["status"]["conditions"].append(finished | {"lastTransitionTime": now})
        await worker.replace(workloads, copy["metadata"]["name"], copy, namespace, subresource="status")


def run(trial: Trial, reason: str, message: str) -> Outcome:
    ending: list[asyncio.Task[None]] = []

    async def controllers(job: Object) -> None:
        await queue_up(trial.fleet, job)
        ending.append(asyncio.create_task(end(trial.fleet, trial.namespace, reason, message)))

    trial.released_after = controllers
    return trial.run(experiment())


def test_it_is_placed_and_ends_well_by_its_workload_alone(trial: Trial) -> None:
    assert not find_kind("example.com/v1", "Experiment").known
    outcome = run(trial, "Succeeded", "It converges")
    assert outcome.error is None, f"{outcome.error}\n{trial.log.text}"
    assert outcome.report is not None
    assert (outcome.report["phase"], outcome.report["placement"]["region"]) == ("SUCCEEDED", REGION)
    assert outcome.report["job"]["kind"] == "Experiment"


def test_it_fails_with_the_reason_of_its_workload(trial: Trial) -> None:
    outcome = run(trial, "Failed", "It diverges")
    assert isinstance(outcome.error, JobFailedError)
    assert "It diverges" in str(outcome.error)
    assert outcome.report is not None
    assert outcome.report["phase"] == "FAILED"


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")],
)
def test_a_kind_that_never_finishes_is_refused_with_those_that_do(trial: Trial, api_version: str, kind: str) -> None:
    manifest = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "no"}, "spec": {"template": {"spec": {}}}}
    with pytest.raises(ManifestError, match=f"a {kind} never finishes") as refused:
        trial.run(manifest)
    assert "JobSet, PyTorchJob" in str(refused.value)
