"""The alerts of a fleet: a Prometheus rule file, and the same rules for Google's managed Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ALERTS", "Alert", "global_rules", "rule_file"]

_KUEUE = 'job=~"kueue-manager|kueue-worker"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule: while ``expr`` has series for ``lasting``, it fires for each of them."""

    name: str
    expr: str
    lasting: str
    severity: str
    summary: str
    text: str


ALERTS: Sequence[Alert] = (
    Alert(
        name="KueueDoesNotAnswer",
        expr=f"min by (job, cluster, location) (up{{{_KUEUE}}}) == 0",
        lasting="5m",
        severity="critical",
        summary="Kueue of {{ $labels.cluster }} ({{ $labels.location }}) does not answer",
        text="Its metrics could not be read for 5 minutes: the controller, its cluster or the way to it is down. No "
        "job is admitted there; on the manager, no job at all. Run `multikueue doctor`.",
    ),
    Alert(
        name="KueueQueueTakesNoJobs",
        expr="min by (job, cluster, location, cluster_queue) "
        f'(kueue_cluster_queue_status{{{_KUEUE},status="active"}}) == 0',
        lasting="5m",
        severity="critical",
        summary="ClusterQueue {{ $labels.cluster_queue }} of {{ $labels.cluster }} takes no jobs",
        text="It is not active: stopped, a flavor or an admission check is missing, or, on the manager, no worker is "
        "connected. Its conditions say which: `kubectl describe clusterqueue`.",
    ),
    Alert(
        name="MultiKueueWorkerUnreachable",
        expr="sum by (cluster) (increase(controller_runtime_reconcile_total"
        '{job="kueue-manager",controller="multikueue_cluster",result="requeue_after"}[15m])) > 2',
        lasting="5m",
        severity="warning",
        summary="The manager {{ $labels.cluster }} keeps trying to connect to a worker",
        text="Jobs go to the other regions; those that run on the lost worker are moved after workerLostTimeout. "
        "`kubectl get multikueueclusters` on the manager says which worker it is, its condition why.",
    ),
    Alert(
        name="MultiKueueJobsWaitLong",
        expr="histogram_quantile(0.9, sum by (le, cluster_queue) (rate("
        'kueue_admission_wait_time_seconds_bucket{job="kueue-manager"}[1h]))) > 3600',
        lasting="15m",
        severity="warning",
        summary="Jobs of {{ $labels.cluster_queue }} wait for more than an hour",
        text="One in ten of the jobs admitted in the last hour had waited longer. GPU capacity is short in all regions "
        "that they may use: add a region, or widen `regions=`. Set the threshold to what your teams expect.",
    ),
    Alert(
        name="MultiKueueNothingAdmitted",
        expr='sum by (cluster_queue) (kueue_reserving_active_workloads{job="kueue-manager"} - '
        'kueue_admitted_active_workloads{job="kueue-manager"}) > 0 and '
        'sum by (cluster_queue) (increase(kueue_admitted_workloads_total{job="kueue-manager"}[3h]) or '
        '0 * kueue_reserving_active_workloads{job="kueue-manager"}) == 0',
        lasting="3h",
        severity="warning",
        summary="No job of {{ $labels.cluster_queue }} was admitted in three hours although some wait",
        text="No region grants capacity, or none is asked. `multikueue doctor` tells them apart.",
    ),
    Alert(
        name="MultiKueueEvictions",
        expr='sum by (cluster_queue, reason) (increase(kueue_evicted_workloads_total{job="kueue-manager"}[1h])) > 5',
        lasting="5m",
        severity="warning",
        summary="Jobs of {{ $labels.cluster_queue }} lose their place ({{ $labels.reason }})",
        text="More than five in an hour; each starts again from zero or from its checkpoint. AdmissionCheck: a worker "
        "was lost or its capacity revoked. Preempted: jobs of higher priority took it.",
    ),
    Alert(
        name="DwsKeepsRefusing",
        expr="sum by (cluster, location) (increase(kueue_evicted_workloads_total"
        '{job="kueue-worker",reason="AdmissionCheck"}[1h])) > 20 unless '
        'sum by (cluster, location) (increase(kueue_admitted_workloads_total{job="kueue-worker"}[1h])) > 0',
        lasting="30m",
        severity="warning",
        summary="DWS refuses every request in {{ $labels.location }}",
        text="More than twenty requests for capacity failed in an hour and none was granted: project quota, a node "
        "pool or the machine type is wrong there. The ProvisioningRequests' conditions say which.",
    ),
    Alert(
        name="MultiKueueTasksFail",
        expr='sum by (queue, error) (increase(airflow_multikueue_outcomes_total{error!="none"}[1h])) > 5',
        lasting="0m",
        severity="warning",
        summary="Airflow tasks on {{ $labels.queue }} end with {{ $labels.error }}",
        text="More than five in an hour.",
    ),
)


def rule_file(alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the content of a rule file."""
    return {"groups": [{"name": "multikueue", "interval": "1m", "rules": [_rule(alert) for alert in alerts]}]}


def global_rules(alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the rules as an object for Google's managed Prometheus: they look at all clusters of the scope."""
    return {
        "apiVersion": "monitoring.googleapis.com/v1",
        "kind": "GlobalRules",
        "metadata": {"name": "multikueue"},
        "spec": rule_file(alerts),
    }


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.text},
    }
