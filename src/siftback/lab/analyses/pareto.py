"""The best error for what it costs: figure 14 of Jiang et al. 2019."""

from collections.abc import Sequence
from typing import NamedTuple

from siftback.lab.analyses.configurations import (
    AXES,
    Configuration,
    configurations,
    curve,
    images,
    judged,
    titled,
)
from siftback.lab.analyses.curves import PAPER
from siftback.lab.analyses.figure import Figure, Missing, Panel, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import MATCHED, TRADITIONAL, Axis

FEWEST = 2


class Point(NamedTuple):
    """A test error, what had been spent on it, and by which family of strategies."""

    spent: float
    error: float
    family: str


def frontier(points: Sequence[Point]) -> list[bool]:
    """Which points are Pareto-optimal: none other is as good in both and better in one.

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


def shares(points: Sequence[Point]) -> dict[str, float]:
    """The share of the Pareto-optimal points that each family has.

    >>> shares([Point(1, 9, "a"), Point(2, 5, "b"), Point(3, 4, "b"), Point(4, 7, "c")])
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
    held = [one for one in comparisons if len(one.by_label()) >= FEWEST]
    name, title = "fig14", f"The best test {judged(held)} for what was spent"
    if not held:
        why = "No comparison of two configurations. Record one: siftback compare"
        return Missing(name, title, f"{why} --strategies traditional,sb,stale-sb,kath18")
    views, sentences = {}, []
    for view in ("time", "cost", "steps"):
        panels = []
        axis, x_label = AXES[view]
        for heading, found in _together(held, view == "time").items():
            points = {one: _points(one, axis) for one in found}
            panels.append(_panel(heading, x_label, found[0].metric.axis, points))
            if view == "time":
                every = [point for each in points.values() for point in each]
                sentences.append(_sentence(heading, every))
        views[view] = panels
    return Figure(name, title, sentences, f"{PAPER}, figure 14", views)


def _together(
    comparisons: Sequence[Comparison], by_machine: bool
) -> dict[str, list[Configuration]]:
    """The configurations that can be held against each other, by what they share."""
    found: dict[str, list[Configuration]] = {}
    for comparison in comparisons:
        # Comparisons that differ in their images or their labels' noise are no longer one task.
        task = titled([comparison])[0][0] + images(comparison)
        for one in configurations(comparison):
            machine = f", on {comparison.machine(one.label)}" if by_machine else ""
            found.setdefault(f"{task}{machine}", []).append(one)
    return found


def _points(one: Configuration, axis: Axis) -> list[Point]:
    line = curve(one, axis)
    family = TRADITIONAL if one.strategy == MATCHED else one.family
    spent = [float(value) for value in line.x]
    return [Point(x, y, family) for x, y in zip(spent, line.y, strict=True)]


def _panel(
    heading: str, x_label: str, y_label: str, points: dict[Configuration, list[Point]]
) -> Panel:
    every = [point for each in points.values() for point in each]
    optimal = dict(zip(map(id, every), frontier(every), strict=True))
    series = []
    for family in dict.fromkeys(point.family for point in every):
        of_it = [point for point in every if point.family == family]
        for faint in (True, False):
            chosen = [point for point in of_it if optimal[id(point)] != faint]
            label = family if not faint else f"{family}, not optimal"
            x, y = [point.spent for point in chosen], [point.error for point in chosen]
            if chosen:
                series.append(Series(label, x, y, group=family, faint=faint))
    positive = all(point.error > 0 and point.spent > 0 for point in every)
    return Panel(heading, x_label, y_label, "points", series, log_x=positive, log_y=positive)


def _sentence(heading: str, points: Sequence[Point]) -> str:
    found = sorted(shares(points).items(), key=lambda item: -item[1])
    each = ", ".join(f"{family} {share:.0%}" for family, share in found)
    return f"{heading}: of {sum(frontier(points))} Pareto-optimal points, {each}."
