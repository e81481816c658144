"""The results as a table, as JSON and as plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.context import Results, Row
from bench.plots import svg

__all__ = ["table", "write"]

HEADINGS = ("measure", "ours", "peer", "goal")


def write(folder: Path, machine: Mapping[str, Any], results: Mapping[str, Results]) -> list[Path]:
    """Write ``results.json`` and one SVG a chart; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "results.json"
    whole.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    files = [whole]
    for found in results.values():
        for name, chart in found.get("charts", {}).items():
            if any(chart["lines"].values()):
                files.append(folder / f"{name}.svg")
                files[-1].write_text(svg(chart))
    return files


def table(machine: Mapping[str, Any], results: Mapping[str, Results]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown that is also good to read on a terminal."""
    yield f"{machine['cores']} cores ({machine['processor']}), {machine['memory']}, Python {machine['python']}, "
    yield ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    for name, found in results.items():
        yield ""
        yield f"## {name}"
        yield ""
        lines = [HEADINGS, *(_cells(each) for each in found.get("rows", []))]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
        for number, line in enumerate(lines):
            yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
            if number == 0:
                yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        yield from (f"- {note}" for note in found.get("notes", []))


def _cells(each: Row) -> tuple[str, ...]:
    return each["measure"], _number(each["ours"], each["unit"]), _number(each["peer"], each["unit"]), each["goal"]


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
