"""Our side of each of the papers' numbers, from the records, in words.

Each function takes the comparisons that a claim names, or makes one that does, and raises
`NotRecordedError` where they do not hold the number.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from siftback.lab.figures import ANALYSES, Analysis, Figure, Grid, Missing, Range, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.records.frame import (
    Axis,
    mean_and_spread,
    paired_differences,
    read_runs,
    speedups,
)
from siftback.lab.records.run_summary import TRADITIONAL, RunSummary

Comparisons = Sequence[Comparison]
Finder = Callable[[Comparisons], str]

STALE = "stale-sb-3"


class NotRecordedError(Exception):
    """A number is not in the records; says why."""


def final_error(comparisons: Comparisons) -> str:
    """Traditional's final error, or loss."""
    runs = comparisons[0].by_label().get(TRADITIONAL)
    if not runs:
        raise NotRecordedError("no run of traditional")
    metric = comparisons[0].metric
    mean = mean_and_spread(run.final for run in runs)
    return f"{mean:.{metric.digits}f} {metric.unit}"


def speedup_cells(strategy: str) -> Finder:
    """Returns the speed-ups of a strategy to table 1's targets, in time and in cost."""

    def find(comparisons: Comparisons) -> str:
        in_time, in_cost = (
            ", ".join(NOT_REACHED if cell is None else f"{cell:.2f}" for cell in cells)
            for cells in (
                _cells(comparisons[:1], strategy, "seconds").values(),
                _cells(comparisons[:1], strategy, "cost").values(),
            )
        )
        return f"{in_time} in time; {in_cost} in cost"

    return find


def at_best(strategy: str) -> Finder:
    """The most that a strategy's speed-up in time is, over data sets and targets."""

    def find(comparisons: Comparisons) -> str:
        reached = [cell for cell in _cells(comparisons, strategy).values() if cell is not None]
        if not reached:
            raise NotRecordedError("no target was reached")
        return f"up to {max(reached):.2f}"

    return find


def over(strategy: str, other: str) -> Finder:
    """Returns the speed-ups of a strategy over another, over data sets and targets."""

    def find(comparisons: Comparisons) -> str:
        ratios = _ratios(comparisons, strategy, other)
        if len(ratios) == 1:
            return f"{ratios[0]:.2f}, at the one target that both reached"
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    return find


def stale_time(comparisons: Comparisons) -> str:
    """The time to a target that Stale-SB needs less than SB, the mean over all."""
    saved = statistics.mean(1 - 1 / ratio for ratio in _ratios(comparisons, STALE, "sb"))
    return f"{abs(saved):.0%} {'less' if saved >= 0 else 'more'} on average"


def stale_selection(comparisons: Comparisons) -> str:
    """The seconds of selection in an epoch that Stale-SB needs less than SB."""
    shares = []
    for comparison in comparisons:
        stale, fresh = (
            statistics.mean(
                run.seconds_selection / run.epochs for run in _runs(comparison, strategy)
            )
            for strategy in (STALE, "sb")
        )
        shares.append(f"{1 - stale / fresh:.0%} ({comparison.folder.name})")
    return ", ".join(shares)


def left_out(comparisons: Comparisons) -> str:
    """The share of the offered examples that SB did not train on."""
    return f"{1 - statistics.mean(run.keep_measured for run in _runs(comparisons[0], 'sb')):.0%}"


def equal_signs(comparisons: Comparisons) -> str:
    """Figure 5b at the paper's tenth of a batch."""
    _, signs = _figure("fig5", comparisons).views["10% of the batch"]
    return f"{statistics.mean(_line(signs.series, 'highest losses').y):.0f} % on average"


def cosines(comparisons: Comparisons) -> str:
    """Figure 5a at a tenth of a batch, after the first epoch."""
    cosine, _ = _figure("fig5", comparisons).views["10% of the batch"]
    means = []
    for name in ("highest losses", "random"):
        line = _line(cosine.series, name)
        late = np.asarray(line.y)[np.asarray(line.x, float) > 1]
        means.append(f"{name} {late.mean():.2f}")
    return ", ".join(means)


def at_percentile(figure: str, percentile: float) -> Finder:
    """Figure 8 or 9 at a percentile, of SB and of Traditional."""

    def find(comparisons: Comparisons) -> str:
        (panel,) = _figure(figure, comparisons).views["percentile"]
        lines = [
            _line(panel.series, label) for label in (_label(comparisons[0], "sb"), TRADITIONAL)
        ]
        values = [np.interp(percentile, np.asarray(line.x, float), line.y) for line in lines]
        return f"SB {values[0]:.0f} %, Traditional {values[1]:.0f} %"

    return find


def error_difference(strategy: str, keep: float | None = None) -> Finder:
    """A strategy's final error less Traditional's."""

    def find(comparisons: Comparisons) -> str:
        return f"{_difference(comparisons[0], strategy, keep)} points"

    return find


