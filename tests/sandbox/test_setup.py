"""From bare clusters to a fleet and back, by the command and its file: twice, killed, changed, deleted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import ApiError, Cluster
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.setup.desired import FLEET_LABEL
from airflow_provider_multikueue.setup.state import KINDS, resource_of
from tests.sandbox.test_hook import manifest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1500)]

ASIA = "multikueue-dws-worker-asia"
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


def test_someone_elses_object_is_left_alone(fleet: Fleet):
    assert fleet.run("apply")[0] == 0
    other = {**fleet.content, "fleet": "other"}
    fleet.file.write_text(json.dumps(other))
    code, said = fleet.run("apply")
    assert code == 2
    assert "it belongs to the fleet sandbox-" in said
    fleet.write()
    assert fleet.run("plan")[0] == 0
