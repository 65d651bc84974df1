"""Random numbers as a function of a seed and an epoch."""

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """Uses of random numbers; the streams are independent of each other."""

    ORDER = 0
    DRAW = 1
    SELECTION = 2


def generator_of(seed: int, epoch: int, stream: Stream) -> torch.Generator:
    """Returns a CPU generator that depends on these three arguments only.

    Args:
        seed: At least 0.
        epoch: From 0.
        stream: Use of the random numbers.

    >>> first = torch.randperm(4, generator=generator_of(0, epoch=1, stream=Stream.ORDER))
    >>> torch.equal(first, torch.randperm(4, generator=generator_of(0, 1, Stream.ORDER)))
    True
    """
    return generator_from(seed, epoch, stream)


def generator_from(*numbers: int) -> torch.Generator:
    """Returns a CPU generator that depends on some numbers only, each at least 0."""
    # SeedSequence spreads neighbouring numbers far apart, where adding them would collide.
    low, high = np.random.SeedSequence(numbers).generate_state(2)
    return torch.Generator().manual_seed((int(high) << 32 | int(low)) & (2**63 - 1))
