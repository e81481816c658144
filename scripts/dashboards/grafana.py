"""The dashboard for Grafana, as JSON to import: it asks for a data source that speaks PromQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layout import Heading, Placed, places
from panels import Row

__all__ = ["dashboard"]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"count": "short", "seconds": "s", "percent": "percent", "bool": "bool_yes_no"}


def dashboard(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the whole dashboard."""
    placed = places(rows, columns=24, height=8, heading=1)
    return {
        "title": "MultiKueue fleet",
        "uid": "multikueue-fleet",
        "description": "Queues, regions, waits, quota, evictions and connections of a MultiKueue fleet, and what "
        "Airflow made of it. Written by scripts/dashboards of airflow-provider-multikueue.",
        "tags": ["airflow", "kueue", "multikueue"],
        "schemaVersion": 39,
        "timezone": "browser",
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [
            _row(each, number) if isinstance(each, Heading) else _panel(each, number)
            for number, each in enumerate(placed, 1)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    queues = "label_values(kueue_cluster_queue_status, cluster_queue)"
    windows = ["5m", "15m", "1h", "6h", "1d"]
    return [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
        {
            "type": "query",
            "name": "queue",
            "label": "ClusterQueue",
            "datasource": _SOURCE,
            "query": queues,
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
        {
            "type": "interval",
            "name": "window",
            "label": "Counted over",
            "query": ",".join(windows),
            "current": {"text": "1h", "value": "1h"},
            "options": [{"text": each, "value": each, "selected": each == "1h"} for each in windows],
        },
    ]


def _row(heading: Heading, number: int) -> dict[str, Any]:
    return {
        "type": "row",
        "id": number,
        "title": heading.title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": heading.y, "w": 24, "h": 1},
        "panels": [],
    }


def _panel(placed: Placed, number: int) -> dict[str, Any]:
    panel = placed.panel
    note = f" Needs Kueue {panel.needs_kueue}." if panel.needs_kueue else ""
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.text + note,
        "datasource": _SOURCE,
        "gridPos": {"x": placed.x, "y": placed.y, "w": placed.width, "h": placed.height},
        "fieldConfig": {
            "defaults": {
                "unit": _UNITS[panel.unit],
                "min": 0,
                "custom": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "range": True,
            }
            for index, query in enumerate(panel.queries)
        ],
    }
