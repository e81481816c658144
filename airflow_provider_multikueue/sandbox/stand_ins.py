"""What the controllers of MPIJob, TrainJob, RayJob and AppWrapper make of a job, and what they write into its status.

Stand-ins, for these controllers are not built here: pods, their names and labels, and the statuses are those of MPI
operator 0.8, Trainer 2.2, KubeRay 1.6 and AppWrapper 1.2. Left out are services between pods (SSH, the protocols of
Ray: pods run the commands of their templates) and the controllers' own retries: the first failure is the last.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import yaml

from airflow_provider_multikueue.decisions.kinds import MULTIKUEUE, find_kind, get_at, kind_of, outcome, pod_templates

__all__ = ["STAND_INS", "Children", "is_over", "is_suspended"]

Object = dict[str, Any]


class Children(Protocol):
    """The objects that belong to one job."""

    async def ensure(self, wanted: Object) -> Object:
        """Return the object of this kind and name as it is, made if it was not there."""
        ...

    async def find(self, api_version: str, kind: str, name: str) -> Object | None:
        """Return an object of the job's namespace (or of none), or None."""
        ...

    async def pods(self, selector: Mapping[str, str]) -> list[Object]:
        """Return the pods of the job's namespace with these labels."""
        ...

    async def clear(self) -> None:
        """Delete what was made."""
        ...


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Whether nothing of the job may run, or not here."""
    kind = kind_of(job)
    return bool(get_at(job, kind.suspend)) or get_at(job, kind.managed_by) == MULTIKUEUE


def is_over(job: Mapping[str, Any]) -> bool:
    """Whether the job has ended by its own status."""
    return outcome(kind_of(job), job) is not None


# -- MPI operator


async def mpi_job(job: Object, children: Children) -> Object:
    """Run a launcher, as a Job, and the workers beside it; the launcher's end is the job's."""
    name, replicas = job["metadata"]["name"], job["spec"]["mpiReplicaSpecs"]
    shared = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-name": name}
    role = "training.kubeflow.org/job-role"
    worker = replicas.get("Worker") or {}
    for index in range(worker.get("replicas", 1) if worker else 0):
        labels = {**shared, role: "worker", "training.kubeflow.org/replica-index": str(index)}
        await children.ensure(_pod(f"{name}-worker-{index}", worker["template"], labels))
    policy = job["spec"].get("runPolicy") or {}
    limits = {key: policy[key] for key in ("activeDeadlineSeconds", "backoffLimit") if key in policy}
    template = _labelled(replicas["Launcher"]["template"], {**shared, role: "launcher"})
    launcher = await children.ensure(_job(f"{name}-launcher", template, **limits))
    running = [pod["status"].get("phase") == "Running" for pod in await children.pods(shared)]
    return _kubeflow_status(job, launcher, everything_runs=bool(running) and all(running))


def _kubeflow_status(job: Object, launcher: Object, *, everything_runs: bool) -> Object:
    what = f"MPIJob {job['metadata']['namespace']}/{job['metadata']['name']}"
    status = {"startTime": _now(), **(job.get("status") or {})}
    status = _with(status, "Created", "MPIJobCreated", f"{what} is created.")
    ended = outcome(find_kind("batch/v1", "Job"), launcher)
    if ended is None:
        return _with(status, "Running", "MPIJobRunning", f"{what} is running.") if everything_runs else status
    status = _with(status, "Running", "MPIJobRunning", f"{what} is running.", true=False)
    status["completionTime"] = _now()
    if ended.succeeded:
        return _with(status, "Succeeded", "MPIJobSucceeded", f"{what} successfully completed.")
    return _with(status, "Failed", f"{ended.reason}/" if "Backoff" in ended.reason else ended.reason, ended.message)


# -- Trainer


async def train_job(job: Object, children: Children) -> Object:
    """Run the JobSet that the job's runtime describes; its end is the job's."""
    status = copy.deepcopy(job.get("status") or {})
    reference = job["spec"]["runtimeRef"]
    kind = reference.get("kind") or "ClusterTrainingRuntime"
    runtime = await children.find(job["apiVersion"], kind, reference["name"])
    if runtime is None:
        return _with(status, "Failed", "TrainingRuntimeNotSupported", f"There is no {kind} {reference['name']}.")
    jobset = await children.ensure(_jobset(job, runtime["spec"]["template"]))
    ended = outcome(kind_of(jobset), jobset)
    counted = ("name", "ready", "succeeded", "failed", "active", "suspended")
    each_job = (jobset.get("status") or {}).get("replicatedJobsStatus") or []
    status["jobsStatus"] = [{key: each[key] for key in counted if key in each} for each in each_job]
    if ended is None:
        return status
    return _with(status, "Complete" if ended.succeeded else "Failed", ended.reason, ended.message)


def _jobset(job: Object, template: Object) -> Object:
    trainer = job["spec"].get("trainer") or {}
    spec = copy.deepcopy(template["spec"])
    for replicated in spec["replicatedJobs"]:
        if replicated["name"] != "node":
            continue
        inner = replicated["template"]["spec"]
        if "numNodes" in trainer:
            inner["parallelism"] = inner["completions"] = trainer["numNodes"]
        container = inner["template"]["spec"]["containers"][0]
        container.update({key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer})
        if "resourcesPerNode" in trainer:
            container["resources"] = trainer["resourcesPerNode"]
    metadata = {"name": job["metadata"]["name"]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


# -- KubeRay


async def ray_job(job: Object, children: Children) -> Object:
    """Run the cluster's pods, then the submitter, as a Job; its end is the job's. What is not valid ends at once."""
    name, spec = job["metadata"]["name"], job["spec"]
    try:
        yaml.safe_load(spec.get("runtimeEnvYAML") or "")
    except yaml.YAMLError as error:
        refused = {"jobDeploymentStatus": "ValidationFailed", "reason": "ValidationFailed"}
        return {**refused, "message": f"failed to unmarshal runtimeEnvYAML: {error}"}
    status = {"startTime": _now(), "rayClusterName": name, "jobId": name, **(job.get("status") or {})}
    cluster = spec["rayClusterSpec"]
    head = await children.ensure(_ray_pod(name, "headgroup", "head", 0, cluster["headGroupSpec"]["template"]))
    for group in cluster.get("workerGroupSpecs") or ():
        for index in range(group.get("replicas", 1)):
            await children.ensure(_ray_pod(name, group["groupName"], "worker", index, group["template"]))
    if (head.get("status") or {}).get("phase") != "Running" and "jobStatus" not in status:
        return {**status, "jobDeploymentStatus": "Initializing"}
    submitter = await children.ensure(_job(name, _labelled(_submitter(spec), {}), backoffLimit=0))
    ended = outcome(find_kind("batch/v1", "Job"), submitter)
    if ended is None:
        return {**status, "jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}
    status |= {"endTime": _now(), "jobStatus": "SUCCEEDED" if ended.succeeded else "FAILED"}
    if ended.succeeded:
        return {**status, "jobDeploymentStatus": "Complete", "message": "Job finished successfully."}
    return {**status, "jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": ended.message}


def _submitter(spec: Object) -> Object:
    given: Object = spec.get("submitterPodTemplate") or copy.deepcopy(
        spec["rayClusterSpec"]["headGroupSpec"]["template"]
    )
    return given


def _ray_pod(cluster: str, group: str, node_type: str, index: int, template: Object) -> Object:
    labels = {
        "ray.io/cluster": cluster,
        "ray.io/group": group,
        "ray.io/node-type": node_type,
        "ray.io/is-ray-node": "yes",
        "app.kubernetes.io/name": "kuberay",
    }
    suffix = "head" if node_type == "head" else f"{group}-worker-{index}"
    return _pod(f"{cluster}-{suffix}", template, labels)


# -- AppWrapper


async def app_wrapper(job: Object, children: Children) -> Object:
    """Make the wrapped objects; the end of all, or the failure of one pod, is the job's, and removes them."""
    status = copy.deepcopy(job.get("status") or {})
    label = {"workload.codeflare.dev/appwrapper": job["metadata"]["name"]}
    ended = []
    for component in job["spec"]["components"]:
        wanted = _component(component["template"], label)
        ended.append(outcome(kind_of(wanted), await children.ensure(wanted)))
    phases = [pod["status"].get("phase") for pod in await children.pods(label)]
    if "Failed" in phases or any(each is not None and not each.succeeded for each in ended):
        await children.clear()
        return _with(status, "Unhealthy", "FoundFailedPods", "") | {"phase": "Failed"}
    if all(ended):
        message = f"{len(phases)} pods succeeded and no running, pending, or failed pods"
        return _with(status, "ResourcesDeployed", "Succeeded", message) | {"phase": "Succeeded"}
    return _with(status, "ResourcesDeployed", "Resuming", "Suspend is false") | {"phase": "Running"}


