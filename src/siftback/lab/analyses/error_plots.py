"""A comparison as a picture: test error against training time, steps and cost.

The curve of a configuration is the mean over its seeds at each evaluation: the k-th point is the
mean error of the seeds' k-th evaluations over the mean of what they had spent by then. The seeds
are tested at the same points of their training, so nothing is interpolated; every seed's own
curve lies thin behind the mean, so nothing is hidden by it either.
"""

import math
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from siftback.lab.records.comparison_record import Comparison, Evaluation
from siftback.lab.records.formatting import listed, with_spread
from siftback.lab.records.measures import (
    MATCHED,
    TRADITIONAL,
    Axis,
    mean_and_spread,
    ordered_labels,
    partner_label,
)

PLOT = "error"
FORMATS = ("png", "svg")

# Okabe and Ito's colours, told apart with any colour vision; black is kept for Traditional and
# yellow, faint on white, comes last.
COLOURS = ("#E69F00", "#0072B2", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v")

_PANELS: tuple[tuple[Axis, str], ...] = (
    ("seconds", "training time (s, evaluation apart)"),
    ("steps", "optimizer steps"),
    ("cost", "cost (forwards of one example, backward = 2)"),
)


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Draws ``error.png`` and ``error.svg``, a panel each for time, steps and cost.

    Matched runs are dashed, in the colour of the run whose budget they share. Drawn again from
    the same records, the SVG has the same bytes.

    Args:
        comparison: The runs.
        folder: Where the pictures go; made where it is missing.

    Returns:
        The pictures' paths; none where no run has finished.
    """
    if not comparison.runs:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    figure = _figure(comparison)
    paths = [folder / f"{PLOT}.{ending}" for ending in FORMATS]
    with matplotlib.rc_context({"svg.hashsalt": "siftback"}):
        for path in paths:
            dated: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=dated)
    return paths


def styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Line style by label: a colour a configuration, shared dashed by its matched run."""
    groups = comparison.by_label()
    looks: dict[str, dict[str, Any]] = {}
    used = 0
    for label in ordered_labels(comparison):
        partner = looks.get(partner_label(groups[label][0]) or "")
        if label == TRADITIONAL:
            looks[label] = {"color": "black", "marker": MARKERS[0]}
        elif partner:
            looks[label] = {"color": partner["color"], "marker": partner["marker"]}
        else:
            turn, colour = divmod(used, len(COLOURS))
            looks[label] = {
                "color": COLOURS[colour],
                "marker": MARKERS[turn % len(MARKERS)],
            }
            used += 1
        matched = groups[label][0].strategy == MATCHED
        looks[label]["linestyle"] = (0, (3, 1.5)) if matched else "solid"
        looks[label]["markerfacecolor"] = "white" if matched else looks[label]["color"]
    return looks


def mean_curve(seeds: list[list[Evaluation]], axis: Axis) -> tuple[list[float], list[float]]:
    """The mean curve over the seeds at each evaluation that all of them have.

    Returns:
        Mean amounts spent and mean test errors, one each per evaluation.
    """
    together = list(zip(*seeds, strict=False))
    spent = [float(np.mean([getattr(one, axis) for one in each])) for each in together]
    return spent, [float(np.mean([one.test_error for one in each])) for each in together]


def _figure(comparison: Comparison) -> Figure:
    groups = comparison.by_label()
    curves = {
        label: [comparison.evaluations(run) for run in groups[label]]
        for label in ordered_labels(comparison)
    }
    columns = min(3, len(groups))
    legend_rows = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(13, 4.7 + 0.22 * legend_rows), layout="constrained")
    panels = figure.subplots(1, len(_PANELS), sharey=True)
    for panel, (axis, name) in zip(panels, _PANELS, strict=True):
        for label, look in styles(comparison).items():
            final = mean_and_spread(run.test_error_final for run in groups[label])
            _curve(panel, curves[label], axis, look, f"{label}: {with_spread(final)} %")
        if TRADITIONAL in groups:  # What all others would reach, for less.
            errors = (run.test_error_final for run in groups[TRADITIONAL])
            panel.axhline(mean_and_spread(errors).mean, color="black", linewidth=0.8, linestyle=":")
        panel.set_xlabel(name)
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        if axis != "seconds":
            panel.xaxis.set_major_formatter(EngFormatter(sep=" "))
        panel.grid(color="0.9", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test error (%)")
    log_axis(panels[0], [one.test_error for seeds in curves.values() for one in chain(*seeds)])
    models, data = (
        listed(getattr(run, name) for run in comparison.runs) for name in ("model", "data")
    )
    figure.suptitle(f"{models} on {data}", fontweight="bold")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.2,
        title="final test error: mean ± standard deviation over the seeds",
    )
    return figure


def _curve(
    panel: Axes, seeds: list[list[Evaluation]], axis: Axis, look: dict[str, Any], label: str
) -> None:
    if seeds[1:]:
        for seed in seeds:
            panel.plot(*mean_curve([seed], axis), color=look["color"], linewidth=0.6, alpha=0.35)
    panel.plot(*mean_curve(seeds, axis), label=label, linewidth=1.7, markevery=[-1], **look)


def log_axis(panel: Axes, values: Iterable[float], which: Literal["x", "y"] = "y") -> None:
    """Log scale, which shows 90 % and 5 % alike, under plain numbers."""
    shown = list(values)
    if not shown or min(shown) <= 0:  # No logarithm: a perfect test stays in the picture.
        return
    panel.set(**{f"{which}scale": "log"})
    axis = panel.yaxis if which == "y" else panel.xaxis
    # Where all lies within one decade, ticks at every power of ten would leave none or one.
    steps = (1, 1.5, 2, 3, 4, 5, 7) if max(shown) / min(shown) < 20 else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
