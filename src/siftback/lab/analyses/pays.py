"""What selection pays, in budgets: Traditional's budget for the same error over the method's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from siftback.lab.analyses.budget_ratios import (
    LEAST_POINTS,
    Bounded,
    BudgetRatio,
    budget_ratio,
)
from siftback.lab.analyses.configurations import argument, best_end, shared_by, task
from siftback.lab.analyses.figure import Cell, Figure, Grid, Missing, Panel, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import MATCHED, TRADITIONAL
from siftback.lab.records.metric import Metric
from siftback.lab.records.run_summary import RunSummary

# What may differ between the comparisons of one curve.
_VARIED = ("budget", "strategies", "keeps", "seeds", "matched", "evaluations")

GOAL = 1.5
"""The budget ratio that a default should reach."""


class Experiment(NamedTuple):
    """Comparisons of equal settings, but for their budgets.

    Attributes:
        title: Model and data.
        metric: What runs are judged by.
        runs: By strategy's label, budget and seed.
        machines: The processors or devices that it was trained on.
    """

    title: str
    metric: Metric
    runs: Mapping[str, Mapping[float, Mapping[int, RunSummary]]]
    machines: frozenset[str]

    @property
    def ends(self) -> Mapping[str, Mapping[float, Mapping[int, float]]]:
        """Final error or loss by strategy's label, budget and seed."""
        return {
            label: {
                budget: {seed: run.final for seed, run in by_seed.items()}
                for budget, by_seed in by_budget.items()
            }
            for label, by_budget in self.runs.items()
        }

    @property
    def curve(self) -> Mapping[float, Mapping[int, float]]:
        """Traditional's ends by budget and seed."""
        return self.ends.get(TRADITIONAL, {})


class Measured(NamedTuple):
    """A method's budget ratio at one budget."""

    label: str
    budget: float
    ratio: BudgetRatio


