"""From the description to the objects on each cluster. Pure.

Every object carries two labels: whose fleet it belongs to, and which part of it. What lacks the first is someone
else's.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_provider_multikueue.setup.description import FleetDescription, Queue, Quotas, Team, Worker

__all__ = [
    "FLEET_LABEL",
    "KUEUE_NAMESPACE",
    "PART_LABEL",
    "RBAC_API",
    "WORKER_LABEL",
    "Part",
    "access_objects",
    "link_objects",
    "manager_objects",
    "owned",
    "worker_kubeconfig",
    "worker_objects",
]

Object = dict[str, Any]

KUEUE_API: Final = "kueue.x-k8s.io/v1beta2"
RBAC_API: Final = "rbac.authorization.k8s.io/v1"
KUEUE_NAMESPACE: Final = "kueue-system"
FLEET_LABEL: Final = "airflow-provider-multikueue/fleet"
PART_LABEL: Final = "airflow-provider-multikueue/part"
WORKER_LABEL: Final = "airflow-provider-multikueue/worker"
PRIORITY_ANNOTATION: Final = "airflow-provider-multikueue/priority-class"

READ_AND_MAKE: Final = ("create", "delete", "get", "list", "watch")
_REMOTE_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "batch/job": ("batch", "jobs"),
    "jobset.x-k8s.io/jobset": ("jobset.x-k8s.io", "jobsets"),
    "kubeflow.org/jaxjob": ("kubeflow.org", "jaxjobs"),
    "kubeflow.org/mpijob": ("kubeflow.org", "mpijobs"),
    "kubeflow.org/paddlejob": ("kubeflow.org", "paddlejobs"),
    "kubeflow.org/pytorchjob": ("kubeflow.org", "pytorchjobs"),
    "kubeflow.org/tfjob": ("kubeflow.org", "tfjobs"),
    "kubeflow.org/xgboostjob": ("kubeflow.org", "xgboostjobs"),
    "leaderworkerset.x-k8s.io/leaderworkerset": ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    "pod": ("", "pods"),
    "ray.io/raycluster": ("ray.io", "rayclusters"),
    "ray.io/rayjob": ("ray.io", "rayjobs"),
    "ray.io/rayservice": ("ray.io", "rayservices"),
    "statefulset": ("apps", "statefulsets"),
    "trainer.kubeflow.org/trainjob": ("trainer.kubeflow.org", "trainjobs"),
    "workload.codeflare.dev/appwrapper": ("workload.codeflare.dev", "appwrappers"),
}
"""What MultiKueue copies to a worker, by the name of the integration; read in Kueue's adapters."""


class Part(StrEnum):
    """The part of a fleet that an object belongs to; each step looks after one."""

    KUEUE = "kueue"
    MONITORING = "monitoring"
    WORKER = "worker"
    ACCESS = "access"
    LINK = "link"
    MANAGER = "manager"


def owned(each: Object, *, fleet: str, part: Part, worker: str | None = None) -> Object:
    """Return the object with the labels of the fleet."""
    metadata = each["metadata"]
    labels = {**metadata.get("labels", {}), FLEET_LABEL: fleet, PART_LABEL: str(part)}
    if worker:
        labels[WORKER_LABEL] = worker
    return {**each, "metadata": {**metadata, "labels": labels}}


def worker_objects(fleet: FleetDescription, name: str) -> list[Object]:
    """Return what makes a cluster a worker: flavors, DWS, queues with their quotas, the teams' LocalQueues."""
    queues = [queue for queue in fleet.queues.values() if name in fleet.workers_of(queue)]
    checks = [fleet.names.dws_check] if fleet.dws.enabled else []
    objects = [
        *_priorities(fleet),
        *_flavors(fleet, queues),
        *_cohorts(fleet),
        *_dws(fleet),
        *(_cluster_queue(each, each.worker_quotas.get(name, each.quotas), checks) for each in queues),
        *_teams(fleet, {queue.name for queue in queues}),
    ]
    return [owned(each, fleet=fleet.name, part=Part.WORKER) for each in objects]


