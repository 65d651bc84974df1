"""A multilayer perceptron."""

from torch import nn

from siftback.lab.models.form import Form


class Mlp(nn.Sequential):
    """Two hidden layers of w units with ReLU, on all pixels at once.

    Args:
        form: Its width is w; its size is the only one that the images may have.

    Shape:
        float [B, channels, H, W] to float [B, classes].
    """

    def __init__(self, form: Form) -> None:
        height, width = form.size
        super().__init__(
            nn.Flatten(),
            nn.Linear(form.channels * height * width, form.width),
            nn.ReLU(),
            nn.Linear(form.width, form.width),
            nn.ReLU(),
            nn.Linear(form.width, form.classes),
        )
