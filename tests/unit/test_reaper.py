"""A sweep over a manager and an Airflow that a test has scripted, both over HTTP."""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_multikueue.airflow_api import AirflowAddress, open_airflow
from airflow_provider_multikueue.clusters.client import ApiError
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import IDENTITY, LIFETIME, OWNER, Identity, Lifetime, Owner
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.fleets.reaper import Reaper
from tests.unit.apiserver import Answer, ApiServer, kubeconfig, listed, obj, status

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOBS = "/apis/batch/v1/jobs"
TASKS = "/api/v2/dags/~/dagRuns/~/taskInstances/list"
NOT_FOUND = Answer({"detail": "not found"}, 404)
WITNESS = Identity(deployment="prod", dag_id="reap", run_id="r", task_id="reap")


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def record(self, level: int, text: str) -> None:
        self.lines.append((level, text))


def job(name: str, kind: Any = "task", *, version: int = 1, attempt: int = 1) -> dict[str, Any]:
    annotations = {
        IDENTITY: Identity(deployment="prod", dag_id="d", run_id="r", task_id=name).to_json(),
        OWNER: Owner(ti=f"ti-{name}", attempt=attempt).to_json(),
        LIFETIME: Lifetime(kind=kind).to_json(),
    }
    return obj(name, version, metadata={"creationTimestamp": "2026-03-01T10:00:00Z", "annotations": annotations})


def row(task_id: str, state: str | None, *, dag_id: str = "d", ti: str = "") -> dict[str, Any]:
    keys = {"dag_id": dag_id, "dag_run_id": "r", "task_id": task_id, "map_index": -1, "id": ti or f"ti-{task_id}"}
    return keys | {"state": state, "try_number": 1}


class World:
    """A manager that serves Jobs, and an Airflow; no task instance is known unless a test says so."""

    def __init__(self, manager: ApiServer, airflow: ApiServer) -> None:
        self.manager, self.airflow, self.log = manager, airflow, Log()
        manager.on("GET", "/apis/batch", {"versions": [{"version": "v1"}], "preferredVersion": {"version": "v1"}})
        manager.on("GET", "/apis/batch/v1", {"resources": [{"name": "jobs", "namespaced": True}]})
        airflow.on("GET", "/api/v2/version", {"version": "3.3.2"})
        self.tasks()

    def jobs(self, *jobs: dict[str, Any]) -> None:
        self.manager.on("GET", JOBS, listed(*jobs))

    def tasks(self, *rows: dict[str, Any]) -> None:
        self.airflow.on("POST", TASKS, {"task_instances": list(rows), "total_entries": len(rows)})

    @property
    def deletions(self) -> list[Any]:
        return [seen.body["preconditions"] for seen in self.manager.seen if seen.method == "DELETE"]

    async def sweep(self, **more: Any) -> dict[str, tuple[str, str]]:
        config = FleetConfig.from_extra(
            {"manager_kube_config": json.dumps(kubeconfig(self.manager.url, token="t"))}, conn_id="fleet"
        )
        address = AirflowAddress(conn_id="airflow_api", url=self.airflow.url, token="t")
        async with open_fleet(config) as fleet:
            reaper = Reaper(
                fleet=fleet,
                deployment="prod",
                airflow=lambda: open_airflow(address),
                sink=self.log,
                clock=lambda: NOW,
                **more,
            )
            found = await reaper.sweep()
        json.dumps(found)
        return {entry["job"]["name"]: (entry["action"], entry["reason"]) for entry in found}


@pytest.fixture
async def world():
    async with AsyncExitStack() as stack:
        yield World(
            await stack.enter_async_context(ApiServer().running()),
            await stack.enter_async_context(ApiServer().running()),
        )


def path(name: str) -> str:
    return f"/apis/batch/v1/namespaces/default/jobs/{name}"


async def test_jobs_of_tasks_that_are_over_are_deleted_as_they_were_read(world: World):
    world.jobs(job("over"), job("live"), job("detached", "detached"))
    world.tasks(row("over", "failed"), row("live", "deferred"), row("detached", "success"))
    world.manager.on("DELETE", path("over"), {})
    found = await world.sweep()
    assert found["over"] == ("deleted", "its task is over (failed)")
    assert (found["live"][0], found["detached"][0]) == ("kept", "kept")
    assert world.deletions == [{"uid": "uid-over", "resourceVersion": "1"}]


async def test_a_dry_run_deletes_nothing(world: World):
    world.jobs(job("over"))
    world.tasks(row("over", "failed"))
    assert (await world.sweep(dry_run=True))["over"][0] == "would delete"
    assert world.deletions == []


async def test_only_jobs_of_the_deployment_are_asked_for(world: World):
    world.jobs()
    assert await world.sweep() == {}
    [asked] = [seen for seen in world.manager.seen if seen.path == JOBS]
    assert asked.query["labelSelector"] == "airflow-provider-multikueue/deployment=prod"
    assert world.airflow.seen == []


