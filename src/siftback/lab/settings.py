"""The settings of a training: the type, bounds, default and help of each, said once.

The options of the command line, the checks, the recipes' files and the records follow from the
annotations of `Settings`. Importing it does not import torch, so that help is printed at once.
"""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from siftback import Epochs, Share
from siftback.errors import ConfigError
from siftback.lab import rates
from siftback.lab.records.formatting import one_of
from siftback.lab.records.run_summary import RECORDS, run_label

TrainingPrecision = Literal["fp32", "bf16", "fp16"]

LENGTHS = ("epochs", "budget", "cost_budget", "time_budget")
DEFAULT_EPOCHS = 10.0  # where the command line gives no length
EVALUATIONS = 10  # where the length is not given in epochs
LARGEST_SEED = 2**32 - 1
DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_number(name: str, text: str) -> float:
    """Returns a number, which may be a fraction or a percentage."""
    written = text.removesuffix("%")
    try:
        size = 1.0 if "/" in written else abs(float(written))
        if size == 0:  # the fraction of 1e-999999999 would take all memory
            return size
        if not size < math.inf:
            raise ValueError
        return float(Fraction(written) / (100 if text.endswith("%") else 1))
    except (ValueError, ArithmeticError):
        raise ConfigError(f"{name} {text!r}: give a number") from None


def parse_numbers(name: str, text: str) -> list[float]:
    """Returns numbers that are separated by commas.

    >>> parse_numbers("keep", "1/2,0.25,10%")
    [0.5, 0.25, 0.1]
    """
    try:
        return [parse_number(name, number.strip()) for number in text.split(",")]
    except ConfigError:
        raise ConfigError(
            f"{name} {text!r}: give numbers separated by commas, such as 0.25,1/3"
        ) from None


def parse_names(text: str) -> list[str]:
    """Returns names that are separated by commas, and calls, which may have commas within.

    >>> parse_names("traditional, Memory(keep=0.5, guard=NoiseGuard(classes)), Memory()")
    ['traditional', 'Memory(keep=0.5, guard=NoiseGuard(classes))', 'Memory()']
    """
    return [name.strip() for name in re.split(r",(?!(?:[^()]|\([^()]*\))*\))", text)]


def match_text(name: str, text: str, pattern: str, advice: str) -> re.Match[str]:
    """Returns the match of a whole text.

    Raises:
        ConfigError: If the pattern does not match it; gives the advice.
    """
    if match := re.fullmatch(pattern, text):
        return match
    raise ConfigError(f"{name} {text!r}: give {advice}")


def parse_duration(name: str, text: str) -> float:
    """Returns seconds of a time such as ``90s``, ``30m``, ``12h``, ``2d`` or ``1h30m``.

    >>> parse_duration("time_budget", "12h")
    43200.0
    """
    match_text(name, text, r"(\d+(\.\d+)?[smhd])+", "a time such as 90s, 30m, 12h or 1h30m")
    terms = re.findall(r"([\d.]+)([smhd])", text)
    return sum(float(number) * DURATION_UNITS[unit] for number, unit in terms)


def parse_share(name: str, text: str) -> float:
    """Returns a share of the training, a percentage, so that it is never taken for epochs.

    >>> parse_share("tail", "15%")
    0.15
    """
    match_text(name, text, r"\d{1,9}(\.\d+)?%", "a percentage of the training, such as 15%")
    return parse_number(name, text)


def parse_warmup(name: str, text: str) -> Epochs | Share:
    """Returns a warm-up, in epochs or as a share of the training.

    >>> parse_warmup("warmup", "2e"), parse_warmup("warmup", "15%"), parse_warmup("warmup", "0")
    (Epochs(2), Share(0.15), Epochs(0))
    """
    if text.endswith("%"):
        return Share(min(parse_share(name, text), 1.0))
    advice = "epochs such as 1e, a percentage of the training such as 15%, or 0"
    match_text(name, text, r"\d+(\.\d+)?e|0", advice)
    return Epochs(float(text.removesuffix("e")))


def parse_error(name: str, text: str) -> float:
    """Returns a test error in percent, written as ``error=5%``."""
    advice = "a test error in percent, such as error=5%"
    return float(match_text(name, text, r"error=(\d+(\.\d+)?)%", advice)[1])


def parse_whole_number(name: str, text: str) -> int:
    """Returns an integer."""
    return int(match_text(name, text, r"[+-]?\d{1,18}", "an integer")[0])


def parse_switch(name: str, text: str) -> bool:
    """Returns ``true`` or ``false``."""
    return match_text(name, text.lower(), "true|false", "true or false")[0] == "true"


_PARSERS = {bool: parse_switch, int: parse_whole_number, float: parse_number}


