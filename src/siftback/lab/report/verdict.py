"""Whether selection paid, in words and numbers, from runs of the same budget."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scipy.special import stdtr

from siftback.lab.figures.titles import argument, noun_of, setup
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import NOT_REACHED, counted
from siftback.lab.records.frame import (
    CONFIDENCE,
    MeanAndSpread,
    Outcome,
    interval,
    judge,
    mean_and_spread,
    mean_ratio,
    paired_differences,
    read_runs,
    same_budget,
)
from siftback.lab.records.run_summary import TRADITIONAL, Metric

# As a word of a table, the best first.
OUTCOMES: dict[Outcome, str] = {
    "paid": "paid",
    "level": "within the spread",
    "lost": "did worse",
    "undecided": "undecided",
}


class Budget(NamedTuple):
    """The budget of a selective configuration and its baseline.

    Attributes:
        cost: In forwards of one example, a backward being two: what the baseline spent, the mean
            over the seeds.
        epochs: How many epochs of the baseline that is.
        examples: Of how many training examples; None for the whole data set.
        noun: What they are called.
    """

    cost: float
    epochs: float
    examples: int | None
    noun: str = "images"

    def __str__(self) -> str:
        """In words.

        >>> str(Budget(30_000.0, 2.504, 4000)), str(Budget(150_000.0, 1.0, None))
        ('2.5 epochs of 4,000 images', '1 epoch')
        """
        length = f"{self.epochs:.2g}"
        length += " epoch" if length == "1" else " epochs"
        return f"{length} of {self.examples:,} {self.noun}" if self.examples else length


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
        baseline: Traditional of the same budget; None where there is no such run.
        budget: What both may spend; None without a baseline.
        metric: What it was judged by.
        differences: Its final test error less the baseline's, in percentage points, for each
            seed that both ran; of a language model its final test loss less, in nats.
        seconds: Its seconds of training over the baseline's, the mean over the seeds; None where
            they ran on different machines.
        whole_differences: Its final test error, or loss, less that of the whole of Traditional;
            empty where that is the baseline itself.
        whole_cost: Its cost over that of the whole of Traditional.
        whole_seconds: The seconds over those of the whole of Traditional.
    """

    comparison: str
    setup: str
    data: str
    strategy: str
    keep: float
    label: str
    baseline: str | None
    budget: Budget | None
    metric: Metric
    differences: Sequence[float]
    seconds: float | None
    whole_differences: Sequence[float]
    whole_cost: float | None
    whole_seconds: float | None

    @property
    def seeds(self) -> int:
        """The number of seeds that both ran."""
        return len(self.differences)

    @property
    def difference(self) -> MeanAndSpread | None:
        """Mean and spread of the differences; None where there is none."""
        return mean_and_spread(self.differences) if self.differences else None

    @property
    def outcome(self) -> Outcome:
        """The verdict."""
        return judge(self.differences)

    @property
    def whole_error(self) -> MeanAndSpread | None:
        """Mean and spread of the differences from the whole of Traditional; None without any."""
        return mean_and_spread(self.whole_differences) if self.whole_differences else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference, by Student's t over the seeds.

        None for one seed, and for seeds whose differences happen to be alike.
        """
        if not self.difference or (self.difference.spread or 0) < 1e-9:
            return None
        _, low, high = interval(self.differences)
        return low, high

    @property
    def words(self) -> str:
        """The verdict as the end of a sentence, after the configuration's name."""
        match self.outcome:
            case "paid":
                return "paid"
            case "level":
                return "made no difference within the seeds' spread"
            case "lost":
                return "did worse"
            case "undecided" if self.differences:
                return "is undecided, as one seed has no spread"
            case "undecided":
                return "is undecided, as there is no run of the same budget"

    @property
    def sentence(self) -> str:
        """The verdict and what it rests on, for a terminal."""
        text = f"{self.label} {self.words}"
        if self.difference:
            apart = _apart(self.difference, self.metric)
            text += f": test {self.metric.noun} {apart} than Traditional's at the same cost"
        if self.whole_error is None or self.whole_cost is None:
            return f"{text}."
        apart, share = _apart(self.whole_error, self.metric), f"{self.whole_cost:.2f} of its cost"
        if judge(self.whole_differences) in ("paid", "level"):
            noun = self.metric.noun
            return f"{text}. It has the {noun} of Traditional's full training ({apart}) at {share}."
        return f"{text}. Beside Traditional's full training it is {apart}, at {share}."

    @property
    def brief(self) -> str:
        """The difference beside its baseline, as a clause."""
        if not self.difference:
            return ""
        against = "Traditional at the same cost"
        if self.baseline != TRADITIONAL:
            against = f"Traditional shortened to the same cost ({self.baseline})"
        text = (
            f"{_apart(self.difference, self.metric)} than that of {against}, over "
            f"{counted(self.seeds, 'seed')}"
        )
        if self.interval:
            low, high = self.interval
            digits = self.metric.digits
            text += f" ({CONFIDENCE:.0%} interval {low:+.{digits}f} to {high:+.{digits}f}"
            return text + (", which takes in zero)" if low <= 0 <= high else ")")
        alike = " that happen to be alike, which gives no interval"
        return text + (alike if self.seeds > 1 else "")

    @property
    def evidence(self) -> str:
        """The numbers behind the verdict, as a sentence or two."""
        if not self.difference:
            return ""
        text = f"Its final test {self.metric.noun} is {self.brief}"
        text += f", in {self.seconds:.2f} times the seconds." if self.seconds else "."
        if self.whole_error:
            apart = _apart(self.whole_error, self.metric)
            text += f" It is {apart} than that of the whole of Traditional"
            text += f", in {self.whole_seconds:.2f} of its time." if self.whole_seconds else "."
        return text


