"""Analyses as files: pictures and numbers."""

from collections.abc import Iterator
from pathlib import Path

from siftback.lab.analyses.drawing import draw
from siftback.lab.analyses.figure import (
    Analysis,
    Figure,
    Gallery,
    Grid,
    Missing,
    Range,
    shown,
)
from siftback.lab.records import tables

Row = dict[str, object]


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
    return tables.markdown(rows_of(grid))


def rows_of(grid: Grid) -> list[dict[str, str]]:
    """A table's rows as they are shown, by column."""
    return [dict(zip(grid.columns, map(shown, row), strict=True)) for row in grid.rows]


def as_csv(analysis: Figure | Grid | Gallery) -> str:
    """The numbers of an analysis, one line per point, row or picture.

    >>> grid = Grid("t", "T", "", "", ["a", "b"], [["x", Range(2.0, 1.0, 3.0)], ["y", None]])
    >>> print(as_csv(grid))
    a,b,b (least),b (most)
    x,2.0,1.0,3.0
    y,,,
    <BLANKLINE>
    """
    if isinstance(analysis, Figure):
        return tables.as_csv(list(_points(analysis)))
    if isinstance(analysis, Grid):
        return tables.as_csv(list(_cells(analysis)))
    return tables.as_csv(
        [{"row": one.row, "label": one.label, "caption": one.caption} for one in analysis.pictures]
    )


def _points(figure: Figure) -> Iterator[Row]:
    for view, panels in figure.views.items():
        for panel in panels:
            for one in panel.series:
                of = {"view": view, "panel": panel.title, "group": one.group, "series": one.label}
                blank = [""] * len(one.y)
                low, high = one.low or blank, one.high or blank
                for point in zip(one.x, one.y, low, high, strict=True):
                    yield of | dict(zip(("x", "y", "low", "high"), point, strict=True))


def _cells(grid: Grid) -> Iterator[Row]:
    """The table's rows, a column of ranges being three."""
    ranged = {
        name
        for name, column in zip(grid.columns, zip(*grid.rows, strict=True), strict=True)
        if any(isinstance(cell, Range) for cell in column)
    }
    for row in grid.rows:
        line: Row = {}
        for name, cell in zip(grid.columns, row, strict=True):
            if name in ranged:
                names = (name, f"{name} (least)", f"{name} (most)")
                values = cell if isinstance(cell, Range) else (cell, None, None)
                line |= dict(zip(names, values, strict=True))
            else:
                line[name] = cell
        yield line