class Setting(NamedTuple):
    """The annotations of a setting after its type, in this order.

    Attributes:
        help: Its line in the help.
        interval: The values that a number may have.
        parse: Reads the setting as it is written, where its type alone does not say how.
    """

    help: str
    interval: str = "(-inf, inf)"
    parse: Callable[[str, Any], Any] | None = None


_ANY, _POSITIVE, _SHARE, _COUNT = "(-inf, inf)", "(0, inf)", "[0, 1)", f"[1, {2**31 - 1}]"
_OF_DATA: Any = None  # the model for the data, which `Settings` takes in its place
_OF_MODEL: Any = None  # that model's own value, likewise


@dataclass(frozen=True)
class Settings:
    """The settings that all runs of a comparison share; None is "not asked for"."""

    # fmt: off
    data: Annotated[str,
        "Data set: digits, mnist, cifar10, cifar100, svhn, svhn+extra, fashion_mnist, gtsrb, imdb, "
        "sst2, tinyshakespeare, imagefolder:PATH, hf:NAME, npz:PATH, text:PATH, "
        "fonts:N, table:PATH, picture:PATH."]
    model: Annotated[str,
        "Model: cnn, fastcnn, mlp, resnet18, resnet34, resnet50, resnet20, resnet32, densenet121, "
        "mobilenetv2, googlenet, vit, transformer, ngrams, gpt, tabular-mlp, siren, wrn-D-K, "
        "densenet-bc-D. By default one for the kind of data, cnn for images."] = _OF_DATA
    width: Annotated[int | None, "Width of the model; its own by default.", _COUNT] = None
    norm: Annotated[Literal["batch", "group"], "Normalisation: batch or group."] = "batch"
    epochs: Annotated[float | None,
        f"Length in epochs of the training set; {DEFAULT_EPOCHS:g} by default.", _POSITIVE] = None
    budget: Annotated[float | None,
        "In place of --epochs: train until forwards and backwards cost as much as this many epochs "
        "of plain training, the fairest comparison.", _POSITIVE] = None
    cost_budget: Annotated[float | None,
        "The same in forwards of one example. Beside --epochs, training may end early.",
        _POSITIVE] = None
    time_budget: Annotated[float | None,
        "Length as a time, such as 90s, 30m or 12h, which learning rates follow. Beside another "
        "length, training may end early.", _POSITIVE, parse_duration] = None
    batch_size: Annotated[int,
        "Examples per batch; by default the model's own, 128 for images.",
        _COUNT] = _OF_MODEL
    history: Annotated[int, "Losses that a loss is ranked among.", _COUNT] = 1024
    rate: Annotated[str,
        f"Learning rates: {', '.join(rates.RATES)}, or {rates.STEPS}."] = "onecycle"
    rate_by: Annotated[Literal["seen", "trained"],
        "What moves them: examples seen, or trained on, as in the papers' own code."] = "seen"
    lr: Annotated[float,
        "Peak learning rate; by default the model's own, 0.1 for images.",
        "(0, 1e30)"] = _OF_MODEL
    momentum: Annotated[float,
        "Nesterov momentum of SGD, for models of images; AdamW's first decay, for others.",
        _SHARE] = 0.9
    weight_decay: Annotated[float,
        "L2 penalty of SGD, or AdamW's decay; by default the model's own.", "[0, 1e30)"] = _OF_MODEL
    cutout: Annotated[int,
        "Side of the square cut out of each image, in pixels.", f"[0, {2**31 - 1}]"] = 0
    train_limit: Annotated[int | None,
        "Train on a fixed, class-balanced subset of this many examples.", _COUNT] = None
    max_tokens: Annotated[int | None,
        "Where texts are cut, and how long windows of text are; by default the data's.",
        f"[2, {2**31 - 1}]"] = None
    label_smoothing: Annotated[float,
        "Share of each training target that is spread over all classes.", _SHARE] = 0.0
    mixup: Annotated[float, "Alpha of mixup, after selection; 0 is none.", "[0, 1e30)"] = 0.0
    clip: Annotated[float | None, "The most that a gradient's norm may be.", "(0, 1e30)"] = None
    ema: Annotated[float | None,
        "Decay of an average of the weights, which is tested and kept, such as 0.999; it is "
        "shorter at first.", "(0, 1)"] = None
    precision: Annotated[TrainingPrecision,
        "fp32, or mixed: bf16, or fp16 with a scaled loss (CUDA)."] = "fp32"
    channels_last: Annotated[bool,
        "Whether images and weights lie channels last, mostly the faster."] = True
    compile: Annotated[bool,
        "Train and select through torch.compile: faster steps after a minute or more, which count "
        "as training time. Resumed runs may then differ in the last digits."] = False
    device: Annotated[str, "auto, cpu, cuda or mps."] = "auto"
    evaluations: Annotated[int | None,
        "How often to test, evenly; once per epoch by default.", _COUNT] = None
    evaluate_at: Annotated[Sequence[float] | None,
        "Shares of training to test after besides, separated by commas: 0.01,0.02,0.05.",
        "(0, 1)", lambda name, text: tuple(parse_numbers(name, text))] = None
    stop_at: Annotated[float | None,
        "End at the first test with so low an error: error=5%.", "[0, 100)", parse_error] = None
    stop_at_loss: Annotated[float | None,
        "End at the first test with so low a loss, such as 1.6.", "[0, inf)"] = None
    observe: Annotated[str,
        "What to record at each test besides, its time apart, separated by commas: "
        "losses,gradients,confidence."] = ""
    validation: Annotated[int | None,
        "Test on this many held-out training examples, to choose settings by.", _COUNT] = None
    flip: Annotated[float, "Share of the training labels to make wrong.", "[0, 1]"] = 0.0
    rare: Annotated[int,
        "Leave 1 of this many training examples of the first three in ten classes; 1 leaves all.",
        _COUNT] = 1
    stale_every: Annotated[int, "Epochs between stale-sb's selection passes.", _COUNT] = 3
    floor: Annotated[float, "Least probability of an example in Memory.", _SHARE] = 0.1
    warmup: Annotated[Epochs | Share | None,
        "Training on everything before a strategy selects: epochs such as 1e, a share such as "
        "15%, or 0. By default 15% for Memory, and 1e for those that select in batches.",
        _ANY, parse_warmup] = None
    tail: Annotated[float | None,
        "Share of training at the end in which a rule selects no more, such as 20%; by default the "
        "rule's own, as of Memory(), and 0% leaves that out.", _SHARE, parse_share] = None
    decay: Annotated[float,
        "How much of an old loss Memory remembers.", _SHARE] = 0.0
    subset: Annotated[str | None,
        "File of siftback prune: its examples are the training set."] = None
    score_models: Annotated[int, "Models that el2n, diet-sb and rho score by.", _COUNT] = 2
    score_epochs: Annotated[float, "Epochs that each of those is trained for.", "[0, inf)"] = 1.0
    noise_guard: Annotated[bool,
        "Have Memory hold back examples that seem mislabelled, as its NoiseGuard does."] = False
    # fmt: on

    def __post_init__(self) -> None:
        from siftback.lab import models
        from siftback.lab.records.observations import kinds_of

        if self.model is None:
            object.__setattr__(self, "model", models.model_for(self.data))
        model = models.find_architecture(self.model)
        for name in ("lr", "weight_decay", "batch_size"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(model, name))
        for name in SETTINGS:
            _check(name, getattr(self, name))
        self._check_length()
        rates.find_rate(self.rate, self.epochs or self.budget)
        kinds_of(self.observe)
        warmup, tail = self.warmup or Epochs(0), self.tail or 0.0
        length = self.epochs or self.budget or math.inf
        share = warmup.value / (length if isinstance(warmup, Epochs) else 1)
        if share and share + tail >= 1:
            begins = f"{warmup.value:g}e" if isinstance(warmup, Epochs) else f"{100 * share:g}%"
            raise ConfigError(
                f"warmup={begins} and tail={100 * tail:g}% leave no training in between: give less "
                "of them, by --warmup or --tail, or another length"
            )

    def _check_length(self) -> None:
        """Checks that one setting is the length, and that others do not contradict it."""
        lengths = [name for name in LENGTHS if getattr(self, name)]
        if not lengths:
            raise ConfigError(f"no length of training: give one of them, {', '.join(LENGTHS)}")
        for first, other in (("epochs", "budget"), ("budget", "cost_budget")):
            if first in lengths and other in lengths:
                raise ConfigError(
                    f"{first}={getattr(self, first)} and {other}={getattr(self, other)}: give one "
                    "of them, as each is a length"
                )
        if self.rate_by == "trained" and lengths == ["time_budget"]:
            raise ConfigError(
                "rate_by 'trained' in a training by time, whose number of examples is not known "
                "before: give epochs or a budget, or rate_by 'seen'"
            )

    def recorded(self) -> dict[str, Any]:
        """Returns the settings as records have them: data and a subset by name, not by path."""
        from siftback.lab.data.source import recorded_name

        # A tail that was not asked for has been 0 since the first records.
        tail = {None: 0.0, 0.0: "0%"}.get(self.tail, self.tail)
        values = asdict(self) | {"data": recorded_name(self.data), "tail": tail}
        if self.warmup is not None:
            value = self.warmup.value
            values["warmup"] = f"{value}e" if value and isinstance(self.warmup, Epochs) else value
        if self.subset is not None:
            path = Path(self.subset)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            values["subset"] = f"{path.name}, sha256 {digest[:16]}"
        if self.evaluate_at is not None:
            values["evaluate_at"] = list(self.evaluate_at)  # as JSON reads it
        return values

    def warmup_epochs(self, epochs: float) -> float:
        """Returns how many of the training's epochs are its warm-up."""
        warmup = self.warmup or Epochs(0)
        return min(warmup.value * (epochs if isinstance(warmup, Share) else 1.0), epochs)

    @property
    def whole_warmup(self) -> int:
        """Epochs of a warm-up that ends between two of them.

        Raises:
            ConfigError: If it is a share of a training whose epochs are not known.
        """
        warmup = self.warmup or Epochs(0)
        if isinstance(warmup, Epochs):
            return math.ceil(warmup.value)
        if not (self.epochs or self.budget):
            raise ConfigError(
                f"warmup={warmup.value:.0%} of a training by time, with a strategy that begins to "
                "select between two epochs: give the warm-up in epochs, such as 1e"
            )
        # In a budget, an epoch of the warm-up costs as much as an epoch of plain training.
        return math.ceil(round(warmup.value * (self.epochs or self.budget or 0.0), 9))

    @property
    def wanted_evaluations(self) -> int:
        """Tests over the training, evenly."""
        length = self.epochs or self.budget
        return self.evaluations or (max(1, round(length)) if length else EVALUATIONS)

    @property
    def model_name(self) -> str:
        """The model with its width and normalisation, as records name it."""
        from siftback.lab import models

        width = self.width or models.find_architecture(self.model).width
        return f"{self.model}-{width}" + ("" if self.norm == "batch" else f"-{self.norm}norm")


