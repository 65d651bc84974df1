"""What selection pays, in budgets: Traditional's budget for the same error over the method's."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from siftback.lab.analyses.budget_ratios import (
    LEAST_POINTS,
    BudgetRatio,
    budget_for,
    budget_ratio,
)
from siftback.lab.analyses.configurations import argument, images, setup, shared_by
from siftback.lab.analyses.figure import Cell, Figure, Grid, Missing, Panel, Series
from siftback.lab.analyses.findings import BestEnd, BudgetRatios
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import MATCHED, TRADITIONAL
from siftback.lab.records.metric import Metric

# What may differ between the comparisons of one curve.
_VARIED = ("budget", "strategies", "keeps", "seeds", "matched", "evaluations")


class Experiment(NamedTuple):
    """Comparisons of equal settings, but for their budgets.

    Attributes:
        title: Model and data.
        metric: What runs are judged by.
        ends: Final error or loss by strategy's label, budget and seed.
    """

    title: str
    metric: Metric
    ends: Mapping[str, Mapping[float, Mapping[int, float]]]

    @property
    def curve(self) -> Mapping[float, Mapping[int, float]]:
        """Traditional's ends by budget and seed."""
        return self.ends.get(TRADITIONAL, {})


def ratios(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """The budget ratio of each method at each budget, with its interval.

    Comparisons by budget that differ in nothing else are one experiment; it needs Traditional at
    five budgets or more. See :mod:`siftback.lab.analyses.budget_ratios` for the formula.
    """
    name, title = "pays", "Budget ratios: Traditional's budget for the same end, over the method's"
    columns = ["data and model", "method", "budget", "seeds", "error or loss"]
    columns += ["Traditional's budget for it", "budget ratio", "95 % interval"]
    rows: list[list[Cell]] = []
    findings = []
    for one in measured(comparisons):
        found = []
        for label, by_budget in one.ends.items():
            for budget, ends in sorted(by_budget.items()):
                shared = set(ends).intersection(*one.curve.values())
                if not shared or (label == TRADITIONAL):
                    continue
                ratio = budget_ratio(one.curve, budget, ends)
                found.append((label, budget, ratio))
                rows.append(_row(one, label, budget, sorted(shared), ratio))
        if found:
            findings.append(_finding(one.title, found))
    if not rows:
        why = f"No method beside Traditional at {LEAST_POINTS} budgets or more. Record some:"
        return Missing(name, title, f"{why} siftback run pays")
    return Grid(name, title, findings, "Siftback", columns, rows)


def curves(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Error or loss over the budget, of Traditional and of what was measured at several.

    A panel for each experiment that `ratios` has: the means over the seeds, and the seeds' range.
    """
    name, title = "budgets", "What a budget buys: Traditional, and selection by remembered losses"
    panels, findings = [], []
    for one in measured(comparisons):
        lines = {label: of for label, of in one.ends.items() if len(of) > 1}
        if len(lines) < 2:
            continue
        drawn = sorted(lines.items(), key=lambda item: item[0] != TRADITIONAL)
        series = [_line(label, by_budget) for label, by_budget in drawn]
        least = min(min(line.y) for line in series)
        across, up = "budget, in epochs of Traditional", one.metric.axis
        panels.append(Panel(one.title, across, up, "line", series, log_x=True, log_y=least > 0))
        findings.append(_best_end(one, lines))
    if not panels:
        why = f"No method beside Traditional's curve of {LEAST_POINTS} budgets. Record some:"
        return Missing(name, title, f"{why} siftback run pays")
    return Figure(name, title, findings, "Siftback", {"budget": panels})


def measured(comparisons: Sequence[Comparison]) -> list[Experiment]:
    """Experiments that have a curve: Traditional at five budgets or more."""
    return [one for one in experiments(comparisons) if len(one.curve) >= LEAST_POINTS]


def experiments(comparisons: Sequence[Comparison]) -> list[Experiment]:
    """Comparisons by budget, those of equal settings together, in the order of their titles.

    Of a run that is there twice the first counts.
    """
    found: dict[str, Experiment] = {}
    for one in comparisons:
        budget = argument(one, "budget")
        if budget is None or not one.runs:
            continue
        key = shared_by(one, _VARIED)
        title = f"{setup(one)}{images(one)}"
        experiment = found.setdefault(key, Experiment(title, one.metric, {}))
        for run in one.runs:
            if run.strategy != MATCHED:
                ends = dict(experiment.ends)
                by_budget = dict(ends.get(run.label, {}))
                by_budget[budget] = {run.seed: run.final} | dict(by_budget.get(budget, {}))
                ends[run.label] = by_budget
                experiment = found[key] = experiment._replace(ends=ends)
    return sorted(found.values(), key=lambda one: one.title)


def on_curves(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those of experiments that have a curve: Traditional at five budgets or more."""
    budgets: dict[str, set[float]] = {}
    for one in comparisons:
        if TRADITIONAL in one.by_label() and argument(one, "budget") is not None:
            budgets.setdefault(shared_by(one, _VARIED), set()).add(argument(one, "budget"))
    enough = {key for key, found in budgets.items() if len(found) >= LEAST_POINTS}
    return [one for one in comparisons if shared_by(one, _VARIED) in enough]


def _line(label: str, by_budget: Mapping[float, Mapping[int, float]]) -> Series:
    budgets = sorted(by_budget)
    ends = [list(by_budget[budget].values()) for budget in budgets]
    return Series.over_seeds(label, budgets, ends, label)


def _best_end(one: Experiment, lines: Mapping[str, Mapping[float, Mapping[int, float]]]) -> BestEnd:
    """At the largest budget that any method was measured at."""
    methods = {label: of for label, of in lines.items() if label != TRADITIONAL}
    budget = max(max(of) for of in methods.values())
    means = {label: fmean(of[budget].values()) for label, of in methods.items() if budget in of}
    best = min(means, key=means.__getitem__)
    plain = one.curve.get(budget)
    baseline = fmean(plain.values()) if plain else None
    title = f"{one.title}, {budget:g} epochs"
    return BestEnd(title, best, means[best], baseline, metric=one.metric.name)


def _row(
    one: Experiment, label: str, budget: float, seeds: Sequence[int], ratio: BudgetRatio
) -> list[Cell]:
    def mean(ends: Mapping[int, float]) -> float:
        return sum(ends[seed] for seed in seeds) / len(seeds)

    end = mean(one.ends[label][budget])
    budgets = sorted(one.curve)
    needed = budget_for(budgets, [mean(one.curve[each]) for each in budgets], end)
    interval = "–" if ratio.low is None else f"{ratio.low} to {ratio.high}"  # noqa: RUF001
    written = one.metric.written(end)
    return [
        *(one.title, label, f"{budget:g}", str(ratio.seeds), written),
        *(str(needed), str(ratio.ratio), interval),
    ]


def _finding(title: str, found: Sequence[tuple[str, float, BudgetRatio]]) -> BudgetRatios:
    """The best of each set is said first, by its ratio at the budget where it is best."""
    label, budget, best = max(found, key=lambda of: of[2].ratio.rank)
    sure = best.low is not None and best.low.exceeds(1)
    interval = None if best.low is None else (str(best.low), str(best.high))
    paid = sum(1 for *_, one in found if one.low is not None and one.low.exceeds(1))
    return BudgetRatios(title, label, budget, str(best.ratio), interval, sure, paid, len(found))
