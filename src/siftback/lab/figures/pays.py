"""Budget ratios: plain training's budget for the same error over the method's, and a map of them.

A reader knows two things of a case of their own before any selection: how many examples there are,
and where plain training ends within the budget. Both are the axes of the map.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from siftback import Memory
from siftback.lab.data.load import training_examples
from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.budget_ratios import Bounded, BudgetRatio, budget_ratio
from siftback.lab.figures.curves import best_end
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.styles import FLAT, RATIOS
from siftback.lab.figures.titles import group_by_settings, images, setup_with_noise, weight_decay
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import NOT_REACHED, counted, listed
from siftback.lab.records.frame import OUTCOMES, Outcome, judge, read_runs
from siftback.lab.records.run_summary import MATCHED, TRADITIONAL, Metric, run_label
from siftback.lab.strategies.table import PLAIN, library_name

LEAST_POINTS = 5
"""The fewest budgets of a curve."""

LEAST = 0.97
"""The budget ratio below which it is worse than plain training."""

BANDS = dict(zip(RATIOS, (1.5, 1.2, 1.05, LEAST, 0.0), strict=True))
"""The least ratio of each colour, by its words."""

DEFAULT, WITHOUT_TAIL = "sb-memory-default", "sb-memory-ratio"
"""The strategy whose ratios are looked at case by case, `Memory()`, and the one without its end."""

DEFAULT_LABEL = run_label(DEFAULT, 0.5, None)

Ends = Mapping[float, Mapping[int, float]]
"""Final error or loss by budget and seed."""


class Experiment(NamedTuple):
    """Comparisons of equal settings, but for budgets and devices, plain training's at five or more.

    Attributes:
        title: Model, data, wrong labels, and a weight decay that is not the model's own;
            experiments of one title are numbered.
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
        """Plain training's ends."""
        return self.ends[TRADITIONAL]

    @property
    def means(self) -> dict[float, float]:
        """Plain training's mean ends by budget."""
        return {budget: fmean(ends.values()) for budget, ends in self.curve.items()}


class MethodRatio(NamedTuple):
    """A method's budget ratio at one budget of an experiment.

    Attributes:
        experiment: Which one.
        label: The method.
        budget: In epochs of plain training.
        end: Its final error or loss, the mean over the seeds that plain training's curve has too.
        epochs: Epochs of source examples that it went through, over the budget. They are what its
            ratio would be if what it left out had taught nothing.
        ratio: The ratio.
        leaves_out: Whether it left anything out: in an epoch or less a rule does not. It is plain
            training there, and a ratio the noise of a device that computes no step twice alike.
        seconds: Of a step, over those of a plain step of the same cost; None if not measured.
    """

    experiment: Experiment
    label: str
    budget: float
    end: float
    epochs: float
    ratio: BudgetRatio
    leaves_out: bool
    seconds: float | None = None

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

    @property
    def in_seconds(self) -> str:
        """The ratio over the seconds of a step; a dash where there is none."""
        if not self.seconds or self.ratio.flat:
            return NOT_REACHED
        return str(Bounded(self.ratio.ratio.value / self.seconds, self.ratio.ratio.side))

    @property
    def plain_end(self) -> str | None:
        """Where plain training of the budget ends, with its unit; None if it was not run."""
        means, written = self.experiment.means, self.experiment.metric.written
        return written(means[self.budget]) if self.budget in means else None

    @property
    def is_worse(self) -> bool:
        """Whether the ratio is below `LEAST`; on a flat curve whether the errors are worse."""
        if self.ratio.flat:
            return self.outcome in ("worse", "likely worse")
        return not self.ratio.ratio.reaches(LEAST)

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
        curve = experiment.curve
        for label, of_method in experiment.runs.groupby("label", sort=False):
            for budget, runs in of_method.groupby("budget"):
                by_seed = experiment.ends[label][budget]
                seeds = set(by_seed).intersection(*curve.values())
                if label == TRADITIONAL or not seeds:
                    continue
                ratio = budget_ratio(curve, budget, by_seed)
                epochs = fmean(runs.epochs[runs.seed.isin(seeds)]) / budget
                end = fmean(by_seed[seed] for seed in sorted(seeds))
                left_out = bool((runs.keep_measured < 1).any())
                ratios.append(MethodRatio(experiment, label, budget, end, epochs, ratio, left_out))
    return ratios


