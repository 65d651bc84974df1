"""A comparison's numbers and verdicts, as a script takes them."""

import statistics
from typing import Any

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import mean_and_spread, read_runs, speedups
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.report.verdict import Verdict, verdicts
from siftback.lab.strategies.table import STRATEGIES

_COUNTED = (
    "keep_measured",
    "examples_forwarded",
    "examples_backpropped",
    "steps",
    "seconds_train",
    "cost_forward_units",
)


def numbers(comparison: Comparison) -> dict[str, Any]:
    """Returns the results of a comparison, for JSON.

    Returns:
        ``folder``; ``metric``, by which it was judged; ``configurations``, each with its share to
        keep, None where the strategy finds that itself, its final and best error or loss, mean and
        sample standard deviation over the seeds, the means of its counts, and its ``speedups`` in
        seconds over plain training by multiples of plain training's final error, the medians of
        :func:`siftback.lab.records.frame.speedups`; and ``verdicts``, as `verdict_numbers` gives
        them.
    """
    runs = read_runs(comparison)
    automatic = {name for name, strategy in STRATEGIES.items() if strategy.has_own_share}
    faster = speedups(comparison) if TRADITIONAL in set(runs.label) else {}
    return {
        "folder": str(comparison.folder),
        "metric": comparison.metric.name,
        "configurations": [
            {
                "label": label,
                "strategy": group.strategy.iloc[0],
                "matched_to": group.matched_to.iloc[0] or None,
                "keep": None
                if {*group.strategy, *group.matched_to} & automatic
                else group.keep_asked.iloc[0],
                "seeds": sorted(map(int, group.seed)),
                "final": mean_and_spread(group.final)._asdict(),
                "best": mean_and_spread(group.best)._asdict(),
            }
            | {name: statistics.mean(group[name].tolist()) for name in _COUNTED}
            | {
                "speedups": {
                    f"{factor:g}": speedup.median if speedup else None
                    for factor, speedup in faster.get(label, {}).items()
                }
            }
            for label, group in runs.groupby("label", sort=False)
        ],
        "verdicts": [verdict_numbers(verdict) for verdict in verdicts([comparison])],
    }


def verdict_numbers(verdict: Verdict) -> dict[str, Any]:
    """A verdict for JSON: differences are of the selective configuration less its baseline."""
    return {
        "comparison": verdict.comparison,
        "label": verdict.label,
        "outcome": verdict.outcome,
        "baseline": verdict.baseline,
        "metric": verdict.metric.name,
        "seeds": verdict.seeds,
        "difference": verdict.difference and verdict.difference._asdict(),
        "interval": verdict.interval,
        "seconds_over_baseline": verdict.seconds,
        "difference_from_full_training": verdict.whole_error and verdict.whole_error._asdict(),
        "cost_over_full_training": verdict.whole_cost,
        "sentence": verdict.sentence,
    }
