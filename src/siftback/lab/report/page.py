"""The report: an HTML page that needs no other file, and each figure beside it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from siftback import __version__
from siftback.lab.analyses import ANALYSES, analyse, as_csv, read, write
from siftback.lab.analyses.configurations import AXES, configurations, setup
from siftback.lab.analyses.figure import (
    Analysis,
    Figure,
    Gallery,
    Grid,
    Missing,
    shown,
)
from siftback.lab.papers import RUNS, beside
from siftback.lab.recipes.recipe import comparisons_for
from siftback.lab.records.comparison_record import SUMMARY, Comparison
from siftback.lab.records.formatting import NOT_REACHED, fact, facts_line, listed
from siftback.lab.records.measures import ordered_labels
from siftback.lab.records.summary_table import measured, phase_rows, rows
from siftback.lab.records.tables import columns_of, worded
from siftback.lab.report.charts import chart_data, looks, pairs_of
from siftback.lab.report.embedding import (
    CARRIED_MOST,
    compressed_link,
    evaluations_csv,
    picture_link,
    script,
    template,
)
from siftback.lab.report.results_page import BENCHMARKS, benchmarks_of
from siftback.lab.report.verdict import (
    OUTCOMES,
    Verdict,
    counted,
    difference_of,
    headline,
    named,
    verdicts,
)

PAGE = "index.html"
PAGE_MOST = 10_000_000  # bytes
# What stands open: figures of few panels, verdicts in words, and tables of few rows.
OPEN = ("budget", "fig7")
PANELS_SHOWN = 2
SHOWN = 6
ROWS_SHOWN = 12
FIGURES = "figures"
DATA = "data"

_PAPERS = """\
Theirs as they print them; ours from the runs of their recipes at the small scale, and of table 1 \
from longer ones too. The scales are far apart: other networks, fewer images, fewer epochs, other \
machines. Where a number differs, that says what was seen here at this size, and nothing about \
theirs. Speed-ups are medians over the seeds, in time and in cost, with a dash where a seed did \
not reach the target; differences in error are in percentage points, mean and standard deviation \
over the seeds, and below zero where the method ends lower than Traditional.\
"""


def write_report(folders: Sequence[Path], out: Path) -> tuple[Path, list[str]]:
    """Makes the report of recorded comparisons.

    Args:
        folders: Comparisons, or folders that hold some at any depth. Where a folder of the papers'
            recipes, ``recipes``, is among them, the papers' numbers are in the report; where
            ``benchmarks`` is, so are the tables of its JSON files.
        out: The folder to write: ``index.html``, which may be moved alone; ``figures/`` with each
            figure as SVG, PNG and CSV; and ``data/`` with the raw numbers. Where it ends in
            ``.html``, the page alone.

    Returns:
        The page's path, and what it goes without: a line for each record that is damaged or was
        broken off, and one where it is larger than `PAGE_MOST`.

    Raises:
        ConfigError: If a folder does not exist, or none holds a comparison.
    """
    measured_in = [folder for folder in folders if folder.resolve().name == BENCHMARKS]
    comparisons, problems = read([one for one in folders if one not in measured_in])
    tables, damaged = _tables(folders, measured_in)
    problems += damaged
    analyses = [
        analysis
        for name in ANALYSES
        for analysis in analyse(comparisons_for(name, comparisons), [name]).values()
    ]
    page, files, most = out, {}, [math.inf]
    if out.suffix != ".html":
        page, files, most = out / PAGE, _beside(comparisons, analyses, out), [CARRIED_MOST, 0]
    for carried_most in most:
        text = rendered(comparisons, problems, analyses, files, carried_most, tables).encode()
        if len(text) <= PAGE_MOST:
            break
    else:
        problems = [
            *problems,
            f"{page.name} has {len(text) / 1e6:.1f} MB: report fewer comparisons",
        ]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_bytes(text)
    return page, problems


def _beside(
    comparisons: Sequence[Comparison], analyses: Sequence[Analysis], out: Path
) -> dict[str, list[str]]:
    """Writes what lies beside the page; returns the figures' files by the analysis' name."""
    (out / DATA).mkdir(parents=True, exist_ok=True)
    for name, comparison in named(comparisons):
        for file, content in _raw(name, comparison).items():
            (out / file).write_bytes(content)
    return {
        analysis.name: [f"{FIGURES}/{path.name}" for path in write(analysis, out / FIGURES)]
        for analysis in analyses
    }


def rendered(
    comparisons: Sequence[Comparison],
    problems: Sequence[str],
    analyses: Sequence[Analysis],
    files: Mapping[str, Sequence[str]],
    carried_most: float = CARRIED_MOST,
    tables: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page.

    Args:
        comparisons: What it is of.
        problems: What it goes without, a line each.
        analyses: What it shows.
        files: By an analysis' name, the files beside the page that show it too.
        carried_most: How many bytes a file of raw numbers may have, compressed, for the page to
            carry it; larger ones are linked beside the page.
        tables: What it has beside the comparisons: ``id``, ``title``, ``note`` and ``grids``.
    """
    environment = template()
    environment.filters |= {"points": difference_of, "interval": _interval, "ratio": _ratio}
    content = _compared(comparisons) | _analysed(analyses, comparisons, files)
    page = environment.get_template("page.html.j2")
    link = partial(_link, carried_most)
    return page.render(content | {"damaged": problems, "link": link, "tables": tables})


