"""The verdict on each strategy, from the records: the numbers of the page of results."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siftback.lab.figures.budget import noisy_ends
from siftback.lab.figures.pays import MethodRatio, experiments, method_ratios
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import OUTCOMES, signed_interval
from siftback.lab.records.tables import markdown
from siftback.lab.report.pages import (
    comparisons_of,
    main_verdicts,
    without_tables,
    written,
)
from siftback.lab.report.verdict import Verdict, verdicts
from siftback.lab.strategies.table import strategy_name

RESULTS = Path(__file__).parents[2] / "results"
PAGE = "results.md"
DEFAULT = "sb-memory-default"  # `Memory()`, as the laboratory calls it


def tables(names: Sequence[str]) -> str:
    """Writes verdicts on strategies: beside plain training of the same cost, and in budgets."""
    parts = []
    if rows := _differences(names):
        parts.append(
            "Final test error, or loss in nats, less that of plain training of the same cost, from "
            f"[what paid]({PAGE}#what-paid): negative is better.\n\n{markdown(rows)}"
        )
    if rows := _ratios(names):
        parts.append(
            f"In [budgets]({PAGE}#what-selection-pays-in-budgets): above 1 is better.\n\n"
            f"{markdown(rows)}"
        )
    if rows := _wrong_labels(names):
        parts.append(
            "With wrong labels, in points of final test error less plain training's: negative is "
            f"better.\n\n{markdown(rows)}"
        )
    if missing := [name for name in names if not _known(name)]:
        parts.append(f"No comparison is recorded yet of {_listed(missing)}.")
    return "\n\n".join(parts)


def budgets() -> str:
    """Returns the worth of the default, in budgets."""
    rows = _ratios([DEFAULT])
    return markdown([{name: row[name] for name in row if name != "method"} for row in rows])


def in_brief(names: Sequence[str]) -> str:
    """Of each strategy a line: the data sets by outcome, and what it is worth in budgets."""
    lines = []
    for name in names:
        main = [one for one in _main() if one.strategy == name]
        found = []
        for outcome in OUTCOMES:
            if sets := [f"{one.data} ({_mean(one)})" for one in main if one.outcome == outcome]:
                found.append(f"{outcome} on {', '.join(sets)}")
        if rows := _middle(_ratios([name])):
            worth = [f"{row['budget ratio']} on {row['data and model']}" for row in rows]
            found.append(f"budget ratio {', '.join(worth)}")
        if found:
            lines.append(f"{_call(name)}: {'; '.join(found)}")
    return "<br>".join(lines) or "no comparison recorded yet"


def _middle(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Of each experiment the row of the budget in the middle."""
    of: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        of.setdefault(row["data and model"], []).append(row)
    return [each[len(each) // 2] for each in of.values()]


def _mean(verdict: Verdict) -> str:
    """The mean difference alone."""
    return verdict.points.partition(" ± ")[0]


def _brief(verdict: Verdict) -> str:
    return f"{verdict.points}, {verdict.outcome}"


def _differences(names: Sequence[str]) -> list[dict[str, str]]:
    """A row for each strategy, a column for each data set."""
    found = [one for one in _main() if _is_of(one.strategy, names)]
    sets = dict.fromkeys(one.data for one in found)
    rows: dict[str, dict[str, str]] = {}
    for one in found:
        empty = {"method": _call(one.strategy)} | dict.fromkeys(sets, "")
        rows.setdefault(one.strategy, empty)[one.data] = _brief(one)
    return list(rows.values())


def _ratios(names: Sequence[str]) -> list[dict[str, str]]:
    """A row for each configuration, data set and budget."""
    return [
        {
            "method": written(one.label),
            "data and model": one.experiment.title,
            "epochs": f"{one.budget:g}",
            "budget ratio": one.words,
            "95 % interval": one.ratio.interval,
        }
        for one in _method_ratios()
        if _is_of(one.label, names)
    ]


def _wrong_labels(names: Sequence[str]) -> list[dict[str, str]]:
    """A row for each strategy, data set and share of wrong labels."""
    return [
        {
            "data and model": end["task"],
            "wrong labels": f"{end['wrong']:.0%}",
            "method": written(end["label"]),
            "seeds": str(end["seeds"]),
            "difference": f"{end['difference']:+.2f}",
            "95 % interval": signed_interval(*end["interval"]),
        }
        for end in _noisy_ends()
        if _is_of(end["label"], names)
    ]


def _call(name: str) -> str:
    """Returns the call that a strategy is, s being the share to keep, or else its name."""
    return f"`{strategy_name(name)}`"


def _known(name: str) -> bool:
    return bool(_differences([name]) or _ratios([name]) or _wrong_labels([name]))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_call, names))


@functools.cache
def _comparisons() -> Sequence[Comparison]:
    return comparisons_of(RESULTS)[0]


@functools.cache
def _main() -> Sequence[Verdict]:
    """Those of the page of results."""
    judged = verdicts(without_tables(_comparisons()))
    return main_verdicts([one for one in judged if one.compared])


@functools.cache
def _method_ratios() -> Sequence[MethodRatio]:
    return method_ratios(experiments(_comparisons()))


@functools.cache
def _noisy_ends() -> Sequence[dict[str, Any]]:
    return noisy_ends(_comparisons())


def _is_of(label: str, names: Sequence[str]) -> bool:
    """Whether a configuration is of one of some strategies.

    >>> _is_of("stale-sb-2 0.25", ["stale-sb"]), _is_of("sb-memory 0.5", ["sb"])
    (True, False)
    """
    return re.sub(r"-\d+$", "", label.partition(" ")[0]) in names
