"""What rules have in common that remember the last losses, and may hold back suspects."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_share, shown
from siftback.errors import ConfigError
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.rule import LastLossRule
from siftback.schedule import Moment
from siftback.tables.score_table import ScoreTable


class GuardedRule(LastLossRule):
    """A rule that remembers the losses of training, and may have a `NoiseGuard`.

    A rule of this kind defines `draw`, and leaves to the guard how many of the examples that it
    holds back (`held`) are admitted all the same.

    Args:
        table: Values remembered per example.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        decay: Weight of the old loss in the remembered one, in [0, 1).
        guard: Holds back examples whose label is probably wrong.
        shards: As of `EpochRule`.

    Raises:
        ConfigError: If one of them is out of range, or both ``shards`` and a guard are given.
    """

    def __init__(
        self,
        table: ScoreTable,
        *,
        warmup: Moment,
        tail: Moment,
        decay: float = 0.0,
        guard: NoiseGuard | None = None,
        shards: int | None = None,
    ) -> None:
        super().__init__(table, warmup=warmup, tail=tail, shards=shards)
        self.decay = checked_share("decay", decay)
        if guard is not None and not isinstance(guard, NoiseGuard):
            raise ConfigError(f"guard={shown(guard)}: give a NoiseGuard(classes), or None")
        if guard is not None and shards is not None:
            raise ConfigError(
                f"guard=NoiseGuard(...) and shards={shards}: give one of them, as a guard ranks "
                "the examples of all processes"
            )
        self.guard = guard

    @property
    def held(self) -> Tensor:
        """int64[n], the rows of the suspects that the guard holds back; none without a guard."""
        if self.guard is None:
            return torch.zeros(0, dtype=torch.int64)
        held = self.guard.held
        if self.candidates is not None:
            return torch.isin(self.candidates, held).nonzero().squeeze(1)
        return held[held < self.examples]

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **guesses: Tensor | None) -> None:
        """Remembers the losses, and shows them to the guard."""
        super().update(indices, losses, epoch, **guesses)
        if self.guard is not None:
            self.guard.observe(indices, losses)

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        return {"guard": None if self.guard is None else self.guard.settings()}

    def members(self) -> dict[str, Any]:
        """The guard, if there is one."""
        return {} if self.guard is None else {"guard": self.guard}
