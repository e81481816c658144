"""A node's objects as a GKE node of a GPU pool would have them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

__all__ = ["allocatable", "is_ready", "lease", "lease_renewal", "node_object", "node_status"]

ACCELERATOR = "nvidia-tesla-t4"
LEASE_SECONDS = 40
UNREADY_TAINTS = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
CPUS, MEMORY, PODS = "64", "256Gi", "500"
"""Of one node. More than the machine has: the sandbox's pods are bound by GPUs, as the real ones are."""


def allocatable(gpus: int) -> dict[str, str]:
    """Return what a node with so many GPUs offers to pods."""
    return {"cpu": CPUS, "memory": MEMORY, "pods": PODS, "ephemeral-storage": "100Gi", "nvidia.com/gpu": str(gpus)}


def node_object(name: str, *, region: str, zone: str, gpus: int, port: int, version: str) -> dict[str, Any]:
    """Return the Node; ``port`` is where its kubelet endpoint listens."""
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "cloud.google.com/gke-accelerator": ACCELERATOR,
        "cloud.google.com/gke-accelerator-count": str(gpus),
        "cloud.google.com/gke-nodepool": "dws-pool",
        "cloud.google.com/gke-queued": "true",
        "cloud.google.com/machine-family": "n1",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "n1-standard-64",
        "topology.kubernetes.io/region": region,
        "topology.kubernetes.io/zone": zone,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"gce://sandbox/{zone}/{name}"},
        "status": node_status(name, gpus=gpus, port=port, version=version),
    }


def node_status(name: str, *, gpus: int, port: int, version: str) -> dict[str, Any]:
    """Return the part of a Node's status that its kubelet tells, with fresh heartbeats."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    resources = allocatable(gpus)
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "machineID": name,
            "systemUUID": name,
            "bootID": name,
            "kernelVersion": "sandbox",
            "osImage": "multikueue sandbox: pods run as local processes",
            "containerRuntimeVersion": "containerd://2.1.0",
            "kubeletVersion": version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
        "conditions": [
            _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", now),
            _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", now),
            _condition("PIDPressure", "False", "KubeletHasSufficientPID", now),
            _condition("Ready", "True", "KubeletReady", now),
        ],
    }


def _condition(kind: str, status: str, reason: str, now: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "kubelet is posting ready status" if kind == "Ready" else f"kubelet has no {kind}",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def is_ready(node: dict[str, Any]) -> bool:
    """Return whether the control plane holds the node for ready and lets pods onto it."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return ready and not any(taint["key"] in UNREADY_TAINTS for taint in node["spec"].get("taints", ()))


def lease(name: str, uid: str) -> dict[str, Any]:
    """Return the node's lease, owned by the node so that it goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, **lease_renewal()["spec"]},
    }


def lease_renewal() -> dict[str, Any]:
    """Return the patch that renews a lease."""
    return {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
