"""What lets Google's Managed Service for Prometheus collect Kueue's metrics of a cluster. Pure.

``deploy/monitoring`` has the same objects for those who apply them by hand; a test holds the two together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_multikueue.setup.desired import KUEUE_NAMESPACE, RBAC_API, Part, owned

if TYPE_CHECKING:
    from airflow_provider_multikueue.setup.description import FleetDescription

__all__ = ["Role", "monitoring_objects"]

Object = dict[str, Any]
Role = Literal["manager", "worker"]

ACCOUNT: Final = "kueue-metrics"
TOKEN: Final = f"{ACCOUNT}-token"
READER: Final = "kueue-metrics-reader"
"""The ClusterRole for /metrics that comes with Kueue."""
COLLECTOR: Final = {"kind": "ServiceAccount", "name": "collector", "namespace": "gmp-system"}
KEPT: Final = "kueue_.*|multikueue_.*|controller_runtime_reconcile_total"
"""The rest is about the inside of the controller, and paid for by the sample."""


def monitoring_objects(fleet: FleetDescription, role: Role) -> list[Object]:
    """Return a PodMonitoring for a cluster of that role, with an account whose token only its collector can read."""
    if not fleet.pod_monitoring:
        return []
    objects = [*_account(), *_readers(), _pod_monitoring(role, fleet.monitoring_interval)]
    return [owned(each, fleet=fleet.name, part=Part.MONITORING) for each in objects]


def _account() -> list[Object]:
    secret: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {**_named(TOKEN), "annotations": {"kubernetes.io/service-account.name": ACCOUNT}},
    }
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named(ACCOUNT)}, secret]


def _readers() -> list[Object]:
    """Return who may read what: the account Kueue's metrics, Google's collector the account's token."""
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": KUEUE_NAMESPACE}
    token = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [TOKEN], "verbs": ["get", "list", "watch"]}
    return [
        _binding("ClusterRoleBinding", {"name": ACCOUNT}, ("ClusterRole", READER), account),
        {"apiVersion": RBAC_API, "kind": "Role", "metadata": _named(TOKEN), "rules": [token]},
        _binding("RoleBinding", _named(TOKEN), ("Role", TOKEN), COLLECTOR),
    ]


def _binding(kind: str, metadata: Object, role: tuple[str, str], subject: dict[str, str]) -> Object:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role[0], "name": role[1]}
    return {"apiVersion": RBAC_API, "kind": kind, "metadata": metadata, "roleRef": reference, "subjects": [subject]}


def _pod_monitoring(role: Role, interval: str) -> Object:
    """Return the PodMonitoring; its name becomes the label ``job``, by which dashboards and alerts tell the roles."""
    labels = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    endpoint = {
        "port": "metrics",
        "interval": interval,
        "scheme": "https",
        "authorization": {"type": "Bearer", "credentials": {"secret": {"name": TOKEN, "key": "token"}}},
        "tls": {"insecureSkipVerify": True},  # nobody signs the certificate
        "metricRelabeling": [{"sourceLabels": ["__name__"], "regex": KEPT, "action": "keep"}],
    }
    return {
        "apiVersion": "monitoring.googleapis.com/v1",
        "kind": "PodMonitoring",
        "metadata": _named(f"kueue-{role}"),
        "spec": {"selector": {"matchLabels": labels}, "endpoints": [endpoint]},
    }


def _named(name: str) -> Object:
    return {"name": name, "namespace": KUEUE_NAMESPACE}
