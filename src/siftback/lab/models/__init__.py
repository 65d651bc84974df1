"""Models to train, by name.

Those of images take [B, C, H, W] from 8x8 on and give logits [B, K]; those of texts take tokens
[B, T] and give logits [B, K], or [B, T, K] of each next token. A name is one of ``MODELS``, or of a
family whose names carry numbers: ``wrn-28-10``.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from siftback.errors import ConfigError
from siftback.lab.data.data_set import KINDS, Kind
from siftback.lab.models.cnn import Cnn
from siftback.lab.models.densenet import DenseNet
from siftback.lab.models.fast_cnn import FastCnn
from siftback.lab.models.googlenet import GoogLeNet
from siftback.lab.models.mlp import Mlp
from siftback.lab.models.mobilenet import MobileNetV2
from siftback.lab.models.model_spec import ModelSpec
from siftback.lab.models.norm import NORMS
from siftback.lab.models.resnet import BasicBlock, Bottleneck, ResNet, SmallResNet
from siftback.lab.models.text_models import Gpt, Ngrams, Transformer
from siftback.lab.models.vit import Vit
from siftback.lab.models.wide_resnet import WideResNet
from siftback.lab.records.formatting import one_of


class Recipe(NamedTuple):
    """How a model is trained where nothing else is asked.

    Attributes:
        optimizer: "sgd", with Nesterov momentum and an L2 penalty, or "adamw".
        lr: Peak learning rate.
        weight_decay: L2 penalty of SGD; of AdamW the decay of the weights, times the rate.
        batch_size: Examples per batch.
    """

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    weight_decay: float = 5e-4
    batch_size: int = 128


class Architecture(NamedTuple):
    """A family of models of one shape.

    Attributes:
        make: Builds the model of a `ModelSpec`.
        width: The width it has where none is asked.
        what: What it is, and what its width is, for a reader.
        takes: What its examples are.
        recipe: How it is trained.
    """

    make: Callable[[ModelSpec], nn.Module]
    width: int
    what: str
    takes: Kind = "images"
    recipe: Recipe = Recipe()


MODELS: dict[str, Architecture] = {
    "cnn": Architecture(Cnn, 8, "six convolutions, for quick runs; width: the first stage's"),
    "fastcnn": Architecture(
        FastCnn, 16, "six convolutions that pool early, fast on CPUs; width: the first stage's"
    ),
    "mlp": Architecture(Mlp, 512, "two hidden layers; width: their units"),
    "resnet18": Architecture(
        partial(ResNet, block=BasicBlock, blocks=(2, 2, 2, 2)),
        64,
        "ResNet-18 with a 3x3 stem; width: the first stage's",
    ),
    "resnet34": Architecture(
        partial(ResNet, block=BasicBlock, blocks=(3, 4, 6, 3)),
        64,
        "ResNet-34 with a 3x3 stem; width: the first stage's",
    ),
    "resnet50": Architecture(
        partial(ResNet, block=Bottleneck, blocks=(3, 4, 6, 3)),
        64,
        "ResNet-50 with a 3x3 stem; width: the first stage's",
    ),
    "resnet20": Architecture(
        partial(SmallResNet, blocks=3),
        16,
        "the ResNet-20 of CIFAR, padding shortcuts; width: the first stage's",
    ),
    "resnet32": Architecture(
        partial(SmallResNet, blocks=5),
        16,
        "the ResNet-32 of CIFAR, padding shortcuts; width: the first stage's",
    ),
    "densenet121": Architecture(
        partial(DenseNet, layers=(6, 12, 24, 16)),
        32,
        "DenseNet-121 with a 3x3 stem; width: the growth rate",
    ),
    "mobilenetv2": Architecture(
        MobileNetV2, 32, "MobileNetV2, halving three times; width: the stem's"
    ),
    "googlenet": Architecture(
        GoogLeNet, 192, "GoogLeNet with a 3x3 stem and normalisation; width: the stem's"
    ),
    "vit": Architecture(Vit, 192, "six blocks of attention on 4x4 patches; width: a patch's"),
    "transformer": Architecture(
        Transformer,
        64,
        "two blocks of attention on a text, to classify it; width: a token's",
        "texts",
        Recipe("adamw", 5e-4, 0.01, 64),
    ),
    "ngrams": Architecture(
        Ngrams,
        32,
        "a bag of words and pairs of words, to classify a text; width: a word's",
        "texts",
        Recipe("adamw", 1e-2, 0.01, 64),
    ),
    "gpt": Architecture(
        Gpt,
        64,
        "four blocks of causal attention, for the next token; width: a token's",
        "language",
        Recipe("adamw", 3e-3, 0.01, 32),
    ),
}


class _Family(NamedTuple):
    """Models whose names carry numbers.

    Attributes:
        pattern: What their names match; its groups are what ``of`` takes.
        of: The architecture of those numbers.
        known: Names to list.
    """

    pattern: re.Pattern[str]
    of: Callable[..., Architecture]
    known: tuple[str, ...]


def _wide_resnet(depth: str, factor: str, dropout: str | None) -> Architecture:
    """The architecture of ``wrn-<depth>-<factor>[-drop<dropout>]``."""
    probability = float(dropout or 0)
    make = partial(WideResNet, blocks=_blocks(depth), factor=int(factor), dropout=probability)
    dropping = f", dropout {probability:g}" if dropout else ""
    return Architecture(make, 16, f"wide ResNet, {factor} times{dropping}; width: the stem's")


def _densenet(depth: str) -> Architecture:
    """The architecture of ``densenet-bc-<depth>``."""
    make = partial(DenseNet, layers=(_blocks(depth),) * 3)
    return Architecture(make, 12, "DenseNet-BC in three blocks; width: the growth rate")


def _blocks(depth: str) -> int:
    """The n of a depth of 6n + 4: three stages of n pairs of convolutions."""
    blocks, rest = divmod(int(depth) - 4, 6)
    if blocks < 1 or rest or int(depth) > DEEPEST:
        raise ConfigError(
            f"a model of depth {depth}: wrn and densenet-bc have depths of 6n + 4, such as "
            f"10, 16, 28, 40 or 100, up to {DEEPEST}"
        )
    return blocks


DEEPEST = 1204

_FAMILIES = {
    "wrn-D-K": _Family(
        re.compile(r"wrn-(\d{1,9})-([1-9]\d{0,3})(?:-drop(0\.\d+))?"),
        _wide_resnet,
        ("wrn-28-10", "wrn-28-10-drop0.3", "wrn-16-2"),
    ),
    "densenet-bc-D": _Family(re.compile(r"densenet-bc-(\d{1,9})"), _densenet, ("densenet-bc-100",)),
}

NAMES = (*MODELS, *_FAMILIES)
"""What may be asked for; in those of families, capitals stand for numbers."""

LISTED = (*MODELS, *(name for family in _FAMILIES.values() for name in family.known))
"""The names that ``siftback models`` lists."""


def find(name: str) -> Architecture:
    """The architecture of a name.

    Raises:
        ConfigError: For a name that is not known.

    >>> find("wrn-16-4").width
    16
    """
    if name in MODELS:
        return MODELS[name]
    for family in _FAMILIES.values():
        if numbers := family.pattern.fullmatch(name):
            return family.of(*numbers.groups())
    raise ConfigError(f"no model {name!r}: {one_of(name, NAMES)}")


def check_kind(name: str, kind: Kind, data: str) -> None:
    """Refuses a model of something else than the examples of a data set.

    Args:
        name: Of the model.
        kind: What the examples are.
        data: What to call the data set.

    Raises:
        ConfigError: If it is one.
    """
    takes = find(name).takes
    if takes != kind:
        others = [other for other in LISTED if find(other).takes == kind]
        raise ConfigError(
            f"model {name!r} takes {KINDS[takes]}, and {data} holds {KINDS[kind]}: give --model "
            f"one of {', '.join(others)}, or other --data"
        )


def build(
    name: str,
    *,
    width: int | None = None,
    classes: int,
    channels: int = 3,
    norm: str = "batch",
    size: tuple[int, int] = (32, 32),
    vocabulary: int = 4096,
    length: int = 128,
) -> nn.Module:
    """Builds a model with fresh weights, drawn from torch's global generator.

    Args:
        name: One of ``NAMES``.
        width: What the model calls its width; the architecture's own where None.
        classes: Number of logits.
        channels: Channels of the images: 1 for grey, 3 for colour.
        norm: ``"batch"`` or ``"group"``; ``mlp``, ``vit`` and models of texts have neither.
        size: Height and width of the images, which ``mlp`` depends on.
        vocabulary: Number of tokens, of a model of texts.
        length: The most tokens of a text.

    Raises:
        ConfigError: For an unknown name or norm, or a size below 1.

    >>> import torch
    >>> model = build("cnn", width=8, classes=10, channels=1)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    own = find(name)
    width = own.width if width is None else width
    sizes = {"width": width, "classes": classes, "channels": channels}
    for given, value in (sizes | {"vocabulary": vocabulary, "length": length}).items():
        if not isinstance(value, int) or not 1 <= value < 2**31:
            raise ConfigError(f"{given}={value} is not a size: give an integer of 1 or more")
    if norm not in NORMS:
        raise ConfigError(f"norm={norm!r} is not known: {one_of(norm, NORMS)}")
    return own.make(ModelSpec(width, classes, channels, norm, size, vocabulary, length))


def count(
    name: str, width: int | None = None, classes: int = 10, channels: int = 3, **sizes: Any
) -> int:
    """The number of a model's parameters; nothing is allocated.

    Args:
        name: As for `build`, like the others.
        width: Its width.
        classes: Number of logits.
        channels: Channels of the images.
        sizes: More arguments of `build`.

    Raises:
        ConfigError: As for `build`, and where a tensor would be larger than torch can count.

    >>> count("resnet18"), count("gpt", classes=65, vocabulary=65)
    (11173962, 216576)
    """
    try:
        with torch.device("meta"):
            model = build(name, width=width, classes=classes, channels=channels, **sizes)
    except RuntimeError as error:
        raise ConfigError(
            f"{name} of width={width} is too large ({error}): give a smaller width"
        ) from None
    return sum(parameter.numel() for parameter in model.parameters())
