"""Confidence in the target: figures 8 and 9 of Jiang et al. 2019."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from siftback.lab.analyses.configurations import traditional
from siftback.lab.analyses.curves import PAPER
from siftback.lab.analyses.figure import Figure, Missing, Panel, Series
from siftback.lab.analyses.observed import Watched, command, watched
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

# The paper's snapshot; of a shorter run it is the end.
EPOCH = 10.0
PARTS = 20  # of 5 % each, so that small test sets fill them


def inverse_distribution(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 8: the confidence in the target at each percentile of the test set."""
    title = "Confidence in the target by percentile of the test set"
    label = "confidence in the target (%)"
    return _figure("fig8", title, label, "figure 8", comparisons, confidence_by_percentile)


def accuracy_by_confidence(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 9: the accuracy at each percentile of confidence in the target."""
    title = "Accuracy by percentile of confidence in the target"
    return _figure("fig9", title, "accuracy (%)", "figure 9", comparisons, accuracy_by_percentile)


def confidence_by_percentile(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The inverse distribution of confidences, in percent, in the middle of each of the parts.

    Args:
        confidence: float[N], in [0, 1].
        correct: bool[N], not looked at.

    Returns:
        float64[PARTS].

    >>> confidence_by_percentile(np.linspace(0, 1, 101), np.zeros(101, bool))[:3].round(3)
    array([ 2.5,  7.5, 12.5])
    """
    found: NDArray[np.float64] = 100 * np.percentile(confidence, middles())
    return found


def accuracy_by_percentile(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Percent classified rightly among the examples of each part of the order by confidence.

    Args:
        confidence: float[N], of at least as many examples as there are parts.
        correct: bool[N].

    Returns:
        float64[PARTS], from the least confident on.

    >>> right = np.arange(40) % 4 > 1  # the upper two of every four
    >>> accuracy_by_percentile(np.arange(40) / 40, right)[:4]
    array([  0., 100.,   0., 100.])
    """
    parts = np.array_split(correct[np.argsort(confidence, kind="stable")], PARTS)
    return np.array([100 * part.mean() if len(part) else np.nan for part in parts])


def middles() -> NDArray[np.float64]:
    """float64[PARTS], the percentiles in the middle of the parts."""
    return (np.arange(PARTS) + 0.5) * 100 / PARTS


def _figure(
    name: str,
    title: str,
    label: str,
    source: str,
    comparisons: Sequence[Comparison],
    of_test_set: Callable[[NDArray[np.floating], NDArray[np.bool_]], NDArray[np.float64]],
) -> Figure | Missing:
    panels, sentences = [], []
    for found in watched(comparisons, "confidence"):
        lines = {of.configuration.label: _line(of, of_test_set) for of in found}
        when = max(_snapshot(looks).epoch for looks in found[0].seeds)
        heading = f"{found[0].title}, epoch {when:.3g}"
        panels.append(
            Panel(heading, "percentile of test examples", label, "line", list(lines.values()))
        )
        sentences.append(_sentence(heading, found, lines))
    if not panels:
        return Missing(name, title, f"No confidence was observed. {command('confidence')}")
    return Figure(name, title, sentences, f"{PAPER}, {source}", {"percentile": panels})


def _snapshot(looks: Sequence[Look]) -> Look:
    """The last look up to the paper's epoch, or the first where there is none before it."""
    return next((look for look in reversed(looks) if look.epoch <= EPOCH + 1e-6), looks[0])


def _line(
    of: Watched,
    of_test_set: Callable[[NDArray[np.floating], NDArray[np.bool_]], NDArray[np.float64]],
) -> Series:
    seeds = []
    for looks in of.seeds:
        columns = _snapshot(looks).columns
        tested = columns["split"] == "test"
        seeds.append(of_test_set(columns["confidence"][tested], columns["correct"][tested]))
    group = of.configuration.family
    places = np.stack(seeds).T.tolist()
    return Series.over_seeds(of.configuration.label, middles().tolist(), places, group)


def _sentence(heading: str, found: Sequence[Watched], lines: dict[str, Series]) -> str:
    """The hardest fifth and the easiest, beside Traditional's."""
    fifth = PARTS // 5

    def ends(label: str) -> tuple[float, float]:
        y = lines[label].y
        return float(np.mean(y[:fifth])), float(np.mean(y[-fifth:]))

    plain = traditional(of.configuration for of in found)
    selective = [of.configuration.label for of in found if not of.configuration.plain]
    labels = [plain.label] if plain else []
    if selective:
        labels.append(max(selective, key=lambda label: ends(label)[0]))
    both = "; ".join("{} {:.1f} % and {:.1f} %".format(label, *ends(label)) for label in labels)
    return f"{heading}, hardest fifth of the test set and easiest: {both}."
