"""Analyses as files: pictures and numbers."""

from collections.abc import Iterator
from pathlib import Path

from siftback.lab.figures.drawing import save_pictures
from siftback.lab.figures.figure import Analysis, Figure, Gallery, Grid, Missing, format_cell
from siftback.lab.records import tables
from siftback.lab.records.frame import Range


def write_analysis(analysis: Analysis, folder: Path) -> list[Path]:
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
    if isinstance(analysis, Grid):
        paths = [folder / f"{analysis.name}.md"]
        table = tables.markdown(format_rows(analysis))
        text = [f"# {analysis.title}", analysis.sentence, table, f"{analysis.source}."]
        paths[0].write_text("\n\n".join(text) + "\n", encoding="utf-8")
    else:
        paths = save_pictures(analysis, folder)
    numbers = folder / f"{analysis.name}.csv"
    numbers.write_text(export_csv(analysis), encoding="utf-8")
    return [*paths, numbers]


def format_rows(table: Analysis) -> list[dict[str, str]]:
    """Writes a table's rows as a reader sees them, by column; of what is missing none."""
    if not isinstance(table, Grid):
        return []
    return [dict(zip(table.columns, map(format_cell, row), strict=True)) for row in table.rows]


def export_csv(analysis: Figure | Grid | Gallery) -> str:
    """Writes the numbers of an analysis as CSV, one line per point, row or picture.

    >>> grid = Grid("t", "T", "", "", ["a", "b"], [["x", Range(2.0, 1.0, 3.0)], ["y", None]])
    >>> print(export_csv(grid))
    a,b,b (least),b (most)
    x,2.0,1.0,3.0
    y,,,
    <BLANKLINE>
    """
    if isinstance(analysis, Figure):
        return tables.as_csv(list(_list_points(analysis)))
    if isinstance(analysis, Grid):
        return tables.as_csv(list(_list_rows(analysis)))
    captions = [
        {"row": picture.row, "label": picture.label, "caption": picture.caption}
        for picture in analysis.pictures
    ]
    return tables.as_csv(captions)


def _list_points(figure: Figure) -> Iterator[dict[str, object]]:
    for view, panels in figure.views.items():
        for panel in panels:
            for line in panel.series:
                names = {"view": view, "panel": panel.title, "group": line.group}
                names["series"] = line.label
                blank = [""] * len(line.y)
                low, high = line.low or blank, line.high or blank
                for point in zip(line.x, line.y, low, high, strict=True):
                    yield names | dict(zip(("x", "y", "low", "high"), point, strict=True))


def _list_rows(grid: Grid) -> Iterator[dict[str, object]]:
    """Yields the table's rows, a column of ranges being three."""
    columns = zip(*grid.rows, strict=True)
    ranged = [any(isinstance(cell, Range) for cell in column) for column in columns]
    for row in grid.rows:
        line: dict[str, object] = {}
        for name, cell, three in zip(grid.columns, row, ranged, strict=True):
            if three:
                names = (name, f"{name} (least)", f"{name} (most)")
                values = cell if isinstance(cell, Range) else (cell, None, None)
                line |= dict(zip(names, values, strict=True))
            else:
                line[name] = cell
        yield line
