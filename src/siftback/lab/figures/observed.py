"""Observations of runs, configuration by configuration; of gradients and confidence the figures.

These are figures 5, 8 and 9 of Jiang et al. 2019.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import in_order
from siftback.lab.records.observations import SHARES, SUBSETS, Look, looks
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.strategies.table import PLAIN, library_name

NAMES = {"high": "highest losses", "low": "lowest losses", "random": "random"}
COSINE, SIGNS = "cosine similarity", "components of equal sign (%)"

# The paper's snapshot; of a shorter run it is the end.
EPOCH = 10.0
PARTS = 20  # of 5 % each, so that small test sets fill them
PERCENTILES = (np.arange(PARTS) + 0.5) * 100 / PARTS  # in the middle of each of the parts


class Watched(NamedTuple):
    """A configuration of which something was observed.

    Attributes:
        title: Its comparison's.
        comparison: Its comparison.
        first: The first of its runs.
        seeds: What was seen, look by look, of each of its runs that was observed.
    """

    title: str
    comparison: Comparison
    first: RunSummary
    seeds: Sequence[Sequence[Look]]

    @property
    def name(self) -> str:
        """Its name for readers, the same for all of its seeds."""
        return library_name(self.first.label)

    @property
    def heading(self) -> str:
        """The title of its comparison, and its name."""
        return f"{self.title}, {self.name}"


def watched(comparisons: Sequence[Comparison], kind: str) -> Iterator[list[Watched]]:
    """Yields, of each comparison, the configurations of which something was observed.

    Comparisons of which nothing was are left out.

    Args:
        comparisons: Where to look.
        kind: One of `siftback.lab.records.observations.KINDS`.
    """
    for title, comparison in titled(comparisons):
        group = []
        for _, seeds in groupby(in_order(comparison.runs), attrgetter("label")):
            runs = list(seeds)
            seen = [looks(comparison.folder, run.record, kind) for run in runs]
            if any(seen):
                group.append(Watched(title, comparison, runs[0], list(filter(None, seen))))
        if group:
            yield group


def watched_once(comparisons: Sequence[Comparison], kind: str) -> list[Watched]:
    """Returns, of each comparison, what was observed of plain training, or of the first run."""
    return [runs[0] for runs in watched(comparisons, kind)]  # where plain training stands first


def watched_selective(comparisons: Sequence[Comparison], kind: str) -> list[Watched]:
    """Returns, of each comparison, what was observed of the first selective configuration."""
    groups = ([run for run in runs if run.first.selective] for runs in watched(comparisons, kind))
    return [runs[0] for runs in groups if runs]


def last_values(seeds: Sequence[Sequence[Look]], column: str, examples: int) -> NDArray[np.float64]:
    """Returns a column at the last look of each seed.

    Args:
        seeds: The looks of each seed, in order.
        column: Of what was seen.
        examples: The number of training examples.

    Returns:
        float64[seeds, examples]; NaN for those that were not looked at.
    """
    values = np.full((len(seeds), examples), np.nan)
    for row, last in zip(values, (seed[-1] for seed in seeds), strict=True):
        row[last.columns["index"]] = last.columns[column]
    return values


def count_uses(seeds: Sequence[Sequence[Look]], examples: int) -> NDArray[np.float64]:
    """Counts how often each example was trained on in all, the mean over the seeds.

    >>> look = lambda *uses: Look(1.0, {"index": np.array([0, 2]), "uses": np.array(uses)})
    >>> count_uses([[look(1, 2), look(1, 3)], [look(1, 1)]], examples=3)
    array([1., 0., 2.])
    """
    return np.asarray(np.nan_to_num(last_values(seeds, "uses", examples)).mean(0))


def gradient_similarity(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 5: how alike the gradients of a batch and of a part of it are, over training.

    Means over the batches looked at and the seeds, of plain training where it was observed; spread
    over the seeds. A view is a share of the batch.
    """
    for run in watched_once(comparisons, "gradients"):
        views, means = {}, []
        for share in SHARES:
            cosines, signs = (
                [similarity_line(run, subset, share, measure) for subset in SUBSETS]
                for measure in ("cosine", "same_sign")
            )
            views[f"{share:.0%} of the batch"] = [
                Panel(run.heading, "epoch", COSINE, "line", cosines),
                Panel(run.heading, "epoch", SIGNS, "line", signs),
            ]
            cosine = ", ".join(f"{np.mean(line.y):.2f} {line.label}" for line in cosines)
            equal = ", ".join(f"{np.mean(line.y):.0f} % {line.label}" for line in signs)
            means.append(f"cosine {cosine}; equal signs {equal}")
        about = f"of {SHARES[0]:.0%} of a batch, means over training: {means[0]}"
        yield Finding(f"{run.title}, {about}.", views=views)


def similarity_line(run: Watched, subset: str, share: float, measure: str) -> Series:
    """Returns how alike the gradients of a subset and of the whole batch are, over the epochs.

    Args:
        run: Observations of a configuration.
        subset: One of `SUBSETS`.
        share: Of the batch, one of `SHARES`.
        measure: A column: ``cosine``, or ``same_sign``, which is given in percent.
    """
    scale = 100 if measure == "same_sign" else 1

    def mean_of(columns: dict[str, NDArray[Any]]) -> float:
        rows = (columns["subset"] == subset) & np.isclose(columns["share"], share)
        return scale * float(columns[measure][rows].mean())

    together = list(zip(*run.seeds, strict=False))
    epochs = [float(np.mean([look.epoch for look in seeds])) for seeds in together]
    means = [[mean_of(look.columns) for look in seeds] for seeds in together]
    return Series.over_seeds(NAMES[subset], epochs, means, NAMES[subset])


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


def by_percentile(
    comparisons: Sequence[Comparison], measure: Literal["confidence", "accuracy"], label: str
) -> Iterator[Finding]:
    """Figures 8 and 9: the confidence in the target, and the accuracy, by percentile.

    Args:
        comparisons: The records.
        measure: Which of the two.
        label: Its name and unit, beside the axis.
    """
    fifth = PARTS // 5
    for group in watched(comparisons, "confidence"):
        lines = {run.name: percentile_line(run, measure) for run in group}
        epoch = max(snapshot(looks).epoch for looks in group[0].seeds)
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


def snapshot(looks: Sequence[Look]) -> Look:
    """Returns the last look up to the paper's epoch, or the first where there is none before it."""
    return next((look for look in reversed(looks) if look.epoch <= EPOCH + 1e-6), looks[0])


def percentile_line(run: Watched, measure: str) -> Series:
    """Returns the confidence or the accuracy of a configuration, over the percentiles."""
    seeds = []
    for columns in (snapshot(seed).columns for seed in run.seeds):
        tested = columns["split"] == "test"
        confidence, correct = columns["confidence"][tested], columns["correct"][tested]
        accuracy = accuracy_by_percentile(confidence, correct)
        inverse = 100 * np.percentile(confidence, PERCENTILES)  # of the distribution
        seeds.append(accuracy if measure == "accuracy" else inverse)
    values = np.stack(seeds).T.tolist()
    return Series.over_seeds(run.name, PERCENTILES.tolist(), values, run.first.family)
