"""A small convolutional network for runs that must end soon."""

from torch import nn

from siftback.lab.models.model_spec import ModelSpec
from siftback.lab.models.norm import classified, convolved


class Cnn(nn.Sequential):
    """Three stages of two convolutions, widths w, 2w and 4w, then a mean over the map.

    Each convolution is followed by a normalisation and a ReLU, each stage but the last by a
    pooling that halves the map: 32x32 ends as 8x8, 28x28 as 7x7, 8x8 as 2x2.

    Args:
        spec: Its width is that of the first stage, w.

    Shape:
        float [B, channels, H, W] with H and W at least 4, to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        width, norm = spec.width, spec.norm
        super().__init__(
            _stage(spec.channels, width, norm),
            nn.MaxPool2d(2),
            _stage(width, 2 * width, norm),
            nn.MaxPool2d(2),
            _stage(2 * width, 4 * width, norm),
            *classified(4 * width, spec.classes),
        )


def _stage(inputs: int, outputs: int, norm: str) -> nn.Sequential:
    return nn.Sequential(*convolved(norm, inputs, outputs), *convolved(norm, outputs, outputs))
