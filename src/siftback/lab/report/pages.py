"""The pages of results, of measurements, and of the map of where selection pays.

All of their numbers come from the summaries and the records in the repository. They are for a
person to read: that of results says what selection pays, what wrong labels cost, what paid, and
why; that of measurements has what this rests on: rare classes, benchmarks, learning rates and
settings; the map is to find one's own case on, beside the default's worst cases. The report
(:mod:`siftback.lab.report.page`) has the rest.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from siftback.errors import ConfigError
from siftback.lab.figures import pays
from siftback.lab.figures.analyses import ANALYSES, join_findings
from siftback.lab.figures.budget import noisy_ends, with_wrong_labels
from siftback.lab.figures.drawing import render
from siftback.lab.figures.figure import Figure, Grid
from siftback.lab.figures.reading import read
from siftback.lab.figures.styles import FLAT
from siftback.lab.figures.titles import PLAN, describe_extent
from siftback.lab.figures.writing import format_rows
from siftback.lab.recipes.recipe import find_recipe
from siftback.lab.records import frame
from siftback.lab.records.comparison_record import Comparison, named
from siftback.lab.records.folder import UNREADABLE, comparison_folders, is_comparison
from siftback.lab.records.formatting import NOT_REACHED, counted, facts_line, listed
from siftback.lab.records.tables import markdown, pivot
from siftback.lab.report.verdict import RULE, Verdict, describe_remaining, headline, verdicts
from siftback.lab.strategies.table import library_name

BUDGET = 4.0
"""In epochs: at which most methods were measured, and the seconds of their steps."""

BENCHMARKS = "benchmarks"
MAP = "map"
RARE = "rare"
TUNING = "tuning"
PICTURE = "map.svg"

# Of the settings that all tuning shares, those that the page has.
_SHARED = ("data", "model", "width", "budget", "epochs", "batch_size", "train_limit", "validation")
# Benchmarks of which the page has all measurements, beside how often their goals were met.
_IN_FULL = ("gpu.json", "reading.json", "seconds.json", "step.json")


def write_page(results: Path, page: Path) -> tuple[list[Comparison], list[pays.MethodRatio]]:
    """Writes the page.

    What cannot be read is named at the end of the page, and the rest is made.

    Args:
        results: Holds comparisons at any depth; those of ``rare/`` have a table of their own, and
            ``benchmarks/``, ``map/`` and ``tuning/`` are no part of the page.
        page: The Markdown file to write; its links are relative to its folder.

    Returns:
        The comparisons that it was made of, and their budget ratios.

    Raises:
        ConfigError: If there is no such folder.
    """
    if not results.is_dir():
        raise ConfigError(f"{results} is not a folder: give one that holds comparisons")
    comparisons, damaged = comparisons_of(results)
    others = without_tables(comparisons)
    separate = [item for item in comparisons if item not in others]
    of_others = verdicts(others)
    judged = [verdict for verdict in of_others if verdict.compared]
    main, compared = main_verdicts(judged), {verdict.comparison for verdict in judged}
    measured = pays.experiments(comparisons)
    methods = with_seconds(pays.method_ratios(measured), results / BENCHMARKS)
    write_from_template(
        "results.md.j2",
        results,
        page,
        ratios=join_findings("pays", pays.ratio_findings(measured, methods)),
        several_budgets=list(_several_budgets(methods)),
        single_budgets=_single_budgets(methods),
        wrong_labels=list(_by_method(noisy_ends(comparisons))),
        judged=judged,
        headline=headline(judged),
        remaining_of_all=describe_remaining([*of_others, *verdicts(separate)]) if separate else "",
        by_outcome=_by_outcome(main),
        rule=RULE,
        extent=describe_extent([item for name, item in named(others) if name in compared]),
        damaged=damaged,
    )
    return comparisons, methods


def write_from_template(template: str, results: Path, page: Path, **values: Any) -> None:
    """Writes a page about a folder of results.

    Args:
        template: Name of its template.
        results: The folder, whose name and address from the page the template has.
        page: The Markdown file to write.
        values: What else it has.
    """
    link = f"{quote(Path(os.path.relpath(results, page.parent)).as_posix())}/"
    templates = read_templates(counted=counted, markdown=markdown, tally=frame.tally)
    text = templates.get_template(template).render(name=results.name, link=link, **values)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def read_templates(**filters: Callable[..., Any]) -> Environment:
    """Returns the pages' templates; that of HTML escapes whatever records say.

    Args:
        filters: Functions that they use, by name.
    """
    environment = Environment(
        loader=PackageLoader(__package__, "template"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment


def written(label: str) -> str:
    """Returns a configuration as a page has it: the library's call as code, or its label.

    >>> written("sb-memory-default 0.5"), written("rho 0.5")
    ('`Memory()`', 'rho 0.5')
    """
    name = library_name(label)
    return f"`{name}`" if name.endswith(")") else name


def comparisons_of(results: Path) -> tuple[list[Comparison], list[str]]:
    """Returns the comparisons under a folder of results that were judged on a test set.

    Args:
        results: As for `write_page`.

    Returns:
        They, and what is damaged, a line each.
    """
    apart = BENCHMARKS, MAP, RARE, TUNING
    return read_within(folder for folder in results.iterdir() if folder.name not in apart)


def read_within(folders: Iterable[Path]) -> tuple[list[Comparison], list[str]]:
    """Returns the comparisons in folders, of which some may hold none, and what is damaged."""
    holding = [folder for folder in sorted(folders) if comparison_folders(folder)]
    return read(holding) if holding else ([], [])


def without_tables(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons that have no table of their own, of budgets or of wrong labels."""
    separate = (*chain(*pays.with_curve(comparisons)), *with_wrong_labels(comparisons))
    return [item for item in comparisons if not any(item is other for other in separate)]


