"""The cost of wrong labels: each strategy's end beside Traditional's, and a guard's suspects."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from siftback.lab.figures.describe import Finding
from siftback.lab.figures.titles import argument, group_by_settings, task
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import (
    interval,
    pair_seeds,
    read_runs,
    same_budget,
)
from siftback.lab.records.run_summary import Metric


class NoisyEnd(NamedTuple):
    """A configuration's end where a share of the labels is wrong, beside the same budget's.

    Attributes:
        task: Data and model.
        wrong: The share of wrong labels.
        label: The configuration.
        seeds: How many seeds both have.
        baseline: Traditional's final error or loss, the mean over the seeds.
        difference: The configuration's final error less Traditional's.
        low: The lower end of its interval; NaN of one seed, as is the upper.
        high: The upper end.
        guarded: Whether a guard held examples back.
        precision: The share of wrong labels among the suspects; NaN where it is not known.
        recall: The share of the wrong labels that are suspects; NaN where it is not known.
        metric: What it is judged by.
    """

    task: str
    wrong: float
    label: str
    seeds: int
    baseline: float
    difference: float
    low: float
    high: float
    guarded: bool
    precision: float
    recall: float
    metric: Metric

    @property
    def interval(self) -> str:
        """Returns the ends of its interval in words, empty for one seed."""
        return "" if math.isnan(self.low) else f"{self.low:+.2f} to {self.high:+.2f}"


def noisy_ends(comparisons: Sequence[Comparison]) -> list[NoisyEnd]:
    """Returns the ends of all selective configurations, at several shares of wrong labels.

    Each beside Traditional of the same budget, seed by seed. Data sets that no comparison made
    wrong labels of are left out.
    """
    ends = []
    for comparison in with_wrong_labels(comparisons):
        runs = read_runs(comparison)
        for label, group in runs[runs.selective].groupby("label", sort=False):
            baseline = same_budget(runs, label)
            if baseline is None or (pairs := pair_seeds(runs, label, baseline, "final")).empty:
                continue
            # Without suspects there is no precision, without wrong labels no recall.
            precision = (group.suspects_wrong / group.suspects)[group.suspects > 0].mean()
            recall = (group.suspects_wrong / group.labels_wrong)[group.labels_wrong > 0].mean()
            ends.append(
                NoisyEnd(
                    task(comparison),
                    float(argument(comparison, "flip", 0.0)),
                    label,
                    len(pairs),
                    statistics.mean(pairs.final_base),
                    *interval(list(pairs.final - pairs.final_base)),
                    bool(group.suspects.notna().iloc[0]),
                    precision,
                    recall,
                    comparison.metric,
                )
            )
    return sorted(ends, key=lambda end: (end.task, end.wrong))


def ends(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Final errors at several shares of wrong labels, and precision and recall of the suspects."""
    for end in noisy_ends(comparisons):
        row = [
            *(end.task, f"{end.wrong:.0%}", end.label, str(end.seeds)),
            *(end.metric.written(end.baseline), f"{end.difference:+.2f}"),
            end.interval or None,
            *(None if math.isnan(rate) else f"{rate:.2f}" for rate in (end.precision, end.recall)),
        ]
        interval_of = f" (95 % interval {end.interval})" if end.interval else ""
        sentence = (
            f"{end.task}, {end.wrong:.0%} of the labels wrong: {end.label} ends at "
            f"{end.difference:+.2f} points{interval_of} "
            "beside Traditional of the same budget."
        )
        yield Finding(sentence if end.guarded else "", rows=[row])


def with_wrong_labels(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons with wrong labels, and of equal settings those without."""
    return [
        comparison
        for group in group_by_settings(comparisons, "flip")
        if any(argument(comparison, "flip") for comparison in group)
        for comparison in group
    ]
