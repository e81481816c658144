"""What is kept of an object, and the keys by which it is waited for.

Thousands of tasks wait on one process, and most of an object (templates, managed fields) is of no use to any of them.
These functions take whatever an API server may send: what has the wrong shape is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_multikueue.decisions.names import (
    DEPLOYMENT_LABEL,
    IDENTITY,
    IDENTITY_LABEL,
    JOB_LABEL,
    LIFETIME,
    MANIFEST,
    OWNER,
)

__all__ = [
    "job_keys",
    "pod_keys",
    "provisioning_keys",
    "trim_job",
    "trim_pod",
    "trim_provisioning",
    "trim_workload",
    "workload_keys",
]

Object = dict[str, Any]

CONTROLLER_LABELS = (
    "batch.kubernetes.io/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "workload.codeflare.dev/appwrapper",
)
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
UNREAD = frozenset(
    {
        LAST_APPLIED,
        *(IDENTITY, OWNER, MANIFEST, LIFETIME),
        *(JOB_LABEL, DEPLOYMENT_LABEL, IDENTITY_LABEL),
        *("dag_id", "task_id", "run_id", "try_number", "map_index"),
    }
)
"""Labels and annotations that nobody who waits reads: whoever acts on them asks the server for the object."""
METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
)
CONTAINER = ("name", "image", "restartPolicy")
POD_STATUS = (
    "phase",
    "reason",
    "message",
    "startTime",
    "conditions",
    "containerStatuses",
    "initContainerStatuses",
)
WORKLOAD_SPEC = (
    "active",
    "queueName",
    "priority",
    "priorityClassName",
    "priorityClassRef",
    "priorityClassSource",
    "maximumExecutionTimeSeconds",
)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _picked(value: object, names: tuple[str, ...]) -> dict[str, Any]:
    source = _mapping(value)
    return {name: source[name] for name in names if name in source}


def _outline(obj: Object, spec: dict[str, Any], status: dict[str, Any]) -> Object:
    """Return an object with the metadata that somebody reads."""
    meta = _picked(obj.get("metadata"), METADATA)
    for part in ("labels", "annotations"):
        if isinstance(meta.get(part), dict):
            meta[part] = {key: value for key, value in meta[part].items() if key not in UNREAD}
    return {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def trim_job(obj: Object) -> Object:
    """Keep the plain fields of a spec, of whatever kind it is, how many pods it has of each role, and its status."""
    spec = _job_spec(obj.get("spec"))
    status = dict(_mapping(obj.get("status")))
    status.pop("uncountedTerminatedPods", None)
    return _outline(obj, spec, status)


def _job_spec(source: object) -> dict[str, Any]:
    spec = {}
    for key, value in _mapping(source).items():
        if not isinstance(value, (dict, list)) or key in ("runPolicy", "successPolicy"):
            spec[key] = value
        elif key in ("replicatedJobs", "components"):
            spec[key] = [_part(item) for item in _items(value)]
        elif key.endswith("ReplicaSpecs"):
            spec[key] = {role: _picked(replicas, ("replicas",)) for role, replicas in _mapping(value).items()}
    return spec


def _part(item: Object) -> Object:
    """Return one of the jobs of which a job is made."""
    template = _mapping(item.get("template"))
    inner = {**_picked(template, ("apiVersion", "kind")), "spec": _job_spec(template.get("spec"))}
    return {**_picked(item, ("name", "replicas")), "template": inner}


def trim_workload(obj: Object) -> Object:
    """Keep the queue, the pod sets' sizes and the status without what the pods request."""
    spec = _picked(obj.get("spec"), WORKLOAD_SPEC)
    pod_sets = _items(_mapping(obj.get("spec")).get("podSets"))
    spec["podSets"] = [_picked(pod_set, ("name", "count", "minCount")) for pod_set in pod_sets]
    status = {key: value for key, value in _mapping(obj.get("status")).items() if key != "resourceRequests"}
    return _outline(obj, spec, status)


def trim_pod(obj: Object) -> Object:
    """Keep the node, the containers' names and how they are."""
    source = _mapping(obj.get("spec"))
    spec = _picked(source, ("nodeName", "restartPolicy", "terminationGracePeriodSeconds"))
    for group in ("containers", "initContainers"):
        spec[group] = [_picked(container, CONTAINER) for container in _items(source.get(group))]
    return _outline(obj, spec, _picked(obj.get("status"), POD_STATUS))


def trim_provisioning(obj: Object) -> Object:
    """Keep the class, its parameters and the status."""
    spec = _picked(obj.get("spec"), ("provisioningClassName", "parameters"))
    return _outline(obj, spec, _mapping(obj.get("status")))


def _name(obj: Object) -> str:
    return str(_mapping(obj.get("metadata")).get("name", ""))


def _label(obj: Object, label: str) -> str | None:
    value = _mapping(_mapping(obj.get("metadata")).get("labels")).get(label)
    return value if isinstance(value, str) and value else None


def _owners(obj: Object) -> list[dict[str, Any]]:
    return _items(_mapping(obj.get("metadata")).get("ownerReferences"))


def job_keys(obj: Object) -> Iterator[str]:
    """Yield the job's name."""
    yield _name(obj)


def workload_keys(obj: Object) -> Iterator[str]:
    """Yield the Workload's name and the uids of the jobs that it stands for."""
    yield _name(obj)
    for owner in _owners(obj):
        if isinstance(owner.get("uid"), str):
            yield owner["uid"]
    if uid := _label(obj, JOB_UID_LABEL):
        yield uid


def pod_keys(obj: Object) -> Iterator[str]:
    """Yield the name of the pod's job: ours by our own label, any other by those of its controllers.

    Not every controller makes all pods from templates that are the job's own, on which our label is.
    """
    if job := _label(obj, JOB_LABEL):
        yield job
    else:
        yield from {job for label in CONTROLLER_LABELS if (job := _label(obj, label))}


def provisioning_keys(obj: Object) -> Iterator[str]:
    """Yield the name of the Workload that asks."""
    for owner in _owners(obj):
        if owner.get("kind") == "Workload" and isinstance(owner.get("name"), str):
            yield owner["name"]
