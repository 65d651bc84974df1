"""Which batch a loss is of, in loops that read batches ahead too."""

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siftback.errors import ConfigError, LossError

MOST_AHEAD = 100
"""How many batches may wait for their losses: no loop reads further ahead."""


@dataclass(eq=False)
class Handed:
    """What belongs to a batch that training was given.

    Attributes:
        weights: float32[b], its loss weights.
        indices: int64[b], the dataset indices of its examples; None where unknown.
        epoch: That it was given in.
        needs_losses: Whether its losses are to be recorded.
        needs_weights: Whether its weights are to be applied.
        missing: Of how many of its examples no loss was recorded.
        used: Whether its weights were applied, or read.
        read: Whether its weights or indices were read.
    """

    weights: Tensor
    indices: Tensor | None
    epoch: int
    needs_losses: bool = False
    needs_weights: bool = False
    missing: int = field(init=False)
    used: bool = False
    read: bool = False

    def __post_init__(self) -> None:
        self.missing = len(self.weights)

    @property
    def recorded(self) -> bool:
        """Whether all its losses were recorded."""
        return self.missing <= 0

    @property
    def lacks_losses(self) -> bool:
        """Whether losses that are needed were not recorded."""
        return self.needs_losses and not self.recorded

    @property
    def lacks_weights(self) -> bool:
        """Whether weights that must be applied were not."""
        return self.needs_weights and not self.used

    @property
    def is_past(self) -> bool:
        """Whether training is past it, as something of it was used that was its turn's."""
        return self.recorded or (self.read and not self.lacks_losses and not self.lacks_weights)


class Handover:
    """Batches given to training, until their losses are recorded, in the order they were given.

    A loop may read batches ahead of the one that it trains on. Losses are then of the batch that
    was given first among those without; of how many there are, nothing is guessed.

    Attributes:
        settled: Of how many batches all losses were recorded, since `clear`.

    >>> import torch
    >>> handover = Handover()
    >>> for size in (2, 3):  # a loop that reads one batch ahead
    ...     handover.give(Handed(torch.ones(size), None, epoch=0))
    >>> len(handover.next(2).weights), len(handover.next(3).weights)
    (2, 3)
    """

    def __init__(self) -> None:
        self._handed: deque[Handed] = deque()
        self.clear()

    def clear(self) -> None:
        """Forgets all of them, as an epoch begins."""
        self._handed.clear()
        self._without_losses = self._without_weights = self.settled = 0

    @property
    def without_losses(self) -> int:
        """Of how many batches given since `clear` losses are missing."""
        return self._without_losses + sum(one.lacks_losses for one in self._handed)

    @property
    def without_weights(self) -> int:
        """Of how many batches given since `clear` the weights were not used."""
        return self._without_weights + sum(one.lacks_weights for one in self._handed)

    def give(self, handed: Handed) -> None:
        """Adds a batch that is being given; training is past those that were used before it."""
        while self._handed and (self._handed[0].is_past or len(self._handed) >= MOST_AHEAD):
            self._leave()
        self._handed.append(handed)

    def next(self, count: int | None) -> Handed:
        """The batch whose losses are recorded next, which then counts as recorded.

        Args:
            count: How many losses there are; None for a single one of the whole batch.

        Raises:
            ConfigError: If no batch waits for its losses.
            LossError: If there are not as many losses as it has examples.
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
        first.missing = 0
        self.settled += 1
        return first

    def find(self, indices: Tensor, *, use: bool) -> Tensor | None:
        """Counts the losses of some examples as recorded, wherever in the waiting batches they are.

        Args:
            indices: int64[n], on the CPU.
            use: Whether their weights are being applied.

        Returns:
            float32[n], their weights; None where one of them is in none of the batches that wait.
        """
        weights, found = torch.ones(len(indices)), torch.zeros(len(indices), dtype=torch.bool)
        for one in self._handed:
            if one.recorded or one.indices is None:
                continue
            rows, places = (one.indices[:, None] == indices).nonzero().unbind(1)
            if len(rows):
                weights[places] = one.weights.cpu()[rows]
                found[places], one.used = True, one.used or use
                one.missing -= len(set(rows.tolist()))
                self.settled += one.recorded
            if bool(found.all()):
                return weights
        return None

    def current(self, what: str) -> Handed:
        """The batch in training: the only one that was given and is not done with.

        Args:
            what: Is asked for, for the error.

        Raises:
            ConfigError: If there is none, or several, of which it might be any.
        """
        if not self._handed:
            raise ConfigError(f"loader.{what} is that of a batch, and none was given yet")
        if len(self._handed) > 1:
            raise ConfigError(
                f"loader.{what} could be that of any of {len(self._handed)} batches that were "
                "given: the loop reads ahead, or did not record the losses of each batch, or read "
                "it at each. Call loader.loss(losses), which takes batches in the order they were "
                "given, or have the loader attach=True index and weight to each batch"
            )
        (only,) = self._handed
        only.read = True
        only.used = only.used or what == "weights"
        return only

    def _leave(self) -> None:
        left = self._handed.popleft()
        self._without_losses += left.lacks_losses
        self._without_weights += left.lacks_weights
