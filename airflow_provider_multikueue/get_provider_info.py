"""What Airflow reads to discover the provider. It imports nothing: Airflow does so in each of its processes."""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]

_PACKAGE = "airflow_provider_multikueue"
_INTEGRATION = "MultiKueue"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-multikueue",
        "name": "MultiKueue",
        "description": "Run GPU jobs on a Kueue MultiKueue fleet, in whichever region has capacity first.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://kueue.sigs.k8s.io/docs/concepts/multikueue/",
                "tags": ["software"],
            }
        ],
        "operators": [_modules("operators", "setup_operators")],
        "sensors": [_modules("sensors")],
        "hooks": [_modules("hooks")],
        "triggers": [_modules("triggers")],
        "connection-types": [_connection_type()],
        "extra-links": [
            f"{_PACKAGE}.links.{link}" for link in ("ManagerJobLink", "StoredOutputLink", "WorkerPodsLink")
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}


def _connection_type() -> dict[str, Any]:
    """Return the connection's form; the fields are the flat keys of the connection's extra."""
    return {
        "connection-type": "multikueue",
        "hook-class-name": f"{_PACKAGE}.hooks.MultiKueueHook",
        "hook-name": "MultiKueue fleet",
        "ui-field-behaviour": {"hidden-fields": ["host", "schema", "login", "password", "port"]},
        "conn-fields": {
            "manager_kube_config_path": _text(
                "Manager: kubeconfig path",
                "A file on the triggerer and on each worker; credential plugins in it are run.",
            ),
            "manager_context": _text("Manager: context", "The context in that file; its current context if empty."),
            "manager_kube_config": _text(
                "Manager: kubeconfig (inline)",
                "YAML or JSON, instead of a path. Without credential plugins.",
                "password",
            ),
            "manager_in_cluster": _field(
                "boolean", "Manager: in cluster", "Airflow runs on the manager and uses its own service account."
            ),
            "manager_conn_id": _text(
                "Manager: connection",
                "A connection of type kubernetes or google_cloud_platform that reaches the manager.",
            ),
            "manager_gke_cluster": _text(
                "Manager: GKE cluster", "projects/PROJECT/locations/LOCATION/clusters/CLUSTER"
            ),
            "gcp_conn_id": _text(
                "Google connection",
                "Of type google_cloud_platform, for GKE clusters. Default: application default credentials.",
            ),
            "gke_endpoint": _text("GKE endpoint", "public, private or dns. Default: the one that GKE names."),
            "cloud_logging": _field(
                "boolean",
                "Cloud Logging",
                "Read pods' output from Google Cloud Logging where a GKE worker's pods can't be read.",
            ),
            "namespace": _text("Namespace", "Where jobs go whose manifest and task name no namespace."),
            "queue_name": _text("Queue", "The LocalQueue of jobs whose manifest and task name none."),
            "deployment": _text(
                "Deployment",
                "The name of this Airflow, when several share the fleet. Default: from Airflow's base URL.",
            ),
            "workers": _field(
                "object",
                "Workers",
                'By MultiKueueCluster: {"NAME": {"kube_config_path": ..., "context": ..., "region": ...}}. No secrets.',
            ),
        },
    }


def _text(label: str, description: str, form: str | None = None) -> dict[str, Any]:
    field = _field("string", label, description)
    if form:
        field["schema"]["format"] = form
    return field


def _field(kind: str, label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": [kind, "null"]}}