def verdicts(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """The verdict on every selective configuration: first what paid, the clearest ahead."""
    judged = [
        verdict for name, comparison in named(comparisons) for verdict in _judge(name, comparison)
    ]
    order = list(OUTCOMES)
    return sorted(judged, key=lambda verdict: (order.index(verdict.outcome), _upper_bound(verdict)))


def probability_of_paying(seeds: int) -> float:
    """Returns the probability that a selection without any effect counts as paid.

    That is the probability that a mean of ``seeds`` normal differences around zero lies below minus
    its sample standard deviation: ``P(t(n - 1) < -sqrt(n))``.

    >>> [round(probability_of_paying(seeds), 3) for seeds in (2, 3, 5)]
    [0.196, 0.113, 0.045]
    """
    return float(stdtr(seeds - 1, -math.sqrt(seeds)))


def headline(verdicts_shown: Sequence[Verdict]) -> str:
    """Returns a summary of all comparisons in a few sentences."""
    if not verdicts_shown:
        return "No selective strategy was run, so there is nothing to judge."
    by_outcome = {
        outcome: [verdict for verdict in verdicts_shown if verdict.outcome == outcome]
        for outcome in OUTCOMES
    }
    paid, decided = (
        by_outcome["paid"],
        [verdict for verdict in verdicts_shown if verdict.outcome != "undecided"],
    )
    undecided = len(by_outcome["undecided"])
    phrases = [
        f"{len(paid)} of {counted(len(verdicts_shown), 'selective configuration')} paid at the "
        "same budget",
        f"{len(by_outcome['level'])} made no difference within the seeds' spread",
        f"{len(by_outcome['lost'])} did worse",
        f"{undecided} {'is' if undecided == 1 else 'are'} undecided",
    ]
    text = f"{', '.join(phrases[:-1])}, and {phrases[-1]}. "
    clear = [verdict for verdict in paid if _upper_bound(verdict) < 0]
    if clear:
        best = clear[0]
        text += f"Clearest is {best.label} in {best.comparison}: a test {best.metric.noun} "
        text += f"{best.brief}. "
    elif paid:
        text += f"Of what paid, no {CONFIDENCE:.0%} interval lies wholly below zero. "
    if decided:
        expected = sum(probability_of_paying(verdict.seeds) for verdict in decided)
        text += "If selection had no effect at all, about "
        if expected < 1:
            text += f"{expected / len(decided):.0%} would count as paid by chance alone."
        else:
            text += f"{expected:.1f} of the {len(decided)} that are decided would count as paid "
            text += "by chance alone."
    return text.strip()


def difference_of(verdict: Verdict) -> str:
    """The difference from its baseline: points without a unit, nats with theirs."""
    if not verdict.difference:
        return NOT_REACHED
    written = f"{verdict.difference:+.{verdict.metric.digits}f}"
    return written if verdict.metric.name == "error" else f"{written} {verdict.metric.unit}"


def named(comparisons: Sequence[Comparison]) -> list[tuple[str, Comparison]]:
    """Each comparison with its folder's name, and the folder's around it where two are alike."""
    folders = [comparison.folder.resolve() for comparison in comparisons]
    many = Counter(folder.name for folder in folders)
    names = [
        folder.name if many[folder.name] == 1 else f"{folder.parent.name}/{folder.name}"
        for folder in folders
    ]
    return list(zip(names, comparisons, strict=True))


def _apart(difference: MeanAndSpread, metric: Metric) -> str:
    """A difference in words.

    >>> from siftback.lab.records.run_summary import METRICS
    >>> _apart(MeanAndSpread(-1.5, 0.25), METRICS["error"])
    '1.50 ± 0.25 points lower'
    >>> _apart(MeanAndSpread(0.5, None), METRICS["loss"])
    '0.500 nats higher'
    """
    size = difference._replace(mean=abs(difference.mean))
    return (
        f"{size:.{metric.digits}f} {metric.points} {'lower' if difference.mean < 0 else 'higher'}"
    )


def _judge(name: str, comparison: Comparison) -> Iterator[Verdict]:
    """Yields the verdict on each selective configuration of a comparison."""
    runs = read_runs(comparison)
    for run in runs[runs.selective].drop_duplicates("label").itertuples():
        baseline, budget = same_budget(runs, run.label), None
        if baseline:
            cost, epochs = runs[runs.label == baseline][["cost_forward_units", "epochs"]].mean()
            limit = argument(comparison, "train_limit")
            budget = Budget(cost, epochs, limit, noun_of(comparison))
        whole = "" if baseline == TRADITIONAL else TRADITIONAL
        yield Verdict(
            comparison=name,
            setup=setup(comparison),
            data=run.data,
            strategy=run.strategy,
            keep=run.keep_asked,
            label=run.label,
            baseline=baseline,
            budget=budget,
            metric=comparison.metric,
            differences=paired_differences(runs, run.label, baseline or ""),
            seconds=mean_ratio(runs, run.label, baseline or "", "seconds_train"),
            whole_differences=paired_differences(runs, run.label, whole),
            whole_cost=mean_ratio(runs, run.label, whole, "cost_forward_units"),
            whole_seconds=mean_ratio(runs, run.label, whole, "seconds_train"),
        )


def _upper_bound(verdict: Verdict) -> float:
    return verdict.interval[1] if verdict.interval else math.inf
