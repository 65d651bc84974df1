"""GoogLeNet for small images (Szegedy et al. 2015)."""

import torch
from torch import Tensor, nn

from siftback.lab.models.layers import ModelSpec, classifier, conv_norm_relu

# Channels of a block's paths: 1x1; 3x3, reduced and made; 5x5, reduced and made; pooled.
# Szegedy et al. 2015, table 1; None is a pooling between stages.
BLOCKS = (
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
STEM = 192


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
        for block in BLOCKS:
            if block is None:
                layers.append(nn.MaxPool2d(3, stride=2, padding=1))
                continue
            paths = [max(1, channels * spec.width // STEM) for channels in block]
            layers.append(_Inception(inputs, paths, norm))
            inputs = paths[0] + paths[2] + paths[4] + paths[5]
        super().__init__(*layers, *classifier(inputs, spec.classes))


class _Inception(nn.Module):
    """Four paths beside each other, of which each sees another distance."""

    def __init__(self, inputs: int, paths: list[int], norm: str) -> None:
        super().__init__()
        pointwise, reduced3, three, reduced5, five, pooled = paths
        self.paths = nn.ModuleList(
            nn.Sequential(*layers)
            for layers in (
                conv_norm_relu(norm, inputs, pointwise, 1),
                conv_norm_relu(norm, inputs, reduced3, 1) + conv_norm_relu(norm, reduced3, three),
                conv_norm_relu(norm, inputs, reduced5, 1)
                + conv_norm_relu(norm, reduced5, five)
                + conv_norm_relu(norm, five, five),
                [nn.MaxPool2d(3, stride=1, padding=1), *conv_norm_relu(norm, inputs, pooled, 1)],
            )
        )

    def forward(self, features: Tensor) -> Tensor:
        """Returns the paths' features, one path's channels after the other's."""
        return torch.cat([path(features) for path in self.paths], 1)
