"""Densely connected networks with bottlenecks and compression (Huang et al. 2017)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from siftback.lab.models.layers import (
    Layers,
    ModelSpec,
    classifier,
    convolution,
    norm_layer,
    norm_relu_conv,
)


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
                stages.append(_Layer(inputs, growth, norm))
                inputs += growth
        super().__init__(
            *stages,
            norm_layer(norm, inputs),
            nn.ReLU(inplace=True),
            *classifier(inputs, spec.classes),
        )


class _Layer(nn.Module):
    """A 1x1 convolution to 4k channels and a 3x3 one to k, beside the input."""

    def __init__(self, inputs: int, growth: int, norm: str) -> None:
        super().__init__()
        self.added = nn.Sequential(
            *norm_relu_conv(norm, inputs, 4 * growth, 1), *norm_relu_conv(norm, 4 * growth, growth)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Returns the features [B, inputs + growth, H, W]."""
        return torch.cat((features, self.added(features)), 1)
