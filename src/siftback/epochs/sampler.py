"""The order of an epoch, without what a rule leaves out of it."""

import itertools
import math
import warnings
from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from siftback.arguments import check_flag, check_integer, check_seed, count_examples
from siftback.batches.indices import check_indices, check_length, fingerprint
from siftback.batches.order import SelectiveBatches, subset_name
from siftback.epochs.epoch_draw import EpochDraw, Pass
from siftback.errors import ConfigError, LossError
from siftback.processes.barrier import barrier
from siftback.processes.distributed import rank_and_world
from siftback.rules.rule import EpochRule, checked_rule
from siftback.schedule import check_epochs
from siftback.shuffled import shuffled
from siftback.state import (
    MOST_EPOCHS,
    Check,
    Stateful,
    check_digest,
    check_entries,
    integer,
    raise_damaged,
    state_of,
)
from siftback.tensor_arguments import check_tensor

_NONE = -1  # in a state: no epoch was begun
_BLOCK = 1 << 16  # examples of an order at a time


class SelectiveSampler(Stateful, Sampler[int]):
    """The order of each epoch, without what a rule left out of it.

    An epoch has as many indices as there are examples, whatever a rule leaves out: it consists of
    *passes* over the data. Each is drawn when its first index is asked for, by the losses recorded
    until then; its order is a function of ``seed`` and the number of the pass. A pass that an epoch
    does not end goes on in the next one. With ``shorter_epochs``, each epoch is one pass. An epoch
    in which the rule's schedule is off is one pass over everything.

    What is left out is never read. A `SelectiveLoader` with ``memory=`` puts a sampler in place of
    a ``DataLoader``'s own. Alone, in any ``DataLoader``, it needs the losses by index::

        sampler = SelectiveSampler(dataset, Memory(), epochs=20)
        loader = DataLoader(Indexed(dataset), batch_sampler=sampler.batches(128))
        for epoch in range(20):
            for indices, (x, y) in loader:
                ...
                sampler.update(indices, losses)

    Each ``iter()`` gives the next epoch, unless `set_epoch` sets another one: an epoch that was
    left early has ended, and so has its pass. Only where a rule learns from training and no loss
    was recorded, as by a look at one batch, the epoch begins again. Workers of a ``DataLoader``
    read ahead: a pass is then drawn that many batches earlier, without the losses of those.

    In a training of several processes each has a share of one common order, so they need the
    same ``seed``: of n examples, the process of rank r has those at r, r + world, r + 2 world and
    so on. The shares are disjoint and of ``n // world`` each, so that all processes make equally
    many steps; the last ``n % world`` of the order are left out of that pass. A rule with shards,
    such as ``Memory(keep=0.5, shards=960)``, has each process read the examples of its `Shards`
    instead, and a pass then ends with its epoch.

    Args:
        dataset: Anything with a length, which must not change.
        rule: Draws the examples of each pass; None leaves none out.
        shuffle: Whether each epoch has an order of its own.
        seed: Seed of the orders and the draws.
        epochs: Epochs of the whole training, where the rule counts in shares of it.
        shorter_epochs: Whether each epoch is one pass, shorter by what the rule leaves out of it.
        rank: Which process this is; by default that of ``torch.distributed`` where it is
            initialised, else 0.
        world: How many there are, likewise. ``rank=0, world=1`` has everything, such as in a
            process whose data set is a shard already.

    Attributes:
        examples: How many there are, for all processes.
        draw: Draws the passes, an `EpochDraw`; None without a rule.
        batch_size: Examples per batch, where `batches` or a `SelectiveLoader` said it: where a pass
            begins within a batch, the batch then has no example twice.
        epochs_begun: How many were begun, again or not.

    Raises:
        ConfigError: If ``rank`` is none of ``world`` processes, there are fewer examples than
            processes or than the rule has seen, or the rule needs scoring passes.

    >>> from siftback import Epochs, Memory
    >>> sampler = SelectiveSampler(range(4), Memory(keep=0.5, floor=0, warmup=Epochs(1)), seed=2)
    >>> list(sampler)
    [3, 0, 1, 2]
    >>> sampler.update(torch.arange(4), torch.tensor([0.1, 0.2, 2.0, 3.0]))
    >>> len(sampler), list(sampler)  # two passes
    (4, [2, 0, 2, 3])
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
        shorter_epochs: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        own_rank, own_world = rank_and_world()
        self._follows_processes = rank is world is None
        self.rank = own_rank if rank is None else check_integer("rank", rank, 0)
        self.world = own_world if world is None else check_integer("world", world, 1)
        if self.rank >= self.world:
            raise ConfigError(
                f"rank={self.rank} is none of world={self.world} processes: ranks are from 0 on"
            )
        self.examples = count_examples(dataset)
        check_epochs(epochs)
        if not self.examples:
            raise ConfigError("a data set of 0 examples: give one that is not empty")
        if self.examples < self.world:
            raise ConfigError(
                f"{self.examples} examples are fewer than world={self.world} processes, each of "
                "which needs one: start fewer processes, or give more examples"
            )
        self.shuffle, self.seed = check_flag("shuffle", shuffle), check_seed(seed)
        check_flag("shorter_epochs", shorter_epochs)
        self.batch_size, self.epochs_begun = 1, 0
        self.draw: EpochDraw | None = None
        self._own_draw: EpochDraw | None = None  # the draw that this sampler makes itself
        if rule is not None:
            if checked_rule("rule", rule).needs_passes:
                raise ConfigError(
                    f"{type(rule).__name__} is refreshed by scoring passes, which a sampler does "
                    "not make: give it to SelectiveLoader(loader, model, loss_fn, memory=...)"
                )
            check_rule_fits(rule, self.examples)
            rule.grow(self.examples)
            self.draw = self._own_draw = EpochDraw(
                rule,
                epochs=epochs,
                seed=seed,
                rank=self.rank,
                world=self.world,
                shorter=shorter_epochs,
            )
        self._dataset = dataset
        self._epoch = self._last = 0  # the next epoch, and the one that was begun last
        self._current = _NONE  # the epoch whose order is being given
        self._resumes = _NONE  # the epoch that the next order goes on with
        self._passed_barrier = self._warned = False
        self._has_losses = True  # of the epoch that was begun last

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch the next ``iter()`` gives."""
        self._epoch = check_integer("epoch", epoch, 0)
        # So that this one is begun, and not the one before again, if that was left early.
        self._has_losses |= self._current != _NONE

    def batches(self, batch_size: int, drop_last: bool = False) -> SelectiveBatches:
        """Returns a batch sampler of this order, for ``DataLoader(batch_sampler=...)``.

        With ``shorter_epochs`` it has no batch of a single row, at which batch normalisation
        stops, in an epoch from which the rule leaves examples out. Its batches are otherwise those
        of PyTorch's ``BatchSampler``.

        Args:
            batch_size: Examples per batch.
            drop_last: Whether a last batch of fewer is left out.

        >>> from siftback import Epochs, Memory
        >>> sampler = SelectiveSampler(range(6), Memory(keep=0.7, warmup=Epochs(0)), seed=1)
        >>> [len(batch) for batch in sampler.batches(4)]
        [4, 2]
        """
        self.batch_size = batch_size
        return SelectiveBatches(self, batch_size, drop_last)

    def resume(self, epoch: int) -> None:
        """Has the next ``iter()`` give an epoch from its start, as it was drawn last.

        It is for loops that skip what was trained on before a checkpoint: the order is the same,
        though the rule has learned since.
        """
        self._resumes = epoch

    def follow(self, draw: EpochDraw) -> None:
        """Leaves out what another's draw leaves out, which that one makes as an epoch begins."""
        self.draw, self._own_draw = draw, None

    def update(
        self, indices: Tensor, losses: Tensor, *, passes: Any = (), **predictions: Tensor
    ) -> None:
        """Gives the rule the losses of the examples of a batch that was trained on.

        Args:
            indices: int64[n], their dataset indices.
            losses: float[n]. What is not finite is left out.
            passes: The passes that they are of, see `EpochDraw.pass_sizes`; by default those of the
                next batch, as batches are trained on in their order, each once.
            predictions: ``correct`` and ``confidence`` for a rule that needs them, see
                `EpochRule.update`.

        Raises:
            BatchError: If the indices are not integers from 0 on, one for each loss.
            ConfigError: If there is no rule, or weights of its draws were not asked for.
            LossError: If there is not one of each for each example.
        """
        if not self.draw:
            raise ConfigError("there is no rule to update: give SelectiveSampler(dataset, rule)")
        if self._own_draw and self.draw.rule.reweights and not self.draw.gave_weights:
            raise ConfigError(
                f"{type(self.draw.rule).__name__} draws with loss weights, which a sampler alone "
                "does not apply: give SelectiveLoader(loader, memory=rule), whose loss applies them"
            )
        check_tensor("losses", losses, "float", "n", advice=", one for each", error=LossError)
        indices = check_indices(indices, len(losses), "SelectiveSampler.update")
        self._has_losses = True
        if self._own_draw and not (passes or self.draw.gave_weights):  # for which it has advanced
            self._own_draw.advance(len(losses))
        passes = passes or self.draw.pass_sizes(len(losses))
        self.draw.losses.update(indices, losses, passes, **predictions)

    def order(self, epoch: int) -> Iterator[Tensor]:
        """Returns this process's examples of the current epoch in their order, as int64[n].

        Args:
            epoch: The epoch, whose number is that of its pass where there is no rule.
        """
        if not self.draw:
            return self._order_of_pass(epoch, self.examples)
        return self.draw.order(self._order_of, self.draw.draw_pass, self.batch_size)

    def _order_of(self, drawn: Pass) -> Iterator[Tensor]:
        """Yields this process's examples of a pass in their order: int64[n]."""
        weights = drawn.weights if drawn.draws else None
        shards = self.draw and self.draw.rule.shards
        if shards:
            quota = drawn.drawn // shards.count
            blocks = shards.order(weights, quota, self.seed, drawn.number, self.shuffle)
        else:
            blocks = self._order_of_pass(drawn.number, drawn.drawn, weights)
        for block in blocks:
            yield keep_apart(block, drawn.neighbors, self.batch_size)

    def _order_of_pass(
        self, number: int, drawn: int, weights: Tensor | None = None
    ) -> Iterator[Tensor]:
        end, start = drawn // self.world * self.world, 0
        if self.shuffle:
            blocks = shuffled(self.examples, self.seed, number)
        else:
            starts = range(0, self.examples, _BLOCK)
            blocks = (torch.arange(i, min(i + _BLOCK, self.examples)) for i in starts)
        for indices in blocks:
            if weights is not None:
                indices = indices[weights[indices] != 0]
            yield indices[: end - start][(self.rank - start) % self.world :: self.world]
            start = min(start + len(indices), end)

    def __iter__(self) -> Iterator[int]:
        """Returns the order of the next epoch, which begins with its first index.

        Raises:
            ConfigError: If a rule learns from losses, and none came of the whole epoch before.
        """
        if self._own_draw and self._current == _NONE and not self._has_losses:
            raise ConfigError(
                f"{type(self._own_draw.rule).__name__} learns from training, and no losses of "
                f"epoch {self._last} were recorded: call sampler.update(indices, losses)"
            )
        order = Order(self)
        if self._resumes != _NONE:
            order.resume(self._resumes, 0)
            self._resumes = _NONE
        return order

    def __len__(self) -> int:
        """Returns the number of this process's examples in an epoch.

        Raises:
            TypeError: With ``shorter_epochs``, before the epoch is begun.
        """
        if not self.draw:
            return self.examples // self.world
        if self.draw.shorter and self._own_draw and self._current == _NONE:
            raise TypeError(
                "how long an epoch is is not known before it begins with shorter_epochs=True: ask "
                "within the epoch, or leave shorter_epochs= out where a length is needed"
            )
        return self.draw.length

    def __bool__(self) -> bool:
        return True  # not by its length, which may be unknown

    def begin(self) -> int:
        """Begins the next epoch, and returns which one it is.

        An epoch that was not given to its end begins again if the rule learns from losses, and none
        was recorded.

        Raises:
            ConfigError: If there are other processes than when the sampler was made, or another
                has other settings; or the data set has another length.
            ProcessError: If not all processes begin it.
        """
        self.epochs_begun += 1
        rank, world = rank_and_world()
        is_alone = world == 1 and dist.is_available() and dist.GroupMember.WORLD  # in `probe`
        if self._follows_processes and not is_alone and (rank, world) != (self.rank, self.world):
            raise ConfigError(
                f"the sampler was made when processes={self.world} were known, and there are "
                f"{world}, which would read the same examples: make it, or the SelectiveLoader, "
                "when torch.distributed is initialised, or give it rank= and world="
            )
        check_length("SelectiveSampler", self.examples, self._dataset)
        draw = self._own_draw
        if draw:
            check_rule_fits(draw.rule, self.examples)
        again = draw and self._current != _NONE and not self._has_losses
        epoch = self._last if again else self._epoch
        if draw:
            barrier(f"the beginning of epoch {epoch}", self._common_settings())
            draw.begin(epoch, again=bool(again))
            self._has_losses = not draw.rule.learns
            if draw.epochs and epoch >= math.ceil(draw.epochs) and not self._warned:
                self._warned = True
                warnings.warn(warning_beyond(epoch, draw.epochs), stacklevel=3)
        elif not self.draw and self._follows_processes and not self._passed_barrier:
            # Only once, as nothing but settings can make their orders differ.
            barrier("the first epoch of a SelectiveSampler", self._common_settings())
            self._passed_barrier = not is_alone
        self._current, self._last, self._epoch = epoch, epoch, epoch + 1
        return epoch

    def end(self) -> None:
        """Ends the epoch that was begun."""
        if self._own_draw and self._current != _NONE:
            self._own_draw.end()
            self._current = _NONE

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        return self._settings(self._current)

    def members(self) -> dict[str, Any]:
        """Returns the draw that this sampler makes itself; None without one."""
        return {"draw": self._own_draw}

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        epoch = integer(most=MOST_EPOCHS)
        return {"_epoch": epoch, "_last": epoch, "_current": integer(_NONE, MOST_EPOCHS)}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If that of a sampler that was made with other arguments, or damaged.
        """
        check_digest(self, state)
        checks = {name.lstrip("_"): check for name, check in self.state_fields().items()}
        check_entries(self, state, checks)
        draw = {"draw": state_of(self._own_draw)}
        check_entries(self, state, draw, self._settings(state["current"]))
        if state["current"] not in (_NONE, state["last"]):
            raise_damaged(
                "SelectiveSampler.current", state["current"], f"{state['last']}, as its last"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another sampler's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        super().load_state_dict(state)
        self._has_losses = True

    def _common_settings(self) -> dict[str, Any]:
        """Returns what all processes must have alike; of the order, where they share one."""
        shared: dict[str, Any] = {}
        if self.world > 1:
            shared = {name: getattr(self, name) for name in ("examples", "seed", "shuffle")}
            shared["dataset"] = fingerprint(self._dataset)
        draw = self.draw.common_settings() if self.draw else {"rule": None}
        return {**shared, "world": self.world, **draw}

    def _settings(self, current: int) -> dict[str, Any]:
        """Returns the settings of a state: between epochs one of shards is of all processes."""
        draw, names = self._own_draw, ("examples", "seed", "shuffle", "rank", "world")
        settings = {name: getattr(self, name) for name in names}
        settings |= {"subset": subset} if (subset := subset_name(self._dataset)) else {}
        if draw and draw.rule.shards and current == _NONE:
            settings |= {"rank": None, "world": None}
        return {**settings, "rule": type(draw.rule).__name__ if draw else None}


class Order(Stateful, Iterator[int]):
    """One epoch's order, begun with its first index; with a state, to go on within it."""

    def __init__(self, sampler: SelectiveSampler) -> None:
        self._sampler, self._epoch, self._count = sampler, _NONE, 0
        self._indices: Iterator[int] = iter(())

    def __next__(self) -> int:
        for index in self._indices:
            self._count += 1
            return index
        for index in self.take(1):  # with which the epoch begins; at its end there is none
            return index
        raise StopIteration

    def take(self, count: int) -> list[int]:
        """Returns the next indices, fewer at the end of the epoch, as that many ``next()`` do."""
        if self._epoch == _NONE:
            self.resume(self._sampler.begin(), 0)
        indices = list(itertools.islice(self._indices, count))
        self._count += len(indices)
        if len(indices) < count:
            self._sampler.end()
        return indices

    def state_fields(self) -> dict[str, Check]:
        """Returns the epoch, and the number of indices that came of it."""
        count = integer(most=self._sampler.examples)
        return {"_epoch": integer(_NONE, MOST_EPOCHS), "_count": count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another order's state."""
        super().load_state_dict(state)
        self.resume(self._epoch, self._count)

    def resume(self, epoch: int, count: int) -> None:
        """Goes on within an epoch after as many indices."""
        self._epoch, self._count = epoch, count
        if epoch != _NONE:
            self._indices = itertools.chain.from_iterable(self._blocks(count))

    def _blocks(self, skipped: int) -> Iterator[list[int]]:
        for indices in self._sampler.order(self._epoch):
            # As Python's integers a few at a time, which take ten times the room of a tensor's.
            yield from (block.tolist() for block in torch.split(indices[skipped:], _BLOCK))
            skipped = max(skipped - len(indices), 0)


def keep_apart(order: Tensor, neighbors: Tensor, batch_size: int) -> Tensor:
    """Moves examples that a batch has already behind the next ones, so that it has none twice.

    Args:
        order: int64[n], the examples of a pass.
        neighbors: int64[m], those of the batch in which the pass begins.
        batch_size: Examples per batch.

    Returns:
        int64[n]. Of a pass with fewer other examples than a batch, some may still come twice.

    >>> keep_apart(torch.tensor([3, 1, 4, 0, 2]), torch.tensor([1, 3]), batch_size=2)
    tensor([4, 0, 3, 1, 2])
    """
    if not (len(order) and len(neighbors)):
        return order
    # By a table, which takes a fraction of the time of `torch.isin`.
    table = torch.zeros(int(max(order.max(), neighbors.max())) + 1, dtype=torch.bool)
    table[neighbors] = True
    is_neighbor = table[order]
    if not is_neighbor.any():
        return order
    others = order[~is_neighbor]
    return torch.cat((others[:batch_size], order[is_neighbor], others[batch_size:]))


def check_rule_fits(rule: EpochRule, examples: int) -> None:
    """Checks that a rule has not seen more examples than there are.

    It remembers them by index: of more, new ones are unknown, and are drawn first.

    Raises:
        ConfigError: If it has.
    """
    if rule.examples > examples:
        raise ConfigError(
            f"{type(rule).__name__} remembers {rule.examples} examples, and there are {examples}: "
            f"give a new {type(rule).__name__}(...) for a data set with fewer"
        )


def warning_beyond(epoch: int, epochs: float) -> str:
    """Returns the warning of an epoch after the last one of a training."""
    return (
        f"epoch {epoch}, counted from 0, is beyond epochs={epochs:g}: progress is 1, the tail of "
        "the schedule is over, and total_steps does not count it. Give epochs= the full length"
    )
