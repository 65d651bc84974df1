"""The report: an HTML page that needs no other file, and each figure beside it."""
# ruff: noqa: RUF001 - – is meant.

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from siftback import __version__
from siftback.lab.analyses import analyse, read
from siftback.lab.analyses.configurations import AXES, configurations
from siftback.lab.analyses.figure import Analysis, Figure, Gallery, Grid, Missing, shown
from siftback.lab.measures import MeanAndSpread, ordered_labels
from siftback.lab.records import SUMMARY, Comparison
from siftback.lab.report.charts import chart_data, groups, looks
from siftback.lab.report.embedding import (
    EMBEDDED_MOST,
    data_link,
    evaluations_csv,
    picture_link,
    script,
    template,
)
from siftback.lab.report.verdict import Outcome, counted, headline, named, setup, verdicts
from siftback.lab.table import NOT_REACHED, caption, fact, listed, phase_rows, rows, with_spread

PAGE = "index.html"
FIGURES = "figures"
DATA = "data"

_OUTCOMES: dict[Outcome, str] = {
    "paid": "paid",
    "level": "within the spread",
    "lost": "did not pay",
    "undecided": "undecided",
}


def write_report(folders: Sequence[Path], out: Path) -> tuple[Path, list[str]]:
    """Makes the report of recorded comparisons.

    Args:
        folders: Comparisons, or folders that hold some at any depth.
        out: The folder to write: ``index.html``, which may be moved alone; ``figures/`` with each
            figure as SVG, PNG and CSV; and ``data/`` with the raw numbers.

    Returns:
        The page's path, and what it goes without: a line for each record that is damaged or was
        broken off.

    Raises:
        ConfigError: Where a folder does not exist, or none holds a comparison.
    """
    comparisons, problems = read(folders)
    for folder in (out / FIGURES, out / DATA):
        folder.mkdir(parents=True, exist_ok=True)
    page = template()
    page.filters |= {"points": _points, "interval": _interval, "ratio": _ratio}
    analyses = list(analyse(comparisons).values())
    told = _told(comparisons, out) | _analysed(analyses, comparisons, out)
    html = page.get_template("page.html.j2").render(told | {"damaged": problems})
    (out / PAGE).write_text(html, encoding="utf-8")
    return out / PAGE, problems


def _told(comparisons: Sequence[Comparison], out: Path) -> dict[str, Any]:
    """What the page says of the comparisons themselves."""
    judged = verdicts(comparisons)
    each = [_comparison(name, comparison, out) for name, comparison in named(comparisons)]
    return {
        "version": __version__,
        "title": "Did selection pay?",
        "subtitle": _subtitle(comparisons),
        "style": script(__package__, "template", "style.css"),
        "theme": script(__package__, "template", "theme.js"),
        "script": script(__package__, "template", "page.js"),
        "plotly": script("plotly", "package_data", "plotly.min.js"),
        "headline": headline(judged),
        "verdicts": judged,
        "outcomes": _OUTCOMES,
        "comparisons": each,
        "configured": [one for one in each if one["table"]["rows"]],
        "phases": [one for one in each if one["phases"]["rows"]],
    }


def _analysed(
    analyses: Sequence[Analysis], comparisons: Sequence[Comparison], out: Path
) -> dict[str, Any]:
    """What the page shows of the analyses."""
    figures = [one for one in analyses if isinstance(one, Figure)]
    drawn = looks(figures)
    families = {one.family for comparison in comparisons for one in configurations(comparison)}
    return {
        "grids": [_grid(one, out) for one in analyses if isinstance(one, Grid)],
        "figures": [
            _head(one, out)
            | {
                "views": list(one.views),
                "choice": "x axis" if set(one.views) <= set(AXES) else "View",
                "data": Markup(chart_data(one, drawn)),
            }
            for one in figures
        ],
        "galleries": [_gallery(one, out) for one in analyses if isinstance(one, Gallery)],
        "missing": [one for one in analyses if isinstance(one, Missing)],
        "strategies": [group for group in groups(figures) if group in families],
    }


def _head(analysis: Figure | Grid | Gallery, out: Path) -> dict[str, Any]:
    ...


