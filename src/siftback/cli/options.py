"""Options that several commands share; each setting's is said once, here."""

import inspect
from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from typing import Annotated, Any, get_type_hints

import torch
import typer

from siftback import ConfigError
from siftback.lab import models, rates
from siftback.lab.compare import Existing
from siftback.lab.data import DATASETS
from siftback.lab.settings import Settings

Command = Callable[..., None]

DEFAULT_EPOCHS = 10.0

# Of every setting, in the order of the commands' help.
HELP = {
    "data": f"Data set: {', '.join(DATASETS)}.",
    "model": f"Model: {', '.join(models.MODELS)}.",
    "width": "Width of the model; its own by default.",
    "norm": "Normalisation: batch or group.",
    "epochs": f"Length in epochs of the training set; {DEFAULT_EPOCHS:g} by default.",
    "budget": "In place of --epochs: train until forwards and backwards cost as much as so many "
    "epochs of Traditional. The fairest comparison: every strategy costs the same.",
    "batch_size": "Examples per batch.",
    "history": "Losses that a loss is ranked among.",
    "rate": f"Learning rates: {', '.join(rates.RATES)}.",
    "lr": "Peak learning rate.",
    "momentum": "Nesterov momentum of SGD.",
    "weight_decay": "L2 penalty of SGD.",
    "cutout": "Side of the square cut out of each image, in pixels.",
    "train_limit": "Train on a fixed, class-balanced subset of so many examples.",
    "precision": "fp32 or bf16 (mixed precision).",
    "device": "auto, cpu, cuda or mps.",
    "evaluations": "How often to test, evenly; once an epoch by default.",
    "validation": "Test on so many held-out training examples, to choose settings by.",
    "flip": "Share of the training labels to make wrong.",
    "stale_every": "Epochs between stale-sb's selection passes.",
    "floor": "Least chance of an example in sb-memory.",
    "warmup": "Share of training before sb-memory selects.",
    "tail": "Share at the end in which it selects no more.",
    "decay": "How much of an old loss stays in its memory.",
    "subset": "File of siftback prune: its examples are the training set.",
    "score_models": "Models that el2n, diet-sb and rho score by.",
    "score_epochs": "Epochs that each of those is trained for.",
}

# Where an option's default is not the setting's, or its type is one that options have not.
DEFAULTS = {"data": "digits"}
TYPES = {"precision": str}

Beta = Annotated[
    str | None,
    typer.Option(help="In place of --keep: exponents of Selective-Backprop, keep = 1/(beta+1)."),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads; PyTorch's choice by default.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")]
Resume = Annotated[bool, typer.Option("--resume", help="Skip the runs that --out holds.")]


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Gives a command an option for each of these settings, after its own options.

    The command gets them as ``settings``, the others having their defaults.

    Args:
        names: Fields of `Settings`; all of them where none is named.
    """

    def decorate(command: Command) -> Command:
        chosen = names or tuple(HELP)

        @wraps(command)
        def called(**given: Any) -> None:
            command(settings=_settings({name: given.pop(name) for name in chosen}), **given)

        own = inspect.signature(command).parameters.values()
        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*(each for each in own if each.name != "settings"), *map(_option, chosen)]
        )
        return called

    return decorate


def _option(name: str) -> inspect.Parameter:
    kind = TYPES.get(name) or get_type_hints(Settings)[name]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=DEFAULTS.get(name, Settings.__dataclass_fields__[name].default),
        annotation=Annotated[kind, typer.Option(help=HELP[name])],
    )


def _settings(chosen: dict[str, Any]) -> Settings:
    if chosen.get("epochs") is None and chosen.get("budget") is None:
        chosen["epochs"] = DEFAULT_EPOCHS
    return Settings(**chosen)


def use_threads(threads: int | None) -> None:
    """Has torch compute with so many threads; None leaves it at its choice."""
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"--threads {threads}: give at least 1")
        torch.set_num_threads(threads)


def shares(keep: str | None, beta: str | None) -> list[float]:
    """What ``--keep`` or ``--beta`` says, as shares."""
    if keep is not None and beta is not None:
        raise ConfigError(f"--keep {keep} and --beta {beta}: give one, keep = 1/(beta+1)")
    if beta is None:
        return numbers("keep", keep or "0.33")
    exponents = numbers("beta", beta)
    if any(exponent < 0 for exponent in exponents):
        raise ConfigError(f"--beta {beta}: give exponents of at least 0")
    return [1 / (exponent + 1) for exponent in exponents]


def numbers(name: str, text: str) -> list[float]:
    """The numbers of an option, fractions among them."""
    try:
        return [float(Fraction(part.strip())) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--{name} {text!r}: give numbers separated by commas, such as 0.25,1/3"
        ) from None


def seeds(text: str) -> list[int]:
    """The whole numbers of ``--seed``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seed {text!r}: give whole numbers separated by commas, such as 0,1,2"
        ) from None


def existing(overwrite: bool, resume: bool) -> Existing:
    """What to do with a folder that holds a comparison."""
    if overwrite and resume:
        raise ConfigError("both --overwrite and --resume given: give one of them")
    return "overwrite" if overwrite else "resume" if resume else "refuse"
