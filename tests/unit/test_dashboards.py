"""The files of deploy/monitoring: as their description says, and of the forms that Grafana and Google read."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"


def load(name: str) -> dict[str, Any]:
    """Return the content of one of the JSON files."""
    content: dict[str, Any] = json.loads((MONITORING / name).read_text())
    return content


GRAFANA = load("grafana-dashboard.json")
PANELS = [panel for panel in GRAFANA["panels"] if panel["type"] != "row"]
GOOGLE = load("cloud-monitoring-dashboard.json")


def test_the_files_are_what_their_description_makes() -> None:
    command = [sys.executable, ROOT / "scripts" / "dashboards" / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_has_a_field_for_everything_in_its_dashboard() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(GRAFANA)))
    assert {path for path in paths(GRAFANA) if path not in paths(kept)} == set()


def test_google_has_a_field_for_everything_in_its_dashboard() -> None:
    from google.cloud.monitoring_dashboard_v1 import Dashboard

    # a field that Google's types do not have, or a value of another type, is an error
    dashboard = Dashboard.from_json(json.dumps(GOOGLE), ignore_unknown_fields=False)
    queries = [
        data.time_series_query.prometheus_query
        for tile in dashboard.mosaic_layout.tiles
        for data in tile.widget.xy_chart.data_sets
    ]
    assert queries
    assert all(queries)


def paths(value: Any, at: str = "") -> set[str]:
    """Return the place of each value that is no container."""
    if isinstance(value, dict):
        return {path for key, each in value.items() for path in paths(each, f"{at}.{key}")} or {at}
    if isinstance(value, list):
        return {path for number, each in enumerate(value) for path in paths(each, f"{at}.{number}")} or {at}
    return {at}


def test_each_panel_has_an_id_of_its_own_queries_a_unit_and_a_text() -> None:
    ids = [panel["id"] for panel in GRAFANA["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["targets"], panel["title"]
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"]


def test_the_dashboard_can_be_given_any_data_source() -> None:
    variables = {each["name"]: each for each in GRAFANA["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = [each["datasource"]["uid"] for panel in PANELS for each in (panel, *panel["targets"])]
    assert set(sources) == {"${datasource}"}
    used = {
        name for panel in PANELS for target in panel["targets"] for name in variables if f"${name}" in target["expr"]
    }
    assert used == set(variables) - {"datasource"}


@pytest.mark.parametrize(
    ("columns", "places"),
    [
        (24, [tuple(panel["gridPos"][key] for key in "xywh") for panel in GRAFANA["panels"]]),
        (
            48,
            [
                (tile.get("xPos", 0), tile.get("yPos", 0), tile["width"], tile["height"])
                for tile in GOOGLE["mosaicLayout"]["tiles"]
            ],
        ),
    ],
    ids=["grafana", "google"],
)
def test_no_two_panels_overlap_and_none_sticks_out(columns: int, places: list[tuple[int, int, int, int]]) -> None:
    cells: dict[tuple[int, int], int] = {}
    for number, (x, y, width, height) in enumerate(places):
        assert x + width <= columns
        for cell in ((i, j) for i in range(x, x + width) for j in range(y, y + height)):
            assert cell not in cells, f"panels {cells[cell]} and {number} overlap"
            cells[cell] = number
    assert all(upper[1] <= lower[1] for upper, lower in pairwise(places)), "they are in reading order"


def test_googles_queries_have_no_variables_left() -> None:
    assert "$window" not in json.dumps(GOOGLE)
    assert "$queue" not in json.dumps(GOOGLE)


def test_both_dashboards_have_the_same_panels() -> None:
    titles = [tile["widget"]["title"] for tile in GOOGLE["mosaicLayout"]["tiles"]]
    assert titles == [panel["title"] for panel in GRAFANA["panels"]]


def test_each_alert_says_what_happened_and_what_to_do() -> None:
    content = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    assert yaml.safe_load((MONITORING / "alerts-gmp.yaml").read_text())["spec"] == content


def test_manager_and_worker_differ_by_the_name_that_the_queries_know_them_by() -> None:
    def objects(name: str) -> list[dict[str, Any]]:
        return [each for each in yaml.safe_load_all((MONITORING / name).read_text()) if each]

    manager, worker = objects("kueue-manager.yaml"), objects("kueue-worker.yaml")
    assert manager[-1]["metadata"]["name"] == "kueue-manager"
    manager[-1]["metadata"]["name"] = "kueue-worker"
    assert manager == worker
    kept = manager[-1]["spec"]["endpoints"][0]["metricRelabeling"]
    assert [each["action"] for each in kept] == ["keep"]
