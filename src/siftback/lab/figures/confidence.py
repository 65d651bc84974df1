"""Confidence in the target: figures 8 and 9 of Jiang et al. 2019."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.observed import Watched, watched
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look
from siftback.lab.strategies.table import PLAIN

# The paper's snapshot; of a shorter run it is the end.
EPOCH = 10.0
PARTS = 20  # of 5 % each, so that small test sets fill them
PERCENTILES = (np.arange(PARTS) + 0.5) * 100 / PARTS  # in the middle of each of the parts

OfTestSet = Callable[[NDArray[np.floating], NDArray[np.bool_]], NDArray[np.float64]]


def confidence_by_percentile(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Computes the inverse distribution of confidences, in percent, at `PERCENTILES`.

    Args:
        confidence: float[N], in [0, 1].
        correct: bool[N], not looked at.

    Returns:
        float64[PARTS].

    >>> confidence_by_percentile(np.linspace(0, 1, 101), np.zeros(101, bool))[:3].round(3)
    array([ 2.5,  7.5, 12.5])
    """
    percentiles: NDArray[np.float64] = 100 * np.percentile(confidence, PERCENTILES)
    return percentiles


def accuracy_by_percentile(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Computes the percentage classified rightly in each part of the order by confidence.

    Args:
        confidence: float[N], of at least as many examples as there are parts.
        correct: bool[N].

    Returns:
        float64[PARTS], from the least confident on.

    >>> right = np.arange(40) % 4 > 1  # the upper two of every four
    >>> accuracy_by_percentile(np.arange(40) / 40, right)[:4]
    array([  0., 100.,   0., 100.])
    """
    groups = np.array_split(correct[np.argsort(confidence, kind="stable")], PARTS)
    return np.array([100 * group.mean() if len(group) else np.nan for group in groups])


MEASURES: dict[str, tuple[str, OfTestSet]] = {
    "confidence": ("confidence in the target (%)", confidence_by_percentile),
    "accuracy": ("accuracy (%)", accuracy_by_percentile),
}


def by_percentile(
    comparisons: Sequence[Comparison], measure: Literal["confidence", "accuracy"]
) -> Iterator[Finding]:
    """Figures 8 and 9: the confidence in the target, and the accuracy, by percentile.

    Args:
        comparisons: The records.
        measure: Which of the two.
    """
    label, of_test_set = MEASURES[measure]
    fifth = PARTS // 5
    for group in watched(comparisons, "confidence"):
        lines = {run.name: _line(run, of_test_set) for run in group}
        epoch = max(_snapshot(looks).epoch for looks in group[0].seeds)
        heading = f"{group[0].title}, epoch {epoch:.3g}"
        panel = Panel(heading, "percentile of test examples", label, "line", list(lines.values()))
        # The hardest fifth and the easiest, beside plain training's.
        ends = {
            label: (float(np.mean(line.y[:fifth])), float(np.mean(line.y[-fifth:])))
            for label, line in lines.items()
        }
        selective = [run.name for run in group if run.first.selective]
        best = sorted(selective, key=lambda label: -ends[label][0])[:1]
        shown = [label for label in (PLAIN, *best) if label in ends]
        listing = "; ".join("{} {:.1f} % and {:.1f} %".format(name, *ends[name]) for name in shown)
        sentence = f"{heading}, hardest fifth of the test set and easiest: {listing}."
        yield Finding(sentence, views={"percentile": [panel]})


def _snapshot(looks: Sequence[Look]) -> Look:
    """The last look up to the paper's epoch, or the first where there is none before it."""
    return next((look for look in reversed(looks) if look.epoch <= EPOCH + 1e-6), looks[0])


def _line(run: Watched, of_test_set: OfTestSet) -> Series:
    seeds = []
    for looks in run.seeds:
        columns = _snapshot(looks).columns
        tested = columns["split"] == "test"
        seeds.append(of_test_set(columns["confidence"][tested], columns["correct"][tested]))
    values = np.stack(seeds).T.tolist()
    return Series.over_seeds(run.name, PERCENTILES.tolist(), values, run.first.family)