def _component(template: Object, label: Mapping[str, str]) -> Object:
    wanted = copy.deepcopy(template)
    for holder in (wanted, *(pod for _, pod in pod_templates(kind_of(wanted), wanted))):
        metadata = holder.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), **label}
    return wanted


# -- parts


def _pod(name: str, template: Object, labels: Mapping[str, str]) -> Object:
    labelled = _labelled(template, labels)
    metadata = {**labelled["metadata"], "name": name}
    spec = {"restartPolicy": "Never", **labelled["spec"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _job(name: str, template: Object, **spec: Any) -> Object:
    template["spec"].setdefault("restartPolicy", "Never")
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {**spec, "template": template}}


def _labelled(template: Object, labels: Mapping[str, str]) -> Object:
    copied = copy.deepcopy(template)
    metadata = copied.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    return copied


def _with(status: Object, condition: str, reason: str, message: str, *, true: bool = True) -> Object:
    """Return the status with this condition; it keeps its time if it says the same already."""
    others: Iterable[Object] = status.get("conditions") or []
    value = "True" if true else "False"
    for each in others:
        if each["type"] == condition and each["status"] == value:
            return dict(status)
    entry = {"type": condition, "status": value, "reason": reason, "message": message, "lastTransitionTime": _now()}
    return {**status, "conditions": [*(each for each in others if each["type"] != condition), entry]}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


STAND_INS: dict[str, dict[tuple[str, str], Callable[[Object, Children], Awaitable[Object]]]] = {
    "mpi": {("kubeflow.org", "mpijobs"): mpi_job},
    "trainer": {("trainer.kubeflow.org", "trainjobs"): train_job},
    "ray": {("ray.io", "rayjobs"): ray_job},
    "appwrapper": {("workload.codeflare.dev", "appwrappers"): app_wrapper},
}
"""By the sandbox's name of the kinds: group and plural, and what runs one job of it and returns its status."""
