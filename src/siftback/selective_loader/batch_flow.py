"""Training batches on their way: from a source, by what is kept of it, into full batches."""

import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from siftback.errors import BatchError
from siftback.loading.attaching import attached
from siftback.loading.meeting import meet
from siftback.loading.pool import Pool, Weighted
from siftback.loading.source import Item, Source
from siftback.loading.stats import Stats
from siftback.selective_loader.batch_selection import BatchSelection
from siftback.selective_loader.epochs_done import EpochsDone
from siftback.selective_loader.first_batch import PoolTrial
from siftback.selective_loader.intake import Intake
from siftback.selective_loader.loss_record import LossRecord
from siftback.selective_loader.wrapped_loader import drop_last_of
from siftback.states import check_state, each_of, entries, integer, nothing, number, part

_ROUNDING = 1e-9


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

    Attributes:
        pool: The pool; None before the first batch where none was given.
        done: How far training is, in epochs.
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
    ) -> None:
        self.pool, self.done = pool, EpochsDone()
        self._source, self._intake, self._record = source, intake, record
        self._selection, self._model, self._stats = selection, model, stats
        self._attach = attach
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
        resumed = self._source.is_resumed
        if not resumed and self._source.is_within:
            self._break_off()
        if not (resumed and self._source.is_within):
            self._begin_epoch(settings)
        elif self._intake.shares_order:
            # Else one whose state is of between epochs would wait for the others in vain.
            meet(f"the rest of epoch {self._source.epoch}", self._common(settings))
        epoch, items = self._source.epoch, self._source.batches()
        released = None if resumed else self._stats.released
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
        self._end_epoch()
        yield from self._give(self.pool.end_epoch(), 1, epoch)
        if self._intake.draws and self.pool.drop_last is True and released == self._stats.released:
            raise BatchError(
                f"the examples drawn for epoch {epoch} make no batch of {self.pool.batch_size} "
                "with drop_last=True: give smaller batches, keep more, or give drop_last=False"
            )
        self._record.end_epoch()
        self.done.finish()
        self._stats.dropped = self.pool.dropped

    @property
    def is_between_epochs(self) -> bool:
        """Whether nothing of an epoch is left to be trained on, nor known of its batches alone."""
        pooled = 0 if self.pool is None else len(self.pool)
        return not (self._source.is_within or pooled or self._record.has_means)

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch comes next; what is left of another one is not given any more."""
        if epoch != self._source.epoch and self._source.is_within:
            self.finish_step()
            self._break_off()
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
        pool = nothing if size is None else part(self._empty_pool(size))
        stats = {name: integer() for name in vars(self._stats)}
        stats["seconds_selection"] = number(0)
        parts = {"source": part(self._source), "pool": pool, "stats": each_of(stats)}
        check_state(self, state, parts)
        source = state["source"]
        epoch, batches = source["epoch"], source["batches"]
        done = epoch + (min(source["position"] / batches, 1.0) if batches > 0 else 0.0)
        places = number(epoch, done + _ROUNDING), number(done - _ROUNDING, done + _ROUNDING)
        check_state(self, state, {"epochs_done": entries(*places)})

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
        self._record.clear()
        self._intake.resume_epoch()

    def _empty_pool(self, size: dict[str, Any]) -> Pool:
        pad = None if self.pool is None else self.pool.pad
        return Pool(size["batch_size"], size["drop_last"], pad=pad)

    def _begin_epoch(self, settings: Mapping[str, Any]) -> None:
        """Makes sure that the one before was trained on, and draws the examples of this one."""
        self._record.begin_epoch(broken_off=False)
        self.done.begin(self._source.epoch)
        self._intake.begin_epoch(self._common(settings))

    def _common(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What all processes must have alike, see `meet`."""
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

    def _break_off(self) -> None:
        """Drops what is left of an epoch of which training did not ask for all batches.

        One of whose batches none was left to be read is over; any other begins again.
        """
        self._record.begin_epoch(broken_off=True)
        if self._source.is_exhausted:
            self._end_epoch()
        if self.pool is not None:
            self.pool.abandon()
            self._stats.dropped = self.pool.dropped

    def _offer(self, item: Item) -> None:
        """Adds to the pool what is kept of a batch of the wrapped loader."""
        kept = self._intake.keep(item)
        if self.pool is None:
            size = len(kept.weights) if item.size is None else item.size
            self.pool = Pool(size, drop_last_of(self._source.loader))
        batch, weights, indices, size_known, is_whole = kept
        if not is_whole:
            self._given_whole = Weighted(batch, weights, indices)
            return
        if item.lists is not None:
            self.pool.lists = item.lists
            if self._intake.leaves_out:
                self._trial.see(item.batch, self.pool, item.lists, self._source.place)
        self.pool.add(Weighted(batch, weights, indices), size=size_known)

    def _full_batches(self, epoch: int) -> Iterator[Any]:
        whole, self._given_whole = self._given_whole, None
        if whole is not None:
            yield from self._give(iter([whole]), 1, epoch)
        if self.pool is not None:
            full = len(self.pool) // self.pool.batch_size
            if full:
                yield from self._give(self.pool.full_batches(), full, epoch)

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
            self.done.give(left)
            if self._attach:
                is_list = "" in (self._source.lists or ())
                batch = attached(batch, indices, weights, is_list=is_list)
            yield batch
            self.finish_step()
