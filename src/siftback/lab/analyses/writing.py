"""Analyses as files: pictures and numbers."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from siftback.lab.analyses.drawing import draw
from siftback.lab.analyses.figure import (
    Analysis,
    Cell,
    Figure,
    Gallery,
    Grid,
    Missing,
    Range,
    shown,
)
from siftback.lab.records.summary_table import markdown

Row = list[object]


def write(analysis: Analysis, folder: Path) -> list[Path]:
    """Writes an analysis under its name.

    Args:
        analysis: A figure or a gallery, of which SVG, PNG and CSV are written; or a table, of
            which CSV and Markdown are.
        folder: Where to; made where it is missing.

    Returns:
        The files; none of one that is missing.
    """
    if isinstance(analysis, Missing):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    if isinstance(analysis, Grid):
        page = folder / f"{analysis.name}.md"
        table = as_markdown(analysis)
        parts = [f"# {analysis.title}", analysis.sentence, table, f"{analysis.source}."]
        page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        paths.append(page)
    else:
        paths += draw(analysis, folder)
    numbers = folder / f"{analysis.name}.csv"
    numbers.write_text(as_csv(analysis), encoding="utf-8")
    return [*paths, numbers]


def as_markdown(grid: Grid) -> str:
    """A table's rows in Markdown."""
    return markdown([dict(zip(grid.columns, map(shown, row), strict=True)) for row in grid.rows])


def as_csv(analysis: Figure | Grid | Gallery) -> str:
    """The numbers of an analysis, a line a point, a row or a picture.

    >>> grid = Grid("t", "T", "", "", ["a", "b"], [["x", Range(2.0, 1.0, 3.0)], ["y", None]])
    >>> print(as_csv(grid))
    a,b,b (least),b (most)
    x,2.0,1.0,3.0
    y,,,
    <BLANKLINE>
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if isinstance(analysis, Figure):
        lines.writerow(["view", "panel", "group", "series", "x", "y", "low", "high"])
        lines.writerows(_points(analysis))
    elif isinstance(analysis, Grid):
        lines.writerows(_cells(analysis))
    else:
        lines.writerow(["row", "label", "caption"])
        lines.writerows([one.row, one.label, one.caption] for one in analysis.pictures)
    return text.getvalue()


def _points(figure: Figure) -> Iterator[Row]:
    for view, panels in figure.views.items():
        for panel in panels:
            for one in panel.series:
                blank = [""] * len(one.y)
                low, high = one.low or blank, one.high or blank
                for point in zip(one.x, one.y, low, high, strict=True):
                    yield [view, panel.title, one.group, one.label, *point]


def _cells(grid: Grid) -> Iterator[Row]:
    """The table's lines, a column of ranges being three."""
    ranges = [any(isinstance(cell, Range) for cell in column) for column in _columns(grid)]
    yield [
        name
        for column, wide in zip(grid.columns, ranges, strict=True)
        for name in ([column, f"{column} (least)", f"{column} (most)"] if wide else [column])
    ]
    for row in grid.rows:
        yield [
            value
            for cell, wide in zip(row, ranges, strict=True)
            for value in (_three(cell) if wide else [cell])
        ]


def _columns(grid: Grid) -> list[tuple[Cell, ...]]:
    return list(zip(*grid.rows, strict=True)) or [() for _ in grid.columns]


def _three(cell: Cell) -> Row:
    return list(cell) if isinstance(cell, Range) else [cell, None, None]
