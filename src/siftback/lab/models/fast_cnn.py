"""A convolutional network that learns much in little time."""

from torch import nn

from siftback.lab.models.model_spec import ModelSpec
from siftback.lab.models.norm import Layers, norm_layer


class FastCnn(nn.Sequential):
    """Three stages of two convolutions, widths w, 4w and 4w, each pooled as soon as it can be.

    The shape of airbench94 (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU"):
    a 2x2 convolution to w channels, then three times a convolution, a pooling that halves the
    map and another convolution, and last the maximum over the map. A map that is halved before
    it is normalised costs a quarter of one that is halved after. Unlike airbench94, whose first
    layer is fixed and whitens, all layers here are learned; ReLU follows them in place of GELU, and
    their weights begin as PyTorch has them, as with Kaiming's larger ones it learned more slowly.

    Args:
        spec: Its width is that of the first stage, w; 64 is airbench94's.

    Shape:
        float [B, channels, H, W] with H and W at least 8, to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        width, norm = spec.width, spec.norm
        super().__init__(
            # Maps of 8x8 pixels would be gone before they are halved three times.
            nn.Conv2d(spec.channels, width, 2, padding=int(min(spec.size) < 9)),
            nn.ReLU(inplace=True),
            *_stage(width, width, norm),
            *_stage(width, 4 * width, norm),
            *_stage(4 * width, 4 * width, norm),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, spec.classes),
        )


def _stage(inputs: int, outputs: int, norm: str) -> Layers:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        norm_layer(norm, outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        norm_layer(norm, outputs),
        nn.ReLU(inplace=True),
    ]
