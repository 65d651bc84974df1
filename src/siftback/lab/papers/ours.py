"""Our side of each of the papers' numbers, from the records, in words.

Each function takes the comparisons that a claim names, and its arguments. It raises
`NotRecordedError` where the comparisons do not hold the number.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.figure import Analysis, Figure, Grid, Missing, Series
from siftback.lab.records import frame
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.strategies.table import PLAIN, library_name

Comparisons = Sequence[Comparison]


class NotRecordedError(Exception):
    """A number is not in the records; says why."""


def final_error(comparisons: Comparisons) -> str:
    """Returns plain training's final error, or loss."""
    runs = frame.read_runs(comparisons[0])
    final = runs.final[runs.label == TRADITIONAL]
    if final.empty:
        raise NotRecordedError("no run of traditional")
    metric = comparisons[0].metric
    return f"{frame.mean_and_spread(final):.{metric.digits}f} {metric.unit}"


def speedup_cells(comparisons: Comparisons, strategy: str, *axes: frame.Axis) -> str:
    """Returns the speed-ups of a strategy to table 1's targets, by default in time and in cost."""
    words: dict[frame.Axis, str] = {"seconds": "time", "cost": "cost"}
    texts = []
    for axis in axes or words:
        cells = _cells(comparisons[:1], strategy, axis).values()
        written = [NOT_REACHED if cell is None else f"{cell:.2f}" for cell in cells]
        texts.append(f"{', '.join(written)} in {words[axis]}")
    return "; ".join(texts)


def at_best(comparisons: Comparisons, strategy: str) -> str:
    """Returns the most that a strategy's speed-up in time is, over data sets and targets."""
    reached = [cell for cell in _cells(comparisons, strategy).values() if cell is not None]
    if not reached:
        raise NotRecordedError("no target was reached")
    return f"up to {max(reached):.2f}"


def over(comparisons: Comparisons, strategy: str, other: str) -> str:
    """Returns the speed-ups of a strategy over another, over data sets and targets."""
    ratios = _ratios(comparisons, strategy, other)
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}, at the one target that both reached"
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def time_saved(comparisons: Comparisons, strategy: str, other: str) -> str:
    """Returns the time to a target that a strategy needs less than another, the mean over all."""
    saved = statistics.mean(1 - 1 / ratio for ratio in _ratios(comparisons, strategy, other))
    return f"{abs(saved):.0%} {'less' if saved >= 0 else 'more'} on average"


def selection_saved(comparisons: Comparisons, strategy: str, other: str) -> str:
    """Returns the seconds of selection in an epoch that a strategy needs less than another."""
    shares = []
    for comparison in comparisons:
        pair = [_runs(comparison, name) for name in (strategy, other)]
        less, base = (statistics.mean(runs.seconds_selection / runs.epochs) for runs in pair)
        shares.append(f"{1 - less / base:.0%} ({comparison.folder.name})")
    return ", ".join(shares)


def left_out(comparisons: Comparisons, strategy: str) -> str:
    """Returns the share of the offered examples that a strategy did not train on."""
    return f"{1 - statistics.mean(_runs(comparisons[0], strategy).keep_measured):.0%}"


def equal_signs(comparisons: Comparisons) -> str:
    """Returns figure 5b's mean at the paper's tenth of a batch."""
    signs = _series("fig5", comparisons, "10% of the batch", panel=1)
    return f"{statistics.mean(signs['highest losses'].y):.0f} % on average"


def cosines(comparisons: Comparisons) -> str:
    """Returns figure 5a's means at a tenth of a batch, after the first epoch."""
    lines = _series("fig5", comparisons, "10% of the batch")
    means = []
    for name in ("highest losses", "random"):
        late = np.asarray(lines[name].y)[np.asarray(lines[name].x, float) > 1]
        means.append(f"{name} {late.mean():.2f}")
    return ", ".join(means)


def at_percentile(comparisons: Comparisons, figure: str, percentile: float) -> str:
    """Returns figure 8's or 9's values at a percentile, of SB and of plain training."""
    lines = _series(figure, comparisons, "percentile")
    labels = library_name(_runs(comparisons[0], "sb").label.iloc[0]), PLAIN
    sb, plain = (
        np.interp(percentile, np.asarray(lines[label].x, float), lines[label].y) for label in labels
    )
    return f"SB {sb:.0f} %, plain training {plain:.0f} %"


def error_difference(comparisons: Comparisons, strategy: str, keep: float | None = None) -> str:
    """Returns a strategy's final error less plain training's."""
    return f"{_difference(comparisons[0], strategy, keep)} points"


def random_and_sb(comparisons: Comparisons) -> str:
    """Returns the final errors of Random-Backprop and SB at a half, less plain training's."""
    random, sb = (_difference(comparisons[0], strategy, 0.5) for strategy in ("random", "sb"))
    return f"Random-Backprop {random} points, SB {sb} points"


def filtered(comparisons: Comparisons, strategy: str) -> str:
    """Returns the share that a strategy left out, and its final error less plain training's."""
    difference = _difference(comparisons[0], strategy)
    return f"{left_out(comparisons, strategy)} left out, error {difference} points"


