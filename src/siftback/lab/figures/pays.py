"""Budget ratios: Traditional's budget for the same error over the method's."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from siftback import Memory
from siftback.lab.data.load import training_examples
from siftback.lab.figures.budget_ratios import Bounded, BudgetRatio, budget_ratio
from siftback.lab.figures.curves import best_end
from siftback.lab.figures.describe import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import argument, group_by_settings, images, setup_with_noise
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import counted, listed
from siftback.lab.records.frame import Outcome, judge, read_runs
from siftback.lab.records.run_summary import MATCHED, TRADITIONAL, Metric, run_label
from siftback.lab.strategies.table import library_name

LEAST_POINTS = 5
"""The fewest budgets of a curve."""

LEAST = 0.97
"""The budget ratio below which it is worse than Traditional."""

DEFAULT, WITHOUT_TAIL = "sb-memory-default", "sb-memory-ratio"
"""The strategy whose ratios are looked at case by case, `Memory()`, and the one without its end."""

DEFAULT_LABEL = run_label(DEFAULT, 0.5, None)

Ends = Mapping[float, Mapping[int, float]]
"""Final error or loss by budget and seed."""


class Experiment(NamedTuple):
    """Comparisons of equal settings, but for budgets and devices, Traditional's at five or more.

    Attributes:
        title: Model, data and wrong labels; experiments of one title are numbered.
        metric: What runs are judged by.
        runs: As `read_runs` returns them, of all comparisons, with the column ``budget``. Of a
            run that was recorded twice it is the first.
        ends: By label.
        examples: The number that is trained on; None where the data's size is not known.
    """

    title: str
    metric: Metric
    runs: pd.DataFrame
    ends: Mapping[str, Ends]
    examples: int | None = None

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
    def outcome(self) -> Outcome:
        """The verdict on the errors at the budget."""
        plain = self.experiment.curve.get(self.budget, {})
        ends = self.experiment.ends[self.label][self.budget]
        return judge([end - plain[seed] for seed, end in ends.items() if seed in plain])

    @property
    def words(self) -> str:
        """The ratio; on a flat curve the verdict in its place."""
        return f"flat: {self.outcome}" if self.ratio.flat else str(self.ratio)

    def reaches(self, number: float) -> bool:
        """Whether the ratio is a number or more."""
        return not self.ratio.flat and self.ratio.ratio.reaches(number)

    def exceeds(self, number: float) -> bool:
        """Whether selection paid, and the interval of the ratio lies above a number."""
        return self.outcome == "paid" and not self.ratio.flat and self.ratio.low.exceeds(number)

    def falls_below(self, number: float) -> bool:
        """Whether the verdict is worse, and the interval of the ratio lies below a number."""
        high, is_clear = self.ratio.high, self.outcome == "worse" and not self.ratio.flat
        return is_clear and high.side != "above" and high.value < number


def method_ratios(experiments: Sequence[Experiment]) -> list[MethodRatio]:
    """Returns the budget ratio of each method at each budget of each experiment."""
    ratios = []
    for experiment in experiments:
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


def ratios_of_default(methods: Sequence[MethodRatio]) -> list[MethodRatio]:
    """Returns the ratios of ``Memory()``.

    A training that is too short for an end on everything is one of ``Memory(tail=Epochs(0))``,
    whose ratio stands for it where it was not recorded itself.
    """
    longest, by_label = Memory().schedule.tail_after.value, dict[str, dict[Any, MethodRatio]]()
    for method in methods:
        by_label.setdefault(method.label, {})[method.experiment.title, method.budget] = method
    alike = by_label.get(run_label(WITHOUT_TAIL, 0.5, None), {})
    short = {case: method for case, method in alike.items() if method.budget <= longest}
    return [*(short | by_label.get(DEFAULT_LABEL, {})).values()]


def ratios(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The budget ratio of each method at each budget, with its interval.

    Comparisons by budget that differ in nothing else are one experiment; it needs Traditional at
    five budgets or more. See :mod:`siftback.lab.figures.budget_ratios` for the formula.
    """
    measured = experiments(comparisons)
    methods = method_ratios(measured)
    for method in methods:
        ratio, metric = method.ratio.ratio, method.experiment.metric
        row = [
            *(method.experiment.title, method.label, f"{method.budget:g}"),
            *(str(method.ratio.seeds), metric.written(method.end)),
            None if method.ratio.flat else str(Bounded(ratio.value * method.budget, ratio.side)),
            method.words,
            *(method.ratio.interval, f"{method.epochs:.2f}"),
        ]
        yield Finding(rows=[row])
    for label in dict.fromkeys(method.label for method in methods):
        yield Finding(_ratio_sentence([method for method in methods if method.label == label]))
    for experiment in measured:
        means = {budget: fmean(ends.values()) for budget, ends in experiment.curve.items()}
        lowest = min(means, key=means.__getitem__)
        if methods and lowest < max(means):
            yield Finding(
                f"{experiment.title}: Traditional ends lowest at {lowest:g} of {max(means):g} "
                "epochs."
            )
    by_machines: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for item in measured:
        by_machines[tuple(sorted(set(item.runs.machine)))].append(item.title)
    for kinds, titles in by_machines.items():
        if len(kinds) > 1:
            yield Finding(
                f"{listed(titles)}: trained on {' and '.join(kinds)}, where the same seed ends at "
                "other errors, so that ratios near 1 may be the machines'."
            )


