"""Whether selection paid, in words and numbers, from the runs of the same budget."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from siftback.lab.analyses.budget import CONFIDENCE, interval
from siftback.lab.analyses.configurations import setup
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import with_spread
from siftback.lab.records.measures import (
    TRADITIONAL,
    MeanAndSpread,
    mean_and_spread,
    mean_ratio,
    paired_difference,
    pairs,
    same_budget,
    selective_labels,
)
from siftback.lab.report.results_page import judgement

Outcome = Literal["paid", "level", "lost", "undecided"]

_OUTCOMES: dict[str, Outcome] = {"paid": "paid", "did not pay": "lost"}


@dataclass(frozen=True)
class Verdict:
    """What one selective configuration of a comparison came to, beside its baseline.

    Attributes:
        comparison: The comparison's name, as `named` gives it.
        setup: Model and data set, in words.
        label: The configuration.
        baseline: Traditional of the same budget; None where there is no such run.
        differences: Its final test error less the baseline's, in percentage points, for each
            seed that both ran.
        seconds: Its seconds of training over the baseline's, the mean over the seeds; None where
            they ran on different machines.
        whole_error: The difference in final test error to the whole of Traditional, where that is
            not the baseline itself.
        whole_seconds: The seconds over those of the whole of Traditional.
    """

    comparison: str
    setup: str
    label: str
    baseline: str | None
    differences: tuple[float, ...]
    seconds: float | None
    whole_error: MeanAndSpread | None
    whole_seconds: float | None

    @property
    def seeds(self) -> int:
        """How many seeds it was judged by."""
        return len(self.differences)

    @property
    def difference(self) -> MeanAndSpread | None:
        """Mean and spread of the differences; None where there is none."""
        return mean_and_spread(self.differences) if self.differences else None

    @property
    def outcome(self) -> Outcome:
        """The verdict as a word."""
        if self.difference is None or self.difference.spread is None:
            return "undecided"
        return _OUTCOMES.get(judgement(self.difference), "level")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference, by Student's t over the seeds.

        None for one seed, and for seeds whose differences happen to be alike.
        """
        if self.difference is None or (self.difference.spread or 0) < 1e-9:
            return None
        _, low, high = interval(self.differences)
        return low, high

    @property
    def words(self) -> str:
        """The verdict as the end of a sentence, after the configuration's name."""
        return judgement(self.difference)

    @property
    def brief(self) -> str:
        """The difference beside its baseline, as a clause."""
        if self.difference is None:
            return ""
        against = "Traditional at the same cost"
        if self.baseline != TRADITIONAL:
            against = f"Traditional shortened to the same cost ({self.baseline})"
        text = (
            f"{_apart(self.difference)} than that of {against}, over {counted(self.seeds, 'seed')}"
        )
        if self.interval:
            low, high = self.interval
            text += f" ({CONFIDENCE:.0%} interval {low:+.2f} to {high:+.2f}"
            return text + (", which takes in zero)" if low <= 0 <= high else ")")
        alike = " that happen to be alike, which gives no interval"
        return text + (alike if self.seeds > 1 else "")

    @property
    def evidence(self) -> str:
        """The numbers behind the verdict, as a sentence or two."""
        if self.difference is None:
            return ""
        text = f"Its final test error is {self.brief}"
        text += f", in {self.seconds:.2f} times the seconds." if self.seconds else "."
        if self.whole_error:
            text += f" It is {_apart(self.whole_error)} than that of the whole of Traditional"
            text += f", in {self.whole_seconds:.2f} of its time." if self.whole_seconds else "."
        return text


