"""The source, the draw and the pool of a `SelectiveLoader`, from the loader that it wraps."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from torch.utils.data import DataLoader, Dataset, IterableDataset

from siftback.arguments import format_value
from siftback.batches.indices import CARRY, examples_of, length_of
from siftback.batches.order import batches_of, ends, is_plain, is_trackable, keeps_order, sampler_of
from siftback.batches.pool import Pool
from siftback.batches.source import Source
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.loader_order import FilteredSampler, own_ranks, ranks_of, selective_batches
from siftback.epochs.sampler import SelectiveSampler, check_rule_fits
from siftback.errors import ConfigError
from siftback.processes.distributed import rank_and_world
from siftback.rules.rule import EpochRule, checked_rule
from siftback.schedule import Schedule
from siftback.tables.example_rows import ExampleRows
from siftback.tensor_arguments import check_batches


def resolve_draw(
    loader: Iterable[Any],
    memory: EpochRule | None,
    epochs: float | None,
    schedule: Schedule | None,
    seed: int,
    *,
    shorter_epochs: bool,
) -> EpochDraw | None:
    """Returns the draw by a rule: the one given, or that of the loader's own `SelectiveSampler`.

    Args:
        loader: The wrapped loader.
        memory: The rule; None where none was given.
        epochs: Of the whole training; None where it is not known.
        schedule: In place of the rule's own.
        seed: Of the draws by a rule that was given.
        shorter_epochs: Whether each epoch is one pass, as it is in any case where examples cannot
            be left unread, or scoring passes refresh the rule.

    Raises:
        ConfigError: If ``memory`` is not a rule, or there are two; or if the data set has another
            length than the sampler's, or fewer examples than the rule has seen.
    """
    sampler, length = sampler_of(loader), length_of(getattr(loader, "dataset", None))
    if isinstance(sampler, SelectiveSampler):
        if length not in (None, sampler.examples):
            raise ConfigError(
                f"the SelectiveSampler orders {sampler.examples} examples, and the data set of the "
                f"{type(loader).__name__} has {length}: give SelectiveSampler(loader.dataset)"
            )
        if sampler.draw:
            rule = sampler.draw.rule
            if memory not in (None, rule):
                raise ConfigError(
                    f"both memory={type(memory).__name__}(...) and a SelectiveSampler with "
                    f"{type(rule).__name__}(...) given: give the rule to one of them"
                )
            memory, seed = rule, sampler.seed
            epochs = sampler.draw.epochs if epochs is None else epochs
    if memory is None:
        return None
    rule, examples = checked_rule("memory", memory), examples_of(loader)
    if examples is not None:
        check_rule_fits(rule, examples)
    rule.grow(examples or 0)
    if rule.shards and not is_trackable(loader):
        raise ConfigError(
            f"a {type(loader).__name__} does not let {type(rule).__name__} say which process reads "
            "what, and shards= gives each its own: give a DataLoader over a map-style data set"
        )
    rank, world = ranks_of(loader)
    return EpochDraw(
        rule,
        epochs=epochs,
        schedule=schedule,
        seed=seed,
        rank=rank,
        world=world,
        rows=ExampleRows() if examples is None else None,
        shorter=shorter_epochs or rule.needs_passes or not is_trackable(loader),
    )


def has_shorter_epochs(loader: Any) -> bool:
    """Returns whether a loader is of a `SelectiveSampler` whose epochs are passes."""
    draw = getattr(sampler_of(loader), "draw", None)
    return isinstance(draw, EpochDraw) and draw.shorter


def open_source(loader: Iterable[Any], draw: EpochDraw | None, seed: int) -> Source:
    """Returns the wrapped loader as a source; of a ``DataLoader`` only what a draw leaves.

    Args:
        loader: The wrapped loader.
        draw: Leaves examples out before they are read; None without a rule.
        seed: Of the order, where the loader's own sampler is replaced.

    Raises:
        ConfigError: If the loader gives no batches, the examples that a draw would leave out are
            not known by index, or each of several processes would read all examples.
    """
    check_batches(loader)
    if isinstance(loader, Dataset) and not is_web_loader(loader):
        raise ConfigError(
            f"a {type(loader).__name__} is a data set: give DataLoader(dataset, batch_size=...)"
        )
    if draw and is_trackable(loader):
        return Source(loader, selective_batches(cast("DataLoader[Any]", loader), draw, seed))
    source = Source(loader)
    if draw and not source.knows_indices:
        raise ConfigError(no_indices(type(draw.rule).__name__, source))
    if not draw:
        check_shared(loader)
    return source


def check_shared(loader: Any) -> None:
    """Checks that the order of a loader, without a rule, is shared among all processes.

    Raises:
        ConfigError: If each of several processes would read all examples.
    """
    world, sampler = rank_and_world()[1], sampler_of(loader)
    orders = is_trackable(loader) and is_plain(batches_of(loader))
    if world > 1 and orders and not own_ranks(sampler):
        raise ConfigError(
            f"a {type(sampler).__name__} gives each of {world} processes all examples: give the "
            "DataLoader sampler=SelectiveSampler(dataset) or a DistributedSampler; or, where the "
            "data set is this process's share already, SelectiveSampler(dataset, rank=0, world=1)"
        )


def no_indices(name: str, source: Source) -> str:
    """Returns the message that a loader's examples are not known by index, and what to do.

    Args:
        name: What needs the indices.
        source: The wrapped loader.
    """
    loader = source.loader
    kind = type(loader).__name__
    dataset = getattr(loader, "dataset", None)
    if source.order_is_lost:
        why = f"the {source.order_is_lost} gives examples in another order: {CARRY}"
    elif is_web_loader(loader) or type(dataset).__module__.startswith("webdataset."):
        why = (
            "WebDataset reads samples as they lie in its shards: keep their numbers in the "
            'batches, such as by .to_tuple("__key__", ...), and give Indexed(loader, index_of=fn), '
            "where fn(batch) gives them, as in docs/guides/other_frameworks.md"
        )
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


def is_web_loader(loader: Any) -> bool:
    """Returns whether a loader is WebDataset's, which is an iterable data set too."""
    # By name, as the library does not import it.
    return any(kind.__name__ == "WebLoader" for kind in type(loader).__mro__)