def ratios(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """The budget ratio of each method at each budget, with its interval.

    Comparisons by budget that differ in nothing else are one experiment; it needs Traditional at
    five budgets or more. See :mod:`siftback.lab.analyses.budget_ratios` for the formula. The
    epochs of source examples that the method went through, over the budget, are what its ratio
    would be if what it left out had taught nothing.
    """
    name, title = "pays", "Budget ratios: Traditional's budget for the same end, over the method's"
    columns = ["data and model", "method", "budget", "seeds", "error or loss"]
    columns += ["Traditional's budget for it", "budget ratio", "95 % interval"]
    columns += ["epochs over budget"]
    rows: list[list[Cell]] = []
    found: dict[str, list[Measured]] = {}
    levels: dict[str, float | None] = {}
    several: list[str] = []
    for one in measured(comparisons):
        curve = one.curve
        levels[one.title] = _level(curve)
        if len(one.machines) > 1:
            several.append(
                f"{one.title} was trained on {' and '.join(sorted(one.machines))}, where the same "
                "seed ends at other errors, so ratios near 1 may be the machines'. Repeat all of "
                "it on one."
            )
        for label, by_budget in one.runs.items():
            for budget, runs in sorted(by_budget.items()):
                shared = sorted(set(runs).intersection(*curve.values()))
                if not shared or (label == TRADITIONAL):
                    continue
                ratio = budget_ratio(curve, budget, {seed: runs[seed].final for seed in shared})
                found.setdefault(one.title, []).append(Measured(label, budget, ratio))
                rows.append(_row(one, label, budget, [runs[seed] for seed in shared], ratio))
    if not rows:
        why = f"No method beside Traditional at {LEAST_POINTS} budgets or more. Record some:"
        return Missing(name, title, f"{why} siftback run pays")
    sentences = [_sentence(title, of, levels[title]) for title, of in found.items()]
    return Grid(name, title, [*sentences, *_reached(found), *several], "Siftback", columns, rows)


def curves(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Error or loss over the budget, of Traditional and of what was measured at several.

    A panel for each experiment that `ratios` has: the means over the seeds, and the seeds' range.
    """
    name, title = "budgets", "What a budget buys: Traditional, and selection by remembered losses"
    panels, sentences = [], []
    for one in measured(comparisons):
        lines = {label: of for label, of in one.ends.items() if len(of) > 1}
        if len(lines) < 2:
            continue
        drawn = sorted(lines.items(), key=lambda item: item[0] != TRADITIONAL)
        series = [_line(label, by_budget) for label, by_budget in drawn]
        least = min(min(line.y) for line in series)
        across, up = "budget, in epochs of Traditional", one.metric.axis
        panels.append(Panel(one.title, across, up, "line", series, log_x=True, log_y=least > 0))
        sentences.append(_best_end(one, lines))
    if not panels:
        why = f"No method beside Traditional's curve of {LEAST_POINTS} budgets. Record some:"
        return Missing(name, title, f"{why} siftback run pays")
    return Figure(name, title, sentences, "Siftback", {"budget": panels})


def measured(comparisons: Sequence[Comparison]) -> list[Experiment]:
    """Experiments that have a curve: Traditional at five budgets or more.

    Those of one title, which differ in other settings, are numbered, so that none is taken for
    another.
    """
    found = [one for one in experiments(comparisons) if len(one.curve) >= LEAST_POINTS]
    before: Counter[str] = Counter()
    for place, one in enumerate(found):
        before[one.title] += 1
        if (number := before[one.title]) > 1:
            found[place] = one._replace(title=f"{one.title} ({number})")
    return found


def experiments(comparisons: Sequence[Comparison]) -> list[Experiment]:
    """Comparisons by budget, those of equal settings together, in the order of their titles.

    Of a run that is there twice the first counts.
    """
    groups: dict[str, list[Comparison]] = {}
    for one in comparisons:
        if one.runs and argument(one, "budget") is not None:
            groups.setdefault(shared_by(one, _VARIED), []).append(one)
    return sorted(map(_experiment, groups.values()), key=lambda one: one.title)


def _experiment(group: Sequence[Comparison]) -> Experiment:
    runs: dict[str, dict[float, dict[int, RunSummary]]] = {}
    for one in group:
        for run in one.runs:
            if run.strategy != MATCHED:
                by_budget = runs.setdefault(run.label, {})
                by_budget.setdefault(argument(one, "budget"), {}).setdefault(run.seed, run)
    machines = frozenset(machine for one in group for machine in one.machines)
    return Experiment(task(group[0]), group[0].metric, runs, machines)


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


def _best_end(one: Experiment, lines: Mapping[str, Mapping[float, Mapping[int, float]]]) -> str:
    """At the largest budget that any method was measured at."""
    methods = {label: of for label, of in lines.items() if label != TRADITIONAL}
    budget = max(max(of) for of in methods.values())
    means = {label: fmean(of[budget].values()) for label, of in methods.items() if budget in of}
    best = min(means, key=means.__getitem__)
    plain = one.curve.get(budget)
    baseline = fmean(plain.values()) if plain else None
    title = f"{one.title}, {budget:g} epochs"
    return best_end(title, one.metric, best, means[best], baseline)


def _row(
    one: Experiment, label: str, budget: float, runs: Sequence[RunSummary], ratio: BudgetRatio
) -> list[Cell]:
    end = one.metric.written(fmean(run.final for run in runs))
    needed = Bounded(ratio.ratio.value * budget, ratio.ratio.side)
    interval = "–" if ratio.low is None else f"{ratio.low} to {ratio.high}"  # noqa: RUF001
    most = fmean(run.epochs for run in runs) / budget
    return [
        *(one.title, label, f"{budget:g}", str(ratio.seeds), end),
        *(str(needed), str(ratio.ratio), interval, f"{most:.2f}"),
    ]


def _level(curve: Mapping[float, Mapping[int, float]]) -> float | None:
    """The budget at which Traditional's mean is lowest, if it is not the largest."""
    means = {budget: fmean(ends.values()) for budget, ends in sorted(curve.items())}
    lowest = min(means, key=means.__getitem__)
    return lowest if lowest < max(means) else None


def _sentence(title: str, found: Sequence[Measured], level: float | None) -> str:
    """Of the methods that were measured at the most budgets their ratios are said."""
    methods: dict[str, list[tuple[float, str]]] = {}
    for one in found:
        methods.setdefault(one.label, []).append((one.budget, str(one.ratio.ratio)))
    most = max(map(len, methods.values()))
    said = [(label, each) for label, each in methods.items() if len(each) == most]
    above = sum(one.ratio.low is not None and one.ratio.low.exceeds(1) for one in found)
    each = "; ".join(
        f"{label} {', '.join(f'{ratio} ({budget:g} epochs)' for budget, ratio in ratios)}"
        for label, ratios in said
    )
    end = "" if level is None else f" Traditional ends lowest at {level:g} epochs."
    return (
        f"{title}: {each}. In all {above} of {len(found)} ratios are above 1 with their whole "
        f"interval.{end}"
    )


def _reached(found: Mapping[str, Sequence[Measured]]) -> list[str]:
    """Where each method that was measured at several budgets of an experiment reaches the goal."""
    methods: dict[str, dict[str, list[Measured]]] = {}
    for title, of in found.items():
        for one in of:
            methods.setdefault(one.label, {}).setdefault(title, []).append(one)
    several = {
        label: by_title
        for label, by_title in methods.items()
        if max(map(len, by_title.values())) > 1
    }
    sentences = []
    for label, by_title in several.items():
        budgets = {
            title: [f"{one.budget:g}" for one in of if _reaches(one.ratio)]
            for title, of in by_title.items()
        }
        where = "; ".join(
            f"{title} ({', '.join(those)} epochs)" for title, those in budgets.items() if those
        )
        count = f"{sum(map(len, budgets.values()))} of {sum(map(len, by_title.values()))} cases"
        cases = f"{count}: {where}" if where else count
        sentences.append(f"{label} reaches {GOAL:g} times the budget in {cases}.")
    return sentences


def _reaches(ratio: BudgetRatio) -> bool:
    return ratio.ratio.side != "below" and ratio.ratio.value >= GOAL
