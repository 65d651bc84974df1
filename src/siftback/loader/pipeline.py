"""The way of batches from a wrapped loader to training, and the epoch that training is in."""

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any
from weakref import WeakValueDictionary

import torch

from siftback.batches.batch import Batch
from siftback.batches.indices import examples_of
from siftback.batches.order import count_batches, sampler_of
from siftback.batches.pool import Pool
from siftback.batches.source import UNKNOWN_SIZE, Source, saved_lists
from siftback.epochs.loader_order import own_ranks
from siftback.epochs.sampler import SelectiveSampler, warning_beyond
from siftback.errors import BatchError, ConfigError
from siftback.loader.losses import LossRecord
from siftback.loader.selection import BatchSelection
from siftback.loader.wrapped import check_shared, is_own_size, resolve_pool
from siftback.processes.barrier import barrier
from siftback.selectors.selection import Selection
from siftback.state import check_entries, integer, nothing, number, state_of, tuple_of

_MEMBERS = "selector", "scorer", "draw", "record"  # which a state has entries for
_UNKNOWN = -1  # in a state: a count that is not known
_MOST = 1 << 40  # examples or batches of an epoch
_ROUNDING = 1e-9


@dataclass(eq=False)
class Epoch:
    """An epoch that training is in, until it is done with the last batch.

    Attributes:
        number: The epoch, from 0.
        released_before: Examples given to training before it; -1 if it is gone on with.
        batches: Batches given of it, since it was begun or gone on with.
        offered: Examples read, since then.
        selected: The examples of those that were not left out.
        is_open: Whether its iterator goes on; False once a loop has left it.
        is_over: Whether it has ended, so that training is between epochs.
    """

    number: int = 0
    released_before: int = 0
    batches: int = 0
    offered: int = 0
    selected: int = 0
    is_open: bool = True
    is_over: bool = False


NO_EPOCH = Epoch(is_open=False, is_over=True)


_SECOND: "WeakValueDictionary[Any, Pipeline]" = WeakValueDictionary()
"""Which loader gave the second batch of an epoch last, by the seed of its order and the thread."""


