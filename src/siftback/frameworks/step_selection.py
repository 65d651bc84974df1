"""Selection within the training steps of a framework: what its integrations share."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from siftback.batches import tree
from siftback.batches.stats import Stats
from siftback.epochs.epoch_draw import EpochDraw
from siftback.errors import BatchError, ConfigError
from siftback.schedule import Schedule
from siftback.seeding import Stream, generator_from
from siftback.selectors.in_batch import InBatch, count_in_batch
from siftback.state import Check, Stateful

AT_ONCE = "schedule=Schedule(warmup=Epochs(0)), which selects at once"

Score = Callable[[bool, int], tuple[Tensor, Tensor | None]]
"""Returns float[N], the losses of a batch, and bool[N], the rows to choose among, or None for all.

It is called with whether the batch is the first one, of which more may be checked, and with N.
"""


class StepSelection(Stateful):
    """The rows of each batch that a framework's own step trains on, and the counts of them.

    Args:
        in_batch: Chooses the rows.
        scores: Whether every batch that rows are chosen of is scored; else none is.

    Attributes:
        in_batch: As passed.
        stats: What was done so far.
        share: Share of the rows that the last batch was to keep; 1 where all were trained on.
        count: Number of rows of the last batch that are trained on.
    """

    def __init__(self, in_batch: InBatch, *, scores: bool = True) -> None:
        self.in_batch, self.stats, self.share, self.count = in_batch, Stats(), 1.0, 0
        # Of the first batch, which lists hold one example per entry; of two, the sizes.
        self._scores, self._lists, self._sizes = scores, tree.LEAVES, list[int]()

    def take(self, batch: Any, score: Score, *, skips: bool) -> tuple[Any, Tensor | None]:
        """Returns the rows of a batch to train on, and their weights if the selector gives any.

        Args:
            batch: The batch, of N examples.
            score: Scores the batch, if it is needed.
            skips: Whether all rows are trained on.

        Raises:
            BatchError: If the batch cannot be split into rows, or there is none to choose among.
            LossError: If there is not one finite loss per row.
        """
        started, stats = time.perf_counter(), self.stats
        if tries := not self._sizes:  # what is wrong with losses tells before an epoch of warm-up
            self._lists = tree.lists_of(batch)
            tree.take(batch, torch.zeros(1, dtype=torch.int64), self._lists)
        self.count, device = tree.measure(batch, self._lists)
        if len(self._sizes) == 1:  # of two, one may be a smaller one, the last of an epoch
            check_leaves_out(self.in_batch.selector.keep, max(self.count, *self._sizes))
        losses, mask = torch.zeros(self.count, device=device), None
        if self._scores and (tries or not skips):
            losses, mask = score(tries, self.count)
        self._sizes = [*self._sizes, self.count][:2]
        stats.seen += self.count
        weights, self.share = None, 1.0
        if not skips:
            selection = self.in_batch.select(losses, mask)
            self.share = float(self.in_batch.selector.keep)  # as annealed for this batch
            weights = selection.weights if self.in_batch.selector.reweights else None
            stats.considered += self.count
            stats.scored += self.count * self._scores
            if len(selection.positions) < self.count:
                batch = tree.take(batch, selection.positions, self._lists)
            self.count = len(selection.positions)
            stats.kept += self.count
        stats.released += self.count
        stats.seconds_selection += time.perf_counter() - started
        return batch, weights

    @property
    def counts(self) -> dict[str, float]:
        """The numbers of `stats`, as they are saved."""
        return asdict(self.stats)

    @counts.setter
    def counts(self, counts: dict[str, float]) -> None:
        vars(self.stats).update(counts)

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"in_batch": self.in_batch}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"counts": self.stats.check}


def check_leaves_out(keep: float, count: int) -> None:
    """Checks that of the first batches of a training not all rows are kept.

    Args:
        keep: Share to keep.
        count: Rows of the largest of them.

    Raises:
        BatchError: If all are.
    """
    if keep < 1 and count_in_batch(keep, count) >= count:
        problem = f"a first batch has {count} rows, all of which keep={keep:g} keeps"
        raise BatchError(f"{problem}: give larger batches, of a row for each example")


def count_drawn(stats: Stats, draw: EpochDraw, count: int) -> None:
    """Counts the examples of a batch that a rule drew, and has the draw go past them.

    Args:
        stats: The counts.
        draw: The draw, of which the batch is the next one.
        count: Examples of the batch.
    """
    passed = draw.advance(count)
    stats.seen += passed
    stats.unread += passed - count
    stats.released += count
    if draw.draws:
        stats.considered += passed
        stats.kept += count
    stats.seconds_selection += draw.seconds
    draw.seconds = 0.0


def count_schedule(
    schedule: Schedule, batches: int | None, *, epochs: float | None, advice: str
) -> dict[str, Any]:
    """Returns a schedule and what it counts, as arguments of `InBatch` and `SinglePass`.

    Args:
        schedule: The schedule.
        batches: Of an epoch; None where they are not known.
        epochs: Of the whole training; None where they are not known.
        advice: Why the batches are not known, and what to do, for errors.

    Raises:
        ConfigError: If the schedule needs the batches, and they are not known.
    """
    if batches is None and not schedule.is_always_on:
        raise ConfigError(f"{schedule!r} needs the number of batches of an epoch, {advice}")
    return {"schedule": schedule, "epochs": epochs, "steps_per_epoch": batches}


def epochs_of_steps(steps: int, batches: int, accumulation: int) -> float:
    """Returns the epochs that a number of optimizer steps are, of which each epoch ends with one.

    Args:
        steps: Optimizer steps.
        batches: Of an epoch.
        accumulation: Batches of a step, where the epoch has as many left.

    >>> epochs_of_steps(12, 11, accumulation=2), epochs_of_steps(3, 8, accumulation=2)
    (2.0, 0.75)
    """
    whole, rest = divmod(steps, max(-(-batches // accumulation), 1))
    return whole + rest * accumulation / max(batches, 1)


def rank_seed(seed: int, rank: int) -> int:
    """Returns the seed of a process's own selections: each chooses among rows of its own."""
    return generator_from(seed, rank, Stream.SELECTION).initial_seed()