def main_verdicts(judged: Sequence[Verdict]) -> list[Verdict]:
    """Returns one verdict for each strategy on each data set, in the order given.

    That is of its longest training: the comparison of the largest budget. Of several shares kept
    there, it is the one nearest one half.

    Args:
        judged: Verdicts with a baseline.
    """
    longest: dict[str, float] = {}
    for verdict in judged:
        longest[verdict.comparison] = max(verdict.cost, longest.get(verdict.comparison, 0.0))
    # A stable sort, so that of equals the first stays.
    ranked = sorted(judged, key=lambda item: (-longest[item.comparison], abs(item.keep - 0.5)))
    main = {(verdict.data, verdict.strategy): verdict for verdict in reversed(ranked)}
    return [verdict for verdict in judged if verdict is main[verdict.data, verdict.strategy]]


def _several_budgets(methods: Sequence[pays.MethodRatio]) -> Iterator[dict[str, str]]:
    """Lays out the ratios of methods at several budgets: a row for each method and experiment."""
    blank = {f"{at:g} epochs": "" for at in sorted({method.budget for method in methods})}
    for (data, label), group in groupby(methods, lambda end: (end.experiment.title, end.label)):
        ends = list(group)
        spent = [f"{end.epochs:.2f}" for end in sorted(ends, key=lambda end: end.epochs)]
        cells = {f"{end.budget:g} epochs": _with_interval(end) for end in ends}
        if len(ends) > 1:
            row = {"data and model": data, "method": written(label)}
            row |= {"seeds": listed(end.ratio.seeds for end in ends)} | blank | cells
            yield row | {"epochs over budget": " to ".join(dict.fromkeys((spent[0], spent[-1])))}


def _single_budgets(methods: Sequence[pays.MethodRatio]) -> list[dict[str, str]]:
    """Lays out the ratios of methods at a single budget: a column for each method."""
    counts = Counter((method.experiment.title, method.label) for method in methods)
    return pivot(
        (
            {"data and model": f"{end.experiment.title}, {end.budget:g} epochs"},
            written(end.label),
            _with_interval(end),
        )
        for end in methods
        if counts[end.experiment.title, end.label] == 1
    )


def _with_interval(end: pays.MethodRatio) -> str:
    seconds = "" if end.in_seconds == NOT_REACHED else f", {end.in_seconds} in seconds"
    return end.words if end.ratio.flat else f"{end.words} ({end.ratio.interval}){seconds}"


def with_seconds(methods: Sequence[pays.MethodRatio], folder: Path) -> list[pays.MethodRatio]:
    """Returns ratios with the seconds of steps that ``benchmarks/seconds.py`` measured.

    Args:
        methods: The ratios.
        folder: Holds the records of the benchmarks.
    """
    rows = rows_of(folder, "Seconds of a step")
    seconds = {(row["setting"], row["what"], BUDGET): row["measured"] for row in rows}
    keys = ((end.experiment.title, library_name(end.label), end.budget) for end in methods)
    return [end._replace(seconds=seconds.get(key)) for end, key in zip(methods, keys, strict=True)]