@dataclass(eq=False, kw_only=True)
class Pipeline(ABC):
    """The way of batches from a wrapped loader to training, and the epoch that training is in.

    There are two: `DrawingPipeline` chooses before examples are read, `ScoringPipeline` after.

    Attributes:
        wrapped: The wrapped loader.
        source: Reads it.
        selection: Selects among the examples of a batch that was read; None where nothing does.
        epochs: Epochs of the whole training; None where they are not known.
        model: The model to whose device batches are moved; None where they stay.
        pool: Makes the training batches; one without a size takes that of the first batch.
        record: Matches losses with batches, and has the statistics.
        examples: Number of examples of the data set; None where it is not known.
        is_own_size: Whether whole batches of the wrapped loader are training batches as they are.
        splits: Whether batches are taken apart, or joined with others.
        leaves_out_read: Whether examples that were read are left out.
        epoch: The epoch that training is in.
        is_set: Whether `set_epoch` had it begin again.
        known_steps: Training batches of the current epoch; None where they are not known.
        to_come: Examples that it still adds to the pool; infinity where they are not known.
        done: Epochs of source examples done before the batch given last.
        done_next: Epochs of source examples done before the next batch.
        loaded: The state within an epoch that was loaded, to go back to; None without one.
    """

    wrapped: Any
    source: Source
    selection: BatchSelection | None
    epochs: float | None
    model: torch.nn.Module | None
    pool: Pool
    record: LossRecord
    epoch: Epoch = NO_EPOCH
    is_set: bool = False
    known_steps: int | None = None
    to_come: float = math.inf
    done: float = 0.0
    done_next: float = 0.0
    loaded: dict[str, Any] | None = None

    splits = True

    def __post_init__(self) -> None:
        self.stats, self.examples = self.record.stats, examples_of(self.wrapped)
        self.is_own_size = is_own_size(self.source.loader, self.pool)
        self.leaves_out_read = bool(self.selection and self.selection.leaves_out)
        known = getattr(getattr(self.selection, "scorer", None), "known_examples", self.examples)
        if self.examples and known != self.examples:
            raise ConfigError(
                f"the scorer knows {known} examples by index, and the data set has "
                f"{self.examples}: give its own, such as losses[subset.indices] of a Subset"
            )
        self._follow: Callable[[], None] | None = None  # the step with the batch in training
        self._warned: set[str] = set()

    def check_lengths(self) -> None:  # noqa: B027 - a sampler of PyTorch's follows one that grows
        """Checks that the data set and the rule have the length that the loader was made for."""

    def leaves_out_unread(self) -> bool:
        """Returns whether the current epoch has fewer examples than there are to read."""
        return False

    @abstractmethod
    def select(self, batch: Batch) -> Selection | None:
        """Selects among the examples of a batch that was read; None where nothing decides on it.

        Raises:
            LossError: If scores cannot be selected by.
        """

    @abstractmethod
    def plan_rows(self, number: int) -> tuple[int, bool]:
        """Returns the examples of an epoch, and whether these are all.

        Raises:
            TypeError: If they are not known before it.
        """

    def begun_rows(self, number: int) -> tuple[int, bool]:
        """Returns the same of an epoch whose examples are drawn."""
        return self.plan_rows(number)

    @property
    def shares_order(self) -> bool:
        """Whether each process has a share of a common order."""
        _, world = own_ranks(sampler_of(self.source.loader)) or (0, 1)
        return world > 1

    @property
    @abstractmethod
    def share(self) -> float:
        """Share of the examples that is trained on."""

    @property
    def next_epoch(self) -> int:
        """The current epoch; between epochs, and once a loop has left one early, the next one."""
        epoch = self.epoch
        if epoch.is_over or self.is_set:
            return self.source.epoch
        # The source may be past an open one, of which the pool has the last rows.
        return epoch.number + (not epoch.is_open and not self.begins_again(epoch))

    @property
    def is_between_epochs(self) -> bool:
        """Whether nothing of an epoch is left to be trained on, nor known of its batches alone."""
        return not (self.source.is_within or len(self.pool) or self.record.has_means)

    # Batches, from the wrapped loader to training.

    def training_batches(self, epoch: Epoch) -> Iterator[Batch]:
        """Yields the batches of an epoch, as training gets them: full ones of what is kept.

        Raises:
            BatchError: If a batch is empty or cannot be split, indices that are needed are missing
                or wrong, or there is no batch.
            LossError: If scores cannot be selected by.
        """
        for batch in self.pooled_batches(epoch):
            # What the source has read is spread evenly over the batches made of it.
            self.done = self.done_next
            self.done_next += (self.source.epochs_done - self.done_next) / (self.pool.ready + 1)
            yield batch

    def pooled_batches(self, epoch: Epoch) -> Iterator[Batch]:
        """Yields full batches of the examples that are kept of each batch that the loader reads."""
        source, pool, stats = self.source, self.pool, self.stats
        batches, is_single = self.read_batches(), False
        if len(pool):  # before this epoch, or when a state was saved
            yield from pool.release_full(self.to_come)
        for read in batches:
            started = time.perf_counter()
            batch = self.admit(read)
            selection = self.select(batch)
            if selection:
                selected = batch.keep(*selection)
                stats.considered += batch.size
                stats.kept += selected.size
                stats.seconds_selection += time.perf_counter() - started
            else:
                selected = replace(batch, weights=batch.loss_weights())
            epoch.offered += batch.size
            epoch.selected += selected.size
            is_copy = selected.size < batch.size
            pool.batch_size = pool.batch_size or batch.size
            # A last batch of one row is the user's own where nothing was left out of the epoch.
            is_single = batch.size == selected.size == 1 and self.is_own_size
            is_single = is_single and not (len(pool) or self.leaves_out_unread())
            if self.to_come == math.inf and source.position == 0:
                self.count_batches(epoch.number)  # what a sampler gives is known with its first
            self.to_come = max(self.to_come - selected.size, 0)
            fits = batch.lists is not None and len(batch.requested) in (0, batch.size)
            if fits or self.splits:
                if self.leaves_out_read and not pool.is_tried:
                    pool.try_batch(batch, source.place)
                pool.add_batch(selected, is_copy=is_copy)
                source.position += 1
            else:  # it cannot be pooled with others
                source.position += 1
                yield selected
            for full in pool.release_full(self.to_come):
                pool.is_tried |= is_copy  # rows of several batches were joined in earnest
                yield full
        is_single = is_single or self.known_steps == 1
        self.end_source(epoch)
        yield from pool.release_last(single=is_single)

    def read_batches(self) -> Iterator[Batch]:
        """Returns the batches of an epoch, or of its rest, as the wrapped loader has them."""
        return self.source.batches()

    def admit(self, batch: Batch) -> Batch:
        """Checks a batch that was read, and moves it to the model's device.

        Raises:
            BatchError: If it is empty, or must be split and cannot be.
        """
        source = self.source
        if batch.lists is None and (self.splits or batch.size == UNKNOWN_SIZE):
            try:
                source.read_structure(batch.data, batch.size)
            except BatchError as error:
                raise BatchError(f"{source.place} cannot be split into examples: {error}") from None
        if batch.size == 0:
            raise BatchError(f"{source.place} is empty: leave empty batches out of the loader")
        return batch if self.model is None else batch.to_device_of(self.model)

    def follow_step(self, selection: BatchSelection, batch: Batch) -> None:
        """Has a scorer follow the step with a batch that training is given."""
        after_step = selection.scorer.after_step
        self._follow = partial(after_step, selection.losses, selection.model, batch.data)

    def finish_step(self) -> None:
        """Ends the step with the batch given last: training asks for the next one, or for state."""
        follow, self._follow = self._follow, None
        if follow:
            started = time.perf_counter()
            follow()
            self.stats.seconds_selection += time.perf_counter() - started

    # The beginning and the end of epochs.

    def begin_epoch(self, settings: Mapping[str, Any]) -> Epoch:
        """Begins the next epoch, or goes on with the one that a loaded state was within.

        An epoch that a loop has left is ended before, unless it begins again.

        Args:
            settings: Settings that all processes must have alike.

        Raises:
            ConfigError: If the data set has another length than when the loader was made, or the
                losses or weights of the epoch before were not used.
        """
        self.finish_step()
        again = not self.epoch.is_over and self.leave_epoch(self.epoch)
        number, is_resumed = self.source.epoch, self.source.is_resumed
        self.check_lengths()
        if is_resumed and self.source.is_within:
            if self.shares_order:
                # Else a process whose state is of between epochs would wait for others in vain.
                position = {"state.position": self.source.position}
                barrier(f"the rest of epoch {number}", {**settings, **position})
        else:
            self.record.check_used(self.record.skips_last)
            self.record.clear()
            barrier(f"the beginning of epoch {number}", settings)
            self.begin_whole_epoch(number, again=again)
            if self.epochs and number >= math.ceil(self.epochs):
                self._warn("beyond", warning_beyond(number, self.epochs))
            self.count_batches(number)
        self.epoch = Epoch(number, -1 if is_resumed else self.stats.released)
        return self.epoch

    def warn_of_steps(self) -> None:  # noqa: B027 - some draw nothing
        """Warns, at an epoch's second batch, of processes that each draw a number of their own."""

    def warn_of_use(self) -> None:
        """Warns, at its second batch, of an epoch without gradients, or beside another loader.

        The first is an evaluation: it would be on selected examples, and counts as an epoch. Where
        another loader gives the same examples, a loop over both, as of pairs or of two images to
        mix, would have each example twice.
        """
        if not torch.is_grad_enabled():
            self._warn(
                "evaluation",
                f"an evaluation, without gradients, is given what training selects in epoch "
                f"{self.epoch.number}, and counts as that epoch: evaluate on the DataLoader itself",
            )
        sampler = sampler_of(self.source.loader)
        if not (isinstance(sampler, SelectiveSampler) and sampler.shuffle):
            return
        # A thread's own, as trainings of a search in several threads are not side by side.
        order = (sampler.seed, sampler.examples, sampler.rank, get_ident())
        number = self.epoch.number
        other, _SECOND[order] = _SECOND.get(order, self), self
        # Else it is past that batch, or its loop was left.
        is_beside = other.epoch.is_open and (other.epoch.number, other.epoch.batches) == (number, 2)
        if other is not self and is_beside:
            self._warn(
                "order",
                f"two loaders of {sampler.examples} examples shuffle them by seed={sampler.seed}, "
                "so that they give the same examples side by side until they leave out others: "
                f"give one of them seed={sampler.seed + 1}, or, where pairs are to stay together, "
                "one loader a StackDataset",
            )

    def begin_whole_epoch(self, number: int, *, again: bool) -> None:
        """Begins an epoch from its start.

        Args:
            number: The epoch.
            again: Whether it begins again as it was drawn, as nothing of it was trained on.
        """
        self.done = self.done_next = float(number)
        self.is_set, self.loaded = False, None

    def end_source(self, epoch: Epoch) -> None:
        """Moves the source to the next epoch, as it has no more batches of this one.

        Raises:
            BatchError: If it gave none.
        """
        if self.source.position == 0:
            raise BatchError(
                f"the wrapped {type(self.source.loader).__name__} gave no batch: "
                "give one that is not empty and can be iterated once an epoch; where examples were "
                "drawn and are fewer than a batch, one without drop_last=True"
            )
        if epoch.offered > 0 == epoch.selected and epoch.released_before >= 0:
            warnings.warn(
                f"nothing was kept of epoch {epoch.number}: no example was trained on", stacklevel=4
            )
        self.source.end_epoch()

    def end_epoch(self, epoch: Epoch) -> None:
        """Ends an epoch all of whose batches training is done with.

        Raises:
            BatchError: If the examples drawn made no batch.
            ConfigError: If no losses or weights were used.
        """
        self.stats.dropped = self.pool.dropped
        self.record.end_epoch()
        self.done = self.done_next = self.source.epochs_done
        self.epoch, self.is_set = NO_EPOCH, False

    def begins_again(self, epoch: Epoch) -> bool:
        """Returns whether an epoch that was left begins again, as it was only looked at.

        Where a rule learns, no loss was recorded; otherwise one batch was taken of several.
        """
        ended = self.source.epoch != epoch.number or self.source.is_exhausted
        looked = self.record.learns or (epoch.batches <= 1 and not ended)
        return looked and not self.record.recorded

    def leave_epoch(self, epoch: Epoch) -> bool:
        """Ends an epoch that was left early, unless it begins again.

        Returns:
            Whether it begins again as it was drawn.
        """
        begins_again, source = self.begins_again(epoch), self.source
        self.epoch = NO_EPOCH
        self.drop_remaining()
        if self.is_set:
            source.position = 0
        elif begins_again and self.loaded:
            self.load_flow(self.loaded)
        elif begins_again:
            source.go_to(epoch.number)
            return True
        elif source.epoch == epoch.number and source.is_exhausted:
            self.end_source(epoch)
        elif source.epoch == epoch.number:
            self._warn(
                "left",
                f"epoch {epoch.number} was left after {source.position} batches of the wrapped "
                "loader, and counts as ended: the examples after them are not trained on in it. "
                f"To begin it again, call loader.set_epoch({epoch.number}) before iterating; to go "
                "on within it, load a state that was saved there",
                stacklevel=5,
            )
            self.leave_source()
        return False

    def leave_source(self) -> None:
        """Moves the source to the next epoch, though it has batches of this one."""
        self.source.end_epoch()

    def drop_remaining(self) -> None:
        """Drops what is left of an epoch of which training did not ask for all batches.

        Raises:
            ConfigError: As for `LossRecord.check_left`, or if no losses or weights were used.
        """
        if self.source.is_exhausted and not self.is_set:
            self.record.check_left()
        self.record.end_epoch()
        self.record.clear()
        self.pool.abandon()
        self.stats.dropped = self.pool.dropped

    def set_epoch(self, number: int) -> None:
        """Sets which epoch comes next; what is left of another one is not given any more."""
        source, epoch = self.source, self.epoch
        if number == source.epoch:
            # After no more than a look it begins again as it was drawn.
            looked = number == epoch.number and not self.loaded and self.begins_again(epoch)
            self.is_set = not (epoch.is_over or looked)
        elif not epoch.is_over or source.is_within:
            self.finish_step()
            self.drop_remaining()
            if source.is_exhausted:  # of a loaded state too
                self.end_source(epoch)
            else:
                self.leave_source()
            self.epoch = NO_EPOCH
        source.set_epoch(number)
        if not source.is_within and not source.is_resumed:
            self.done = self.done_next = float(number)

    def _warn(self, cause: str, message: str, stacklevel: int = 4) -> None:
        if cause not in self._warned:
            self._warned.add(cause)
            warnings.warn(message, stacklevel=stacklevel)

    # The numbers of training batches.

    def count_batches(self, number: int) -> None:
        """Counts what an epoch that was drawn gives to training, as far as that is known."""
        pool, self.known_steps = self.pool, None
        try:
            self.check_sized()
            rows, is_whole = self.begun_rows(number)
        except TypeError:
            self.to_come = self.estimate_to_come(number)
            return
        # The user's own batches are given as they are, the last one of a single row included.
        self.to_come = math.inf if is_whole and is_own_size(self.source.loader, pool) else rows
        if not (self.selection and self.selection.is_by_chance):
            self.known_steps = self.count(len(pool) + rows, is_whole and not len(pool))

    def estimate_to_come(self, number: int) -> float:
        """Returns the examples that an epoch adds to the pool where they cannot be counted."""
        return math.inf

    def steps(self, number: int) -> int:
        """Returns the training batches of an epoch.

        Raises:
            TypeError: If they are not known before it.
        """
        if self.epoch.is_open and number == self.epoch.number and self.known_steps is not None:
            return self.known_steps
        return self.plan_steps(number)

    def plan_steps(self, number: int) -> int:
        """Returns the training batches of an epoch, before it is drawn.

        Raises:
            TypeError: If they are not known then.
        """
        self.check_sized()
        rows, is_whole = self.plan_rows(number)
        if self.pool.drop_last != "carry":
            return self.count(rows, is_whole)
        before = sum(self.plan_rows(earlier)[0] for earlier in range(number))
        size = self.pool.batch_size
        return (before + rows) // size - before // size

    def total_steps(self, epochs: int) -> int:
        """Returns the training batches of a number of epochs, as `plan_steps` does of each."""
        if self.pool.drop_last == "carry":
            self.check_sized()
            return sum(self.plan_rows(n)[0] for n in range(epochs)) // self.pool.batch_size
        return sum(self.plan_steps(number) for number in range(epochs))

    @property
    def length(self) -> int:
        """Training batches of the current epoch; between epochs, of the next one.

        Raises:
            TypeError: If they are not known before the epoch is over, or before it begins. Between
                epochs, also if those of other epochs would not be: a loop that needs a length then
                stops in the first epoch, and not after it.
        """
        is_open, source = self.epoch.is_open, self.source
        is_begun = is_open or (source.is_resumed and source.is_within)
        if is_begun and self.known_steps is not None:
            return self.known_steps
        number = self.epoch.number if is_open else self.next_epoch
        self.check_counted(number)
        return self.plan_steps(number)

    def check_sized(self) -> None:
        """Checks that the size of training batches is known.

        Raises:
            TypeError: If it is not.
        """
        if not self.pool.batch_size:
            raise TypeError(
                "how many steps an epoch has is not known before its first batch, as a "
                f"{type(self.source.loader).__name__} has no batch_size: give pool=Pool(batch_size)"
            )

    def check_counted(self, number: int) -> None:
        """Checks that an epoch's number of examples is known before it.

        Raises:
            TypeError: If it is left to chance, in any epoch.
        """
        if self.selection and self.selection.is_by_chance:
            raise self.selection.left_to_chance()

    def count(self, rows: int, is_whole: bool) -> int:
        """Returns the training batches of some examples, which are all of an epoch or not."""
        size, drop_last = self.pool.batch_size, self.pool.drop_last
        if is_whole and not drop_last and is_own_size(self.source.loader, self.pool):
            return -(-rows // size)
        return count_batches(rows, size, bool(drop_last))

    # The state: the place in the source, what is pooled, and what was counted.

    def members(self) -> dict[str, Any]:
        """Returns the objects with a state, by name, besides the batches on their way."""
        selection = self.selection
        choice = {"selector": selection.selector, "scorer": selection.scorer} if selection else {}
        return {**choice, "record": self.record}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each member, of the source and the pool, and all counts."""
        source = self.source
        steps = _UNKNOWN if self.known_steps is None else self.known_steps
        to_come = _UNKNOWN if self.to_come == math.inf else self.to_come
        # Before the draw's: a sampler is read to its end, and the draw counts what it gave.
        source_state = source.state_dict()
        return {
            **dict.fromkeys(_MEMBERS),
            **{name: member.state_dict() for name, member in self.members().items()},
            "source": source_state,
            "pool": self.pool.state_dict() if self.pool.batch_size else None,
            # The last rows of an epoch may wait for their release, where that was interrupted.
            "epochs_done": (max(self.done_next, source.epoch), source.epochs_done),
            "to_come": to_come if source.is_within else _UNKNOWN,
            "batches": steps if source.is_within else _UNKNOWN,
            "stats": asdict(self.stats),
        }

    def check_state(self, owner: object, state: dict[str, Any]) -> None:
        """Checks that a state with the same settings is not damaged.

        Args:
            owner: The loader that loads it.
            state: The saved state.

        Raises:
            StateError: If it is.
        """
        saved, pool = state["settings"], nothing
        if None not in (saved["batch_size"], saved["drop_last"]):
            pool = state_of(self._empty_pool(saved))
        checks = {
            **dict.fromkeys(_MEMBERS, nothing),
            **{name: state_of(member) for name, member in self.members().items()},
            "source": state_of(self.source),
            "pool": pool,
            "stats": self.stats.check,
            "to_come": integer(_UNKNOWN, _MOST),
            "batches": integer(_UNKNOWN, _MOST),
        }
        check_entries(owner, state, checks)
        source = state["source"]
        done = source["epoch"]
        if source["batches"] > 0:
            done += min(source["position"] / source["batches"], 1.0)
        most = done + _ROUNDING
        bounds = number(source["epoch"], most), number(done - _ROUNDING, most)
        check_entries(owner, state, {"epochs_done": tuple_of(*bounds)})

    def load_flow(self, state: dict[str, Any]) -> None:
        """Goes on from a state that was checked, besides the members; if it fails, as it was."""
        pool = resolve_pool(self.wrapped, None)
        if state["pool"] is not None:
            pool = self._empty_pool(state["pool"]["settings"])
            pool.lists = saved_lists(state["source"])
            pool.load_state_dict(state["pool"])
        self.source.load_state_dict(state["source"])
        self.pool = pool
        vars(self.stats).update(state["stats"])
        self.done = self.done_next = state["epochs_done"][0]
        self.to_come = math.inf if state["to_come"] == _UNKNOWN else state["to_come"]
        self.known_steps = None if state["batches"] == _UNKNOWN else state["batches"]
        self.epoch, self.is_set, self._follow = NO_EPOCH, False, None
        if self.selection:
            self.selection.is_tried |= self.source.epoch > 0 or self.source.is_within
        self.record.clear()
        self.loaded = state if self.source.is_within else None

    def _empty_pool(self, sizes: Mapping[str, Any]) -> Pool:
        return Pool(sizes["batch_size"], sizes["drop_last"], pad=self.pool.pad)


@dataclass(eq=False, kw_only=True)
class ScoringPipeline(Pipeline):
    """Training batches of the examples that a selector keeps of each batch of a wrapped loader."""

    selection: BatchSelection

    @property
    def share(self) -> float:
        """See `Pipeline.share`."""
        return self.selection.share(self.done)

    def check_lengths(self) -> None:
        """Checks that processes which were started since the loader was made share its order."""
        check_shared(self.source.loader)

    def select(self, batch: Batch) -> Selection | None:
        """See `Pipeline.select`."""
        self.stats.seen += batch.size
        return self.selection.select(batch, self.source)

    def plan_rows(self, number: int) -> tuple[int, bool]:
        """See `Pipeline.plan_rows`."""
        return self.selection.plan_rows(self.source.loader, number)
