"""Dynamic pruning by upper confidence bounds."""

from typing import Any

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.rules.every_epoch import Columns, EveryEpoch, checked_share, count_of
from siftback.schedule import Moment
from siftback.selectors.percentile import is_number


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


class UCB(EveryEpoch):
    """Prunes the examples whose loss has the lowest upper confidence bound.

    Raju, Daruwalla & Lipasti 2021, *Accelerating Deep Learning with Dynamic Data Pruning*: a
    bandit whose arms are the examples. The bound is ``mean + c * sqrt(variance)`` of an example's
    losses, both moving averages, see `moving_moments`; every few epochs the share ``keep`` of
    highest bound is chosen and the others are pruned until then. An example that is pruned keeps
    its bound, and returns when those of others have fallen below it. Ideal cost of an epoch with
    share s kept, in forwards (1) and backwards (2): 3s.

    The deviation is in the unit of the loss; public code that adds the variance itself exists.

    Args:
        keep: Share of the examples that something is known of to keep, in (0, 1].
        c: Weight of the deviation, at least 0.
        decay: How much of the old averages stays, in [0, 1).
        every: Epochs from one choice to the next, at least 1.
        warmup: How long everything is trained on at first. Nothing is known in the first epoch,
            so that one is whole in any case.
        tail: The last part of training in which everything is trained on, a share.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> ucb = UCB(keep=0.5, c=1.0, decay=0.5)
    >>> ucb.grow(3)
    >>> ucb.trained(torch.arange(2), torch.tensor([1.0, 1.5]), epoch=0)
    >>> ucb.trained(torch.arange(2), torch.tensor([2.0, 1.4]), epoch=1)
    >>> ucb.predicted(2)
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
        warmup: Moment = 0,
        tail: float = 0.0,
    ) -> None:
        self._moments = Columns(2)  # mean and variance
        super().__init__(self._moments, warmup, tail)
        self.keep = checked_share("keep", keep, least=False, most=True)
        self.decay = checked_share("decay", decay)
        if not is_number(c) or c < 0:
            raise ConfigError(f"c={c!r}: give a weight of the deviation, at least 0")
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ConfigError(f"every={every!r}: give a whole number of epochs, at least 1")
        self.c, self.every = float(c), every
        self._pruned = torch.empty(0, dtype=torch.bool)  # as of the last choice
        self._chosen_at: int | None = None

    def predicted(self, epoch: int) -> Tensor:
        """The bound of each."""
        mean, variance = self._moments.values.unbind(1)
        return mean + self.c * variance.sqrt()

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """The choice of this period, made anew where one begins."""
        if self._chosen_at is None or not 0 <= epoch - self._chosen_at < self.every:
            self._pruned, self._chosen_at = super().draw(epoch, generator) == 0, epoch
        weights = torch.ones(len(self._moments))
        weights[: len(self._pruned)][self._pruned] = 0.0
        return weights

    def weigh(self, scores: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """0 for the lowest bounds; of equal ones the first are the lowest."""
        weights = torch.ones_like(scores)
        # At least one stays, and no more are pruned than that share.
        pruned = min(count_of(1 - self.keep, len(scores)), len(scores) - 1)
        weights[scores.argsort(stable=True)[:pruned]] = 0.0
        return weights

    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Takes the losses into the averages."""
        moments = self._moments.values
        indices = indices.cpu()
        # One that is not finite is as high as can be: it is kept, and forgotten with the next.
        losses = losses.detach().to(moments).nan_to_num(nan=torch.inf)
        mean, variance = moments[indices].unbind(1)
        both = moving_moments(mean, variance, losses, self.decay)
        moments[indices] = torch.stack(both, 1).nan_to_num(nan=torch.inf, posinf=torch.inf)

    def state_dict(self) -> dict[str, Any]:
        """The averages, who is pruned, and since when."""
        choice = {"pruned": self._pruned.clone(), "chosen_at": self._chosen_at}
        return {**choice, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        super().load_state_dict(state)
        self._pruned, self._chosen_at = state["pruned"].clone(), state["chosen_at"]
