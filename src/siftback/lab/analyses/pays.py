"""What selection pays, in budgets: Traditional's budget for the same error over the method's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from siftback.lab.analyses.budget_ratios import (
    LEAST_POINTS,
    Bounded,
    BudgetRatio,
    budget_ratio,
)
from siftback.lab.analyses.configurations import argument, group_by_settings, task
from siftback.lab.analyses.figure import Figure, Grid, Missing, Panel, Series
from siftback.lab.analyses.findings import BestEnd, BudgetRatios, Finding, Reached, SeveralMachines
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import read_runs
from siftback.lab.records.run_summary import MATCHED, TRADITIONAL, Metric

# What may differ between the comparisons of one curve.
_VARIED = ("budget", "strategies", "keeps", "seeds", "matched", "evaluations")

GOAL = 1.5
"""The budget ratio that a default should reach."""

Ends = Mapping[float, Mapping[int, float]]
"""Final error or loss by budget and seed."""


class Experiment(NamedTuple):
    """Comparisons of equal settings, but for their budgets, Traditional's at five or more.

    Attributes:
        title: Model and data; experiments of one title are numbered.
        metric: What runs are judged by.
        runs: As `read_runs` returns them, of all comparisons, with the column ``budget``. Of a
            run that was recorded twice it is the first.
        ends: By label.
    """

    title: str
    metric: Metric
    runs: pd.DataFrame
    ends: Mapping[str, Ends]

    @property
    def curve(self) -> Ends:
        """Traditional's ends."""
        return self.ends[TRADITIONAL]


class MethodRatio(NamedTuple):
    """A method's budget ratio at one budget of an experiment.

    Attributes:
        experiment: Which one.
        label: The method.
        budget: In epochs of Traditional.
        end: Its final error or loss, the mean over the seeds that Traditional's curve has too.
        epochs: Epochs of source examples that it went through, over the budget. They are what its
            ratio would be if what it left out had taught nothing.
        ratio: The ratio.
    """

    experiment: Experiment
    label: str
    budget: float
    end: float
    epochs: float
    ratio: BudgetRatio

    @property
    def interval(self) -> str:
        """The ends of its interval in words; a dash for a single seed."""
        low, high = self.ratio.low, self.ratio.high
        return "–" if low is None else f"{low} to {high}"  # noqa: RUF001


def method_ratios(comparisons: Sequence[Comparison]) -> list[MethodRatio]:
    """Returns the budget ratio of each method at each budget of each experiment."""
    ratios = []
    for experiment in experiments(comparisons):
        curve, runs = experiment.curve, experiment.runs
        for label, ends in experiment.ends.items():
            for budget, by_seed in ends.items():
                seeds = set(by_seed).intersection(*curve.values())
                if label == TRADITIONAL or not seeds:
                    continue
                ratio = budget_ratio(curve, budget, by_seed)
                same = (runs.label == label) & (runs.budget == budget) & runs.seed.isin(seeds)
                epochs = fmean(runs.epochs[same]) / budget
                end = fmean(by_seed[seed] for seed in sorted(seeds))
                ratios.append(MethodRatio(experiment, label, budget, end, epochs, ratio))
    return ratios


