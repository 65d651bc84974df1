"""RS2: another random subset every epoch."""

import math
from typing import Any

import torch
from torch import Tensor

from siftback.rules.every_epoch import Columns, EveryEpoch, checked_share
from siftback.schedule import Moment


def next_of_permutations(
    waiting: Tensor, count: int, examples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The next few examples of one random permutation after the other.

    Where fewer wait than are asked for, the others come from a new permutation, without those
    taken already: nothing comes twice, and nobody comes again before all have come.

    Args:
        waiting: int64[w], those of the current permutation that did not come yet, in order.
        count: k, how many to take, at most ``examples``.
        examples: How many there are.
        generator: On the CPU; drawn from where a new permutation begins.

    Returns:
        int64[k], the ones taken, and int64[...], those that now wait.

    >>> next_of_permutations(torch.tensor([3, 1]), 1, 4, torch.Generator())
    (tensor([3]), tensor([1]))
    """
    if len(waiting) >= count:
        return waiting[:count], waiting[count:]
    order = torch.randperm(examples, generator=generator)
    still = torch.zeros(examples, dtype=torch.bool)
    still[waiting] = True
    fresh = order[~still[order]][: count - len(waiting)]
    came = torch.zeros(examples, dtype=torch.bool)
    came[fresh] = True
    return torch.cat((waiting, fresh)), order[~came[order]]


class RS2(EveryEpoch):
    """RS2: every epoch is a random subset of its own, whatever the losses.

    Okanovic et al. 2024, *Repeated Random Sampling for Minimizing the Time-to-Accuracy of
    Learning*: the baseline that most pruning methods do not beat. Ideal cost of an
    epoch with share s kept, in forwards (1) and backwards (2): 3s. Exactly ``ceil(keep * N)``
    examples are drawn, before they are read.

    Args:
        keep: Share of the examples in an epoch, in (0, 1].
        replacement: Whether each epoch's subset is drawn from all examples. Without it, epochs
            walk through a permutation until all examples were used, which takes at most
            ``ceil(1 / keep)`` epochs, then through a new one.
        warmup: How long everything is trained on at first.
        tail: The last part of training in which everything is trained on, a share.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> rs2 = RS2(keep=0.5)
    >>> rs2.grow(6)
    >>> generator = torch.Generator().manual_seed(0)
    >>> first, second = rs2.draw(0, generator), rs2.draw(1, generator)
    >>> first, first + second
    (tensor([0., 0., 1., 1., 0., 1.]), tensor([1., 1., 1., 1., 1., 1.]))
    """

    learns = False

    def __init__(
        self,
        keep: float = 0.5,
        *,
        replacement: bool = False,
        warmup: Moment = 0,
        tail: float = 0.0,
    ) -> None:
        super().__init__(Columns(0), warmup, tail)
        self.keep = checked_share("keep", keep, least=False, most=True)
        self.replacement = replacement
        self._waiting = torch.empty(0, dtype=torch.int64)

    def predicted(self, epoch: int) -> Tensor:
        """float32[examples], 0 throughout: all are alike."""
        return torch.zeros(len(self.store))

    def weigh(self, scores: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """1 for the drawn; of the scores only the number counts."""
        waiting = self._waiting[:0] if self.replacement else self._waiting
        count = math.ceil(self.keep * len(scores) - 1e-9)  # 0.29 * 100 is no more than 29
        drawn, self._waiting = next_of_permutations(waiting, count, len(scores), generator)
        weights = torch.zeros_like(scores)
        weights[drawn] = 1.0
        return weights

    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Nothing to remember."""

    def state_dict(self) -> dict[str, Any]:
        """Who waits, in order."""
        return {"waiting": self._waiting.clone(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        super().load_state_dict(state)
        self._waiting = state["waiting"].clone()
