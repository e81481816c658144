"""Small line charts as SVG, readable on light and dark pages, without a library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape

from bench.context import Chart

__all__ = ["svg"]

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 96, 36, 44
COLORS = {"ours": "#1f77b4", "peer": "#d62728"}
OTHERS = ("#2ca02c", "#9467bd", "#8c564b", "#e377c2")
GREY = "#8a8a8a"

Scale = Callable[[float], float]


def svg(chart: Chart) -> str:
    """Return the chart as an SVG document."""
    points = [point for line in chart["lines"].values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low = min((y for y in ys if y > 0), default=1.0)
    x_marks = sorted(set(xs))
    y_marks = _decades(low, max(ys)) if chart["log"] else _steps(max(ys))
    x_at = _scale(chart["log"], x_marks[0], x_marks[-1], LEFT, WIDTH - RIGHT)
    y_at = _scale(chart["log"], y_marks[0], y_marks[-1], HEIGHT - BOTTOM, TOP)
    parts = [
        _text(LEFT, 18, chart["title"], size=14),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, chart["x"], anchor="middle"),
        _text(LEFT, 32, chart["y"], size=11),
        *(_grid(y_at(mark), mark) for mark in y_marks),
        *(_text(x_at(mark), HEIGHT - BOTTOM + 16, _number(mark), anchor="middle") for mark in x_marks),
        *_lines(chart, x_at, y_at, y_marks[0]),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        + f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _lines(chart: Chart, x_at: Scale, y_at: Scale, lowest: float) -> Iterable[str]:
    colors = iter(OTHERS)
    for name, line in chart["lines"].items():
        if not line:
            continue
        color = COLORS.get(name) or next(colors)
        places = [(x_at(x), y_at(max(y, lowest))) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places)
        x, y = places[-1]
        yield _text(x + 8, y + 4, f"{name} {_number(line[-1][1])}", color=color)


def _grid(y: float, mark: float) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
    return line + _text(LEFT - 6, y + 4, _number(mark), anchor="end", color=GREY)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, color: str = "#333333") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(text)}</text>'
    )


def _scale(log: bool, low: float, high: float, begin: float, end: float) -> Scale:
    f: Scale = math.log10 if log else float
    span = (f(high) - f(low)) or 1.0
    return lambda value: begin + (f(value) - f(low)) / span * (end - begin)


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(max(high, low)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _steps(high: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10(high or 1.0))
    count = math.ceil((high or 1.0) / step)
    return [step * number for number in range(count + 1)]


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
