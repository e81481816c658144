"""Jobs that wait in their queue, as many as one likes, and their ends: made by hand on the manager, Kueue stopped.

Kueue takes minutes to queue ten thousand jobs on two cores, and goes on using them; what is measured here is how the
tasks take in what the manager shows. So the bench writes what Kueue would write: the Job, its Workload without quota,
and at the end the Job's conditions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from airflow_provider_multikueue.clusters.client import JOBS, NAMESPACES, ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.jobs import build_job
from airflow_provider_multikueue.decisions.names import Identity, Lifetime, Owner
from bench.context import Context

__all__ = [
    "NAMESPACE",
    "QUEUE",
    "End",
    "Job",
    "admit_jobs",
    "end_job",
    "end_jobs",
    "make_job",
    "make_jobs",
    "plain_job",
    "plain_workload",
    "remove_jobs",
    "without_kueue",
]

T = TypeVar("T")

NAMESPACE = "bench"
LANES = 24
QUEUE = "bench-queue"
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
HOOKS = [
    Resource("admissionregistration.k8s.io", "v1", f"{kind}webhookconfigurations", namespaced=False)
    for kind in ("mutating", "validating")
]
POD = {
    "restartPolicy": "Never",
    "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"},
    "tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "cloud.google.com/gke-queued", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ],
    "containers": [
        {
            "name": "main",
            "image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3",
            "args": ["120s"],
            "resources": {
                "requests": {"cpu": "100m", "memory": "100Mi", "nvidia.com/gpu": 1},
                "limits": {"nvidia.com/gpu": 1},
            },
        }
    ],
}


@dataclass(frozen=True, slots=True)
class Job:
    """A waiting job."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class End:
    """When a job's end was written, epoch seconds: the commit lies between the two."""

    sent: float
    answered: float


@asynccontextmanager
async def without_kueue(context: Context) -> AsyncIterator[None]:
    """Stop the manager's Kueue and take its webhooks away; both are back afterwards."""
    async with context.cluster() as manager:
        saved = [(res, item) for res in HOOKS for item in (await manager.list(res))[0]]
        context.sandbox.stop("manager-kueue")
        for res, item in saved:
            await manager.delete(res, item["metadata"]["name"])
    try:
        yield
    finally:
        async with context.cluster() as manager:
            for res, item in saved:
                item["metadata"] = {"name": item["metadata"]["name"], "labels": item["metadata"].get("labels") or {}}
                await manager.create(res, item)
        context.sandbox.start("manager-kueue")


async def make_jobs(manager: Cluster, names: Sequence[str], *, kueue: bool = False) -> list[Job]:
    """Create a waiting Job for each name, in the bench's namespace, and its Workload unless ``kueue`` makes it."""
    namespaces, _ = await manager.list(NAMESPACES)
    if NAMESPACE not in {item["metadata"]["name"] for item in namespaces}:
        await manager.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    return await _in_lanes(names, lambda name: make_job(manager, name, kueue=kueue))


async def end_jobs(manager: Cluster, jobs: Iterable[Job], *, lanes: int = LANES) -> dict[str, End]:
    """Let the jobs end, as fast as it goes; return when each did."""

    async def end(job: Job) -> tuple[str, End]:
        return job.name, await end_job(manager, job)

    return dict(await _in_lanes(list(jobs), end, lanes=lanes))


async def end_job(manager: Cluster, job: Job) -> End:
    """Let one job end."""
    sent = time.time()
    await manager.patch(JOBS, job.name, {"status": _complete()}, NAMESPACE, subresource="status")
    return End(sent, time.time())


async def admit_jobs(manager: Cluster, jobs: Iterable[Job], worker: str) -> None:
    """Let the jobs be admitted on a worker, as fast as it goes."""

    async def admit(job: Job) -> None:
        body = {"status": _admitted(worker)}
        await manager.patch(WORKLOADS, _workload_name(job.name), body, NAMESPACE, subresource="status")

    await _in_lanes(list(jobs), admit)


