"""Which batch a loss is of, in loops that read batches ahead too."""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from siftback.errors import ConfigError, LossError

MOST_AHEAD = 100
"""The most batches that may wait for their losses: no loop reads further ahead."""


@dataclass(eq=False)
class PendingBatch:
    """A batch that training was given, and whose losses it may still record.

    Attributes:
        weights: float32[b], its loss weights.
        indices: int64[b], the dataset indices of its examples; None where unknown.
        epoch: The epoch that it was given in.
        needs_losses: Whether its losses are to be recorded.
        needs_weights: Whether its weights are to be applied.
        missing: The number of its examples without a recorded loss.
        weights_used: Whether its weights were applied, or read.
        was_read: Whether its weights or indices were read.
    """

    weights: Tensor
    indices: Tensor | None
    epoch: int
    needs_losses: bool = False
    needs_weights: bool = False
    missing: int = 0
    weights_used: bool = False
    was_read: bool = False


class PendingBatches:
    """Batches given to training, until their losses are recorded, in the order they were given.

    A loop may read batches ahead of the one that it trains on. Losses are then of the batch that
    was given first among those without; their number is never guessed from.

    Attributes:
        recorded: The number of batches since `clear` whose losses were all recorded.
        without_losses: The number of batches since `clear` whose losses are missing.
        without_weights: The number of batches since `clear` whose weights were not applied.

    >>> import torch
    >>> pending = PendingBatches()
    >>> for size in (2, 3):  # a loop that reads one batch ahead
    ...     pending.add(PendingBatch(torch.ones(size), None, epoch=0))
    >>> len(pending.next(2).weights), len(pending.next(3).weights)
    (2, 3)
    """

    def __init__(self) -> None:
        self._queue: deque[PendingBatch] = deque()
        self.clear()

    def clear(self) -> None:
        """Forgets all of them, as an epoch begins."""
        self._queue.clear()
        self.recorded = self.without_losses = self.without_weights = 0

    def add(self, batch: PendingBatch) -> None:
        """Adds a batch that is being given; training is past those that were used before it."""
        while self._queue:
            first = self._queue[0]
            is_past = first.missing <= 0 or (
                first.was_read
                and not first.needs_losses
                and first.weights_used >= first.needs_weights
            )
            if not is_past and len(self._queue) < MOST_AHEAD:
                break
            self._queue.popleft()
        batch.missing = len(batch.weights)
        self._queue.append(batch)
        self.without_losses += batch.needs_losses
        self.without_weights += batch.needs_weights

    def next(self, count: int | None, *, apply_weights: bool = True) -> PendingBatch:
        """Returns the batch whose losses are recorded next, which then counts as recorded.

        Args:
            count: The number of losses; None for a single loss of the whole batch.
            apply_weights: Whether its weights are applied.

        Raises:
            ConfigError: If no batch waits for its losses.
            LossError: If there are not as many losses as it has examples.
        """
        while self._queue and self._queue[0].missing <= 0:
            self._queue.popleft()
        if not self._queue:
            raise ConfigError(
                "no batch waits for its losses: call loader.loss(losses) once for each batch that "
                "the loader gave, or give indices= for other examples"
            )
        first = self._queue[0]
        size = len(first.weights)
        if count is not None and count != size:
            raise LossError(
                f"{count} losses were given, and the batch has {size} examples: give one loss for "
                f"each, float[{size}], in the order of the batches"
            )
        self._record(first, first.missing)
        if apply_weights:
            self._apply_weights(first)
        return first

    def find(self, indices: Tensor, *, apply_weights: bool) -> Tensor | None:
        """Counts losses as recorded by their examples, wherever in the pending batches these are.

        Args:
            indices: int64[n], on the CPU.
            apply_weights: Whether their weights are applied.

        Returns:
            float32[n], their weights; None where an example is in none of the batches.
        """
        weights, is_pending = torch.ones(len(indices)), torch.zeros(len(indices), dtype=torch.bool)
        for batch in self._queue:
            if batch.missing > 0 and batch.indices is not None:
                rows, positions = (batch.indices[:, None] == indices).nonzero().unbind(1)
                if len(rows):
                    weights[positions] = batch.weights.cpu()[rows]
                    is_pending[positions] = True
                    self._record(batch, len(set(rows.tolist())))
                    if apply_weights:
                        self._apply_weights(batch)
            if bool(is_pending.all()):
                return weights
        return weights if not len(indices) else None

    def current(self, attribute: str) -> PendingBatch:
        """Returns the batch in training: the only one that was given and is not done with.

        Args:
            attribute: The attribute of the loader that is read, for the error.

        Raises:
            ConfigError: If there is none, or several, of which it might be any.
        """
        if not self._queue:
            raise ConfigError(f"loader.{attribute} is that of a batch, and none was given yet")
        if len(self._queue) > 1:
            raise ConfigError(
                f"loader.{attribute} could be that of any of {len(self._queue)} batches that were "
                "given: the loop reads ahead, or did not record the losses of each batch, or read "
                "it at each. Call loader.loss(losses), which takes batches in the order they were "
                "given, or have the loader attach=True index and weight to each batch"
            )
        batch = self._queue[0]
        batch.was_read = True
        if attribute == "weights":
            self._apply_weights(batch)
        return batch

    def _record(self, batch: PendingBatch, count: int) -> None:
        batch.missing -= count
        if batch.missing <= 0:
            self.recorded += 1
            self.without_losses -= batch.needs_losses

    def _apply_weights(self, batch: PendingBatch) -> None:
        if not batch.weights_used:
            batch.weights_used = True
            self.without_weights -= batch.needs_weights
