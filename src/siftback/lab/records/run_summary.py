"""A run's evaluations and its summary, as records hold them, and the metrics it is judged by."""

import math
import re
import types
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, Self, get_args, get_origin

RECORDS = "records"
TRADITIONAL = "traditional"
MATCHED = "matched"

MetricName = Literal["error", "loss", "rmse"]


@dataclass(frozen=True)
class Metric:
    """A measure of runs, of which lower is better, and its format.

    Attributes:
        name: As records have it.
        field: The field of an `Evaluation` that holds it.
        noun: What it is, within a sentence.
        unit: What it is counted in.
        points: What a difference of two is counted in.
        digits: After the decimal point.
        plural: What a difference of two is called, in full.
        axis: The name of an axis, and of a column.
    """

    name: MetricName
    field: str
    noun: str
    unit: str
    points: str
    digits: int
    plural: str
    axis: str

    def written(self, value: float) -> str:
        """A value with its unit.

        >>> METRICS["error"].written(12.345), METRICS["loss"].written(1.5)
        ('12.35 %', '1.500 nats')
        """
        return f"{value:.{self.digits}f} {self.unit}"


METRICS: dict[MetricName, Metric] = {
    "error": Metric(
        "error", "test_error", "error", "%", "points", 2, "percentage points", "test error (%)"
    ),
    "loss": Metric(
        *("loss", "test_loss", "loss", "nats", "nats", 3),
        *("nats per token", "test loss (nats per token)"),
    ),
    "rmse": Metric(
        *("rmse", "test_error", "RMSE", "%", "points", 3),
        *("% of the range", "test RMSE (% of the range)"),
    ),
}


def bits_per_character(loss: float, tokens_per_character: float) -> float:
    """A language model's loss in bits per character: ``loss / ln 2 * tokens per character``.

    Args:
        loss: In nats per token.
        tokens_per_character: Of the text that it is the loss on.

    >>> round(bits_per_character(1.5, 1.0), 3)
    2.164
    """
    return loss / math.log(2) * tokens_per_character


def peak_signal_to_noise(rmse: float) -> float:
    """Computes the peak signal-to-noise ratio of a picture in dB, ``20 log10(100 / rmse)``.

    Args:
        rmse: Root mean squared error of its colours, in percent of their range.

    >>> round(peak_signal_to_noise(3.0), 2), peak_signal_to_noise(0.0)
    (30.46, inf)
    """
    return 20 * math.log10(100 / rmse) if rmse else math.inf


@dataclass(frozen=True)
class Evaluation:
    """The state of a run at a test.

    Attributes:
        epoch: Epochs of source examples done, a fraction where a run ends within one.
        examples: Source examples offered so far, kept or not.
        steps: Optimizer steps so far.
        seconds: Seconds of training so far, evaluation apart.
        cost: Cost so far in forwards of one example (a backward costs two).
        train_loss: Mean training loss of the examples trained on since the last evaluation.
        test_loss: Mean loss over the test set; of language in nats per token, of pixels the mean
            squared error of colours in [-1, 1].
        test_error: Test error in percent; of language the share of next tokens that are not the
            most probable ones, of pixels the root mean squared error in percent of their range.
        phases: Seconds so far by phase: scoring (of the whole set, before training), loading,
            selection, forward, backward, optimizer, syncing (refreshing copies of the model,
            training a proxy), other. They sum to ``seconds``; each is rounded to a microsecond.
        agreement: Rank correlation of the scores that the strategy selects by with the losses
            of a fresh forward pass, over a part of the training set; None where it has none.
    """

    epoch: float
    examples: int
    steps: int
    seconds: float
    cost: float
    train_loss: float
    test_loss: float
    test_error: float
    phases: dict[str, float] = field(default_factory=dict)
    agreement: float | None = None


