"""A comparison as a picture: test error against training time, steps and cost.

The curve of a configuration is the mean over its seeds at each evaluation: the k-th point is the
mean error of the seeds' k-th evaluations over the mean of what they had spent by then, within the
band that the seeds lie in. The seeds are tested at the same points of their training, so nothing
is interpolated.
"""

from dataclasses import replace
from pathlib import Path

from siftback.lab.analyses.configurations import (
    AXES,
    ERROR,
    Configuration,
    configurations,
    curve,
    setup,
    traditional,
)
from siftback.lab.analyses.drawing import draw as draw_figure
from siftback.lab.analyses.figure import Figure, Panel, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import with_spread
from siftback.lab.records.measures import TRADITIONAL, Axis, mean_and_spread, partner_label

PLOT = "error"


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Draws ``error.png`` and ``error.svg``, a panel each for time, steps and cost.

    Args:
        comparison: The runs.
        folder: Where the pictures go; made where it is missing.

    Returns:
        The pictures' paths; none where no run has finished.
    """
    return draw_figure(error_figure(comparison), folder) if comparison.runs else []


def error_figure(comparison: Comparison) -> Figure:
    """The curves of all configurations, and as a line the error that Traditional ends at.

    A matched run has the colour of the run whose budget it shares.
    """
    found = configurations(comparison)
    panels = [_panel(view, axis, label, found) for view, (axis, label) in AXES.items()]
    title = f"{setup(comparison)}: final test error, mean ± standard deviation over the seeds"
    return Figure(PLOT, title, [], "", {"all": panels})


def _panel(view: str, axis: Axis, x_label: str, found: list[Configuration]) -> Panel:
    series = []
    for one in found:
        final = mean_and_spread(run.test_error_final for run in one.runs)
        line = curve(one, axis, partner_label(one.runs[0]) or one.label)
        series.append(replace(line, label=f"{one.label}: {with_spread(final)} %"))
    if plain := traditional(found):  # what all others would reach, for less
        ends = [0.0, max(float(x) for one in series for x in one.x)]
        error = [plain.final_error] * 2
        series.append(Series("traditional at the end", ends, error, group=TRADITIONAL, faint=True))
    positive = all(y > 0 for one in series for y in one.y)
    return Panel(f"over {view}", x_label, ERROR, "line", series, log_y=positive)