def ratios(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """The budget ratio of each method at each budget, with its interval.

    Comparisons by budget that differ in nothing else are one experiment; it needs Traditional at
    five budgets or more. See :mod:`siftback.lab.analyses.budget_ratios` for the formula.
    """
    name, title = "pays", "Budget ratios: Traditional's budget for the same end, over the method's"
    columns = ["data and model", "method", "budget", "seeds", "error or loss"]
    columns += ["Traditional's budget for it", "budget ratio", "95 % interval"]
    columns += ["epochs over budget"]
    measured = method_ratios(comparisons)
    if not measured:
        why = f"No method beside Traditional at {LEAST_POINTS} budgets or more. Record some:"
        return Missing(name, title, f"{why} siftback run pays")
    rows = []
    by_title: dict[str, list[MethodRatio]] = {}
    for one in measured:
        by_title.setdefault(one.experiment.title, []).append(one)
        ratio, metric = one.ratio.ratio, one.experiment.metric
        rows.append(
            [
                *(one.experiment.title, one.label, f"{one.budget:g}", str(one.ratio.seeds)),
                *(metric.written(one.end), str(Bounded(ratio.value * one.budget, ratio.side))),
                *(str(ratio), one.interval, f"{one.epochs:.2f}"),
            ]
        )
    machines = {
        experiment.title: sorted(set(experiment.runs.machine))
        for experiment in experiments(comparisons)
    }
    findings: list[Finding] = [
        *(_said(title, each) for title, each in by_title.items()),
        *_reached(measured),
        *(SeveralMachines(title, names) for title, names in machines.items() if len(names) > 1),
    ]
    return Grid(name, title, findings, "Siftback", columns, rows)


def curves(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Error or loss over the budget, of Traditional and of what was measured at several.

    A panel for each experiment that `ratios` has: the means over the seeds, and the seeds' range.
    """
    name, title = "budgets", "What a budget buys: Traditional, and selection by remembered losses"
    panels, findings = [], []
    for experiment in experiments(comparisons):
        lines = {label: ends for label, ends in experiment.ends.items() if len(ends) > 1}
        if len(lines) < 2:
            continue
        series = [
            Series.over_seeds(
                label, list(ends), [list(by_seed.values()) for by_seed in ends.values()], label
            )
            for label, ends in sorted(lines.items(), key=lambda line: line[0] != TRADITIONAL)
        ]
        positive = min(min(line.y) for line in series) > 0
        x_label, y_label = "budget, in epochs of Traditional", experiment.metric.axis
        panels.append(
            Panel(experiment.title, x_label, y_label, "line", series, log_x=True, log_y=positive)
        )
        findings.append(_best_end(experiment, lines))
    if not panels:
        why = f"No method beside Traditional's curve of {LEAST_POINTS} budgets. Record some:"
        return Missing(name, title, f"{why} siftback run pays")
    return Figure(name, title, findings, "Siftback", {"budget": panels})


def experiments(comparisons: Sequence[Comparison]) -> list[Experiment]:
    """Returns the experiments among comparisons, in the order of their titles."""
    joined = []
    for group in _with_curve(comparisons):
        group = [one for one in group if one.runs and argument(one, "budget") is not None]
        runs = pd.concat([read_runs(one).assign(budget=argument(one, "budget")) for one in group])
        runs = runs[runs.strategy != MATCHED].drop_duplicates(["label", "budget", "seed"])
        ends = {
            label: {
                budget: dict(zip(each.seed, each.final, strict=True))
                for budget, each in rows.groupby("budget")
            }
            for label, rows in runs.groupby("label", sort=False)
        }
        joined.append(Experiment(task(group[0]), group[0].metric, runs, ends))
    joined.sort(key=lambda experiment: experiment.title)
    before: Counter[str] = Counter()
    for number, (title, *_) in enumerate(joined):
        before[title] += 1
        if before[title] > 1:
            joined[number] = joined[number]._replace(title=f"{title} ({before[title]})")
    return joined


def on_curves(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons whose experiments have Traditional at five budgets or more."""
    return [one for group in _with_curve(comparisons) for one in group]


def _with_curve(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    return [
        group
        for group in group_by_settings(comparisons, _VARIED).values()
        if len(
            {
                argument(one, "budget")
                for one in group
                if any(run.label == TRADITIONAL for run in one.runs)
            }
            - {None}
        )
        >= LEAST_POINTS
    ]


def _best_end(experiment: Experiment, lines: Mapping[str, Ends]) -> BestEnd:
    """At the largest budget that any method was measured at."""
    methods = {label: ends for label, ends in lines.items() if label != TRADITIONAL}
    budget = max(max(ends) for ends in methods.values())
    means = {
        label: fmean(ends[budget].values()) for label, ends in methods.items() if budget in ends
    }
    best = min(means, key=means.__getitem__)
    plain = experiment.curve.get(budget)
    baseline = fmean(plain.values()) if plain else None
    title = f"{experiment.title}, {budget:g} epochs"
    return BestEnd(title, best, means[best], baseline, metric=experiment.metric.name)


def _said(title: str, measured: Sequence[MethodRatio]) -> BudgetRatios:
    """Of the methods that were measured at the most budgets their ratios are said.

    Also the budget at which Traditional's mean is lowest, if it is not the largest.
    """
    methods: dict[str, list[tuple[float, str]]] = {}
    for one in measured:
        methods.setdefault(one.label, []).append((one.budget, str(one.ratio.ratio)))
    most = max(map(len, methods.values()))
    said = [(label, each) for label, each in methods.items() if len(each) == most]
    above = sum(one.ratio.low is not None and one.ratio.low.exceeds(1) for one in measured)
    curve = measured[0].experiment.curve
    means = {budget: fmean(ends.values()) for budget, ends in curve.items()}
    lowest = min(means, key=means.__getitem__)
    level = lowest if lowest < max(means) else None
    return BudgetRatios(title, said, above, len(measured), level)


def _reached(measured: Sequence[MethodRatio]) -> list[Reached]:
    """Where each method that was measured at several budgets of an experiment reaches the goal."""
    methods: dict[str, dict[str, list[MethodRatio]]] = {}
    for one in measured:
        by_title = methods.setdefault(one.label, {})
        by_title.setdefault(one.experiment.title, []).append(one)
    return [
        Reached(
            label,
            GOAL,
            [
                (title, budgets)
                for title, each in by_title.items()
                if (budgets := [one.budget for one in each if _reaches(one.ratio)])
            ],
            sum(map(len, by_title.values())),
        )
        for label, by_title in methods.items()
        if max(map(len, by_title.values())) > 1
    ]


def _reaches(ratio: BudgetRatio) -> bool:
    return ratio.ratio.side != "below" and ratio.ratio.value >= GOAL
