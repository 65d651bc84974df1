"""What a wrapped loader is to the `SelectiveLoader` round it: its source, draw and pool."""

from collections.abc import Iterable
from typing import Any, cast

from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from siftback.arguments import format_value
from siftback.batches.indices import CARRY, examples_of, length_of
from siftback.batches.order import batches_of, is_plain, is_trackable, keeps_order, sampler_of
from siftback.batches.pool import Pool
from siftback.batches.source import Source
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.loader_order import ranks_of, selective_batches
from siftback.epochs.sampler import SelectiveSampler, check_rule_fits
from siftback.errors import ConfigError
from siftback.processes.distributed import rank_and_world
from siftback.rules.rule import EpochRule, checked_rule
from siftback.schedule import Schedule
from siftback.tables.example_rows import ExampleRows
from siftback.tensor_arguments import check_batches


def draw_of(
    loader: Iterable[Any],
    memory: EpochRule | None,
    epochs: float | None,
    schedule: Schedule | None,
    seed: int,
) -> EpochDraw | None:
    """The draw by a rule: that given, or that of the loader's own `SelectiveSampler`.

    Args:
        loader: The wrapped loader.
        memory: The rule; None where none was given.
        epochs: Of the whole training; None where it is not known.
        schedule: In place of the rule's own.
        seed: Of the draws by a rule that was given.

    Raises:
        ConfigError: If ``memory`` is not a rule, or there are two; or if the data set has another
            length than the sampler's, or fewer examples than the rule has seen.
    """
    sampler = sampler_of(loader)
    _check_sampler_fits(loader)
    own = sampler.draw if isinstance(sampler, SelectiveSampler) else None
    if memory is None and own is None:
        return None
    if memory is not None and own is not None and own.rule is not memory:
        raise ConfigError(
            f"both memory={type(memory).__name__}(...) and a SelectiveSampler with "
            f"{type(own.rule).__name__}(...) given: give the rule to one of them"
        )
    rule = checked_rule("memory", memory if own is None else own.rule)
    examples = examples_of(loader)
    if examples is not None:
        check_rule_fits(rule, examples)
    rule.grow(examples or 0)
    if rule.shards is not None and not is_trackable(loader):
        raise ConfigError(
            f"a {type(loader).__name__} does not let {type(rule).__name__} say which process reads "
            "what, and shards= gives each examples of its own: give a DataLoader over a map-style "
            "data set"
        )
    rank, world = ranks_of(loader)
    return EpochDraw(
        rule,
        epochs=epochs if epochs is not None or own is None else own.epochs,
        schedule=schedule,
        seed=seed if own is None else sampler.seed,
        rank=rank,
        world=world,
        rows=ExampleRows() if examples is None else None,
    )


def source_of(loader: Iterable[Any], draw: EpochDraw | None, seed: int) -> Source:
    """The wrapped loader, with the place in it; of a ``DataLoader`` only what a draw leaves.

    Args:
        loader: The wrapped loader.
        draw: What leaves examples out before they are read; None where nothing does.
        seed: Of the order, where the loader's own sampler is replaced.

    Raises:
        ConfigError: If the loader gives no batches, or the examples that a draw would leave out
            are not known by index.
    """
    check_batches(loader)
    if isinstance(loader, Dataset):
        raise ConfigError(
            f"a {type(loader).__name__} is a data set: give DataLoader(dataset, batch_size=...)"
        )
    if draw is None:
        _check_shared(loader)
        return Source(loader)
    if is_trackable(loader):
        return Source(loader, selective_batches(cast("DataLoader[Any]", loader), draw, seed))
    source = Source(loader)
    if not source.knows_indices:
        raise ConfigError(no_indices(type(draw.rule).__name__, source))
    return source


def _check_sampler_fits(loader: Any) -> None:
    """Makes sure that a `SelectiveSampler` orders as many examples as the data set has.

    Raises:
        ConfigError: If it does not.
    """
    sampler, length = sampler_of(loader), length_of(getattr(loader, "dataset", None))
    if isinstance(sampler, SelectiveSampler) and length not in (None, sampler.examples):
        raise ConfigError(
            f"the SelectiveSampler orders {sampler.examples} examples, and the data set of the "
            f"{type(loader).__name__} has {length}: make it of that data set, "
            "SelectiveSampler(loader.dataset)"
        )


