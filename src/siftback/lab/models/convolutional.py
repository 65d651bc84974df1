"""Convolutional networks for small images, and perceptrons: of ReLUs, and of sines."""

import math
from collections.abc import Callable, Sequence
from functools import partial

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


def cnn(spec: ModelSpec) -> nn.Sequential:
    """Returns three stages of two convolutions, widths w, 2w and 4w, then a mean over the map.

    Each convolution is followed by a normalisation and a ReLU, each stage but the last by a
    pooling that halves the map: 32x32 ends as 8x8, 28x28 as 7x7, 8x8 as 2x2.

    Args:
        spec: Its width is the first stage's, w.

    Shape:
        float [B, channels, H, W] with H and W at least 4, to float [B, classes].
    """
    layers: Layers = []
    inputs, width, norm = spec.channels, spec.width, spec.norm
    for outputs in (width, 2 * width, 4 * width):
        block = conv_norm_relu(norm, inputs, outputs) + conv_norm_relu(norm, outputs, outputs)
        layers += [nn.Sequential(*block), nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(*layers[:-1], *classifier(inputs, spec.classes))


def fast_cnn(spec: ModelSpec) -> nn.Sequential:
    """Returns three stages of two convolutions, widths w, 4w and 4w, pooled as soon as can be.

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
    width, norm = spec.width, spec.norm
    return nn.Sequential(
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


def mlp(spec: ModelSpec) -> nn.Sequential:
    """Returns two hidden layers of w units with ReLU, on all pixels at once, or a row of numbers.

    Args:
        spec: Its width is w; its size is the only one that the images may have, 1x1 for rows.

    Shape:
        float [B, channels, H, W] or [B, channels] to float [B, classes].
    """
    height, width = spec.size
    return nn.Sequential(
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


def siren(spec: ModelSpec) -> nn.Sequential:
    """Returns three layers of w sines and a linear one (SIREN, Sitzmann et al. 2020).

    Weights of the first layer, of n inputs, begin uniform in ``[-1 / n, 1 / n]``, those of the
    others in ``[-sqrt(6 / n) / 30, sqrt(6 / n) / 30]``, so that sines of sines are spread alike in
    every layer (section 3.2, and theorem 1.8 of the supplement). Biases are those of `nn.Linear`,
    as in the authors' code.

    Args:
        spec: Its width is w, its channels the coordinates, its classes the colours.

    Shape:
        float [B, channels], in [-1, 1], to float [B, classes].
    """
    bound = math.sqrt(6 / spec.width) / FREQUENCY
    hidden = [SineLayer(spec.width, spec.width, bound) for _ in range(SINE_LAYERS - 1)]
    last = nn.Linear(spec.width, spec.classes)
    nn.init.uniform_(last.weight, -bound, bound)
    return nn.Sequential(SineLayer(spec.channels, spec.width, 1 / spec.channels), *hidden, last)


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
        return torch.add(self.residual(features), self.shortcut(features))


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


def padding(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    """Returns the identity, or with a stride of 2 every other pixel, and channels of zeros.

    The shortcut without parameters, option A of He et al. 2016, section 4.2.
    """
    if stride == 1:
        return nn.Sequential()
    zeros = nn.ConstantPad3d((0, 0, 0, 0, 0, outputs - inputs), 0.0)
    return nn.Sequential(nn.AvgPool2d(1, stride=2), zeros)


def stage(
    block: Callable[[int, int, int], nn.Module], inputs: int, outputs: int, count: int, stride: int
) -> Layers:
    """Returns a number of blocks, of which the first has the stride and changes the channels."""
    return [block(inputs, outputs, stride), *(block(outputs, outputs, 1) for _ in range(count - 1))]


def resnet(
    spec: ModelSpec,
    layers: Callable[[int, int, int, str], Layers],
    blocks: Sequence[int],
    growth: int = 1,
    shortcut: Callable[[int, int, int, str], nn.Module] = projection,
) -> nn.Sequential:
    """Returns a ResNet in its CIFAR form: a 3x3 stem and no pooling after it.

    Stages of widths w, 2w, 4w and so on, each but the first halving the map. With four of them it
    has the form of the paper's ResNet18 (Jiang et al. 2019, appendix). With three, and `padding` as
    shortcuts, it is that of depth 6n + 2 that was made for CIFAR (He et al. 2016, section 4.2):
    with `projection` ResNet-32 would have 0.467 million parameters and not the published 0.46.

    Args:
        spec: Its width is the first stage's, w; that of He et al. is 64, or 16 of three stages.
        layers: Returns the layers of a block: `basic_layers` or `bottleneck_layers`.
        blocks: Number of blocks of each stage.
        growth: Channels of a block over the width of its stage: 1, or 4 of bottlenecks.
        shortcut: Returns what the input of a block goes through: `projection` or `padding`.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        shape = (inputs, outputs, stride, norm)
        return nn.Sequential(Residual(layers(*shape), shortcut(*shape)), nn.ReLU(inplace=True))

    inputs, norm = spec.width, spec.norm
    stages = conv_norm_relu(norm, spec.channels, inputs)
    for number, count in enumerate(blocks):
        outputs = spec.width * 2**number * growth
        stages += stage(block, inputs, outputs, count, 2 if number else 1)
        inputs = outputs
    return nn.Sequential(*stages, *classifier(inputs, spec.classes))


def wide_resnet(spec: ModelSpec, blocks: int, factor: int, dropout: float) -> nn.Sequential:
    """Returns WRN-d-k: three stages of (d - 4) / 6 blocks, k times as wide as a ResNet's.

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
    inputs, norm = spec.width, spec.norm
    layers: Layers = [convolution(spec.channels, inputs)]
    block = partial(wide_block, norm=norm, dropout=dropout)
    for number in range(3):
        outputs = spec.width * factor * 2**number
        layers += stage(block, inputs, outputs, blocks, 2 if number else 1)
        inputs = outputs
    return nn.Sequential(*layers, *norm_relu(norm, inputs), *classifier(inputs, spec.classes))


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


def densenet(spec: ModelSpec, layers: Sequence[int]) -> nn.Sequential:
    """Returns DenseNet-BC: each layer sees the features of all layers before it in its block.

    A stem of 2k channels; blocks of layers that add k channels each; between two blocks a 1x1
    convolution to half the channels, and a mean over squares of 2x2.

    Args:
        spec: Its width is the growth rate, k.
        layers: Number of layers of each block.

    Shape:
        float [B, channels, H, W] to float [B, classes]; H and W at least 2 to the number of
        blocks less one.
    """
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
    return nn.Sequential(*stages, *norm_relu(norm, inputs), *classifier(inputs, spec.classes))


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


def googlenet(spec: ModelSpec) -> nn.Sequential:
    """Returns GoogLeNet in its CIFAR form: a 3x3 stem, normalisation, no auxiliary classifiers.

    The form of pytorch-cifar: two 3x3 convolutions stand for a 5x5 one, as one less than
    that costs; each convolution is followed by a normalisation and a ReLU.

    Args:
        spec: Its width is the stem's; 192 is Szegedy et al.'s, and all layers are in
            proportion.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """
    inputs, norm = spec.width, spec.norm
    layers = conv_norm_relu(norm, spec.channels, inputs)
    for block in INCEPTIONS:
        if block is None:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
            continue
        paths = [max(1, channels * spec.width // INCEPTION_STEM) for channels in block]
        layers.append(inception(inputs, paths, norm))
        inputs = paths[0] + paths[2] + paths[4] + paths[5]
    return nn.Sequential(*layers, *classifier(inputs, spec.classes))


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


def mobilenet_v2(spec: ModelSpec) -> nn.Sequential:
    """Returns MobileNetV2 in its CIFAR form: no halving by the stem and by the second stage.

    The form of the paper's experiments (Jiang et al. 2019, appendix: pytorch-cifar): every
    block of stride 1 has a shortcut, by a 1x1 convolution where the channels change, and ReLU
    stands for ReLU6.

    Args:
        spec: Its width is the stem's; 32 is the paper's, and all layers are in proportion.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def scaled(channels: int) -> int:
        return max(1, channels * spec.width // MOBILE_STEM)

    inputs, norm = spec.width, spec.norm
    layers = conv_norm_relu(norm, spec.channels, inputs)
    for expansion, channels, count, stride in MOBILE_STAGES:
        block = partial(inverted_residual, factor=expansion, norm=norm)
        layers += stage(block, inputs, scaled(channels), count, stride)
        inputs = scaled(channels)
    last = scaled(MOBILE_LAST)
    layers += conv_norm_relu(norm, inputs, last, 1)
    return nn.Sequential(*layers, *classifier(last, spec.classes))


def inverted_residual(inputs: int, outputs: int, stride: int, factor: int, norm: str) -> nn.Module:
    """Returns a 1x1 convolution to many channels, a 3x3 one for each, and a 1x1 one to few.

    With a stride of 1 there is a shortcut beside them.
    """
    wide = factor * inputs
    layers = [
        *conv_norm_relu(norm, inputs, wide, 1),
        convolution(wide, wide, stride=stride, groups=wide),
        *norm_relu(norm, wide),
        convolution(wide, outputs, 1),
        norm_layer(norm, outputs),
    ]
    if stride != 1:
        return nn.Sequential(*layers)
    return Residual(layers, projection(inputs, outputs, 1, norm))
