"""Convolutional networks for small images, and perceptrons: of ReLUs, and of sines."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from siftback.lab.models.layers import (
    Layers,
    ModelSpec,
    classifier,
    conv_norm_relu,
    convolution,
    norm_layer,
    norm_relu,
    norm_relu_conv,
)

SINE_LAYERS = 3
FREQUENCY = 30.0  # omega_0 of Sitzmann et al. 2020


class Cnn(nn.Sequential):
    """Three stages of two convolutions, widths w, 2w and 4w, then a mean over the map.

    Each convolution is followed by a normalisation and a ReLU, each stage but the last by a
    pooling that halves the map: 32x32 ends as 8x8, 28x28 as 7x7, 8x8 as 2x2.

    Args:
        spec: Its width is the first stage's, w.

    Shape:
        float [B, channels, H, W] with H and W at least 4, to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        layers: Layers = []
        inputs, width, norm = spec.channels, spec.width, spec.norm
        for outputs in (width, 2 * width, 4 * width):
            stage = [
                *conv_norm_relu(norm, inputs, outputs),
                *conv_norm_relu(norm, outputs, outputs),
            ]
            layers += [nn.Sequential(*stage), nn.MaxPool2d(2)]
            inputs = outputs
        super().__init__(*layers[:-1], *classifier(inputs, spec.classes))


class FastCnn(nn.Sequential):
    """Three stages of two convolutions, widths w, 4w and 4w, each pooled as soon as it can be.

    The shape of airbench94 (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU"):
    a 2x2 convolution to w channels, then three times a convolution, a pooling that halves the
    map and another convolution, and last the maximum over the map. A map that is halved before
    it is normalised costs a quarter of one that is halved after. Unlike airbench94, whose first
    layer is fixed and whitens, all layers here are learned; ReLU follows them in place of GELU, and
    their weights begin as PyTorch has them, as with Kaiming's larger ones it learned more slowly.

    Args:
        spec: Its width is the first stage's, w; 64 is airbench94's.

    Shape:
        float [B, channels, H, W] with H and W at least 8, to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        width, norm = spec.width, spec.norm
        super().__init__(
            # Maps of 8x8 pixels would be gone before they are halved three times.
            nn.Conv2d(spec.channels, width, 2, padding=int(min(spec.size) < 9)),
            nn.ReLU(inplace=True),
            *pool_early(width, width, norm),
            *pool_early(width, 4 * width, norm),
            *pool_early(4 * width, 4 * width, norm),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, spec.classes),
        )


def pool_early(inputs: int, outputs: int, norm: str) -> Layers:
    """Returns a stage of two convolutions, pooled after the first."""
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        *norm_relu(norm, outputs),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        *norm_relu(norm, outputs),
    ]


class Mlp(nn.Sequential):
    """Two hidden layers of w units with ReLU, on all pixels at once, or on a row of numbers.

    Args:
        spec: Its width is w; its size is the only one that the images may have, 1x1 for rows.

    Shape:
        float [B, channels, H, W] or [B, channels] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        height, width = spec.size
        super().__init__(
            nn.Flatten(),
            nn.Linear(spec.channels * height * width, spec.width),
            nn.ReLU(),
            nn.Linear(spec.width, spec.width),
            nn.ReLU(),
            nn.Linear(spec.width, spec.classes),
        )


class SineLayer(nn.Linear):
    """A layer ``sin(30 (W x + b))`` (Sitzmann et al. 2020, section 3.2).

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        bound: Of new weights, which are uniform in ``[-bound, bound]``.

    Shape:
        float [B, inputs] to float [B, outputs].
    """

    def __init__(self, inputs: int, outputs: int, bound: float) -> None:
        super().__init__(inputs, outputs)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the sines."""
        return torch.sin(FREQUENCY * super().forward(features))


class Siren(nn.Sequential):
    """Three layers of w sines and a linear one (SIREN, Sitzmann et al. 2020).

    Weights of the first layer, of n inputs, begin uniform in ``[-1 / n, 1 / n]``, those of the
    others in ``[-sqrt(6 / n) / 30, sqrt(6 / n) / 30]``, so that sines of sines are spread alike in
    every layer (section 3.2, and theorem 1.8 of the supplement). Biases are those of `nn.Linear`,
    as in the authors' code.

    Args:
        spec: Its width is w, its channels the coordinates, its classes the colours.

    Shape:
        float [B, channels], in [-1, 1], to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        bound = math.sqrt(6 / spec.width) / FREQUENCY
        hidden = [SineLayer(spec.width, spec.width, bound) for _ in range(SINE_LAYERS - 1)]
        last = nn.Linear(spec.width, spec.classes)
        nn.init.uniform_(last.weight, -bound, bound)
        super().__init__(SineLayer(spec.channels, spec.width, 1 / spec.channels), *hidden, last)


