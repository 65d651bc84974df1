"""Shuffled orders of any number of examples, a function of seed and epoch, in constant memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

from siftback.seeding import Stream, generator_from

WHOLE = 1 << 24
"""Up to how many examples an order is a permutation in memory."""

_CHUNK = 1 << 15  # that stays in a cache
_ROUNDS = 6


def shuffled(examples: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """Yields a random permutation of ``range(examples)``, a function of seed and epoch.

    Args:
        examples: N.
        seed: At least 0.
        epoch: From 0.

    Yields:
        int64[n], the next examples; see `permutation`.

    >>> sorted(torch.cat(list(shuffled(5, seed=0, epoch=1))).tolist())
    [0, 1, 2, 3, 4]
    """
    yield from permutation(examples, generator_from(seed, epoch, Stream.ORDER))


def permutation(examples: int, generator: torch.Generator, whole: int = WHOLE) -> Iterator[Tensor]:
    """Yields a random permutation of ``range(examples)``, in pieces.

    Up to ``whole`` examples it is ``torch.randperm``, each permutation with the same probability.
    Above, a Feistel network permutes the numbers of b bits, 2^b the next power of two, and those
    that are not examples are left out (a format-preserving permutation; Black & Rogaway 2002,
    *Ciphers with Arbitrary Finite Domains*): it takes a few megabytes, for any number of examples.

    Args:
        examples: N.
        generator: On the CPU.
        whole: Up to how many examples the permutation is held in memory.

    Yields:
        int64[n], the next examples.

    >>> torch.cat(list(permutation(5, torch.Generator().manual_seed(0)))).sort().values
    tensor([0, 1, 2, 3, 4])
    """
    if examples <= whole:
        yield torch.randperm(examples, generator=generator)
        return
    bits = (examples - 1).bit_length()
    keys = torch.randint(1 << 62, (_ROUNDS,), generator=generator).tolist()
    for start in range(0, 1 << bits, _CHUNK):
        permuted = _permuted(torch.arange(start, min(start + _CHUNK, 1 << bits)), bits, keys)
        yield permuted[permuted < examples]


def _permuted(numbers: Tensor, bits: int, keys: list[int]) -> Tensor:
    """Permutes the numbers of some bits: int64[n] to int64[n].

    Each round swaps the halves, of which one may be a bit longer, after mixing one into the other:
    whatever the mixing is, the round can be undone, and so never maps two numbers to one.
    """
    low_bits = bits // 2
    high_bits = bits - low_bits
    low, high = numbers & ((1 << low_bits) - 1), numbers >> low_bits
    for key in keys:
        low, high = high ^ (_mixed(low, key) & ((1 << high_bits) - 1)), low
        low_bits, high_bits = high_bits, low_bits
    return high << low_bits | low


def _mixed(numbers: Tensor, key: int) -> Tensor:
    """Hashes each number: the finalizer of SplitMix64 (Steele et al. 2014), with a key."""
    mixed = numbers + key
    mixed = (mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9, as int64
    mixed = (mixed ^ (mixed >> 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return mixed ^ (mixed >> 31)