def _check_shared(loader: Any) -> None:
    """Makes sure that no two processes read the same examples, as far as a loader says it.

    Raises:
        ConfigError: If its sampler gives each process all of them.
    """
    world, sampler = rank_and_world()[1], sampler_of(loader)
    shares = isinstance(sampler, DistributedSampler) or hasattr(sampler, "world")
    if world > 1 and is_trackable(loader) and is_plain(batches_of(loader)) and not shares:
        raise ConfigError(
            f"a {type(sampler).__name__} gives each of {world} processes all examples: give the "
            "DataLoader sampler=SelectiveSampler(dataset) or a DistributedSampler; or, where the "
            "data set is this process's share already, SelectiveSampler(dataset, rank=0, world=1)"
        )


def no_indices(name: str, source: Source) -> str:
    """Why a loader's examples are not known by index, and what to do.

    Args:
        name: What needs the indices.
        source: The wrapped loader.
    """
    loader = source.loader
    kind = type(loader).__name__
    if source.order_is_lost:
        why = f"the collate function gives examples in another order: {CARRY}"
    elif isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
        why = (
            f"the {type(loader.dataset).__name__} is an IterableDataset: if it gives the same "
            "examples in the same order each epoch, give the DataLoader Indexed(dataset)"
        )
    elif isinstance(loader, DataLoader) and loader.batch_sampler is None:
        why = (
            "a DataLoader with batch_size=None does not say which examples a batch has: give it "
            "batch_size=, or batch_sampler= in place of a sampler of lists"
        )
    elif not keeps_order(loader):
        why = (
            "a DataLoader with in_order=False gives batches in another order than it asked for "
            "them: leave in_order= out, or give the DataLoader Indexed(dataset)"
        )
    elif source.has_keys:
        sampler = sampler_of(loader)
        sampler = getattr(sampler, "sampler", sampler)  # which a filtering one is of
        why = (
            f"a {type(sampler).__name__} gives keys that are not integers: give the "
            "DataLoader a data set and a sampler of positions, from 0 on"
        )
    elif is_trackable(loader):
        why = f"the collate function gives another number of examples than it was given: {CARRY}"
    else:
        why = (
            f"a {kind} does not say it: give a DataLoader over a map-style data set, or "
            "Indexed(loader, index_of=fn), where fn(batch) gives the indices of a batch"
        )
    return f"{name} needs the index of each example, and {why}"


def drop_last_of(loader: Any) -> bool:
    """Whether a loader gives no smaller batch at an epoch's end."""
    owner = batches_of(loader)
    return bool(getattr(owner if is_plain(owner) else loader, "drop_last", False))


def pool_of(loader: Any, pool: Pool | None) -> Pool | None:
    """The pool given, or one of a loader's own batch size; None where it does not say one.

    Raises:
        ConfigError: If it is not a `Pool`.
    """
    if pool is not None:
        if not isinstance(pool, Pool):
            raise ConfigError(
                f"pool={format_value(pool)}: give a Pool, such as Pool(batch_size=32)"
            )
        return pool
    size = batch_size_of(loader)
    return None if size is None else Pool(size, drop_last_of(loader))


def regroups(loader: Any, pool: Pool | None) -> bool:
    """Whether a pool that was given may make other batches than the loader's."""
    batches, made = batches_of(loader), pool_of(loader, pool)
    if pool is None or made is None:
        return False
    same = made.batch_size == getattr(batches, "batch_size", None) and made.drop_last != "carry"
    return not (is_plain(batches) and same)


def batch_size_of(loader: Any) -> int | None:
    """Examples per batch of a loader; None where it does not say it."""
    owner = batches_of(loader)
    return getattr(owner if is_plain(owner) else loader, "batch_size", None)


def is_own_size(loader: Any, pool: Pool | None) -> bool:
    """Whether whole batches of a loader are training batches as they are."""
    own = batch_size_of(loader), getattr(batches_of(loader), "batch_size", None)
    return pool is None or pool.batch_size in own
