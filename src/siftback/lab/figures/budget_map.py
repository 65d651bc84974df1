"""Where selection pays: budget ratios over what plain training leaves, and how large the data are.

A reader knows two things of a case of their own before any selection: how many examples there are,
and where plain training ends within the budget. Both are on the axes.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from siftback.lab.figures.budget_ratios import BudgetRatio
from siftback.lab.figures.describe import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.pays import (
    DEFAULT_LABEL,
    LEAST,
    Experiment,
    MethodRatio,
    experiments,
    method_ratios,
    ratios_of_default,
)
from siftback.lab.figures.styles import FLAT, RATIOS
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import counted
from siftback.lab.records.frame import OUTCOMES, Outcome
from siftback.lab.strategies.table import library_name

BANDS = dict(zip(RATIOS, (1.5, 1.2, 1.05, LEAST, 0.0), strict=True))
"""The least ratio of each colour, by its words."""

WORSE: tuple[Outcome, ...] = ("worse", "likely worse")


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


def ratios_on_the_map(
    comparisons: Sequence[Comparison], only: str | None = None
) -> Iterator[Finding]:
    """Budget ratios as colours, by Traditional's error at the budget and by the data.

    A panel for each method that was measured at several budgets of an experiment, and in several
    experiments, that are judged by errors, at budgets that Traditional was measured at too. In one
    view the other axis is the number of training examples, in the other the budget in epochs.
    Ratios that are only known to be above or below a number are in neither, unless all that they
    may be has the same colour.

    Args:
        comparisons: What to look at.
        only: The label of a method, for its panel alone.
    """
    cases = [
        case
        for case in method_ratios(experiments(comparisons))
        if case.budget in case.experiment.curve
        and case.experiment.metric.name == "error"
        and leaves_out(case)
    ]
    by_label: dict[str, list[MethodRatio]] = {}
    for case in cases:
        by_label.setdefault(case.label, []).append(case)
    if of_default := ratios_of_default(cases):
        by_label[DEFAULT_LABEL] = of_default
    for label, group in sorted(by_label.items(), key=lambda item: -len(item[1])):
        sized = [case for case in group if case.experiment.examples]
        budgets = Counter(case.experiment.title for case in sized)
        if only not in (None, label) or len(budgets) < 2 or max(budgets.values()) < 2:
            continue
        axes = {"examples": "training examples", "epochs": "budget, in epochs"}
        views = {name: [panel_of(label, sized, axis)] for name, axis in axes.items()}
        yield Finding(sentence_of(label, group), views=views)


def leaves_out(case: MethodRatio) -> bool:
    """Whether a method left anything out: in an epoch or less a rule does not.

    It is plain training there, and a ratio the noise of a device that computes no step twice alike.
    """
    runs = case.experiment.runs
    return bool(
        (runs.keep_measured[(runs.label == case.label) & (runs.budget == case.budget)] < 1).any()
    )


def panel_of(label: str, cases: Sequence[MethodRatio], y_label: str) -> Panel:
    """Returns the points of a method, a series for each colour."""
    series = []
    for words in (*BANDS, FLAT):
        group = [case for case in cases if band_of(case.ratio) == words]
        x = [fmean(case.experiment.curve[case.budget].values()) for case in group]
        of_examples = [float(case.experiment.examples or 0) for case in group]
        y = [case.budget for case in group] if "budget" in y_label else of_examples
        if group:
            series.append(Series(words, x, y, group=words))
    x_label = "plain training's error at the budget, %"
    return Panel(library_name(label), x_label, y_label, "points", series, log_x=True, log_y=True)


def sentence_of(label: str, cases: Sequence[MethodRatio]) -> str:
    """Returns the lowest and the highest ratio of a method, with where they were measured."""
    known = sorted(
        (case for case in cases if not case.ratio.flat), key=lambda case: case.ratio.ratio.rank
    )
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


def default_ratios(measured: Sequence[Experiment]) -> list[MethodRatio]:
    """Returns the ratios of the default, the lowest first, and last those of flat curves.

    Of the latter those come first on which it is worse. Without those where nothing was left out.
    """
    cases = [case for case in ratios_of_default(method_ratios(measured)) if leaves_out(case)]

    def position(case: MethodRatio) -> tuple[bool, int, tuple[int, float]]:
        if not case.ratio.flat:
            return False, 0, case.ratio.ratio.rank
        return True, -OUTCOMES.index(case.outcome), case.ratio.ratio.rank

    return sorted(cases, key=position)


def worst_ratios(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The budget ratios of the default strategy, the lowest first and those of flat curves last.

    Bold where it is below `LEAST`, and where it is worse on a flat curve.
    """
    cases = default_ratios(experiments(comparisons))
    known = [case for case in cases if not case.ratio.flat]
    worse = [case for case in known if not case.reaches(LEAST)]
    flat = [case for case in cases if case.ratio.flat]
    if known:
        surely = sum(case.falls_below(LEAST) for case in worse)
        yield Finding(
            f"{len(known) - len(worse)} of {len(known)} ratios of "
            f"{library_name(DEFAULT_LABEL)} are {LEAST:g} or more; lower for sure: {surely}."
        )
    if flat:
        yield Finding(
            f"On flat curves it is worse, or likely worse, in "
            f"{sum(case.outcome in WORSE for case in flat)} of {len(flat)} cases."
        )
    for case in cases:
        is_worse = case.outcome in WORSE if case.ratio.flat else not case.reaches(LEAST)
        words = f"**{case.words}**" if is_worse else case.words
        where = case.experiment.title, f"{case.budget:g}", str(case.ratio.seeds)
        ends = case.experiment.curve.get(case.budget)
        plain = case.experiment.metric.written(fmean(ends.values())) if ends else None
        yield Finding(rows=[[*where, plain, words, case.ratio.interval]])