def random_and_sb(comparisons: Comparisons) -> str:
    """The final errors of Random-Backprop and SB at a half kept, less Traditional's."""
    random, sb = (_difference(comparisons[0], strategy, 0.5) for strategy in ("random", "sb"))
    return f"Random-Backprop {random} points, SB {sb} points"


def filtered(comparisons: Comparisons) -> str:
    """Returns the share that SB left out, and its final error less Traditional's."""
    return f"{left_out(comparisons)} left out, error {_difference(comparisons[0], 'sb')} points"


def pareto(comparisons: Comparisons) -> str:
    """Figure 14's shares of the Pareto-optimal points, in time."""
    (panel,) = _figure("fig14", comparisons).views["time"]
    optimal = {line.group: len(line.y) for line in panel.series if not line.faint}
    families_of = {"SB and Stale-SB": ("sb", "stale-sb"), "Traditional": (TRADITIONAL,)}
    families_of["Kath18"] = ("kath18",)
    shares = {
        name: sum(optimal.get(family, 0) for family in families) / sum(optimal.values())
        for name, families in families_of.items()
    }
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def variances(comparisons: Comparisons) -> str:
    """Figure 15's mean variance of an example's probability of selection, by strategy."""
    *_, panel = _figure("fig15", comparisons).views["epoch"]
    (spread,) = panel.series
    return ", ".join(f"{x} {y:.3f}" for x, y in zip(spread.x, spread.y, strict=True))


def passes(comparisons: Comparisons) -> str:
    """Figure 18: a backward over a forward, from the least to the most over the models."""
    (panel,) = _figure("fig18", comparisons).views["time"]
    forward, backward = (_line(panel.series, name).y for name in ("forward", "backward"))
    ratios = [back / forth for forth, back in zip(forward, backward, strict=True)]
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


def epoch(strategy: str, keep: float) -> Finder:
    """Seconds of an epoch, and over those of the baseline."""

    def find(comparisons: Comparisons) -> str:
        grid = _made("diet-table", comparisons)
        assert isinstance(grid, Grid)
        label = strategy if strategy == TRADITIONAL else _label(comparisons[0], strategy, keep)
        *_, seconds, ratio = next(row for row in grid.rows if row[0] == label)
        assert isinstance(seconds, Range)
        assert isinstance(ratio, float)
        return f"{seconds.middle:.2f} s, {ratio:.2f} of the baseline's"

    return find


def _made(name: str, comparisons: Comparisons) -> Analysis:
    analysis = ANALYSES[name](comparisons)
    if isinstance(analysis, Missing):
        raise NotRecordedError(analysis.why)
    return analysis


def _figure(name: str, comparisons: Comparisons) -> Figure:
    figure = _made(name, comparisons)
    assert isinstance(figure, Figure)
    return figure


def _line(lines: Iterable[Series], label: str) -> Series:
    for line in lines:
        if line.label == label:
            return line
    raise NotRecordedError(f"no {label}")


def _label(comparison: Comparison, strategy: str, keep: float | None = None) -> str:
    """The label of a strategy, at a share kept where one is given."""
    for run in comparison.runs:
        if run.selective and run.strategy == strategy and keep in (None, run.keep_asked):
            return run.label
    raise NotRecordedError(f"no run of {strategy}" + ("" if keep is None else f" at {keep:g}"))


def _runs(comparison: Comparison, strategy: str) -> list[RunSummary]:
    return comparison.by_label()[_label(comparison, strategy)]


def _difference(comparison: Comparison, strategy: str, keep: float | None = None) -> str:
    label = _label(comparison, strategy, keep)
    differences = paired_differences(read_runs(comparison), label, TRADITIONAL)
    if not differences:
        raise NotRecordedError("no seed that Traditional ran too")
    return f"{mean_and_spread(differences):+.2f}"


def _cells(
    comparisons: Comparisons, strategy: str, axis: Axis = "seconds"
) -> dict[tuple[str, float], float | None]:
    """A strategy's median speed-ups, by the comparison's folder and the factor."""
    cells = {}
    for comparison in comparisons:
        for factor, reached in speedups(comparison, axis=axis)[
            _label(comparison, strategy)
        ].items():
            cells[comparison.folder.name, factor] = reached.median if reached else None
    return cells


def _ratios(comparisons: Comparisons, strategy: str, other: str) -> list[float]:
    """Returns the ratios of two strategies' speed-ups at the targets that both reached."""
    cells, others = _cells(comparisons, strategy), _cells(comparisons, other)
    pairs = [(cell, others[key]) for key, cell in cells.items()]
    ratios = [first / second for first, second in pairs if first is not None and second is not None]
    if not ratios:
        raise NotRecordedError("no target that both reached")
    return ratios
