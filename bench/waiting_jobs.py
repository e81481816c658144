"""Jobs that wait in their queue, as many as one likes, and their ends: made by hand on the manager, Kueue stopped.

Kueue takes minutes to queue ten thousand jobs on two cores, and goes on using them; what is measured here is how the
tasks take in what the manager shows. So the bench writes what Kueue would write: the Job, its Workload without quota,
and at the end the Job's conditions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from airflow_provider_multikueue.clusters.client import JOBS, NAMESPACES, ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.jobs import build_job
from airflow_provider_multikueue.decisions.names import Identity, Lifetime, Owner
from bench.context import MANAGER_CONTEXT, Context

__all__ = [
    "JOBS",
    "NAMESPACE",
    "QUEUE",
    "End",
    "Job",
    "admit_jobs",
    "ask_everywhere",
    "end_job",
    "end_jobs",
    "make_job",
    "make_jobs",
    "plain_job",
    "plain_workload",
    "reference",
    "remove_jobs",
    "without_kueue",
]

T = TypeVar("T")

NAMESPACE = "bench"
LANES = 24
QUEUE = "bench-queue"
CHECK = "dws"
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests")
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


def reference(job: Mapping[str, str]) -> dict[str, str]:
    """Return how a task names the job of this ``name`` and ``uid``."""
    return {"api_version": "batch/v1", "kind": "Job", "namespace": NAMESPACE, "name": job["name"], "uid": job["uid"]}


@asynccontextmanager
async def without_kueue(context: Context, regions: Sequence[str] = ()) -> AsyncIterator[None]:
    """Stop the manager's Kueue, and those of ``regions``, and take their webhooks away; all are back afterwards."""
    kueues = {"manager-kueue": MANAGER_CONTEXT} | {f"{region}-kueue": f"worker-{region}" for region in regions}
    async with contextlib.AsyncExitStack() as stopped:
        for kueue, cluster in kueues.items():
            await stopped.enter_async_context(_stopped(context, kueue, cluster))
        yield


@asynccontextmanager
async def _stopped(context: Context, kueue: str, name: str) -> AsyncIterator[None]:
    async with context.cluster(name) as cluster:
        saved = [(res, item) for res in HOOKS for item in (await cluster.list(res))[0]]
        context.sandbox.stop(kueue)
        for res, item in saved:
            await cluster.delete(res, item["metadata"]["name"])
    try:
        yield
    finally:
        async with context.cluster(name) as cluster:
            for res, item in saved:
                item["metadata"] = {"name": item["metadata"]["name"], "labels": item["metadata"].get("labels") or {}}
                await cluster.create(res, item)
        context.sandbox.start(kueue)


async def make_jobs(manager: Cluster, names: Sequence[str], *, kueue: bool = False) -> list[Job]:
    """Create a waiting Job for each name, in the bench's namespace, and its Workload unless ``kueue`` makes it."""
    await _make_namespace(manager)
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


async def admit_jobs(manager: Cluster, jobs: Iterable[Job], worker: str) -> dict[str, End]:
    """Let the jobs be admitted on a worker, as fast as it goes; return when each was."""

    async def admit(job: Job) -> tuple[str, End]:
        sent = time.time()
        body = {"status": _admitted(worker)}
        await manager.patch(WORKLOADS, _workload_name(job.name), body, NAMESPACE, subresource="status")
        return job.name, End(sent, time.time())

    return dict(await _in_lanes(list(jobs), admit))


async def ask_everywhere(manager: Cluster, workers: Mapping[str, Cluster], jobs: Iterable[Job]) -> None:
    """Let the jobs hold quota, and each worker, by its MultiKueueCluster, hold a copy that asks DWS for capacity."""
    for worker in workers.values():
        await _make_namespace(worker)

    async def ask(job: Job) -> None:
        for worker in workers.values():
            await _make_copy(worker, job)
        body = {"status": _nominated(sorted(workers))}
        await manager.patch(WORKLOADS, _workload_name(job.name), body, NAMESPACE, subresource="status")

    await _in_lanes(list(jobs), ask)


