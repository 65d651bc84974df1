"""What analyses find in the records: numbers and names, which say themselves in a sentence.

Each finding is of one comparison, whose title it begins with, unless it says otherwise.
"""
# ruff: noqa: D102 - a finding's docstring says what its sentence is about; × is meant.

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from siftback.lab.records.run_summary import METRICS, MetricName


class Finding(Protocol):
    """Numbers that can say themselves."""

    def sentence(self) -> str:
        """One sentence or two."""


class BestEnd(NamedTuple):
    """How the best selective configuration ends, beside Traditional where that was run.

    ``spent`` is its share of what Traditional spent, ``unit`` what that is counted in.
    """

    title: str
    label: str
    error: float
    baseline_error: float | None = None
    spent: float | None = None
    unit: str = ""
    metric: MetricName = "error"

    def sentence(self) -> str:
        written = METRICS[self.metric].written
        text = f"{self.title}: {self.label} ends at {written(self.error)}"
        if self.baseline_error is None:
            return f"{text}."
        share = f", with {self.spent:.2f} of its {self.unit}" if self.spent is not None else ""
        return f"{text}, traditional at {written(self.baseline_error)}{share}."


class ErrorsByForwards(NamedTuple):
    """Each configuration's name, forwards and final error."""

    title: str
    ends: Sequence[tuple[str, float, float]]
    metric: MetricName = "error"

    def sentence(self) -> str:
        each = (
            f"{label} {forwards / 1e6:.3g} M forwards and {METRICS[self.metric].written(error)}"
            for label, forwards, error in self.ends
        )
        return f"{self.title}: {'; '.join(each)}."


class ErrorsByShare(NamedTuple):
    """A strategy's final error at each share kept, and Traditional's."""

    title: str
    strategy: str
    errors: Sequence[tuple[float, float]]
    baseline_error: float | None
    metric: MetricName = "error"

    def sentence(self) -> str:
        metric = METRICS[self.metric]
        each = ", ".join(f"{share:.2g} kept {metric.written(end)}" for share, end in self.errors)
        plain = self.baseline_error
        end = "" if plain is None else f"; traditional {metric.written(plain)}"
        return f"{self.title}, final {metric.noun} of {self.strategy}: {each}{end}."


class BestSpeedUp(NamedTuple):
    """The best speed-up in cost to a multiple of Traditional's error, and whose; None if none."""

    title: str
    factor: float
    best: tuple[str, float] | None
    metric: MetricName = "error"

    def sentence(self) -> str:
        noun = METRICS[self.metric].noun
        target = f"{self.factor:g} times the final {noun} of Traditional"
        if self.best is None:
            return f"{self.title}: no strategy reaches {target} in every seed."
        label, speed_up = self.best
        return f"{self.title}: {label} reaches {target} at 1/{speed_up:.2f} of its cost."


class BudgetRatios(NamedTuple):
    """Budget ratios of an experiment: of each method named, by budget.

    ``above`` of all ``measured`` ratios have their whole interval above 1. ``level`` is the budget
    from which Traditional ends no lower, if there is one.
    """

    title: str
    methods: Sequence[tuple[str, Sequence[tuple[float, str]]]]
    above: int
    measured: int
    level: float | None

    def sentence(self) -> str:
        each = "; ".join(
            f"{label} {', '.join(f'{ratio} ({budget:g} epochs)' for budget, ratio in ratios)}"
            for label, ratios in self.methods
        )
        rest = f"{self.above} of {self.measured} ratios are above 1 with their whole interval"
        more = "" if self.level is None else f" Traditional ends lowest at {self.level:g} epochs."
        return f"{self.title}: {each}. In all {rest}.{more}"


class Reached(NamedTuple):
    """At which budgets of which experiments a method's budget ratio reaches a goal."""

    label: str
    goal: float
    budgets: Sequence[tuple[str, Sequence[float]]]
    measured: int

    def sentence(self) -> str:
        reached = sum(len(budgets) for _, budgets in self.budgets)
        where = "; ".join(
            f"{title} ({', '.join(f'{budget:g}' for budget in budgets)} epochs)"
            for title, budgets in self.budgets
        )
        count = f"{reached} of {self.measured} cases" + (f": {where}" if where else "")
        return f"{self.label} reaches {self.goal:g} times the budget in {count}."


class SeveralMachines(NamedTuple):
    """An experiment whose runs are of several machines, on which the same seed ends elsewhere."""

    title: str
    machines: Sequence[str]

    def sentence(self) -> str:
        return (
            f"{self.title} was trained on {' and '.join(self.machines)}, where the same seed ends "
            "at other errors, so ratios near 1 may be the machines'. Repeat all of it on one."
        )


class WrongLabels(NamedTuple):
    """How a guarded strategy ends beside Traditional where a share of the labels is wrong.

    The ends of the interval are NaN where there is one seed.
    """

    title: str
    wrong: float
    label: str
    difference: float
    low: float
    high: float

    def sentence(self) -> str:
        ends = f" (95 % interval {self.low:+.2f} to {self.high:+.2f})"
        interval = "" if math.isnan(self.low) else ends
        return (
            f"{self.title}, {self.wrong:.0%} of the labels wrong: {self.label} ends at "
            f"{self.difference:+.2f} points{interval} beside Traditional of the same budget."
        )


