"""The order of a user's DataLoader, once a rule leaves examples out of it."""

import copy
import itertools
import operator
from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from siftback.batches.order import (
    SelectiveBatches,
    ends,
    index_tensor,
    is_plain,
    is_trackable,
    sampler_of,
)
from siftback.epochs.epoch_draw import UNSIZED, EpochDraw
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import BatchError, ConfigError
from siftback.processes.distributed import rank_and_world
from siftback.tensor_arguments import check_within

_TORCH = "torch.", "torchdata."  # the modules of samplers whose order is known


def selective_batches(loader: "DataLoader[Any]", draw: EpochDraw, seed: int) -> Iterable[list[int]]:
    """Returns the batch sampler of a loader, over an order that leaves out what a draw does.

    A random or sequential sampler gives way to a `SelectiveSampler`, a ``DistributedSampler`` to
    one of its rank; a `SelectiveSampler` follows the draw; any other sampler is filtered.

    Args:
        loader: A ``DataLoader`` over a map-style data set.
        draw: The draw.
        seed: Of the order.

    Raises:
        ConfigError: If the user's batch sampler cannot leave examples out.
    """
    batches, inner = cast(Any, loader.batch_sampler), sampler_of(loader)
    rule = type(draw.rule).__name__
    if isinstance(inner, SelectiveSampler) and hasattr(batches, "sampler"):
        if is_plain(batches):
            inner = copy.copy(inner)  # as the user's own gives all examples, to an evaluation
            inner.follow(draw)
            return inner.batches(batches.batch_size, batches.drop_last)
        inner.follow(draw)
        inner.batch_size = getattr(batches, "batch_size", 1) or 1
        draw.is_ahead = True  # of batches by a rule of the user's own a state has all that are left
        return cast(Iterable[list[int]], batches)
    if not is_plain(batches):
        raise ConfigError(
            f"{rule} leaves examples out before they are read, which a {type(batches).__name__} "
            "cannot: have it make batches from its attribute sampler=SelectiveSampler(data), or "
            "give a DataLoader(dataset, batch_size), whose workers persistent_workers=True keeps"
        )
    if gives_all(inner, loader.dataset):
        ranked = own_ranks(inner) or own_ranks(loader)
        sampler = SelectiveSampler(
            cast(Sized, loader.dataset),
            shuffle=getattr(inner, "shuffle", not isinstance(inner, SequentialSampler)),
            seed=getattr(inner, "seed", seed),
            rank=draw.rank if ranked else None,
            world=draw.world if ranked else None,
        )
        sampler.follow(draw)
        return sampler.batches(batches.batch_size, batches.drop_last)
    if draw.rule.shards:
        raise ConfigError(
            f"a {type(inner).__name__} gives examples of all shards, and each process reads its "
            f"{rule}'s own: give the DataLoader shuffle=True, or SelectiveSampler(dataset)"
        )
    if draw.world > 1:
        raise ConfigError(
            f"a {type(inner).__name__} gives each of {draw.world} processes examples that others "
            f"have too, and {rule} shares one draw among them: give the DataLoader "
            "sampler=SelectiveSampler(dataset), or shuffle=True"
        )
    filtered = FilteredSampler(cast(Iterable[int], inner), draw)
    return SelectiveBatches(filtered, batches.batch_size, batches.drop_last)


def ranks_of(loader: Any) -> tuple[int, int]:
    """Returns the rank and the number of processes that a loader's examples are shared among.

    What neither the loader nor its sampler says is that of ``torch.distributed`` for a
    ``DataLoader`` whose sampler is replaced; any other loader has all that it gives to itself.
    """
    ranks = own_ranks(loader) or own_ranks(sampler_of(loader))
    return ranks or (rank_and_world() if is_trackable(loader) else (0, 1))


def own_ranks(owner: Any) -> tuple[int, int] | None:
    """Returns the rank and the number of processes that a loader or a sampler says; else None."""
    world = getattr(owner, "world", getattr(owner, "num_replicas", 0))
    return (owner.rank, world) if world and hasattr(owner, "rank") else None


