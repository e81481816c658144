"""The objects that make four clusters a fleet, named as in Google's example of DWS with MultiKueue."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_multikueue.sandbox.job_kinds import chosen
from airflow_provider_multikueue.sandbox.manifests import NAMESPACE
from airflow_provider_multikueue.sandbox.pki import Pair
from airflow_provider_multikueue.sandbox.spec import FleetSpec, Worker

__all__ = [
    "CLUSTER_QUEUE",
    "LOCAL_QUEUE",
    "MULTIKUEUE_ACCOUNT",
    "kueue_certificate_secret",
    "kueue_configuration",
    "manager_cluster",
    "manager_objects",
    "namespace",
    "queue",
    "worker_access",
    "worker_objects",
]

Object = dict[str, Any]

KUEUE_API = "kueue.x-k8s.io/v1beta2"
CLUSTER_QUEUE = "dws-cluster-queue"
LOCAL_QUEUE = "dws-local-queue"
FLAVOR = "default-dws-flavor"
MULTIKUEUE_ACCOUNT = "multikueue-sa"
PROVISIONING_CLASS = "queued-provisioning.gke.io"

FRAMEWORKS = ("batch/job",)
"""The kinds of job that Kueue always cares for; a manager connects to no worker that lacks one that it cares for."""

# Quota is not what a region lacks: capacity is, and that is for DWS to say.
_QUOTA = {"cpu": "1000000", "memory": "1000000Gi", "nvidia.com/gpu": "1000000"}
_COPIED_KINDS = {
    "batch": ("jobs",),
    "jobset.x-k8s.io": ("jobsets",),
    "kubeflow.org": ("pytorchjobs", "tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs", "mpijobs"),
    "ray.io": ("rayjobs", "rayclusters"),
    "trainer.kubeflow.org": ("trainjobs",),
}


def kueue_configuration(spec: FleetSpec) -> Object:
    """Return what the fleet changes in the configuration that Kueue ships with."""
    further = [framework for kinds in chosen(spec.kinds) for framework in kinds.frameworks]
    return {
        "multiKueue": {"workerLostTimeout": f"{spec.worker_lost_timeout:g}s", "gcInterval": "60s"},
        "integrations": {"frameworks": [*FRAMEWORKS, *further]},
    }


def namespace(name: str) -> Object:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def queue(name: str, in_namespace: str) -> Object:
    """Return a LocalQueue that leads to the fleet's ClusterQueue."""
    return _kueue("LocalQueue", name, {"clusterQueue": CLUSTER_QUEUE}, in_namespace)


def kueue_certificate_secret(authority: Pair, webhook: Pair) -> Object:
    """Return the Secret with the certificate of Kueue's webhooks; Kueue itself would make one without loopback."""
    (ca, ca_key), (certificate, key) = authority.texts, webhook.texts
    parts = {"ca.crt": ca, "ca.key": ca_key, "tls.crt": certificate, "tls.key": key}
    return _secret("kueue-webhook-server-cert", parts)


def worker_access(spec: FleetSpec) -> list[Object]:
    """Return the account with which the manager's Kueue comes to a worker, with the rights of Kueue's guide.

    The guide leaves out some kinds; for those it has the rights that it needs.
    """
    everything = ["create", "delete", "get", "list", "watch"]
    rules = []
    further = {group: names for kinds in chosen(spec.kinds) for group, names in kinds.resources.items()}
    for group, kinds in {**_COPIED_KINDS, **further, "kueue.x-k8s.io": ("workloads",)}.items():
        status = ["get", "patch", "update"] if group == "kueue.x-k8s.io" else ["get"]
        rules.append({"apiGroups": [group], "resources": list(kinds), "verbs": everything})
        rules.append({"apiGroups": [group], "resources": [f"{kind}/status" for kind in kinds], "verbs": status})
    account = {"kind": "ServiceAccount", "name": MULTIKUEUE_ACCOUNT, "namespace": NAMESPACE}
    role = f"{MULTIKUEUE_ACCOUNT}-role"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return [
        _object("v1", "ServiceAccount", MULTIKUEUE_ACCOUNT, namespace=NAMESPACE),
        _object("rbac.authorization.k8s.io/v1", "ClusterRole", role, rules=rules),
        _object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            f"{MULTIKUEUE_ACCOUNT}-crb",
            roleRef=reference,
            subjects=[account],
        ),
    ]


def worker_objects(spec: FleetSpec) -> list[Object]:
    """Return the queues of a worker, which ask DWS before they admit a job with GPUs."""
    check = "dws-prov"
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "dws-config"}
    retry = {"backoffLimitCount": spec.backoff_limit, "backoffBaseSeconds": 1, "backoffMaxSeconds": 60}
    provisioning = {
        "provisioningClassName": PROVISIONING_CLASS,
        "managedResources": ["nvidia.com/gpu"],
        "retryStrategy": retry,
    }
    return [
        _kueue("ProvisioningRequestConfig", "dws-config", provisioning),
        _kueue(
            "AdmissionCheck",
            check,
            {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters},
        ),
        *_queues(check),
    ]


def manager_objects(spec: FleetSpec) -> list[Object]:
    """Return the queues of the manager, which admit a job when one of the workers did."""
    check = "sample-dws-multikueue"
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "multikueue-dws"}
    return [
        _kueue("MultiKueueConfig", "multikueue-dws", {"clusters": [worker.cluster for worker in spec.workers]}),
        _kueue("AdmissionCheck", check, {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}),
        *_queues(check),
    ]


def manager_cluster(worker: Worker, kubeconfig: Object) -> list[Object]:
    """Return what tells the manager of a worker: the credentials, then the cluster."""
    source = {"kubeConfig": {"locationType": "Secret", "location": worker.secret}}
    return [
        _secret(worker.secret, {"kubeconfig": json.dumps(kubeconfig).encode()}),
        _kueue("MultiKueueCluster", worker.cluster, {"clusterSource": source}),
    ]


def _queues(check: str) -> list[Object]:
    resources = [{"name": name, "nominalQuota": quota} for name, quota in _QUOTA.items()]
    group = {"coveredResources": list(_QUOTA), "flavors": [{"name": FLAVOR, "resources": resources}]}
    cluster_queue = {
        "namespaceSelector": {},
        "resourceGroups": [group],
        "admissionChecksStrategy": {"admissionChecks": [{"name": check}]},
    }
    return [
        _kueue("ResourceFlavor", FLAVOR, {}),
        _kueue("ClusterQueue", CLUSTER_QUEUE, cluster_queue),
        queue(LOCAL_QUEUE, "default"),
    ]


def _secret(name: str, parts: Mapping[str, bytes]) -> Object:
    data = {key: base64.b64encode(text).decode() for key, text in parts.items()}
    return _object("v1", "Secret", name, namespace=NAMESPACE, type="Opaque", data=data)


def _kueue(kind: str, name: str, spec: Mapping[str, Any], namespace: str | None = None) -> Object:
    return _object(KUEUE_API, kind, name, namespace=namespace, spec=dict(spec))


def _object(version: str, kind: str, name: str, *, namespace: str | None = None, **rest: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
