"""One fleet and one Airflow for all tests here, and what they ask of both."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import JOBS, PODS, Cluster
from airflow_provider_multikueue.sandbox.airflow import TASK_ENDS, LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_rest import AirflowApiError
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox

HERE = Path(__file__).parent
MANAGER = "manager-europe-west4"


@pytest.fixture(scope="session")
def fleet(multikueue_sandbox: Sandbox) -> Sandbox:
    """The session's fleet."""
    return multikueue_sandbox


@pytest.fixture
def granting(fleet: Sandbox) -> Sandbox:
    """The fleet, with us-east4 the first to grant."""
    fleet.capacity("us-east4", mode="grant", after=0.5)
    fleet.capacity("europe-west4", mode="grant", after=20)
    fleet.capacity("asia-southeast1", mode="grant", after=30)
    return fleet


@pytest.fixture(scope="session")
def airflow(fleet: Sandbox) -> Iterator[RecordingAirflow]:
    """A real Airflow that knows the fleet as ``multikueue_default``."""
    python = os.environ.get("MULTIKUEUE_TEST_AIRFLOW_PYTHON", sys.executable)
    with RecordingAirflow(
        dags=HERE / "dags",
        python=python,
        connections={"multikueue_default": fleet.connection()},
        settings={"core.sensitive_var_conn_names": "kube_config"},
    ) as airflow:
        yield airflow


class RecordingAirflow(LocalAirflow):
    """An Airflow that knows which runs the test asked it for."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.asked: list[tuple[str, str]] = []

    async def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a run and remember it."""
        run = await super().trigger(dag_id, conf=conf, run_id=run_id)
        self.asked.append((dag_id, run))
        return run

    async def logs_of_asked(self) -> list[tuple[str, str]]:
        """Return the title and the end of the log of each task instance of those runs."""
        found = []
        try:
            for dag_id, run in self.asked:
                for task in await self.task_instances(dag_id, run):
                    name, index, tries = task["task_id"], task["map_index"], task["try_number"]
                    text = await self.task_text(dag_id, run, name, map_index=index) if tries else ""
                    found.append((f"{dag_id}.{name}[{index}], try {tries}: {task['state']}", text[-6000:]))
        except AirflowApiError as error:
            found.append(("the others", f"Not known: {error}"))
        return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of a failed test's runs: a task's own words say why, and the Airflow is gone afterwards."""
    report = yield
    for airflow in getattr(item, "funcargs", {}).values():
        if not isinstance(airflow, RecordingAirflow):
            continue
        if report.when == "call" and report.failed:
            report.sections += airflow.sync(airflow.logs_of_asked())
        if report.when == "teardown":
            airflow.asked.clear()
    return report


class Watcher:
    """What the fleet itself knows, to compare with what Airflow says."""

    def __init__(self, fleet: Sandbox) -> None:
        self.fleet = fleet

    def objects(self, context: str, resource: Any, name: str) -> list[dict[str, Any]]:
        """Return the objects of a job on one cluster."""

        async def look() -> list[dict[str, Any]]:
            async with await Cluster.from_kubeconfig(
                context, path=str(self.fleet.kubeconfig), context=context
            ) as cluster:
                items, _ = await cluster.list(resource, "default")
            return [item for item in items if item["metadata"]["name"].startswith(name)]

        return asyncio.run(look())

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """Return the jobs on the manager whose names begin so."""
        return self.objects(MANAGER, JOBS, name)

    def pods(self, region: str, name: str) -> list[dict[str, Any]]:
        """Return the pods in a region whose names begin so."""
        return self.objects(f"worker-{region}", PODS, name)

    def annotate(self, name: str, key: str, value: str) -> None:
        """Set an annotation of the one job on the manager whose name begins so."""
        (found,) = self.jobs(name)

        async def patch() -> None:
            async with await Cluster.from_kubeconfig(
                MANAGER, path=str(self.fleet.kubeconfig), context=MANAGER
            ) as cluster:
                body = {"metadata": {"annotations": {key: value}}}
                await cluster.patch(JOBS, found["metadata"]["name"], body, found["metadata"]["namespace"])

        asyncio.run(patch())

    def output(self, region: str, name: str) -> dict[str, bytes]:
        """Return what the containers of a job wrote, by pod: the fleet's own copy."""
        folders = self.fleet.folder.glob(f"**/kept-logs/default/{name}*")
        return {
            folder.name: b"".join(log.read_bytes() for log in sorted(folder.iterdir()))
            for folder in folders
            if region in str(folder)
        }


@pytest.fixture
def watcher(fleet: Sandbox) -> Watcher:
    """See what the fleet itself knows."""
    return Watcher(fleet)


def job(script: str, *, pods: int = 1, **spec: Any) -> dict[str, Any]:
    """Return a job that runs a Python script in each of its pods."""
    container = {
        "name": "main",
        "image": "python:3.12",
        "command": ["python", "-u", "-c", script],
        "resources": {"requests": {"cpu": "10m", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": f"t{uuid.uuid4().hex[:6]}-"},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        }
        | spec,
    }


def prefix(manifest: dict[str, Any]) -> str:
    """Return how the names of the job's objects begin."""
    name: str = manifest["metadata"]["generateName"]
    return name


def start(airflow: LocalAirflow, dag_id: str, manifest: dict[str, Any]) -> str:
    """Start a run of one of the DAGs here with a job."""
    return airflow.sync(airflow.trigger(dag_id, conf={"job": json.loads(json.dumps(manifest))}))


LONG = "import time\nfor i in range(600): print('tick', i, flush=True); time.sleep(1)"


def started(airflow: LocalAirflow, dag_id: str) -> tuple[str, str]:
    """Start a run with a long job and return it, and the job's prefix, when its pod runs."""
    manifest = job(LONG)
    run = start(airflow, dag_id, manifest)
    until_shown(airflow, dag_id, run, "tick 0")
    return run, prefix(manifest)


def until_shown(
    airflow: LocalAirflow, dag_id: str, run: str, text: str, *, task_id: str = "train", map_index: int = -1
) -> None:
    """Wait until the task's log shows ``text``."""
    begun = {"running", "deferred", *TASK_ENDS}
    airflow.sync(airflow.wait_task(dag_id, run, task_id, begun, map_index=map_index))
    airflow.sync(
        poll(
            lambda: airflow.task_text(dag_id, run, task_id, map_index=map_index),
            lambda log: text in log,
            within=90,
            what=f"the log of {dag_id} to show {text!r}",
        )
    )


def until_gone(airflow: LocalAirflow, watcher: Watcher, name: str) -> None:
    """Wait until no job on the manager and no pod in us-east4 is left of it."""

    async def left() -> int:
        return await asyncio.to_thread(lambda: len(watcher.jobs(name)) + len(watcher.pods("us-east4", name)))

    airflow.sync(poll(left, lambda count: count == 0, within=40, what=f"{name} to be gone everywhere"))


def task_processes(airflow: LocalAirflow) -> list[int]:
    """Return the processes that run tasks: the scheduler's grandchildren, and their children."""
    parents = {int(entry.name): parent_of(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    workers = {pid for pid, parent in parents.items() if parent == airflow.components["scheduler"].pid}
    tasks = {pid for pid, parent in parents.items() if parent in workers}
    return sorted(tasks | {pid for pid, parent in parents.items() if parent in tasks})


def parent_of(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
