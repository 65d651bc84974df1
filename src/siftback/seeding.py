"""Random numbers as a function of a seed and an epoch."""

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """Uses of random numbers; the streams are independent of each other."""

    ORDER = 0
    DRAW = 1
    SELECTION = 2


def generator_from(*numbers: int) -> torch.Generator:
    """Returns a CPU generator that depends on some numbers only.

    Args:
        numbers: Each at least 0; of an epoch its seed, its number and the `Stream`, then others.

    >>> first = torch.randperm(4, generator=generator_from(0, 1, Stream.ORDER))
    >>> torch.equal(first, torch.randperm(4, generator=generator_from(0, 1, Stream.ORDER)))
    True
    """
    # SeedSequence spreads neighbouring numbers far apart, where adding them would collide.
    low, high = np.random.SeedSequence(numbers).generate_state(2)
    return torch.Generator().manual_seed((int(high) << 32 | int(low)) & (2**63 - 1))
