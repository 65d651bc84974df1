"""ResNet-18 in its CIFAR form: a 3x3 stem and no pooling after it (He et al. 2016)."""

from torch import Tensor, nn

from siftback.lab.models.norm import convolution, norm_layer


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: ``relu(f(x) + shortcut(x))``.

    The shortcut is the identity, or a strided 1x1 convolution where the shape changes.

    Shape:
        float [B, inputs, H, W] to float [B, outputs, ceil(H / stride), ceil(W / stride)].
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(inputs, outputs, stride=stride),
            norm_layer(norm, outputs),
            nn.ReLU(inplace=True),
            convolution(outputs, outputs),
            norm_layer(norm, outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.extend(
                [convolution(inputs, outputs, 1, stride), norm_layer(norm, outputs)]
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        """The block's features."""
        merged: Tensor = self.relu(self.residual(features) + self.shortcut(features))
        return merged


class ResNet18(nn.Sequential):
    """ResNet-18 for small images: stages of two blocks with widths w, 2w, 4w and 8w.

    Args:
        width: Channels of the first stage, w; 64 is the paper's.
        classes: Number of logits.
        channels: Channels of the images.
        norm: ``"batch"`` or ``"group"``.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, width: int, classes: int, channels: int, norm: str = "batch") -> None:
        super().__init__(
            convolution(channels, width),
            norm_layer(norm, width),
            nn.ReLU(inplace=True),
            _stage(width, width, 1, norm),
            _stage(width, 2 * width, 2, norm),
            _stage(2 * width, 4 * width, 2, norm),
            _stage(4 * width, 8 * width, 2, norm),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, classes),
        )


def _stage(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(inputs, outputs, stride, norm), BasicBlock(outputs, outputs, 1, norm)
    )