def _tables(
    folders: Sequence[Path], measured_in: Sequence[Path]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The papers' numbers and the benchmarks, and what of them is damaged, a line each."""
    tables = [
        {
            "id": "papers",
            "title": "The papers' numbers beside ours",
            "note": _PAPERS,
            "grids": [_filled("The papers' numbers", beside(folder.resolve().parent))],
        }
        for folder in folders
        if folder.resolve().name == RUNS
    ]
    problems: list[str] = []
    for folder in measured_in:
        found, damaged = benchmarks_of(folder)
        problems += damaged
        grids = [
            _filled(one["title"], measured(one["rows"]))
            | {"caption": f"{one['title']}. Measured on: {facts_line(one['environment'])}"}
            for one in found
        ]
        note = "A ratio beside its goal, where it has one."
        tables.append({"id": "benchmarks", "title": "Benchmarks", "note": note, "grids": grids})
    return tables, problems


def _link(carried_most: float, path: str, content: bytes) -> dict[str, str]:
    """Where a file's content is found: in the page, compressed, if it is not too large for that."""
    name = Path(path).name
    carried = compressed_link(content)
    if len(carried) > carried_most:
        return {"href": path, "download": name}
    return {"href": carried, "download": f"{name}.gz"}


def _compared(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What the page says of the comparisons themselves."""
    judged = verdicts(comparisons)
    each = [_comparison(name, comparison) for name, comparison in named(comparisons)]
    return {
        "version": __version__,
        "title": _title(comparisons),
        "subtitle": _subtitle(comparisons),
        "style": script(__package__, "template", "style.css"),
        "theme": script(__package__, "template", "theme.js"),
        "script": script(__package__, "template", "page.js"),
        "plotly": script("plotly", "package_data", "plotly.min.js"),
        "headline": headline(judged),
        "shown": SHOWN,
        "rows_shown": ROWS_SHOWN,
        "paid": [one for one in judged if one.outcome == "paid"],
        "decided": [one for one in judged if one.outcome != "undecided"],
        "undecided": [one for one in judged if one.outcome == "undecided"],
        "outcomes": OUTCOMES,
        "comparisons": each,
        "configured": [one for one in each if one["table"]["rows"]],
        "phases": [one for one in each if one["phases"]["rows"]],
    }


def _analysed(
    analyses: Sequence[Analysis],
    comparisons: Sequence[Comparison],
    files: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """What the page shows of the analyses."""
    figures = [one for one in analyses if isinstance(one, Figure)]
    strategy_of = _strategies(comparisons)
    pairs = [pair for figure in figures for pair in pairs_of(figure)]
    shared = looks(pair for pair in pairs if pair[0] in strategy_of)
    return {
        "grids": [_grid(one, files) for one in analyses if isinstance(one, Grid)],
        "figures": [
            _head(one, files)
            | {
                "open": one.name in OPEN and _panels(one) <= PANELS_SHOWN,
                "views": list(one.views),
                "choice": "x axis" if set(one.views) <= set(AXES) else "View",
                "data": Markup(chart_data(one, shared, strategy_of)),
            }
            for one in figures
        ],
        "galleries": [_gallery(one, files) for one in analyses if isinstance(one, Gallery)],
        "missing": [one for one in analyses if isinstance(one, Missing)],
        "strategies": list(dict.fromkeys(strategy_of.values())),
    }


def _panels(figure: Figure) -> int:
    return max(map(len, figure.views.values()))


def _strategies(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """The strategy, whatever its interval, of each strategy's name and each configuration's."""
    found = [one for comparison in comparisons for one in configurations(comparison)]
    return {one.family: one.family for one in found} | {one.label: one.family for one in found}


def _head(analysis: Figure | Grid | Gallery, files: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What is said of every analysis."""
    return {
        "name": analysis.name,
        "title": analysis.title,
        "sentence": analysis.sentence,
        "sentences": analysis.sentences,
        "source": analysis.source,
        "alt": analysis.alt,
        "csv": (f"{FIGURES}/{analysis.name}.csv", as_csv(analysis).encode()),
        "files": [file for file in files.get(analysis.name, []) if not file.endswith(".csv")],
    }


def _grid(grid: Grid, files: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    cells = [[shown(cell) for cell in row] for row in grid.rows]
    return _head(grid, files) | {
        "columns": grid.columns,
        "rows": cells,
        "worded": worded(cells),
    }


def _gallery(gallery: Gallery, files: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return _head(gallery, files) | {
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


def _comparison(name: str, comparison: Comparison) -> dict[str, Any]:
    seeds = sorted({run.seed for run in comparison.runs})
    return {
        "name": name,
        "setup": setup(comparison) if comparison.runs else "no finished run",
        "extent": f"{counted(len(comparison.runs), 'run')}, seeds {listed(seeds)}",
        "facts": list(_facts(comparison)),
        "raw": list(_raw(name, comparison).items()),
        "judged": comparison.metric.axis.capitalize(),
        # Table 1 has the same speed-ups, in time and in cost, with their range over the seeds.
        "table": _filled(
            f"{name}: every configuration",
            [
                {column: cell for column, cell in row.items() if not column.startswith("speed-up")}
                for row in rows(comparison)
            ],
        ),
        "phases": _filled(f"{name}: seconds by phase", phase_rows(comparison)),
    }


def _filled(title: str, table: Sequence[dict[str, str]]) -> dict[str, Any]:
    """A table of rows by column name, of which not every row has every column."""
    columns = columns_of(table)
    cells = [[row.get(column, "") for column in columns] for row in table]
    filled = {"title": title, "columns": columns, "rows": cells, "worded": worded(cells)}
    return filled | {"caption": ""}


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


def _raw(name: str, comparison: Comparison) -> dict[str, bytes]:
    """The raw numbers of a comparison, by their place beside the page."""
    stem = f"{DATA}/{name.replace('/', '-')}"
    return {
        f"{stem}-{SUMMARY}": (comparison.folder / SUMMARY).read_bytes(),
        f"{stem}-evaluations.csv": evaluations_csv(comparison).encode(),
    }


def _title(comparisons: Sequence[Comparison]) -> str:
    data = listed(run.data for comparison in comparisons for run in comparison.runs)
    return f"Selective training on {data}" if data else "Selective training"


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


def _interval(verdict: Verdict) -> str:
    if verdict.interval is None:
        return NOT_REACHED
    low, high = verdict.interval
    digits = verdict.metric.digits
    return f"{low:+.{digits}f} to {high:+.{digits}f}"


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value else NOT_REACHED
