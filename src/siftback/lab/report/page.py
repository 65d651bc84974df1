"""The report: an HTML page that needs no other file, and each figure beside it."""

import base64
import gzip
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from siftback import __version__
from siftback.lab.experiments.summary_table import measured, number_rows, phase_rows
from siftback.lab.figures.analyses import ANALYSES, analyse
from siftback.lab.figures.curves import AXES
from siftback.lab.figures.figure import Analysis, Figure, Gallery, Grid, Missing, Series
from siftback.lab.figures.reading import read
from siftback.lab.figures.styles import Styles, assign_styles
from siftback.lab.figures.titles import describe_extent
from siftback.lab.figures.writing import export_csv, format_rows, write_analysis
from siftback.lab.papers import RUNS, beside
from siftback.lab.recipes.recipe import comparisons_for
from siftback.lab.records.comparison_record import Comparison, named
from siftback.lab.records.folder import SUMMARY
from siftback.lab.records.formatting import NOT_REACHED, counted, fact, facts_line, listed
from siftback.lab.records.frame import in_order, machine_of, read_runs
from siftback.lab.records.tables import as_csv, tabulate
from siftback.lab.report.pages import BENCHMARKS, benchmarks_of, read_templates
from siftback.lab.report.verdict import RULE, headline, verdicts
from siftback.lab.strategies.table import library_name, strategy_name

PAGE = "index.html"
PAGE_MOST = 10_000_000  # bytes
# Of one file, compressed: above this many bytes a browser may refuse to save what a page carries.
CARRIED_MOST = 1_500_000
THUMBNAIL = 96  # pixels, the longer side
FIGURES = "figures"
DATA = "data"


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
    by_name = {folder: folder.resolve().name for folder in folders}
    comparisons, problems = read([path for path in folders if by_name[path] != BENCHMARKS])
    papers = [list(beside(path.resolve().parent)) for path in folders if by_name[path] == RUNS]
    benchmarks: list[dict[str, Any]] = []
    for path in (path for path in folders if by_name[path] == BENCHMARKS):
        tables, damaged = benchmarks_of(path)
        benchmarks += tables
        problems += damaged
    analyses = [analyse(comparisons_for(name, comparisons), [name])[name] for name in ANALYSES]
    page, files, limits = out, {}, [math.inf]
    if out.suffix != ".html":
        page, limits = out / PAGE, [CARRIED_MOST, 0]
        (out / DATA).mkdir(parents=True, exist_ok=True)
        for name, comparison in named(comparisons):
            for file, content in raw_files(name, comparison).items():
                (out / file).write_bytes(content)
        for analysis in analyses:
            paths = write_analysis(analysis, out / FIGURES)
            files[analysis.name] = [f"{FIGURES}/{path.name}" for path in paths]
    for carried_most in limits:
        text = render_page(
            comparisons, problems, analyses, files, carried_most, papers, benchmarks
        ).encode()
        if len(text) <= PAGE_MOST:
            break
    else:
        problems.append(f"{page.name} has {len(text) / 1e6:.1f} MB: report fewer comparisons")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_bytes(text)
    return page, problems


