"""Dynamic pruning by upper confidence bounds."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_integer, checked_number, checked_share
from siftback.rules.rule import EpochRule, checked_table, rounded_down, weights_of_known
from siftback.rules.score_table import ScoreTable
from siftback.schedule import Epochs, Moment, Share


def moving_moments(
    means: Tensor, variances: Tensor, losses: Tensor, decay: float
) -> tuple[Tensor, Tensor]:
    """The moving mean and variance of each example's losses, with one more loss each.

    Raju et al. 2021: with the mean m and the variance v before, a loss L and d = decay::

        v' = d v + (1 - d) (L - m)^2,    m' = d m + (1 - d) L

    Args:
        means: float32[n], NaN where there was no loss before; its mean is then the loss.
        variances: float32[n].
        losses: float32[n].
        decay: d, in [0, 1).

    Returns:
        float32[n] and float32[n], means and variances.

    >>> moving_moments(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([3.0]), 0.5)
    (tensor([2.]), tensor([2.]))
    """
    old = means.isfinite() & variances.isfinite()
    spread = decay * variances + (1 - decay) * (losses - means) ** 2
    return (
        torch.where(old, decay * means + (1 - decay) * losses, losses),
        torch.where(old, spread, 0.0),
    )


class UCB(EpochRule):
    """Prunes the examples whose loss has the lowest upper confidence bound.

    Raju, Daruwalla & Lipasti 2021, *Accelerating Deep Learning with Dynamic Data Pruning*: a
    bandit whose arms are the examples. The bound is ``mean + c * sqrt(variance)`` of an example's
    losses, both moving averages, see `moving_moments`; every few epochs the share ``keep`` of
    highest bound is chosen and the others are pruned until then. An example that is pruned keeps
    its bound, and returns when those of others have fallen below it. Ideal cost per example of an
    epoch with share s kept, in forwards (1) and backwards (2): 3s. How many examples are drawn
    depends on how many had a loss so far, and is not known beforehand.

    The deviation is in the unit of the loss; there is public code that adds the variance itself.

    Args:
        keep: Share of the examples that something is known of to keep, in (0, 1].
        c: Weight of the deviation, at least 0.
        decay: How much of the old averages stays, in [0, 1).
        every: Epochs from one choice to the next, at least 1.
        warmup: How long everything is trained on at first. Nothing is known in the first epoch,
            so that one is whole in any case.
        tail: How long everything is trained on at the end.
        table: Where means and variances are remembered, such as a `ScoreTable` in a file, of two
            columns; by default in memory, 8 bytes per example.

    Raises:
        ConfigError: If one of them is out of its range.

    >>> ucb = UCB(keep=0.5, c=1.0, decay=0.5)
    >>> ucb.grow(3)
    >>> ucb.update(torch.arange(2), torch.tensor([1.0, 1.5]), epoch=0)
    >>> ucb.update(torch.arange(2), torch.tensor([2.0, 1.4]), epoch=1)
    >>> ucb.bounds()
    tensor([2.2071, 1.5207,    nan])
    >>> ucb.draw(2, torch.Generator())
    tensor([1., 0., 1.])
    """

    def __init__(
        self,
        keep: float = 0.5,
        c: float = 1.0,
        decay: float = 0.8,
        every: int = 1,
        *,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(checked_table("UCB", table, 2), warmup=warmup, tail=tail)
        self.keep = checked_share("keep", keep, least=False, most=True)
        self.c = checked_number("c", c, least=0)
        self.decay = checked_share("decay", decay)
        self.every = checked_integer("every", every, 1)
        self._pruned = torch.empty(0, dtype=torch.bool)  # as of the last choice
        self._chosen_at: int | None = None

    def bounds(self) -> Tensor:
        """float32[examples], the bound of each; NaN where nothing is known."""
        mean, variance = self.values.unbind(1)
        return mean + self.c * variance.sqrt()

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """The choice of this period, made again where a new period begins."""
        if self._chosen_at is None or not 0 <= epoch - self._chosen_at < self.every:
            self._pruned = weights_of_known(self.bounds(), self._weigh) == 0
            self._chosen_at = epoch
        weights = torch.ones(self.examples)
        weights[: len(self._pruned)][self._pruned] = 0.0
        return weights

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Takes the losses into the averages."""
        # One that is not finite is as high as can be: it is kept, and forgotten with the next.
        indices = indices.cpu()
        losses = losses.detach().to(self.values).nan_to_num(nan=torch.inf)
        mean, variance = self.values[indices].unbind(1)
        both = moving_moments(mean, variance, losses, self.decay)
        self.table.record(indices, torch.stack(both, 1).nan_to_num(nan=torch.inf, posinf=torch.inf))

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        return {"keep": self.keep, "c": self.c, "decay": self.decay, "every": self.every}

    def state_dict(self) -> dict[str, Any]:
        """The averages, which examples are pruned, and since when."""
        choice = {"pruned": self._pruned.clone(), "chosen_at": self._chosen_at}
        return {**super().state_dict(), **choice}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state.

        Raises:
            StateError: As for `EpochRule.check_state`, before anything is changed.
        """
        super().load_state_dict(state)
        self._pruned, self._chosen_at = state["pruned"].clone(), state["chosen_at"]

    def _weigh(self, bounds: Tensor) -> Tensor:
        """0 for the lowest bounds; of equal ones the first are the lowest."""
        weights = torch.ones_like(bounds)
        # At least one stays, and no more are pruned than that share.
        pruned = min(rounded_down(1 - self.keep, len(bounds)), len(bounds) - 1)
        weights[bounds.argsort(stable=True)[:pruned]] = 0.0
        return weights