def ends_by_budget(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Error or loss over the budget, of Traditional and of what was measured at several.

    A panel for each experiment that `ratios` has: the means over the seeds, and the seeds' range.
    """
    for experiment in experiments(comparisons):
        lines = {label: ends for label, ends in experiment.ends.items() if len(ends) > 1}
        if len(lines) < 2:
            continue
        series = [
            Series.over_seeds(
                library_name(label),
                list(ends),
                [list(by_seed.values()) for by_seed in ends.values()],
                label,
            )
            for label, ends in sorted(lines.items(), key=lambda line: line[0] != TRADITIONAL)
        ]
        positive = min(min(line.y) for line in series) > 0
        labels = "budget, in epochs of Traditional", experiment.metric.axis
        panel = Panel(experiment.title, *labels, "line", series, log_x=True, log_y=positive)
        yield Finding(_best_end(experiment, lines), views={"budget": [panel]})


def experiments(comparisons: Sequence[Comparison]) -> list[Experiment]:
    """Returns the experiments among comparisons, in the order of their titles."""
    joined = []
    for group in _with_curve(comparisons):
        group = [item for item in group if item.runs and argument(item, "budget") is not None]
        runs = pd.concat(
            [read_runs(item).assign(budget=argument(item, "budget")) for item in group]
        )
        runs = runs[runs.strategy != MATCHED].drop_duplicates(["label", "budget", "seed"])
        ends = {
            label: {
                budget: dict(zip(ended.seed, ended.final, strict=True))
                for budget, ended in rows.groupby("budget")
            }
            for label, rows in runs.groupby("label", sort=False)
        }
        first = group[0]
        count = argument(first, "train_limit") or training_examples(argument(first, "data", ""))
        joined.append(Experiment(title_of(first), first.metric, runs, ends, count))
    joined.sort(key=lambda experiment: experiment.title)
    return [
        item if number == 1 else item._replace(title=f"{title} ({number})")
        for title, alike in groupby(joined, lambda experiment: experiment.title)
        for number, item in enumerate(alike, start=1)
    ]


def title_of(comparison: Comparison) -> str:
    """Returns the title of a comparison's experiment, before those of one title are numbered."""
    return f"{setup_with_noise(comparison)}{images(comparison)}"


def on_curves(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons whose experiments have Traditional at five budgets or more."""
    return [comparison for group in _with_curve(comparisons) for comparison in group]


def _with_curve(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    groups = []
    for group in group_by_settings(comparisons, "budget", "evaluations", "device"):
        budgets = {argument(item, "budget") for item in group if TRADITIONAL in item.by_label()}
        if len(budgets - {None}) >= LEAST_POINTS:
            groups.append(group)
    return groups


def _best_end(experiment: Experiment, lines: Mapping[str, Ends]) -> str:
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
    return best_end(title, experiment.metric, best, means[best], baseline)


def _ratio_sentence(ratios: Sequence[MethodRatio]) -> str:
    """Returns where a method's ratio is on one side of 1 for sure; empty where it is nowhere."""
    sides = {
        "above 1": [method for method in ratios if method.exceeds(1)],
        "below 1": [method for method in ratios if method.falls_below(1)],
    }
    parts = [f"{side} {_budgets_by_title(cases)}" for side, cases in sides.items() if cases]
    if not parts:
        return ""
    text = f"{library_name(ratios[0].label)}: for sure {'; '.join(parts)}"
    flat = sum(method.ratio.flat for method in ratios)
    around = len(ratios) - flat - sum(map(len, sides.values()))
    if around:
        text += f"; neither for sure in {counted(around, 'case')}"
    if flat:
        text += f"; on a flat curve in {counted(flat, 'case')}"
    return f"{text}."


def _budgets_by_title(cases: Sequence[MethodRatio]) -> str:
    """Lists experiments, each with the budgets of its cases."""
    by_title = groupby(cases, lambda case: case.experiment.title)
    return ", ".join(
        f"on {title} ({listed(f'{case.budget:g}' for case in group)} epochs)"
        for title, group in by_title
    )
