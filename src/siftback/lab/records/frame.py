"""The records of a comparison as two tables, and the numbers that every page reads from them.

`read_runs` returns a row per run and `read_evaluations` a row per evaluation, as data frames.
Verdicts, speed-ups, tables and figures are queries of the two, so that one definition serves all.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import (
    MATCHED,
    METRICS,
    TRADITIONAL,
    Evaluation,
    RunSummary,
    run_label,
)

TABLE_1_FACTORS = (1.1, 1.2, 1.4)
CONFIDENCE = 0.95
LIKELY = 0.8

# Seeds whose differences are nearer than this are alike: test sets are finite, so that two seeds
# often come to the same number, and their standard deviation of zero is no evidence.
ALIKE = 1e-9

# The numbers that a run or an evaluation may lack.
OPTIONAL = [f.name for f in (*fields(RunSummary), *fields(Evaluation)) if f.default is None]

Axis = Literal["seconds", "cost", "steps"]
Outcome = Literal["paid", "likely better", "undecided", "likely worse", "worse"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""The words for a verdict wherever one is shown, the best first."""


class MeanAndSpread(NamedTuple):
    """A mean over seeds and how far the seeds lie apart.

    Attributes:
        mean: The arithmetic mean.
        spread: The sample standard deviation (n - 1), or None for one seed, which has none.
    """

    mean: float
    spread: float | None

    def __format__(self, spec: str) -> str:
        """Writes the mean and, where several seeds give one, the spread.

        >>> f"{MeanAndSpread(4.217, 0.104):.2f}", f"{MeanAndSpread(0.5, None):+.2f}"
        ('4.22 ± 0.10', '+0.50')
        """
        mean = format(self.mean, spec)
        return mean if self.spread is None else f"{mean} ± {format(self.spread, spec.lstrip('+'))}"


class Range(NamedTuple):
    """Several values by the one in their middle, such as the speed-ups of the seeds.

    Attributes:
        median: The median; it is what is meant where a speed-up is one number.
        least: The least of all.
        most: The most of all.
    """

    median: float
    least: float
    most: float


def kept(read: Callable[[Comparison], pd.DataFrame]) -> Callable[[Comparison], pd.DataFrame]:
    """Has a reader make the table of a comparison once, until it has other runs."""

    @wraps(read)
    def read_once(comparison: Comparison) -> pd.DataFrame:
        if comparison.tables.get(read, (None,))[0] != comparison.runs:
            comparison.tables[read] = [*comparison.runs], read(comparison)
        return comparison.tables[read][1].copy(deep=False)  # to which columns can be added

    return read_once


@kept
def read_runs(comparison: Comparison) -> pd.DataFrame:
    """Returns the finished runs of a comparison, a row each.

    Plain training comes first, then each configuration before the runs matched to it; the seeds of
    a configuration stand in the order in which they ended.

    Returns:
        The fields of `RunSummary` as columns: ``matched_to`` is empty where there is none, numbers
        that a run may lack are NaN, and ``seconds_by_phase`` and ``seconds_observing`` hold
        dictionaries. Also

        - ``label``: the configuration, the same for all of its seeds;
        - ``family``: the strategy without its interval, ``stale-sb`` for ``stale-sb-5``;
        - ``selective``: whether the strategy selects: all but plain training and the matched runs;
        - ``final``, ``best``: the error or the loss, whichever ``metric`` says;
        - ``machine``: the processor or the device that the run was measured on.
    """
    derived = ("label", "family", "selective", "final", "best")
    rows = [
        vars(run)
        | {name: getattr(run, name) for name in derived}
        | {"matched_to": run.matched_to or "", "machine": comparison.machine_of(run)}
        for run in in_order(comparison.runs)
    ]
    return _table(rows, [*RunSummary.__dataclass_fields__, *derived, "machine"])


