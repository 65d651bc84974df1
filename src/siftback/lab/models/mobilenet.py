"""MobileNetV2 for small images (Sandler et al. 2018)."""

from torch import Tensor, nn

from siftback.lab.models.layers import (
    ModelSpec,
    classifier,
    conv_norm_relu,
    convolution,
    norm_layer,
)
from siftback.lab.models.resnet import projection

# Expansion, channels, blocks and stride of each stage: Sandler et al. 2018, table 2, with a
# stride of 1 where their images of 224 pixels are halved a second time.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, LAST = 32, 1280


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
            return max(1, channels * spec.width // STEM)

        inputs, norm = spec.width, spec.norm
        layers = conv_norm_relu(norm, spec.channels, inputs)
        for expansion, channels, count, first in STAGES:
            outputs = scaled(channels)
            for block in range(count):
                stride = 1 if block else first
                layers.append(_InvertedResidual(inputs, outputs, expansion, stride, norm))
                inputs = outputs
        super().__init__(
            *layers,
            *conv_norm_relu(norm, inputs, scaled(LAST), 1),
            *classifier(scaled(LAST), spec.classes),
        )


class _InvertedResidual(nn.Module):
    """A 1x1 convolution to many channels, a 3x3 one for each, and a 1x1 one to few."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, norm: str) -> None:
        super().__init__()
        wide = expansion * inputs
        self.residual = nn.Sequential(
            *conv_norm_relu(norm, inputs, wide, 1),
            convolution(wide, wide, stride=stride, groups=wide),
            norm_layer(norm, wide),
            nn.ReLU(inplace=True),
            convolution(wide, outputs, 1),
            norm_layer(norm, outputs),
        )
        self.shortcut = projection(inputs, outputs, 1, norm) if stride == 1 else None

    def forward(self, features: Tensor) -> Tensor:
        """Returns the block's features."""
        residual: Tensor = self.residual(features)
        return residual if self.shortcut is None else residual + self.shortcut(features)
