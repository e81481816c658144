"""The sandbox's own fleet as a fleet file, for ``multikueue fleet`` and the operators that set a fleet up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.objects import CLUSTER_QUEUE, FLAVOR, FRAMEWORKS, LOCAL_QUEUE
from airflow_provider_multikueue.sandbox.spec import FleetSpec

__all__ = ["FLEET_FILE", "RELEASE", "fleet_file"]

FLEET_FILE = "fleet.yaml"
RELEASE = "kueue.yaml"


def fleet_file(spec: FleetSpec, kubeconfig: Path) -> dict[str, Any]:
    """Return the content of the fleet file that makes of bare clusters what a sandbox is by itself."""

    def cluster(context: str) -> dict[str, Any]:
        return {"kube_config_path": str(kubeconfig), "context": context}

    timeout = {"workerLostTimeout": f"{spec.worker_lost_timeout:g}s", "gcInterval": "60s"}
    quotas = {FLAVOR: {"cpu": 1000000, "memory": "1000000Gi", "nvidia.com/gpu": 1000000}}
    return {
        "fleet": f"sandbox-{spec.name}",
        "kueue": {
            "version": spec.kueue,
            "manifests": RELEASE,
            "install": spec.bare,
            "frameworks": list(FRAMEWORKS),
            "configuration": {"multiKueue": timeout},
        },
        "manager": {"region": "europe-west4", "cluster": cluster(spec.manager_context)},
        "workers": {
            worker.cluster: {"region": worker.region, "cluster": cluster(worker.context)} for worker in spec.workers
        },
        "flavors": {FLAVOR: {}},
        "queues": {CLUSTER_QUEUE: {"quotas": quotas}},
        "teams": [{"namespace": "default", "local_queue": LOCAL_QUEUE, "queue": CLUSTER_QUEUE}],
        "dws": {"retries": spec.backoff_limit, "retry_seconds": 1, "retry_seconds_max": 60},
        "monitoring": {"pod_monitoring": spec.bare},
    }
