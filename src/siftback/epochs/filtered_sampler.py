"""The order of a user's sampler, without what a draw leaves out of it."""

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
"""The beginnings of the names of modules of samplers whose order is known."""


class FilteredSampler(Sampler[int]):
    """The order of a user's sampler, without what a draw leaves out of it.

    See `find_candidates` for what the draw is among.

    Args:
        sampler: Gives dataset indices.
        draw: Says what is left out, once it knows what the sampler gives in an epoch.

    Attributes:
        whole: Number of examples that the sampler gives in each epoch, where it gives each of them
            once; None where that is not known before an epoch.
    """

    def __init__(self, sampler: Iterable[int], draw: EpochDraw) -> None:
        self.sampler, self._draw = sampler, draw
        self._is_weighted = repeats(sampler) or hasattr(sampler, "weights")
        steady = gives_each_once(sampler)
        self.whole = len(cast(Sized, sampler)) if steady else None
        examples = f" of {self.whole} examples" if steady else ""
        draw.sampler = f"{type(sampler).__name__}{examples}"
        if hasattr(sampler, "set_epoch"):
            self.set_epoch = sampler.set_epoch

    def __iter__(self) -> Iterator[int]:
        """Returns one epoch.

        Raises:
            BatchError: If the sampler gives what is no index of an example, or none of those that
                it gives was drawn.
        """
        if not self._draw.draws:
            return iter(self.sampler)
        if not hasattr(self.sampler, "__len__"):  # it may never end
            self._draw.draw_from(None)
            return self._filter()
        keys = list(self.sampler)
        order = self._check(keys)
        self._draw.draw_from(order, is_weighted=self._is_weighted)
        drawn = self._draw.weights[order] != 0
        if keys and not drawn.any():
            raise self._nothing_left(len(keys))
        return itertools.compress(keys, drawn.tolist())

    def __len__(self) -> int:
        """Returns the length of this epoch, or of the next one of those in which all are read.

        Raises:
            TypeError: If it is not known before the sampler has given the examples.
        """
        drawn = self._draw.to_read if self._draw.draws else -1
        if not hasattr(self.sampler, "__len__") or drawn is None:
            raise TypeError(
                f"the number of examples left of those of a {type(self.sampler).__name__} is not "
                "known before it gives them"
            )
        return len(cast(Sized, self.sampler)) if drawn < 0 else drawn

    def _filter(self) -> Iterator[int]:
        """Yields what is left of a sampler without a length."""
        weights, whole, drawn = self._draw.weights, 0, 0
        for key in self.sampler:
            whole += 1
            if weights[self._check([key])] != 0:
                drawn += 1
                yield key
        if whole and not drawn:
            raise self._nothing_left(whole)
        self._draw.set_read_counts(whole, drawn)

    def _check(self, keys: list[Any]) -> Tensor:
        """Returns int64[n], what the sampler gave, after checking it."""
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

    def _nothing_left(self, count: int) -> BatchError:
        rule, sampler = type(self._draw.rule).__name__, type(self.sampler).__name__
        return BatchError(
            f"a {sampler} gave {count} examples in this epoch, and {rule} left all of them out: "
            f"have {rule} keep more, or the {sampler} give more examples"
        )


def gives_each_once(sampler: Any) -> bool:
    """Returns whether a sampler gives as many examples in each epoch as its length, each once.

    It is known of torch's and torchdata's, and of sequences.

    >>> from torch.utils.data import SubsetRandomSampler
    >>> gives_each_once(SubsetRandomSampler([4, 2])), gives_each_once(SubsetRandomSampler([4, 4]))
    (True, False)
    """
    name, indices = type(sampler).__name__, sampler
    if type(sampler).__module__.startswith(TORCH):
        if name in ("RandomSampler", "SequentialSampler"):
            return not repeats(sampler)
        if name != "SubsetRandomSampler":
            return False
        indices = sampler.indices
    elif not isinstance(sampler, list | tuple | range):
        return False
    try:
        return len({*map(operator.index, indices)}) == len(indices)
    except TypeError:  # of what is not integers
        return False


def repeats(sampler: Any) -> bool:
    """Returns whether a sampler may give an index more than once in an epoch.

    >>> from torch.utils.data import SequentialSampler, WeightedRandomSampler
    >>> repeats(WeightedRandomSampler([0.5, 2.0], 2)), repeats(SequentialSampler(range(2)))
    (True, False)
    """
    source = getattr(sampler, "data_source", None)
    gives_more = source is not None and getattr(sampler, "num_samples", 0) > len(source)
    return gives_more or bool(getattr(sampler, "replacement", False))
