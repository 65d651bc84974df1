"""A comparison as a picture: test error, or loss, against training time, steps and cost.

The curve of a configuration is the mean over its seeds at each evaluation: the k-th point is the
mean of the seeds' k-th evaluations over the mean of what they had spent by then, within the
band that the seeds lie in. The seeds are tested at the same points of their training, so nothing
is interpolated.
"""

from dataclasses import replace
from pathlib import Path

from siftback.lab.analyses.configurations import (
    AXES,
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
    """The curves of all configurations, and as a line where Traditional ends.

    A matched run has the colour of the run whose budget it shares.
    """
    found = configurations(comparison)
    panels = [_panel(view, axis, label, found) for view, (axis, label) in AXES.items()]
    final = f"final test {comparison.metric.noun}"
    title = f"{setup(comparison)}: {final}, mean ± standard deviation over the seeds"
    return Figure(PLOT, title, [], "", {"all": panels})


def _panel(view: str, axis: Axis, x_label: str, found: list[Configuration]) -> Panel:
    series = []
    for one in found:
        final = mean_and_spread(run.final for run in one.runs)
        line = curve(one, axis, partner_label(one.runs[0]) or one.label)
        written = f"{with_spread(final, digits=one.metric.digits)} {one.metric.unit}"
        series.append(replace(line, label=f"{one.label}: {written}"))
    if plain := traditional(found):  # what all others would reach, for less
        ends = [0.0, max(float(x) for one in series for x in one.x)]
        level = [plain.final] * 2
        series.append(Series("traditional at the end", ends, level, group=TRADITIONAL, faint=True))
    positive = all(y > 0 for one in series for y in one.y)
    y_label = found[0].metric.axis
    return Panel(f"over {view}", x_label, y_label, "line", series, log_y=positive)
