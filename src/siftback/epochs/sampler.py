"""The order of an epoch, without what a rule leaves out of it."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sized
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from siftback.arguments import (
    checked_flag,
    checked_integer,
    checked_length,
    checked_seed,
    is_integer,
    shown,
)
from siftback.batches.indices import check_length, checked_indices
from siftback.batches.last_batches import SelectiveBatches
from siftback.batches.order import is_plain, is_trackable, sampler_of
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.filtered_sampler import TORCH, FilteredSampler, repeats
from siftback.errors import ConfigError, LossError
from siftback.processes.distributed import rank_and_world
from siftback.processes.meeting import meet
from siftback.rules.rule import EpochRule, RefreshedRule
from siftback.schedule import checked_epochs
from siftback.shuffled import shuffled
from siftback.state import (
    MOST_EPOCHS,
    anything,
    check_digest,
    check_entries,
    dict_of,
    integer,
    nothing,
    raise_damaged,
    seal,
    state_of,
)
from siftback.tensor_arguments import is_dense

_NONE = -1  # in a state: no epoch was begun
_OF_ALL = {"rank": None, "world": None}  # in a state of all processes together
_PART = 1 << 16  # examples of an order at a time


class SelectiveSampler(Sampler[int]):
    """The order of each epoch, a function of seed and epoch, without what a rule left out of it.

    What is left out is never read; what is left keeps the order of the whole epoch. A
    `SelectiveLoader` with ``memory=`` puts one in place of a ``DataLoader``'s own. Alone, in any
    ``DataLoader``, it needs the losses by index::

        sampler = SelectiveSampler(dataset, Memory(), epochs=20)
        loader = DataLoader(Indexed(dataset), batch_sampler=sampler.batches(128))
        for epoch in range(20):
            for indices, (x, y) in loader:
                ...
                sampler.update(indices, losses)

    Each ``iter()`` gives the next epoch, unless `set_epoch` sets another one: an epoch that was
    left early has ended. Only where a rule learns from training and no loss was recorded, as by a
    look at one batch, the epoch begins again.

    In a training of several processes each has a share of one common order, so they need the
    same ``seed``: of n examples, the process of rank r has those at r, r + world, r + 2 world and
    so on. The shares are disjoint and of ``n // world`` each, so that all processes make equally
    many steps; the last ``n % world`` of the order are left out of that epoch. A rule with shards,
    such as ``Memory(shards=960)``, has each process read the examples of its `Shards` instead.

    Args:
        dataset: Anything with a length, which must not change.
        rule: What draws each epoch's examples; None leaves none out.
        shuffle: Whether each epoch has an order of its own.
        seed: Of the orders and the draws.
        epochs: Of the whole training, where the rule counts in shares of it.
        rank: Which process this is; by default that of ``torch.distributed`` where it is
            initialised, else 0.
        world: How many there are, likewise. ``rank=0, world=1`` has everything, such as in a
            process whose data set is a shard already.

    Attributes:
        examples: How many there are, for all processes.
        draw: What this epoch's draw is, an `EpochDraw`; None without a rule.

    Raises:
        ConfigError: If ``rank`` is none of ``world`` processes, there are fewer examples than
            processes or than the rule has seen, or the rule needs scoring passes.

    >>> from siftback import Epochs, Memory
    >>> sampler = SelectiveSampler(range(4), Memory(keep=0.5, floor=0, warmup=Epochs(1)), seed=2)
    >>> list(sampler)
    [3, 0, 1, 2]
    >>> sampler.update(torch.arange(4), torch.tensor([0.1, 0.2, 2.0, 3.0]))
    >>> len(sampler), list(sampler)
    (2, [2, 0])
    >>> list(SelectiveSampler(range(5), shuffle=False, rank=1, world=2))
    [1, 3]
    """

    replays = True

    def __init__(
        self,
        dataset: Sized,
        rule: EpochRule | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        epochs: float | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        here, among = rank_and_world()
        for name, number in (("rank", rank), ("world", world)):
            if number is not None and not is_integer(number):
                raise ConfigError(f"{name}={shown(number)}: give an integer")
        self.rank, self.world = here if rank is None else rank, among if world is None else world
        self._as_found = rank is None and world is None
        if not 0 <= self.rank < self.world:
            raise ConfigError(
                f"rank={shown(self.rank)} is none of world={shown(self.world)} processes: give "
                "both, the rank from 0 on, or neither"
            )
        self.examples = checked_length("dataset", dataset)
        if rule is not None and not isinstance(rule, EpochRule):
            raise ConfigError(
                f"rule={shown(rule)} is not an EpochRule: give an instance, such as Memory()"
            )
        checked_epochs(epochs)
        if self.examples < self.world:
            raise ConfigError(
                f"{self.examples} examples are fewer than world={shown(self.world)} processes, "
                "each of which needs one: start fewer processes, or give more examples"
            )
        self.shuffle, self.seed = checked_flag("shuffle", shuffle), checked_seed(seed)
        self.draw: EpochDraw | None = None
        self._draws_itself = rule is not None
        if isinstance(rule, RefreshedRule):
            raise ConfigError(
                f"{type(rule).__name__} is refreshed by scoring passes, which a sampler does not "
                "make: give it to SelectiveLoader(loader, model, loss_fn, memory=...)"
            )
        if rule is not None:
            check_rule_fits(rule, self.examples)
            rule.grow(self.examples)
            self.draw = EpochDraw(rule, epochs=epochs, seed=seed, rank=self.rank, world=self.world)
        self._dataset = dataset
        self._epoch = 0  # the next one
        self._current: int | None = None  # that of the order that is being given
        self._last = 0  # the one that was begun last
        self._resumes: int | None = None  # the one that the next order goes on with
        self._met = False  # the other processes
        self._has_losses = True  # of the epoch that was begun last
        self._warned = False

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch the next ``iter()`` gives."""
        self._epoch = checked_integer("epoch", epoch, 0)
        self._has_losses = True  # so that this one is begun, and not the one before again

    def batches(self, batch_size: int, drop_last: bool = False) -> SelectiveBatches:
        """Returns a batch sampler of this order, for ``DataLoader(batch_sampler=...)``.

        It has no batch of a single row, at which batch normalisation stops, in an epoch from which
        the rule leaves examples out; PyTorch's own has one whenever one row is left over.

        Args:
            batch_size: Examples per batch.
            drop_last: Whether a last batch of fewer is left out.

        >>> from siftback import Epochs, Memory
        >>> sampler = SelectiveSampler(range(6), Memory(keep=0.7, warmup=Epochs(0)), seed=1)
        >>> [len(batch) for batch in sampler.batches(3)]
        [2, 2]
        """
        return SelectiveBatches(self, batch_size, drop_last, self._leaves_out)

    def _leaves_out(self) -> bool:
        if self.draw is None or self._current is not None or not self._draws_itself:
            return self.draw is not None and self.draw.leaves_out
        return self.draw.count(self._epoch) != self.draw.count_whole

    def resume(self, epoch: int) -> None:
        """Has the next ``iter()`` give an epoch from its start, as it was drawn last.

        It is for loops that skip what was trained on before a checkpoint: the order is the same,
        though the rule has learned since.
        """
        self._resumes = epoch

    def follow(self, draw: EpochDraw) -> None:
        """Leaves out what another's draw leaves out, which that one makes as an epoch begins."""
        self.draw, self._draws_itself = draw, False

    def update(self, indices: Tensor, losses: Tensor, **found: Tensor) -> None:
        """Gives the rule what training found of some examples in the current epoch.

        Args:
            indices: int64[n], their dataset indices.
            losses: float[n]. What is not finite is left out.
            found: ``correct`` and ``confidence`` for a rule that needs them, `EpochRule.update`.

        Raises:
            BatchError: If the indices are not integers from 0 on, one for each loss.
            ConfigError: If there is no rule.
            LossError: If there is not one of each for each example.
        """
        if self.draw is None:
            raise ConfigError("there is no rule to update: give SelectiveSampler(dataset, rule)")
        if not is_dense(losses) or not losses.is_floating_point() or losses.ndim != 1:
            raise LossError(f"losses={shown(losses)}: give one for each example, float[n]")
        losses = losses.detach().float().cpu()
        indices = checked_indices(indices, len(losses), "SelectiveSampler.update")
        self._has_losses = True
        self.draw.update(indices, losses, self._last, **found)

    def order(self, epoch: int) -> Iterator[Tensor]:
        """int64[n] at a time, this process's examples of an epoch in their order, as drawn last."""
        if self.draw is not None:
            own = self.draw.order(self.seed, epoch, self.shuffle)
            if own is not None:
                yield from own
                return
        weights, drawn = None, self.examples
        if self.draw is not None and self.draw.draws:
            weights, drawn = self.draw.weights, self.draw.drawn
        last, before = drawn // self.world * self.world, 0
        parts = shuffled(self.examples, self.seed, epoch) if self.shuffle else self._in_order()
        for whole in parts:
            block = whole if weights is None else whole[weights[whole] != 0]
            yield block[: last - before][(self.rank - before) % self.world :: self.world]
            before = min(before + len(block), last)

    def _in_order(self) -> Iterator[Tensor]:
        for start in range(0, self.examples, _PART):
            yield torch.arange(start, min(start + _PART, self.examples))

    def __iter__(self) -> Iterator[int]:
        order = _Order(self)
        if self._resumes is not None:
            order.resume(self._resumes, 0)
            self._resumes = None
        return order

    def __len__(self) -> int:
        """How many examples the current epoch has, or the next one where none is begun.

        Raises:
            TypeError: If the rule cannot know before it has drawn.
        """
        if self.draw is None:
            return self.examples // self.world
        if self._current is not None or not self._draws_itself:
            return self.draw.drawn // self.world
        count = self.draw.count(self._epoch)
        # In warm-up too: an error is of use in the first epoch, not hours later.
        if count is None or self.draw.rule.count(self._epoch) is None:
            raise TypeError(
                f"how many examples {type(self.draw.rule).__name__} draws is not known before the "
                "epoch begins: ask within the epoch, or take a rule of a fixed count, such as "
                "Memory, where a length is needed"
            )
        return count // self.world

    def __bool__(self) -> bool:
        return True  # not by its length, which may be unknown

    def begin(self) -> int:
        """Begins the next epoch, and says which one it is.

        An epoch that was not given to its end begins again if the rule learns from losses, and none
        was recorded.

        Raises:
            ConfigError: If there are other processes than when the sampler was made, or another
                has other settings; or the data set has another length.
            ProcessError: If not all processes begin it.
        """
        here, among = rank_and_world()
        if self._as_found and (here, among) != (self.rank, self.world):
            raise ConfigError(
                f"the sampler was made when processes={self.world} were known, and there are "
                f"{among}, which would read the same examples: make it, or the SelectiveLoader, "
                "when torch.distributed is initialised, or give it rank= and world="
            )
        check_length("SelectiveSampler", self.examples, self._dataset)
        own = self._own_draw
        if own is None:
            self._current = self._last = self._epoch
            self._epoch += 1
            if self.draw is None and self._as_found and not self._met:
                # Only once, as nothing but settings can make their orders differ.
                meet("the first epoch of a SelectiveSampler", self._common_settings())
                self._met = True
            return self._current
        check_rule_fits(own.rule, self.examples)
        again = self._current is not None and not self._has_losses
        if not again:
            self._last, self._epoch = self._epoch, self._epoch + 1
            self._has_losses = not own.learns
            self._warn_if_beyond(own)
        self._current = self._last
        meet(f"the beginning of epoch {self._current}", self._common_settings())
        own.begin(self._current, again=again)
        return self._current

    def _warn_if_beyond(self, draw: EpochDraw) -> None:
        if draw.epochs is not None and self._last >= math.ceil(draw.epochs) and not self._warned:
            self._warned = True
            warnings.warn(beyond(self._last, draw.epochs), stacklevel=3)

    def end(self) -> None:
        """Ends the epoch that was begun."""
        if self._draws_itself:
            self._current = None

    def state_dict(self) -> dict[str, Any]:
        """What decides the orders, the epoch, and the draw."""
        own = self._own_draw
        common = own is not None and own.is_common and self._current is None
        state = {
            "settings": self._settings() | (_OF_ALL if common else {}),
            "epoch": self._epoch,
            "current": _NONE if self._current is None else self._current,
            "last": self._last,
            "draw": None if own is None else own.state_dict(),
        }
        return seal(state)

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If that of a sampler that was made with other arguments, or damaged.
        """
        check_digest(self, state)
        epoch = integer(most=MOST_EPOCHS)
        parts = {"epoch": epoch, "last": epoch, "current": integer(_NONE, MOST_EPOCHS)}
        draw = nothing if self._own_draw is None else state_of(self._own_draw)
        settings = self._settings()
        if self._own_draw is not None and self._own_draw.is_common:
            check_entries(self, state, {"settings": dict_of(dict.fromkeys(settings, anything))})
            if all(state["settings"][name] is None for name in _OF_ALL):
                settings |= _OF_ALL
        check_entries(self, state, {**parts, "draw": draw}, settings)
        if state["current"] not in (_NONE, state["last"]):
            raise_damaged(
                "SelectiveSampler.current", state["current"], f"{state['last']}, as its last"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another sampler's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        if self._own_draw is not None:
            self._own_draw.load_state_dict(state["draw"])
        self._epoch, self._last, self._has_losses = state["epoch"], state["last"], True
        self._current = None if state["current"] == _NONE else state["current"]

    @property
    def _own_draw(self) -> EpochDraw | None:
        """The draw, if it makes that itself."""
        return self.draw if self._draws_itself else None

    def _common_settings(self) -> dict[str, Any]:
        """What all processes must have alike; of the order, where they share one."""
        shared = {name: getattr(self, name) for name in ("examples", "seed", "shuffle")}
        own = {"rule": None} if self.draw is None else self.draw.common_settings()
        return {**(shared if self.world > 1 else {}), "world": self.world, **own}

    def _settings(self) -> dict[str, Any]:
        names = ("examples", "seed", "shuffle", "rank", "world")
        rule = None if self._own_draw is None else type(self._own_draw.rule).__name__
        return {**{name: getattr(self, name) for name in names}, "rule": rule}


class _Order(Iterator[int]):
    """One epoch's order, begun with its first index; with a state, to go on within it."""

    def __init__(self, sampler: SelectiveSampler) -> None:
        self._sampler = sampler
        self._epoch: int | None = None
        self._indices: Iterator[int] = iter(())
        self._given = 0

    def __next__(self) -> int:
        if self._epoch is None:
            self._epoch = self._sampler.begin()
            self._indices = self._from(0)
        try:
            index = next(self._indices)
        except StopIteration:
            self._sampler.end()
            raise
        self._given += 1
        return index

    def state_dict(self) -> dict[str, Any]:
        epoch = _NONE if self._epoch is None else self._epoch
        return seal({"epoch": epoch, "given": self._given})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_digest(self, state)
        given = integer(most=self._sampler.examples)
        check_entries(self, state, {"epoch": integer(_NONE, MOST_EPOCHS), "given": given})
        self.resume(None if state["epoch"] == _NONE else state["epoch"], state["given"])

    def resume(self, epoch: int | None, given: int) -> None:
        """Goes on within an epoch after the indices that it gave."""
        self._epoch, self._given = epoch, given
        if epoch is not None:
            self._indices = self._from(given)

    def _from(self, place: int) -> Iterator[int]:
        assert self._epoch is not None
        for indices in self._sampler.order(self._epoch):
            # As Python's integers a few at a time, which take ten times the room of a tensor's.
            for some in torch.split(indices[place:], _PART):
                yield from some.tolist()
            place = max(place - len(indices), 0)


