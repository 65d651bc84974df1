"""Epochs of equal length, of passes that are read whole: by rules with scoring passes, of streams.

Here a pass is one iteration of the wrapped loader, and an epoch ends with its last training batch,
wherever in a pass that is.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from siftback.batches.batch import Batch
from siftback.batches.indices import examples_of
from siftback.batches.order import batches_of, is_plain, is_trackable
from siftback.batches.source import Source
from siftback.epochs.epoch_draw import UNSIZED
from siftback.loader.before_reading import DrawingPipeline
from siftback.loader.pipeline import Epoch, Pipeline
from siftback.loader.wrapped import read_of
from siftback.state import MOST_EPOCHS, check_entries, flag, integer, state_of, tuple_of


class ChainedSource:
    """A source that is read pass after pass; the rest is as of a `Source`.

    Args:
        source: Reads one pass.

    Attributes:
        source: The same; its epochs are the passes.
        epoch: The current epoch, from 0; or the next one, between epochs.
        chains: Whether a next pass is begun where this one ends within the epoch.
        released: Training batches of such an epoch that were given.
        steps: Training batches of such an epoch.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.epoch = self.released = self.steps = self._read = 0
        self.chains = self._is_told = False
        self._batches: Iterator[Batch] | None = None  # the rest of the current pass

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # a copy without attributes yet
            raise AttributeError(name)
        return getattr(self.source, name)

    @property
    def position(self) -> int:
        """Batches of the wrapped loader that were dealt with in this epoch."""
        return self._read

    @position.setter
    def position(self, position: int) -> None:
        if not position:
            self.go_to(self.epoch)
            return
        self.source.position += position - self._read
        self._read = position

    @property
    def is_within(self) -> bool:
        """Whether batches of this epoch were read or given."""
        return bool(self._read or self.released)

    @property
    def is_within_pass(self) -> bool:
        """Whether batches of this pass were read, or asked for."""
        return self._batches is not None or self.source.is_within

    @property
    def is_exhausted(self) -> bool:
        """Whether all batches of this epoch were given, though the loop did not end yet."""
        return self.is_complete if self.chains else self.source.is_exhausted

    @property
    def is_complete(self) -> bool:
        """Whether training has all batches of such an epoch, though the pass may have more."""
        return self.chains and self.steps == self.released

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the fraction of the current one."""
        if self.chains:
            return self.epoch + self.released / max(self.steps, 1)
        return self.epoch + self.source.epochs_done - self.source.epoch

    def batches(self) -> Iterator[Batch]:
        """Yields the batches of the pass that are left."""
        if self._batches is None:
            self._batches = self.source.batches()
        yield from self._batches
        self._batches = None

    def end_pass(self) -> bool:
        """Ends a pass all of which was read; returns whether a next one begins in the epoch."""
        goes_on = self.chains and self.source.is_within
        self.source.end_epoch()
        if goes_on and self._is_told:
            self.source.set_epoch(self.source.epoch)
        return goes_on

    def leave_pass(self) -> None:
        """Ends a pass of which there may be more."""
        if self.is_within_pass:
            self.source.end_epoch()
        self._batches = None

    def end_epoch(self) -> None:
        """Moves on to the next epoch, in which the pass goes on."""
        self.epoch, self.released, self._read = self.epoch + 1, 0, 0

    def go_to(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, which is that of the current pass."""
        self.source.go_to(self.source.epoch)
        self._batches, self.epoch, self.released, self._read = None, epoch, 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch comes next; the wrapped loader is told of passes from now on."""
        self._is_told = True
        if epoch != self.epoch:
            self.leave_pass()
            self.epoch, self.released, self._read = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the epoch, and the source's in the pass."""
        state = self.source.state_dict()
        return {
            "epoch": self.epoch,
            "position": self.released if self.chains else state["position"],
            "batches": self.steps if self.chains else state["batches"],
            "steps": (self.released, self.steps),
            "read": self._read,
            "chains": self.chains,
            "is_told": self._is_told,
            "lists": state["lists"],
            "source": state,
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: As `Source.check_state`.
        """
        checks = {
            "epoch": integer(most=MOST_EPOCHS),
            **dict.fromkeys(("position", "read"), integer()),
            "batches": integer(-1),
            "steps": tuple_of(integer(), integer()),
            **dict.fromkeys(("chains", "is_told"), flag),
            "source": state_of(self.source),
        }
        check_entries(self, state, checks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Comes back to a place.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.source.load_state_dict(state["source"])
        self.epoch, (self.released, self.steps) = state["epoch"], state["steps"]
        self._read, self.chains, self._is_told = state["read"], state["chains"], state["is_told"]
        self._batches = None


@dataclass(eq=False, kw_only=True)
class ChainingPipeline(DrawingPipeline):
    """Epochs of as many training batches as the wrapped loader has, of passes that are read.

    Rows that make no full batch yet stay for the next epoch, so that all batches are full. An epoch
    in which the rule's schedule is off is one pass, with the batches that the loader has.
    """

    source: Any  # a `ChainedSource`

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gives_as_read = False

    @property
    def is_between_epochs(self) -> bool:
        """See `Pipeline.is_between_epochs`."""
        return super().is_between_epochs and not self.source.is_within_pass

    def training_batches(self, epoch: Epoch) -> Iterator[Batch]:
        """See `Pipeline.training_batches`; the source may have more than those of the epoch."""
        source = self.source
        if not source.is_complete:  # as after a state that was saved with the last batch
            for batch in super().training_batches(epoch):
                source.released += source.chains
                yield batch
                if source.is_complete:
                    break
            else:  # its last batch has ended it
                return
        self.end_source(epoch)

    def read_batches(self) -> Iterator[Batch]:
        """See `Pipeline.read_batches`; where a pass ends, the next one is drawn."""
        goes_on = True
        while goes_on:
            yield from self.source.batches()
            self.end_pass()
            goes_on = self.source.end_pass()
            if goes_on:
                self._begin_pass()

    def begin_whole_epoch(self, number: int, *, again: bool) -> None:
        """See `Pipeline.begin_whole_epoch`."""
        Pipeline.begin_whole_epoch(self, number, again=again)
        source, is_on = self.source, self.draw.schedule.is_on(number, self.draw.epochs)
        goes_on = source.chains and is_on and source.is_within_pass
        if not goes_on:
            source.leave_pass()
            self.pool.abandon()
        source.chains = is_on
        if not goes_on:
            self._begin_pass(again=again)

    def _begin_pass(self, *, again: bool = False) -> None:
        self.draw.begin(self.source.epoch, number=self.source.source.epoch, again=again)
        self._follow_draw()

    def end_source(self, epoch: Epoch) -> None:
        """See `Pipeline.end_source`; the pass goes on."""
        Pipeline.end_source(self, epoch)

    def leave_source(self) -> None:
        """See `Pipeline.leave_source`."""
        self.source.leave_pass()
        super().leave_source()

    def count_batches(self, number: int) -> None:
        """See `Pipeline.count_batches`."""
        if self.source.chains:
            self.known_steps, self.to_come = self.plan_steps(number), float("inf")
        else:
            super().count_batches(number)
        self.source.steps = self.known_steps or 0

    def check_counted(self, number: int) -> None:
        """Checks nothing, as an epoch has as many batches whatever a pass is left with."""

    def plan_steps(self, number: int) -> int:
        """See `Pipeline.plan_steps`."""
        steps = count_whole_batches(self)
        if steps is None:
            self.check_sized()
            raise TypeError(
                f"how many batches a {type(self.source.loader).__name__} has is not known: give it "
                "a length, or follow loader.progress in place of a number of steps"
            )
        return steps


def count_whole_batches(pipeline: DrawingPipeline) -> int | None:
    """Returns the training batches of an epoch from which nothing is left out; None if unknown."""
    loader, pool, draw = pipeline.source.loader, pipeline.pool, pipeline.draw
    if is_trackable(loader):
        if draw.sampled == UNSIZED or not is_plain(batches_of(loader)):
            return None
        return pipeline.count(read_of(loader, draw.whole), is_whole=True)
    if not pipeline.regroups:
        with suppress(TypeError):
            return len(loader)
    known = examples_of(loader)
    if known is None or not pool.batch_size:
        return None
    return pipeline.count(read_of(loader, known), is_whole=True)
