"""Small networks for quick runs: two convolutional ones, and a multilayer perceptron."""

from torch import nn

from siftback.lab.models.layers import Layers, ModelSpec, classifier, conv_norm_relu, norm_layer


class Cnn(nn.Sequential):
    """Three stages of two convolutions, widths w, 2w and 4w, then a mean over the map.

    Each convolution is followed by a normalisation and a ReLU, each stage but the last by a
    pooling that halves the map: 32x32 ends as 8x8, 28x28 as 7x7, 8x8 as 2x2.

    Args:
        spec: Its width is the first stage's, w.

    Shape:
        float [B, channels, H, W] with H and W at least 4, to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        layers: Layers = []
        inputs, width, norm = spec.channels, spec.width, spec.norm
        for outputs in (width, 2 * width, 4 * width):
            stage = [
                *conv_norm_relu(norm, inputs, outputs),
                *conv_norm_relu(norm, outputs, outputs),
            ]
            layers += [nn.Sequential(*stage), nn.MaxPool2d(2)]
            inputs = outputs
        super().__init__(*layers[:-1], *classifier(inputs, spec.classes))


class FastCnn(nn.Sequential):
    """Three stages of two convolutions, widths w, 4w and 4w, each pooled as soon as it can be.

    The shape of airbench94 (Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU"):
    a 2x2 convolution to w channels, then three times a convolution, a pooling that halves the
    map and another convolution, and last the maximum over the map. A map that is halved before
    it is normalised costs a quarter of one that is halved after. Unlike airbench94, whose first
    layer is fixed and whitens, all layers here are learned; ReLU follows them in place of GELU, and
    their weights begin as PyTorch has them, as with Kaiming's larger ones it learned more slowly.

    Args:
        spec: Its width is the first stage's, w; 64 is airbench94's.

    Shape:
        float [B, channels, H, W] with H and W at least 8, to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        width, norm = spec.width, spec.norm
        super().__init__(
            # Maps of 8x8 pixels would be gone before they are halved three times.
            nn.Conv2d(spec.channels, width, 2, padding=int(min(spec.size) < 9)),
            nn.ReLU(inplace=True),
            *pool_early(width, width, norm),
            *pool_early(width, 4 * width, norm),
            *pool_early(4 * width, 4 * width, norm),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, spec.classes),
        )


def pool_early(inputs: int, outputs: int, norm: str) -> Layers:
    """Returns a stage of two convolutions, pooled after the first."""
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        norm_layer(norm, outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        norm_layer(norm, outputs),
        nn.ReLU(inplace=True),
    ]


class Mlp(nn.Sequential):
    """Two hidden layers of w units with ReLU, on all pixels at once.

    Args:
        spec: Its width is w; its size is the only one that the images may have.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        height, width = spec.size
        super().__init__(
            nn.Flatten(),
            nn.Linear(spec.channels * height * width, spec.width),
            nn.ReLU(),
            nn.Linear(spec.width, spec.width),
            nn.ReLU(),
            nn.Linear(spec.width, spec.classes),
        )