class FilteredSampler(Sampler[int]):
    """The order of a user's sampler, without what a draw leaves out of it.

    Each time that the sampler is iterated is a pass. See `find_candidates` for what the draw is
    among. Of a sampler without a length, each epoch is one pass.

    Args:
        sampler: Gives dataset indices.
        draw: Says what is left out, once it knows what the sampler gives.
    """

    def __init__(self, sampler: Iterable[int], draw: EpochDraw) -> None:
        self.sampler, self.draw = sampler, draw
        self._is_weighted = repeats(sampler) or hasattr(sampler, "weights")
        self.is_sized = ends(sampler, draw.rule.examples)
        draw.shorter |= not self.is_sized
        draw.sampled = len(cast(Sized, sampler)) if self.is_sized else UNSIZED
        examples = f" of {len(cast(Sized, sampler))} examples" if gives_each_once(sampler) else ""
        draw.sampler = f"{type(sampler).__name__}{examples}"
        if hasattr(sampler, "set_epoch"):
            self.set_epoch = sampler.set_epoch

    @property
    def replays_draws(self) -> bool:
        """Whether the draw has the order of the current epoch, so far as it was drawn."""
        return self.draw.draws and self.is_sized

    def __iter__(self) -> Iterator[int]:
        """Returns one epoch.

        Raises:
            BatchError: If the sampler gives what is no index of an example, or none of those that
                it gives was drawn.
        """
        draw = self.draw
        if self.is_sized:
            draw.sampled = len(cast(Sized, self.sampler))
        if not draw.draws:
            return iter(self.sampler)
        if not self.is_sized:  # it may never end
            if draw.is_waiting:
                draw.draw_pass_among(None)
            return self._filter()
        blocks = draw.order(lambda drawn: iter((drawn.order,)), self._draw_pass)
        return itertools.chain.from_iterable(block.tolist() for block in blocks)

    def _draw_pass(self, _: Tensor) -> None:
        """Draws a pass among what the sampler gives."""
        # It may never end, though it has a length.
        order = self._check(list(itertools.islice(self.sampler, 10 * self.draw.sampled)))
        self.draw.draw_pass_among(order, is_weighted=self._is_weighted)
        if not self.draw.passes[-1].size:
            raise self._nothing_left(len(order))

    def __len__(self) -> int:
        """Returns the length of an epoch.

        Raises:
            TypeError: If the sampler has none; or if epochs are shorter by what is left out, and
                the sampler has not given the examples of this one.
        """
        draw = self.draw
        if not self.is_sized or (draw.draws and draw.shorter and draw.is_waiting):
            raise TypeError(
                f"the number of examples left of those of a {type(self.sampler).__name__} is not "
                "known before it gives them"
            )
        return draw.length if draw.draws and draw.shorter else len(cast(Sized, self.sampler))

    def _filter(self) -> Iterator[int]:
        """Yields what is left of a sampler without a length."""
        weights, whole, size = self.draw.current.weights, 0, 0
        for key in self.sampler:
            whole += 1
            if weights[self._check([key])] != 0:
                size += 1
                yield key
        if whole and not size:
            raise self._nothing_left(whole)
        drawn = self.draw.passes[-1]
        drawn.whole, drawn.size = whole, size

    def _check(self, keys: list[Any]) -> Tensor:
        """Returns int64[n], what the sampler gave, after checking it."""
        kind, rule = type(self.sampler).__name__, self.draw.rule
        indices = index_tensor(keys)
        if indices is None:
            kinds = ", ".join(sorted({type(key).__name__ for key in keys}))
            raise BatchError(
                f"a {kind} gives {kinds}, and {type(rule).__name__} remembers examples by "
                "integers: have it give indices of the data set"
            )
        advice = "have it give indices of the data set"
        check_within(f"the indices of a {kind}", indices, rule.examples, advice)
        return indices

    def _nothing_left(self, count: int) -> BatchError:
        rule, sampler = type(self.draw.rule).__name__, type(self.sampler).__name__
        if not count:
            return BatchError(
                f"a {sampler} gave no examples in this epoch: have its __iter__ give some each time"
            )
        return BatchError(
            f"a {sampler} gave {count} examples in this epoch, and {rule} left all of them out: "
            f"have {rule} keep more, or the {sampler} give more examples"
        )


def gives_all(sampler: Any, dataset: Any) -> bool:
    """Returns whether it is torch's or torchdata's order of a whole data set, each example once."""
    kind = type(sampler)
    if not kind.__module__.startswith(_TORCH) or repeats(sampler):
        return False
    source: Any = getattr(sampler, "data_source", getattr(sampler, "dataset", None))
    if kind.__name__ in ("DistributedSampler", "StatefulDistributedSampler"):
        return len(source) == len(dataset)
    whole = kind.__name__ in ("RandomSampler", "SequentialSampler")
    return whole and len(source) == len(sampler) == len(dataset)


def gives_each_once(sampler: Any) -> bool:
    """Returns whether a sampler gives as many examples in each epoch as its length, each once.

    It is known of torch's and torchdata's, and of sequences.

    >>> from torch.utils.data import SubsetRandomSampler
    >>> gives_each_once(SubsetRandomSampler([4, 2])), gives_each_once(SubsetRandomSampler([4, 4]))
    (True, False)
    """
    name, indices = type(sampler).__name__, sampler
    if type(sampler).__module__.startswith(_TORCH):
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
