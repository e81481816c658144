"""What submissions on one host leave to each other."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import Identity, Lifetime, Owner
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.fleets.remembered import SECONDS, recall, remember
from airflow_provider_multikueue.fleets.submit import Request, submit
from tests.unit.apiserver import Answer, ApiServer, kubeconfig, listed, obj, status

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
QUEUES = f"{KUEUE}/namespaces/default/localqueues"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PLURALS = ("localqueues", "clusterqueues", "admissionchecks", "multikueueconfigs")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of our own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"multikueue-remembered-{os.getuid()}"


class Silence:
    def record(self, level: int, text: str) -> None:
        """Drop it."""


def serve(server: ApiServer, *, queue: Answer | dict[str, Any] | None = None) -> None:
    """Let the server have a MultiKueue queue."""
    server.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta2"}]})
    server.on("GET", KUEUE, {"resources": [{"name": name, "namespaced": name == "localqueues"} for name in PLURALS]})
    server.on("GET", f"{QUEUES}/gpus", queue or obj("gpus", spec={"clusterQueue": "all"}))
    server.on("GET", f"{QUEUES}/default", status(404, "not found"))
    strategy = {"admissionChecks": [{"name": "multikueue"}]}
    server.on("GET", f"{KUEUE}/clusterqueues/all", obj("all", spec={"admissionChecksStrategy": strategy}))
    check = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": {"name": "regions"}}
    server.on("GET", f"{KUEUE}/admissionchecks/multikueue", obj("multikueue", spec=check))
    server.on("GET", f"{KUEUE}/multikueueconfigs/regions", obj("regions", spec={"clusters": ["us", "eu"]}))
    server.on("GET", JOBS, listed())
    server.on("POST", JOBS, obj("made", metadata={"annotations": {}}, kind="Job"))


async def submitted(server: ApiServer, path: Path, **wishes: Any) -> list[str]:
    """Submit a job from a fleet that is opened for it; return what was asked."""
    path.write_text(yaml.safe_dump(kubeconfig(server.url, token="some-token")))
    config = FleetConfig.from_extra({"manager_kube_config_path": str(path)}, conn_id="fleet")
    containers = [{"name": "main", "image": "python:3.12"}]
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "train-"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": containers}}},
    }
    request = Request(
        manifest=manifest,
        identity=Identity(deployment="here", dag_id="dag", run_id="run", task_id="train"),
        owner=Owner(ti="ti", attempt=1),
        lifetime=Lifetime(kind="task"),
        queue_name="gpus",
        hold=True,
        **wishes,
    )
    before = len(server.seen)
    async with open_fleet(config) as fleet:
        await submit(fleet, request, Silence())
    return [f"{seen.method} {seen.path}{' dry' if 'dryRun' in seen.query else ''}" for seen in server.seen[before:]]


def test_a_second_submission_on_this_host_asks_three_times(tmp_path: Path):
    async def both() -> tuple[list[str], list[str]]:
        async with ApiServer().running() as server:
            serve(server)
            path = tmp_path / "config"
            return await submitted(server, path), await asyncio.to_thread(asyncio.run, submitted(server, path))

    first, second = asyncio.run(both())
    assert f"GET {KUEUE}/multikueueconfigs/regions" in first
    assert second == [f"GET {JOBS}", f"POST {JOBS} dry", f"POST {JOBS}"]


def test_regions_are_looked_up_each_time(tmp_path: Path):
    async def both() -> list[str]:
        async with ApiServer().running() as server:
            serve(server)
            await submitted(server, tmp_path / "config")
            with pytest.raises(Exception, match="region unknown"):
                await submitted(server, tmp_path / "config", regions=["us-east4"])
            return [seen.path for seen in server.seen]

    assert asyncio.run(both()).count(f"{QUEUES}/gpus") == 2


def test_a_queue_that_was_refused_is_looked_up_again(tmp_path: Path):
    async def both() -> list[str]:
        async with ApiServer().running() as server:
            serve(server, queue=status(404, "not found"))
            server.on("GET", QUEUES, listed())
            with pytest.raises(FleetConfigurationError, match="does not exist"):
                await submitted(server, tmp_path / "config")
            serve(server)
            return await submitted(server, tmp_path / "config")

    assert f"POST {JOBS}" in asyncio.run(both())


def test_what_is_old_is_forgotten(folder: Path):
    remember({"a": 1}, "fleet", "queue")
    assert recall("fleet", "queue") == {"a": 1}
    assert recall("fleet", "other") is None
    (path,) = folder.iterdir()
    past = path.stat().st_mtime - SECONDS - 1
    os.utime(path, (past, past))
    assert recall("fleet", "queue") is None


def test_a_folder_that_others_can_write_to_is_not_used(folder: Path):
    folder.mkdir()
    folder.chmod(0o777)
    remember({"a": 1}, "fleet")
    assert recall("fleet") is None
    assert not list(folder.iterdir())


def test_what_cannot_be_read_is_not_there(folder: Path):
    remember({"a": 1}, "fleet")
    (path,) = folder.iterdir()
    path.write_text("{")
    assert recall("fleet") is None