class Residual(nn.Module):
    """A block of layers beside a shortcut: ``f(x) + shortcut(x)``.

    Args:
        layers: The layers of f.
        shortcut: The module that the input goes through.
    """

    def __init__(self, layers: Layers, shortcut: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(*layers)
        self.shortcut = shortcut

    def forward(self, features: Tensor) -> Tensor:
        """Returns the block's features."""
        merged: Tensor = self.residual(features) + self.shortcut(features)
        return merged


class Concatenation(nn.Module):
    """Several paths beside each other, one path's channels after the other's.

    Args:
        paths: The layers of each path; none give the input itself.
    """

    def __init__(self, *paths: Layers) -> None:
        super().__init__()
        self.paths = nn.ModuleList(nn.Sequential(*layers) for layers in paths)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the features of all paths."""
        return torch.cat([path(features) for path in self.paths], 1)


def basic_layers(inputs: int, outputs: int, stride: int, norm: str) -> Layers:
    """Returns two 3x3 convolutions."""
    return [
        *conv_norm_relu(norm, inputs, outputs, stride=stride),
        convolution(outputs, outputs),
        norm_layer(norm, outputs),
    ]


def bottleneck_layers(inputs: int, outputs: int, stride: int, norm: str) -> Layers:
    """Returns a 1x1 and a 3x3 convolution to a quarter of the channels, and a 1x1 one to all."""
    return [
        *conv_norm_relu(norm, inputs, outputs // 4, 1),
        *conv_norm_relu(norm, outputs // 4, outputs // 4, stride=stride),
        convolution(outputs // 4, outputs, 1),
        norm_layer(norm, outputs),
    ]


def projection(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    """Returns the identity, or where the shape changes a strided 1x1 convolution.

    Option B of He et al. 2016.
    """
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(convolution(inputs, outputs, 1, stride), norm_layer(norm, outputs))


def padding(channels: int) -> nn.Sequential:
    """Returns every other pixel, and channels of zeros after the input's.

    The shortcut without parameters, option A of He et al. 2016, section 4.2.
    """
    zeros = nn.ConstantPad3d((0, 0, 0, 0, 0, channels), 0.0)
    return nn.Sequential(nn.AvgPool2d(1, stride=2), zeros)


class ResNet(nn.Sequential):
    """ResNet-18, -34 or -50 in its CIFAR form: a 3x3 stem and no pooling after it.

    Four stages of widths w, 2w, 4w and 8w, each but the first halving the map. The form that the
    paper's ResNet18 has (Jiang et al. 2019, appendix).

    Args:
        spec: Its width is the first stage's, w; 64 is He et al.'s.
        layers: Returns the layers of a block: `basic_layers` or `bottleneck_layers`.
        growth: Channels of a block over the width of its stage: 1, or 4 of bottlenecks.
        blocks: Number of blocks of each stage.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(
        self,
        spec: ModelSpec,
        layers: Callable[[int, int, int, str], Layers],
        growth: int,
        blocks: Sequence[int],
    ) -> None:
        inputs, norm = spec.width, spec.norm
        stages = conv_norm_relu(norm, spec.channels, inputs)
        for number, count in enumerate(blocks):
            stage = nn.Sequential()
            outputs = spec.width * 2**number * growth
            for block in range(count):
                shape = (inputs, outputs, 2 if number and not block else 1, norm)
                stage.append(Residual(layers(*shape), projection(*shape)))
                stage.append(nn.ReLU(inplace=True))
                inputs = outputs
            stages.append(stage)
        super().__init__(*stages, *classifier(inputs, spec.classes))


class SmallResNet(nn.Sequential):
    """The ResNets made for CIFAR, of depth 6n + 2 (He et al. 2016, section 4.2).

    Three stages of n blocks of widths w, 2w and 4w, with shortcuts that pad by zeros (option A)
    as in that section; with 1x1 convolutions in their place, ResNet-32 would have 0.467 million
    parameters and not the published 0.46.

    Args:
        spec: Its width is the first stage's, w; 16 is He et al.'s.
        blocks: n.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec, blocks: int) -> None:
        inputs, norm = spec.width, spec.norm
        layers = conv_norm_relu(norm, spec.channels, inputs)
        for outputs in (inputs, 2 * inputs, 4 * inputs):
            for _ in range(blocks):
                wider = outputs != inputs
                shortcut = padding(outputs - inputs) if wider else nn.Identity()
                block = basic_layers(inputs, outputs, 2 if wider else 1, norm)
                layers += [Residual(block, shortcut), nn.ReLU(inplace=True)]
                inputs = outputs
        super().__init__(*layers, *classifier(inputs, spec.classes))


class WideResNet(nn.Sequential):
    """WRN-d-k: three stages of (d - 4) / 6 blocks, k times as wide as a ResNet's.

    Normalisation and ReLU come before each convolution. A stem of w channels is followed by
    stages of k w, 2 k w and 4 k w, of which the second and the third halve the map.

    Args:
        spec: Its width is the stem's, w; 16 is the paper's.
        blocks: Of each stage, n = (d - 4) / 6.
        factor: k.
        dropout: Chance of a feature to be dropped between a block's convolutions. Jiang et al.
            2019 train as DeVries & Taylor 2017 do, whose code has 0.3 for CIFAR, 0.4 for SVHN.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec, blocks: int, factor: int, dropout: float) -> None:
        inputs, norm = spec.width, spec.norm
        layers: Layers = [convolution(spec.channels, inputs)]
        for number in range(3):
            outputs = spec.width * factor * 2**number
            for block in range(blocks):
                stride = 2 if number and not block else 1
                layers.append(wide_block(inputs, outputs, stride, norm, dropout))
                inputs = outputs
        super().__init__(*layers, *norm_relu(norm, inputs), *classifier(inputs, spec.classes))


