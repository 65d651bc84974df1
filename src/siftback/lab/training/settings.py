"""What one run is asked to do.

Importing it does not import torch, so that the options of the command line are there at once: what
checks need of models and data is imported where they are made.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from siftback import Epochs, Share
from siftback.errors import ConfigError
from siftback.lab.records.formatting import one_of
from siftback.lab.records.run_summary import RECORDS
from siftback.lab.training import rates

if TYPE_CHECKING:
    from siftback.lab.data.data_set import DataSet

Precision = Literal["fp32", "bf16", "fp16"]
RateBy = Literal["seen", "trained"]

LENGTHS = {
    "epochs": "epochs",
    "budget": "epochs of Traditional",
    "cost_budget": "forwards",
    "time_budget": "seconds",
}
TEST_BATCH = 500
EVALUATIONS = 10  # where the length says no other number

# Stands for what is the model's own, until the settings are made.
_OF_MODEL: Any = None

# What settings may be: the least of integers, and the intervals of other numbers.
_LEAST = {
    "width": 1,
    "batch_size": 1,
    "history": 1,
    "cutout": 0,
    "train_limit": 1,
    "evaluations": 1,
    "validation": 1,
    "stale_every": 1,
    "score_models": 1,
    "max_tokens": 2,
}
_MOST = 2**31 - 1
LARGEST_SEED = 2**32 - 1
_INTERVALS = {
    "lr": "(0, 1e30)",  # of weights in float32, which end at 3e38
    "momentum": "[0, 1)",
    "weight_decay": "[0, 1e30)",
    "evaluate_at": "(0, 1)",
    "stop_at": "[0, 100)",
    "stop_at_loss": "[0, inf)",
    "flip": "[0, 1]",
    "floor": "[0, 1)",
    "tail": "[0, 1)",
    "decay": "[0, 1)",
    "score_epochs": "[0, inf)",
    "ema": "(0, 1)",
    "label_smoothing": "[0, 1)",
    "mixup": "[0, 1e30)",
    "clip": "(0, 1e30)",
}


@dataclass(frozen=True)
class Settings:
    """What all runs of a comparison share, and what makes their results what they are.

    Attributes:
        data: Name of the data set.
        model: Name of the model.
        width: Its width; None is the model's own default.
        norm: Its normalisation, "batch" or "group".
        epochs: Length of training in epochs of source examples; None where a budget is given.
        budget: Length of training as a cost, in epochs of Traditional: every strategy trains
            until its forwards and backwards cost as much.
        cost_budget: The same in forwards of one example. Beside ``epochs`` it is not a length: a
            training that has cost as much ends before its time.
        time_budget: Length of training in seconds of its clock; beside another length, as
            ``cost_budget``.
        batch_size: Examples per training batch, and per selection batch; None, here and for the
            rate and the decay of the weights, is the model's own.
        history: R, how many losses a loss is ranked among.
        rate: Learning-rate schedule, as `rates.find` reads it.
        rate_by: What moves it: the examples that training was offered, or those that it trained on,
            as in the prototype of Jiang et al. 2019, where it then does not come to its end.
        lr: Peak learning rate.
        momentum: Nesterov momentum of SGD, or the decay of AdamW's mean of the gradients.
        weight_decay: L2 penalty of SGD, or the decay of the weights of AdamW.
        cutout: Side of the square cut out of each training image, in pixels; 0 is none.
        train_limit: Use only so many training examples.
        precision: Type that forward passes compute in; fp16 scales the loss, and needs CUDA.
        device: Where to train: auto, cpu, cuda or mps.
        evaluations: How often to test, evenly over training; None is once per epoch, and
            `EVALUATIONS` times where the length is not given in epochs.
        evaluate_at: Shares of training after which to test besides, each in (0, 1).
        stop_at: Test error in percent at which training ends, once it is measured.
        validation: Hold out so many training examples, and test on them in place of the test
            set: for choosing settings.
        flip: Share of the training labels that are made wrong.
        stale_every: Epochs from one selection pass to the next, for strategies that remember.
        floor: Least probability of an example, for ``sb-memory``.
        warmup: Training on everything before a strategy selects: `Epochs`, or a `Share` of the
            training below 1. None is the strategy's own.
        tail: Share of training at the end in which a rule selects no more, in [0, 1).
        decay: How much of an old loss stays in what ``sb-memory`` remembers.
        subset: File of the training examples to use (``siftback prune`` writes it), which then
            are the training set; None uses all.
        score_models: Models whose scores are averaged, for a strategy that has all examples
            scored before it trains.
        score_epochs: Epochs that each of them is trained for.
        observe: What to look at besides whenever a model is tested: names of
            `siftback.lab.records.observations.KINDS`, with commas between.
        channels_last: Whether images and weights lie in torch's ``channels_last`` format.
        compile: Whether training and selection call the model through ``torch.compile``; tests
            and what looks into the model do not.
        ema: Decay of an exponential average of weights and buffers, after every step; it is what
            is tested and kept, and training and selection do not see it. None is no average.
        label_smoothing: Share of each target that is spread over all classes, in the losses of
            training, which selection goes by, and not in those of tests.
        mixup: Alpha of mixup, 0 for none. Batches are mixed once they are chosen: selection sees
            examples as they are, and strategies that choose by training's own losses cannot.
        clip: The most that the norm of a step's gradient may be; larger ones are scaled down.
        noise_guard: Whether ``sb-memory`` and ``sb-memory-ratio`` hold back examples that seem
            mislabelled.
        max_tokens: The most tokens of a text, which is cut there, and those of a window of a
            language model; None is the data set's own.
        stop_at_loss: Test loss at which training ends, once it is measured.
    """

    data: str
    model: str = "cnn"
    width: int | None = None
    norm: str = "batch"
    epochs: float | None = None
    budget: float | None = None
    batch_size: int = _OF_MODEL
    history: int = 1024
    rate: str = "onecycle"
    rate_by: RateBy = "seen"
    lr: float = _OF_MODEL
    momentum: float = 0.9
    weight_decay: float = _OF_MODEL
    cutout: int = 0
    train_limit: int | None = None
    precision: Precision = "fp32"
    device: str = "auto"
    evaluations: int | None = None
    validation: int | None = None
    flip: float = 0.0
    stale_every: int = 3
    floor: float = 0.1
    warmup: Epochs | Share | None = None
    tail: float = 0.0
    decay: float = 0.0
    subset: str | None = None
    score_models: int = 2
    score_epochs: float = 1.0
    observe: str = ""
    cost_budget: float | None = None
    time_budget: float | None = None
    evaluate_at: Sequence[float] | None = None
    stop_at: float | None = None
    channels_last: bool = True
    compile: bool = False
    ema: float | None = None
    label_smoothing: float = 0.0
    mixup: float = 0.0
    clip: float | None = None
    noise_guard: bool = False
    max_tokens: int | None = None
    stop_at_loss: float | None = None

    def __post_init__(self) -> None:
        from siftback.lab import models
        from siftback.lab.models.norm import NORMS
        from siftback.lab.records.observations import kinds_of

        self._check_length()
        rates.find(self.rate, self.epochs or self.budget)
        recipe = models.find(self.model).recipe
        for name in ("lr", "weight_decay", "batch_size"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(recipe, name))
        for name, known in (
            ("precision", get_args(Precision)),
            ("norm", NORMS),
            ("rate_by", get_args(RateBy)),
        ):
            given = getattr(self, name)
            if given not in known:
                raise ConfigError(f"{name} {given!r}: {one_of(given, known)}")
        kinds_of(self.observe)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= _MOST:
                raise ConfigError(f"{name}={value}: give an integer from {least} to {_MOST}")
        for name, interval in _INTERVALS.items():
            given = getattr(self, name)
            for value in given if isinstance(given, Sequence) else [given]:
                if value is not None and not _within(value, interval):
                    raise ConfigError(f"{name}={value}: give a number in {interval}")
        if self.rate_by == "trained" and not (self.epochs or self.budget or self.cost_budget):
            raise ConfigError(
                "rate_by 'trained' in a training by time, in which nobody knows how many examples "
                "will be trained on: give epochs or a budget, or rate_by 'seen'"
            )
        self._check_warmup()

    def _check_warmup(self) -> None:
        """Refuses a warm-up that leaves no training to select in."""
        warmup = self.warmup
        if isinstance(warmup, Share) and warmup.value + self.tail >= 1:
            raise ConfigError(
                f"warmup={warmup.value:g} and tail={self.tail:g} leave no training in between: "
                "give shares of less than 1 together"
            )
        length = self.epochs or self.budget or math.inf
        if isinstance(warmup, Epochs) and 0 < warmup.value >= length * (1 - self.tail):
            raise ConfigError(
                f"warmup={warmup.value}e in a training of {length:g} epochs leaves none to select "
                "in: give a shorter warm-up, such as 0, or a longer training"
            )

    def _check_length(self) -> None:
        if self.epochs is not None and self.budget is not None:
            raise ConfigError(
                f"epochs={self.epochs} and budget={self.budget}: give one of them, the length "
                "of training in epochs or its cost in epochs of Traditional"
            )
        if self.budget is not None and self.cost_budget is not None:
            raise ConfigError(
                f"budget={self.budget} and cost_budget={self.cost_budget} are both a cost, in "
                "epochs of Traditional and in forwards of one example: give one of them"
            )
        given = {name: getattr(self, name) for name in LENGTHS if getattr(self, name) is not None}
        if not given:
            raise ConfigError(f"no length of training: give one of them, {', '.join(LENGTHS)}")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise ConfigError(
                    f"{name}={value}: give a training of more than 0 {LENGTHS[name]}, and not "
                    "without end"
                )

    def recorded(self) -> dict[str, Any]:
        """The fields as records have them: of data and a subset what they are, not where."""
        from siftback.lab.data.address import recorded_name

        found = asdict(self) | {"data": recorded_name(self.data)}
        if self.warmup is not None and not self.warmup.value:
            found["warmup"] = 0
        elif isinstance(self.warmup, Epochs):
            found["warmup"] = f"{self.warmup.value}e"
        elif isinstance(self.warmup, Share):
            found["warmup"] = self.warmup.value
        if self.subset is not None:
            path = Path(self.subset)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found["subset"] = f"{path.name}, sha256 {digest[:16]}"
        if self.evaluate_at is not None:
            found["evaluate_at"] = list(self.evaluate_at)  # as it is read again
        return found

    @property
    def wanted_evaluations(self) -> int:
        """How often to test, evenly over training."""
        length = self.epochs or self.budget
        return self.evaluations or (EVALUATIONS if length is None else max(1, round(length)))

    @property
    def model_name(self) -> str:
        """The model with its width and normalisation, as records name it."""
        from siftback.lab import models

        width = self.width or models.find(self.model).width
        return f"{self.model}-{width}" + ("" if self.norm == "batch" else f"-{self.norm}norm")


@dataclass(frozen=True)
class Run:
    """One run of a comparison.

    Attributes:
        strategy: Name of the strategy.
        keep: Share of the examples to keep; for ``matched`` that of the run it is matched to.
        seed: Seed of the initial weights, data order, augmentation and selection.
        matched_to: For ``matched``, the strategy it is given the budget of.
        cost_budget: For ``matched``, that budget in forwards of one example.
    """

    strategy: str
    keep: float
    seed: int
    matched_to: str | None = None
    cost_budget: float | None = None

    def __post_init__(self) -> None:
        check_keep(self.keep)

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes this run from the others of its comparison."""
        return (self.strategy, self.matched_to, round(self.keep, 6), self.seed)

    @property
    def name(self) -> str:
        """The name of this run's record."""
        kept = "" if self.strategy == "traditional" else f"-keep{self.keep:.4g}"
        matched = f"-to-{self.matched_to}" if self.matched_to else ""
        return f"{self.strategy}{matched}{kept}-seed{self.seed}"

    @property
    def record(self) -> str:
        """Its JSON-lines file, relative to the comparison's folder."""
        return f"{RECORDS}/{self.name}.jsonl"


def _within(value: float, interval: str) -> bool:
    """Whether a number lies in an interval.

    >>> _within(0, "[0, 1)"), _within(1, "[0, 1)"), _within(float("nan"), "(0, inf)")
    (True, False, False)
    """
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)


def check_keep(keep: float) -> None:
    """Refuses what is no share to keep."""
    if not 0 < keep <= 1:
        raise ConfigError(f"keep={keep} is not a share of the examples: give a number in (0, 1]")


def check_seed(seed: int) -> None:
    """Refuses what random numbers cannot begin from."""
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(f"seed={seed}: give an integer from 0 to {LARGEST_SEED}")


def test_batch_size(settings: Settings, data: "DataSet") -> int:
    """Examples of a batch to test on; logits of language are as large as those of training."""
    return settings.batch_size if data.kind == "language" else TEST_BATCH
