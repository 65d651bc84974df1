"""The page of results: what selection pays, what wrong labels cost, what paid, and why.

All of its numbers come from the summaries and the records in the repository. It is for a person to
read: :mod:`siftback.lab.report.measurements_page` and the report (:mod:`siftback.lab.report.page`)
have the rest.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from siftback.errors import ConfigError
from siftback.lab.figures import pays
from siftback.lab.figures.analyses import join_findings
from siftback.lab.figures.budget import noisy_ends, with_wrong_labels
from siftback.lab.figures.reading import read
from siftback.lab.figures.titles import describe_extent
from siftback.lab.records.comparison_record import Comparison, named
from siftback.lab.records.folder import comparison_folders
from siftback.lab.records.formatting import counted, listed
from siftback.lab.records.frame import signed_interval, tally
from siftback.lab.records.tables import markdown, pivot
from siftback.lab.report.verdict import (
    RULE,
    Verdict,
    describe_remaining,
    difference_of,
    headline,
    verdicts,
)
from siftback.lab.strategies.table import library_name

BENCHMARKS = "benchmarks"
MAP = "map"
RARE = "rare"
TUNING = "tuning"


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
    methods = pays.method_ratios(measured)
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
    templates = read_templates(counted=counted, markdown=markdown, tally=tally)
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
    return read_within(
        folder for folder in results.iterdir() if folder.name not in (BENCHMARKS, MAP, RARE, TUNING)
    )


def read_within(folders: Iterable[Path]) -> tuple[list[Comparison], list[str]]:
    """Returns the comparisons in folders, of which some may hold none, and what is damaged."""
    holding = [folder for folder in sorted(folders) if comparison_folders(folder)]
    return read(holding) if holding else ([], [])


def without_tables(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons that have no table of their own, of budgets or of wrong labels."""
    separate = (*pays.on_curves(comparisons), *with_wrong_labels(comparisons))
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
    budgets = sorted({method.budget for method in methods})
    for (data, label), group in groupby(methods, lambda end: (end.experiment.title, end.label)):
        ends = list(group)
        spent = [f"{end.epochs:.2f}" for end in sorted(ends, key=lambda end: end.epochs)]
        cells = {f"{end.budget:g} epochs": _with_interval(end) for end in ends}
        if len(ends) > 1:
            yield (
                {"data and model": data, "method": written(label)}
                | {"seeds": listed(end.ratio.seeds for end in ends)}
                | {name: cells.get(name, "") for name in (f"{at:g} epochs" for at in budgets)}
                | {"epochs over budget": " to ".join(dict.fromkeys((spent[0], spent[-1])))}
            )


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
    return end.words if end.ratio.flat else f"{end.words} ({end.ratio.interval})"


def _by_method(noisy: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Lays out ends with wrong labels: a row for each share of them, a column for each method."""
    blank = {written(end["label"]): "" for end in noisy}
    for (data, wrong), group in groupby(noisy, itemgetter("task", "wrong")):
        ends = list(group)
        row = {"data and model": data, "wrong labels": f"{wrong:.0%}"}
        row |= {"seeds": str(ends[0]["seeds"]), "plain training": ends[0]["baseline"]} | blank
        for end in ends:
            name, within = written(end["label"]), signed_interval(*end["interval"])
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
            outcome: ", ".join(f"{written(item.label)} {difference_of(item)}" for item in group)
            for outcome, group in groupby(of_data, lambda verdict: verdict.outcome)
        }
    return lists
