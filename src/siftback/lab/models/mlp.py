"""A multilayer perceptron."""

from torch import nn

from siftback.lab.models.model_spec import ModelSpec


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
