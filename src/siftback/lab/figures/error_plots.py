"""A comparison as a picture: test error, or loss, against training time, steps and cost.

The curve of a configuration is the mean over its seeds at each evaluation: the k-th point is the
mean of the seeds' k-th evaluations over the mean of what they had spent by then, within the
band that the seeds lie in. The seeds are tested at the same points of their training, so nothing
is interpolated.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from siftback.lab.figures.curves import AXES, curve_panel, mean_curves
from siftback.lab.figures.drawing import save_pictures
from siftback.lab.figures.figure import Figure, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import mean_and_spread, read_evaluations, read_runs
from siftback.lab.records.run_summary import METRICS, TRADITIONAL
from siftback.lab.strategies.table import PLAIN, library_name

PLOT = "error"


def draw_errors(comparison: Comparison, folder: Path) -> list[Path]:
    """Draws ``error.png`` and ``error.svg``, a panel each for time, steps and cost.

    Args:
        comparison: The runs.
        folder: Where the pictures go; made where it is missing.

    Returns:
        The pictures' paths; none where no run has finished.
    """
    return save_pictures(error_figure(comparison), folder) if comparison.runs else []


def error_figure(comparison: Comparison) -> Figure:
    """Plots the curves of all configurations, and as lines where plain training ends and its cost.

    A matched run has the colour of the run whose budget it shares.
    """
    runs, tests = read_runs(comparison), read_evaluations(comparison)
    partners = {run.label: run.partner for run in comparison.runs}
    plain, metric, panels = runs[runs.label == TRADITIONAL], comparison.metric, []
    for view, (axis, _) in AXES.items():
        series = []
        for line in mean_curves(tests, axis, by="label"):
            final = mean_and_spread(runs.final[runs.label == line.group])
            label = f"{line.label}: {final:.{metric.digits}f} {metric.unit}"
            series.append(replace(line, label=label, group=partners[line.group]))
        if not plain.empty:
            if view == "cost":
                budget = float(plain.cost_forward_units.mean())
                series.append(budget_line(f"budget of {PLAIN}", budget, series))
            # What all others would reach, for less.
            ends = [0.0, max(float(x) for line in series for x in line.x)]
            level, label = [float(plain.final.mean())] * 2, f"{PLAIN} at the end"
            series.append(Series(label, ends, level, group=TRADITIONAL, faint=True))
        panels.append(curve_panel(f"over {view}", view, metric.axis, series))
    final_end = f"final test {metric.noun}, mean ± standard deviation over the seeds"
    return Figure(PLOT, f"{comparison.setup}: {final_end}", [], "", {"all": panels})


def error_over_cost(
    title: str, curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]], budget: float
) -> Figure:
    """Plots test error against what was spent, with a line at the budget.

    Where all runs have the same budget, whose curve is lowest at the line has used it best.

    Args:
        title: Model and data.
        curves: By strategy, ``traditional`` for plain training, for each seed its evaluations
            ``(cost, error)``, those of the seeds at the same points of training. The cost is in
            forwards of one example, a backward being 2, or in whatever ``budget`` is.
        budget: The cost that a run may have.

    >>> figure = error_over_cost("A net on digits", {"memory": [[(1, 9), (2, 5)]]}, budget=2)
    >>> [(line.label, line.x, line.y) for line in figure.views["cost"][0].series]
    [('memory', [1, 2], [9, 5]), ('budget', [2, 2], [5, 9])]
    """
    series = []
    for label, seeds in curves.items():
        tests = list(zip(*seeds, strict=True))
        x = [statistics.mean(cost for cost, _ in points) for points in tests]
        errors = [[error for _, error in points] for points in tests]
        series.append(Series.over_seeds(library_name(label), x, errors, label))
    series.append(budget_line("budget", budget, series))
    panel = curve_panel("", "cost", METRICS["error"].axis, series)
    return Figure(PLOT, f"{title}: what the budget buys", [], "", {"cost": [panel]})


def budget_line(label: str, budget: float, series: Sequence[Series]) -> Series:
    """Plots a line upwards at a cost, as high as the series that it is drawn among.

    Args:
        label: Its name in the legend.
        budget: The cost.
        series: The others.
    """
    y = [y for line in series for y in (*line.y, *(line.low or ()), *(line.high or ()))]
    return Series(label, [budget] * 2, [min(y), max(y)], group=TRADITIONAL, faint=True)
