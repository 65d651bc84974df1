"""Densely connected networks with bottlenecks and compression (Huang et al. 2017)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from siftback.lab.models.model_spec import ModelSpec
from siftback.lab.models.norm import activated, classified, convolution, norm_layer


class DenseNet(nn.Sequential):
    """DenseNet-BC: every layer sees what all layers before it in its block made.

    A stem of 2k channels; blocks of layers that add k channels each; between two blocks a 1x1
    convolution to half the channels, and a mean over squares of 2x2.

    Args:
        spec: Its width is the growth rate, k.
        layers: How many each block has.

    Shape:
        float [B, channels, H, W] to float [B, classes]; H and W at least 2 to the number of
        blocks less one.
    """

    def __init__(self, spec: ModelSpec, layers: Sequence[int]) -> None:
        growth, norm = spec.width, spec.norm
        inputs = 2 * growth
        parts: list[nn.Module] = [convolution(spec.channels, inputs)]
        for number, count in enumerate(layers):
            if number:
                parts += [*activated(norm, inputs, inputs // 2, 1), nn.AvgPool2d(2)]
                inputs //= 2
            for _ in range(count):
                parts.append(_Layer(inputs, growth, norm))
                inputs += growth
        super().__init__(
            *parts,
            norm_layer(norm, inputs),
            nn.ReLU(inplace=True),
            *classified(inputs, spec.classes),
        )


class _Layer(nn.Module):
    """A 1x1 convolution to 4k channels and a 3x3 one to k, beside what came in."""

    def __init__(self, inputs: int, growth: int, norm: str) -> None:
        super().__init__()
        self.added = nn.Sequential(
            *activated(norm, inputs, 4 * growth, 1), *activated(norm, 4 * growth, growth)
        )

    def forward(self, features: Tensor) -> Tensor:
        """The features [B, inputs + growth, H, W]."""
        return torch.cat((features, self.added(features)), 1)
