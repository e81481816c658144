"""The tutorial's DAG as it is, with Google's own operators and client, on a GKE of this machine; nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, RecordingAirflow, task_processes
from tests.gkecloud import PROJECT, GkeCloud

PYTHON = os.environ.get("MULTIKUEUE_TEST_GOOGLE_PYTHON")

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.fleet,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        PYTHON is None, reason="MULTIKUEUE_TEST_GOOGLE_PYTHON names no interpreter; `make test-fleet` does"
    ),
]

DAG = "seed_tutorial"
EXAMPLES = HERE.parents[1] / "example_dags"
US = "worker-us-east4"
SHORT = {"args": ["2s"]}
PLENTY = 900
SETTINGS = {
    "core.parallelism": 4,  # each task imports the Google provider
    "scheduler.orphaned_tasks_check_interval": 10,
    "scheduler.task_instance_heartbeat_timeout": 150,
    "scheduler.task_instance_heartbeat_timeout_detection_interval": 5,
}


@pytest.fixture(scope="module")
def gke(bare_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GkeCloud]:
    """GKE, which knows our account for an administrator."""
    with GkeCloud(sandbox=bare_sandbox, tokens=lambda _: bare_sandbox.accounts["admin"]).running(
        tmp_path_factory.mktemp("gke")
    ) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def airflow(gke: GkeCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    """An Airflow with the Google provider and the DAG, whose fleet file has Kueue's manifests from the sandbox."""
    dags = tmp_path_factory.mktemp("dags")
    for name in ("seed_tutorial.py", "train.yaml"):
        shutil.copy(EXAMPLES / name, dags)
    fleet = yaml.safe_load((EXAMPLES / "fleet.yaml").read_text())
    fleet["kueue"]["manifests"] = str(gke.sandbox.folder / "kueue.yaml")
    (dags / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    connections = {"google_cloud_default": gke.connection, "multikueue_seed": connection(dags / "fleet.yaml", gke)}
    with RecordingAirflow(
        dags=dags,
        python=Path(str(PYTHON)),
        connections=connections,
        variables=gke.environment,
        settings=SETTINGS,
        home=tmp_path_factory.mktemp("airflow"),
    ) as airflow:
        yield airflow


def connection(fleet: Path, gke: GkeCloud) -> dict[str, Any]:
    """Return what the command says that the fleet's connection is."""
    command = [str(PYTHON), "-m", "airflow_provider_multikueue", "fleet", "connection", "-f", str(fleet)]
    environment = {**os.environ, "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(gke.connection)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    found["extra"]["deployment"] = "tutorial"
    return found


@pytest.fixture(autouse=True)
def granting(gke: GkeCloud) -> Iterator[None]:
    """All regions grant, none of them enough for all jobs; what a test leaves is cleared away."""
    for region in gke.sandbox.regions:
        gke.sandbox.capacity(region, mode="grant", after=1, gpus=12)
    yield
    gke.clear()


class Tutorial:
    """The DAG's runs."""

    def __init__(self, airflow: LocalAirflow) -> None:
        self.airflow = airflow

    def start(self) -> str:
        return self.airflow.sync(self.airflow.trigger(DAG, conf=SHORT))

    def end(self, run: str) -> str:
        return self.airflow.sync(self.airflow.wait_run(DAG, run, within=PLENTY))

    def text(self, run: str, task: str) -> str:
        return self.airflow.sync(self.airflow.task_text(DAG, run, task))

    def value(self, run: str, task: str) -> Any:
        return self.airflow.sync(self.airflow.xcom(DAG, run, task))

    def succeeds(self) -> str:
        run = self.start()
        assert self.end(run) == "success"
        return run


@pytest.fixture
def tutorial(airflow: LocalAirflow) -> Tutorial:
    return Tutorial(airflow)


def test_the_whole_tutorial_runs_twice_and_leaves_nothing(tutorial: Tutorial, gke: GkeCloud) -> None:
    for _ in range(2):
        run = tutorial.succeeds()
        regions = tutorial.value(run, "show_regions")
        assert regions["eu"] == "europe-west4"
        assert len(regions) == 9
        assert len({region for name, region in regions.items() if name.startswith("train")}) > 1
        assert tutorial.value(run, "train_for_production")["priority_class"] == "production"
        made = {(each["action"], each["kind"]) for each in tutorial.value(run, "install_manager")}
        assert {("create", "Deployment"), ("create", "PodMonitoring")} <= made
        assert gke.names() == []


def test_a_refused_quota_fails_the_run_and_everything_is_deleted(tutorial: Tutorial, gke: GkeCloud) -> None:
    gke.refused[US] = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Insufficient regional quota to satisfy request")
    run = tutorial.start()
    assert tutorial.end(run) == "failed"
    assert "Insufficient regional quota" in tutorial.text(run, "create_multikueue-dws-worker-us")
    assert gke.names() == []


def test_a_half_made_cluster_is_told_and_everything_is_deleted(tutorial: Tutorial, gke: GkeCloud) -> None:
    gke.half_made[US] = "Quota exceeded for SSD_TOTAL_GB"
    run = tutorial.start()
    assert tutorial.end(run) == "failed"
    said = tutorial.text(run, "install_multikueue-dws-worker-us")
    assert "is of status ERROR" in said
    assert "Quota exceeded for SSD_TOTAL_GB" in said
    assert gke.names() == []


def test_a_cluster_of_someone_else_is_neither_used_nor_deleted(tutorial: Tutorial, gke: GkeCloud) -> None:
    gke.add(f"projects/{PROJECT}/locations/us-east4/clusters/{US}", "127.0.0.1:1")
    before = len(gke.calls)
    run = tutorial.start()
    assert tutorial.end(run) == "failed"
    assert "that this DAG has not made" in tutorial.text(run, "begin")
    assert gke.names() == [US]
    assert not any(call.startswith(("create", "delete")) for call in gke.calls[before:])


def test_a_run_that_is_marked_failed_is_deleted_all_the_same(tutorial: Tutorial, gke: GkeCloud) -> None:
    run = tutorial.start()
    airflow = tutorial.airflow
    airflow.sync(airflow.wait_task(DAG, run, "install_manager", {"running"}, within=PLENTY))
    airflow.sync(airflow.mark_run(DAG, run, "failed"))
    airflow.sync(poll(lambda: names(gke), lambda left: not left, within=PLENTY, what="all clusters to be gone"))


async def names(gke: GkeCloud) -> list[str]:
    return gke.names()


def test_after_airflow_was_killed_in_the_middle_nothing_is_left_and_the_next_run_succeeds(
    tutorial: Tutorial, gke: GkeCloud
) -> None:
    run = tutorial.start()
    airflow = tutorial.airflow
    airflow.sync(airflow.wait_task(DAG, run, "configure_multikueue-dws-worker-eu", within=PLENTY))
    for pid in task_processes(airflow):
        os.kill(pid, signal.SIGKILL)
    for component in ("scheduler", "triggerer"):
        airflow.signal(component)
        airflow.sync(airflow.components[component].wait())
        airflow.sync(airflow.start_component(component))
    tutorial.end(run)
    assert gke.names() == []
    tutorial.succeeds()
    assert gke.names() == []