@dataclass(frozen=True)
class RunSummary:
    """One finished run, as ``summary.json`` lists it.

    Attributes:
        strategy: The strategy's name (``siftback strategies`` lists them).
        matched_to: For ``matched``, the strategy whose budget it was given; otherwise None.
        seed: Seed of the initial weights, data order and augmentation.
        data: Name of the data set.
        model: Name of the model, with its width.
        keep_asked: Share of the examples asked to be kept; for ``matched`` that of the run it
            is matched to.
        keep_measured: Share of the offered examples that was trained on.
        epochs: Epochs of source examples, a fraction where the run ended within one.
        steps: Optimizer steps.
        examples_forwarded: Forward passes of one example, selection and training together.
        examples_backpropped: Backward passes of one example.
        seconds_train: Seconds of training, evaluation apart.
        seconds_selection: Seconds of these spent on selection, its forward passes included.
        cost_forward_units: ``examples_forwarded + 2 * examples_backpropped``, those forwarded
            by selection at their ``score_cost``, and ``cost_scoring``.
        test_error_final: Test error at the end, in percent.
        test_error_best: Lowest test error of any evaluation, in percent.
        record: The run's JSON-lines file, relative to the comparison's folder.
        seconds_by_phase: ``seconds_train``, by phase as in `Evaluation`.
        joules: Energy in these seconds, without those of scoring, by the devices' counters, which
            Zeus reads: of the "gpu", of all "cpu" packages and of their "dram", whatever else they
            did; empty without a counter.
        score_cost: What scoring an example costs in forwards of training: 1 for a fresh forward, by
            definition, and otherwise the median of the comparison's `ScoringCost`.
        cost_scoring: What scores of the whole set cost before training, in forwards: those that
            pruning goes by, or irreducible losses. The training of the models that give them is
            in it, and their forwards over the set. Runs of one seed share the scores, and each
            is charged.
        seconds_scoring: Seconds of ``seconds_train`` that this took.
        seconds_observing: Seconds that looking at the model took, by what was looked at; they are
            in no other number.
        suspects: Training examples that a noise guard held back at the end; None where there
            was none.
        suspects_wrong: Those of them whose labels `--flip` made wrong.
        labels_wrong: All whose labels it made wrong.
        metric: What the run is judged by: "error", "loss" or "rmse". Older records, of classifiers
            alone, do not say.
        test_loss_final: Test loss at the end; None in older records.
        test_loss_best: Lowest test loss of any evaluation.
        tokens_per_character: Of the text to test on, for language: what loss in bits per character
            follows from. None for classifiers.
        test_error_rare: Test error at the end in the classes that `--rare` made rare, in percent,
            the mean over those of them that are tested on; None where there are none.
        test_error_common: The same of the other classes.
        test_error_worst: Test error at the end in the class where it is highest, in percent; None
            in older records, and where there are no classes.
    """

    strategy: str
    matched_to: str | None
    seed: int
    data: str
    model: str
    keep_asked: float
    keep_measured: float
    epochs: float
    steps: int
    examples_forwarded: int
    examples_backpropped: int
    seconds_train: float
    seconds_selection: float
    cost_forward_units: float
    test_error_final: float
    test_error_best: float
    record: str
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    joules: dict[str, float] = field(default_factory=dict)
    score_cost: float = 1.0
    cost_scoring: float = 0.0
    seconds_scoring: float = 0.0
    seconds_observing: dict[str, float] = field(default_factory=dict)
    suspects: int | None = None
    suspects_wrong: int | None = None
    labels_wrong: int | None = None
    metric: MetricName = "error"
    test_loss_final: float | None = None
    test_loss_best: float | None = None
    tokens_per_character: float | None = None
    test_error_rare: float | None = None
    test_error_common: float | None = None
    test_error_worst: float | None = None

    @property
    def final(self) -> float:
        """The final test error in percent, or test loss in nats."""
        # Of a metric that older records may lack, it was made sure when they were read.
        return float(getattr(self, f"{METRICS[self.metric].field}_final"))

    @property
    def best(self) -> float:
        """The lowest of any evaluation of what it is judged by."""
        return float(getattr(self, f"{METRICS[self.metric].field}_best"))

    @property
    def diverged(self) -> bool:
        """Whether its test loss ended as NaN or infinite; False for older records without one."""
        return not math.isfinite(self.test_loss_final or 0.0)

    @property
    def label(self) -> str:
        """The name of this run's row and curve, equal for the seeds of one configuration.

        >>> row = dict.fromkeys((f.name for f in fields(RunSummary)), 0)
        >>> RunSummary(**row | dict(strategy="sb", matched_to=None, keep_asked=1 / 3)).label
        'sb 0.33'
        >>> RunSummary(**row | dict(strategy="matched", matched_to="sb", keep_asked=0.5)).label
        'matched to sb 0.5'
        """
        return run_label(self.strategy, self.keep_asked, self.matched_to)

    @property
    def partner(self) -> str:
        """The label of the run that a matched run shares its budget with; its own for others."""
        return run_label(self.matched_to or self.strategy, self.keep_asked, None)

    @property
    def family(self) -> str:
        """Its strategy without its interval: ``stale-sb`` for ``stale-sb-5``."""
        return "stale-sb" if self.strategy.startswith("stale-sb") else self.strategy

    @property
    def selective(self) -> bool:
        """Whether its strategy selects, as plain training does not, however short."""
        return self.strategy not in (TRADITIONAL, MATCHED)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Self:
        """Reads one entry of ``runs``.

        Raises:
            TypeError: If a field is missing, or is of another type.
            ValueError: If its record is not one of the comparison's own, or what it is judged by
                is not known.
        """
        run = cls(**known_fields(cls, entry))
        check_types(run)
        if run.metric not in METRICS:
            raise ValueError(f"metric is {run.metric!r}, and not one of {', '.join(METRICS)}")
        if run.metric == "loss" and None in (run.test_loss_final, run.test_loss_best):
            raise ValueError("metric is 'loss', and the test loss is missing")
        if not re.fullmatch(rf"{RECORDS}/[^/\\]+\.jsonl", run.record):
            raise ValueError(f"record is {run.record!r}, and not a file in {RECORDS}/")
        return run


