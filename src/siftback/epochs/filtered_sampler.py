"""The order of a sampler of the user's own, without what a draw leaves out of it."""

import itertools
import operator
from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Sampler

from siftback.epochs.epoch_draw import EpochDraw
from siftback.errors import BatchError

TORCH = "torch.", "torchdata."
"""What the modules of samplers begin with whose order is known."""


class FilteredSampler(Sampler[int]):
    """The order of a sampler of the user's own, without what a draw leaves out of it.

    See `candidates_of` for what the draw is among.

    Args:
        sampler: Gives dataset indices.
        draw: Says what is left out, once it knows what the sampler gives in an epoch.
    """

    def __init__(self, sampler: Iterable[int], draw: EpochDraw) -> None:
        self.sampler, self._draw = sampler, draw
        self._is_weighted = repeats(sampler) or hasattr(sampler, "weights")
        self._is_steady = gives_each_once(sampler)
        examples = "" if self.whole is None else f" of {self.whole} examples"
        draw.sampler = f"{type(sampler).__name__}{examples}"
        if hasattr(sampler, "set_epoch"):
            self.set_epoch = sampler.set_epoch

    @property
    def whole(self) -> int | None:
        """How many examples the sampler gives in each epoch, where it gives each of them once.

        None where that is not known before an epoch.
        """
        return len(cast(Sized, self.sampler)) if self._is_steady else None

    def __iter__(self) -> Iterator[int]:
        """One epoch.

        Raises:
            BatchError: If the sampler gives what is no index of an example, or none of those that
                it gives was drawn.
        """
        if not self._draw.draws:
            return iter(self.sampler)
        if not hasattr(self.sampler, "__len__"):  # it may never end
            self._draw.draw_from(None)
            return self._drawn()
        keys = list(self.sampler)
        order = self._indices(keys)
        self._draw.draw_from(order, is_weighted=self._is_weighted)
        drawn = self._draw.weights[order] != 0
        if keys and not drawn.any():
            self._refuse(len(keys))
        return itertools.compress(keys, drawn.tolist())

    def __len__(self) -> int:
        """How many examples this epoch has, or the next one of those in which all are read.

        Raises:
            TypeError: If it is not known before the sampler has given them.
        """
        is_sized = hasattr(self.sampler, "__len__")
        count = self._draw.mine if self._draw.draws else None
        if not is_sized or (self._draw.draws and count is None):
            raise TypeError(
                f"how many examples are left of those that a {type(self.sampler).__name__} gives "
                "is not known before they are"
            )
        return len(cast(Sized, self.sampler)) if count is None else count

    def _drawn(self) -> Iterator[int]:
        """What is left of a sampler without a length."""
        weights, whole, drawn = self._draw.weights, 0, 0
        for key in self.sampler:
            whole += 1
            if weights[self._indices([key])] != 0:
                drawn += 1
                yield key
        if whole and not drawn:
            self._refuse(whole)
        self._draw.takes(whole, drawn)

    def _indices(self, keys: list[Any]) -> Tensor:
        """int64[n], what the sampler gave, checked."""
        kind, rule = type(self.sampler).__name__, self._draw.rule
        try:
            indices = torch.tensor([operator.index(key) for key in keys], dtype=torch.int64)
        except TypeError:
            kinds = ", ".join(sorted({type(key).__name__ for key in keys}))
            raise BatchError(
                f"a {kind} gives {kinds}, and {type(rule).__name__} remembers examples by "
                "integers: have it give indices of the data set"
            ) from None
        beyond = indices[(indices < 0) | (indices >= rule.examples)]
        if len(beyond):
            raise BatchError(
                f"a {kind} gives the index {int(beyond[0])}, and the data set has {rule.examples} "
                f"examples: have it give indices from 0 to {rule.examples - 1}"
            )
        return indices

    def _refuse(self, count: int) -> None:
        rule, sampler = type(self._draw.rule).__name__, type(self.sampler).__name__
        raise BatchError(
            f"a {sampler} gave {count} examples in this epoch, and {rule} left all of them out: "
            f"have {rule} keep more, or the {sampler} give more examples"
        )


def gives_each_once(sampler: Any) -> bool:
    """Whether a sampler gives as many examples in each epoch as its length says, each once.

    It is known of torch's and torchdata's, and of sequences.

    >>> from torch.utils.data import SubsetRandomSampler
    >>> gives_each_once(SubsetRandomSampler([4, 2])), gives_each_once(SubsetRandomSampler([4, 4]))
    (True, False)
    """
    kind, indices = type(sampler), sampler
    is_torchs = kind.__module__.startswith(TORCH)
    if is_torchs and kind.__name__ in ("RandomSampler", "SequentialSampler"):
        return not repeats(sampler)
    if is_torchs and kind.__name__ == "SubsetRandomSampler":
        indices = sampler.indices
    elif not isinstance(sampler, list | tuple | range):
        return False
    try:
        return len({*map(operator.index, indices)}) == len(indices)
    except TypeError:  # of what is not integers
        return False


def repeats(sampler: Any) -> bool:
    """Whether a sampler may give an index more than once in an epoch.

    >>> from torch.utils.data import SequentialSampler, WeightedRandomSampler
    >>> repeats(WeightedRandomSampler([0.5, 2.0], 2)), repeats(SequentialSampler(range(2)))
    (True, False)
    """
    source = getattr(sampler, "data_source", None)
    more = source is not None and getattr(sampler, "num_samples", 0) > len(source)
    return more or bool(getattr(sampler, "replacement", False))
