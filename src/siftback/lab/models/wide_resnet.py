"""Wide residual networks (Zagoruyko & Komodakis 2016)."""

from torch import Tensor, nn

from siftback.lab.models.model_spec import ModelSpec
from siftback.lab.models.norm import classified, convolution, norm_layer


class WideResNet(nn.Sequential):
    """WRN-d-k: three stages of (d - 4) / 6 blocks, k times as wide as a ResNet's.

    Normalisation and ReLU come before each convolution. A stem of w channels is followed by
    stages of k w, 2 k w and 4 k w, of which the second and the third halve the map.

    Args:
        spec: Its width is that of the stem, w; 16 is the paper's.
        blocks: Of each stage, n = (d - 4) / 6.
        factor: k.
        dropout: Chance of a feature to be dropped between a block's convolutions. Jiang et al.
            2019 train as DeVries & Taylor 2017 do, whose code has 0.3 for CIFAR, 0.4 for SVHN.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec, blocks: int, factor: int, dropout: float) -> None:
        inputs, norm = spec.width, spec.norm
        layers: list[nn.Module] = [convolution(spec.channels, inputs)]
        for number in range(3):
            outputs = spec.width * factor * 2**number
            for place in range(blocks):
                stride = 2 if number and not place else 1
                layers.append(_Block(inputs, outputs, stride, norm, dropout))
                inputs = outputs
        super().__init__(
            *layers,
            norm_layer(norm, inputs),
            nn.ReLU(inplace=True),
            *classified(inputs, spec.classes),
        )


class _Block(nn.Module):
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
        """The block's features."""
        activated = self.activation(features)
        shortcut = features if self.shortcut is None else self.shortcut(activated)
        merged: Tensor = self.residual(activated) + shortcut
        return merged
