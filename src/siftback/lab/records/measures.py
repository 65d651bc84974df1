"""What the records of a comparison say: means, targets reached, speed-ups and differences.

Pure functions over :mod:`siftback.lab.records.comparison_record`. The table, the plots and the
results page show what is computed here and nothing else, so one definition serves all three.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.metric import METRICS, MetricName
from siftback.lab.records.run_summary import Evaluation, RunSummary, run_label

TRADITIONAL = "traditional"
MATCHED = "matched"
TABLE_1_FACTORS = (1.1, 1.2, 1.4)

Axis = Literal["seconds", "cost", "steps"]
Outcome = Literal["paid", "level", "lost", "undecided"]


class MeanAndSpread(NamedTuple):
    """A mean over seeds and how far the seeds lie apart.

    Attributes:
        mean: The arithmetic mean.
        spread: The sample standard deviation (n - 1), or None for one seed, which has none.
    """

    mean: float
    spread: float | None


class SpeedUp(NamedTuple):
    """How many times sooner than Traditional a configuration came to a target, over the seeds.

    Attributes:
        median: The median; it is what is meant where a speed-up is one number.
        least: The least of all seeds.
        most: The most of all seeds.
    """

    median: float
    least: float
    most: float


def mean_and_spread(values: Iterable[float]) -> MeanAndSpread:
    """The mean of some values and their sample standard deviation.

    Args:
        values: One value per seed, at least one.

    Raises:
        statistics.StatisticsError: Where there are no values; it is a ``ValueError``.

    >>> mean_and_spread([2.0, 4.0, 6.0])
    MeanAndSpread(mean=4.0, spread=2.0)
    >>> mean_and_spread([3.0])
    MeanAndSpread(mean=3.0, spread=None)
    """
    seeds = list(values)
    return MeanAndSpread(statistics.mean(seeds), statistics.stdev(seeds) if seeds[1:] else None)


def judgement(difference: MeanAndSpread | None) -> Outcome:
    """What a difference in error or loss, selective less same budget, comes to.

    The one rule for a verdict, whoever shows it: a configuration paid, or lost, where the mean
    difference exceeds its own standard deviation over the seeds.

    >>> judgement(MeanAndSpread(-0.5, 0.1)), judgement(MeanAndSpread(0.5, 0.1))
    ('paid', 'lost')
    >>> judgement(MeanAndSpread(-0.5, 0.6)), judgement(MeanAndSpread(-0.5, None))
    ('level', 'undecided')
    """
    if difference is None or difference.spread is None:
        return "undecided"
    if abs(difference.mean) <= difference.spread:
        return "level"
    return "paid" if difference.mean < 0 else "lost"


def crossing(
    evaluations: Sequence[Evaluation],
    target: float,
    axis: Axis = "seconds",
    metric: MetricName = "error",
) -> float | None:
    """What a run had spent when its error, or loss, passed a target, between two evaluations.

    It is taken to fall on a straight line from the last evaluation above the target to the
    first at or under it. Where that is the first of all, there is no line, and it is what had
    been spent by then.

    Args:
        evaluations: The run's evaluations, in the order in which they were made.
        target: What to reach: a test error in percent, or a test loss.
        axis: What is counted: seconds of training, cost in forwards, or optimizer steps.
        metric: Which of them.

    Returns:
        The amount; None where no evaluation reached the target.

    >>> from siftback.lab.records.run_summary import Evaluation
    >>> early = Evaluation(1, 500, 4, 2.0, 1500, train_loss=2.1, test_loss=2.0, test_error=40)
    >>> later = Evaluation(2, 1000, 8, 4.0, 3000, train_loss=1.1, test_loss=1.2, test_error=10)
    >>> crossing([early, later], 25), crossing([early, later], 50), crossing([early, later], 5)
    (3.0, 2.0, None)
    """
    reached = reaching(evaluations, target, metric)
    if reached is None:
        return None
    before, after, share = reached
    least, most = float(getattr(before, axis)), float(getattr(after, axis))
    return least + share * (most - least)


def reaching(
    evaluations: Sequence[Evaluation], target: float, metric: MetricName = "error"
) -> tuple[Evaluation, Evaluation, float] | None:
    """Between which two evaluations a run passed a target, and where, as in `crossing`.

    Returns:
        The two, and the share of the way from the first to the second; None where the target was
        never reached.
    """
    for number, after in enumerate(evaluations):
        if measured(after, metric) <= target:
            before = evaluations[max(0, number - 1)]
            start = measured(before, metric)
            fall = start - measured(after, metric)
            # A run that diverged before gives no line: it was there by the later evaluation.
            return before, after, (start - target) / fall if 0 < fall < math.inf else 1.0
    return None


def measured(evaluation: Evaluation, metric: MetricName) -> float:
    """What an evaluation found: the test error in percent, or the test loss."""
    return float(getattr(evaluation, METRICS[metric].field))


def ordered_labels(comparison: Comparison) -> list[str]:
    """The configurations as a reader wants them: Traditional, then each before its matched."""
    groups = comparison.by_label()
    order = {label: place for place, label in enumerate(groups)}

    def place(label: str) -> tuple[bool, int, bool]:
        partner = partner_label(groups[label][0])
        return label != TRADITIONAL, order.get(partner or label, order[label]), partner is not None

    return sorted(groups, key=place)


def selective_labels(comparison: Comparison) -> list[str]:
    """Those of them whose strategy selects, in that order."""
    groups = comparison.by_label()
    plain = (TRADITIONAL, MATCHED)
    return [label for label in ordered_labels(comparison) if groups[label][0].strategy not in plain]


def partner_label(run: RunSummary) -> str | None:
    """The label of the run that a matched run shares its budget with; None for all others."""
    return run_label(run.matched_to, run.keep_asked, None) if run.matched_to else None


def speedups(
    comparison: Comparison,
    factors: Sequence[float] = TABLE_1_FACTORS,
    axis: Axis = "seconds",
) -> dict[str, dict[float, SpeedUp | None]]:
    """Computes how much sooner each configuration came near Traditional's final error.

    This is the only definition of a speed-up, after table 1 of Jiang et al. 2019: the table
    itself, ``siftback compare`` and ``sweep``, the report, the results page and the papers' numbers
    all show it. For seed s and factor f the target is ``e = f * final(Traditional, s)``, the final
    test error of Traditional's run of that seed (of language, its test loss), and ::

        speedup(s) = crossing(Traditional, s, e) / crossing(run, s, e)
        speedup    = median of speedup(s) over the seeds

    `crossing` interpolates between two evaluations. Counting up to the first evaluation under the
    target instead would round both sides up to an interval between evaluations, and move the ratio
    by the number of evaluations asked for. Of ratios, the median: a few seeds with a skewed
    distribution have a mean that the luckiest seed decides, and the mean of ratios is not the
    inverse of the mean of the inverse ratios, so it would favour whichever run is divided by.

    Args:
        comparison: The runs.
        factors: Multiples of Traditional's final error.
        axis: What is counted on the way, as in `crossing`.

    Returns:
        By label and factor the median, the least and the most over the seeds that Traditional ran
        too. None where one of these seeds did not reach the target, since a median over the others
        would flatter; where Traditional ran none of the seeds; and in seconds, where the two ran
        on different machines.
    """
    paired = {label: pairs(comparison, label, TRADITIONAL) for label in comparison.by_label()}
    runs = {run.record: run for pair in paired.values() for both in pair for run in both}
    curves = {record: comparison.evaluations(run) for record, run in runs.items()}

    def ratio(run: RunSummary, plain: RunSummary, factor: float) -> float | None:
        target = factor * plain.final
        needed = crossing(curves[run.record], target, axis, plain.metric)
        plain_needed = crossing(curves[plain.record], target, axis, plain.metric)
        # Zero is a run that was there before its first step, which says nothing about speed.
        return plain_needed / needed if needed and plain_needed else None

    def over_seeds(label: str, factor: float) -> SpeedUp | None:
        ratios = [ratio(*pair, factor) for pair in paired[label]]
        reached = [value for value in ratios if value is not None]
        if not reached or len(reached) < len(ratios):
            return None
        return SpeedUp(statistics.median(reached), min(reached), max(reached))

    def comparable(label: str) -> bool:
        return axis != "seconds" or comparison.machine(label) == comparison.machine(TRADITIONAL)

    return {
        label: {factor: over_seeds(label, factor) if timed else None for factor in factors}
        for label, timed in ((label, comparable(label)) for label in paired)
    }


def paired_difference(comparison: Comparison, label: str, baseline: str) -> MeanAndSpread | None:
    """How much more final test error, or loss, one configuration has than another, seed by seed.

    Args:
        comparison: The runs.
        label: The configuration in question.
        baseline: The one it is held against.

    Returns:
        Mean and spread of ``label - baseline``, in percentage points or nats, over the seeds that
        both ran, negative where ``label`` is better; None where they share no seed.
    """
    both = pairs(comparison, label, baseline)
    differences = [run.final - base.final for run, base in both]
    return mean_and_spread(differences) if differences else None


def mean_ratio(
    comparison: Comparison,
    label: str,
    baseline: str,
    quantity: Literal["seconds_train", "cost_forward_units"],
) -> float | None:
    """One configuration's seconds or cost over another's, the mean over the seeds both ran."""
    both = pairs(comparison, label, baseline)
    amounts = [(float(getattr(run, quantity)), getattr(base, quantity)) for run, base in both]
    ratios = [amount / base for amount, base in amounts if base]
    return statistics.mean(ratios) if ratios else None


def same_budget(comparison: Comparison, label: str) -> str | None:
    """The label of the Traditional that had the budget of a selective configuration.

    That is its matched run or, in a comparison by budget, Traditional itself: each run there ends
    with the step that spends the budget, so the costs agree to 2 %. None where there is neither.
    """
    groups = comparison.by_label()
    run = groups[label][0]
    matched = run_label(MATCHED, run.keep_asked, run.strategy)
    if matched in groups:
        return matched
    cost = mean_ratio(comparison, label, TRADITIONAL, "cost_forward_units")
    return TRADITIONAL if cost is not None and abs(cost - 1) < 0.02 else None


def pairs(comparison: Comparison, label: str, baseline: str) -> list[tuple[RunSummary, RunSummary]]:
    """The runs of one configuration, each beside the other's run of the same seed.

    Args:
        comparison: The runs.
        label: One configuration.
        baseline: The other one.
    """
    groups = comparison.by_label()
    bases = {run.seed: run for run in groups.get(baseline, [])}
    return [(run, bases[run.seed]) for run in groups.get(label, []) if run.seed in bases]