async def remove_jobs(manager: Cluster) -> None:
    """Delete all that the bench made; the namespace stays."""
    for res in (JOBS, WORKLOADS):
        items, _ = await manager.list(res, NAMESPACE)
        await _in_lanes([item["metadata"]["name"] for item in items], _removal(manager, res))


def _removal(manager: Cluster, res: Resource) -> Callable[[str], Awaitable[None]]:
    async def remove(name: str) -> None:
        with contextlib.suppress(ApiError):  # gone already, as its owner is
            await manager.delete(res, name, NAMESPACE)

    return remove


async def make_job(manager: Cluster, name: str, *, kueue: bool = False) -> Job:
    """Create one waiting Job, and its Workload unless ``kueue`` makes it; the namespace is there."""
    created = await manager.create(JOBS, plain_job(name), NAMESPACE)
    uid = str(created["metadata"]["uid"])
    if kueue:
        return Job(name, uid)
    workload = plain_workload(name, uid)
    await manager.create(WORKLOADS, workload, NAMESPACE)
    body = {"status": workload["status"]}
    await manager.patch(WORKLOADS, _workload_name(name), body, NAMESPACE, subresource="status")
    return Job(name, uid)


async def _in_lanes(items: Sequence[Any], work: Callable[[Any], Awaitable[T]], *, lanes: int = LANES) -> list[T]:
    results: list[T] = []
    left = iter(items)

    async def lane() -> None:
        results.extend([await work(item) for item in left])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(lanes):
            tasks.create_task(lane())
    return results


# -- what Kueue and we would have written


def plain_job(name: str) -> dict[str, Any]:
    """Return a waiting Job as the provider submits it and Kueue suspends it."""
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": "dws-job-",
            "annotations": {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"},
        },
        "spec": {"parallelism": 3, "completions": 3, "template": {"spec": POD}},
    }
    identity = Identity(deployment="bench", dag_id="bench", run_id="bench", task_id=name)
    job, _ = build_job(
        manifest,
        identity=identity,
        generation=1,
        owner=Owner(ti="0198c2a6-0000-7000-8000-000000000000", attempt=1),
        lifetime=Lifetime(kind="task"),
        queue_name=QUEUE,
        namespace=NAMESPACE,
    )
    job["metadata"]["name"] = name
    job["spec"] |= {"suspend": True, "managedBy": "kueue.x-k8s.io/multikueue"}
    return job


def _workload_name(name: str) -> str:
    return f"job-{name}-a1b2c"


def plain_workload(name: str, uid: str) -> dict[str, Any]:
    """Return a Job's Workload as Kueue makes it, without quota."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": "Workload",
        "metadata": {
            "name": _workload_name(name),
            "labels": {"kueue.x-k8s.io/job-uid": uid},
            "ownerReferences": [owner],
        },
        "spec": {
            "active": True,
            "priority": 0,
            "queueName": QUEUE,
            "podSets": [{"name": "main", "count": 3, "template": {"metadata": {}, "spec": POD}}],
        },
        "status": _pending(),
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": _now()}


def _pending() -> dict[str, Any]:
    text = (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor "
        "default-dws-flavor, 3 more needed"
    )
    requests = {"name": "main", "resources": {"cpu": "300m", "memory": "300Mi", "nvidia.com/gpu": "3"}}
    return {
        "conditions": [_condition("QuotaReserved", "False", "Pending", text)],
        "resourceRequests": [requests],
    }


def _admitted(worker: str) -> dict[str, Any]:
    conditions = [_condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue bench")]
    conditions.append(_condition("Admitted", "True", "Admitted", "The workload is admitted"))
    return {"conditions": conditions, "clusterName": worker}


def _complete() -> dict[str, Any]:
    reason, text = "CompletionsReached", "Reached expected number of succeeded pods"
    conditions = [_condition(kind, "True", reason, text) for kind in ("SuccessCriteriaMet", "Complete")]
    return {"startTime": _now(), "completionTime": _now(), "succeeded": 3, "conditions": conditions}
