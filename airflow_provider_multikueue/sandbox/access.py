"""How others reach a sandbox: a kubeconfig file with the contexts of Google's example, and an Airflow connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.clusters import Cluster
from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.objects import LOCAL_QUEUE
from airflow_provider_multikueue.sandbox.spec import FleetSpec

__all__ = ["CONNECTION", "KUBECONFIG", "access_files"]

KUBECONFIG = "kubeconfig"
CONNECTION = "connection.json"


def access_files(folder: Path, spec: FleetSpec, clusters: Mapping[str, Cluster]) -> None:
    """Write the kubeconfig file and the connection to ``folder``, for the owner's eyes only."""
    single = [clusters[key].admin_kubeconfig() for key in spec.clusters]
    merged = single[0] | {part: [each[part][0] for each in single] for part in ("clusters", "users", "contexts")}
    path = write_private(folder / KUBECONFIG, json.dumps(merged, indent=1))
    write_private(folder / CONNECTION, json.dumps(_connection(spec, path), indent=1))


def _connection(spec: FleetSpec, kubeconfig: Path) -> dict[str, Any]:
    extra = {
        "manager_kube_config_path": str(kubeconfig),
        "manager_context": spec.manager_context,
        "namespace": "default",
        "queue_name": LOCAL_QUEUE,
        "deployment": f"sandbox-{spec.name}",
        "workers": {
            worker.cluster: {"kube_config_path": str(kubeconfig), "context": worker.context, "region": worker.region}
            for worker in spec.workers
        },
    }
    return {"conn_type": "multikueue", "extra": extra}
