"""Random crops, flips, cutouts and mixup of whole batches.

Crops, flips and cutouts take images [B, C, H, W], uint8 or floating, of any memory format, and
return new ones of the same shape and type. They are drawn from the caller's generator, on the CPU
whatever the images' device, so a seed means the same pictures everywhere. No loop is over examples.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

# Keeps mixup's random numbers apart from those of the data order, which have the same seed.
MIXUP_STREAM = 1


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the processor on a device, a GPU without waiting for it."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def random_crop(images: Tensor, padding: int, generator: Generator) -> Tensor:
    """Shifts each image by up to ``padding`` pixels a side; what moves in is black (0).

    As padding by ``padding`` zeros all round and cropping H×W at a uniform place, one of
    (2 * padding + 1)^2.

    Args:
        images: [B, C, H, W].
        padding: Pixels to pad on each side, at least 0.
        generator: A CPU generator.

    >>> images = torch.ones(4, 1, 3, 3, dtype=torch.uint8)
    >>> random_crop(images, 1, torch.Generator().manual_seed(0)).sum((1, 2, 3)).tolist()
    [6, 4, 6, 6]
    """
    batch, _, height, width = images.shape
    places = torch.randint(2 * padding + 1, (2, batch), generator=generator)
    top, left = on_device(places, images.device)
    # All the crops of an image are views of its padded copy; indexing them copies one each.
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(batch, device=images.device), :, top, left]


def random_flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirrors each image left to right with probability 1/2.

    Args:
        images: [B, C, H, W].
        generator: A CPU generator.

    >>> images = torch.tensor([0, 1]).repeat(4, 1).reshape(4, 1, 1, 2)
    >>> random_flip(images, torch.Generator().manual_seed(0)).flatten(1).tolist()
    [[0, 1], [1, 0], [1, 0], [0, 1]]
    """
    flipped = torch.randint(2, (len(images), 1, 1, 1), generator=generator, dtype=torch.bool)
    return torch.where(on_device(flipped, images.device), images.flip(-1), images)


def cutout(images: Tensor, length: int, generator: Generator, fill: Tensor | None = None) -> Tensor:
    """Blanks one square in each image, clipped at the border (DeVries & Taylor 2017).

    The square's centre (y, x) is a uniform pixel; it covers the rows from ``y - length // 2`` up
    to but not including ``y - length // 2 + length`` that exist, and the columns likewise.

    Args:
        images: [B, C, H, W].
        length: Side of the square in pixels, at least 0.
        generator: A CPU generator.
        fill: Values of the square, [C], in the images' units; 0 where None.

    >>> images = torch.ones(4, 1, 3, 3)
    >>> cutout(images, 2, torch.Generator().manual_seed(0)).sum((1, 2, 3)).tolist()
    [5.0, 8.0, 5.0, 7.0]
    """
    batch, channels, height, width = images.shape
    rows = _cover(height, length, batch, generator).view(batch, height, 1)
    columns = _cover(width, length, batch, generator).view(batch, 1, width)
    square = on_device(rows & columns, images.device)
    cut = images.clone()
    values = [0] * channels if fill is None else fill.tolist()
    # A channel at a time: twice as fast as one mask broadcast over the channels.
    for channel, value in zip(cut.unbind(1), values, strict=True):
        channel.masked_fill_(square, value)
    return cut


def _cover(size: int, length: int, batch: int, generator: Generator) -> Tensor:
    """Draws a square for each image, and marks the pixels that it covers: bool [B, size]."""
    start = torch.randint(size, (batch, 1), generator=generator) - length // 2
    pixel = torch.arange(size)
    return (pixel >= start) & (pixel < start + length)


@dataclass(frozen=True)
class Augment:
    """Crop, flip, then cutout, each where asked.

    Attributes:
        padding: For ``random_crop``; 0 for none.
        flip: Whether to ``random_flip``.
        cutout: For ``cutout``, its square's side; 0 for none.

    >>> Augment()(torch.ones(2, 1, 3, 3), torch.Generator()).sum().item()
    18.0
    """

    padding: int = 0
    flip: bool = False
    cutout: int = 0

    def __call__(self, images: Tensor, generator: Generator, fill: Tensor | None = None) -> Tensor:
        """Augments [B, C, H, W]; ``fill`` [C] is what ``cutout`` leaves, 0 where None."""
        if self.padding:
            images = random_crop(images, self.padding, generator)
        if self.flip:
            images = random_flip(images, generator)
        if self.cutout:
            images = cutout(images, self.cutout, generator, fill)
        return images


def mix(images: Tensor, alpha: float, seed: int, batch: int) -> tuple[Tensor, Tensor, float]:
    """Mixes a batch (Zhang et al. 2018), one share of ``Beta(alpha, alpha)`` for all of it.

    Args:
        images: float[B, ...].
        alpha: Above 0; the larger, the nearer the share to a half.
        seed: Decides with ``batch`` alone who is mixed, and how much.
        batch: Its number.

    Returns:
        The mixed images, ``share * image + (1 - share) * image of the partner``, float[B, ...]; the
        row of each one's partner, a permutation, int64[B]; and the share of an image that is left.
    """
    random = np.random.default_rng([seed, batch, MIXUP_STREAM])
    share = float(random.beta(alpha, alpha))
    partners = on_device(torch.from_numpy(random.permutation(len(images))), images.device)
    return torch.lerp(images, images[partners], 1 - share), partners, share
