"""Each alert fires for its case and for no other: promtool runs the rules over invented series."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.prometheus import MONITORING, program

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet]

RULES = MONITORING / "alerts.yaml"
MINUTES = 400
QUEUE = 'cluster_queue="dws-cluster-queue"'
MANAGER = f'job="kueue-manager",cluster="manager",location="europe-west4",{QUEUE}'
WORKER = f'job="kueue-worker",cluster="worker-us",location="us-east4",{QUEUE}'

# A fleet that is well: series, and their values from minute to minute in promtool's notation.
WELL = {
    'up{job="kueue-manager",cluster="manager",location="europe-west4"}': f"1x{MINUTES}",
    'up{job="kueue-worker",cluster="worker-us",location="us-east4"}': f"1x{MINUTES}",
    f'kueue_cluster_queue_status{{{MANAGER},status="active"}}': f"1x{MINUTES}",
    f'kueue_cluster_queue_status{{{WORKER},status="active"}}': f"1x{MINUTES}",
    f'kueue_admitted_workloads_total{{{MANAGER},priority_class=""}}': f"0+1x{MINUTES}",
    f'kueue_admitted_workloads_total{{{WORKER},priority_class=""}}': f"0+1x{MINUTES}",
    f"kueue_reserving_active_workloads{{{MANAGER}}}": f"7x{MINUTES}",
    f"kueue_admitted_active_workloads{{{MANAGER}}}": f"5x{MINUTES}",
    f'kueue_admission_wait_time_seconds_bucket{{{MANAGER},le="640"}}': f"0+1x{MINUTES}",
    f'kueue_admission_wait_time_seconds_bucket{{{MANAGER},le="5120"}}': f"0+1x{MINUTES}",
    f'kueue_admission_wait_time_seconds_bucket{{{MANAGER},le="+Inf"}}': f"0+1x{MINUTES}",
    f'kueue_evicted_workloads_total{{{MANAGER},reason="AdmissionCheck"}}': f"2x{MINUTES}",
    f'kueue_evicted_workloads_total{{{WORKER},reason="AdmissionCheck"}}': f"0+1x{MINUTES}",
    'controller_runtime_reconcile_total{job="kueue-manager",cluster="manager",controller="multikueue_cluster",'
    'result="requeue_after"}': f"3x{MINUTES}",
    'airflow_multikueue_outcomes_total{queue="dws-local-queue",phase="SUCCEEDED",error="none"}': f"0+1x{MINUTES}",
}
RETRIES = next(name for name in WELL if name.startswith("controller_runtime"))

CASES = {
    "KueueDoesNotAnswer": {'up{job="kueue-worker",cluster="worker-us",location="us-east4"}': f"0x{MINUTES}"},
    "KueueQueueTakesNoJobs": {f'kueue_cluster_queue_status{{{MANAGER},status="active"}}': f"0x{MINUTES}"},
    "MultiKueueWorkerUnreachable": {RETRIES: f"0+1x{MINUTES}"},
    "MultiKueueJobsWaitLong": {f'kueue_admission_wait_time_seconds_bucket{{{MANAGER},le="640"}}': f"0x{MINUTES}"},
    "MultiKueueNothingAdmitted": {f'kueue_admitted_workloads_total{{{MANAGER},priority_class=""}}': f"9x{MINUTES}"},
    "MultiKueueEvictions": {f'kueue_evicted_workloads_total{{{MANAGER},reason="Preempted"}}': f"0+1x{MINUTES}"},
    "DwsKeepsRefusing": {f'kueue_admitted_workloads_total{{{WORKER},priority_class=""}}': f"4x{MINUTES}"},
    "MultiKueueTasksFail": {
        'airflow_multikueue_outcomes_total{queue="default-queue",phase="FAILED",error="StartupError"}': f"0+1x{MINUTES}"
    },
}


def firing(case: dict[str, str], expected: list[str], folder: Path) -> str:
    """Return what promtool says is wrong, if these are not all alerts that fire at the end."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]
    check = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{MINUTES}m",
        "exp_samples": samples,
    }
    series = [{"series": name, "values": values} for name, values in (WELL | case).items()]
    content = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [check]}],
    }
    file = folder / "alerts-test.yaml"
    file.write_text(json.dumps(content))
    tool = program("prometheus.sh").with_name("promtool")
    done = subprocess.run([tool, "test", "rules", file], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_no_alert_fires_on_a_fleet_that_is_well(tmp_path: Path) -> None:
    assert firing({}, [], tmp_path) == ""


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_alone_in_its_case(name: str, tmp_path: Path) -> None:
    assert firing(CASES[name], [name], tmp_path) == ""


def test_nothing_admitted_is_noticed_where_nothing_ever_was(tmp_path: Path) -> None:
    never = {name: values for name, values in WELL.items() if 'admitted_workloads_total{job="kueue-manager"' in name}
    assert never
    assert firing(dict.fromkeys(never, f"_x{MINUTES}"), ["MultiKueueNothingAdmitted"], tmp_path) == ""


def test_each_alert_has_a_case() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == set(CASES)
