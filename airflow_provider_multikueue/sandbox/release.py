"""Kueue's release manifests, as its own kustomization would make them, to install Kueue on bare clusters with.

Two things are left out: the texts that explain the fields of definitions, and the API for pending workloads, which
Kueue can serve from a folder at the root of the file system alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.manifests import NAMESPACE, SERVICE_ACCOUNT, yaml_objects

__all__ = ["CONFIG_KEY", "DEPLOYMENT", "IMAGE", "release"]

Object = dict[str, Any]

DEPLOYMENT = "kueue-controller-manager"
IMAGE = "registry.k8s.io/kueue/kueue"
CONFIG_KEY = "controller_manager_config.yaml"
_LABELS = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}


def release(bundle: Object, *, kueue: Path, version: str) -> list[Object]:
    """Return the objects; ``kueue`` is the copy of the module's components, ``bundle`` what was made of it."""
    shipped = (kueue / "manager" / CONFIG_KEY).read_text()
    parts: Object = json.loads(json.dumps(bundle))
    definitions = [each for each in parts["definitions"] if each["spec"]["group"] == "kueue.x-k8s.io"]
    for each in definitions:
        if hook := each["spec"].get("conversion", {}).get("webhook"):
            hook["clientConfig"] = {"service": _webhook_service("/convert")}
    for each in parts["webhooks"]:
        for hook in each["webhooks"]:
            hook["clientConfig"] = {"service": _webhook_service(hook["clientConfig"]["service"]["path"])}
    return [
        _object("v1", "Namespace", NAMESPACE, namespaced=False),
        *definitions,
        *parts["rights"],
        _object("v1", "ConfigMap", "kueue-manager-config", data={CONFIG_KEY: shipped}),
        _object("v1", "Secret", "kueue-webhook-server-cert"),
        _service("kueue-webhook-service", {"port": 443, "targetPort": 9443}),
        _service("kueue-controller-manager-metrics-service", {"port": 8443, "targetPort": 8443, "name": "https"}),
        _deployment(kueue, version),
        *parts["webhooks"],
    ]


def _webhook_service(path: str) -> Object:
    return {"name": "kueue-webhook-service", "namespace": NAMESPACE, "path": path}


def _deployment(kueue: Path, version: str) -> Object:
    deployment = next(each for each in yaml_objects(kueue / "manager", only="manager.") if each["kind"] == "Deployment")
    deployment["metadata"] = {"name": DEPLOYMENT, "namespace": NAMESPACE, "labels": dict(_LABELS)}
    spec = deployment["spec"]
    spec["selector"] = {"matchLabels": {"control-plane": "controller-manager"}}
    spec["template"]["metadata"]["labels"] = dict(_LABELS)
    pod = spec["template"]["spec"]
    pod["serviceAccountName"] = SERVICE_ACCOUNT
    pod["volumes"] = [
        {"name": "cert", "secret": {"defaultMode": 420, "secretName": "kueue-webhook-server-cert"}},
        {"name": "manager-config", "configMap": {"name": "kueue-manager-config"}},
    ]
    (container,) = pod["containers"]
    container["image"] = f"{IMAGE}:v{version}"
    container["args"] = [f"--config=/{CONFIG_KEY}", "--zap-log-level=2"]
    container["volumeMounts"] = [
        {"name": "cert", "mountPath": "/tmp/k8s-webhook-server/serving-certs", "readOnly": True},  # noqa: S108
        {"name": "manager-config", "mountPath": f"/{CONFIG_KEY}", "subPath": CONFIG_KEY},
    ]
    return dict(deployment)


def _service(name: str, port: Object) -> Object:
    spec = {"ports": [{"protocol": "TCP", **port}], "selector": {"control-plane": "controller-manager"}}
    return _object("v1", "Service", name, spec=spec)


def _object(version: str, kind: str, name: str, *, namespaced: bool = True, **rest: Any) -> Object:
    metadata: Object = {"name": name, "labels": dict(_LABELS)}
    if namespaced:
        metadata["namespace"] = NAMESPACE
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