async def test_a_job_that_another_try_takes_over_meanwhile_is_kept(world: World):
    world.jobs(job("over"))
    world.tasks(row("over", "failed"))
    world.manager.on("DELETE", path("over"), status(409, "changed", reason="Conflict"))
    world.manager.on("GET", path("over"), job("over", version=2, attempt=2))
    assert (await world.sweep())["over"] == ("kept", "it has changed meanwhile")


async def test_a_job_that_only_kueue_wrote_to_meanwhile_is_deleted(world: World):
    world.jobs(job("over"))
    world.tasks(row("over", "failed"))
    world.manager.on("DELETE", path("over"), status(409, "changed", reason="Conflict"), status(200))
    world.manager.on("GET", path("over"), job("over", version=2))
    assert (await world.sweep())["over"][0] == "deleted"
    assert world.deletions[-1] == {"uid": "uid-over", "resourceVersion": "2"}


async def test_a_refused_deletion_is_told_and_stops_no_other(world: World):
    world.jobs(job("one"), job("two"))
    world.tasks(row("one", "failed"), row("two", "failed"))
    world.manager.on("DELETE", path("one"), status(403, "you may not", reason="Forbidden"))
    world.manager.on("DELETE", path("two"), {})
    found = await world.sweep()
    assert (found["one"][0], found["two"][0]) == ("failed", "deleted")
    assert "you may not" in found["one"][1]


async def test_a_task_that_is_gone_counts_only_in_an_airflow_that_knows_something(world: World):
    gone = "/api/v2/dags/d/dagRuns/r/taskInstances/gone"
    world.airflow.on("GET", gone, NOT_FOUND)
    world.jobs(job("gone"))
    assert "is it the right one?" in (await world.sweep())["gone"][1]
    world.jobs(job("gone"), job("live"))
    world.tasks(row("live", "running"))
    world.manager.on("DELETE", path("gone"), {})
    assert (await world.sweep())["gone"] == ("deleted", "its task is gone")


@pytest.mark.parametrize(
    "seen", [None, row("reap", "success", dag_id="reap"), row("reap", "running", dag_id="reap", ti="another")]
)
async def test_an_airflow_that_does_not_know_the_witness_is_another_one(world: World, seen: dict[str, Any] | None):
    world.jobs(job("over"))
    world.tasks(*filter(None, [row("over", "failed"), seen]))
    world.airflow.on("GET", "/api/v2/dags/reap/dagRuns/r/taskInstances/reap", NOT_FOUND)
    with pytest.raises(FleetConfigurationError, match="airflow_conn_id"):
        await world.sweep(witness=(WITNESS, Owner(ti="ti-reap", attempt=1)))
    assert world.deletions == []


async def test_the_witness_makes_gone_believable(world: World):
    world.jobs(job("gone"))
    world.tasks(row("reap", "running", dag_id="reap"))
    world.airflow.on("GET", "/api/v2/dags/d/dagRuns/r/taskInstances/gone", NOT_FOUND)
    world.manager.on("DELETE", path("gone"), {})
    found = await world.sweep(witness=(WITNESS, Owner(ti="ti-reap", attempt=1)))
    assert found == {"gone": ("deleted", "its task is gone")}


@pytest.mark.parametrize(("state", "action"), [("success", "deleted"), ("running", "kept")])
async def test_a_job_that_lives_with_its_run_goes_with_it(world: World, state: str, action: str):
    world.jobs(job("t", "run"))
    world.tasks(row("t", "success"))
    world.airflow.on("GET", "/api/v2/dags/d/dagRuns/r", {"state": state})
    world.manager.on("DELETE", path("t"), {})
    assert (await world.sweep())["t"][0] == action


async def test_an_account_without_rights_in_all_namespaces_looks_into_its_own(world: World):
    world.manager.on("GET", JOBS, status(403, "cluster scope", reason="Forbidden"))
    world.manager.on("GET", "/apis/batch/v1/namespaces/default/jobs", listed(job("live")))
    world.tasks(row("live", "running"))
    assert (await world.sweep())["live"][0] == "kept"


async def test_kinds_that_may_not_be_read_are_told(world: World):
    world.jobs()
    world.manager.on("GET", "/apis/ray.io", status(403, "no rays", reason="Forbidden"))
    await world.sweep(older_than=timedelta(0))
    [(level, line)] = world.log.lines
    assert level == logging.WARNING
    assert "no rays" in line


async def test_a_manager_that_lets_nothing_be_read_is_an_error(world: World):
    for group in ("batch", "ray.io"):
        world.manager.on("GET", f"/apis/{group}", status(401, "who are you", reason="Unauthorized"))
    with pytest.raises(ApiError):
        await world.sweep()


async def test_a_job_that_is_a_pod_is_found_and_deleted(world: World):
    world.manager.on("GET", "/api", {"versions": ["v1"]})
    world.manager.on("GET", "/api/v1", {"resources": [{"name": "pods", "namespaced": True}]})
    world.manager.on("GET", "/api/v1/pods", listed(job("over")))
    world.manager.on("DELETE", "/api/v1/namespaces/default/pods/over", {})
    world.tasks(row("over", "failed"))
    assert (await world.sweep())["over"][0] == "deleted"
