"""Models to train, by name.

Those of images take [B, C, H, W] from 8x8 on and give logits [B, K]; those of texts take tokens
[B, T] and give logits [B, K], or [B, T, K] of each next token; those of rows take [B, F] and give
logits [B, K]; those of pixels take coordinates [B, 2] and give colours [B, C]. A name is one of
``MODELS``, or of a family whose names carry numbers: ``wrn-28-10``.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from siftback.errors import ConfigError
from siftback.lab.data.data_set import KINDS, Kind
from siftback.lab.data.load import MNIST, PUBLISHED
from siftback.lab.data.source import parse_address
from siftback.lab.models.attention import Gpt, Ngrams, Transformer, Vit
from siftback.lab.models.convolutional import (
    basic_layers,
    bottleneck_layers,
    cnn,
    densenet,
    fast_cnn,
    googlenet,
    mlp,
    mobilenet_v2,
    padding,
    resnet,
    siren,
    wide_resnet,
)
from siftback.lab.models.layers import NORMS, ModelSpec
from siftback.lab.records.formatting import one_of


class Architecture(NamedTuple):
    """A family of models of one shape, and the settings that it is trained with by default.

    Attributes:
        make: Builds the model of a `ModelSpec`.
        width: Its default width.
        what: What it is, and what its width is, for a reader.
        takes: The kind of its examples.
        optimizer: "sgd", with Nesterov momentum and an L2 penalty, or "adamw".
        lr: Peak learning rate.
        weight_decay: L2 penalty of SGD; of AdamW the decay of the weights, times the rate.
        batch_size: Examples per batch.
    """

    make: Callable[[ModelSpec], nn.Module]
    width: int
    what: str
    takes: Kind = "images"
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    weight_decay: float = 5e-4
    batch_size: int = 128


def resnet_in_four(depth: int, blocks: tuple[int, ...], growth: int = 1) -> Architecture:
    """Returns a ResNet of four stages; bottlenecks have four times the channels."""
    layers = basic_layers if growth == 1 else bottleneck_layers
    make = partial(resnet, layers=layers, blocks=blocks, growth=growth)
    return Architecture(make, 64, f"ResNet-{depth} with a 3x3 stem; width: the first stage's")


def resnet_in_three(depth: int, blocks: int) -> Architecture:
    """Returns a ResNet of three stages of as many blocks."""
    make = partial(resnet, layers=basic_layers, blocks=(blocks,) * 3, shortcut=padding)
    what = f"the ResNet-{depth} of CIFAR, padding shortcuts; width: the first stage's"
    return Architecture(make, 16, what)


_with_adamw = partial(Architecture, optimizer="adamw", weight_decay=0.01, batch_size=64)

MODELS: dict[str, Architecture] = {
    "cnn": Architecture(cnn, 8, "six convolutions, for quick runs; width: the first stage's"),
    "fastcnn": Architecture(
        fast_cnn, 16, "six convolutions that pool early, fast on CPUs; width: the first stage's"
    ),
    "mlp": Architecture(mlp, 512, "two hidden layers; width: their units"),
    "resnet18": resnet_in_four(18, (2, 2, 2, 2)),
    "resnet34": resnet_in_four(34, (3, 4, 6, 3)),
    "resnet50": resnet_in_four(50, (3, 4, 6, 3), growth=4),
    "resnet20": resnet_in_three(20, blocks=3),
    "resnet32": resnet_in_three(32, blocks=5),
    "densenet121": Architecture(
        partial(densenet, layers=(6, 12, 24, 16)),
        32,
        "DenseNet-121 with a 3x3 stem; width: the growth rate",
    ),
    "mobilenetv2": Architecture(
        mobilenet_v2, 32, "MobileNetV2, halving three times; width: the stem's"
    ),
    "googlenet": Architecture(
        googlenet, 192, "GoogLeNet with a 3x3 stem and normalisation; width: the stem's"
    ),
    "vit": Architecture(Vit, 192, "six blocks of attention on 4x4 patches; width: a patch's"),
    "transformer": _with_adamw(
        *(Transformer, 64, "two blocks of attention on a text, to classify it; width: a token's"),
        takes="texts",
        lr=5e-4,
    ),
    "ngrams": _with_adamw(
        *(Ngrams, 32, "a bag of words and pairs of words, to classify a text; width: a word's"),
        takes="texts",
        lr=1e-2,
    ),
    "gpt": _with_adamw(
        *(Gpt, 64, "four blocks of causal attention, for the next token; width: a token's"),
        takes="language",
        lr=3e-3,
        batch_size=32,
    ),
    "tabular-mlp": _with_adamw(
        *(mlp, 256, "two hidden layers on the columns of a table; width: their units"),
        takes="rows",
        lr=3e-3,
    ),
    "siren": _with_adamw(
        *(siren, 96),
        "three layers of sines, from the coordinates of a pixel to its colours; width: their units",
        takes="pixels",
        lr=2e-3,
        weight_decay=0.0,
        batch_size=1024,
    ),
}

NAMES = (*MODELS, "wrn-D-K", "densenet-bc-D")
"""The names that `find_architecture` takes; in the last two, capitals stand for numbers."""

LISTED = (*MODELS, "wrn-28-10", "wrn-28-10-drop0.3", "wrn-16-2", "densenet-bc-100")
"""The names that ``siftback models`` lists."""

# Those of data whose name says their kind, beside those for texts of a class each, and for images.
_DEFAULTS = {"tinyshakespeare": "gpt", "text": "gpt", "table": "tabular-mlp", "picture": "siren"}

DEEPEST = 1204


def find_architecture(name: str) -> Architecture:
    """Returns the architecture of a name.

    Raises:
        ConfigError: For a name that is not known.

    >>> find_architecture("wrn-16-4").width
    16
    """
    if name in MODELS:
        return MODELS[name]
    if match := re.fullmatch(r"wrn-(\d{1,9})-([1-9]\d{0,3})(?:-drop(0\.\d+))?", name):
        blocks, factor, dropout = blocks_of(match[1]), int(match[2]), float(match[3] or 0)
        what = f"wide ResNet, {factor} times{f', dropout {dropout:g}' if match[3] else ''}"
        make = partial(wide_resnet, blocks=blocks, factor=factor, dropout=dropout)
        return Architecture(make, 16, f"{what}; width: the stem's")
    if match := re.fullmatch(r"densenet-bc-(\d{1,9})", name):
        make_dense = partial(densenet, layers=(blocks_of(match[1]),) * 3)
        return Architecture(make_dense, 12, "DenseNet-BC in three blocks; width: the growth rate")
    known, _, width = name.rpartition("-")
    if known in MODELS and width.isdigit():  # as tables name it
        raise ConfigError(f"no model {name!r}: give --model {known} --width {width}")
    raise ConfigError(f"no model {name!r}: {one_of(name, NAMES)}")


def model_for(data: str) -> str:
    """Returns the default model of a data set, by the kind of its examples as its name says it.

    >>> [model_for(data) for data in ("mnist", "imdb", "hf:ag_news,text=text", "table:adult.csv")]
    ['cnn', 'transformer', 'transformer', 'tabular-mlp']
    """
    address = parse_address(data)
    if PUBLISHED.get(data, MNIST).length or "text" in (address.options if address else ()):
        return "transformer"
    return _DEFAULTS.get(address.kind if address else data, "cnn")


def blocks_of(depth: str) -> int:
    """Returns the n of a depth of 6n + 4: three stages of n pairs of convolutions.

    Raises:
        ConfigError: For another depth.
    """
    blocks, remainder = divmod(int(depth) - 4, 6)
    if blocks < 1 or remainder or int(depth) > DEEPEST:
        raise ConfigError(
            f"a model of depth {depth}: wrn and densenet-bc have depths of 6n + 4, such as "
            f"10, 16, 28, 40 or 100, up to {DEEPEST}"
        )
    return blocks


def check_kind(name: str, kind: Kind, data: str) -> None:
    """Checks that a model takes the examples of a data set.

    Args:
        name: Name of the model.
        kind: Kind of the examples.
        data: Name of the data set.

    Raises:
        ConfigError: If it takes others.
    """
    takes = find_architecture(name).takes
    if takes != kind:
        others = [other for other in LISTED if find_architecture(other).takes == kind]
        raise ConfigError(
            f"model {name!r} takes {KINDS[takes]}, and {data} holds {KINDS[kind]}: give --model "
            f"one of {', '.join(others)}, or other --data"
        )


def build(name: str, *, width: int | None = None, **sizes: Any) -> nn.Module:
    """Builds a model with fresh weights, drawn from torch's global generator.

    Args:
        name: One of ``NAMES``.
        width: The model's measure of width; the architecture's default where None.
        sizes: The other fields of `ModelSpec`, of which ``classes`` has no default.

    Raises:
        ConfigError: For an unknown name or norm, one that the model does not have, or a size below
            1.

    >>> import torch
    >>> model = build("cnn", width=8, classes=10, channels=1)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    architecture = find_architecture(name)
    spec = ModelSpec(architecture.width if width is None else width, **sizes)
    for size_name in ("width", "classes", "channels", "vocabulary", "length"):
        value = getattr(spec, size_name)
        if not isinstance(value, int) or not 1 <= value < 2**31:
            raise ConfigError(f"{size_name}={value} is not a size: give an integer of 1 or more")
    if spec.norm not in NORMS:
        raise ConfigError(f"norm={spec.norm!r} is not known: {one_of(spec.norm, NORMS)}")
    model = architecture.make(spec)
    if spec.norm == "group" and nn.GroupNorm not in map(type, model.modules()):
        raise ConfigError(f"norm='group' with {name}, which has another or none: leave norm out")
    return model


def count(name: str, width: int | None = None, classes: int = 10, **sizes: Any) -> int:
    """Counts the parameters of a model; nothing is allocated.

    Args:
        name: As for `build`, like the others.
        width: Its width.
        classes: Number of logits.
        sizes: More arguments of `build`.

    Raises:
        ConfigError: As for `build`, and where a tensor would be larger than torch can count.

    >>> count("resnet18"), count("gpt", classes=65, vocabulary=65)
    (11173962, 216576)
    """
    try:
        with torch.device("meta"):
            model = build(name, width=width, classes=classes, **sizes)
    except RuntimeError as error:
        raise ConfigError(
            f"{name} of width={width} is too large ({error}): give a smaller width"
        ) from None
    return sum(parameter.numel() for parameter in model.parameters())