class TimeToTarget(NamedTuple):
    """The seconds of the fastest run and of Traditional, each with its name and backward's share.

    ``short`` names those that did not reach the target.
    """

    title: str
    fastest: tuple[str, float, float]
    baseline: tuple[str, float, float]
    short: Sequence[str]

    def sentence(self) -> str:
        label, seconds, share = self.fastest
        other, longer, other_share = self.baseline
        text = (
            f"{self.title}: {label} took {seconds:.1f} s, {share:.0%} of it backward, and "
            f"{other} {longer:.1f} s, {other_share:.0%} of it backward."
        )
        short = f" Not reached in every seed: {', '.join(self.short)}." if self.short else ""
        return text + short


class PhasesOfHost(NamedTuple):
    """That an accelerator's phases are not its own."""

    device: str

    def sentence(self) -> str:
        return f"On {self.device} the phases are those of the host, which runs ahead of it."


class BackwardOverForward(NamedTuple):
    """How much longer a backward takes, from the least to the most over several models."""

    models: int
    least: float
    most: float

    def sentence(self) -> str:
        return (
            f"Over {self.models} models a backward takes {self.least:.2f} to {self.most:.2f} "
            "times as long as a forward."
        )


class ParetoShares(NamedTuple):
    """How many points are Pareto-optimal, and each family's share of them, falling."""

    title: str
    points: int
    shares: Sequence[tuple[str, float]]

    def sentence(self) -> str:
        each = ", ".join(f"{family} {share:.0%}" for family, share in self.shares)
        return f"{self.title}: of {self.points} Pareto-optimal points, {each}."


class ExtremeLosses(NamedTuple):
    """The least and most mean loss of the examples, and the share that the hardest tenth has."""

    title: str
    examples: int
    least: float
    most: float
    hardest_share: float

    def sentence(self) -> str:
        return (
            f"{self.title}: mean losses of {self.examples:,} examples over training go from "
            f"{self.least:.2g} to {self.most:.2g}; the hardest tenth of the examples has "
            f"{self.hardest_share:.0%} of all loss."
        )


class LossQuantiles(NamedTuple):
    """The median and the ninth decile of the losses at the end."""

    title: str
    median: float
    ninth_decile: float

    def sentence(self) -> str:
        return (
            f"{self.title}: at the end half of the losses are below {self.median:.2g} and a tenth "
            f"above {self.ninth_decile:.2g}."
        )


class ProbabilityAtMedian(NamedTuple):
    """The median loss, and the probability of selection that it has by beta."""

    title: str
    median: float
    probabilities: Mapping[float, float]

    def sentence(self) -> str:
        each = ", ".join(f"{p:.2f} for beta {beta:g}" for beta, p in self.probabilities.items())
        return (
            f"{self.title}: an example of the median loss, {self.median:.2g}, is selected with "
            f"probability {each}."
        )


class ProbabilityVariances(NamedTuple):
    """The mean variance of the examples' probability of selection, by configuration."""

    title: str
    beta: float
    examples: int
    variances: Mapping[str, float]

    def sentence(self) -> str:
        each = ", ".join(f"{value:.3f} under {label}" for label, value in self.variances.items())
        return (
            f"{self.title}, beta {self.beta:.2g}: mean variance of the probability of "
            f"{self.examples:,} examples {each}."
        )


class GradientSimilarities(NamedTuple):
    """By subset of a batch, the mean cosine to the whole's gradient and percent of equal signs."""

    title: str
    share: float
    cosines: Mapping[str, float]
    equal_signs: Mapping[str, float]

    def sentence(self) -> str:
        cosines = ", ".join(f"{mean:.2f} {name}" for name, mean in self.cosines.items())
        signs = ", ".join(f"{mean:.0f} % {name}" for name, mean in self.equal_signs.items())
        return (
            f"{self.title}, of {self.share:.0%} of a batch, means over training: cosine "
            f"{cosines}; equal signs {signs}."
        )


class HardestAndEasiest(NamedTuple):
    """Percent at the hardest fifth of the test set and at the easiest, by configuration."""

    title: str
    ends: Mapping[str, tuple[float, float]]

    def sentence(self) -> str:
        each = (f"{label} {low:.1f} % and {high:.1f} %" for label, (low, high) in self.ends.items())
        return f"{self.title}, hardest fifth of the test set and easiest: {'; '.join(each)}."