def size_owner(loader: Any) -> Any:
    """Returns what says the batch size of a loader: its batch sampler, or itself."""
    batches = batches_of(loader)
    return batches if is_plain(batches) else loader


def resolve_pool(loader: Any, pool: Pool | None) -> Pool:
    """Returns a pool like the one given, or of a loader's own batch size, 0 where it has none.

    It is a new one, as what another loader left in the one given is of another training.

    Raises:
        ConfigError: If it is not a `Pool`.
    """
    if pool is None:
        size = getattr(size_owner(loader), "batch_size", None)
        pool = Pool(size or 1, bool(getattr(size_owner(loader), "drop_last", False)))
        pool.batch_size = size or 0
        return pool
    if not isinstance(pool, Pool):
        raise ConfigError(f"pool={format_value(pool)}: give a Pool, such as Pool(batch_size=32)")
    return Pool(pool.batch_size, pool.drop_last, pad=pool.pad)


def is_own_size(loader: Any, pool: Pool) -> bool:
    """Returns whether whole batches of a loader are training batches as they are."""
    sizes = [getattr(owner, "batch_size", 0) for owner in (size_owner(loader), batches_of(loader))]
    return not pool.batch_size or pool.batch_size in sizes


def regroups(loader: Any, pool: Pool | None) -> bool:
    """Returns whether a pool that was given may make other batches than the loader's."""
    if pool is None:
        return False
    batches = batches_of(loader)
    has_size = pool.batch_size == getattr(batches, "batch_size", None)
    return not (is_plain(batches) and has_size and pool.drop_last != "carry")


def read_of(loader: Any, examples: int) -> int:
    """Returns the examples that a loader reads, without a last short batch that it drops."""
    owner = size_owner(loader)
    size = getattr(owner, "batch_size", None)
    return int(examples // size * size) if size and getattr(owner, "drop_last", False) else examples


def sizes_of(loader: Any) -> tuple[int, int, int]:
    """Returns a loader's number of batches, their size, and its number of examples.

    Raises:
        TypeError: If it cannot say.
    """
    batches, sampler = batches_of(loader), sampler_of(loader)
    if isinstance(sampler, FilteredSampler):  # whose length may be of the last epoch
        sampler = sampler.sampler
    with suppress(TypeError):  # of a sampler without a length
        if is_trackable(loader) and is_plain(batches) and ends(sampler, examples_of(loader) or 0):
            examples = len(sampler)
            if getattr(sampler, "replays", False):  # of which a draw may leave out some
                examples = sampler.examples // sampler.world
            examples = read_of(loader, examples)
            return -(-examples // batches.batch_size), batches.batch_size, examples
    raise TypeError(
        f"how many examples each batch of a {type(loader).__name__} has is not known before it is "
        "read: follow loader.progress in place of steps, or wrap a DataLoader of map-style data"
    )