SETTINGS: dict[str, Setting] = {
    name: Setting(*hint.__metadata__)
    for name, hint in get_type_hints(Settings, include_extras=True).items()
}
TYPES = get_type_hints(Settings)
DEFAULTS = {name: field.default for name, field in Settings.__dataclass_fields__.items()}


def parse_setting(name: str, text: str) -> Any:
    """Returns a setting's value, which is written in one way everywhere.

    Numbers may be fractions or percentages, switches are ``true`` or ``false``, and ``none`` is
    the value of a setting that is not asked for.

    Args:
        name: The field of `Settings`.
        text: The value as written.

    Raises:
        ConfigError: If there is no such setting, or the text is none of its values.

    >>> parse_setting("lr", "0.1"), parse_setting("batch_size", "64")
    (0.1, 64)
    >>> parse_setting("time_budget", "1h30m"), parse_setting("width", "none")
    (5400.0, None)
    """
    if name not in SETTINGS:
        raise ConfigError(f"no setting {name!r}: {one_of(name, SETTINGS)}")
    types, text = (TYPES[name], *get_args(TYPES[name])), text.strip()
    if text.lower() == "none" and type(None) in types:
        return None
    parsers = [SETTINGS[name].parse, *(_PARSERS.get(option) for option in types)]
    parse = next(filter(None, parsers), None)
    return text if parse is None else parse(name, text)


