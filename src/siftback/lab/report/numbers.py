"""A comparison's numbers and verdicts, as a script takes them."""

from collections.abc import Iterable
from typing import Any

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import (
    TRADITIONAL,
    MeanAndSpread,
    mean_and_spread,
    ordered_labels,
    speedups,
)
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.report.verdict import Verdict, verdicts

_COUNTED = (
    "keep_measured",
    "examples_forwarded",
    "examples_backpropped",
    "steps",
    "seconds_train",
    "cost_forward_units",
)


def numbers(comparison: Comparison) -> dict[str, Any]:
    """What a comparison came to, for JSON.

    Returns:
        ``folder``; ``metric``, by which it was judged; ``configurations``, each with its final and
        best error or loss, mean and sample standard deviation over the seeds, the means of its
        counts, and its ``speedups`` in seconds over Traditional by multiples of Traditional's final
        error, the medians of :func:`siftback.lab.records.measures.speedups`; and ``verdicts``, as
        `verdict_numbers` gives them.
    """
    groups = comparison.by_label()
    faster = speedups(comparison) if TRADITIONAL in groups else {}
    return {
        "folder": str(comparison.folder),
        "metric": comparison.metric.name,
        "configurations": [
            _configuration(label, groups[label])
            | {
                "speedups": {
                    f"{factor:g}": None if speedup is None else speedup.median
                    for factor, speedup in faster.get(label, {}).items()
                }
            }
            for label in ordered_labels(comparison)
        ],
        "verdicts": [verdict_numbers(one) for one in verdicts([comparison])],
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
        "difference": _spread(verdict.difference),
        "interval": verdict.interval,
        "seconds_over_baseline": verdict.seconds,
        "difference_from_full_training": _spread(verdict.whole_error),
        "cost_over_full_training": verdict.whole_cost,
        "sentence": verdict.sentence,
    }


def _configuration(label: str, runs: list[RunSummary]) -> dict[str, Any]:
    def over_seeds(values: Iterable[float]) -> dict[str, float | None] | None:
        return _spread(mean_and_spread(values))

    return {
        "label": label,
        "strategy": runs[0].strategy,
        "matched_to": runs[0].matched_to,
        "keep": runs[0].keep_asked,
        "seeds": sorted(run.seed for run in runs),
        "final": over_seeds(run.final for run in runs),
        "best": over_seeds(run.best for run in runs),
    } | {name: mean_and_spread(getattr(run, name) for run in runs).mean for name in _COUNTED}


def _spread(value: MeanAndSpread | None) -> dict[str, float | None] | None:
    return None if value is None else value._asdict()