def verdicts(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """The verdict on every selective configuration: first what paid, the clearest ahead."""
    found = [
        _verdict(name, comparison, label)
        for name, comparison in named(comparisons)
        for label in selective_labels(comparison)
    ]
    order: list[Outcome] = ["paid", "level", "lost", "undecided"]
    return sorted(found, key=lambda one: (order.index(one.outcome), _upper_bound(one)))


def chance_of_paying(seeds: int) -> float:
    """How often a selection without any effect would count as having paid.

    That is the chance that a mean of ``seeds`` normal differences around zero lies below minus
    its sample standard deviation: ``P(t(n - 1) < -sqrt(n))``.

    >>> [round(chance_of_paying(seeds), 3) for seeds in (2, 3, 5)]
    [0.196, 0.113, 0.045]
    """
    return float(stats.t.cdf(-math.sqrt(seeds), seeds - 1))


def headline(found: Sequence[Verdict]) -> str:
    """What came out over all comparisons, in a few sentences."""
    if not found:
        return "No selective strategy was run, so there is nothing to judge."
    by_outcome = {
        outcome: [one for one in found if one.outcome == outcome]
        for outcome in ("paid", "level", "lost", "undecided")
    }
    paid, decided = by_outcome["paid"], [one for one in found if one.outcome != "undecided"]
    undecided = len(by_outcome["undecided"])
    parts = [
        f"{len(paid)} of {counted(len(found), 'selective configuration')} paid at the same budget",
        f"{len(by_outcome['level'])} made no difference within the seeds' spread",
        f"{len(by_outcome['lost'])} did worse",
        f"{undecided} {'is' if undecided == 1 else 'are'} undecided",
    ]
    text = f"{', '.join(parts[:-1])}, and {parts[-1]}. "
    clear = [one for one in paid if _upper_bound(one) < 0]
    if clear:
        best = clear[0]
        text += f"Clearest is {best.label} in {best.comparison}: a test error {best.brief}. "
    elif paid:
        text += f"Of what paid, no {CONFIDENCE:.0%} interval lies wholly below zero. "
    if decided:
        expected = sum(chance_of_paying(one.seeds) for one in decided)
        text += (
            f"If selection had no effect at all, about {expected:.1f} of the {len(decided)} that "
            "are decided would count as paid by chance alone."
        )
    return text.strip()


def counted(count: int, noun: str) -> str:
    """A number of things, in words.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named(comparisons: Sequence[Comparison]) -> list[tuple[str, Comparison]]:
    """Each comparison with its folder's name, and the folder's around it where two are alike."""
    folders = [comparison.folder.resolve() for comparison in comparisons]
    many = Counter(folder.name for folder in folders)
    names = [
        folder.name if many[folder.name] == 1 else f"{folder.parent.name}/{folder.name}"
        for folder in folders
    ]
    return list(zip(names, comparisons, strict=True))


def _apart(difference: MeanAndSpread) -> str:
    """A difference in words.

    >>> _apart(MeanAndSpread(-1.5, 0.25)), _apart(MeanAndSpread(0.5, None))
    ('1.50 ± 0.25 points lower', '0.50 points higher')
    """
    size = with_spread(difference._replace(mean=abs(difference.mean)))
    return f"{size} points {'lower' if difference.mean < 0 else 'higher'}"


def _verdict(name: str, comparison: Comparison, label: str) -> Verdict:
    baseline = same_budget(comparison, label)
    both = pairs(comparison, label, baseline) if baseline else []
    whole = baseline != TRADITIONAL
    return Verdict(
        comparison=name,
        setup=setup(comparison),
        label=label,
        baseline=baseline,
        differences=tuple(run.test_error_final - base.test_error_final for run, base in both),
        seconds=_seconds(comparison, label, baseline) if baseline else None,
        whole_error=paired_difference(comparison, label, TRADITIONAL) if whole else None,
        whole_seconds=_seconds(comparison, label, TRADITIONAL) if whole else None,
    )


def _seconds(comparison: Comparison, label: str, baseline: str) -> float | None:
    if comparison.machine(label) != comparison.machine(baseline):
        return None
    return mean_ratio(comparison, label, baseline, "seconds_train")


def _upper_bound(verdict: Verdict) -> float:
    return verdict.interval[1] if verdict.interval else math.inf