class SameBudget(NamedTuple):
    """How many configurations paid and did worse, beside Traditional of the same budget.

    ``best`` has the lowest difference: its name, mean, the interval's ends, and seeds. None where
    each configuration has one seed.
    """

    title: str
    configurations: int
    paid: int
    lost: int
    best: tuple[str, float, float, float, int] | None
    metric: MetricName = "error"

    def sentence(self) -> str:
        if self.best is None:
            return f"{self.title}: one seed each, which has no spread."
        digits, points = METRICS[self.metric].digits, METRICS[self.metric].points
        label, mean, low, high, seeds = self.best
        return (
            f"{self.title}: beside Traditional of the same budget {self.paid} of "
            f"{self.configurations} paid and {self.lost} did worse; the best, {label}, is at "
            f"{mean:+.{digits}f} {points} (95 % interval {low:+.{digits}f} to "
            f"{high:+.{digits}f}, {seeds} seeds)."
        )


class OverIdeal(NamedTuple):
    """The least and the most that an epoch takes beyond its ideal time, and whose."""

    title: str
    least: tuple[str, float]
    most: tuple[str, float]

    def sentence(self) -> str:
        return (
            f"{self.title}: {self.least[0]} takes {self.least[1]:+.0%} on its ideal time, "
            f"{self.most[0]} {self.most[1]:+.0%}."
        )


class MeanAgreement(NamedTuple):
    """The best and the worst mean agreement over training, and whose; no worst of a single one."""

    title: str
    most: tuple[str, float]
    least: tuple[str, float] | None

    def sentence(self) -> str:
        (label, mean), text = self.most, f"{self.title}: over training, "
        if self.least is None:
            return f"{text}{label} agrees by {mean:.2f} on average."
        return (
            f"{text}{label} agrees most ({mean:.2f} on average) and {self.least[0]} least "
            f"({self.least[1]:.2f})."
        )


class KeptAndDropped(NamedTuple):
    """How often examples were trained on: kept most, dropped most, on average; and the suspects.

    ``wrong`` is, where it is known, how many of the suspects have a wrong label, and the share of
    all that do.
    """

    title: str
    kept: float
    dropped: float
    average: float
    suspects: int
    least_loss: float
    wrong: tuple[int, float] | None

    def sentence(self) -> str:
        text = (
            f"{self.title}: those kept most were trained on {self.kept:.3g} times, those dropped "
            f"most {self.dropped:.3g} times, an example {self.average:.3g} times on average; the "
            f"suspect ones never had a loss below {self.least_loss:.2g} in the later half of "
            "training."
        )
        if self.wrong is None:
            return text
        return (
            f"{text} Of the {self.suspects} suspect ones {self.wrong[0]} have a wrong label, of "
            f"all {self.wrong[1]:.0%}."
        )


class KeptByLoss(NamedTuple):
    """Of the fifths with the least and the most loss, the shares trained on in an epoch."""

    title: str
    epochs: int
    least: float
    most: float

    def sentence(self) -> str:
        over = "one epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return (
            f"{self.title}: of the fifth of the examples with the least loss {self.least:.0%} were "
            f"trained on in the next epoch, of the fifth with the most {self.most:.0%}, on average "
            f"over {over}."
        )


class Accuracies(NamedTuple):
    """The final accuracy of each configuration, in percent."""

    title: str
    accuracies: Sequence[tuple[str, float]]

    def sentence(self) -> str:
        each = ", ".join(f"{label} {accuracy:.2f} %" for label, accuracy in self.accuracies)
        return f"{self.title}, final accuracy: {each}."


class SharedByModels(NamedTuple):
    """Of a data set, the share of what two models score lowest that both do."""

    data: str
    models: tuple[str, str]
    of_quarter: float
    of_half: float

    def sentence(self) -> str:
        return (
            f"{self.data}: {self.models[0]} and {self.models[1]} share {self.of_quarter:.0%} of "
            f"the quarter of lowest scores and {self.of_half:.0%} of the half."
        )


class SharedByMethods(NamedTuple):
    """Of what SB uses least, the share that EL2N scores lowest too."""

    title: str
    of_quarter: float
    of_half: float

    def sentence(self) -> str:
        return (
            f"{self.title}: of the quarter that SB uses least, {self.of_quarter:.0%} are among "
            f"the quarter that EL2N scores lowest; of the half, {self.of_half:.0%}."
        )


class LowestScores(NamedTuple):
    """The range of all scores, the highest of those shown, and of how many classes these are."""

    title: str
    least: float
    most: float
    shown: float
    classes: int

    def sentence(self) -> str:
        return (
            f"{self.title}: scores go from {self.least:.2g} to {self.most:.2g}, those shown up to "
            f"{self.shown:.2g}; they are of {self.classes} classes."
        )


class LowestRanks(NamedTuple):
    """How often the examples shown were trained on, and an example on average."""

    title: str
    shown: float
    average: float

    def sentence(self) -> str:
        return (
            f"{self.title}: those shown were used {self.shown:.1f} times in training, an example "
            f"{self.average:.1f} times on average."
        )


class FastestEpoch(NamedTuple):
    """Which method's epoch is the shortest, as a share of Traditional's."""

    title: str
    label: str
    share: float

    def sentence(self) -> str:
        return f"{self.title}: an epoch of {self.label} takes {self.share:.2f} of Traditional's."
