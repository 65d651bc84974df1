"""What one run is asked to do."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from siftback import ConfigError
from siftback.lab import models, rates, strategies
from siftback.lab.records import RECORDS

Precision = Literal["fp32", "bf16"]


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
        batch_size: Examples per training batch, and per selection batch.
        history: R, how many losses a loss is ranked among.
        rate: Learning-rate schedule.
        lr: Peak learning rate.
        momentum: Nesterov momentum of SGD.
        weight_decay: L2 penalty of SGD.
        cutout: Side of the square cut out of each training image, in pixels; 0 is none.
        train_limit: Use only so many training examples.
        precision: Type that forward passes compute in.
        device: Where to train: auto, cpu, cuda or mps.
        evaluations: How often to test, evenly over training; None is once an epoch.
        validation: Hold out so many training examples, and test on them in place of the test
            set: for choosing settings.
        flip: Share of the training labels that are made wrong.
        stale_every: Epochs from one selection pass to the next, for strategies that remember.
        floor: Least chance of an example, for ``sb-memory``.
        warmup: Share of training before it selects.
        tail: Share of training at the end in which it selects no more.
        decay: How much of an old loss stays in what it remembers.
        subset: File of the training examples to use (``siftback prune`` writes it), which then
            are the training set; None uses all.
        score_models: Models whose scores are averaged, for a strategy that has all examples
            scored before it trains.
        score_epochs: Epochs that each of them is trained for.
    """

    data: str
    model: str = "cnn"
    width: int | None = None
    norm: str = "batch"
    epochs: float | None = None
    budget: float | None = None
    batch_size: int = 128
    history: int = 1024
    rate: str = "onecycle"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    cutout: int = 0
    train_limit: int | None = None
    precision: Precision = "fp32"
    device: str = "auto"
    evaluations: int | None = None
    validation: int | None = None
    flip: float = 0.0
    stale_every: int = 3
    floor: float = 0.1
    warmup: float = 0.15
    tail: float = 0.0
    decay: float = 0.0
    subset: str | None = None
    score_models: int = 2
    score_epochs: float = 1.0

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.budget is None):
            raise ConfigError(
                f"epochs={self.epochs} and budget={self.budget}: give one of them, the length "
                "of training in epochs or its cost in epochs of Traditional"
            )
        if self.length <= 0:
            raise ConfigError(f"a training of {self.length} epochs: give more than 0")
        if self.rate not in rates.RATES:
            raise ConfigError(f"no schedule {self.rate!r}: give one of {', '.join(rates.RATES)}")
        if self.model not in models.MODELS:
            raise ConfigError(f"no model {self.model!r}: give one of {', '.join(models.MODELS)}")
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"precision {self.precision!r}: give fp32 or bf16")
        for name, least in (
            ("batch_size", 1),
            ("history", 1),
            ("evaluations", 1),
            ("score_models", 1),
            ("score_epochs", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}={value}: give at least {least}")
        if not self.lr > 0:
            raise ConfigError(f"lr={self.lr}: give a learning rate above 0")

    def recorded(self) -> dict[str, Any]:
        """The fields as records tell them: of a subset what is in it, not where it lay."""
        found = asdict(self)
        if self.subset is not None:
            path = Path(self.subset)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found["subset"] = f"{path.name}, sha256 {digest[:16]}"
        return found

    @property
    def length(self) -> float:
        """Length of training in epochs, of source examples or of Traditional's cost."""
        return self.epochs if self.epochs is not None else self.budget or 0.0

    @property
    def model_name(self) -> str:
        """The model with its width and normalisation, as records name it."""
        width = self.width or models.MODELS[self.model].width
        return f"{self.model}-{width}" + ("" if self.norm == "batch" else f"-{self.norm}norm")

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of mixed precision; None for float32 throughout."""
        return torch.bfloat16 if self.precision == "bf16" else None

    def casting(self, device: torch.device) -> torch.autocast:
        """The context of a forward pass in that type."""
        return torch.autocast(device.type, self.autocast, enabled=self.autocast is not None)


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
        if not 0 < self.keep <= 1:
            raise ConfigError(
                f"keep={self.keep} is not a share of the examples: give a number in (0, 1]"
            )
        strategies.find(self.strategy)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this run from the others of its comparison."""
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


def resolve_device(name: str) -> torch.device:
    """The device of a name, where ``auto`` is the best there is.

    Raises:
        ConfigError: Where there is no such device here.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available()}
    available["mps"] = torch.backends.mps.is_available()
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available.get(name, False):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"no device {name!r} here: give auto or one of {usable}")
    return torch.device(name)