@dataclass(frozen=True)
class ScoringCost:
    """The cost of scoring an example in forwards of training, as measured once.

    Attributes:
        median: Of all rounds; what costs are counted with.
        low: The quartile below it.
        high: The quartile above it.
        rounds: How many.
    """

    median: float
    low: float
    high: float
    rounds: int


def scoring_costs_of(summary: dict[str, Any]) -> dict[str, ScoringCost]:
    """The prices in a summary, by strategy.

    Raises:
        TypeError: If a field is missing, or is of another type.
    """
    costs = {
        name: ScoringCost(**known_fields(ScoringCost, cost))
        for name, cost in summary.get("prices", {}).items()
    }
    for price in costs.values():
        check_types(price)
    return costs


def run_label(strategy: str, keep: float, matched_to: str | None) -> str:
    """The name of one configuration: strategy and share kept, whatever the seed.

    >>> run_label("sb", 0.5, None), run_label("linupper", 1.0, None)
    ('sb 0.5', 'linupper')
    """
    if matched_to is None and (strategy == TRADITIONAL or keep == 1):
        return strategy
    share = f"{keep:.2g}"
    return f"matched to {matched_to} {share}" if matched_to else f"{strategy} {share}"


def check_types(record: Evaluation | RunSummary | ScoringCost) -> None:
    """Makes sure that what was read is of the types it is said to be.

    Raises:
        TypeError: If something is not.
    """
    for attribute in fields(record):
        kind: Any = attribute.type
        value = getattr(record, attribute.name)
        inside = value.values() if isinstance(value, dict) else ()
        whole = isinstance(value, _accepted(kind))
        if not whole or not all(isinstance(number, int | float) for number in inside):
            raise TypeError(f"{attribute.name} is {value!r}")


@cache
def _accepted(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return str
    if isinstance(kind, types.GenericAlias):  # dict[str, float]
        return kind.__origin__
    return kind | int if float in (kind, *get_args(kind)) else kind


def known_fields(kind: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """The fields that this release knows; those of later ones are left aside."""
    return {name: value for name, value in entry.items() if name in kind.__dataclass_fields__}
