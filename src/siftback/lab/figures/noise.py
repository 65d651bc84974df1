"""The cost of wrong labels: each strategy's end beside Traditional's, and a guard's suspects."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from siftback.lab.figures.describe import Finding
from siftback.lab.figures.titles import argument, group_by_settings, task
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import interval, pair_seeds, read_runs, same_budget, signed_interval


def noisy_ends(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Returns the ends of all selective configurations, at several shares of wrong labels.

    Each beside Traditional of the same budget, seed by seed. Data sets that no comparison made
    wrong labels of are left out.

    Returns:
        Of each its ``task``, the share of ``wrong`` labels and its ``label``; how many ``seeds``
        both have; Traditional's mean end with its unit, ``baseline``, the configuration's
        ``difference`` from it, and the ends of the ``interval`` of that, NaN for one seed; whether
        a guard held examples back, ``guarded``; the share of wrong labels among its suspects,
        ``precision``, and of suspects among the wrong labels, ``recall``, NaN if not known.
    """
    ends = []
    for comparison in with_wrong_labels(comparisons):
        runs = read_runs(comparison)
        for label, group in runs[runs.selective].groupby("label", sort=False):
            baseline = same_budget(runs, label)
            if not baseline or not (pairs := pair_seeds(runs, label, baseline, "final")):
                continue
            mean, low, high = interval([end - base for end, base in pairs])
            # Without suspects there is no precision, without wrong labels no recall.
            precision = (group.suspects_wrong / group.suspects)[group.suspects > 0].mean()
            recall = (group.suspects_wrong / group.labels_wrong)[group.labels_wrong > 0].mean()
            end = {
                "task": task(comparison),
                "wrong": float(argument(comparison, "flip", 0.0)),
                "label": label,
                "seeds": len(pairs),
                "baseline": comparison.metric.written(statistics.mean(base for _, base in pairs)),
                "difference": mean,
                "interval": (low, high),
                "guarded": bool(group.suspects.notna().iloc[0]),
                "precision": precision,
                "recall": recall,
            }
            ends.append(end)
    return sorted(ends, key=lambda end: (end["task"], end["wrong"]))


def ends(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Final errors at several shares of wrong labels, and precision and recall of the suspects."""
    for end in noisy_ends(comparisons):
        rates = [f"{end[name]:.2f}" if end[name] >= 0 else None for name in ("precision", "recall")]
        difference, within = f"{end['difference']:+.2f}", signed_interval(*end["interval"])
        row = [end["task"], f"{end['wrong']:.0%}", end["label"], str(end["seeds"])]
        row += [end["baseline"], difference, within or None, *rates]
        interval_of = f" (95 % interval {within})" if within else ""
        sentence = (
            f"{end['task']}, {end['wrong']:.0%} of the labels wrong: {end['label']} ends at "
            f"{difference} points{interval_of} beside Traditional of the same budget."
        )
        yield Finding(sentence if end["guarded"] else "", rows=[row])


def with_wrong_labels(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons with wrong labels, and of equal settings those without."""
    return [
        comparison
        for group in group_by_settings(comparisons, "flip")
        if any(argument(comparison, "flip") for comparison in group)
        for comparison in group
    ]
