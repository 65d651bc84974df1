"""A network of sines, from the coordinates of a pixel to its colours."""

import math

import torch
from torch import Tensor, nn

from siftback.lab.models.layers import ModelSpec

SINE_LAYERS = 3
FREQUENCY = 30.0  # omega_0 of Sitzmann et al. 2020


class SineLayer(nn.Linear):
    """A layer ``sin(30 (W x + b))`` (Sitzmann et al. 2020, section 3.2).

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        bound: Of new weights, which are uniform in ``[-bound, bound]``.

    Shape:
        float [B, inputs] to float [B, outputs].
    """

    def __init__(self, inputs: int, outputs: int, bound: float) -> None:
        super().__init__(inputs, outputs)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the sines."""
        return torch.sin(FREQUENCY * super().forward(features))


class Siren(nn.Sequential):
    """Three layers of w sines and a linear one (SIREN, Sitzmann et al. 2020).

    Weights of the first layer, of n inputs, begin uniform in ``[-1 / n, 1 / n]``, those of the
    others in ``[-sqrt(6 / n) / 30, sqrt(6 / n) / 30]``, so that sines of sines are spread alike in
    every layer (section 3.2, and theorem 1.8 of the supplement). Biases are those of `nn.Linear`,
    as in the authors' code.

    Args:
        spec: Its width is w, its channels the coordinates, its classes the colours.

    Shape:
        float [B, channels], in [-1, 1], to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        bound = math.sqrt(6 / spec.width) / FREQUENCY
        hidden = [SineLayer(spec.width, spec.width, bound) for _ in range(SINE_LAYERS - 1)]
        last = nn.Linear(spec.width, spec.classes)
        nn.init.uniform_(last.weight, -bound, bound)
        super().__init__(SineLayer(spec.channels, spec.width, 1 / spec.channels), *hidden, last)
