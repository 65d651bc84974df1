"""Which batch a loss is of, in loops that read batches ahead too."""

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from siftback.errors import ConfigError, LossError

MOST_AHEAD = 100
"""How many batches may wait for their losses: no loop reads further ahead."""


@dataclass
class Handed:
    """What belongs to a batch that training was given.

    Attributes:
        weights: float32[b], its loss weights.
        indices: int64[b], the dataset indices of its examples; None where unknown.
        epoch: That it was given in.
        needs_losses: Whether its losses are to be recorded.
        needs_weights: Whether its weights are to be applied.
        recorded: Whether its losses were recorded.
        used: Whether its weights were applied, or its weights or indices read.
    """

    weights: Tensor
    indices: Tensor | None
    epoch: int
    needs_losses: bool = False
    needs_weights: bool = False
    recorded: bool = False
    used: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether all that had to be done with it was done."""
        return (self.recorded or not self.needs_losses) and (self.used or not self.needs_weights)

    @property
    def is_past(self) -> bool:
        """Whether training is past it, as something of it was used that was its turn's."""
        return self.recorded or (self.used and not self.needs_losses)


class Handover:
    """Batches given to training, until their losses are recorded, in the order they were given.

    A loop may read batches ahead of the one that it trains on. Losses are then of the batch that
    was given first among those without; of how many there are, nothing is guessed.

    >>> import torch
    >>> handover = Handover()
    >>> for size in (2, 3):  # a loop that reads one batch ahead
    ...     handover.give(Handed(torch.ones(size), None, epoch=0))
    >>> len(handover.next(2).weights), len(handover.next(3).weights)
    (2, 3)
    """

    def __init__(self) -> None:
        self._handed: deque[Handed] = deque()
        self._missed = 0

    @property
    def unsettled(self) -> int:
        """How many batches were given of which losses or weights are missing, since `clear`."""
        return self._missed + sum(not one.is_settled for one in self._handed)

    def give(self, handed: Handed) -> None:
        """Adds a batch that is being given; training is past those that were used before it."""
        while self._handed and (self._handed[0].is_past or len(self._handed) > MOST_AHEAD):
            self._leave()
        self._handed.append(handed)

    def clear(self) -> None:
        """Forgets all of them, as an epoch begins."""
        self._handed.clear()
        self._missed = 0

    def next(self, count: int | None) -> Handed:
        """The batch whose losses are recorded next, which then counts as recorded.

        Args:
            count: How many losses there are; None for a single one of the whole batch.

        Raises:
            ConfigError: Where no batch waits for its losses.
            LossError: Where there are not as many losses as it has examples.
        """
        while self._handed and self._handed[0].recorded:
            self._leave()
        if not self._handed:
            raise ConfigError(
                "no batch waits for its losses: call loader.loss(losses) once for each batch that "
                "the loader gave, or give indices= for other examples"
            )
        first = self._handed[0]
        if count is not None and count != len(first.weights):
            raise LossError(
                f"{count} losses were given, and the batch has {len(first.weights)} examples: give "
                f"one loss for each, float[{len(first.weights)}], in the order of the batches"
            )
        first.recorded = True
        return first

    def find(self, indices: Tensor) -> None:
        """Marks the batch of these examples as recorded, where there is one that waits."""
        for one in self._handed:
            if one.indices is not None and one.indices.equal(indices):
                one.recorded = True
                return

    def current(self, what: str) -> Handed:
        """The batch in training: the last recorded one, or the only one that was given.

        Args:
            what: Is asked for, for the error.

        Raises:
            ConfigError: Where there is none, or several, of which it might be any.
        """
        if not self._handed:
            raise ConfigError(f"loader.{what} is that of a batch, and none was given yet")
        first = self._handed[0]
        if len(self._handed) > 1 and not first.recorded:
            raise ConfigError(
                f"loader.{what} could be that of any of the {len(self._handed)} batches that were "
                "given since it was last read: the loop reads ahead, or did not read it at every "
                "step. Call loader.loss(losses), which takes batches in the order they were given, "
                "or have the loader attach=True index and weight to each batch"
            )
        first.used = True
        return first

    def _leave(self) -> None:
        self._missed += not self._handed.popleft().is_settled
