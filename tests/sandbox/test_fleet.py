"""What a sandbox is: a real fleet, private to its user, whose parts can be frozen and killed."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.clusters.client import JOBS, ApiError, Cluster
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.paths import SandboxError

pytestmark = pytest.mark.sandbox

NAMES = {"europe-west4": "eu", "us-east4": "us", "asia-southeast1": "asia"}


@pytest.fixture
async def manager(multikueue_sandbox: Sandbox) -> AsyncIterator[Cluster]:
    path = str(multikueue_sandbox.kubeconfig)
    async with await Cluster.from_kubeconfig("manager", path=path, context="manager-europe-west4") as cluster:
        yield cluster


def gpu_job(name: str, *, pods: int = 3, seconds: int = 1) -> dict[str, Any]:
    """The job of Google's example."""
    container = {
        "name": "dummy-job",
        "image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3",
        "args": [f"{seconds}s"],
        "resources": {
            "requests": {"cpu": "100m", "memory": "100Mi", "nvidia.com/gpu": 1},
            "limits": {"nvidia.com/gpu": 1},
        },
    }
    template = {
        "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "cloud.google.com/gke-queued", "operator": "Exists", "effect": "NoSchedule"},
        ],
        "containers": [container],
        "restartPolicy": "Never",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {"kueue.x-k8s.io/queue-name": "dws-local-queue"},
            "annotations": {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"},
        },
        "spec": {"parallelism": pods, "completions": pods, "suspend": True, "template": {"spec": template}},
    }


async def completed(manager: Cluster, name: str, namespace: str) -> str | None:
    """The worker that a job ran on, once it is complete."""
    workloads = await manager.resource("kueue.x-k8s.io", "workloads")
    async with asyncio.timeout(90):
        while True:
            job = await manager.get(JOBS, name, namespace)
            conditions = {each["type"]: each["status"] for each in job["status"].get("conditions", [])}
            if conditions.get("Complete") == "True":
                labels = f"kueue.x-k8s.io/job-uid={job['metadata']['uid']}"
                (workload,), _ = await manager.list(workloads, namespace, labels=labels)
                winner: str | None = workload["status"].get("clusterName")
                return winner
            assert conditions.get("Failed") != "True", job["status"]
            await asyncio.sleep(0.1)


async def test_the_example_s_job_runs_where_capacity_is_granted(
    multikueue_sandbox: Sandbox, multikueue_namespace: str, manager: Cluster
) -> None:
    chosen, *others = multikueue_sandbox.regions
    multikueue_sandbox.capacity(chosen, mode="grant")
    for region in others:
        multikueue_sandbox.capacity(region, mode="starve")
    await manager.create(JOBS, gpu_job("dws-job-1"), multikueue_namespace)
    assert await completed(manager, "dws-job-1", multikueue_namespace) == f"multikueue-dws-worker-{NAMES[chosen]}"
    multikueue_sandbox.capacity()


async def test_the_kubeconfig_has_the_example_s_contexts_and_the_connection_leads_to_them(
    multikueue_sandbox: Sandbox,
) -> None:
    contexts = {each["name"] for each in yaml.safe_load(multikueue_sandbox.kubeconfig.read_text())["contexts"]}
    assert contexts == {"manager-europe-west4", *(f"worker-{region}" for region in multikueue_sandbox.regions)}
    extra = multikueue_sandbox.connection()["extra"]
    assert extra["manager_context"] == "manager-europe-west4"
    assert {each["context"] for each in extra["workers"].values()} == contexts - {"manager-europe-west4"}
    assert extra["deployment"] == f"sandbox-{multikueue_sandbox.name}"


def test_only_the_owner_reads_the_sandbox_s_files(multikueue_sandbox: Sandbox) -> None:
    folder = multikueue_sandbox.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    keys = [*folder.rglob("*.key"), *folder.rglob("*kubeconfig"), folder / "connection.json"]
    assert len(keys) > 20
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_everything_listens_on_loopback_alone(multikueue_sandbox: Sandbox) -> None:
    pids = [each["pid"] for each in multikueue_sandbox.state["components"].values()]
    addresses = {address for pid in pids for address in listening(pid)}
    assert len(addresses) > 10
    assert {address.rpartition(":")[0] for address in addresses} == {"0100007F"}


async def test_without_credentials_an_api_server_says_nothing(multikueue_sandbox: Sandbox) -> None:
    content = yaml.safe_load(multikueue_sandbox.kubeconfig.read_text())
    for user in content["users"]:
        user["user"] = {"token": "invented"}
    async with await Cluster.from_kubeconfig("stranger", config=content, context="worker-us-east4") as stranger:
        with pytest.raises(ApiError) as refused:
            await stranger.list(JOBS, "default")
    assert refused.value.status == 401


async def test_a_frozen_worker_answers_again_after_it_was_resumed(multikueue_sandbox: Sandbox) -> None:
    path = str(multikueue_sandbox.kubeconfig)
    async with await Cluster.from_kubeconfig("worker", path=path, context="worker-us-east4") as worker:
        await worker.list(JOBS, "default")
        multikueue_sandbox.pause("us-east4-apiserver")
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await worker.list(JOBS, "default")
        finally:
            multikueue_sandbox.resume("us-east4-apiserver")
        await worker.list(JOBS, "default")


async def test_kueue_that_was_killed_comes_back_and_goes_on(
    multikueue_sandbox: Sandbox, multikueue_namespace: str, manager: Cluster
) -> None:
    before = multikueue_sandbox.state["components"]["manager-kueue"]["pid"]
    multikueue_sandbox.restart("manager-kueue")
    assert multikueue_sandbox.state["components"]["manager-kueue"]["pid"] != before
    async with asyncio.timeout(60):
        while not await is_back(manager, multikueue_namespace):  # noqa: ASYNC110  (only asking tells)
            await asyncio.sleep(0.2)
    await manager.create(JOBS, gpu_job("after", pods=1), multikueue_namespace)
    assert await completed(manager, "after", multikueue_namespace)


async def is_back(manager: Cluster, namespace: str) -> bool:
    """Whether Kueue cares for a new job; in its first moments it answers, but doesn't know its queues yet."""
    try:
        job = await manager.create(JOBS, gpu_job("probe"), namespace, dry_run=True)
    except ApiError as error:
        if error.status == 500:
            return False
        raise
    return job["spec"].get("managedBy") == "kueue.x-k8s.io/multikueue"


def test_an_unknown_component_is_named_with_those_there_are(multikueue_sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match=r"no component 'kube'; it has etcd, manager-apiserver"):
        multikueue_sandbox.pause("kube")
    with pytest.raises(SandboxError, match=r"no region 'mars'; it has europe-west4"):
        multikueue_sandbox.capacity("mars")


def listening(pid: int) -> list[str]:
    """The addresses, as the kernel writes them, on which a process accepts TCP connections."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(entry.readlink()))
        except FileNotFoundError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1])
    return found
