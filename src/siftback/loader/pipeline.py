"""The objects that a loader combines, and the epoch that training is in."""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.indices import IndexCheck, check_length, examples_of, length_of
from siftback.batches.order import batches_of, has_indices_within, is_plain, sampler_of
from siftback.batches.pool import Pool
from siftback.batches.source import UNKNOWN_SIZE, Source
from siftback.batches.stats import Stats
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.loader_order import repeats
from siftback.epochs.sampler import check_rule_fits, warning_beyond
from siftback.errors import BatchError
from siftback.loader.losses import LossRecord
from siftback.loader.selection import BatchSelection
from siftback.loader.steps import StepCounts
from siftback.loader.trial import PoolTrial
from siftback.loader.wrapped import is_own_size, no_indices
from siftback.processes.barrier import barrier
from siftback.schedule import Schedule


@dataclass(eq=False)
class Epoch:
    """An epoch that training is in, until it is done with the last batch.

    Attributes:
        number: The epoch, from 0.
        released_before: Examples given to training before it; -1 if it is gone on with.
        given: Batches given of it, since it was begun or gone on with.
        offered: Examples read, since then.
        kept: The examples of those that were not left out.
        is_open: Whether its iterator goes on; False once a loop has left it.
    """

    number: int
    released_before: int
    given: int = 0
    offered: int = 0
    kept: int = 0
    is_open: bool = True


