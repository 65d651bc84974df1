"""A small convolutional network for runs that must end soon."""

from torch import nn

from siftback.lab.models.norm import convolution, norm_layer


class Cnn(nn.Sequential):
    """Three stages of two convolutions, widths w, 2w and 4w, then a mean over the map.

    Each convolution is followed by a normalisation and a ReLU, each stage but the last by a
    pooling that halves the map: 32x32 ends as 8x8, 28x28 as 7x7, 8x8 as 2x2.

    Args:
        width: Channels of the first stage, w.
        classes: Number of logits.
        channels: Channels of the images.
        norm: ``"batch"`` or ``"group"``.

    Shape:
        float [B, channels, H, W] with H and W at least 4, to float [B, classes].
    """

    def __init__(self, width: int, classes: int, channels: int, norm: str = "batch") -> None:
        super().__init__(
            _stage(channels, width, norm),
            nn.MaxPool2d(2),
            _stage(width, 2 * width, norm),
            nn.MaxPool2d(2),
            _stage(2 * width, 4 * width, norm),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, classes),
        )


def _stage(inputs: int, outputs: int, norm: str) -> nn.Sequential:
    return nn.Sequential(
        convolution(inputs, outputs),
        norm_layer(norm, outputs),
        nn.ReLU(inplace=True),
        convolution(outputs, outputs),
        norm_layer(norm, outputs),
        nn.ReLU(inplace=True),
    )
