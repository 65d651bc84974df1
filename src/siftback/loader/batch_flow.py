"""Training batches on their way: from a source, by what is kept of it, into full batches."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from siftback.batches.attaching import attached
from siftback.batches.pool import Pool, Weighted
from siftback.batches.source import Item, Source
from siftback.batches.stats import Stats
from siftback.epochs.sampler import warning_beyond
from siftback.errors import BatchError, ConfigError
from siftback.loader.batch_selection import BatchSelection
from siftback.loader.epochs_done import EpochsDone
from siftback.loader.first_batch import PoolTrial
from siftback.loader.intake import Intake
from siftback.loader.loss_record import LossRecord
from siftback.loader.step_counts import StepCounts
from siftback.loader.wrapped_loader import drop_last_of, is_own_size
from siftback.processes.barrier import barrier
from siftback.state import (
    check_entries,
    dict_of,
    integer,
    nothing,
    number,
    state_of,
    tuple_of,
)

_ROUNDING = 1e-9
_UNKNOWN = -1  # in a state: a count that is not known
_MOST = 1 << 40  # examples or batches of an epoch


class BatchFlow:
    """Takes batches from a source, keeps what is chosen of them, and gives full batches.

    Args:
        source: The wrapped loader, with the place in it.
        intake: Decides what is kept of each of its batches.
        pool: Makes the training batches; None makes one of the size of the first batch.
        record: Is given what belongs to each training batch.
        selection: Is informed when training is done with a batch; None where nothing selects.
        model: The model that is trained; None where it is not known.
        stats: Counts what is done.
        attach: Whether batches carry their indices and weights.
        counts: Makes the counts of steps, of a pool.
        epochs: Of the whole training; None where it is not known.

    Attributes:
        pool: The pool; None before the first batch where none was given.
        done: How far training is, in epochs.
        current: The epoch whose batches are being given; None between epochs, and once a loop has
            left one early.
        batches: Training batches of the current epoch; None where they are not known.
    """

    def __init__(
        self,
        source: Source,
        intake: Intake,
        pool: Pool | None,
        record: LossRecord,
        selection: BatchSelection | None,
        model: nn.Module | None,
        stats: Stats,
        attach: bool,
        counts: Callable[..., StepCounts],
        epochs: float | None,
    ) -> None:
        self.pool, self.done = pool, EpochsDone()
        self.current: int | None = None
        self.batches: int | None = None
        self._source, self._intake, self._record = source, intake, record
        self._selection, self._model, self._stats = selection, model, stats
        self._attach, self._counts, self._epochs = attach, counts, epochs
        # Whether whole batches of the source are training batches as they are.
        self._is_own_size = is_own_size(source.loader, pool)
        self._to_come: int | None = None  # examples that this epoch still gives, where known
        self._is_single = False  # the batch that came last: of one row, as it is in plain training
        self._waiting = 0  # examples that were pooled before this epoch
        self._given = 0  # batches, since this epoch was begun or gone on with
        self._turn = object()  # of the iteration that goes on
        # What a look at the first batch of an epoch that was gone on with goes back to.
        self._left: int | None = None  # the epoch that was begun, until its last batch is done
        self._is_set = False  # which epoch comes next, after the one that was left
        self._loaded: tuple[dict[str, Any], tuple[int, int]] | None = None
        self._warned: set[str] = set()
        self._unfinished: Any = None  # the batch that training was given last
        self._given_whole: Weighted | None = None  # one that cannot be pooled
        self._trial = PoolTrial()

    def epoch(self, settings: Mapping[str, Any]) -> Iterator[Any]:
        """One epoch of training batches; continues the epoch that a loaded state was within.

        Args:
            settings: Of the loader.

        Raises:
            BatchError: If the source gives no batch, or what is drawn makes none.
        """
        self.finish_step()
        again = self._left is not None and self._leave_epoch()
        self._turn = turn = object()
        resumed = self._source.is_resumed
        if not (resumed and self._source.is_within):
            self._begin_epoch(settings, again)
        else:
            self._intake.check_lengths()
            if self._intake.shares_order:
                # Else one whose state is of between epochs would wait for the others in vain.
                barrier(f"the rest of epoch {self._source.epoch}", self._common(settings))
        epoch, items = self._source.epoch, self._source.batches()
        released = None if resumed else self._stats.released
        self.current, self._left, self._given = epoch, epoch, 0
        try:
            for batch in self._epoch(epoch, items, released):
                yield batch
                if self._turn is not turn:
                    raise ConfigError(
                        "the loader was iterated again since this iterator gave a batch: take the "
                        "batches of one iter(loader) at a time"
                    )
            self._left, self._is_set = None, False
        finally:
            if self._turn is turn:
                self.current = None

    def _epoch(self, epoch: int, items: Iterator[Item], released: int | None) -> Iterator[Any]:
        yield from self._full_batches(epoch)  # those still pooled when a state was saved
        for item in items:
            self._offer(item)
            self._source.position += 1
            self.done.read(self._source.epochs_done)
            yield from self._full_batches(epoch)
        if self.pool is None or self._source.position == 0:
            raise BatchError(
                f"the wrapped {type(self._source.loader).__name__} gave no batch: "
                "give one that is not empty and can be iterated once an epoch; where examples were "
                "drawn and are fewer than a batch, one without drop_last=True"
            )
        single = self._is_single or self.batches == 1
        self._end_epoch()
        yield from self._give(self.pool.end_epoch(single=single), 1, epoch)
        if self._intake.draws and self.pool.drop_last is True and released == self._stats.released:
            raise BatchError(
                f"the examples drawn for epoch {epoch} make no batch of {self.pool.batch_size} "
                "with drop_last=True: give smaller batches, keep more, or give drop_last=False"
            )
        self._record.end_epoch()
        self.done.finish()
        self._stats.dropped = self.pool.dropped

    @property
    def next_epoch(self) -> int:
        """The current epoch; between epochs, and once a loop has left one early, the next one."""
        if self._left is None or self.current is not None or self._is_set:
            return self._source.epoch
        return self._left + (not self._begins_again)

    @property
    def length(self) -> int:
        """Training batches of the current epoch; between epochs, of the next one.

        Raises:
            TypeError: If they are not known before the epoch is over, or before it begins.
        """
        resumed = self._source.is_resumed and self._source.is_within
        if (resumed or self.current is not None) and self.batches is not None:
            return self.batches
        return self._counts(pool=self.pool).of_next(
            self.next_epoch if self.current is None else self.current
        )

    def steps(self, epoch: int) -> int:
        """Training batches of an epoch.

        Raises:
            TypeError: If they are not known before it.
        """
        if epoch == self.current and self.batches is not None:
            return self.batches
        return self._counts(pool=self.pool).of_epoch(epoch)

    @property
    def is_between_epochs(self) -> bool:
        """Whether nothing of an epoch is left to be trained on, nor known of its batches alone."""
        pooled = 0 if self.pool is None else len(self.pool)
        return not (self._source.is_within or pooled or self._record.has_means)

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch comes next; what is left of another one is not given any more."""
        if epoch == self._source.epoch:
            self._is_set = self._left is not None
        elif self._left is not None or self._source.is_within:
            self.finish_step()
            if self._left is not None and self._source.is_exhausted:
                self._end_epoch()
            self._drop_rest()
            self._left = None
        self._source.set_epoch(epoch)
        if not self._source.is_within and not self._source.is_resumed:
            self.done.begin(epoch)

    def finish_step(self) -> None:
        """Training is done with the batch it was given: it asks for the next one, or for state."""
        batch, self._unfinished = self._unfinished, None
        if batch is not None and self._selection is not None and self._model is not None:
            started = time.perf_counter()
            self._selection.after_step(self._model, batch)
            self._stats.seconds_selection += time.perf_counter() - started

    def state_dict(self) -> dict[str, Any]:
        """The place in the source, what is pooled, and what was counted."""
        return {
            "source": self._source.state_dict(),
            "pool": None if self.pool is None else self.pool.state_dict(),
            "epochs_done": self.done.state_dict(),
            **self._left_to_give(),
            "stats": asdict(self._stats),
        }

    def check_state(self, state: dict[str, Any], size: Any) -> None:
        """Checks that a state fits.

        Args:
            state: The saved state.
            size: The batch size and ``drop_last`` that the pool had; None where there was none.

        Raises:
            StateError: If it is damaged, or of another wrapped loader.
        """
        pool = nothing if size is None else state_of(self._empty_pool(size))
        stats = {name: integer() for name in vars(self._stats)}
        stats["seconds_selection"] = number(0)
        parts = {"source": state_of(self._source), "pool": pool, "stats": dict_of(stats)}
        parts |= dict.fromkeys(("to_come", "batches"), integer(_UNKNOWN, _MOST))
        check_entries(self, state, parts)
        source = state["source"]
        epoch, batches = source["epoch"], source["batches"]
        done = epoch + (min(source["position"] / batches, 1.0) if batches > 0 else 0.0)
        places = number(epoch, done + _ROUNDING), number(done - _ROUNDING, done + _ROUNDING)
        check_entries(self, state, {"epochs_done": tuple_of(*places)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state, which was checked; changes nothing if it fails."""
        done, stats, pool = EpochsDone(), Stats(**state["stats"]), None
        done.load_state_dict(state["epochs_done"])
        if state["pool"] is not None:
            pool = self._empty_pool(state["pool"]["settings"])
            pool.load_state_dict(state["pool"])
        self._source.load_state_dict(state["source"])
        self.pool, self.done, self._unfinished = pool, done, None
        self._given_whole = None
        if pool is not None:
            pool.lists = self._source.lists
        vars(self._stats).update(vars(stats))
        to_come, batches = state["to_come"], state["batches"]
        self._to_come = None if to_come == _UNKNOWN else to_come
        self.batches = None if batches == _UNKNOWN else batches
        self._turn, self.current, self._given = object(), None, 0
        self._is_single, self._is_set, self._left = False, False, None
        self._record.clear()
        self._intake.resume_epoch()
        self._loaded = None
        if self._source.is_within:
            names = ("source", "pool", "epochs_done", "stats", "to_come", "batches")
            self._loaded = {name: state[name] for name in names}, self._intake.place

    def _left_to_give(self) -> dict[str, int]:
        """What was counted of this epoch, as a state has it."""
        counts = {"to_come": self._to_come, "batches": self.batches}
        known = self._source.is_within
        return {
            name: count if known and count is not None else _UNKNOWN
            for name, count in counts.items()
        }

    def _empty_pool(self, size: dict[str, Any]) -> Pool:
        pad = None if self.pool is None else self.pool.pad
        return Pool(size["batch_size"], size["drop_last"], pad=pad)

    def _begin_epoch(self, settings: Mapping[str, Any], again: bool) -> None:
        """Makes sure that the one before was trained on, and draws the examples of this one.

        Args:
            settings: Of the loader.
            again: Whether this one begins again as it was drawn, as nothing of it was trained on.
        """
        self._record.begin_epoch(broken_off=False)
        epoch = self._source.epoch
        self.done.begin(epoch)
        self._intake.begin_epoch(self._common(settings), again=again)
        if self._epochs is not None and epoch >= math.ceil(self._epochs):
            self._warn("beyond", warning_beyond(epoch, self._epochs))
        self._is_set, self._loaded = False, None
        self._waiting = 0 if self.pool is None else len(self.pool)
        self._count(epoch)

    def _count(self, epoch: int) -> None:
        """Counts what an epoch that was drawn gives to training."""
        counts = self._counts(pool=self.pool)
        self.batches = counts.of_current(epoch, self._waiting)
        self._to_come = counts.to_come(epoch)

    def _common(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What all processes must have alike, see `barrier`."""
        pad = None if self.pool is None else self.pool.pad
        return self._intake.common_settings({**settings, "attach": self._attach, "pad": pad})

    def _end_epoch(self) -> None:
        """Notes that the source has no more of this epoch."""
        self._intake.end_epoch()
        if self._intake.kept_nothing:
            warnings.warn(
                f"nothing was kept of epoch {self._source.epoch}: no example was trained on",
                stacklevel=4,
            )
        self._source.end_epoch()
        self.done.read(float(self._source.epoch))

    @property
    def _begins_again(self) -> bool:
        """Whether the epoch that was left early begins again, as it was looked at and no more.

        Where a rule learns, no loss was recorded; otherwise one batch was taken of several.
        """
        ended = self._source.epoch != self._left or self._source.is_exhausted
        looked = self._record.learns or (self._given <= 1 and not ended)
        return looked and not self._record.has_losses

    def _leave_epoch(self) -> bool:
        """Ends the epoch that was left early, unless it begins again.

        Returns:
            Whether it begins again as it was drawn.
        """
        begins_again, loaded, left = self._begins_again, self._loaded, self._left
        assert left is not None
        self._left = None
        self._drop_rest()
        if self._is_set:
            self._source.position = 0
            return False
        if begins_again and loaded is not None:
            state, place = loaded
            self.load_state_dict(state)
            self._intake.place = place
            return False
        if begins_again:
            self._source.restart(left)
            return True
        if self._source.epoch != left:
            return False
        if self._source.is_exhausted:
            self._end_epoch()
            return False
        position = self._source.position
        self._source.end_epoch()
        self._warn(
            "left",
            f"epoch {left} was left after {position} batches of the wrapped loader, and counts as "
            "ended: the examples after them are not trained on in it. To begin it again, call "
            f"loader.set_epoch({left}) before iterating; to go on within it, load a state that "
            "was saved there",
        )
        return False

    def _drop_rest(self) -> None:
        """Drops what is left of an epoch of which training did not ask for all batches."""
        self._record.begin_epoch(broken_off=True)
        if self.pool is not None:
            self.pool.abandon()
            self._stats.dropped = self.pool.dropped

    def _warn(self, cause: str, message: str) -> None:
        if cause not in self._warned:
            self._warned.add(cause)
            warnings.warn(message, stacklevel=4)

    def _offer(self, item: Item) -> None:
        """Adds to the pool what is kept of a batch of the wrapped loader."""
        kept = self._intake.keep(item)
        size = len(kept.weights) if item.size is None else item.size
        if self.pool is None:
            self.pool = Pool(size, drop_last_of(self._source.loader))
        batch, weights, indices, size_known, is_whole = kept
        # A last batch of one row is the user's own where nothing was left out of the epoch.
        self._is_single = (
            size == len(weights) == 1
            and self._is_own_size
            and not (self._intake.draws_fewer or len(self.pool))
        )
        if not is_whole:
            self._given_whole = Weighted(batch, weights, indices)
        elif item.lists is not None:
            self.pool.lists = item.lists
            if self._intake.leaves_out:
                self._trial.see(item.batch, self.pool, item.lists, self._source.place)
        if is_whole:
            self.pool.add(Weighted(batch, weights, indices), size=size_known)
        if self._to_come is None and self._source.position == 0:
            self._count(self._source.epoch)  # of what a sampler gives, known with its first batch
        if self._to_come is not None:
            self._to_come -= len(weights)

    def _full_batches(self, epoch: int) -> Iterator[Any]:
        whole, self._given_whole = self._given_whole, None
        if whole is not None:
            yield from self._give(iter([whole]), 1, epoch)
        if self.pool is not None:
            full = self.pool.ready(self._to_come)
            if full:
                yield from self._give(self.pool.full_batches(self._to_come), full, epoch)

    def _give(self, released: Iterator[Any], count: int, epoch: int) -> Iterator[Any]:
        """Gives batches to training, and does after each what is to be done then.

        Args:
            released: Batches, with weights and, where known, indices.
            count: How many.
            epoch: That they are given in.
        """
        for left, (batch, weights, indices) in zip(range(count, 0, -1), released, strict=False):
            self._stats.released += len(weights)
            self._record.give(weights, indices, epoch, self._intake.reweights)
            self._unfinished = batch
            self._given += 1
            self.done.give(left)
            if self._attach:
                is_list = "" in (self._source.lists or ())
                batch = attached(batch, indices, weights, is_list=is_list)
            yield batch
            self.finish_step()
