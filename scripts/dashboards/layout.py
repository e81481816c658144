"""Where panels go: rows of at most four, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from panels import Panel, Row

__all__ = ["Heading", "Placed", "places"]

MOST = 4


@dataclass(frozen=True, slots=True)
class Heading:
    """A row's title, as wide as the dashboard."""

    title: str
    y: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A panel and its place, in units of the grid."""

    panel: Panel
    x: int
    y: int
    width: int
    height: int


def places(rows: Sequence[Row], *, columns: int, height: int, heading: int) -> Iterator[Heading | Placed]:
    """Give each heading and panel a place on a grid of so many columns; ``heading`` is the height of a heading."""
    y = 0
    for row in rows:
        yield Heading(row.title, y)
        y += heading
        for line in _lines(row.panels):
            width = columns // len(line)
            for number, panel in enumerate(line):
                yield Placed(panel, number * width, y, width, height)
            y += height


def _lines(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Split the panels into lines of about the same length."""
    count = -(-len(panels) // MOST)
    length = -(-len(panels) // count)
    return [panels[start : start + length] for start in range(0, len(panels), length)]
