"""Confidence in the target: figures 8 and 9 of Jiang et al. 2019."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from siftback.lab.figures.configurations import traditional
from siftback.lab.figures.curves import PAPER
from siftback.lab.figures.figure import Figure, Missing, Panel, Series
from siftback.lab.figures.observed import Watched, command, watched
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
    percentiles: NDArray[np.float64] = 100 * np.percentile(confidence, middles())
    return percentiles


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
    groups = np.array_split(correct[np.argsort(confidence, kind="stable")], PARTS)
    return np.array([100 * group.mean() if len(group) else np.nan for group in groups])


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
    for group in watched(comparisons, "confidence"):
        lines = {member.configuration.label: _line(member, of_test_set) for member in group}
        epoch = max(_snapshot(looks).epoch for looks in group[0].seeds)
        heading = f"{group[0].title}, epoch {epoch:.3g}"
        panels.append(
            Panel(heading, "percentile of test examples", label, "line", list(lines.values()))
        )
        sentences.append(_sentence(heading, group, lines))
    if not panels:
        return Missing(name, title, f"No confidence was observed. {command('confidence')}")
    return Figure(name, title, sentences, f"{PAPER}, {source}", {"percentile": panels})


def _snapshot(looks: Sequence[Look]) -> Look:
    """The last look up to the paper's epoch, or the first where there is none before it."""
    return next((look for look in reversed(looks) if look.epoch <= EPOCH + 1e-6), looks[0])


def _line(
    watched_runs: Watched,
    of_test_set: Callable[[NDArray[np.floating], NDArray[np.bool_]], NDArray[np.float64]],
) -> Series:
    seeds = []
    for looks in watched_runs.seeds:
        columns = _snapshot(looks).columns
        tested = columns["split"] == "test"
        seeds.append(of_test_set(columns["confidence"][tested], columns["correct"][tested]))
    group = watched_runs.configuration.family
    places = np.stack(seeds).T.tolist()
    return Series.over_seeds(watched_runs.configuration.label, middles().tolist(), places, group)


def _sentence(heading: str, group: Sequence[Watched], lines: dict[str, Series]) -> str:
    """The hardest fifth and the easiest, beside Traditional's."""
    fifth = PARTS // 5

    def ends(label: str) -> tuple[float, float]:
        y = lines[label].y
        return float(np.mean(y[:fifth])), float(np.mean(y[-fifth:]))

    plain = traditional(member.configuration for member in group)
    selective = [member.configuration.label for member in group if not member.configuration.plain]
    labels = [plain.label] if plain else []
    if selective:
        labels.append(max(selective, key=lambda label: ends(label)[0]))
    listing = "; ".join("{} {:.1f} % and {:.1f} %".format(label, *ends(label)) for label in labels)
    return f"{heading}, hardest fifth of the test set and easiest: {listing}."