@kept
def read_evaluations(comparison: Comparison) -> pd.DataFrame:
    """Returns the evaluations of all finished runs, a row each, run by run as in `read_runs`.

    Returns:
        The fields of `Evaluation` as columns (``phases`` holds dictionaries, ``agreement`` is NaN
        where there is none), and

        - ``label``, ``family``, ``selective``, ``strategy``, ``seed``, ``record``: its run's;
        - ``number``: which evaluation of its run it is, from 0;
        - ``judged``: the test error or the test loss, whichever the run's ``metric`` says.

    Raises:
        OSError: If a record is missing, or cannot be read.
        ValueError: If it is damaged.
    """
    derived = ("label", "family", "selective", "strategy", "seed", "record")
    rows = [
        vars(evaluation)
        | {name: getattr(run, name) for name in derived}
        | {"number": number, "judged": getattr(evaluation, METRICS[run.metric].field)}
        for run in in_order(comparison.runs)
        for number, evaluation in enumerate(comparison.evaluations(run))
    ]
    return _table(rows, [*Evaluation.__dataclass_fields__, *derived, "number", "judged"])


def _table(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> pd.DataFrame:
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in names}
    for name, values in columns.items():
        if name in OPTIONAL:
            columns[name] = np.array(values, float)  # in which None is NaN
        elif values and isinstance(values[0], str):
            # As objects, few labels are compared in less than half the time.
            columns[name] = pd.Series(values, dtype=object)
    return pd.DataFrame(columns)


