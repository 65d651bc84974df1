"""RS2: another random subset every epoch."""

import math
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_share
from siftback.rules.rule import EpochRule
from siftback.schedule import Epochs, Moment, Share


def next_of_permutations(
    waiting: Tensor, count: int, examples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The next few examples of one random permutation after the other.

    Where fewer wait than are asked for, the others come from a new permutation, without those
    taken already: nothing comes twice, and nothing comes again before everything has come.

    Args:
        waiting: int64[w], those of the current permutation that have not come yet, in order.
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


class RS2(EpochRule):
    """RS2: every epoch is a random subset of its own, whatever the losses.

    Okanovic et al. 2024, *Repeated Random Sampling for Minimizing the Time-to-Accuracy of
    Learning*: the baseline that most pruning methods do not beat. Exactly ``ceil(keep * N)`` of N
    examples are drawn, before they are read. Ideal cost per example of an epoch with share s
    kept, in forwards (1) and backwards (2): 3s.

    Args:
        keep: Share of the examples in an epoch, in (0, 1].
        replacement: Whether each epoch's subset is drawn from all examples. Without it, epochs
            walk through a permutation until all examples were used, which takes at most
            ``ceil(1 / keep)`` epochs, then through a new one.
        warmup: How long everything is trained on at first.
        tail: How long everything is trained on at the end.

    Raises:
        ConfigError: If one of them is out of its range.

    >>> rs2 = RS2(keep=0.5)
    >>> rs2.grow(6)
    >>> generator = torch.Generator().manual_seed(0)
    >>> first, second = rs2.draw(0, generator), rs2.draw(1, generator)
    >>> first, first + second
    (tensor([0., 0., 1., 1., 0., 1.]), tensor([1., 1., 1., 1., 1., 1.]))
    """

    def __init__(
        self,
        keep: float = 0.5,
        *,
        replacement: bool = False,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
    ) -> None:
        super().__init__(warmup=warmup, tail=tail)
        self.keep = checked_share("keep", keep, least=False, most=True)
        self.replacement = replacement
        self._waiting = torch.empty(0, dtype=torch.int64)

    def count(self, epoch: int) -> int:
        """How many examples a draw keeps: ``ceil(keep * N)``."""
        return math.ceil(self.keep * self.examples - 1e-9)  # 0.29 * 100 is no more than 29

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """1 for the drawn; see `next_of_permutations`."""
        waiting = self._waiting[:0] if self.replacement else self._waiting
        drawn, self._waiting = next_of_permutations(
            waiting, self.count(epoch), self.examples, generator
        )
        return torch.zeros(self.examples).index_fill_(0, drawn, 1.0)

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        return {"keep": self.keep, "replacement": self.replacement}

    def state_dict(self) -> dict[str, Any]:
        """Which examples wait, in order."""
        return {**super().state_dict(), "waiting": self._waiting.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state.

        Raises:
            StateError: As for `EpochRule.check_state`, before anything is changed.
        """
        super().load_state_dict(state)
        self._waiting = state["waiting"].clone()