def selective_batches(loader: "DataLoader[Any]", draw: EpochDraw, seed: int) -> Iterable[list[int]]:
    """The batch sampler of a loader, over an order that leaves out what a draw does.

    A random or sequential sampler gives way to a `SelectiveSampler`, a ``DistributedSampler`` to
    one of its rank; a `SelectiveSampler` follows the draw; any other sampler is filtered.

    Args:
        loader: A ``DataLoader`` over a map-style data set.
        draw: The draw.
        seed: Of the order.

    Raises:
        ConfigError: If a batch sampler of the user's own cannot leave examples out.
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
        said = _says_ranks(inner) or _says_ranks(loader)
        sampler = SelectiveSampler(
            cast(Sized, loader.dataset),
            shuffle=getattr(inner, "shuffle", not isinstance(inner, SequentialSampler)),
            seed=getattr(inner, "seed", seed),
            rank=draw.rank if said else None,
            world=draw.world if said else None,
        )
        sampler.follow(draw)
    elif draw.rule.shards is not None:
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


def check_rule_fits(rule: EpochRule, examples: int) -> None:
    """Checks that a rule has not seen more examples than there are.

    It remembers them by index: of more, new ones are unknown, and are drawn first.

    Raises:
        ConfigError: If it has.
    """
    if rule.examples > examples:
        raise ConfigError(
            f"{type(rule).__name__} remembers {rule.examples} examples, and there are {examples}: "
            "give another rule for a data set with fewer examples, such as a new "
            f"{type(rule).__name__}(...)"
        )


def beyond(epoch: int, epochs: float) -> str:
    """Returns the warning of an epoch after the last one of a training."""
    return (
        f"epoch {epoch}, counted from 0, is beyond epochs={epochs:g}: progress is 1, the tail of "
        "the schedule is over, and total_steps does not count this epoch. Give epochs= the length "
        "of the whole training"
    )


def ranks_of(loader: Any) -> tuple[int, int]:
    """The rank and the number of processes that a loader's examples are shared among.

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
    """Whether it is torch's or torchdata's order of a whole data set, each example once."""
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
