"""From bare clusters to a fleet and back, by the command and its file: twice, killed, changed, deleted."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import SECRETS, ApiError, Cluster
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.setup.desired import FLEET_LABEL
from airflow_provider_multikueue.setup.state import KINDS, resource_of
from tests.prometheus import kueue_clusters, scrape_config
from tests.sandbox.monitored import read_endpoint
from tests.sandbox.test_hook import manifest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1500)]

ASIA = "multikueue-dws-worker-asia"
MONITORINGS = resource_of("monitoring.googleapis.com/v1", "PodMonitoring")
PLENTY = 600


class Fleet:
    """The fleet file and the command."""

    def __init__(self, bare: Sandbox, folder: Path) -> None:
        self.bare, self.file = bare, folder / "fleet.yaml"
        self.content: dict[str, Any] = json.loads(bare.fleet_file.read_text())
        self.content["kueue"]["manifests"] = str(bare.folder / "kueue.yaml")
        self.write()

    def write(self) -> None:
        self.file.write_text(json.dumps(self.content))

    def command(self, action: str) -> list[str]:
        return [sys.executable, "-m", "airflow_provider_multikueue", "fleet", action, "-f", str(self.file)]

    def run(self, action: str, *more: str) -> tuple[int, str]:
        done = subprocess.run(
            [*self.command(action), *more], capture_output=True, text=True, timeout=PLENTY, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def kill_when(self, text: str) -> None:
        """Apply, and kill the command once it says ``text``."""
        with subprocess.Popen(self.command("apply"), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert any(text in line for line in process.stdout)
            process.kill()

    def left(self) -> list[str]:
        """Return what carries the fleet's label on any of the clusters."""
        return asyncio.run(self._left())

    def endpoints(self) -> dict[str, str]:
        """Return what each Kueue says to who scrapes it as its PodMonitoring has it, with the token it names."""
        return asyncio.run(self._endpoints())

    async def _endpoints(self) -> dict[str, str]:
        found = {}
        for key, (context, _) in kueue_clusters(self.bare).items():
            path = str(self.bare.kubeconfig)
            async with await Cluster.from_kubeconfig("c", path=path, context=context) as cluster:
                (monitoring,), _ = await cluster.list(MONITORINGS)
                (endpoint,) = monitoring["spec"]["endpoints"]
                named = endpoint["authorization"]["credentials"]["secret"]
                secret = await cluster.get(SECRETS, named["name"], "kueue-system")
            token = base64.b64decode(secret["data"][named["key"]]).decode()
            name = f"{monitoring['metadata']['name']} {key}"
            found[name] = await asyncio.to_thread(read_endpoint, scrape_config(self.bare, key, token))
        return found

    async def _left(self) -> list[str]:
        found = []
        for context in json.loads(self.bare.kubeconfig.read_text())["contexts"]:
            path = str(self.bare.kubeconfig)
            async with await Cluster.from_kubeconfig("c", path=path, context=context["name"]) as cluster:
                for kind in {each for part in KINDS.values() for each in part}:
                    found += [f"{context['name']}: {kind[1]} {name}" for name in await _names(cluster, *kind)]
        return found


async def _names(cluster: Cluster, api_version: str, kind: str) -> list[str]:
    try:
        items, _ = await cluster.list(resource_of(api_version, kind), labels=FLEET_LABEL)
    except ApiError as error:
        if error.status == 404:
            return []
        raise
    return [each["metadata"]["name"] for each in items]


@pytest.fixture
def fleet(bare_sandbox: Sandbox, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(bare_sandbox, tmp_path)
    yield fleet
    fleet.run("delete", "--force")


def test_a_fleet_is_made_changed_and_deleted(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    asia = fleet.content["workers"].pop(ASIA)
    fleet.write()
    fleet.kill_when("Deployment kueue-system/kueue-controller-manager")
    code, said = fleet.run("apply")
    assert code == 0, said
    code, said = fleet.run("plan")
    assert (code, "to create" in said, "to change" in said) == (0, False, False), said

    fleet.content["workers"][ASIA] = asia
    fleet.content["queues"]["dws-cluster-queue"]["quotas"]["default-dws-flavor"]["nvidia.com/gpu"] = 250000
    fleet.write()
    code, said = fleet.run("plan")
    assert code == 3
    assert '-> "250k"' in said
    assert fleet.run("apply")[0] == 0
    assert fleet.run("plan")[0] == 0

    fleet.bare.capacity(mode="starve")
    fleet.bare.capacity("asia-southeast1", after=1)
    monkeypatch.setenv(
        "AIRFLOW_CONN_FLEET", fleet.run("connection")[1].replace('"extra": {', '"extra": {"deployment": "t",')
    )
    hook = MultiKueueHook("fleet")
    identity = Identity(deployment="t", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    job = hook.submit(manifest("echo hello"), identity=identity)
    report = hook.wait(job)
    hook.delete(job)
    assert (report["phase"], report["placement"]["region"]) == ("SUCCEEDED", "asia-southeast1")

    code, said = fleet.run("delete")
    assert code == 0, said
    assert fleet.left() == []


def test_its_own_monitoring_collects_what_the_dashboards_ask_for(fleet: Fleet):
    code, said = fleet.run("apply")
    assert code == 0, said
    endpoints = fleet.endpoints()
    regions = ("europe-west4", "us-east4", "asia-southeast1")
    assert set(endpoints) == {"kueue-manager manager", *(f"kueue-worker {region}" for region in regions)}
    for text in endpoints.values():
        assert 'kueue_cluster_queue_nominal_quota{cluster_queue="dws-cluster-queue"' in text


def test_someone_elses_object_is_left_alone(fleet: Fleet):
    assert fleet.run("apply")[0] == 0
    other = {**fleet.content, "fleet": "other"}
    fleet.file.write_text(json.dumps(other))
    code, said = fleet.run("apply")
    assert code == 2
    assert "it belongs to the fleet sandbox-" in said
    fleet.write()
    assert fleet.run("plan")[0] == 0
