"""Submitting on a real fleet: twice is once, and what can't work is refused before anything exists."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import JOBS, Cluster
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.jobs import QUEUE_LABEL, Lifetime, Owner
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.exceptions import FleetConfigurationError, ManifestError, RegionUnavailableError
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.fleets.submit import Request, submit
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.shipped_accounts import ShippedAccounts

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

Object = dict[str, Any]
MANAGER = "manager-europe-west4"


@pytest.fixture
def hook(multikueue_connection: Object, monkeypatch: pytest.MonkeyPatch) -> MultiKueueHook:
    """A hook whose connection submits to the test's own namespace."""
    monkeypatch.setenv("AIRFLOW_CONN_OF_THIS_TEST", json.dumps(multikueue_connection))
    return MultiKueueHook("of_this_test")


@pytest.fixture
def starving(fleet: Sandbox) -> Iterator[Sandbox]:
    """The fleet while no region grants, so that jobs stay."""
    fleet.capacity(mode="starve")
    yield fleet
    fleet.capacity()


def identity(**known: Any) -> Identity:
    values = {"deployment": "test", "dag_id": "dag", "run_id": uuid.uuid4().hex, "task_id": "train"} | known
    return Identity(**values)


def manifest(**spec: Any) -> Object:
    container = {
        "name": "main",
        "image": "busybox:1",
        "command": ["sh", "-c", "echo hello"],
        "resources": {"requests": {"cpu": "10m", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}},
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "t-"},
        "spec": {"template": template} | spec,
    }


def jobs(fleet: Sandbox, namespace: str) -> list[Object]:
    async def look() -> list[Object]:
        async with await Cluster.from_kubeconfig("manager", path=str(fleet.kubeconfig), context=MANAGER) as cluster:
            return (await cluster.list(JOBS, namespace))[0]

    return asyncio.run(look())


def test_many_submissions_of_one_task_at_once_give_one_job(
    hook: MultiKueueHook, starving: Sandbox, multikueue_namespace: str
) -> None:
    whose = identity()
    with ThreadPoolExecutor(6) as pool:
        parts = list(pool.map(lambda _: hook.submit(manifest(), identity=whose), range(6)))
    assert all(part == parts[0] for part in parts)
    assert len(jobs(starving, multikueue_namespace)) == 1


def test_another_task_run_or_deployment_gets_a_job_of_its_own(
    hook: MultiKueueHook, starving: Sandbox, multikueue_namespace: str
) -> None:
    run = uuid.uuid4().hex
    others: list[Object] = [{}, {"map_index": 0}, {"task_id": "Train__Model."}, {"deployment": "b"}]
    parts = [hook.submit(manifest(), identity=identity(run_id=run, **other)) for other in others]
    assert len({part["uid"] for part in parts}) == len(jobs(starving, multikueue_namespace)) == len(others)


@pytest.mark.parametrize("caught", [True, False])
async def test_a_job_is_held_only_where_no_default_queue_would_take_it(
    fleet: Sandbox, multikueue_connection: Object, multikueue_namespace: str, caught: bool
) -> None:
    fleet.capacity(namespace=multikueue_namespace, mode="starve")
    config = FleetConfig.from_extra(multikueue_connection["extra"], conn_id="fleet")
    async with open_fleet(config) as opened:
        queues = await opened.manager.resource("kueue.x-k8s.io", "localqueues")
        if caught:
            queue: Object = {"metadata": {"name": "default"}, "spec": {"clusterQueue": "dws-cluster-queue"}}
            queue |= {"apiVersion": f"kueue.x-k8s.io/{queues.version}", "kind": "LocalQueue"}
            path, manager = str(fleet.kubeconfig), fleet.spec.manager_context
            async with await Cluster.from_kubeconfig(manager, path=path, context=manager) as administrator:
                await administrator.create(queues, queue, multikueue_namespace)
        request = request_for(manifest(), config, multikueue_namespace, hold=True)
        submitted = await submit(opened, request, Silent())
        metadata = submitted.job["metadata"]
        await opened.manager.delete(JOBS, metadata["name"], multikueue_namespace)
    assert metadata["labels"].get(QUEUE_LABEL) == (config.queue_name if caught else None)


def request_for(job: Object, config: FleetConfig, namespace: str, *, hold: bool) -> Request:
    return Request(
        manifest=job,
        identity=identity(),
        owner=Owner(ti="one", attempt=1),
        lifetime=Lifetime(kind="task"),
        namespace=namespace,
        queue_name=config.queue_name,
        hold=hold,
    )


class Silent:
    """A task log that nobody reads."""

    def record(self, level: int, text: str) -> None:
        """Show nothing."""


def test_a_changed_manifest_replaces_the_job_of_an_earlier_try(
    hook: MultiKueueHook, starving: Sandbox, multikueue_namespace: str
) -> None:
    whose = identity()
    first = hook.submit(manifest(), identity=whose)
    second = hook.submit(manifest(parallelism=2), identity=whose)
    assert first["uid"] != second["uid"]
    (left,) = jobs(starving, multikueue_namespace)
    assert left["metadata"]["uid"] == second["uid"]
    assert left["spec"]["parallelism"] == 2


def test_a_later_try_in_another_namespace_replaces_the_job_of_an_earlier_one(
    hook: MultiKueueHook, starving: Sandbox, multikueue_namespace: str
) -> None:
    whose, elsewhere = identity(), starving.make_namespace()
    # The least rights let nobody look into all namespaces.
    looking = starving.granted("manager-reap") if isinstance(starving, ShippedAccounts) else contextlib.nullcontext()
    try:
        first = hook.submit(manifest(), identity=whose, namespace=elsewhere)
        with looking:
            again = hook.submit(manifest(), identity=whose, owner=Owner(ti="one", attempt=2))
        assert jobs(starving, elsewhere) == []
        assert [job["metadata"]["uid"] for job in jobs(starving, multikueue_namespace)] == [again["uid"]]
        assert again["uid"] != first["uid"]
    finally:
        starving.delete_namespace(elsewhere)


