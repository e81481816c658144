"""Draw the dashboard's panels from what a real Prometheus knows: `picture.py URL FILE [SECONDS]`.

It is no screenshot of Grafana: the same queries over the same grid, drawn by matplotlib.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
from layout import Heading, Placed, places
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from panels import ROWS, Query

WINDOW = "1m"
POINTS = 200
_UNITS = {"count": "", "seconds": " (s)", "percent": " (%)", "bool": " (0 or 1)"}


def draw(url: str, file: Path, seconds: float) -> None:
    """Draw the last so many seconds into an SVG or PNG file."""
    end = time.time()
    laid = list(places(ROWS, columns=24, height=8, heading=2))
    rows = max(each.y + each.height for each in laid if isinstance(each, Placed))
    mpl.rcParams.update({"font.size": 6.5, "svg.fonttype": "none", "svg.hashsalt": "multikueue", "axes.titlesize": 7.5})
    figure = plt.figure(figsize=(15, rows * 0.24))
    for each in laid:
        if isinstance(each, Heading):
            figure.text(0.01, 1 - (each.y + 1.4) / rows, each.title, fontsize=10, fontweight="bold")
        else:
            box = (each.x / 24 + 0.025, 1 - (each.y + 7) / rows, each.width / 24 - 0.04, 5.6 / rows)
            _panel(figure.add_axes(box), each, url, end, seconds)
    figure.savefig(file, dpi=90, metadata={"Date": None} if file.suffix == ".svg" else None)


def _panel(axes: Axes, placed: Placed, url: str, end: float, seconds: float) -> None:
    panel = placed.panel
    series = [each for query in panel.queries for each in _series(url, query, end, seconds)]
    for legend, points in series:
        axes.plot([at - end for at, _ in points], [value for _, value in points], linewidth=1, label=legend)
    axes.set_title(panel.title.replace("$window", WINDOW) + _UNITS[panel.unit], loc="left")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.set_xlim(-seconds, 0)
    axes.xaxis.set_major_formatter("{x:.0f} s")
    if series:
        axes.legend(fontsize=5.5 if len(series) < 7 else 4.5, loc="upper left", framealpha=0.5, labelspacing=0.3)


def _series(url: str, query: Query, end: float, seconds: float) -> list[tuple[str, list[tuple[float, float]]]]:
    expr = query.expr.replace("$window", WINDOW).replace("$queue", ".*")
    parameters = {"query": expr, "start": end - seconds, "end": end, "step": max(seconds / POINTS, 1)}
    address = f"{url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the caller says which Prometheus
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return [(_legend(query, each["metric"]), _points(each["values"])) for each in found]


def _legend(query: Query, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), query.legend).strip()


def _points(values: list[tuple[float, str]]) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in values if value != "NaN"]


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 600.0)
