"""The dashboard for Google's Cloud Monitoring, which runs the same PromQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from layout import Heading, places
from panels import Panel, Query, Row

__all__ = ["dashboard"]

WINDOW = "1h"
_UNITS = {"count": "1", "seconds": "s", "percent": "%", "bool": "1"}


def dashboard(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the whole dashboard."""
    tiles = []
    for each in places(rows, columns=48, height=16, heading=4):
        if isinstance(each, Heading):
            tiles.append({"xPos": 0, "yPos": each.y, "width": 48, "height": 4, "widget": _heading(each)})
        else:
            place = {"xPos": each.x, "yPos": each.y, "width": each.width, "height": each.height}
            tiles.append(place | {"widget": _chart(each.panel)})
    for tile in tiles:  # JSON of Google's APIs has no zeros
        for key in ("xPos", "yPos"):
            if tile[key] == 0:
                del tile[key]
    return {"displayName": "MultiKueue fleet", "mosaicLayout": {"columns": 48, "tiles": tiles}}


def _heading(heading: Heading) -> dict[str, Any]:
    return {"title": heading.title, "sectionHeader": {}}


def _chart(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title.replace("$window", WINDOW),
        "xyChart": {
            "dataSets": [_data_set(panel, query) for query in panel.queries],
            "yAxis": {"scale": "LINEAR"},
        },
    }


def _data_set(panel: Panel, query: Query) -> dict[str, Any]:
    return {
        "plotType": "LINE",
        "targetAxis": "Y1",
        "legendTemplate": re.sub(r"{{(\w+)}}", r"${\1}", query.legend),
        "timeSeriesQuery": {
            "prometheusQuery": query.expr.replace("$window", WINDOW).replace("$queue", ".*"),
            "unitOverride": _UNITS[panel.unit],
        },
    }