def manager_objects(fleet: FleetDescription) -> list[Object]:
    """Return what makes a cluster the manager: a check for each residency group, queues that ask it, LocalQueues."""
    queues = list(fleet.queues.values())
    groups = sorted({queue.residency for queue in queues if queue.residency})
    everyone = [None] if any(queue.residency is None for queue in queues) else []
    objects = [
        *_priorities(fleet),
        *_flavors(fleet, queues),
        *_cohorts(fleet),
        *(each for group in (*everyone, *groups) for each in _multikueue(fleet, group)),
        *(_cluster_queue(each, each.manager_quotas or each.quotas, [_check(fleet, each.residency)]) for each in queues),
        *_teams(fleet, set(fleet.queues)),
    ]
    return [owned(each, fleet=fleet.name, part=Part.MANAGER) for each in objects]


def access_objects(fleet: FleetDescription, name: str) -> list[Object]:
    """Return the account that the manager's Kueue uses on a worker, with no more rights than MultiKueue needs.

    Nothing where it gets at the worker by a ClusterProfile, as whoever the profile's plugin says.
    """
    if fleet.by_profile:
        return []
    account = fleet.names.account
    role = f"{account}-role"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": KUEUE_NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    objects = [
        _object("v1", "ServiceAccount", account, namespace=KUEUE_NAMESPACE),
        _object(RBAC_API, "ClusterRole", role, rules=_rules(fleet.kueue.frameworks)),
        _object(RBAC_API, "ClusterRoleBinding", f"{account}-crb", roleRef=reference, subjects=[subject]),
    ]
    if fleet.credentials == "secret":
        token = _object("v1", "Secret", f"{account}-token", namespace=KUEUE_NAMESPACE)
        token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": account}
        objects.append({**token, "type": "kubernetes.io/service-account-token"})
    return [owned(each, fleet=fleet.name, part=Part.ACCESS, worker=name) for each in objects]


def link_objects(fleet: FleetDescription, name: str, kubeconfig: Mapping[str, Any] | None = None) -> list[Object]:
    """Return what tells the manager of a worker: the credentials, then the cluster.

    The cluster alone, without ``kubeconfig``, where Kueue gets at it by its ClusterProfile.
    """
    worker = fleet.workers[name]
    if fleet.by_profile:
        objects, source = [], {"clusterProfileRef": {"name": worker.cluster_profile}}
    else:
        text = json.dumps(kubeconfig, sort_keys=True).encode()
        secret = _object("v1", "Secret", worker.secret, namespace=KUEUE_NAMESPACE, type="Opaque")
        secret["data"] = {"kubeconfig": b64encode(text).decode()}
        objects, source = [secret], {"kubeConfig": {"locationType": "Secret", "location": worker.secret}}
    objects.append(_kueue("MultiKueueCluster", name, {"clusterSource": source}))
    return [owned(each, fleet=fleet.name, part=Part.LINK, worker=name) for each in objects]


def worker_kubeconfig(worker: Worker, *, server: str, authority: str | None, token: str) -> Object:
    """Return the kubeconfig for the holder of ``token``; ``authority`` (PEM) where the cluster's own is to be used."""
    cluster: Object = {"server": worker.server or server}
    if authority and worker.authority == "cluster":
        cluster["certificate-authority-data"] = b64encode(authority.encode()).decode()
    name = worker.name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }


def _rules(frameworks: Iterable[str]) -> list[Object]:
    """Return the rights: Workloads of its own making, and the jobs of the integrations that are switched on."""
    workloads = {"apiGroups": ["kueue.x-k8s.io"]}
    rules: list[Object] = [
        # A copy's finalizer is taken off by an update, its spec is kept in step by another.
        workloads | {"resources": ["workloads"], "verbs": [*READ_AND_MAKE, "patch", "update"]},
        workloads | {"resources": ["workloads/status"], "verbs": ["get", "patch", "update"]},
    ]
    for framework in sorted(frameworks):
        if framework in _REMOTE_KINDS:
            group, plural = _REMOTE_KINDS[framework]
            rules.append({"apiGroups": [group], "resources": [plural], "verbs": list(READ_AND_MAKE)})
            rules.append({"apiGroups": [group], "resources": [f"{plural}/status"], "verbs": ["get"]})
    return rules