def _by_method(noisy: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Lays out ends with wrong labels: a row for each share of them, a column for each method."""
    blank = {written(end["label"]): "" for end in noisy}
    for (data, wrong), group in groupby(noisy, itemgetter("task", "wrong")):
        ends = list(group)
        row = {"data and model": data, "wrong labels": f"{wrong:.0%}"}
        row |= {"seeds": str(ends[0]["seeds"]), "plain training": ends[0]["baseline"]} | blank
        for end in ends:
            name, within = written(end["label"]), frame.signed_interval(*end["interval"])
            row[name] = f"{end['difference']:+.2f}" + (f" ({within})" if within else "")
            rates = [f"{end[rate]:.2f}" for rate in ("precision", "recall") if end[rate] >= 0]
            if end["guarded"]:
                row[f"precision / recall of {name}"] = " / ".join(rates)
        yield row


def _by_outcome(main: Sequence[Verdict]) -> dict[str, dict[str, str]]:
    """Lists the strategies of each data set by their verdicts, with the differences."""
    lists: dict[str, dict[str, str]] = {}
    for data in dict.fromkeys(verdict.data for verdict in main):
        of_data = [verdict for verdict in main if verdict.data == data]
        lists[data] = {
            outcome: ", ".join(f"{written(item.label)} {item.points}" for item in group)
            for outcome, group in groupby(of_data, lambda verdict: verdict.outcome)
        }
    return lists


def write_measurements(results: Path, page: Path) -> None:
    """Writes the page.

    Args:
        results: Holds comparisons of rare classes in ``rare/``; ``benchmarks/*.json``; and in
            ``tuning/`` comparisons that settings were chosen by, those of learning rates in a
            folder of their own.
        page: The Markdown file to write; its links are relative to its folder.
    """
    benchmarks, damaged_benchmarks = benchmarks_of(results / BENCHMARKS)
    at_rates, damaged_rates = read_within(
        path for path in (results / TUNING).glob("*") if not is_comparison(path)
    )
    of_rare, damaged_rare = read_within([results / RARE])
    rare = format_rows(ANALYSES["rare"](of_rare))
    shared, tuned, damaged_tuning = _tuning(results / TUNING)
    write_from_template(
        "measurements.md.j2",
        results,
        page,
        goals=_goals,
        rare=[row | {"method": written(row["method"])} for row in rare],
        damaged_rare=damaged_rare,
        benchmarks=[item for item in benchmarks if any(row["goal"] for row in item["rows"])],
        damaged_benchmarks=damaged_benchmarks,
        in_full=[_in_full(item) for item in benchmarks if item["file"] in _IN_FULL],
        rates=_by_rule(format_rows(ANALYSES["rates"](at_rates))),
        damaged_rates=damaged_rates,
        shared=facts_line(shared),
        tuned=tuned,
        damaged_tuning=damaged_tuning,
    )


def benchmarks_of(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the records of the benchmarks, in the order of their files' names.

    Args:
        folder: Holds a JSON file for each.

    Returns:
        Each one's ``title``, ``environment``, ``rows`` and ``file``; what is damaged, a line each.
    """
    benchmarks, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            keys = ("setting", "what", "measured", "goal", "met")
            rows = [{key: row[key] for key in keys} for row in record["rows"]]
            about = {"title": str(record["title"]), "file": path.name, "rows": rows}
            benchmarks.append(about | {"environment": dict(record.get("environment") or {})})
        except UNREADABLE as error:
            problems.append(f"{path.name} is damaged, and left out ({type(error).__name__})")
    return benchmarks, problems


def rows_of(folder: Path, title: str, *names: str) -> list[dict[str, Any]]:
    """Returns the rows of some names of the benchmarks whose titles begin so.

    Args:
        folder: Holds a JSON file for each benchmark.
        title: What their titles begin with.
        names: Of the rows: what they measure; all without any.
    """
    titled = [record for record in benchmarks_of(folder)[0] if record["title"].startswith(title)]
    return [row for record in titled for row in record["rows"] if row["what"] in names or not names]


def _by_rule(rates: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Lays out learning rates: a row for each experiment, a column for each method."""
    return pivot(
        ({"data and model": title, "seeds": seeds}, written(method), f"{ends}; lowest at {rate}")
        for title, method, seeds, ends, rate in (row.values() for row in rates)
    )


def _in_full(benchmark: Mapping[str, Any]) -> tuple[str, str, list[dict[str, str]]]:
    """Returns a benchmark's title, where it ran, and its measurements, a row for each setting."""
    cells = (
        ({"setting": row["setting"]}, row["what"], f"{row['measured']:.3g}")
        for row in benchmark["rows"]
    )
    environment = benchmark["environment"]
    facts = {name: environment[name] for name in ("device", "cpu", "torch") if name in environment}
    return benchmark["title"], facts_line(facts), pivot(cells)


def _goals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says what is asked of a benchmark, and how often that was met."""
    goals = pd.DataFrame([row for row in rows if row["goal"]])
    if len(goals[["what", "goal"]].drop_duplicates()) > 5:  # too many to name each
        goals["what"] = "the ratios"
    texts = []
    for (what, goal), group in goals.groupby(["what", "goal"], sort=False):
        ends = (group.measured.min(), group.measured.max())
        span = dict.fromkeys(f"{end:,.0f}" if end >= 100 else f"{end:.2g}" for end in ends)
        met = group.met.astype(bool).sum()
        texts.append(f"{what} {' to '.join(span)}, {goal} in {met} of {len(group)}")
    return "; ".join(texts)


def _tuning(folder: Path) -> tuple[dict[str, Any], list[dict[str, str]], list[str]]:
    """Lays out comparisons on held-out examples, that differ in settings, as one table.

    Returns:
        Of the settings that all share those that the page has; a row for each configuration with
        the settings that are its own; and what is damaged, a line each.
    """
    comparisons, problems = read_within(filter(is_comparison, folder.glob("*")))
    settings = [comparison.arguments for comparison in comparisons]
    shared = {
        name: value
        for name, value in (settings[0] if settings else {}).items()
        if name not in PLAN and all(other.get(name) == value for other in settings)
    }
    errors = all(comparison.metric.name == "error" for comparison in comparisons)
    judged = "error on held-out examples, %" if errors else "error, %, or loss, held-out examples"
    rows = []
    for comparison, arguments in zip(comparisons, settings, strict=True):
        differing = {k: v for k, v in arguments.items() if k not in shared and k not in PLAN}
        for label, runs in frame.read_runs(comparison).groupby("label", sort=False):
            row = {
                "comparison": comparison.folder.name,
                "strategy": written(label),
                "settings": facts_line(differing) or NOT_REACHED,
                judged: f"{frame.mean_and_spread(runs.final):.{comparison.metric.digits}f}",
                "cost in forwards": f"{runs.cost_forward_units.mean():,.0f}",
                "seeds": listed(sorted(runs.seed)),
            }
            rows.append(row)
    return {name: shared[name] for name in _SHARED if name in shared}, rows, problems


def write_map(results: Path, page: Path, elsewhere: Sequence[pays.MethodRatio]) -> list[Path]:
    """Writes the page, and its picture beside it where there is enough for one.

    Args:
        results: Holds comparisons at any depth, those of the recipe under ``map/``.
        page: The Markdown file to write; its links are relative to its folder.
        elsewhere: The budget ratios of the other comparisons.

    Returns:
        The files.
    """
    of_map, damaged = read_within([results / MAP])
    # The bootstrap of each ratio takes a while: all parts of the page are made of the same ones.
    on_map = pays.method_ratios(pays.experiments(of_map))
    methods = sorted([*on_map, *elsewhere], key=lambda method: method.experiment.title)
    worst = join_findings("worst", pays.worst_findings(methods))
    cases = pays.group_for_map(methods).get(pays.DEFAULT_LABEL, ())
    joined = join_findings("map", pays.map_findings(pays.DEFAULT_LABEL, cases))
    figure = joined if isinstance(joined, Figure) else None
    write_from_template(
        "map.md.j2",
        results,
        page,
        note=find_recipe(MAP).note,
        picture=PICTURE,
        figure=figure,
        of_map=by_budget(pays.default_ratios(on_map)),
        machines=listed(sorted(name for case in on_map for name in case.experiment.runs.machine)),
        of_others=by_budget(pays.default_ratios(elsewhere)),
        forecasts=forecasts_of(results / BENCHMARKS),
        worst=worst.sentences if isinstance(worst, Grid) else [],
        worst_rows=format_rows(worst),
        damaged=damaged,
    )
    if not figure:
        return [page]
    picture, side_by_side = page.with_name(PICTURE), [*chain(*figure.views.values())]
    picture.write_bytes(render(replace(figure, views={"both": side_by_side}), "svg"))
    return [page, picture]


def by_budget(cases: Sequence[pays.MethodRatio]) -> list[dict[str, str]]:
    """Lays out ratios: a row for each experiment, a column for each budget.

    A cell has the ratio, and in parentheses where plain training of that budget ends.
    """

    def cell(case: pays.MethodRatio) -> str:
        words = FLAT if case.ratio.flat and case.outcome == "undecided" else case.words
        return f"{words} ({case.plain_end})" if case.plain_end else words

    rows = pivot(
        ({"model and data": case.experiment.title}, f"{case.budget:g} epochs", cell(case))
        for case in sorted(cases, key=lambda case: case.budget)  # so that columns are in order
    )
    sizes = {case.experiment.title: case.experiment.examples or 0 for case in cases}
    titles = sorted(sizes, key=lambda title: (title.partition(",")[2], sizes[title], title))
    return sorted(rows, key=lambda row: titles.index(row["model and data"]))


def forecasts_of(folder: Path) -> list[dict[str, str]]:
    """Lays out the forecasts of `benchmarks/forecast.py` and what was measured over each.

    Args:
        folder: Holds the records of the benchmarks.
    """
    return pivot(
        (
            {"model, data and budget": row["setting"]},
            row["what"],
            f"**{row['measured']:.2f}**" if row["met"] is False else f"{row['measured']:.2f}",
        )
        for row in rows_of(folder, "Forecasts", "forecast", "measured over forecast")
    )
