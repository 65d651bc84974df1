"""The best error for what it costs: figure 14 of Jiang et al. 2019."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from siftback.lab.figures.curves import AXES, mean_curves, read_curves
from siftback.lab.figures.describe import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import images
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import machine_of
from siftback.lab.records.run_summary import TRADITIONAL, Metric


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


def trade_off(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 14: test error against time, of every configuration at every evaluation.

    Comparisons of one model on one data set share a panel, and a frontier; over time, only those
    that were measured on one machine. A point is the mean over the seeds of a configuration at
    an evaluation. Matched runs are Traditional, of another length.
    """
    panels: dict[str, dict[tuple[str, Metric], list[Point]]] = {"time": {}, "cost": {}, "steps": {}}
    for comparison in comparisons:
        if len(comparison.by_label()) < 2:
            continue
        (curves,) = read_curves([comparison])
        # Comparisons that differ in their images or their labels' noise are not one task.
        task = curves.title + images(comparison)
        for view, by_heading in panels.items():
            for line in mean_curves(curves.tests, AXES[view][0]):
                machine = f", on {machine_of(curves.runs, line.label)}" if view == "time" else ""
                points = by_heading.setdefault((f"{task}{machine}", curves.metric), [])
                # What is faint is Traditional, matched.
                family = TRADITIONAL if line.faint else line.group
                points += [
                    Point(x, y, family) for x, y in zip(map(float, line.x), line.y, strict=True)
                ]
    for view, by_heading in panels.items():
        for (heading, metric), points in by_heading.items():
            panel = plot_frontier(heading, AXES[view][1], metric.axis, points)
            sentence = ""
            if view == "time":
                shares = sorted(frontier_shares(points).items(), key=lambda item: -item[1])
                written = ", ".join(f"{family} {share:.0%}" for family, share in shares)
                count = sum(frontier(points))
                sentence = f"{heading}: of {count} Pareto-optimal points, {written}."
            yield Finding(sentence, metric.noun, {view: [panel]})


def plot_frontier(heading: str, x_label: str, y_label: str, points: Sequence[Point]) -> Panel:
    """Plots points by family, those that are not Pareto-optimal faint."""
    groups: dict[tuple[str, bool], list[Point]] = {}
    for family in dict.fromkeys(point.family for point in points):
        groups |= {(family, True): [], (family, False): []}
    for point, is_on in zip(points, frontier(points), strict=True):
        groups[point.family, not is_on].append(point)
    series = [
        Series(
            f"{family}, not optimal" if faint else family,
            [point.spent for point in among],
            [point.error for point in among],
            group=family,
            faint=faint,
        )
        for (family, faint), among in groups.items()
        if among
    ]
    positive = all(point.error > 0 and point.spent > 0 for point in points)
    return Panel(heading, x_label, y_label, "points", series, log_x=positive, log_y=positive)
