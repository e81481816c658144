"""The dashboards and alerts, held against the metrics of a real Kueue in a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.prometheus import MONITORING, ROOT, labels_of, program, until
from tests.sandbox.monitored import Monitored, monitored

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.timeout(600)]

WINDOW = "5m"
TARGET_LABELS = {"job", "project_id", "location", "cluster", "namespace", "instance"}
"""What Google's collector forces on each target."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One query of a dashboard, and the panel that it is in."""

    panel: str
    expr: str
    legend: str
    needs: str


def of_grafana() -> list[Shown]:
    """Return the queries of the Grafana dashboard, its variables filled in."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return [
        Shown(
            panel=panel["title"],
            expr=target["expr"].replace("$window", WINDOW).replace("$queue", ".*"),
            legend=target["legendFormat"],
            needs="".join(re.findall(r"Needs Kueue (\d+\.\d+)", panel["description"])),
        )
        for panel in dashboard["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    ]


def of_cloud_monitoring() -> list[str]:
    """Return the queries of the Cloud Monitoring dashboard."""
    dashboard = json.loads((MONITORING / "cloud-monitoring-dashboard.json").read_text())
    charts = [tile["widget"]["xyChart"] for tile in dashboard["mosaicLayout"]["tiles"] if "xyChart" in tile["widget"]]
    return [each["timeSeriesQuery"]["prometheusQuery"] for chart in charts for each in chart["dataSets"]]


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expr: str) -> dict[str, set[str]]:
    """Return the metrics of an expression with the labels that it asks of each, those of ``by`` included."""
    grouped = {label.strip() for part in re.findall(r"by \(([^)]*)\)", expr) for label in part.split(",")}
    found = re.findall(r"\b((?:kueue|multikueue|controller_runtime|airflow)_\w+|up)\b(?:\{([^}]*)\})?", _outside(expr))
    return {metric: grouped | set(re.findall(r"(\w+)(?:=|!|~)", matchers or "")) for metric, matchers in found}


def _outside(expr: str) -> str:
    """Return the expression without the labels of ``by``."""
    return re.sub(r"by \([^)]*\)", "", expr)


def missing(expr: str, known: dict[str, set[str]]) -> list[str]:
    """Return what an expression names of Kueue's that no endpoint has."""
    told = []
    for metric, labels in names_in(expr).items():
        if metric == "up" or metric.startswith("airflow_"):
            continue
        if metric not in known:
            told.append(metric)
            continue
        own = known[metric]
        there = TARGET_LABELS | {f"exported_{label}" if label in TARGET_LABELS else label for label in own}
        told += [f"{metric}.{label}" for label in sorted(labels - there)]
    return told


def union(endpoints: dict[str, str]) -> dict[str, set[str]]:
    """Return the metrics and labels that any endpoint has."""
    found: dict[str, set[str]] = {}
    for text in endpoints.values():
        for metric, labels in labels_of(text).items():
            found.setdefault(metric, set()).update(labels)
    return found


@pytest.fixture(scope="module")
def seen(fleet: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    """The fleet with its history, which takes about two minutes."""
    with monitored(fleet, tmp_path_factory.mktemp("prometheus")) as seen:
        yield seen


def test_each_metric_and_label_of_a_dashboard_or_alert_is_kueues(seen: Monitored) -> None:
    known = union(seen.endpoints)
    exprs = [*(each.expr for each in of_grafana()), *of_cloud_monitoring(), *(rule["expr"] for rule in alerts())]
    assert {expr: told for expr in exprs if (told := missing(expr, known))} == {}


@pytest.mark.parametrize("shown", of_grafana(), ids=lambda shown: f"{shown.panel}: {shown.legend}")
def test_each_query_of_grafanas_dashboard_has_data_and_the_labels_of_its_legend(seen: Monitored, shown: Shown) -> None:
    series = seen.prometheus.query(shown.expr)
    assert series, f"no data: {shown.expr}"
    legend = set(re.findall(r"{{(\w+)}}", shown.legend)) - {"underlying_cause"}  # which is empty for most reasons
    for each in series:
        assert legend <= set(each["metric"]), f"{shown.expr} has only {each['metric']}"


@pytest.mark.parametrize("expr", of_cloud_monitoring())
def test_each_query_of_cloud_monitorings_dashboard_has_data(seen: Monitored, expr: str) -> None:
    assert seen.prometheus.query(expr)


def test_what_happened_is_what_the_dashboard_shows(seen: Monitored) -> None:
    def now(title: str) -> dict[str, float]:
        (shown,) = [each for each in of_grafana() if each.panel == title]
        found = {}
        for each in seen.prometheus.query(shown.expr):
            name = re.sub(r"{{(\w+)}}", lambda match: each["metric"].get(match[1], ""), shown.legend)  # noqa: B023
            found[name.strip()] = float(each["value"][1])
        return found

    assert now("Jobs waiting for quota")["default/dws-local-queue"] == 0
    everyone = {
        "kueue-manager manager-europe-west4": 1,
        "kueue-worker worker-europe-west4": 1,
        "kueue-worker worker-us-east4": 1,
        "kueue-worker worker-asia-southeast1": 1,
    }
    # the Kueue of us-east4 answers nobody until its API server, which checks tokens, is back
    until(lambda: now("Kueue answers") == everyone, within=120, what="every Kueue to answer")
    assert now("Admissions, by region")["us-east4"] > 0
    assert not now("Admissions, by region").get("europe-west4"), "it refuses every request"
    assert now("DWS retries, by region").keys() == {"europe-west4"}
    assert now("DWS retries, by region")["europe-west4"] > 0
    assert now("Evictions, by queue and reason")["dws-cluster-queue AdmissionCheck"] > 0
    assert now("Attempts to connect to a worker again")["manager-europe-west4"] > 0
    assert now("How often a region that is asked wins")["multikueue-dws-worker-eu"] == 0


def test_the_dashboard_can_be_drawn(seen: Monitored, tmp_path: Path) -> None:
    """With MULTIKUEUE_DASHBOARD_PICTURE, to that file: the one of the documentation."""
    file = Path(os.environ.get("MULTIKUEUE_DASHBOARD_PICTURE", tmp_path / "dashboard.png"))
    script = ROOT / "scripts" / "dashboards" / "picture.py"
    done = subprocess.run(
        [sys.executable, script, seen.prometheus.url, file, str(seen.seconds)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(b"\x89PNG")


def test_prometheus_takes_all_alerts_and_can_evaluate_each(seen: Monitored) -> None:
    tool = program("prometheus.sh").with_name("promtool")
    checked = subprocess.run(
        [tool, "check", "rules", MONITORING / "alerts.yaml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for rule in alerts():
        seen.prometheus.query(rule["expr"])

    def health() -> set[str]:
        groups = seen.prometheus.get("rules")["groups"]
        return {rule["health"] for group in groups for rule in group["rules"]}

    until(lambda: "unknown" not in health(), within=90, what="each rule to be evaluated")
    assert health() == {"ok"}


def test_kueue_0_17_lacks_only_what_the_dashboard_says(tmp_path: Path) -> None:
    with Sandbox.start_local(kueue="0.17.0") as old, monitored(old, tmp_path) as seen:
        known = union(seen.endpoints)
        lacking = {each.panel for each in of_grafana() if missing(each.expr, known)}
        empty = {each.panel for each in of_grafana() if not seen.prometheus.query(each.expr)}
    assert lacking == empty == {each.panel for each in of_grafana() if each.needs}
    assert not [rule["alert"] for rule in alerts() if missing(rule["expr"], known)]
