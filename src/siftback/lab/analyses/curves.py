"""Error over training: figures 6, 7, 11, 12, 13, 16 and 17 of Jiang et al. 2019."""

from collections.abc import Callable, Sequence
from itertools import groupby

from siftback.lab.analyses.configurations import (
    AXES,
    Configuration,
    argument,
    configurations,
    curve_panel,
    titled,
    traditional,
)
from siftback.lab.analyses.figure import Figure, Missing, Panel
from siftback.lab.measures import mean_ratio
from siftback.lab.records import Comparison
from siftback.lab.table import listed

PAPER = "Jiang et al. 2019"

Titled = tuple[str, list[Configuration]]


def error_over_steps(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 6: test error over optimizer steps."""
    title = "Test error over training iterations"
    return _curves("fig6", title, "figure 6", comparisons, _any, "steps", "siftback compare")


def error_over_time(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 7: test error over seconds of training."""
    title = "Test error over training time"
    return _curves("fig7", title, "figure 7", comparisons, _any, "time", "siftback compare")


def _any(found: list[Configuration]) -> list[Configuration]:
    return found


def _curves(
    name: str,
    title: str,
    source: str,
    comparisons: Sequence[Comparison],
    choose: Callable[[list[Configuration]], list[Configuration]],
    first: str,
    command: str,
    by_label: bool = False,
) -> Figure | Missing:
    """A panel a comparison, of those of its configurations that are chosen.

    Args:
        name: Of the analysis.
        title: What it shows.
        source: The paper's figure.
        comparisons: Where to look.
        choose: Leaves the configurations to show; none leaves the comparison out.
        first: The view that comes first.
        command: What records what is shown.
        by_label: Whether each configuration has a colour of its own.
    """
    chosen = [(of, choose(configurations(one))) for of, one in titled(comparisons)]
    chosen = [(of, found) for of, found in chosen if found]
    if not chosen:
        return Missing(name, title, f"No run shows it. Record some: {command}")
    order = [first, *(view for view in AXES if view != first)]
    views = {
        view: [curve_panel(of, found, view, by_label) for of, found in chosen] for view in order
    }
    sentence = " ".join(_sentence(of, found, first) for of, found in chosen)
    return Figure(name, title, sentence, f"{PAPER}, {source}", views)


def _sentence(title: str, found: Sequence[Configuration], view: str) -> str:
    """How the best selective configuration ends, beside Traditional."""
    selective = [one for one in found if not one.plain]
    plain = traditional(found)
    best = min(selective or found, key=lambda one: one.final_error)
    told = f"{title}: {best.label} ends at {best.final_error:.2f} %"
    if plain is None or best is plain:
        return told + "."
    told += f", traditional at {plain.final_error:.2f} %"
    axis, _ = AXES[view]
    spent, whole = (_spent(one, axis) for one in (best, plain))
    unit = {"time": "seconds", "steps": "steps", "cost": "cost"}[view]
    return f"{told}, with {spent / whole:.2f} of its {unit}." if whole else told + "."


def _spent(configuration: Configuration, axis: str) -> float:
    ends = [float(getattr(curve[-1], axis)) for curve in configuration.curves if curve]
    return sum(ends) / len(ends) if ends else 0.0