def _grid(grid: Grid, out: Path) -> dict[str, Any]:
    cells = [[shown(cell) for cell in row] for row in grid.rows]
    return _head(grid, out) | {"columns": grid.columns, "rows": cells}


def _gallery(gallery: Gallery, out: Path) -> dict[str, Any]:
    return _head(gallery, out) | {
        "rows": [
            {
                "title": row,
                "pictures": [
                    {
                        "source": picture_link(picture.image),
                        "alt": f"Image of class {picture.label}, {picture.caption}",
                        "label": picture.label,
                        "caption": picture.caption,
                    }
                    for picture in pictures
                ],
            }
            for row, pictures in groupby(gallery.pictures, lambda picture: picture.row)
        ]
    }


def _comparison(name: str, comparison: Comparison, out: Path) -> dict[str, Any]:
    seeds = sorted({run.seed for run in comparison.runs})
    return {
        "name": name,
        "setup": setup(comparison) if comparison.runs else "no finished run",
        "extent": f"{counted(len(comparison.runs), 'run')}, seeds {listed(seeds)}",
        "facts": list(_facts(comparison)),
        "raw": _raw(name, comparison, out),
        "table": _filled(f"{name}: every configuration", rows(comparison)),
        "caption": caption(comparison) or "",
        "phases": _filled(f"{name}: seconds by phase", phase_rows(comparison)),
    }


def _filled(title: str, table: Sequence[dict[str, str]]) -> dict[str, Any]:
    """A table of rows by column name, of which not every row has every column."""
    columns = list(dict.fromkeys(column for row in table for column in row))
    cells = [[row.get(column, "") for column in columns] for row in table]
    return {"title": title, "columns": columns, "rows": cells}


def _facts(comparison: Comparison) -> Iterable[tuple[str, str]]:
    """What was asked for, then where it ran and with which versions."""
    environment = dict(comparison.environment)
    asked = environment.pop("arguments", None) or {}
    for name, value in (asked | environment).items():
        if value not in (None, []):
            yield name.replace("_", " "), fact(value)
    machines: dict[str, list[str]] = {}
    for label in ordered_labels(comparison):
        machines.setdefault(comparison.machine(label), []).append(label)
    if len(machines) > 1:
        where = "; ".join(f"{', '.join(labels)} on {name}" for name, labels in machines.items())
        yield "several machines, whose seconds do not compare", where


def _raw(name: str, comparison: Comparison, out: Path) -> list[dict[str, str]]:
    """The raw numbers of a comparison, as files to download from the page."""
    stem = name.replace("/", "-")
    files = {
        f"{stem}-{SUMMARY}": (comparison.folder / SUMMARY).read_bytes(),
        f"{stem}-evaluations.csv": evaluations_csv(comparison).encode(),
    }
    return [_download(out, DATA, file, content) for file, content in files.items()]


def _download(out: Path, folder: str, name: str, content: bytes) -> dict[str, str]:
    """Writes a file beside the page, and has the page carry it where it is not too large."""
    (out / folder / name).write_bytes(content)
    kinds = {".csv": "text/csv", ".json": "application/json"}
    embedded = len(content) <= EMBEDDED_MOST
    href = data_link(content, kinds[Path(name).suffix]) if embedded else f"{folder}/{name}"
    return {"name": name, "href": href}


def _subtitle(comparisons: Sequence[Comparison]) -> str:
    runs = sum(len(comparison.runs) for comparison in comparisons)
    what = listed(setup(comparison) for comparison in comparisons if comparison.runs)
    dates = sorted(str(one.environment.get("date", ""))[:10] for one in comparisons)
    dates = list(dict.fromkeys(date for date in dates if date))
    machines = listed(
        comparison.machine(label) for comparison in comparisons for label in comparison.by_label()
    )
    text = f"{counted(len(comparisons), 'comparison')} of {counted(runs, 'run')}: {what}."
    if dates:
        text += f" Recorded {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {machines}."
    return text


def _points(difference: MeanAndSpread | None) -> str:
    return with_spread(difference, sign=True) if difference else NOT_REACHED


def _interval(ends: tuple[float, float] | None) -> str:
    return f"{ends[0]:+.2f} to {ends[1]:+.2f}" if ends else NOT_REACHED


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value else NOT_REACHED