def pareto(comparisons: Comparisons) -> str:
    """Returns figure 14's shares of the Pareto-optimal points, in time."""
    lines = _series("fig14", comparisons, "time").values()
    optimal = {line.group: len(line.y) for line in lines if not line.faint}
    families_of = {
        "SB and Stale-SB": ("sb", "stale-sb"),
        "plain training": (TRADITIONAL,),
        "Kath18": ("kath18",),
    }
    return ", ".join(
        f"{name} {sum(optimal.get(family, 0) for family in families) / sum(optimal.values()):.0%}"
        for name, families in families_of.items()
    )


def variances(comparisons: Comparisons) -> str:
    """Returns figure 15's mean variance of an example's probability of selection, by strategy."""
    (spread,) = _series("fig15", comparisons, "epoch", panel=-1).values()
    return ", ".join(f"{name} {y:.3f}" for name, y in zip(spread.x, spread.y, strict=True))


def passes(comparisons: Comparisons) -> str:
    """Returns figure 18's backward over its forward, from the least to the most of the models."""
    lines = _series("fig18", comparisons, "time")
    pairs = zip(lines["forward"].y, lines["backward"].y, strict=True)
    ratios = [backward / forward for forward, backward in pairs]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def overhead(benchmark: Path) -> str:
    """Returns the cost of selection beyond its forwards, by its benchmark.

    Args:
        benchmark: What ``benchmarks/overhead.py`` wrote.
    """
    if not benchmark.is_file():
        raise NotRecordedError("benchmarks/overhead.py was not run")
    rows = json.loads(benchmark.read_text(encoding="utf-8"))["rows"]
    shares = [row["measured"] for row in rows if row["what"].startswith("selection beyond")]
    return f"{min(shares):.1%} to {max(shares):.1%} of an SB step"


def epoch(comparisons: Comparisons, strategy: str, keep: float) -> str:
    """Returns the seconds of an epoch, and these over the baseline's."""
    grid = _draw("diet-table", comparisons)
    assert isinstance(grid, Grid)
    label = strategy
    if strategy != TRADITIONAL:
        label = _runs(comparisons[0], strategy, keep).label.iloc[0]
    *_, seconds, ratio = next(row for row in grid.rows if row[0] == library_name(label))
    assert isinstance(seconds, frame.Range)
    assert isinstance(ratio, float)
    return f"{seconds.median:.2f} s, {ratio:.2f} of the baseline's"


def _draw(name: str, comparisons: Comparisons) -> Analysis:
    analysis = ANALYSES[name](comparisons)
    if isinstance(analysis, Missing):
        raise NotRecordedError(analysis.why)
    return analysis


def _series(name: str, comparisons: Comparisons, view: str, panel: int = 0) -> dict[str, Series]:
    """Returns the series of a panel of a figure by their labels."""
    figure = _draw(name, comparisons)
    assert isinstance(figure, Figure)
    return {series.label: series for series in figure.views[view][panel].series}


def _runs(comparison: Comparison, strategy: str, keep: float | None = None) -> pd.DataFrame:
    """Returns the runs of a strategy's first configuration, at a share kept where one is given."""
    runs = frame.read_runs(comparison)
    at_share = True if keep is None else runs.keep_asked == keep
    labels = runs.label[runs.selective & (runs.strategy == strategy) & at_share]
    if labels.empty:
        raise NotRecordedError(f"no run of {strategy}" + ("" if keep is None else f" at {keep:g}"))
    return runs[runs.label == labels.iloc[0]]


def _difference(comparison: Comparison, strategy: str, keep: float | None = None) -> str:
    label = _runs(comparison, strategy, keep).label.iloc[0]
    differences = frame.paired_differences(frame.read_runs(comparison), label, TRADITIONAL)
    if not differences:
        raise NotRecordedError("no seed that plain training ran too")
    return f"{frame.mean_and_spread(differences):+.2f}"


def _cells(
    comparisons: Comparisons, strategy: str, axis: frame.Axis = "seconds"
) -> dict[tuple[str, float], float | None]:
    """Returns a strategy's median speed-ups, by the comparison's folder and the factor."""
    cells: dict[tuple[str, float], float | None] = {}
    for comparison in comparisons:
        label = _runs(comparison, strategy).label.iloc[0]
        for factor, speedup in frame.speedups(comparison, axis=axis)[label].items():
            cells[comparison.folder.name, factor] = speedup.median if speedup else None
    return cells


def _ratios(comparisons: Comparisons, strategy: str, other: str) -> list[float]:
    """Returns the ratios of two strategies' speed-ups at the targets that both reached."""
    cells, others = _cells(comparisons, strategy), _cells(comparisons, other)
    pairs = [(cell, others[key]) for key, cell in cells.items()]
    ratios = [first / second for first, second in pairs if first is not None and second is not None]
    if not ratios:
        raise NotRecordedError("no target that both reached")
    return ratios
