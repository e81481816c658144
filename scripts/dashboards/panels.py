"""What the dashboards of a fleet show, once for all: panels, queries, units. Nothing here knows Grafana or Google.

Labels are those of Google's managed Prometheus: ``job`` is the name of the PodMonitoring (``kueue-manager`` or
``kueue-worker``), ``location`` the cluster's region, ``cluster`` its name. A label of Kueue's own that would clash is
``exported_...``: the worker of a MultiKueue metric is ``exported_cluster``, the namespace of a LocalQueue
``exported_namespace``.

``$queue`` stands for the ClusterQueues that are looked at, ``$window`` for the time over which things are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ROWS", "Panel", "Query", "Row"]

_MANAGER = 'job="kueue-manager"'
_WORKER = 'job="kueue-worker"'
_QUEUE = 'cluster_queue=~"$queue"'
_GPU = 'resource="nvidia.com/gpu"'
_LOCAL_QUEUE = "{{exported_namespace}}/{{name}}"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression, and how its series are called: ``{{label}}`` is the label's value."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph. ``unit`` is ``count``, ``seconds``, ``percent`` or ``bool``."""

    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    needs_kueue: str = ""
    """What Kueue must be to have these metrics, where 0.17 has not as it is shipped: a version first."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: Sequence[Panel]


def _quantiles(metric: str, labels: str, by: str, legend: str, shares: Sequence[float] = (0.5, 0.9)) -> list[Query]:
    return [
        Query(
            f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{labels}}}[$window])))",
            f"p{share * 100:g} {legend}",
        )
        for share in shares
    ]


def _counted(metric: str, labels: str, by: str, legend: str) -> Query:
    selector = f"{{{labels}}}" if labels else ""
    return Query(f"sum by ({by}) (increase({metric}{selector}[$window]))", legend)


def _now(metric: str, labels: str, by: str, legend: str) -> Query:
    return Query(f"sum by ({by}) ({metric}{{{labels}}})", legend)


_QUEUES = Row(
    "Queues, on the manager",
    [
        Panel(
            title="Jobs waiting for quota",
            text="Pending on the manager, by LocalQueue: the queue's quota is used up, or the queue is stopped.",
            unit="count",
            queries=[_now("kueue_local_queue_pending_workloads", _MANAGER, "exported_namespace, name", _LOCAL_QUEUE)],
        ),
        Panel(
            title="Jobs waiting for a region",
            text="They have quota on the manager, and no region has admitted them yet. Most of the wait for DWS is "
            "here, not in the pending jobs.",
            unit="count",
            queries=[
                Query(
                    "sum by (exported_namespace, name) "
                    f"(kueue_local_queue_reserving_active_workloads{{{_MANAGER}}} - "
                    f"kueue_local_queue_admitted_active_workloads{{{_MANAGER}}})",
                    _LOCAL_QUEUE,
                )
            ],
        ),
        Panel(
            title="Jobs admitted now, by queue",
            text="Placed in some region and not over, by LocalQueue.",
            unit="count",
            queries=[
                _now("kueue_local_queue_admitted_active_workloads", _MANAGER, "exported_namespace, name", _LOCAL_QUEUE)
            ],
        ),
        Panel(
            title="Jobs finished",
            text="In the last $window, by LocalQueue, however they ended.",
            unit="count",
            queries=[
                _counted(
                    "kueue_local_queue_finished_workloads_total", _MANAGER, "exported_namespace, name", _LOCAL_QUEUE
                )
            ],
        ),
    ],
)

# A worker that never won has no counter of its admissions.
_ASKED = f"sum by (exported_cluster) (increase(multikueue_workloads_dispatched_total{{{_MANAGER},{_QUEUE}}}[$window]))"
_WON = f"sum by (exported_cluster) (increase(multikueue_workloads_admitted_total{{{_MANAGER},{_QUEUE}}}[$window]))"

_REGIONS = Row(
    "Regions, on the workers",
    [
        Panel(
            title="Jobs admitted now, by region",
            text="What runs where, or is about to.",
            unit="count",
            queries=[_now("kueue_admitted_active_workloads", f"{_WORKER},{_QUEUE}", "location", "{{location}}")],
        ),
        Panel(
            title="Jobs asking a region for capacity",
            text="Copies that wait for DWS there. One job asks several regions at once, so there are more of these "
            "than jobs.",
            unit="count",
            queries=[
                Query(
                    f"sum by (location) (kueue_reserving_active_workloads{{{_WORKER},{_QUEUE}}} - "
                    f"kueue_admitted_active_workloads{{{_WORKER},{_QUEUE}}})",
                    "{{location}}",
                )
            ],
        ),
        Panel(
            title="Admissions, by region",
            text="In the last $window.",
            unit="count",
            queries=[_counted("kueue_admitted_workloads_total", f"{_WORKER},{_QUEUE}", "location", "{{location}}")],
        ),
        Panel(
            title="How often a region that is asked wins",
            text="Admissions by the worker, of the copies that the manager sent to it in the last $window.",
            unit="percent",
            queries=[
                Query(f"100 * ({_WON} or 0 * {_ASKED}) / {_ASKED}", "{{exported_cluster}}"),
            ],
            needs_kueue="0.19",
        ),
    ],
)

_WAITS = Row(
    "Waits",
    [
        Panel(
            title="Wait for admission, by queue",
            text="From submission (or eviction) to admission, of jobs admitted in the last $window. Kueue's last "
            "bucket ends at 11 hours: longer waits look like that.",
            unit="seconds",
            queries=_quantiles(
                "kueue_admission_wait_time_seconds", f"{_MANAGER},{_QUEUE}", "cluster_queue", "{{cluster_queue}}"
            ),
        ),
        Panel(
            title="Wait for DWS, by region",
            text="From quota to admission in the region that won. Its last bucket ends at 2.8 hours.",
            unit="seconds",
            queries=_quantiles(
                "kueue_admission_checks_wait_time_seconds", f"{_WORKER},{_QUEUE}", "location", "{{location}}"
            ),
        ),
        Panel(
            title="From admission to running pods, by region",
            text="How long nodes and images take.",
            unit="seconds",
            queries=_quantiles(
                "kueue_admitted_until_ready_wait_time_seconds", f"{_WORKER},{_QUEUE}", "location", "{{location}}"
            ),
            needs_kueue="0.19, or waitForPodsReady in its configuration",
        ),
    ],
)

_QUOTA = Row(
    "Quota",
    [
        Panel(
            title="GPUs in use, by region",
            text="Requested by admitted jobs.",
            unit="count",
            queries=[
                _now("kueue_cluster_queue_resource_usage", f"{_WORKER},{_QUEUE},{_GPU}", "location", "{{location}}")
            ],
        ),
        Panel(
            title="GPUs asked for, by region",
            text="Reserved by jobs that were admitted or wait for DWS there.",
            unit="count",
            queries=[
                _now(
                    "kueue_cluster_queue_resource_reservation", f"{_WORKER},{_QUEUE},{_GPU}", "location", "{{location}}"
                )
            ],
        ),
        Panel(
            title="Quota reserved on the manager",
            text="Of each queue's nominal quota; above 100 % it borrows.",
            unit="percent",
            queries=[
                Query(
                    "100 * sum by (cluster_queue, flavor, resource) "
                    f"(kueue_cluster_queue_resource_reservation{{{_MANAGER},{_QUEUE}}}) / "
                    "sum by (cluster_queue, flavor, resource) "
                    f"(kueue_cluster_queue_nominal_quota{{{_MANAGER},{_QUEUE}}})",
                    "{{cluster_queue}} {{resource}} ({{flavor}})",
                )
            ],
        ),
        Panel(
            title="Quota in use, by region",
            text="Of the worker's nominal quota.",
            unit="percent",
            queries=[
                Query(
                    "100 * sum by (location, flavor, resource) "
                    f"(kueue_cluster_queue_resource_usage{{{_WORKER},{_QUEUE}}}) / "
                    "sum by (location, flavor, resource) "
                    f"(kueue_cluster_queue_nominal_quota{{{_WORKER},{_QUEUE}}})",
                    "{{location}} {{resource}} ({{flavor}})",
                )
            ],
        ),
    ],
)

_EVICTIONS = Row(
    "Evictions and DWS",
    [
        Panel(
            title="Evictions, by queue and reason",
            text="Jobs that lost their place in the last $window and start again elsewhere. AdmissionCheck: the worker "
            "lost the capacity or was lost itself.",
            unit="count",
            queries=[
                _counted(
                    "kueue_evicted_workloads_total",
                    f"{_MANAGER},{_QUEUE}",
                    "cluster_queue, reason, underlying_cause",
                    "{{cluster_queue}} {{reason}} {{underlying_cause}}",
                )
            ],
        ),
        Panel(
            title="DWS retries, by region",
            text="Requests for capacity that failed and are made again, in the last $window.",
            unit="count",
            queries=[
                _counted(
                    "kueue_evicted_workloads_total",
                    f'{_WORKER},{_QUEUE},reason="AdmissionCheck"',
                    "location",
                    "{{location}}",
                )
            ],
        ),
        Panel(
            title="Other evictions on workers, by region and reason",
            text="Deactivated by AdmissionCheck: capacity was revoked, or refused for good after all retries. "
            "Deactivated by EvictedOnManagerCluster: the manager took the job back.",
            unit="count",
            queries=[
                _counted(
                    "kueue_evicted_workloads_total",
                    f'{_WORKER},{_QUEUE},reason!="AdmissionCheck"',
                    "location, reason, underlying_cause",
                    "{{location}} {{reason}} {{underlying_cause}}",
                )
            ],
        ),
    ],
)

_CONNECTION = Row(
    "Connection",
    [
        Panel(
            title="Kueue answers",
            text="Whether each cluster's Kueue could be scraped: 1 or 0.",
            unit="bool",
            queries=[
                Query('min by (job, cluster, location) (up{job=~"kueue-manager|kueue-worker"})', "{{job}} {{cluster}}")
            ],
        ),
        Panel(
            title="Queues that take jobs",
            text="Whether each ClusterQueue is active. On the manager it is not while all its workers are lost.",
            unit="bool",
            queries=[
                Query(
                    "min by (job, location, cluster_queue) "
                    f'(kueue_cluster_queue_status{{job=~"kueue-manager|kueue-worker",{_QUEUE},status="active"}})',
                    "{{job}} {{location}} {{cluster_queue}}",
                )
            ],
        ),
        Panel(
            title="Attempts to connect to a worker again",
            text="By the manager's Kueue, in the last $window. Which worker it is, only the MultiKueueCluster's "
            "condition tells: multikueue doctor shows it.",
            unit="count",
            queries=[
                _counted(
                    "controller_runtime_reconcile_total",
                    f'{_MANAGER},controller="multikueue_cluster",result="requeue_after"',
                    "cluster",
                    "{{cluster}}",
                )
            ],
        ),
    ],
)

_AIRFLOW = Row(
    "Airflow",
    [
        Panel(
            title="Submissions, by queue",
            text="Jobs that tasks created in the last $window.",
            unit="count",
            queries=[_counted("airflow_multikueue_submissions_total", "", "queue", "{{queue}}")],
        ),
        Panel(
            title="Admissions, by queue and region",
            text="Counted when the task has its report, in the last $window.",
            unit="count",
            queries=[_counted("airflow_multikueue_admissions_total", "", "queue, region", "{{queue}} {{region}}")],
        ),
        Panel(
            title="Wait for admission, as tasks saw it",
            text="From submission to the first admission, of tasks that got their report in the last $window.",
            unit="seconds",
            queries=[
                Query(
                    f"histogram_quantile({share}, sum by (le, queue, region) "
                    "(rate(airflow_multikueue_admission_wait_seconds_bucket[$window])))",
                    f"p{share * 100:g} {{{{queue}}}} {{{{region}}}}",
                )
                for share in (0.5, 0.9)
            ],
        ),
        Panel(
            title="How tasks ended, by phase and error",
            text="In the last $window.",
            unit="count",
            queries=[_counted("airflow_multikueue_outcomes_total", "", "phase, error", "{{phase}} {{error}}")],
        ),
        Panel(
            title="Dispatches and evictions, by region",
            text="Stays on a worker, and those that ended before the job did, in the last $window.",
            unit="count",
            queries=[
                _counted("airflow_multikueue_dispatches_total", "", "region", "dispatches {{region}}"),
                _counted("airflow_multikueue_evictions_total", "", "region, reason", "evictions {{region}} {{reason}}"),
            ],
        ),
        Panel(
            title="Log lines a minute",
            text="Lines of containers that were brought to task logs.",
            unit="count",
            queries=[Query("60 * sum(rate(airflow_multikueue_log_lines_total[$window]))", "lines")],
        ),
        Panel(
            title="Watches that broke, by cluster",
            text="In the last $window, as Airflow's processes saw it.",
            unit="count",
            queries=[_counted("airflow_multikueue_watch_reconnects_total", "", "fleet_cluster", "{{fleet_cluster}}")],
        ),
    ],
)

ROWS: Sequence[Row] = (_QUEUES, _REGIONS, _WAITS, _QUOTA, _EVICTIONS, _CONNECTION, _AIRFLOW)