def test_a_name_taken_by_someone_else_is_never_adopted(
    hook: MultiKueueHook, starving: Sandbox, multikueue_namespace: str
) -> None:
    whose = identity()
    ours = hook.submit(manifest(), identity=whose)
    hook.delete(ours)
    foreign = manifest(suspend=True)
    foreign["metadata"] = {"name": ours["name"]}

    async def plant() -> Object:
        async with await Cluster.from_kubeconfig("manager", path=str(starving.kubeconfig), context=MANAGER) as cluster:
            return await cluster.create(JOBS, foreign, multikueue_namespace)

    planted = asyncio.run(plant())
    again = hook.submit(manifest(), identity=whose)
    assert again["uid"] != planted["metadata"]["uid"]
    assert planted["metadata"]["uid"] in {job["metadata"]["uid"] for job in jobs(starving, multikueue_namespace)}


@pytest.mark.parametrize(
    ("wish", "error", "says"),
    [
        ({"queue_name": "dws-local-qeue"}, FleetConfigurationError, "has: dws-local-queue"),
        ({"priority_class": "no-such"}, FleetConfigurationError, "WorkloadPriorityClass no-such does not exist"),
        ({"queue_name": "dws-local-queue", "regions": ["europe-west4"]}, RegionUnavailableError, "also reaches"),
        ({"regions": ["mars-north1"]}, RegionUnavailableError, "no LocalQueue"),
    ],
)
def test_what_can_never_run_is_refused_before_anything_exists(
    hook: MultiKueueHook,
    starving: Sandbox,
    multikueue_namespace: str,
    wish: Object,
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        hook.submit(manifest(), identity=identity(), **wish)
    assert jobs(starving, multikueue_namespace) == []


def test_all_mistakes_of_a_manifest_are_shown_at_once(
    hook: MultiKueueHook, starving: Sandbox, multikueue_namespace: str
) -> None:
    wrong = manifest(parallelism=-1, backoffLimit=-2)
    with pytest.raises(ManifestError) as refused:
        hook.submit(wrong, identity=identity())
    assert "spec.parallelism" in str(refused.value)
    assert "spec.backoffLimit" in str(refused.value)
    assert jobs(starving, multikueue_namespace) == []


WRONG: list[tuple[Object, Object, list[str]]] = [
    ({"paralelism": 2, "backoffLimit": -1, "completions": -1}, {}, ["spec.paralelism: unknown", "spec.backoffLimit"]),
    ({}, {"kueue.x-k8s.io/job-min-parallelism": "none"}, ["vjob.kb.io", "job-min-parallelism"]),
]


@pytest.mark.parametrize(("spec", "marks", "says"), WRONG, ids=["fields", "webhook"])
@pytest.mark.parametrize("hold", [True, False], ids=["held", "not held"])
async def test_a_held_job_is_judged_as_one_in_its_queue_before_anything_exists(
    fleet: Sandbox,
    multikueue_connection: Object,
    multikueue_namespace: str,
    spec: Object,
    marks: Object,
    says: list[str],
    hold: bool,
) -> None:
    config = FleetConfig.from_extra(multikueue_connection["extra"], conn_id="fleet")
    wrong = manifest(**spec)
    wrong["metadata"] |= {"annotations": marks, "labels": marks}
    async with open_fleet(config) as opened:
        with pytest.raises(ManifestError) as refused:
            await submit(opened, request_for(wrong, config, multikueue_namespace, hold=hold), Silent())
        assert (await opened.manager.list(JOBS, multikueue_namespace))[0] == []
    assert all(part in str(refused.value) for part in says), refused.value
    assert "account" not in str(refused.value)


@pytest.mark.broad
def test_a_kueue_that_is_away_for_a_while_is_waited_for(
    hook: MultiKueueHook, starving: Sandbox, multikueue_namespace: str
) -> None:
    starving.pause("manager-kueue")
    timer = threading.Timer(20, lambda: starving.resume("manager-kueue"))
    timer.start()
    try:
        part = hook.submit(manifest(), identity=identity())
    finally:
        timer.join()
    assert [job["metadata"]["uid"] for job in jobs(starving, multikueue_namespace)] == [part["uid"]]


@pytest.mark.parametrize("suspend", [True, False, None])
def test_it_makes_no_difference_whether_the_manifest_is_suspended(
    hook: MultiKueueHook, fleet: Sandbox, multikueue_namespace: str, suspend: bool | None
) -> None:
    fleet.capacity("us-east4", after=0.3)
    fleet.capacity("europe-west4", mode="starve")
    fleet.capacity("asia-southeast1", mode="starve")
    part = hook.submit(manifest(**({} if suspend is None else {"suspend": suspend})), identity=identity())
    report = hook.wait(part)
    assert report["phase"] == "SUCCEEDED"
    assert report["placement"] is not None
    assert report["placement"]["region"] == "us-east4"
    fleet.capacity()


def test_a_time_to_live_of_zero_runs_once(hook: MultiKueueHook, fleet: Sandbox, multikueue_namespace: str) -> None:
    fleet.capacity("us-east4", after=0.3)
    part = hook.submit(manifest(ttlSecondsAfterFinished=0), identity=identity())
    report = hook.wait(part)
    assert report["phase"] == "SUCCEEDED"
    assert len(report["dispatches"]) == 1
    (job,) = jobs(fleet, multikueue_namespace)
    assert job["spec"]["ttlSecondsAfterFinished"] > 0
