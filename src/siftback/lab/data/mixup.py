"""Mixup: each image with a part of another one."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_STREAM = 1  # keeps these random numbers apart from those of data order, which have the same seed


class Mixture(NamedTuple):
    """A mixed batch of B examples.

    Attributes:
        images: float[B, ...], ``share * image + (1 - share) * image of the partner``.
        partners: int64[B], the row of each one's partner, a permutation.
        share: What is left of an image, in [0, 1].
    """

    images: Tensor
    partners: Tensor
    share: float


def mix(images: Tensor, alpha: float, seed: int, batch: int) -> Mixture:
    """Mixes a batch (Zhang et al. 2018), one share of ``Beta(alpha, alpha)`` for all of it.

    Args:
        images: float[B, ...].
        alpha: Above 0; the larger, the nearer the share to a half.
        seed: Decides with ``batch`` alone who is mixed, and how much.
        batch: Its number.
    """
    random = np.random.default_rng([seed, batch, _STREAM])
    share = float(random.beta(alpha, alpha))
    partners = torch.from_numpy(random.permutation(len(images))).to(images.device)
    return Mixture(torch.lerp(images, images[partners], 1 - share), partners, share)