def ratios_of_default(methods: Sequence[MethodRatio]) -> list[MethodRatio]:
    """Returns the ratios of ``Memory()``.

    A training that is too short for an end on everything is one of ``Memory(tail=Epochs(0))``,
    whose ratio stands for it where it was not recorded itself.
    """
    longest, without_tail = Memory().schedule.tail_after.value, run_label(WITHOUT_TAIL, 0.5, None)
    alike = [case for case in methods if case.label == without_tail and case.budget <= longest]
    defaults = [case for case in methods if case.label == DEFAULT_LABEL]
    return [*{(case.experiment.title, case.budget): case for case in alike + defaults}.values()]


def ratios(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The budget ratio of each method at each budget, with its interval.

    Comparisons by budget that differ in nothing else are one experiment; it needs plain training at
    five budgets or more. See :mod:`siftback.lab.figures.budget_ratios` for the formula.
    """
    measured = experiments(comparisons)
    return ratio_findings(measured, method_ratios(measured))


def ratio_findings(
    measured: Sequence[Experiment], methods: Sequence[MethodRatio]
) -> Iterator[Finding]:
    """Yields what `ratios` gives, from experiments and the ratios of all methods in them."""
    for method in methods:
        ratio, metric = method.ratio.ratio, method.experiment.metric
        row = [
            *(method.experiment.title, library_name(method.label), f"{method.budget:g}"),
            *(str(method.ratio.seeds), metric.written(method.end)),
            None if method.ratio.flat else str(Bounded(ratio.value * method.budget, ratio.side)),
            method.words,
            *(method.ratio.interval, f"{method.epochs:.2f}"),
        ]
        yield Finding(rows=[row])
    for label in dict.fromkeys(method.label for method in methods):
        yield Finding(_ratio_sentence([method for method in methods if method.label == label]))
    for experiment in measured:
        means = experiment.means
        lowest = min(means, key=means.__getitem__)
        if methods and lowest < max(means):
            yield Finding(
                f"{experiment.title}: {PLAIN} ends lowest at {lowest:g} of {max(means):g} epochs."
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
    """Error or loss over the budget, of plain training and of what was measured at several.

    A panel for each experiment that `ratios` has: the means over the seeds, and the seeds' range.
    """
    for experiment in experiments(comparisons):
        lines = {label: ends for label, ends in experiment.ends.items() if len(ends) > 1}
        if len(lines) < 2:
            continue
        series = []
        for label, ends in sorted(lines.items(), key=lambda line: line[0] != TRADITIONAL):
            seeds = [list(by_seed.values()) for by_seed in ends.values()]
            series.append(Series.over_seeds(library_name(label), list(ends), seeds, label))
        positive = min(min(line.y) for line in series) > 0
        labels = f"budget, in epochs of {PLAIN}", experiment.metric.axis
        panel = Panel(experiment.title, *labels, "line", series, log_x=True, log_y=positive)
        # The best end at the largest budget that any method was measured at.
        others = {label: ends for label, ends in lines.items() if label != TRADITIONAL}
        budget = max(max(ends) for ends in others.values())
        means = {name: fmean(end[budget].values()) for name, end in others.items() if budget in end}
        best = min(means, key=means.__getitem__)
        title, baseline = f"{experiment.title}, {budget:g} epochs", experiment.means.get(budget)
        sentence = best_end(title, experiment.metric, library_name(best), means[best], baseline)
        yield Finding(sentence, views={"budget": [panel]})


def experiments(comparisons: Sequence[Comparison]) -> list[Experiment]:
    """Returns the experiments among comparisons, in the order of their titles."""
    joined = []
    for group in with_curve(comparisons):
        group = [item for item in group if item.runs and item.arguments.get("budget") is not None]
        runs = pd.concat([read_runs(row).assign(budget=row.arguments["budget"]) for row in group])
        runs = runs[runs.strategy != MATCHED].drop_duplicates(["label", "budget", "seed"])
        ends = {
            label: {
                budget: dict(zip(ended.seed, ended.final, strict=True))
                for budget, ended in rows.groupby("budget")
            }
            for label, rows in runs.groupby("label", sort=False)
        }
        first, settings = group[0], group[0].arguments
        count = settings.get("train_limit") or training_examples(settings.get("data", ""))
        joined.append(Experiment(title_of(first), first.metric, runs, ends, count))
    joined.sort(key=lambda experiment: experiment.title)
    return [
        item if number == 1 else item._replace(title=f"{title} ({number})")
        for title, alike in groupby(joined, lambda experiment: experiment.title)
        for number, item in enumerate(alike, start=1)
    ]


def title_of(comparison: Comparison) -> str:
    """Returns the title of a comparison's experiment, before those of one title are numbered."""
    return f"{setup_with_noise(comparison)}{images(comparison)}{weight_decay(comparison)}"


def with_curve(comparisons: Sequence[Comparison]) -> Iterator[list[Comparison]]:
    """Yields the comparisons of each experiment that has plain training at five budgets or more.

    Without those with a run that ended at no number, as one that diverged.
    """
    ended = [item for item in comparisons if all(math.isfinite(run.final) for run in item.runs)]
    for group in group_by_settings(ended, "budget", "evaluations", "device"):
        budgets = {item.arguments.get("budget") for item in group if TRADITIONAL in item.by_label()}
        if len(budgets - {None}) >= LEAST_POINTS:
            yield group


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
    return ", ".join(
        f"on {title} ({listed(f'{case.budget:g}' for case in group)} epochs)"
        for title, group in groupby(cases, lambda case: case.experiment.title)
    )


def band_of(ratio: BudgetRatio) -> str | None:
    """Returns the words for a ratio, a key of `BANDS` or `FLAT`.

    None for one that is only known to be above or below a number, where it may be of several.
    """
    if ratio.flat:
        return FLAT
    ends = {"below": (0.0, ratio.ratio.value), "above": (ratio.ratio.value, math.inf)}
    low, high = ends.get(ratio.ratio.side, (ratio.ratio.value,) * 2)
    bands = [next(words for words, least in BANDS.items() if end >= least) for end in (low, high)]
    return bands[0] if bands[0] == bands[1] else None


def ratios_on_the_map(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Budget ratios as colours, by plain training's error at the budget and by the data.

    A panel for each method that was measured at several budgets of an experiment, and in several
    experiments, that are judged by errors, at budgets that plain training was measured at too. In
    one view the other axis is the number of training examples, in the other the budget in epochs.
    Ratios that are only known to be above or below a number are in neither, unless all that they
    may be has the same colour.
    """
    groups = group_for_map(method_ratios(experiments(comparisons)))
    for label, cases in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield from map_findings(label, cases)


def group_for_map(methods: Sequence[MethodRatio]) -> dict[str, list[MethodRatio]]:
    """Returns the ratios that the map may show, by the label of the method."""
    of_errors = [case for case in methods if case.experiment.metric.name == "error"]
    cases = [case for case in of_errors if case.leaves_out and case.budget in case.experiment.curve]
    by_label = {case.label: [like for like in cases if like.label == case.label] for case in cases}
    if of_default := ratios_of_default(cases):
        by_label[DEFAULT_LABEL] = of_default
    return by_label


def map_findings(label: str, cases: Sequence[MethodRatio]) -> Iterator[Finding]:
    """Yields the map of a method that was measured at several budgets, in several experiments."""
    sized = [case for case in cases if case.experiment.examples]
    budgets = Counter(case.experiment.title for case in sized)
    if len(budgets) > 1 and max(budgets.values()) > 1:
        axes = {"examples": "training examples", "epochs": "budget, in epochs"}
        views = {name: [panel_of(label, sized, axis)] for name, axis in axes.items()}
        yield Finding(sentence_of(label, cases), views=views)


def panel_of(label: str, cases: Sequence[MethodRatio], y_label: str) -> Panel:
    """Returns the points of a method, a series for each colour."""
    series = []
    for words in (*BANDS, FLAT):
        group = [case for case in cases if band_of(case.ratio) == words]
        x = [case.experiment.means[case.budget] for case in group]
        of_examples = [float(case.experiment.examples or 0) for case in group]
        y = [case.budget for case in group] if "budget" in y_label else of_examples
        if group:
            series.append(Series(words, x, y, group=words))
    x_label = f"{PLAIN}'s error at the budget, %"
    return Panel(library_name(label), x_label, y_label, "points", series, log_x=True, log_y=True)


def sentence_of(label: str, cases: Sequence[MethodRatio]) -> str:
    """Returns the lowest and the highest ratio of a method, with where they were measured."""
    known = [case for case in cases if not case.ratio.flat]
    known.sort(key=lambda case: case.ratio.ratio.rank)
    if not known:
        return f"{library_name(label)}: flat in all of {counted(len(cases), 'case')}."
    lowest, highest = (
        f"{case.ratio.ratio} ({case.experiment.title}, {case.budget:g} epochs)"
        for case in (known[0], known[-1])
    )
    flat = len(cases) - len(known)
    return (
        f"{library_name(label)}: {counted(len(known), 'ratio')} from {lowest} to {highest}"
        f"{f', and {flat} on a flat curve' if flat else ''}."
    )


def default_ratios(methods: Sequence[MethodRatio]) -> list[MethodRatio]:
    """Returns the ratios of the default, the lowest first, and last those of flat curves.

    Of the latter those come first on which it is worse. Without those where nothing was left out.
    """
    cases = [case for case in ratios_of_default(methods) if case.leaves_out]

    def position(case: MethodRatio) -> tuple[bool, int, tuple[int, float]]:
        goodness = -OUTCOMES.index(case.outcome) if case.ratio.flat else 0
        return case.ratio.flat, goodness, case.ratio.ratio.rank

    return sorted(cases, key=position)


def worst_ratios(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The budget ratios of the default strategy, the lowest first and those of flat curves last.

    Bold where it is below `LEAST`, and where it is worse on a flat curve. A median is given of the
    budgets with five ratios or more; of an even number it is the higher one of the two.
    """
    return worst_findings(method_ratios(experiments(comparisons)))


def worst_findings(methods: Sequence[MethodRatio]) -> Iterator[Finding]:
    """Yields what `worst_ratios` gives, from the ratios of all methods."""
    cases = default_ratios(methods)
    known = [case for case in cases if not case.ratio.flat]
    if known:
        surely = sum(case.falls_below(LEAST) for case in known)
        yield Finding(
            f"{sum(not case.is_worse for case in known)} of {len(known)} ratios of "
            f"{library_name(DEFAULT_LABEL)} are {LEAST:g} or more; lower for sure: {surely}."
        )
    by_budget = groupby(sorted(known, key=lambda case: case.budget), lambda case: case.budget)
    medians = [
        f"{ranked[len(ranked) // 2].words} at {budget:g}"
        for budget, group in by_budget
        if len(ranked := list(group)) >= LEAST_POINTS
    ]
    if medians:
        yield Finding(f"Medians by the budget in epochs: {listed(medians)}.")
    if flat := [case for case in cases if case.ratio.flat]:
        yield Finding(
            f"On flat curves it is worse, or likely worse, in "
            f"{sum(case.is_worse for case in flat)} of {len(flat)} cases."
        )
    for case in cases:
        words = f"**{case.words}**" if case.is_worse else case.words
        where = case.experiment.title, f"{case.budget:g}", str(case.ratio.seeds)
        yield Finding(rows=[[*where, case.plain_end, words, case.ratio.interval]])
