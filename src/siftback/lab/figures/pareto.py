"""The best error for what it costs: figure 14 of Jiang et al. 2019."""

from collections.abc import Sequence
from typing import NamedTuple

from siftback.lab.figures.configurations import (
    AXES,
    Configuration,
    configurations,
    curve,
    images,
    judged,
    titled,
)
from siftback.lab.figures.curves import PAPER
from siftback.lab.figures.figure import Figure, Missing, Panel, Series, build_figure
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import MATCHED, TRADITIONAL


class Point(NamedTuple):
    """A test error, what had been spent on it, and by which family of strategies."""

    spent: float
    error: float
    family: str


def frontier(points: Sequence[Point]) -> list[bool]:
    """Tells which points are Pareto-optimal: none other is as good in both and better in one.

    Points that are equal in both are all optimal, or none is.

    >>> frontier([Point(1, 9, "a"), Point(2, 5, "b"), Point(3, 5, "a"), Point(4, 7, "a")])
    [True, True, False, False]
    """
    least: dict[float, float] = {}  # the least error of each amount that is optimal
    best = float("inf")
    for spent, error, _ in sorted(points):
        if error < best:
            least[spent], best = error, error
    return [least.get(point.spent) == point.error for point in points]


def frontier_shares(points: Sequence[Point]) -> dict[str, float]:
    """Computes the share of the Pareto-optimal points that each family has.

    >>> frontier_shares([Point(1, 9, "a"), Point(2, 5, "b"), Point(3, 4, "b"), Point(4, 7, "c")])
    {'a': 0.3333333333333333, 'b': 0.6666666666666666, 'c': 0.0}
    """
    optimal = [point.family for point, is_on in zip(points, frontier(points), strict=True) if is_on]
    families = dict.fromkeys(point.family for point in points)
    return {family: optimal.count(family) / len(optimal) for family in families}


def trade_off(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 14: test error against time, of every configuration at every evaluation.

    Comparisons of one model on one data set share a panel, and a frontier; over time, only those
    that were measured on one machine. A point is the mean over the seeds of a configuration at
    an evaluation. Matched runs are Traditional, of another length.
    """
    compared = [comparison for comparison in comparisons if len(comparison.by_label()) > 1]
    views: dict[str, list[Panel]] = {}
    sentences = []
    for view in ("time", "cost", "steps"):
        axis, x_label = AXES[view]
        groups: dict[str, list[Configuration]] = {}
        for comparison in compared:
            # Comparisons that differ in their images or their labels' noise are not one task.
            task = titled([comparison])[0][0] + images(comparison)
            for configuration in configurations(comparison):
                machine = f", on {comparison.machine(configuration.label)}"
                heading = f"{task}{machine if view == 'time' else ''}"
                groups.setdefault(heading, []).append(configuration)
        views[view] = []
        for heading, group in groups.items():
            points = []
            for configuration in group:
                matched = configuration.strategy == MATCHED
                family = TRADITIONAL if matched else configuration.family
                line = curve(configuration, axis)
                points += [
                    Point(x, y, family) for x, y in zip(map(float, line.x), line.y, strict=True)
                ]
            views[view].append(plot_frontier(heading, x_label, group[0].metric.axis, points))
            if view == "time":
                shares = sorted(frontier_shares(points).items(), key=lambda item: -item[1])
                written = ", ".join(f"{family} {share:.0%}" for family, share in shares)
                count = sum(frontier(points))
                sentences.append(f"{heading}: of {count} Pareto-optimal points, {written}.")
    title = f"The best test {judged(compared)} for what was spent"
    why = "No comparison of two configurations. Record one: siftback compare"
    why += " --strategies traditional,sb,stale-sb,kath18"
    return build_figure("fig14", title, sentences, f"{PAPER}, figure 14", views, why)


def plot_frontier(heading: str, x_label: str, y_label: str, points: Sequence[Point]) -> Panel:
    """Plots points by family, those that are not Pareto-optimal faint."""
    optimal = frontier(points)
    series = []
    for family in dict.fromkeys(point.family for point in points):
        for faint in (True, False):
            among = [
                point
                for point, is_on in zip(points, optimal, strict=True)
                if point.family == family and is_on != faint
            ]
            if among:
                label = f"{family}, not optimal" if faint else family
                x, y = [point.spent for point in among], [point.error for point in among]
                series.append(Series(label, x, y, group=family, faint=faint))
    positive = all(point.error > 0 and point.spent > 0 for point in points)
    return Panel(heading, x_label, y_label, "points", series, log_x=positive, log_y=positive)
