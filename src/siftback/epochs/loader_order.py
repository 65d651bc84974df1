"""The order of a user's DataLoader, once a rule leaves examples out of it."""

from collections.abc import Iterable, Sized
from functools import partial
from typing import Any, cast

from torch.utils.data import DataLoader, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from siftback.batches.last_batches import SelectiveBatches
from siftback.batches.order import is_plain, is_trackable, sampler_of
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.filtered_sampler import TORCH, FilteredSampler, repeats
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import ConfigError
from siftback.processes.distributed import rank_and_world


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
    rule, leaves_out = type(draw.rule).__name__, partial(getattr, draw, "leaves_out")
    if isinstance(inner, SelectiveSampler) and hasattr(batches, "sampler"):
        inner.follow(draw)
        if is_plain(batches):
            return SelectiveBatches(inner, batches.batch_size, batches.drop_last, leaves_out)
        return cast(Iterable[list[int]], batches)
    if not is_plain(batches):
        raise ConfigError(
            f"{rule} leaves examples out before they are read, which a {type(batches).__name__} "
            "cannot: have it make its batches from sampler=SelectiveSampler(dataset), kept as its "
            "attribute `sampler`, or leave batch_sampler= out"
        )
    sampler: Sampler[int]
    if gives_all(inner, loader.dataset):
        ranked = _says_ranks(inner) or _says_ranks(loader)
        sampler = SelectiveSampler(
            cast(Sized, loader.dataset),
            shuffle=getattr(inner, "shuffle", not isinstance(inner, SequentialSampler)),
            seed=getattr(inner, "seed", seed),
            rank=draw.rank if ranked else None,
            world=draw.world if ranked else None,
        )
        sampler.follow(draw)
    elif draw.rule.shards:
        raise ConfigError(
            f"a {type(inner).__name__} gives examples of all shards, and each process reads its "
            f"{rule}'s own: give the DataLoader shuffle=True, or SelectiveSampler(dataset)"
        )
    elif draw.world > 1:
        raise ConfigError(
            f"a {type(inner).__name__} gives each of {draw.world} processes examples that others "
            f"have too, and {rule} shares one draw among them: give the DataLoader "
            "sampler=SelectiveSampler(dataset), or shuffle=True"
        )
    else:
        sampler = FilteredSampler(cast(Iterable[int], inner), draw)
    return SelectiveBatches(sampler, batches.batch_size, batches.drop_last, leaves_out)


def ranks_of(loader: Any) -> tuple[int, int]:
    """Returns the rank and the number of processes that a loader's examples are shared among.

    What neither the loader nor its sampler says is that of ``torch.distributed`` for a
    ``DataLoader`` whose sampler is replaced; any other loader has all that it gives to itself.
    """
    for owner in (loader, sampler_of(loader)):
        if isinstance(owner, DistributedSampler):
            return owner.rank, owner.num_replicas
        if _says_ranks(owner):
            return owner.rank, owner.world
    return rank_and_world() if is_trackable(loader) else (0, 1)


def gives_all(sampler: Any, dataset: Any) -> bool:
    """Returns whether it is torch's or torchdata's order of a whole data set, each example once."""
    kind = type(sampler)
    if not kind.__module__.startswith(TORCH) or repeats(sampler):
        return False
    source: Any = getattr(sampler, "data_source", getattr(sampler, "dataset", None))
    if kind.__name__ in ("DistributedSampler", "StatefulDistributedSampler"):
        return len(source) == len(dataset)
    whole = kind.__name__ in ("RandomSampler", "SequentialSampler")
    return whole and len(source) == len(sampler) == len(dataset)


def _says_ranks(owner: Any) -> bool:
    ranks = hasattr(owner, "rank") and hasattr(owner, "world")
    return ranks or isinstance(owner, DistributedSampler)
