"""The other way to training batches: a rule chooses the examples of an epoch before any is read.

rule.draw ─► order ─► DataLoader ─► batch ─► your forward ─► loader.loss ─► rule.update
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from siftback.batches.batch import Batch
from siftback.batches.indices import IndexCheck, check_length, examples_of, length_of
from siftback.batches.order import (
    batches_of,
    has_indices_within,
    is_plain,
    is_trackable,
    sampler_of,
)
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.loader_order import repeats
from siftback.epochs.sampler import check_rule_fits
from siftback.errors import BatchError
from siftback.loader.pipeline import Epoch, Pipeline
from siftback.loader.wrapped import is_own_size, no_indices, read_of
from siftback.processes.distributed import rank_and_world
from siftback.selectors.selection import Selection


@dataclass(eq=False, kw_only=True)
class DrawingPipeline(Pipeline):
    """Training batches of the examples that a rule draws for each epoch before they are read.

    They are the batches of the wrapped loader where these are full, else of the pool. A rule that
    scoring passes refresh selects among the examples of each batch in epochs with a pass.

    Attributes:
        draw: Draws the examples.
        regroups: Whether the pool may make other batches than the wrapped loader's.
        reads_drawn: Whether what was not drawn is not read either.
        gives_as_read: Whether batches of drawn examples are training batches as they are read.
    """

    draw: EpochDraw
    regroups: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        source, draw, batches = self.source, self.draw, batches_of(self.source.loader)
        self._length = length_of(getattr(self.wrapped, "dataset", None))
        # A loader of another kind than a DataLoader that leaves examples out itself.
        self._set_drawn = None if source.is_ordered else getattr(self.wrapped, "only", None)
        self.reads_drawn = source.is_ordered or bool(self._set_drawn)
        self.leaves_out_read |= not self.reads_drawn
        self.splits = bool(self.regroups or not self.reads_drawn or self.selection)
        inner = getattr(batches, "sampler", None)
        # Else a last batch of a single row is only known as it comes.
        is_known = hasattr(getattr(inner, "sampler", inner), "__len__") and is_plain(batches)
        self.gives_as_read = (
            source.is_ordered
            and (is_known or not draw.shorter)
            and not self.regroups
            and self.pool.drop_last == getattr(batches, "drop_last", self.pool.drop_last)
        )
        self._check: IndexCheck | None = None
        if not self.gives_as_read or draw.sampler:
            # A sampler of the user's own repeats what it is meant to.
            may_repeat = repeats(sampler_of(self.wrapped)) or bool(draw.sampler)
            may_repeat |= has_indices_within(source.loader) or not draw.shorter
            rows_of = draw.losses.rows_of if draw.rule.shards or draw.losses.stream else None
            self._check = IndexCheck(self.examples, repeats=may_repeat, rows_of=rows_of)

    @property
    def share(self) -> float:
        """See `Pipeline.share`."""
        if self.selection and self.draw.current.is_scoring:
            return self.selection.keep
        return self.draw.share

    def training_batches(self, epoch: Epoch) -> Iterator[Batch]:
        """See `Pipeline.training_batches`; full batches are given as they are read."""
        source, draw, stats, draws = self.source, self.draw, self.stats, self.draw.draws
        selects = self.selection and not draws
        if selects or len(self.pool) or not self.gives_as_read:
            yield from super().training_batches(epoch)
            return
        for read in source.batches():
            batch = self.admit(read)
            if draws:
                stats.considered += batch.size
                stats.kept += batch.size
                if draw.reweights:
                    weights = self._weights_of(batch)  # on the CPU
                    if bool((weights != 1).any()):
                        batch = replace(batch, weights=weights)
            if self.known_steps is None and source.position == 0:
                self.count_batches(epoch.number)  # what a sampler gives is known with its first
            source.position += 1
            self.done, self.done_next = self.done_next, source.epochs_done
            yield batch
        self.end_source(epoch)

    def admit(self, batch: Batch) -> Batch:
        """Checks a batch as `Pipeline.admit` does, and its indices; counts its examples.

        Raises:
            BatchError: As there, or if its indices are missing or wrong.
        """
        draw, source, indices = self.draw, self.source, batch.indices
        if indices is None:
            raise BatchError(f"{source.place}: {no_indices(type(draw.rule).__name__, source)}")
        if isinstance(self.model, nn.Module) or self.splits or batch.size < 1:
            batch = super().admit(batch)
        count, stats = len(batch.requested) or batch.size, self.stats
        passed = draw.advance(count) if self.reads_drawn else count
        unread = passed - count if draw.passes[-1].draws else 0
        stats.seen += count + unread
        stats.considered += unread
        stats.unread += unread
        stats.seconds_selection += draw.seconds
        draw.seconds = 0.0
        if self._check:
            draw.losses.admit(indices)
            self._check.check(indices, source.place)
        return batch

    def select(self, batch: Batch) -> Selection | None:
        """See `Pipeline.select`."""
        if self.draw.draws:
            weights = self._weights_of(batch)
            rows = weights.nonzero().squeeze(1)
            return Selection(rows, weights[rows])
        if self.selection:
            current, indices = self.draw.current, cast(Tensor, batch.indices)
            learn = partial(self.draw.losses.rescore, indices, epoch=current.number)
            return self.selection.select(batch, self.source, learn, is_pass=current.is_scoring)
        return None

    def warn_of_steps(self) -> None:
        """See `Pipeline.warn_of_steps`."""
        draw, is_alone = self.draw, not self.shares_order and rank_and_world()[1] > 1
        if is_alone and draw.shorter and draw.rule.count(self.epoch.number) is None:
            self._warn(
                "steps",
                f"each process leaves out what {type(draw.rule).__name__} says of its own part, "
                "so that steps are unequal, and processes wait for each other in vain: give a rule "
                "with keep=, or put `with model.join():` around each epoch",
            )

    def check_lengths(self) -> None:
        """See `Pipeline.check_lengths`."""
        if self._length is not None:
            dataset = getattr(self.source.loader, "dataset", None)
            check_length("SelectiveLoader", self._length, dataset)
            if self.examples is not None:
                check_rule_fits(self.draw.rule, self.examples)

    def begin_whole_epoch(self, number: int, *, again: bool) -> None:
        """See `Pipeline.begin_whole_epoch`."""
        super().begin_whole_epoch(number, again=again)
        self.draw.begin(number, again=again)
        self._follow_draw()

    def leaves_out_unread(self) -> bool:
        """See `Pipeline.leaves_out_unread`."""
        return self.draw.leaves_out

    def end_source(self, epoch: Epoch) -> None:
        """See `Pipeline.end_source`."""
        self.end_pass()
        super().end_source(epoch)

    def end_pass(self) -> None:
        """Ends the pass that was read to the end of the epoch."""
        if self.draw.draws and self.reads_drawn:
            unread, stats = self.draw.remaining, self.stats
            stats.seen += unread
            stats.considered += unread
            stats.unread += unread
        self.draw.end()

    def leave_source(self) -> None:
        """See `Pipeline.leave_source`."""
        self.draw.leave()
        super().leave_source()

    def end_epoch(self, epoch: Epoch) -> None:
        """See `Pipeline.end_epoch`."""
        pool, is_empty = self.pool, self.stats.released == epoch.released_before
        if self.draw.draws and pool.drop_last is True and is_empty:
            raise BatchError(
                f"the examples drawn for epoch {epoch.number} make no batch of {pool.batch_size} "
                "with drop_last=True: give smaller batches, keep more, or give drop_last=False"
            )
        super().end_epoch(epoch)

    def plan_steps(self, number: int) -> int:
        """See `Pipeline.plan_steps`."""
        if not self.draw.shorter and self.gives_as_read:
            return len(self.source.loader)
        return super().plan_steps(number)

    def plan_rows(self, number: int) -> tuple[int, bool]:
        """See `Pipeline.plan_rows`."""
        if self.draw.shorter:
            raise TypeError(
                "how long an epoch is is not known before it begins where it is one pass over the "
                "data (shorter_epochs=True, a rule with scoring passes, or a loader that cannot "
                "leave examples unread): ask for len(loader) within the epoch, or follow "
                "loader.progress in place of a number of steps"
            )
        return self.begun_rows(number)

    def begun_rows(self, number: int) -> tuple[int, bool]:
        """See `Pipeline.begun_rows`."""
        draw, loader = self.draw, self.source.loader
        if self.selection and draw.current.is_scoring:
            return self.selection.plan_rows(loader, number)
        examples = draw.current.drawn // draw.world
        if is_trackable(loader):
            if not is_plain(batches_of(loader)):
                raise TypeError("the batches of a batch sampler of one's own are not counted")
            examples = len(sampler_of(loader))
        elif examples_of(loader) is None:
            raise TypeError("the examples of a stream are not counted")
        return read_of(loader, examples), not draw.leaves_out

    def estimate_to_come(self, number: int) -> float:
        """See `Pipeline.estimate_to_come`."""
        draw, loader = self.draw, self.source.loader
        # A batch sampler of the user's own may give fewer, of which nothing depends on this.
        is_own = not draw.draws and is_own_size(loader, self.pool)
        is_waiting = draw.sampler and not draw.passes[-1].whole
        is_unknown = is_waiting or draw.current.is_scoring or not is_trackable(loader)
        return math.inf if is_own or is_unknown else draw.length

    def members(self) -> dict[str, Any]:
        """See `Pipeline.members`."""
        return {**super().members(), "draw": self.draw}

    def load_flow(self, state: dict[str, Any]) -> None:
        """See `Pipeline.load_flow`."""
        super().load_flow(state)
        self.draw.go_to(state["draw"])
        self._follow_draw()  # as batches that were done do not come to the check again

    def _weights_of(self, batch: Batch) -> Tensor:
        """Returns float32[N], the weights that examples were drawn with, 0 for those left out.

        Raises:
            BatchError: If they cannot be known, as a batch sampler mixes the passes of an epoch.
        """
        indices: Any = batch.indices  # which `admit` has made sure of
        weights, source = self.draw.weights_of(indices, batch.requested), self.source
        if source.is_ordered and not bool(weights.all()):
            if not self.draw.reweights:  # all were drawn, whichever pass they are of
                return weights.new_ones(len(weights))
            raise BatchError(
                f"{source.place} has examples of several passes in an order of the "
                f"{type(batches_of(source.loader)).__name__}, so that their loss weights are not "
                "known: give shorter_epochs=True, or have it keep the order of its sampler"
            )
        return weights

    def _follow_draw(self) -> None:
        """Has the check of indices, and a loader that leaves examples out itself, follow a draw."""
        if self._check:
            self._check.begin_epoch()
        if self._set_drawn:
            draw = self.draw
            self._set_drawn(draw.current.weights.nonzero().squeeze(1) if draw.draws else None)
