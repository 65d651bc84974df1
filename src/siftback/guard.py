"""Whether selection, as it runs, saves more time than it takes."""

import statistics
import warnings

import torch

from siftback.device_time import now

# Frames from the warning to the training loop, past the loader's generators.
_LOOP = 5


class SelectionCostWarning(UserWarning):
    """Selection takes more time than leaving examples out of training saves.

    >>> import warnings
    >>> warnings.simplefilter("error", SelectionCostWarning)  # to stop a run that would not pay
    >>> warnings.simplefilter("default", SelectionCostWarning)
    """


class Guard:
    """Weighs the seconds of selection against those it saves; told of them, it reads no clock.

    After ``warmup`` selection batches that do not count, in which kernels are chosen and pools
    filled, ``measured`` ones do. The time saved is that of training on the examples left out::

        saved = (examples considered - examples kept) * seconds to train on an example

    where the last is the median over the steps between those batches, so that a step with an
    evaluation or a checkpoint in it does not count for more than another.

    Args:
        warmup: Selection batches that do not count.
        measured: Selection batches that do.

    Attributes:
        is_done: Whether all was measured, and no more is to be told.

    >>> guard = Guard(warmup=0, measured=1)
    >>> guard.train(seconds=0.3, examples=30)
    >>> guard.select(seconds=2.0, considered=90, kept=30)
    >>> guard.is_done, guard.complaint().partition(":")[0]
    (True, 'selection costs more than it saves')
    """

    def __init__(self, warmup: int = 20, measured: int = 20) -> None:
        self._warmup, self._measured = warmup, measured
        self._batches = self._considered = self._kept = 0
        self._selecting = self._refreshing = 0.0
        self._steps: list[tuple[float, int]] = []

    @property
    def is_done(self) -> bool:
        """Whether enough was measured, steps of training among it."""
        return self._batches >= self._warmup + self._measured and bool(self._steps)

    def select(self, seconds: float, considered: int, kept: int) -> None:
        """Told of a selection batch: its seconds, and its examples before and after."""
        self._batches += 1
        if self._batches > self._warmup:
            self._selecting += seconds
            self._considered += considered
            self._kept += kept

    def train(self, seconds: float, examples: int, refreshing: float = 0.0) -> None:
        """Told of a training step: its seconds and examples, and what the scorer took after it."""
        if self._batches >= self._warmup:
            self._steps.append((seconds, examples))
            self._refreshing += refreshing

    def complaint(self) -> str | None:
        """What to warn of, with numbers; None where selection saves at least what it costs."""
        if not self.is_done:
            return None
        each = statistics.median(seconds / examples for seconds, examples in self._steps)
        cost, left_out = self._selecting + self._refreshing, self._considered - self._kept
        saved = left_out * each
        if cost <= saved:
            return None
        batches = self._batches - self._warmup
        training = each * self._kept
        return (
            f"selection costs more than it saves: over {batches} batches it took {cost:.3g} s, "
            f"{cost / (cost + training):.0%} of the time, and left out {left_out} of "
            f"{self._considered} examples, which at {1000 * each:.3g} ms to train on one saved "
            f"{saved:.3g} s. Keep fewer, score more cheaply (siftback.probe measures how), or "
            "train without selection"
        )


class Watch:
    """Tells a guard what passes between a loader and training, and warns once for it.

    Accelerators are waited for at each mark while it measures, and not after.

    Args:
        guard: What weighs it; None to measure nothing.
    """

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard
        self._since = 0.0
        self._trained = (0.0, 0)

    def start(self, device: torch.device) -> None:
        """A selection, a training step or a scorer's refresh begins."""
        if self._guard is not None:
            self._since = now(device)

    def selected(self, device: torch.device, considered: int, kept: int) -> None:
        """The selection that was started is made."""
        if self._guard is not None:
            self._guard.select(now(device) - self._since, considered, kept)

    def trained(self, device: torch.device, examples: int) -> None:
        """Training is done with the batch that was given when it was started."""
        if self._guard is not None:
            started, self._since = self._since, now(device)
            self._trained = (self._since - started, examples)

    def refreshed(self, device: torch.device) -> None:
        """The scorer is done with what it does after a step; warns where all was measured."""
        if self._guard is None:
            return
        self._guard.train(*self._trained, refreshing=now(device) - self._since)
        if self._guard.is_done:
            complaint = self._guard.complaint()
            self._guard = None
            if complaint is not None:
                warnings.warn(complaint, SelectionCostWarning, stacklevel=_LOOP)