def _multikueue(fleet: FleetDescription, group: str | None) -> list[Object]:
    config = fleet.names.multikueue_config + (f"-{group}" if group else "")
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": config}
    workers = fleet.residency[group] if group else fleet.workers
    return [
        _kueue("MultiKueueConfig", config, {"clusters": list(workers)}),
        _kueue(
            "AdmissionCheck",
            _check(fleet, group),
            {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters},
        ),
    ]


def _check(fleet: FleetDescription, group: str | None) -> str:
    return fleet.names.multikueue_check + (f"-{group}" if group else "")


def _dws(fleet: FleetDescription) -> list[Object]:
    dws, names = fleet.dws, fleet.names
    if not dws.enabled:
        return []
    spec: Object = {
        "provisioningClassName": dws.provisioning_class,
        "managedResources": list(dws.resources),
        "retryStrategy": {
            "backoffLimitCount": dws.retries,
            "backoffBaseSeconds": dws.retry_seconds,
            "backoffMaxSeconds": dws.retry_seconds_max,
        },
    }
    if dws.parameters:
        spec["parameters"] = dict(dws.parameters)
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": names.dws_config}
    check = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters}
    return [
        _kueue("ProvisioningRequestConfig", names.dws_config, spec),
        _kueue("AdmissionCheck", names.dws_check, check),
    ]


def _priorities(fleet: FleetDescription) -> list[Object]:
    return [
        _object(
            KUEUE_API,
            "WorkloadPriorityClass",
            name,
            value=each["value"],
            **({"description": each["description"]} if "description" in each else {}),
        )
        for name, each in fleet.priorities.items()
    ]


def _flavors(fleet: FleetDescription, queues: Iterable[Queue]) -> list[Object]:
    used = {flavor for queue in queues for flavor in _flavors_of(queue)}
    return [_kueue("ResourceFlavor", name, _flavor(each)) for name, each in fleet.flavors.items() if name in used]


def _flavors_of(queue: Queue) -> set[str]:
    given = (queue.quotas, queue.manager_quotas or {}, *queue.worker_quotas.values())
    return {flavor for quotas in given for flavor in quotas}


def _flavor(each: Mapping[str, Any]) -> Object:
    fields = {"nodeLabels": "node_labels", "tolerations": "tolerations"}
    return {field: each[key] for field, key in fields.items() if each.get(key)}


def _cohorts(fleet: FleetDescription) -> list[Object]:
    return [
        _kueue("Cohort", name, {"parentName": each["parent"]} if "parent" in each else {})
        for name, each in fleet.cohorts.items()
    ]


def _cluster_queue(queue: Queue, quotas: Quotas, checks: list[str]) -> Object:
    flavors = [
        {
            "name": flavor,
            "resources": [{"name": name, "nominalQuota": value} for name, value in resources.items()],
        }
        for flavor, resources in quotas.items()
    ]
    covered = list(next(iter(quotas.values())))
    spec: Object = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
    }
    if queue.cohort:
        spec["cohortName"] = queue.cohort
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
    return _kueue("ClusterQueue", queue.name, spec)


def _teams(fleet: FleetDescription, queues: set[str]) -> list[Object]:
    teams = [team for team in fleet.teams if team.queue in queues]
    namespaces = sorted({team.namespace for team in teams} - {"default"})
    return [*(_object("v1", "Namespace", name) for name in namespaces), *map(_local_queue, teams)]


def _local_queue(team: Team) -> Object:
    each = _kueue("LocalQueue", team.local_queue, {"clusterQueue": team.queue}, team.namespace)
    if team.priority:
        each["metadata"]["annotations"] = {PRIORITY_ANNOTATION: team.priority}
    return each


def _kueue(kind: str, name: str, spec: Mapping[str, Any], namespace: str | None = None) -> Object:
    return _object(KUEUE_API, kind, name, namespace=namespace, spec=dict(spec))


def _object(version: str, kind: str, name: str, *, namespace: str | None = None, **rest: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
