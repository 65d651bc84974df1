"""Residual networks for small images (He et al. 2016): those of ImageNet, and those of CIFAR."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.models.model_spec import ModelSpec
from siftback.lab.models.norm import classified, convolution, convolved, norm_layer


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: ``relu(f(x) + shortcut(x))``.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the first convolution.
        norm: ``"batch"`` or ``"group"``.
        shortcut: What the input becomes; by default the identity, or where the shape changes a
            strided 1x1 convolution (option B of He et al. 2016).

    Shape:
        float [B, inputs, H, W] to float [B, outputs, ceil(H / stride), ceil(W / stride)].
    """

    growth = 1

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: str, shortcut: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolved(norm, inputs, outputs, stride=stride),
            convolution(outputs, outputs),
            norm_layer(norm, outputs),
        )
        if shortcut is None:
            shortcut = _projection(inputs, outputs, stride, norm)
        self.shortcut = shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        """The block's features."""
        merged: Tensor = self.relu(self.residual(features) + self.shortcut(features))
        return merged


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution to four times the channels, around a shortcut.

    Shape:
        float [B, inputs, H, W] to float [B, 4 * outputs, ceil(H / stride), ceil(W / stride)].
    """

    growth = 4

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        wide = self.growth * outputs
        self.residual = nn.Sequential(
            *convolved(norm, inputs, outputs, 1),
            *convolved(norm, outputs, outputs, stride=stride),
            convolution(outputs, wide, 1),
            norm_layer(norm, wide),
        )
        self.shortcut = _projection(inputs, wide, stride, norm)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        """The block's features."""
        merged: Tensor = self.relu(self.residual(features) + self.shortcut(features))
        return merged


class Padding(nn.Module):
    """Every stride-th pixel, and channels of zeros after those that are there.

    The shortcut without parameters, option A of He et al. 2016, section 4.2.

    Args:
        channels: How many channels of zeros.
        stride: Distance between the pixels.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, features: Tensor) -> Tensor:
        """The features [B, C + channels, ceil(H / stride), ceil(W / stride)]."""
        smaller = features[:, :, :: self.stride, :: self.stride]
        return F.pad(smaller, (0, 0, 0, 0, 0, self.channels))


class ResNet(nn.Sequential):
    """ResNet-18, -34 or -50 in its CIFAR form: a 3x3 stem and no pooling after it.

    Four stages of widths w, 2w, 4w and 8w, each but the first halving the map. The form that the
    paper's ResNet18 has (Jiang et al. 2019, appendix).

    Args:
        spec: Its width is that of the first stage, w; 64 is He et al.'s.
        block: What the stages are made of.
        blocks: How many each stage has.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(
        self, spec: ModelSpec, block: type[BasicBlock] | type[Bottleneck], blocks: Sequence[int]
    ) -> None:
        inputs, norm = spec.width, spec.norm
        layers = convolved(norm, spec.channels, inputs)
        for number, count in enumerate(blocks):
            outputs = spec.width * 2**number
            layers.append(_stage(block, count, inputs, outputs, 2 if number else 1, norm))
            inputs = outputs * block.growth
        super().__init__(
            *layers,
            *classified(inputs, spec.classes),
        )


class SmallResNet(nn.Sequential):
    """The ResNets made for CIFAR, of depth 6n + 2 (He et al. 2016, section 4.2).

    Three stages of n blocks of widths w, 2w and 4w, with shortcuts that pad by zeros (option A)
    as in that section; with 1x1 convolutions in their place, ResNet-32 would have 0.467 million
    parameters and not the published 0.46.

    Args:
        spec: Its width is that of the first stage, w; 16 is He et al.'s.
        blocks: n.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec, blocks: int) -> None:
        inputs, norm = spec.width, spec.norm
        layers = convolved(norm, spec.channels, inputs)
        for outputs in (inputs, 2 * inputs, 4 * inputs):
            for _ in range(blocks):
                wider = outputs != inputs
                shortcut = Padding(outputs - inputs, 2) if wider else nn.Identity()
                layers.append(BasicBlock(inputs, outputs, 2 if wider else 1, norm, shortcut))
                inputs = outputs
        super().__init__(
            *layers,
            *classified(inputs, spec.classes),
        )


def _projection(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(convolution(inputs, outputs, 1, stride), norm_layer(norm, outputs))


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    count: int,
    inputs: int,
    outputs: int,
    stride: int,
    norm: str,
) -> nn.Sequential:
    wide = outputs * block.growth
    rest = (block(wide, outputs, 1, norm) for _ in range(count - 1))
    return nn.Sequential(block(inputs, outputs, stride, norm), *rest)
