"""Models to train: each takes images [B, C, H, W] from 8x8 to 32x32 and gives logits [B, K]."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from siftback import ConfigError
from siftback.lab.models.cnn import Cnn
from siftback.lab.models.resnet import ResNet18


class Architecture(NamedTuple):
    """A family of models of one shape.

    Attributes:
        make: ``(width, classes, channels, norm) -> nn.Module``.
        width: The width it has where none is asked.
    """

    make: Callable[[int, int, int, str], nn.Module]
    width: int


MODELS: dict[str, Architecture] = {
    "cnn": Architecture(Cnn, width=8),
    "resnet18": Architecture(ResNet18, width=64),
}


def build(
    name: str, *, width: int | None = None, classes: int, channels: int, norm: str = "batch"
) -> nn.Module:
    """Builds a model with fresh weights, drawn from torch's global generator.

    Args:
        name: A name of ``MODELS``.
        width: Channels of the first stage; the architecture's own where None.
        classes: Number of logits.
        channels: Channels of the images: 1 for grey, 3 for colour.
        norm: ``"batch"`` or ``"group"``.

    Raises:
        ConfigError: For an unknown name or norm, or a size below 1.

    >>> import torch
    >>> model = build("cnn", width=8, classes=10, channels=1)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if name not in MODELS:
        raise ConfigError(f"model {name!r} is not known: give one of {', '.join(MODELS)}")
    make, default_width = MODELS[name]
    width = default_width if width is None else width
    for size, value in (("width", width), ("classes", classes), ("channels", channels)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{size}={value} is not a size: give a whole number of 1 or more")
    return make(width, classes, channels, norm)
