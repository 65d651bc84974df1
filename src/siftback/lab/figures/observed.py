"""Observations of runs, configuration by configuration."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from siftback.lab.figures.titles import titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import in_order
from siftback.lab.records.observations import Look, looks
from siftback.lab.records.run_summary import TRADITIONAL, RunSummary
from siftback.lab.strategies.table import library_name


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
    return [
        next((run for run in runs if run.first.label == TRADITIONAL), runs[0])
        for runs in watched(comparisons, kind)
    ]


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