def in_order(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """Returns runs as readers want them: plain training, then each before those matched to it."""
    runs = list(runs)
    first = {run.label: number for number, run in reversed([*enumerate(runs)])}

    def position(run: RunSummary) -> tuple[bool, int, bool]:
        number = first.get(run.partner, first[run.label])
        return run.label != TRADITIONAL, number, run.partner != run.label

    return sorted(runs, key=position)


def mean_and_spread(values: Iterable[float]) -> MeanAndSpread:
    """Returns the mean of some values and their sample standard deviation.

    The deviation is None of a single value, and of those of which one is not finite.

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
    has_spread = len(seeds) > 1 and math.isfinite(sum(seeds))  # which statistics takes for granted
    return MeanAndSpread(statistics.mean(seeds), statistics.stdev(seeds) if has_spread else None)


def interval(
    differences: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Returns the mean of some differences and the ends of its interval by Student's t.

    ``mean ± t((1 + confidence) / 2, n - 1) * s / sqrt(n)``, s being the sample standard deviation.

    Args:
        differences: One per seed; of a single one, and of several that are alike, the ends are NaN.
        confidence: The probability that such an interval takes in the true mean.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    mean, error = _mean_and_error(differences)
    half = float(stdtrit(len(differences) - 1, (1 + confidence) / 2)) * error
    return mean, mean - half, mean + half


def signed_interval(low: float, high: float, digits: int = 2) -> str:
    """Writes the ends of a difference's `interval`; empty where they are NaN.

    >>> signed_interval(-1.5, 0.25), signed_interval(math.nan, math.nan)
    ('-1.50 to +0.25', '')
    """
    return "" if math.isnan(low) else f"{low:+.{digits}f} to {high:+.{digits}f}"


def p_value(differences: Sequence[float]) -> float:
    """Returns the probability of a mean as far from zero as this, if selection had no effect.

    That of both sides, by the paired t-test: it is below ``1 - confidence`` where the `interval` of
    that confidence is clear of zero. NaN where there is no interval.

    >>> round(p_value([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    mean, error = _mean_and_error(differences)
    return 2 * float(stdtr(len(differences) - 1, -abs(mean) / error))


def judge(differences: Sequence[float]) -> Outcome:
    """Returns the verdict on differences in error or loss, selective less same budget, by seed.

    The one rule for a verdict, whoever shows it: a configuration paid, or is worse, where the 95 %
    interval of the mean difference lies below zero, or above; it is likely better, or likely worse,
    where the 80 % interval does; and all else is undecided.

    >>> judge([-0.4, -0.5, -0.6]), judge([0.4, 0.5, 0.6])
    ('paid', 'worse')
    >>> judge([-1.0, -2.0, -3.0]), judge([1.0, 2.0, 3.0])
    ('likely better', 'likely worse')
    >>> judge([-1.0, 0.5]), judge([-0.5]), judge([-0.5, -0.5]), judge([])
    ('undecided', 'undecided', 'undecided', 'undecided')
    """
    words: tuple[tuple[float, Outcome, Outcome], ...] = (
        (CONFIDENCE, "paid", "worse"),
        (LIKELY, "likely better", "likely worse"),
    )
    for confidence, better, worse in words if differences else ():
        _, low, high = interval(differences, confidence)
        if high < 0:
            return better
        if low > 0:
            return worse
    return "undecided"


def tally(outcomes: Iterable[Outcome]) -> str:
    """Writes how many verdicts there are of each kind, the best first.

    >>> tally(["worse", "paid", "worse"])
    '1 paid, 2 worse'
    """
    counts = Counter(outcomes)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])


def _mean_and_error(differences: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and its standard error, NaN where the seeds have no spread."""
    mean, spread = mean_and_spread(differences)
    if spread is None or spread < ALIKE:
        return mean, math.nan
    return mean, spread / math.sqrt(len(differences))


def pair_seeds(runs: pd.DataFrame, label: str, baseline: str, column: str) -> list[tuple[Any, Any]]:
    """Returns a value of each run of one configuration, and the other's of the same seed.

    Args:
        runs: Those of a comparison, as `read_runs` returns them.
        label: One configuration.
        baseline: The other.
        column: The values'.
    """
    # Not by queries of the table, which take many times as long for as few rows.
    rows = list(zip(runs.label, runs.seed, runs[column], strict=True))
    bases = {seed: value for name, seed, value in rows if name == baseline}
    return [(value, bases[seed]) for name, seed, value in rows if name == label and seed in bases]


def paired_differences(runs: pd.DataFrame, label: str, baseline: str) -> list[float]:
    """Returns how much more final test error, or loss, one configuration has, seed by seed.

    Over the seeds that both ran, in percentage points or nats: negative where ``label`` is better.
    """
    return [float(end - base) for end, base in pair_seeds(runs, label, baseline, "final")]


def mean_ratio(runs: pd.DataFrame, label: str, baseline: str, column: str) -> float | None:
    """Returns one configuration's column over another's, a mean over seeds both ran.

    None where they share no seed; and of seconds, where the two ran on different machines.
    """
    if column == "seconds_train" and machine_of(runs, label) != machine_of(runs, baseline):
        return None
    pairs = pair_seeds(runs, label, baseline, column)
    ratios = [amount / base for amount, base in pairs if base > 0]
    return statistics.mean(ratios) if ratios else None


def machine_of(runs: pd.DataFrame, label: str) -> str:
    """Returns the processors or devices that a configuration's runs were measured on."""
    # Not by a query of the table, as in `pair_seeds`.
    pairs = zip(runs.label, runs.machine, strict=True)
    return " and ".join(sorted({machine for name, machine in pairs if name == label}))


def same_budget(runs: pd.DataFrame, label: str) -> str | None:
    """Returns the label of the plain training that had the budget of a selective configuration.

    That is its matched run, which ends with the step that spends the budget, or before where it
    came to ``stop_at`` or to the end of its time, and then counts for nothing; or, in a comparison
    by budget, plain training itself. None where none of them has the cost of each seed, to 2 %.
    """
    first = list(runs.label).index(label)
    matched = run_label(MATCHED, runs.keep_asked.iloc[first], runs.strategy.iloc[first])
    for baseline, most in ((matched, math.inf), (TRADITIONAL, 1.02)):
        pairs = pair_seeds(runs, baseline, label, "cost_forward_units")
        if pairs and all(0.98 * cost < base < most * cost for base, cost in pairs):
            return baseline
    return None


def crossing(heights: Sequence[float], target: float) -> float:
    """Returns at which evaluation a run's error, or loss, passed a target, NaN if it never did.

    Evaluations count from 0, and a number between two of them says where on the straight line
    from the last above the target to the first at or under it. ``np.interp(crossing(...),
    range(n), amounts)`` is what the run had spent by then.

    Args:
        heights: The errors or losses, in the order of the evaluations.
        target: What to reach.

    >>> crossing([40, 10], 25), crossing([40, 10], 50), crossing([40, 10], 5)
    (0.5, 0.0, nan)
    """
    for number, height in enumerate(heights):
        if height <= target:
            fall = heights[number - 1] - height if number else math.inf
            # A run that diverged before gives no line: it was there by the later evaluation.
            return number - (target - height) / fall if 0 < fall < math.inf else float(number)
    return math.nan


def speedups(
    comparison: Comparison, factors: Sequence[float] = TABLE_1_FACTORS, axis: Axis = "seconds"
) -> dict[str, dict[float, Range | None]]:
    """Computes how much sooner each configuration came near plain training's final error.

    This is the only definition of a speed-up, after table 1 of Jiang et al. 2019: the table
    itself, ``siftback compare`` and ``sweep``, the report, the results page and the papers' numbers
    all show it. For seed s and factor f the target is ``e = f * final(plain, s)``, the final test
    error of plain training's run of that seed (of language, its test loss), and ::

        speedup(s) = spent(plain, s, e) / spent(run, s, e)
        speedup    = median of speedup(s) over the seeds

    where ``spent`` is the amount at the `crossing`, between two evaluations. Counting up to the
    first evaluation under the target instead would round both sides up to an interval between
    evaluations, and move the ratio by the number of evaluations asked for. Of ratios, the median: a
    few seeds with a skewed distribution have a mean that the luckiest seed decides, and the mean of
    ratios is not the inverse of the mean of the inverse ratios, so it would favour whichever run is
    divided by.

    Args:
        comparison: The runs.
        factors: Multiples of plain training's final error.
        axis: The amount that is counted: seconds of training, cost in forwards, or steps.

    Returns:
        By label and factor the median, the least and the most over the seeds that plain training
        ran too. None where one of these seeds did not reach the target, since a median over the
        others would flatter; where plain training ran none of the seeds; and in seconds, where the
        two ran on different machines.
    """
    runs = read_runs(comparison)
    finals = dict(zip(runs.record, runs.final, strict=True))
    curves = {
        record: (list(curve.judged), list(curve[axis]))
        for record, curve in read_evaluations(comparison).groupby("record")
    }

    def spent(record: str, target: float) -> float:
        heights, amounts = curves[record]
        number = crossing(heights, target)
        # NumPy gives NaN for NaN, but of a single evaluation its amount.
        return float(np.interp(number, range(len(amounts)), amounts)) if number >= 0 else math.nan

    def speedup(pairs: Sequence[tuple[str, str]], factor: float) -> Range | None:
        amounts = [
            (spent(base, factor * finals[base]), spent(record, factor * finals[base]))
            for record, base in pairs
        ]
        # Zero is a run that was there before its first step, which says nothing about speed.
        if not amounts or not np.all(np.array(amounts) > 0):
            return None
        ratios = [plain / amount for plain, amount in amounts]
        return Range(statistics.median(ratios), min(ratios), max(ratios))

    machine = machine_of(runs, TRADITIONAL)
    by_label: dict[str, dict[float, Range | None]] = {}
    for label in dict.fromkeys(runs.label):
        pairs: list[tuple[str, str]] = []
        if axis != "seconds" or machine_of(runs, label) == machine:
            pairs = pair_seeds(runs, label, TRADITIONAL, "record")
        by_label[label] = {factor: speedup(pairs, factor) for factor in factors}
    return by_label