@dataclass(eq=False)
class Pipeline:
    """The objects that a loader combines, and the epoch that training is in.

    Attributes:
        wrapped: The wrapped loader.
        source: Reads it.
        draw: Leaves examples out before they are read; None without a rule.
        selection: Leaves out examples that were read; None where nothing does.
        schedule: When it does.
        epochs: Epochs of the whole training; None where they are not known.
        model: The model to whose device batches are moved; None where they stay.
        pool: Makes the training batches; None makes one of the size of the first batch.
        regroups: Whether the pool may make other batches than the wrapped loader's.
        record: Matches losses with batches.
        stats: Counts what is done.
        attach: Whether batches carry their indices and weights.
        examples: Number of examples of the data set; None where it is not known.
        is_own_size: Whether whole batches of the wrapped loader are training batches as they are.
        reads_drawn: Whether what was not drawn is not read either.
        splits: Whether batches are taken apart, or joined with others.
        gives_as_read: Whether batches of drawn examples are training batches as they are read.
        epoch: The epoch that training is in; None between epochs.
        is_set: Whether `set_epoch` had it begin again.
        batches: Training batches of the current epoch; None where they are not known.
        to_come: Examples that it still adds to the pool; None where they are not known.
        done: Epochs of source examples done before the batch given last.
        done_next: Epochs of source examples done before the next batch.
        loaded: Goes back to the state within an epoch that was loaded; None where there is none.
    """

    wrapped: Any
    source: Source
    draw: EpochDraw | None
    selection: BatchSelection | None
    schedule: Schedule
    epochs: float | None
    model: nn.Module | None
    pool: Pool | None
    regroups: bool
    record: LossRecord
    stats: Stats
    attach: bool
    epoch: Epoch | None = None
    is_set: bool = False
    batches: int | None = None
    to_come: int | None = None
    done: float = 0.0
    done_next: float = 0.0
    loaded: "Callable[[Pipeline], None] | None" = None
    trial: PoolTrial = field(default_factory=PoolTrial)
    tried_scores: bool = False

    def __post_init__(self) -> None:
        source, draw, batches = self.source, self.draw, batches_of(self.source.loader)
        self.examples = examples_of(self.wrapped)
        self._length = length_of(getattr(self.wrapped, "dataset", None))
        self._training: Any = None  # the data of the batch that training was given last
        self._warned: set[str] = set()
        # A loader of another kind than a DataLoader that leaves examples out itself.
        self._set_drawn = None if source.is_ordered else getattr(self.wrapped, "only", None)
        self.is_own_size = is_own_size(source.loader, self.pool)
        self.reads_drawn = source.is_ordered or self._set_drawn is not None
        self.splits = self.selection is not None or self.regroups
        self.splits |= draw is not None and not self.reads_drawn
        inner = getattr(batches, "sampler", None)
        is_sized = hasattr(getattr(inner, "sampler", inner), "__len__")
        same = is_plain(batches) and self.pool is not None and not self.regroups
        self.gives_as_read = (
            draw is not None
            and source.is_ordered
            and is_sized  # else a last batch of a single row is only known as it comes
            and (same and self.pool is not None and self.pool.drop_last == batches.drop_last)
        )
        self._check: IndexCheck | None = None
        if draw is not None and not (self.gives_as_read and draw.sampler is None):
            # A sampler of the user's own repeats what it is meant to.
            may_repeat = repeats(sampler_of(self.wrapped)) or draw.sampler is not None
            may_repeat |= has_indices_within(source.loader)
            rows_of = None if draw.rule.shards is None else draw.rows_of
            self._check = IndexCheck(self.examples, repeats=may_repeat, rows_of=rows_of)

    @property
    def draws(self) -> bool:
        """Whether this epoch's examples were drawn before they are read."""
        return self.draw is not None and self.draw.draws

    @property
    def chooses_before_reading(self) -> bool:
        """Whether the batches of this epoch are training batches as they are read."""
        selects = self.selection is not None and not self.draws
        return self.gives_as_read and not selects and not self.pool

    @property
    def shares_order(self) -> bool:
        """Whether each process has a share of a common order."""
        sampler = sampler_of(self.source.loader)
        return int(getattr(sampler, "world", getattr(sampler, "num_replicas", 1))) > 1

    @property
    def steps(self) -> StepCounts:
        """The numbers of training batches of epochs."""
        return StepCounts(
            self.source.loader, self.pool, self.draw, self.selection, self.schedule, self.epochs
        )

    @property
    def next_epoch(self) -> int:
        """The current epoch; between epochs, and once a loop has left one early, the next one."""
        epoch = self.epoch
        if epoch is None or epoch.is_open or self.is_set:
            return self.source.epoch
        return epoch.number + (not self.begins_again(epoch))

    @property
    def current(self) -> int | None:
        """The epoch whose batches are being given; None where none is."""
        return self.epoch.number if self.epoch is not None and self.epoch.is_open else None

    @property
    def length(self) -> int:
        """Training batches of the current epoch; between epochs, of the next one.

        Raises:
            TypeError: If they are not known before the epoch is over, or before it begins.
        """
        current, source = self.current, self.source
        is_begun = current is not None or (source.is_resumed and source.is_within)
        if is_begun and self.batches is not None:
            return self.batches
        return self.steps.of_next(self.next_epoch if current is None else current)

    @property
    def is_between_epochs(self) -> bool:
        """Whether nothing of an epoch is left to be trained on, nor known of its batches alone."""
        return not (self.source.is_within or self.pool or self.record.has_means)

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
        again = self.epoch is not None and self.leave_epoch(self.epoch)
        source, draw = self.source, self.draw
        number, is_resumed = source.epoch, source.is_resumed
        self._check_lengths()
        if is_resumed and source.is_within:
            if self.shares_order:
                # Else a process whose state is of between epochs would wait for others in vain.
                barrier(f"the rest of epoch {number}", settings)
        else:
            self.record.check_used(0)
            self.record.clear()
            self.done = self.done_next = float(number)
            if self._check is not None:
                self._check.begin_epoch()
            barrier(f"the beginning of epoch {number}", settings)
            if draw is not None:
                started = time.perf_counter()
                draw.begin(number, again=again)
                self.set_drawn()
                self.stats.seconds_selection += time.perf_counter() - started
            if self.epochs is not None and number >= math.ceil(self.epochs):
                self._warn("beyond", warning_beyond(number, self.epochs), stacklevel=4)
            self.is_set, self.loaded = False, None
            self.count_batches(number)
        self.epoch = Epoch(number, -1 if is_resumed else self.stats.released)
        return self.epoch

    def count_batches(self, number: int) -> None:
        """Counts what an epoch that was drawn gives to training."""
        steps = self.steps
        self.batches = steps.of_current(number, 0 if self.pool is None else len(self.pool))
        self.to_come = steps.to_come(number)

    def set_drawn(self) -> None:
        """Passes what was drawn to a wrapped loader that leaves examples out itself."""
        if self._set_drawn is not None and self.draw is not None:
            drawn = self.draw.weights.nonzero().squeeze(1) if self.draw.draws else None
            self._set_drawn(drawn)

    def resume(self) -> None:
        """Goes on from a state that was loaded."""
        self.epoch, self.is_set, self._training = None, False, None
        self.tried_scores = self.source.epoch > 0 or self.source.is_within
        self.record.clear()
        if self._check is not None:
            self._check.begin_epoch()  # as batches that were done do not come here again
        self.set_drawn()

    def admit(self, batch: Batch) -> Batch:
        """Checks a batch that was read, counts its examples, and moves it to the model's device.

        Raises:
            BatchError: If it is empty, or its indices are needed and missing or wrong.
        """
        draw, source, indices = self.draw, self.source, batch.indices
        if draw is not None and indices is None:
            raise BatchError(f"{source.place}: {no_indices(type(draw.rule).__name__, source)}")
        if batch.lists is None and (self.splits or batch.size == UNKNOWN_SIZE):
            try:
                source.read_structure(batch.data, batch.size)
            except BatchError as error:
                raise BatchError(f"{source.place} cannot be split into examples: {error}") from None
        if batch.size == 0:
            raise BatchError(
                f"{source.place} is empty: leave empty batches out of the wrapped loader"
            )
        if draw is None:
            self.stats.seen += batch.size
        else:
            count = batch.requested or batch.size
            self.stats.seen += count
            if draw.draws and self.reads_drawn:
                self.count_unread(draw.advance(count) - count)
            if self._check is not None and indices is not None:
                self._check.check(indices, source.place)
                draw.admit(indices)
        if self.model is None:
            return batch
        return replace(batch, data=tree.to_device_of(batch.data, self.model))

    def count_unread(self, count: int) -> None:
        """Counts examples that were left out unread, as seen and considered too."""
        self.stats.seen += count
        self.stats.considered += count
        self.stats.unread += count

    def give(self, batch: Batch, epoch: Epoch) -> Any:
        """Gives a batch to training, and returns its data."""
        weights, draw, selection = batch.weights, self.draw, self.selection
        if weights is None:
            device = tree.device(batch.data)
            weights = torch.ones(batch.size, device=device, dtype=torch.float32)
        reweights = draw is not None and draw.reweights
        reweights |= selection is not None and selection.selector.reweights
        self.stats.released += batch.size
        self.record.give(weights, batch.indices, epoch.number, reweights)
        epoch.given += 1
        self._training = batch.data
        # What the source has read is spread evenly over the batches made of it.
        ready = self.pool.ready(self.to_come) if self.pool else 0
        self.done = self.done_next
        self.done_next += (self.source.epochs_done - self.done_next) / (ready + 1)
        return batch.with_columns(weights) if self.attach else batch.data

    def finish_step(self) -> None:
        """Ends the step with the batch given last: training asks for the next one, or for state."""
        data, self._training = self._training, None
        if data is not None and self.selection is not None and self.model is not None:
            started = time.perf_counter()
            self.selection.after_step(data)
            self.stats.seconds_selection += time.perf_counter() - started

    def end_source(self, epoch: Epoch) -> None:
        """Moves the source to the next epoch, as it has no more batches of this one.

        Raises:
            BatchError: If it gave none.
        """
        if self.pool is None or self.source.position == 0:
            raise BatchError(
                f"the wrapped {type(self.source.loader).__name__} gave no batch: "
                "give one that is not empty and can be iterated once an epoch; where examples were "
                "drawn and are fewer than a batch, one without drop_last=True"
            )
        if self.draw is not None and self.draw.draws and self.reads_drawn:
            self.count_unread(self.draw.remaining)
        if epoch.offered > 0 == epoch.kept:
            warnings.warn(
                f"nothing was kept of epoch {epoch.number}: no example was trained on",
                stacklevel=4,
            )
        self.source.end_epoch()

    def end_epoch(self, epoch: Epoch) -> None:
        """Ends an epoch all of whose batches training is done with.

        Raises:
            BatchError: If the examples drawn made no batch.
            ConfigError: If no losses or weights were used.
        """
        pool = self.pool
        if pool is not None:
            if (
                self.draws
                and pool.drop_last is True
                and self.stats.released == epoch.released_before
            ):
                raise BatchError(
                    f"the examples drawn for epoch {epoch.number} make no batch of "
                    f"{pool.batch_size} with drop_last=True: give smaller batches, keep more, or "
                    "give drop_last=False"
                )
            self.stats.dropped = pool.dropped
        self.record.end_epoch()
        self.done = self.done_next = self.source.epochs_done
        self.epoch, self.is_set = None, False

    def begins_again(self, epoch: Epoch) -> bool:
        """Returns whether an epoch that was left begins again, as it was only looked at.

        Where a rule learns, no loss was recorded; otherwise one batch was taken of several.
        """
        ended = self.source.epoch != epoch.number or self.source.is_exhausted
        looked = self.record.learns or (epoch.given <= 1 and not ended)
        return looked and not self.record.pending.recorded

    def leave_epoch(self, epoch: Epoch) -> bool:
        """Ends an epoch that was left early, unless it begins again.

        Returns:
            Whether it begins again as it was drawn.
        """
        begins_again, source = self.begins_again(epoch), self.source
        self.epoch = None
        self.drop_rest()
        if self.is_set:
            source.position = 0
        elif begins_again and self.loaded is not None:
            self.loaded(self)
        elif begins_again:
            source.restart(epoch.number)
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
            source.end_epoch()
        return False

    def drop_rest(self) -> None:
        """Drops what is left of an epoch of which training did not ask for all batches."""
        self.record.end_epoch()
        self.record.clear()
        if self.pool is not None:
            self.pool.abandon()
            self.stats.dropped = self.pool.dropped

    def set_epoch(self, number: int) -> None:
        """Sets which epoch comes next; what is left of another one is not given any more."""
        source, epoch = self.source, self.epoch
        if number == source.epoch:
            self.is_set = epoch is not None
        elif epoch is not None or source.is_within:
            self.finish_step()
            if epoch is not None and source.is_exhausted:
                self.end_source(epoch)
            self.drop_rest()
            self.epoch = None
        source.set_epoch(number)
        if not source.is_within and not source.is_resumed:
            self.done = self.done_next = float(number)

    def _check_lengths(self) -> None:
        """Checks that the data set and the rule have the length that the loader was made for.

        Without a rule a sampler of PyTorch's follows a data set that grows, as ever.
        """
        if self.draw is not None and self._length is not None:
            dataset = getattr(self.source.loader, "dataset", None)
            check_length("SelectiveLoader", self._length, dataset)
            if self.examples is not None:
                check_rule_fits(self.draw.rule, self.examples)

    def _warn(self, cause: str, message: str, stacklevel: int) -> None:
        if cause not in self._warned:
            self._warned.add(cause)
            warnings.warn(message, stacklevel=stacklevel)
