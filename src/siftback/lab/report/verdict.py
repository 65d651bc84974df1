"""Whether selection paid, in words and numbers, from runs of the same budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from siftback.lab.records import frame
from siftback.lab.records.comparison_record import Comparison, named
from siftback.lab.records.formatting import NOT_REACHED, counted, listed
from siftback.lab.records.run_summary import TRADITIONAL, Metric
from siftback.lab.strategies.table import PLAIN, library_name

RULE = (
    f"A configuration paid, or is worse, where the {frame.CONFIDENCE:.0%} interval of its mean "
    "difference, by Student's t over the seeds, lies below zero, or above. It is likely better, or "
    f"likely worse, where the {frame.LIKELY:.0%} interval does, and undecided otherwise."
)
"""What `judge` does, for a page."""

FALSE_DISCOVERIES = 1 - frame.CONFIDENCE
"""The share of wrong ones expected among the verdicts that a summary says remain."""


@dataclass(frozen=True)
class Verdict:
    """The result of a selective configuration of a comparison, beside its baseline.

    Attributes:
        comparison: The comparison's name, as `named` gives it.
        setup: Model and data set, in words.
        data: The data set.
        strategy: The configuration's strategy.
        keep: The share that it was asked to keep.
        label: The configuration.
        baseline: Plain training of the same budget; None where there is no such run.
        cost: What the baseline spent, in forwards of one example, a backward being two: the mean
            over the seeds, NaN without a baseline.
        metric: What it was judged by.
        differences: Its final test error less the baseline's, in percentage points, for each
            seed that both ran; of a language model its final test loss less, in nats.
        seconds: Its seconds of training over the baseline's, the mean over the seeds; None where
            they ran on different machines.
        whole_differences: Its final test error, or loss, less that of the whole of plain training;
            empty where that is the baseline itself.
        whole_cost: Its cost over that of the whole of plain training.
        kept: The share of the examples that it trained on, the mean over the seeds.
        diverged: Which of it and of plain training ended at a loss that is not finite, in any seed.
    """

    comparison: str
    setup: str
    data: str
    strategy: str
    keep: float
    label: str
    baseline: str | None
    cost: float
    metric: Metric
    differences: Sequence[float]
    seconds: float | None
    whole_differences: Sequence[float]
    whole_cost: float | None
    kept: float
    diverged: Sequence[str]

    @property
    def compared(self) -> bool:
        """Whether several seeds ran both it and a baseline, so that it is judged by numbers."""
        return self.seeds > 1

    @property
    def seeds(self) -> int:
        """The number of seeds that both ran."""
        return len(self.differences)

    @property
    def difference(self) -> frame.MeanAndSpread | None:
        """Mean and spread of the differences; None where there is none."""
        return frame.mean_and_spread(self.differences) if self.differences else None

    @cached_property
    def outcome(self) -> frame.Outcome:
        """The verdict."""
        return frame.judge(self.differences)

    @property
    def whole_error(self) -> frame.MeanAndSpread | None:
        """Mean and spread of the differences from the whole of plain training; None without any."""
        return frame.mean_and_spread(self.whole_differences) if self.whole_differences else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference, by Student's t over the seeds.

        None for one seed, and for seeds whose differences happen to be alike.
        """
        if not self.differences:
            return None
        _, low, high = frame.interval(self.differences)
        return None if math.isnan(low) else (low, high)

    @property
    def ends(self) -> str:
        """The ends of its interval; empty without one."""
        return frame.signed_interval(*self.interval, self.metric.digits) if self.interval else ""

    @property
    def points(self) -> str:
        """The difference from its baseline: points without a unit, nats with theirs."""
        if not self.difference:
            return NOT_REACHED
        written = f"{self.difference:+.{self.metric.digits}f}"
        return written if self.metric.unit == "%" else f"{written} {self.metric.unit}"

    @property
    def sentence(self) -> str:
        """The verdict and what it rests on."""
        verb = "" if self.outcome == "paid" else "is "
        text = f"{library_name(self.label)} {verb}{self.outcome}"
        if self.difference:
            apart = _apart(self.difference, self.metric)
            text += f": test {self.metric.noun} {apart} than {PLAIN}'s at the same cost, over "
            text += self.certainty
        else:
            text += ", as there is no run of the same budget"
        if self.kept == 1 > self.keep:
            text += "; it left nothing out in so short a training, or with these settings"
        if self.diverged:
            text += f". Diverged, to a loss that is not finite: {listed(self.diverged)}"
        if self.whole_error is None or self.whole_cost is None:
            return f"{text}."
        apart, word = _apart(self.whole_error, self.metric), frame.judge(self.whole_differences)
        text += f". Beside {PLAIN} in full it is {apart} ({word}), at "
        return f"{text}{self.whole_cost:.2f} of its cost."

    @property
    def certainty(self) -> str:
        """The number of seeds and the interval that they give."""
        text = counted(self.seeds, "seed")
        if self.interval:
            low, high = self.interval
            text += f" ({frame.CONFIDENCE:.0%} interval {self.ends}"
            return text + (", which takes in zero)" if low <= 0 <= high else ")")
        alike = "that happen to be alike, which gives no interval"
        return f"{text} {alike if self.seeds > 1 else 'without a spread'}"


