"""Error over training: figures 6, 7, 11 to 14, 16 and 17 of Jiang et al. 2019."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple, Self

import pandas as pd

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import group_by_settings, images, number_set, titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import listed
from siftback.lab.records.frame import Axis, machine_of, read_evaluations, read_runs
from siftback.lab.records.run_summary import MATCHED, TRADITIONAL, Metric
from siftback.lab.strategies.table import PLAIN, library_name, strategy_name

# What can be on the x axis of a curve: the view's name, the field, and what the axis is called.
AXES: dict[str, tuple[Axis, str]] = {
    "time": ("seconds", "training time (s, evaluation apart)"),
    "steps": ("steps", "optimizer steps"),
    "cost": ("cost", "cost (forwards of one example, a backward being 2)"),
}


class Curves(NamedTuple):
    """Configurations of a comparison, or of several that are shown as one.

    Attributes:
        title: Of their panel.
        comparison: The comparison, or the first of several.
        runs: As `read_runs` returns them.
        tests: Their evaluations, as `read_evaluations` returns them.
    """

    title: str
    comparison: Comparison
    runs: pd.DataFrame
    tests: pd.DataFrame

    @property
    def metric(self) -> Metric:
        """Returns what they are judged by."""
        return self.comparison.metric

    def beside_traditional(self, which: "pd.Series[bool]") -> Self:
        """Returns the configurations of some runs, and plain training."""
        labels = {TRADITIONAL, *self.runs.label[which]}
        runs, tests = (table[table.label.isin(labels)] for table in (self.runs, self.tests))
        return self._replace(runs=runs, tests=tests)

    def means(self, column: str) -> "pd.Series[float]":
        """Returns the mean of a column over the seeds of each configuration, by its label."""
        return self.runs.groupby("label", sort=False)[column].mean()


def read_curves(comparisons: Iterable[Comparison]) -> list[Curves]:
    """Reads the runs and evaluations of each comparison that holds some."""
    return [
        Curves(title, comparison, read_runs(comparison), read_evaluations(comparison))
        for title, comparison in titled(comparisons)
    ]


def error_over_training(comparisons: Sequence[Comparison], view: str = "time") -> Iterator[Finding]:
    """Figures 6 and 7: test error over optimizer steps and over seconds of training."""
    for curves in read_curves(comparisons):
        yield plot_curves(curves, view)


def staleness(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 11: Stale-SB at several intervals n of its selection passes; SB is n = 1."""
    panels = []
    for curves in read_curves(comparisons):
        if not (curves.runs.family == "stale-sb").any():
            continue
        curves = curves.beside_traditional(curves.runs.family.isin(["sb", "stale-sb"]))
        forwards, finals = curves.means("examples_forwarded"), curves.means("final")
        points = [
            Series(library_name(label), [forwards[label]], [final], group=label)
            for label, final in finals.items()
        ]
        x_label, y_label = "examples forwarded in all of training", f"final {curves.metric.axis}"
        panels.append(Panel(curves.title, x_label, y_label, "points", points))
        ends = "; ".join(
            f"{library_name(label)} {forwards[label] / 1e6:.3g} M forwards and "
            f"{curves.metric.written(final)}"
            for label, final in finals.items()
        )
        yield plot_curves(curves, sentence=f"{curves.title}: {ends}.")
    yield Finding(views=dict.fromkeys(AXES, panels))


