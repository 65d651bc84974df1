"""Sizes of models, and the layers of convolutional networks."""

from typing import NamedTuple

from torch import nn

Layers = list[nn.Module]

NORMS = ("batch", "group")
MOST_GROUPS = 32
FEWEST_CHANNELS = 4


class ModelSpec(NamedTuple):
    """The sizes of a model and of what it takes and gives.

    Attributes:
        width: The model's measure of width, which its class defines.
        classes: Number of logits, or of colours.
        channels: Channels of the images, of a model of images; of others the inputs of an example.
        norm: ``"batch"`` or ``"group"``; ``mlp``, ``vit`` and models of texts have neither.
        size: Height and width of the images; only `mlp` depends on them.
        vocabulary: Number of tokens, of a model of texts.
        length: The most tokens of a text.
    """

    width: int
    classes: int
    channels: int = 3
    norm: str = "batch"
    size: tuple[int, int] = (32, 32)
    vocabulary: int = 4096
    length: int = 128


def groups_for(channels: int) -> int:
    """Computes the number of groups for ``channels``, within Wu & He's bounds.

    It is the largest divisor of ``channels`` that is at most 32 (Wu & He 2018's choice) and leaves
    a group four channels or more: with one channel a group the layer would be instance norm,
    which loses everything where a feature map has shrunk to a single pixel.

    >>> [groups_for(channels) for channels in (1, 6, 7, 16, 64, 512)]
    [1, 1, 1, 4, 16, 32]
    """
    most = min(MOST_GROUPS, max(1, channels // FEWEST_CHANNELS))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def norm_layer(norm: str, channels: int) -> nn.Module:
    """Returns a normalisation layer over ``channels``.

    Args:
        norm: One of ``NORMS``. Batch norm couples a batch's examples; group norm keeps
            them apart, so that a row of a batch has the gradient it would have alone.
        channels: Number of channels.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(groups_for(channels), channels)


# With stride, of a 1x1 kernel: below it oneDNN 3.12 (torch 2.13) writes beyond its memory in the
# backward of maps that lie channels last, on processors without AVX-512, and the process aborts.
ONE_DNN_LEAST = 8


def convolution(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Returns a convolution that keeps the size except for its stride, Kaiming-initialised.

    It has no bias because a normalisation follows; the weights are normal with variance
    2 / (kernel^2 * outputs) (He et al. 2015, eq. 14).
    """
    if kernel == 1 and stride > 1 and inputs < ONE_DNN_LEAST:
        return nn.Sequential(nn.AvgPool2d(1, stride), convolution(inputs, outputs, 1))
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def norm_relu(norm: str, channels: int) -> Layers:
    """Returns the layers of a normalisation and a ReLU."""
    return [norm_layer(norm, channels), nn.ReLU(inplace=True)]


def conv_norm_relu(norm: str, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> Layers:
    """Returns the layers of a convolution, of a kernel size, its normalisation and a ReLU."""
    return [convolution(inputs, outputs, size, stride), *norm_relu(norm, outputs)]


def norm_relu_conv(norm: str, inputs: int, outputs: int, kernel: int = 3) -> Layers:
    """Returns the layers of a normalisation, a ReLU and a convolution: pre-activation."""
    return [*norm_relu(norm, inputs), convolution(inputs, outputs, kernel)]


def classifier(inputs: int, classes: int) -> Layers:
    """Returns the mean over the map, and a linear layer from it to the classes."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
