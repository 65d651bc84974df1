"""The best error for what it costs: figure 14 of Jiang et al. 2019."""

from collections.abc import Iterator, Sequence

import pandas as pd

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.curves import AXES, mean_curves, read_curves
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import images, number_set
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import machine_of
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.strategies.table import strategy_name


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
                rows += [(*about, x, y) for x, y in zip(line.x, line.y, strict=True)]
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
