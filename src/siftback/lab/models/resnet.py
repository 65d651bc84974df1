"""Residual networks for small images (He et al. 2016; Zagoruyko & Komodakis 2016)."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.models.layers import (
    Layers,
    ModelSpec,
    classifier,
    conv_norm_relu,
    convolution,
    norm_layer,
)


class Residual(nn.Module):
    """A block of layers beside a shortcut: ``relu(f(x) + shortcut(x))``.

    Args:
        layers: The layers of f.
        shortcut: The module that the input goes through.
    """

    def __init__(self, layers: Layers, shortcut: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(*layers)
        self.shortcut = shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the block's features."""
        merged: Tensor = self.relu(self.residual(features) + self.shortcut(features))
        return merged


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


class Padding(nn.Module):
    """Every stride-th pixel, and channels of zeros after the input's.

    The shortcut without parameters, option A of He et al. 2016, section 4.2.

    Args:
        channels: Number of channels of zeros.
        stride: Distance between the pixels.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, features: Tensor) -> Tensor:
        """Returns the features [B, C + channels, ceil(H / stride), ceil(W / stride)]."""
        smaller = features[:, :, :: self.stride, :: self.stride]
        return F.pad(smaller, (0, 0, 0, 0, 0, self.channels))


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
                stride = 2 if number and not block else 1
                shape = (inputs, outputs, stride, norm)
                stage.append(Residual(layers(*shape), projection(*shape)))
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
                shortcut = Padding(outputs - inputs, 2) if wider else nn.Identity()
                block = basic_layers(inputs, outputs, 2 if wider else 1, norm)
                layers.append(Residual(block, shortcut))
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
                layers.append(WideBlock(inputs, outputs, stride, norm, dropout))
                inputs = outputs
        super().__init__(
            *layers,
            norm_layer(norm, inputs),
            nn.ReLU(inplace=True),
            *classifier(inputs, spec.classes),
        )


class WideBlock(nn.Module):
    """``f(a(x)) + shortcut``: the identity, or a 1x1 convolution of a(x) where the shape changes.

    ``a`` is the first normalisation and ReLU.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.activation = nn.Sequential(norm_layer(norm, inputs), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            convolution(inputs, outputs, stride=stride),
            norm_layer(norm, outputs),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            convolution(outputs, outputs),
        )
        changes = stride != 1 or inputs != outputs
        self.shortcut = convolution(inputs, outputs, 1, stride) if changes else None

    def forward(self, features: Tensor) -> Tensor:
        """Returns the block's features."""
        activated = self.activation(features)
        shortcut = features if self.shortcut is None else self.shortcut(activated)
        merged: Tensor = self.residual(activated) + shortcut
        return merged
