"""The page of results: what paid, what that rests on, the papers' numbers and the benchmarks.

All of its numbers come from the summaries, the records and the benchmarks' outputs in the
repository. It is for a person to read: the report (:mod:`siftback.lab.report.page`) has the rest.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from siftback.errors import ConfigError
from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.figure import Grid
from siftback.lab.figures.noise import NoisyEnd, noisy_ends, with_wrong_labels
from siftback.lab.figures.pays import MethodRatio, experiments, method_ratios, on_curves
from siftback.lab.figures.reading import read
from siftback.lab.figures.titles import describe_extent
from siftback.lab.figures.writing import format_rows
from siftback.lab.papers import RUNS, short
from siftback.lab.records.comparison_record import SUMMARY, UNREADABLE, Comparison
from siftback.lab.records.formatting import NOT_REACHED, counted, facts_line, listed
from siftback.lab.records.frame import mean_and_spread, read_runs, tally
from siftback.lab.records.summary_table import suspected
from siftback.lab.records.tables import markdown, pivot
from siftback.lab.report.embedding import read_templates
from siftback.lab.report.verdict import (
    RULE,
    Verdict,
    describe_remaining,
    difference_of,
    headline,
    named,
    verdicts,
)

BENCHMARKS = "benchmarks"
RARE = "rare"
TUNING = "tuning"

# Of the settings that all tuning shares, those that the page has.
_SHARED = ("data", "model", "width", "budget", "epochs", "batch_size", "train_limit", "validation")
# What a row of tuning says in columns of its own.
_PLAN = ("strategies", "keeps", "seeds", "matched")


def write_page(results: Path, page: Path) -> Sequence[Comparison]:
    """Writes the page.

    What cannot be read is named at the end of the page, and the rest is made.

    Args:
        results: Holds comparisons at any depth; ``benchmarks/*.json``; under ``recipes/`` the runs
            of the papers' recipes, and under ``tuning/`` comparisons that settings were chosen by,
            those of learning rates in a folder of their own; and under ``rare/`` those of rare
            classes, which are no part of the other tables.
        page: The Markdown file to write; its links are relative to its folder.

    Returns:
        The comparisons that it was made of.

    Raises:
        ConfigError: If there is no such folder.
    """
    if not results.is_dir():
        raise ConfigError(f"{results} is not a folder: give one that holds comparisons")
    comparisons, damaged = comparisons_of(results)
    others = without_tables(comparisons)
    judged = [verdict for verdict in verdicts(others) if verdict.compared]
    everything = verdicts(comparisons)
    main, compared = main_verdicts(judged), {verdict.comparison for verdict in judged}
    methods = method_ratios(experiments(comparisons))
    benchmarks, damaged_benchmarks = benchmarks_of(results / BENCHMARKS)
    at_rates, damaged_rates = _read_within(
        path for path in (results / TUNING).glob("*") if not (path / SUMMARY).is_file()
    )
    rates = ANALYSES["rates"](at_rates)
    of_rare, damaged_rare = _read_within([results / RARE])
    rare = ANALYSES["rare"](of_rare)
    shared, tuned, damaged_tuning = _tuning(results / TUNING)
    templates = read_templates(markdown=markdown, counted=counted, goals=_goals, tally=tally)
    text = templates.get_template("results.md.j2").render(
        name=results.name,
        link=f"{quote(Path(os.path.relpath(results, page.parent)).as_posix())}/",
        ratios=ANALYSES["pays"](comparisons),
        several_budgets=_several_budgets(methods),
        single_budgets=_single_budgets(methods),
        wrong_labels=_by_method(noisy_ends(comparisons)),
        judged=judged,
        headline=headline(judged),
        remaining_of_all=describe_remaining(everything) if others != comparisons else "",
        by_outcome=_by_outcome(main),
        rule=RULE,
        extent=describe_extent([item for name, item in named(others) if name in compared]),
        papers=short(results) if (results / RUNS).is_dir() else [],
        benchmarks=benchmarks,
        damaged_benchmarks=damaged_benchmarks,
        rates=_by_rule(rates) if isinstance(rates, Grid) else [],
        damaged_rates=damaged_rates,
        rare=format_rows(rare) if isinstance(rare, Grid) else [],
        damaged_rare=damaged_rare,
        shared=facts_line(shared),
        tuned=tuned,
        damaged_tuning=damaged_tuning,
        damaged=damaged,
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return comparisons


def comparisons_of(results: Path) -> tuple[list[Comparison], list[str]]:
    """Returns the comparisons under a folder of results that were judged on a test set.

    Args:
        results: As for `write_page`.

    Returns:
        They, and what is damaged, a line each.
    """
    return _read_within(
        folder for folder in results.iterdir() if folder.name not in (BENCHMARKS, RARE, TUNING)
    )


def _read_within(folders: Iterable[Path]) -> tuple[list[Comparison], list[str]]:
    """The comparisons in folders, of which some may hold none, and what is damaged."""
    holding = [folder for folder in sorted(folders) if any(folder.rglob(SUMMARY))]
    return read(holding) if holding else ([], [])


def without_tables(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons that have no table of their own, of budgets or of wrong labels."""
    separate = (*on_curves(comparisons), *with_wrong_labels(comparisons))
    return [item for item in comparisons if not any(item is other for other in separate)]


def benchmarks_of(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the records of the benchmarks, in the order of their files' names.

    Args:
        folder: Holds a JSON file for each.

    Returns:
        Each one's ``title``, ``environment`` and ``rows``, and what is damaged, a line each.
    """
    benchmarks, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            rows = [
                {key: row[key] for key in ("setting", "what", "measured", "goal", "met")}
                for row in record["rows"]
            ]
            benchmarks.append(
                {
                    "title": str(record["title"]),
                    "environment": dict(record.get("environment") or {}),
                    "rows": rows,
                }
            )
        except UNREADABLE as error:
            problems.append(f"{path.name} is damaged, and left out ({type(error).__name__})")
    return benchmarks, problems


def main_verdicts(judged: Sequence[Verdict]) -> list[Verdict]:
    """Returns one verdict for each strategy on each data set, in the order given.

    That is of its longest training: the comparison of the largest budget. Of several shares kept
    there, it is the one nearest one half.

    Args:
        judged: Verdicts with a baseline.
    """
    table = pd.DataFrame(
        [
            (verdict.data, verdict.strategy, verdict.comparison, abs(verdict.keep - 0.5))
            for verdict in judged
        ],
        columns=["data", "strategy", "comparison", "from_half"],
    )
    table["cost"] = [verdict.budget.cost if verdict.budget else 0.0 for verdict in judged]
    table["longest"] = table.groupby("comparison").cost.transform("max")
    # A stable sort, so that of equals the first stays.
    ranked = table.sort_values(["longest", "from_half"], ascending=[False, True], kind="stable")
    first = ranked.drop_duplicates(["data", "strategy"]).index
    return [judged[number] for number in sorted(first)]


def _several_budgets(methods: Sequence[MethodRatio]) -> list[dict[str, str]]:
    """Lays out the ratios of methods at several budgets: a row for each method and experiment."""
    budgets = sorted({method.budget for method in methods})
    rows = []
    for (data, label), group in groupby(methods, lambda end: (end.experiment.title, end.label)):
        ends = list(group)
        spent = [f"{end.epochs:.2f}" for end in sorted(ends, key=lambda end: end.epochs)]
        cells = {f"{end.budget:g} epochs": _with_interval(end) for end in ends}
        if len(ends) > 1:
            rows.append(
                {"data and model": data, "method": label}
                | {"seeds": listed(end.ratio.seeds for end in ends)}
                | {name: cells.get(name, "") for name in (f"{at:g} epochs" for at in budgets)}
                | {"epochs over budget": " to ".join(dict.fromkeys((spent[0], spent[-1])))}
            )
    return rows


def _single_budgets(methods: Sequence[MethodRatio]) -> list[dict[str, str]]:
    """Lays out the ratios of methods at a single budget: a column for each method."""
    counts = Counter((method.experiment.title, method.label) for method in methods)
    return pivot(
        (
            {"data and model": f"{end.experiment.title}, {end.budget:g} epochs"},
            end.label,
            _with_interval(end),
        )
        for end in methods
        if counts[end.experiment.title, end.label] == 1
    )


def _with_interval(end: MethodRatio) -> str:
    return end.words if end.ratio.flat else f"{end.words} ({end.ratio.interval})"


def _by_method(noisy: Sequence[NoisyEnd]) -> list[dict[str, str]]:
    """Lays out ends with wrong labels: a row for each share of them, a column for each method."""
    blank = {end.label: "" for end in noisy}
    rows = []
    for (data, wrong), group in groupby(noisy, lambda end: (end.task, end.wrong)):
        ends = list(group)
        row = {"data and model": data, "wrong labels": f"{wrong:.0%}", "seeds": str(ends[0].seeds)}
        row |= {"Traditional": ends[0].metric.written(ends[0].baseline)} | blank
        for end in ends:
            row[end.label] = f"{end.difference:+.2f}{end.interval and f' ({end.interval})'}"
            rates = [f"{rate:.2f}" for rate in (end.precision, end.recall) if not math.isnan(rate)]
            if end.guarded:
                row[f"precision / recall of {end.label}"] = " / ".join(rates)
        rows.append(row)
    return rows


def _by_outcome(main: Sequence[Verdict]) -> dict[str, dict[str, str]]:
    """Lists the strategies of each data set by their verdicts, with the differences."""
    lists: dict[str, dict[str, str]] = {}
    for data in dict.fromkeys(verdict.data for verdict in main):
        of_data = [verdict for verdict in main if verdict.data == data]
        lists[data] = {
            outcome: ", ".join(f"{item.strategy} {difference_of(item)}" for item in group)
            for outcome, group in groupby(of_data, lambda verdict: verdict.outcome)
        }
    return lists


def _by_rule(rates: Grid) -> list[dict[str, str]]:
    """Lays out learning rates: a row for each experiment, a column for each method."""
    return pivot(
        (
            {"data and model": row["data and model"], "seeds": row["seeds"]},
            row["method"],
            f"{row['error or loss at each rate']}; lowest at {row['lowest at']}",
        )
        for row in format_rows(rates)
    )


def _goals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says what is asked of a benchmark, and how often that was met."""
    goals = pd.DataFrame([row for row in rows if row["goal"]])
    if goals.empty:
        return f"{counted(len(rows), 'number')} without a goal, in the report"
    if len(goals[["what", "goal"]].drop_duplicates()) > 4:  # too many to name each
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
    comparisons, settings, problems = [], [], []
    for summary in sorted(folder.glob(f"*/{SUMMARY}")):
        try:
            comparison = Comparison.read(summary.parent)
            settings.append(dict(comparison.environment["arguments"]))
            comparisons.append(comparison)
        except UNREADABLE as error:
            name = f"{folder.name}/{summary.parent.name}"
            problems.append(f"{name} is damaged, and left out ({type(error).__name__})")
    shared = {
        name: value
        for name, value in (settings[0] if settings else {}).items()
        if name not in _PLAN and all(other.get(name) == value for other in settings)
    }
    errors = all(comparison.metric.name == "error" for comparison in comparisons)
    judged = "error on held-out examples, %" if errors else "error, %, or loss, held-out examples"
    rows = []
    for comparison, arguments in zip(comparisons, settings, strict=True):
        differing = {k: v for k, v in arguments.items() if k not in shared and k not in _PLAN}
        for label, runs in read_runs(comparison).groupby("label", sort=False):
            row = {
                "comparison": comparison.folder.name,
                "strategy": label,
                "settings": facts_line(differing) or NOT_REACHED,
                judged: f"{mean_and_spread(runs.final):.{comparison.metric.digits}f}",
                "cost in forwards": f"{runs.cost_forward_units.mean():,.0f}",
                "seeds": listed(sorted(runs.seed)),
            }
            rows.append(row | suspected(runs))
    return {name: shared[name] for name in _SHARED if name in shared}, rows, problems
