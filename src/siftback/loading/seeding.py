"""Random numbers as a function of a seed and an epoch."""

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """What random numbers are for: those of different uses are independent."""

    ORDER = 0
    DRAW = 1
    SELECTION = 2


def generator_of(seed: int, epoch: int, stream: Stream) -> torch.Generator:
    """A generator on the CPU that only these three decide.

    Args:
        seed: At least 0.
        epoch: From 0.
        stream: What it is for.

    >>> first = torch.randperm(4, generator=generator_of(0, epoch=1, stream=Stream.ORDER))
    >>> torch.equal(first, torch.randperm(4, generator=generator_of(0, 1, Stream.ORDER)))
    True
    """
    # SeedSequence spreads neighbouring numbers far apart, where adding them would collide.
    low, high = np.random.SeedSequence([seed, epoch, stream]).generate_state(2)
    return torch.Generator().manual_seed((int(high) << 32 | int(low)) & (2**63 - 1))