def wide_block(inputs: int, outputs: int, stride: int, norm: str, dropout: float) -> nn.Module:
    """Returns ``f(a(x)) + shortcut``, where ``a`` is the first normalisation and ReLU.

    The shortcut is x, or a 1x1 convolution of a(x) where the shape changes.
    """
    first = norm_relu(norm, inputs)
    layers = [
        convolution(inputs, outputs, stride=stride),
        *norm_relu(norm, outputs),
        nn.Dropout(dropout),
        convolution(outputs, outputs),
    ]
    if stride == 1 and inputs == outputs:
        return Residual(first + layers, nn.Identity())
    return nn.Sequential(*first, Residual(layers, convolution(inputs, outputs, 1, stride)))


class DenseNet(nn.Sequential):
    """DenseNet-BC: every layer sees the features of all layers before it in its block.

    A stem of 2k channels; blocks of layers that add k channels each; between two blocks a 1x1
    convolution to half the channels, and a mean over squares of 2x2.

    Args:
        spec: Its width is the growth rate, k.
        layers: Number of layers of each block.

    Shape:
        float [B, channels, H, W] to float [B, classes]; H and W at least 2 to the number of
        blocks less one.
    """

    def __init__(self, spec: ModelSpec, layers: Sequence[int]) -> None:
        growth, norm = spec.width, spec.norm
        inputs = 2 * growth
        stages: Layers = [convolution(spec.channels, inputs)]
        for number, count in enumerate(layers):
            if number:
                stages += [*norm_relu_conv(norm, inputs, inputs // 2, 1), nn.AvgPool2d(2)]
                inputs //= 2
            for _ in range(count):
                layer = norm_relu_conv(norm, inputs, 4 * growth, 1)
                layer += norm_relu_conv(norm, 4 * growth, growth)
                stages.append(Concatenation([], layer))
                inputs += growth
        super().__init__(*stages, *norm_relu(norm, inputs), *classifier(inputs, spec.classes))


# Channels of a block's paths: 1x1; 3x3, reduced and made; 5x5, reduced and made; pooled.
# Szegedy et al. 2015, table 1; None is a pooling between stages.
INCEPTIONS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
INCEPTION_STEM = 192


class GoogLeNet(nn.Sequential):
    """GoogLeNet in its CIFAR form: a 3x3 stem, normalisation, no auxiliary classifiers.

    The form of pytorch-cifar: two 3x3 convolutions stand for a 5x5 one, as one less than
    that costs; each convolution is followed by a normalisation and a ReLU.

    Args:
        spec: Its width is the stem's; 192 is Szegedy et al.'s, and all layers are in
            proportion.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        inputs, norm = spec.width, spec.norm
        layers = conv_norm_relu(norm, spec.channels, inputs)
        for block in INCEPTIONS:
            if block is None:
                layers.append(nn.MaxPool2d(3, stride=2, padding=1))
                continue
            paths = [max(1, channels * spec.width // INCEPTION_STEM) for channels in block]
            layers.append(inception(inputs, paths, norm))
            inputs = paths[0] + paths[2] + paths[4] + paths[5]
        super().__init__(*layers, *classifier(inputs, spec.classes))


def inception(inputs: int, paths: list[int], norm: str) -> Concatenation:
    """Returns four paths beside each other, of which each sees another distance."""
    pointwise, reduced3, three, reduced5, five, pooled = paths
    return Concatenation(
        conv_norm_relu(norm, inputs, pointwise, 1),
        conv_norm_relu(norm, inputs, reduced3, 1) + conv_norm_relu(norm, reduced3, three),
        conv_norm_relu(norm, inputs, reduced5, 1)
        + conv_norm_relu(norm, reduced5, five)
        + conv_norm_relu(norm, five, five),
        [nn.MaxPool2d(3, stride=1, padding=1), *conv_norm_relu(norm, inputs, pooled, 1)],
    )


# Expansion, channels, blocks and stride of each stage: Sandler et al. 2018, table 2, with a
# stride of 1 where their images of 224 pixels are halved a second time.
MOBILE_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
MOBILE_STEM, MOBILE_LAST = 32, 1280


class MobileNetV2(nn.Sequential):
    """MobileNetV2 in its CIFAR form: no halving by the stem and by the second stage.

    The form of the paper's experiments (Jiang et al. 2019, appendix: pytorch-cifar): every
    block of stride 1 has a shortcut, by a 1x1 convolution where the channels change, and ReLU
    stands for ReLU6.

    Args:
        spec: Its width is the stem's; 32 is the paper's, and all layers are in proportion.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        def scaled(channels: int) -> int:
            return max(1, channels * spec.width // MOBILE_STEM)

        inputs, norm = spec.width, spec.norm
        layers = conv_norm_relu(norm, spec.channels, inputs)
        for expansion, channels, count, first in MOBILE_STAGES:
            outputs = scaled(channels)
            for block in range(count):
                stride = 1 if block else first
                layers.append(inverted_residual(inputs, outputs, expansion, stride, norm))
                inputs = outputs
        super().__init__(
            *layers,
            *conv_norm_relu(norm, inputs, scaled(MOBILE_LAST), 1),
            *classifier(scaled(MOBILE_LAST), spec.classes),
        )


def inverted_residual(
    inputs: int, outputs: int, expansion: int, stride: int, norm: str
) -> nn.Module:
    """Returns a 1x1 convolution to many channels, a 3x3 one for each, and a 1x1 one to few.

    With a stride of 1 there is a shortcut beside them.
    """
    wide = expansion * inputs
    layers = [
        *conv_norm_relu(norm, inputs, wide, 1),
        convolution(wide, wide, stride=stride, groups=wide),
        *norm_relu(norm, wide),
        convolution(wide, outputs, 1),
        norm_layer(norm, outputs),
    ]
    return (
        Residual(layers, projection(inputs, outputs, 1, norm))
        if stride == 1
        else nn.Sequential(*layers)
    )