def label_noise(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 12: SB and plain training where a share of the training labels is wrong."""

    def order(comparison: Comparison) -> tuple[tuple[str, str], float]:
        return task_of(comparison), float(comparison.arguments.get("flip") or 0.0)

    tasks = {task for task, wrong in map(order, comparisons) if wrong}
    in_order = sorted(comparisons, key=order)
    return without_matched(item for item in in_order if task_of(item) in tasks)


def selectivity(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 13: one strategy at several shares kept."""
    for curves in join_sweeps(comparisons):
        selective = curves.runs[curves.runs.selective].drop_duplicates("label")
        counts = selective.strategy.value_counts(sort=False)
        several = counts[counts > 1]
        if several.empty:
            continue
        # SB before others, and then the one that has the most shares.
        swept = "sb" if "sb" in several else several.idxmax()
        curves = curves.beside_traditional(curves.runs.strategy == swept)
        finals, written = curves.means("final"), curves.metric.written
        shares = selective[selective.strategy == swept].sort_values("keep_asked", kind="stable")
        ends = ", ".join(
            f"{run.keep_asked:.2g} kept {written(finals[run.label])}" for run in shares.itertuples()
        )
        if TRADITIONAL in finals:
            ends += f"; {PLAIN} {written(finals[TRADITIONAL])}"
        sentence = f"{curves.title}, final {curves.metric.noun} of {strategy_name(swept)}: {ends}."
        yield plot_curves(curves, sentence=sentence)


def varied(comparisons: Sequence[Comparison], same: Sequence[str], other: str) -> Iterator[Finding]:
    """Figures 16 and 17: several models on one data set, and one on it under several schedules.

    Args:
        comparisons: The records.
        same: What a comparison has in common with another one: "data", or "data" and "model".
        other: What that one has otherwise: "model", or "rate".
    """
    ended = [comparison for comparison in comparisons if comparison.runs]
    facts = [(*task_of(item), str(item.arguments.get("rate"))) for item in ended]
    table = pd.DataFrame(facts, columns=["data", "model", "rate"])
    return without_matched(compress(ended, table.groupby(same)[other].transform("nunique") > 1))


def without_matched(comparisons: Iterable[Comparison]) -> Iterator[Finding]:
    """Plots curves without plain training of other lengths."""
    for curves in read_curves(comparisons):
        shown = curves.beside_traditional(curves.runs.selective)
        if not shown.runs.empty:
            yield plot_curves(shown)


def join_sweeps(comparisons: Iterable[Comparison]) -> Iterator[Curves]:
    """Joins comparisons of equal settings: a sweep has one for each share kept.

    Of a configuration that several hold, it is the first one's.
    """
    groups = group_by_settings([comparison for comparison in comparisons if comparison.runs])
    for (title, first), group in zip(titled(group[0] for group in groups), groups, strict=True):
        tables = []
        for read in (read_runs, read_evaluations):
            rows = pd.concat([read(item).assign(number_of=i) for i, item in enumerate(group)])
            tables.append(rows[rows.number_of == rows.groupby("label").number_of.transform("min")])
        yield Curves(title, first, *tables)


def task_of(comparison: Comparison) -> tuple[str, str]:
    """Returns the data and the model."""
    data, model = (listed(getattr(r, name) for r in comparison.runs) for name in ("data", "model"))
    return f"{data}{images(comparison)}", model


def mean_curves(tests: pd.DataFrame, x: str, y: str = "judged", by: str = "family") -> list[Series]:
    """Returns means over the seeds of a column over another, and between which ends the seeds lie.

    The k-th point of a curve is of the seeds' k-th evaluations, up to the last that all have.

    Args:
        tests: Evaluations, as `read_evaluations` returns them.
        x: The column that is the x axis.
        y: The column that is the y axis.
        by: The column that is a curve's group: the strategy's family, or the label.

    Returns:
        A curve for each configuration; matched ones stand back.
    """
    last = tests.groupby(["label", "record"]).number.max().groupby("label").min()
    tests = tests[tests.number <= tests.label.map(last)]
    # Not by groups of the table, which take many times as long for as few rows.
    points: dict[tuple[str, str, str], dict[int, list[tuple[float, float]]]] = {}
    keys = zip(tests.label, tests[by], tests.strategy, strict=True)
    for key, number, amount, value in zip(keys, tests.number, tests[x], tests[y], strict=True):
        points.setdefault(key, {}).setdefault(number, []).append((amount, value))
    series = []
    for (label, group, strategy), by_number in points.items():
        of_line = [by_number[number] for number in sorted(by_number)]
        spent = [statistics.fmean(amount for amount, _ in seeds) for seeds in of_line]
        heights = [[value for _, value in seeds] for seeds in of_line]
        name, is_matched = library_name(label), strategy == MATCHED
        series.append(Series.over_seeds(name, spent, heights, group, is_matched))
    return series


def plot_curves(curves: Curves, first: str = "time", sentence: str = "") -> Finding:
    """Plots error over time, steps and cost.

    Args:
        curves: The configurations.
        first: The view that comes first.
        sentence: The finding, where each configuration has a colour of its own; where there is
            none, one colour per strategy, and how the best configuration ends.
    """
    views, by = {}, "label" if sentence else "family"
    for view in sorted(AXES, key=lambda view: view != first):
        series = mean_curves(curves.tests, AXES[view][0], by=by)
        views[view] = [curve_panel(curves.title, view, curves.metric.axis, series)]
    return Finding(sentence or describe_best(curves, first), curves.metric.noun, views)


def curve_panel(title: str, view: str, y_label: str, series: Sequence[Series]) -> Panel:
    """Plots curves over one of `AXES`, on a logarithmic scale where all of them have logarithms."""
    positive = all(value > 0 for line in series for value in line.y)
    return Panel(title, AXES[view][1], y_label, "line", series, log_y=positive)


def describe_best(curves: Curves, view: str) -> str:
    """Says how the best selective configuration ends, beside plain training."""
    finals = curves.means("final")
    selective = curves.runs.label[curves.runs.selective].unique()
    best = finals[selective if len(selective) else finals.index].fillna(float("inf")).idxmin()
    title, metric, end = curves.title, curves.metric, finals[best]
    if best == TRADITIONAL or TRADITIONAL not in finals:
        return best_end(title, metric, library_name(best), end, None)
    axis, unit = AXES[view][0], {"time": "seconds"}.get(view, view)
    spent = curves.tests.groupby(["label", "record"])[axis].last().groupby("label").mean()
    whole = spent[TRADITIONAL]
    share = f", with {spent[best] / whole:.2f} of its {unit}" if whole else ""
    return best_end(title, metric, library_name(best), end, finals[TRADITIONAL], share)


def best_end(
    title: str, metric: Metric, name: str, end: float, baseline: float | None, share: str = ""
) -> str:
    """Says how the best configuration ends, beside plain training where that was run.

    Args:
        title: The comparison.
        metric: What it is judged by.
        name: The best configuration's, for readers.
        end: Its final error or loss.
        baseline: Plain training's.
        share: What it spent of what plain training did.
    """
    beside = "" if baseline is None else f", {PLAIN} at {metric.written(baseline)}{share}"
    return f"{title}: {name} ends at {metric.written(end)}{beside}."


def frontier(points: pd.DataFrame) -> "pd.Series[bool]":
    """Tells which points are Pareto-optimal: none other is as good in both and better in one.

    Points that are equal in both are all optimal, or none is.

    Args:
        points: What was ``spent``, and the ``error``, of each.

    >>> frontier(pd.DataFrame({"spent": [1, 2, 3, 4], "error": [9, 5, 5, 7]})).tolist()
    [True, True, False, False]
    """
    stairs = points.groupby("spent").error.min()  # the least error of each amount
    # The first has none before it.
    return points.error == points.spent.map(stairs[~(stairs >= stairs.cummin().shift())])


def trade_off(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 14: test error against time, of every configuration at every evaluation.

    Comparisons of one model on one data set share a panel, and a frontier; over time, only those
    that were measured on one machine. Panels of data sets of one name, of which records say that
    they have other examples, are numbered. A point is the mean over the seeds of a configuration at
    an evaluation. Matched runs are plain training, of another length.
    """
    rows, sets = [], dict[str, dict[str, int]]()
    for comparison in comparisons:
        if len(comparison.by_label()) < 2:
            continue
        (curves,) = read_curves([comparison])
        # Comparisons that differ in their images or their labels' noise are not one task.
        task = curves.title + images(comparison)
        if number := number_set(sets, task, comparison):
            task += f" ({number + 1})"
        families = dict(zip(curves.runs.label, curves.runs.family, strict=True))
        for view in ("time", "cost", "steps"):
            for line in mean_curves(curves.tests, AXES[view][0], by="label"):
                machine = f", on {machine_of(curves.runs, line.group)}" if view == "time" else ""
                # What is faint is plain training, matched.
                family = TRADITIONAL if line.faint else families[line.group]
                about = view, f"{task}{machine}", curves.metric, family
                rows += [(*about, x, y) for x, y in zip(line.x, line.y, strict=True) if pd.notna(y)]
    table = pd.DataFrame(rows, columns=["view", "heading", "metric", "family", "spent", "error"])
    for (view, heading, metric), points in table.groupby(["view", "heading", "metric"], sort=False):
        points = points.assign(optimal=frontier(points))
        sentence, count = "", points.optimal.sum()
        if view == "time":
            shares = points.groupby("family", sort=False).optimal.sum() / count
            shares = shares.sort_values(ascending=False, kind="stable")
            written = ", ".join(f"{strategy_name(name)} {s:.0%}" for name, s in shares.items())
            sentence = f"{heading}: of {count} Pareto-optimal points, {written}."
        panel = plot_frontier(heading, AXES[view][1], metric.axis, points)
        yield Finding(sentence, metric.noun, {view: [panel]})


def plot_frontier(heading: str, x_label: str, y_label: str, points: pd.DataFrame) -> Panel:
    """Plots points by family, those that are not Pareto-optimal faint."""
    series = []
    for family, of_family in points.groupby("family", sort=False):
        for faint, among in of_family.groupby(~of_family.optimal):
            name = strategy_name(family) + (", not optimal" if faint else "")
            spent, errors = list(among.spent), list(among.error)
            series.append(Series(name, spent, errors, group=family, faint=bool(faint)))
    positive = bool((points[["spent", "error"]] > 0).all(axis=None))
    return Panel(heading, x_label, y_label, "points", series, log_x=positive, log_y=positive)