def verdicts(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """The verdict on every selective configuration: first what paid, the clearest ahead."""
    judged = []
    for name, comparison in named(comparisons):
        runs = frame.read_runs(comparison)
        diverged = {run.label for run in comparison.runs if run.diverged}
        for run in runs[runs.selective].drop_duplicates("label").itertuples():
            baseline = frame.same_budget(runs, run.label)
            whole = "" if baseline == TRADITIONAL else TRADITIONAL
            verdict = Verdict(
                comparison=name,
                setup=comparison.setup,
                data=run.data,
                strategy=run.strategy,
                keep=run.keep_asked,
                label=run.label,
                baseline=baseline,
                cost=runs.cost_forward_units[runs.label == baseline].mean(),
                metric=comparison.metric,
                differences=frame.paired_differences(runs, run.label, baseline or ""),
                seconds=frame.mean_ratio(runs, run.label, baseline or "", "seconds_train"),
                whole_differences=frame.paired_differences(runs, run.label, whole),
                whole_cost=frame.mean_ratio(runs, run.label, whole, "cost_forward_units"),
                kept=runs.keep_measured[runs.label == run.label].mean(),
                diverged=[library_name(x) for x in (baseline, whole, run.label) if x in diverged],
            )
            judged.append(verdict)
    judged.sort(key=lambda verdict: verdict.interval[1] if verdict.interval else math.inf)
    return sorted(judged, key=lambda verdict: frame.OUTCOMES.index(verdict.outcome))


def remaining(verdicts_shown: Sequence[Verdict]) -> list[Verdict]:
    """Returns the verdicts that remain if the false-discovery rate over all of them is held.

    Among many configurations some are clear of zero by chance. Of those that remain at most
    `FALSE_DISCOVERIES` are expected to be so: with p-values in order ``p(1) <= ... <= p(m)``, the
    first k, for the largest k with ``p(k) <= FALSE_DISCOVERIES * k / m`` (Benjamini and Hochberg
    1995, eq. 1). That holds of independent verdicts, and of those that share a baseline where they
    depend on one another positively (Benjamini and Yekutieli 2001). Verdicts without an interval
    are no tests, and do not count.
    """
    tested = [verdict for verdict in verdicts_shown if verdict.interval]
    values = [frame.p_value(verdict.differences) for verdict in tested]
    # Not with scipy.stats, which takes longer to import than all else here.
    ranked = enumerate(sorted(values), start=1)
    passing = (value for k, value in ranked if value <= FALSE_DISCOVERIES * k / len(values))
    most = max(passing, default=-1.0)
    return [verdict for verdict, value in zip(tested, values, strict=True) if value <= most]


def headline(verdicts_shown: Sequence[Verdict]) -> str:
    """Returns a summary of all comparisons in a few sentences."""
    if not verdicts_shown:
        return "No selective strategy was run, so there is nothing to judge."
    text, compared = "", [verdict for verdict in verdicts_shown if verdict.compared]
    if compared:
        text += f"Of {counted(len(compared), 'selective configuration')} beside {PLAIN} at "
        text += f"the same budget: {frame.tally(verdict.outcome for verdict in compared)}. "
    if alone := len(verdicts_shown) - len(compared):
        text += f"Undecided, without a run of the same budget or a second seed: {alone}. "
    best = verdicts_shown[0]
    if best.outcome == "paid":
        text += f"Clearest, in {best.comparison}: {best.sentence} "
    if any(verdict.interval for verdict in verdicts_shown):
        text += (
            f"With the false-discovery rate held at {FALSE_DISCOVERIES:.0%} (Benjamini and "
            f"Hochberg 1995), {describe_remaining(verdicts_shown)}."
        )
    return text.strip()


def describe_remaining(verdicts_shown: Sequence[Verdict]) -> str:
    """Says as a clause how many verdicts `remaining` leaves."""
    tested = sum(bool(verdict.interval) for verdict in verdicts_shown)
    held = [verdict.outcome for verdict in remaining(verdicts_shown)]
    return (
        f"{held.count('paid')} of those that paid and {held.count('worse')} of those that are "
        f"worse remain, of {counted(tested, 'interval')}"
    )


def _apart(difference: frame.MeanAndSpread, metric: Metric) -> str:
    """A difference in words.

    >>> from siftback.lab.records.run_summary import METRICS
    >>> _apart(frame.MeanAndSpread(-1.5, 0.25), METRICS["error"])
    '1.50 ± 0.25 points lower'
    >>> _apart(frame.MeanAndSpread(0.5, None), METRICS["loss"])
    '0.500 nats higher'
    >>> _apart(frame.MeanAndSpread(0.0004, 0.02), METRICS["loss"])  # neither, as it is written
    '0.000 ± 0.020 nats lower or higher'
    """
    mean = round(difference.mean, metric.digits)
    side = "lower" if mean < 0 else "higher" if mean else "lower or higher"
    return f"{difference._replace(mean=abs(mean)):.{metric.digits}f} {metric.points} {side}"