def render_page(
    comparisons: Sequence[Comparison],
    problems: Sequence[str],
    analyses: Sequence[Analysis],
    files: Mapping[str, Sequence[str]],
    carried_most: float = CARRIED_MOST,
    papers: Sequence[Sequence[dict[str, str]]] = (),
    benchmarks: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Renders the page.

    Args:
        comparisons: The records.
        problems: A line for each damaged record, which it leaves out.
        analyses: Its figures, tables and galleries.
        files: By an analysis' name, the files beside the page that show it too.
        carried_most: The bytes that a file of raw numbers may have, compressed, for the page to
            carry it; larger ones are linked beside the page.
        papers: Tables of the papers' numbers beside ours.
        benchmarks: Tables of benchmarks: ``title``, ``environment`` and ``rows``.
    """
    judged = verdicts(comparisons)
    described = [describe_comparison(name, comparison) for name, comparison in named(comparisons)]
    figures = [analysis for analysis in analyses if isinstance(analysis, Figure)]
    runs = [run for comparison in comparisons for run in in_order(comparison.runs)]
    strategies = {family: strategy_name(family) for family in {run.family: None for run in runs}}
    strategy_of = {key: run.family for run in runs for key in (run.family, run.label)}
    keys = (key for figure in figures for key in figure.keys)
    shared = assign_styles(key for key in keys if key[0] in strategy_of)
    pool: dict[str, int] = {}
    templates = read_templates(
        chart=lambda figure: Markup(chart_json(figure, shared, strategy_of, pool)),
        csv=lambda analysis: export_csv(analysis).encode(),
        facts=facts_line,
        format_rows=format_rows,
        in_rows=lambda pictures: groupby(pictures, lambda picture: picture.row),
        library_name=library_name,
        measured=measured,
        picture=picture_link,
        ratio=lambda value: f"{value:.2f}" if value else NOT_REACHED,
        tabulate=tabulate,
    )
    data = listed(run.data for comparison in comparisons for run in comparison.runs)
    return templates.get_template("page.html.j2").render(
        version=__version__,
        title=f"Selective training on {data}" if data else "Selective training",
        subtitle=describe_extent(comparisons),
        style=read_script(__package__, "template", "style.css"),
        theme=read_script(__package__, "template", "theme.js"),
        script=read_script(__package__, "template", "page.js"),
        plotly=read_script("plotly", "package_data", "plotly.min.js"),
        headline=headline(judged),
        verdicts=judged,
        rule=RULE,
        comparisons=described,
        grids=[analysis for analysis in analyses if isinstance(analysis, Grid)],
        figures=figures,
        pool=lambda: Markup(f"[{','.join(pool)}]"),  # once the figures are written
        galleries=[analysis for analysis in analyses if isinstance(analysis, Gallery)],
        missing=[analysis for analysis in analyses if isinstance(analysis, Missing)],
        axes=list(AXES),
        strategies=strategies,
        damaged=problems,
        link=partial(link_file, carried_most),
        files_of=files,
        figures_folder=FIGURES,
        papers=papers,
        benchmarks=benchmarks,
    )


def link_file(carried_most: float, path: str, content: bytes) -> dict[str, str]:
    """Links a file's content: in the page, compressed, if it is not too large for that."""
    name = Path(path).name
    # Without the time, so that the same content is the same address.
    carried = data_link(gzip.compress(content, mtime=0), "application/gzip")
    if len(carried) > carried_most:
        return {"href": path, "download": name}
    return {"href": carried, "download": f"{name}.gz"}


def describe_comparison(name: str, comparison: Comparison) -> dict[str, Any]:
    """Returns what the page says of a comparison beside its figures."""
    seeds = sorted({run.seed for run in comparison.runs})
    # Without speed-ups: table 1 has them, in time and in cost, with their range over the seeds.
    return {
        "name": name,
        "setup": comparison.setup if comparison.runs else "no finished run",
        "extent": f"{counted(len(comparison.runs), 'run')}, seeds {listed(seeds)}",
        "facts": list(list_facts(comparison)),
        "raw": list(raw_files(name, comparison).items()),
        "judged": comparison.metric.axis.capitalize(),
        "numbers": list(number_rows(comparison).values()),
        "phases": phase_rows(comparison),
    }


def list_facts(comparison: Comparison) -> Iterable[tuple[str, str]]:
    """Yields the settings, then where it ran and with which versions."""
    strategies = comparison.arguments.get("strategies", [])
    called = {"strategies": [strategy_name(entry.replace("@", " ")) for entry in strategies]}
    for name, value in (comparison.arguments | called | comparison.environment).items():
        if name != "arguments" and value not in (None, []):
            yield name.replace("_", " "), fact(value)
    runs = read_runs(comparison)
    machines = {label: machine_of(runs, label) for label in dict.fromkeys(runs.label)}
    if len(set(machines.values())) > 1:
        where = "; ".join(f"{library_name(label)} on {name}" for label, name in machines.items())
        yield "several machines, whose seconds do not compare", where


def raw_files(name: str, comparison: Comparison) -> dict[str, bytes]:
    """Returns the raw numbers of a comparison, by their path beside the page."""
    stem = f"{DATA}/{name.replace('/', '-')}"
    return {
        f"{stem}-{SUMMARY}": comparison.to_json().encode(),
        f"{stem}-evaluations.csv": evaluations_csv(comparison).encode(),
    }


def data_link(content: bytes, kind: str) -> str:
    """Writes content as an address that carries it.

    >>> data_link(b"a,b", "text/csv")
    'data:text/csv;base64,YSxi'
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def picture_link(image: NDArray[np.uint8]) -> str:
    """Writes an image, uint8 [H, W, C], as the address of a PNG of at most 96 pixels a side."""
    picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return data_link(file.getvalue(), "image/png")


def chart_json(
    figure: Figure, shared: Styles, strategy_of: Mapping[str, str], pool: dict[str, int]
) -> str:
    """Writes a figure's views as JSON that may stand within a script element.

    A series is five places in the pool: of its look, its x and y, and the ends of its spread.
    Views, and figures that differ in their first view, share most of them.

    Args:
        figure: The figure.
        shared: The styles of the series that figures of a page have in common.
        strategy_of: The strategy of a group or a label, which hides and shows its series.
        pool: Looks and columns of the page's figures, as JSON, with their places; gets new ones.
    """
    styles = assign_styles(key for key in figure.keys if key not in shared) | dict(shared)

    def pooled(series: Series) -> list[int]:
        group, label = series.key
        look = {"label": label, "faint": series.faint} | styles[series.key]._asdict()
        look["strategy"] = strategy_of.get(group, strategy_of.get(label))
        columns = (series.x, series.y, series.low, series.high)
        rounded = ([round_value(value) for value in column] for column in columns)
        return [pool.setdefault(script_json(value), len(pool)) for value in (look, *rounded)]

    views = {
        view: [
            {name: value for name, value in vars(panel).items() if name != "series"}
            | {"series": [pooled(series) for series in panel.series]}
            for panel in panels
        ]
        for view, panels in figure.views.items()
    }
    return script_json(views)


def script_json(value: Any) -> str:
    """Writes a value as JSON that may stand within a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def round_value(value: str | float) -> str | float | None:
    """Rounds to five digits, as many as a screen shows; None if not finite."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def evaluations_csv(comparison: Comparison) -> str:
    """Writes each evaluation of a comparison as a line, with the run's configuration and seed."""
    lines = []
    for run in comparison.runs:
        about = {"configuration": run.label, "seed": run.seed, "data": run.data, "model": run.model}
        for evaluation in comparison.evaluations(run):
            fields = asdict(evaluation)
            phases = fields.pop("phases")
            lines.append(about | fields | {f"seconds_{name}": phases[name] for name in phases})
    return as_csv(lines)


def read_script(package: str, *path: str) -> Markup:
    """Reads a script or style sheet of an installed package, as it may stand within its element."""
    text = files(package).joinpath(*path).read_text(encoding="utf-8")
    return Markup(text.replace("</script", "<\\/script"))