def _check(name: str, value: Any) -> None:
    """Refuses a setting's value that is none of its words, or outside of its interval."""
    kind, interval = TYPES[name], SETTINGS[name].interval
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise ConfigError(f"{name} {value!r}: {one_of(value, get_args(kind))}")
    for number in value if isinstance(value, tuple | list) else [value]:
        if isinstance(number, int | float) and not is_within(number, interval):
            wanted = f"a number in {interval}"
            if int in (kind, *get_args(kind)):
                wanted = f"an integer from {interval[1:-1].replace(', ', ' to ')}"
            raise ConfigError(f"{name}={number}: give {wanted}")


def is_within(number: float, interval: str) -> bool:
    """Whether a number lies in an interval.

    >>> is_within(0, "[0, 1)"), is_within(1, "[0, 1)"), is_within(float("nan"), "(0, inf)")
    (True, False, False)
    """
    low, high = map(float, interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    return above and (number <= high if interval[-1] == "]" else number < high)


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
    def name(self) -> str:
        """The name of this run's record."""
        keep = "" if self.strategy == "traditional" else f"-keep{self.keep:.4g}"
        matched = f"-to-{self.matched_to}" if self.matched_to else ""
        return f"{self.strategy}{matched}{keep}-seed{self.seed}"

    @property
    def label(self) -> str:
        """The name of its row and curve, see `run_label`."""
        return run_label(self.strategy, self.keep, self.matched_to)

    @property
    def record(self) -> str:
        """Its JSON-lines file, relative to the comparison's folder."""
        return f"{RECORDS}/{self.name}.jsonl"


def check_keep(keep: float) -> None:
    """Refuses a number that is no share to keep."""
    if not 0 < keep <= 1:
        raise ConfigError(f"keep={keep} is not a share of the examples: give a number in (0, 1]")


def check_run_seed(seed: int) -> None:
    """Refuses a number that random numbers cannot begin from."""
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(f"seed={seed}: give an integer from 0 to {LARGEST_SEED}")
