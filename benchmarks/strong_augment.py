"""RandAugment-like changes of whole batches: two of eight for each image, at one magnitude.

After Cubuk et al. 2020, whose changes of an image are drawn with equal chances. The eight here are
rotation, shears, brightness, contrast, colour, posterising and solarising; shifts are those of the
crop before it. A batch is one tensor, so every change is of all images that drew it at once.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from siftback.lab.data.augment import Augment

CHANGES, DRAWN = 8, 2


@dataclass(frozen=True)
class StrongAugment(Augment):
    """Crop, flip, cutout, then the changes.

    Attributes:
        magnitude: In (0, 1]; at 1 an image turns by 30 degrees, shears by 0.3, loses or gains 0.9
            of its brightness, contrast or colour, is left 4 bits of 8, or has all of its lighter
            half inverted.
    """

    magnitude: float = 0.5

    def __call__(self, images: Tensor, generator: Generator, fill: Tensor | None = None) -> Tensor:
        """Augments uint8[B, C, H, W]."""
        images = super().__call__(images, generator, fill)
        for _ in range(DRAWN):
            which = torch.randint(CHANGES, (len(images),), generator=generator)
            signs = torch.randint(2, (len(images),), generator=generator) * 2.0 - 1
            images = self._changed(images, which, signs * self.magnitude)
        return images

    def _changed(self, images: Tensor, which: Tensor, by: Tensor) -> Tensor:
        """One change for each image: its number, and how far, in [-1, 1]."""
        changed = images.float()
        turned = which < 3
        changed[turned] = _moved(changed[turned], which[turned], by[turned])
        for number, toward in ((3, _black), (4, _grey_mean), (5, _grey)):
            own = which == number
            base = toward(changed[own])
            changed[own] = base + (1 + 0.9 * by[own].view(-1, 1, 1, 1)) * (changed[own] - base)
        step = 2.0 ** round(4 * self.magnitude)
        changed[which == 6] = (changed[which == 6] / step).floor() * step
        light = changed[which == 7]
        changed[which == 7] = torch.where(light >= 256 - 128 * self.magnitude, 255 - light, light)
        return changed.round().clamp(0, 255).to(images.dtype)


def _moved(images: Tensor, which: Tensor, by: Tensor) -> Tensor:
    """Turned (0), or sheared along the rows (1) or the columns (2); what moves in is black."""
    angle = torch.where(which == 0, by * math.pi / 6, 0)
    rows, columns = (torch.where(which == axis, by * 0.3, 0) for axis in (1, 2))
    nothing = torch.zeros_like(by)
    upper = torch.stack((angle.cos(), rows - angle.sin(), nothing), 1)
    lower = torch.stack((columns + angle.sin(), angle.cos(), nothing), 1)
    grid = F.affine_grid(torch.stack((upper, lower), 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def _black(images: Tensor) -> Tensor:
    return torch.zeros_like(images)


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True).expand_as(images)


def _grey_mean(images: Tensor) -> Tensor:
    return _grey(images).mean((1, 2, 3), keepdim=True).expand_as(images)