async def remove_jobs(cluster: Cluster) -> None:
    """Delete all that the bench made on a cluster; the namespace stays."""
    for res in (JOBS, WORKLOADS):
        items, _ = await cluster.list(res, NAMESPACE)
        await _in_lanes([item["metadata"]["name"] for item in items], _removal(cluster, res))


async def _make_namespace(cluster: Cluster) -> None:
    namespaces, _ = await cluster.list(NAMESPACES)
    if NAMESPACE not in {item["metadata"]["name"] for item in namespaces}:
        await cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})


async def _make_copy(worker: Cluster, job: Job) -> None:
    """Create the worker's Workload and its ProvisioningRequest, which nobody answers yet."""
    name = _workload_name(job.name)
    copy = plain_workload(job.name, job.uid)
    copy["metadata"] = {"name": name, "labels": {"kueue.x-k8s.io/multikueue-origin": "multikueue"}}
    made = await worker.create(WORKLOADS, copy, NAMESPACE)
    await worker.patch(WORKLOADS, name, {"status": _asking()}, NAMESPACE, subresource="status")
    request = _request(name, str(made["metadata"]["uid"]))
    await worker.create(REQUESTS, request, NAMESPACE)
    body = {"status": {"conditions": _accepted()}}
    await worker.patch(REQUESTS, request["metadata"]["name"], body, NAMESPACE, subresource="status")


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


def _reserved() -> dict[str, str]:
    return _condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue bench")


def _checked(check: str, message: str) -> dict[str, Any]:
    """Return the status of a Workload that has quota, and waits for a check."""
    pending = {"name": check, "state": "Pending", "message": message, "lastTransitionTime": _now()}
    return {"conditions": [_reserved()], "admissionChecks": [pending]}


def _nominated(workers: Sequence[str]) -> dict[str, Any]:
    return {**_checked("multikueue", ""), "nominatedClusterNames": list(workers)}


def _asking() -> dict[str, Any]:
    return _checked(CHECK, "Waiting for the ProvisioningRequest to be provisioned")


def _request(workload: str, uid: str) -> dict[str, Any]:
    owner = {"apiVersion": WORKLOADS.api_version, "kind": "Workload", "name": workload, "uid": uid, "controller": True}
    return {
        "apiVersion": REQUESTS.api_version,
        "kind": "ProvisioningRequest",
        "metadata": {"name": f"{workload}-{CHECK}-1", "ownerReferences": [owner]},
        "spec": {
            # A class that nobody here serves: the request stays as it is written.
            "provisioningClassName": "bench.example.com",
            "parameters": {"maxRunDurationSeconds": "600"},
            "podSets": [{"count": 3, "podTemplateRef": {"name": f"ppt-{workload}-{CHECK}-1-main"}}],
        },
    }


def _accepted() -> list[dict[str, str]]:
    text = "Provisioning Request was successfully queued, ETA is 2030-01-01 00:00:00 +0000 UTC"
    return [
        _condition("Accepted", "True", "SuccessfullyQueued", text),
        _condition("Provisioned", "False", "NotProvisioned", text),
    ]


def _admitted(worker: str) -> dict[str, Any]:
    conditions = [_reserved(), _condition("Admitted", "True", "Admitted", "The workload is admitted")]
    return {"conditions": conditions, "clusterName": worker, "nominatedClusterNames": None}


def _complete() -> dict[str, Any]:
    reason, text = "CompletionsReached", "Reached expected number of succeeded pods"
    conditions = [_condition(kind, "True", reason, text) for kind in ("SuccessCriteriaMet", "Complete")]
    return {"startTime": _now(), "completionTime": _now(), "succeeded": 3, "conditions": conditions}
