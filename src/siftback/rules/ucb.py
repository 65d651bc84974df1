"""Dynamic pruning by upper confidence bounds."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_number, check_share
from siftback.rules.rule import EpochRule, round_down, weigh_known
from siftback.schedule import Epochs, Moment, Share
from siftback.state import MOST_EPOCHS, Check, integer, raise_damaged, tensor
from siftback.tables.score_table import ScoreTable


def moving_moments(
    means: Tensor, variances: Tensor, losses: Tensor, decay: float
) -> tuple[Tensor, Tensor]:
    """Updates the moving mean and variance of each example's losses with one loss each.

    Raju et al. 2021: with the previous mean m and variance v, a loss L and d = decay::

        v' = d v + (1 - d) (L - m)^2,    m' = d m + (1 - d) L

    Args:
        means: float32[n], NaN if there was no loss before; the new mean is then the loss.
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
    moved = decay * means + (1 - decay) * losses
    return torch.where(old, moved, losses), torch.where(old, spread, 0.0)


class UCB(EpochRule):
    """Prunes the examples whose loss has the lowest upper confidence bound.

    Raju, Daruwalla & Lipasti 2021, *Accelerating Deep Learning with Dynamic Data Pruning*: a
    bandit with the examples as its arms. The bound is ``mean + c * sqrt(variance)`` of an example's
    losses, both moving averages, see `moving_moments`; every few epochs the share ``keep`` of
    highest bound is chosen, and the others are pruned until the next choice. A pruned example
    keeps its bound, and returns when other bounds have fallen below it. Ideal cost per example of
    an epoch with share s kept, in forwards (1) and backwards (2): 3s. The number of examples drawn
    depends on how many had a loss so far, and is not known in advance.

    The bound uses the standard deviation, in the unit of the loss, and the averages begin with the
    first loss; some public code adds the variance itself, and begins both averages with 0.

    Args:
        keep: Share of the examples with known losses to keep, in (0, 1].
        c: Weight of the standard deviation, at least 0.
        decay: Weight of the old averages, in [0, 1).
        every: Epochs from one choice to the next, at least 1.
        warmup: How long all examples are trained on at first. The first epoch is always whole, as
            no losses are known yet.
        tail: How long all examples are trained on at the end.
        table: Stores means and variances, such as a `ScoreTable` in a file, of two columns; by
            default in memory, 8 bytes per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> ucb = UCB(keep=0.5, c=1.0, decay=0.5)
    >>> ucb.grow(3)
    >>> ucb.update(torch.arange(2), torch.tensor([1.0, 1.5]), epoch=0)
    >>> ucb.update(torch.arange(2), torch.tensor([2.0, 1.4]), epoch=1)
    >>> ucb.bounds()
    tensor([2.2071, 1.5207,    nan])
    >>> ucb.draw(2, torch.Generator())
    tensor([1., 0., 1.])
    """

    setting_names = ("keep", "c", "decay", "every")

    updates_by_example = True

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
        super().__init__(table, columns=2, warmup=warmup, tail=tail)
        self.keep = check_share("keep", keep, least=False, most=True)
        self.c = check_number("c", c, least=0)
        self.decay = check_share("decay", decay)
        self.every = check_integer("every", every, 1)
        self._pruned = torch.empty(0, dtype=torch.bool)  # of the last choice
        self._undecided = self._pruned.clone()  # those that it was not among
        self._chosen_at = -self.every  # so that the first draw is a choice

    def bounds(self) -> Tensor:
        """Returns float32[examples], the bound of each; NaN where unknown."""
        mean, variance = self.values.unbind(1)
        return mean + self.c * variance.sqrt()

    def scores(self, epoch: int) -> Tensor:
        """Returns float32[examples], see `bounds`."""
        return self.bounds()

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns the choice of this period, renewed when a new period begins."""
        if not 0 <= epoch - self._chosen_at < self.every:
            self._pruned = torch.zeros(self._examples, dtype=torch.bool)
            self._undecided = torch.ones_like(self._pruned)
            self._chosen_at = epoch
        rows = self.drawn_among
        known = (rows < len(self._pruned)).nonzero().squeeze(1)  # not what came since the choice
        new = known[self._undecided[rows[known]]]

        def weigh(bounds: Tensor) -> Tensor:
            weights = torch.ones_like(bounds)
            # At least one stays, and the pruned share is rounded down; of equal bounds, earlier
            # examples count as lower.
            pruned = min(round_down(1 - self.keep, len(bounds)), len(bounds) - 1)
            weights[bounds.argsort(stable=True)[:pruned]] = 0.0
            return weights

        # A sampler may give others than it did as the period began: these are chosen among as
        # they come, so that the share is right in each epoch.
        self._pruned[rows[new]] = weigh_known(self.bounds()[new], weigh) == 0
        self._undecided[rows[new]] = False
        weights = torch.ones(len(rows), dtype=torch.float32)
        weights[known] = (~self._pruned[rows[known]]).float()
        return weights

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Tensor | None) -> None:
        """Updates the averages with the losses."""
        # A loss that is not finite counts as infinite: it is kept, and replaced by the next one.
        indices = indices.cpu()
        losses = losses.detach().to(self.values).nan_to_num(nan=torch.inf)
        mean, variance = self.values[indices].unbind(1)
        moments = torch.stack(moving_moments(mean, variance, losses, self.decay), 1)
        self.table.record(indices, moments.nan_to_num(nan=torch.inf, posinf=torch.inf))

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        choice = {"_chosen_at": integer(-self.every, MOST_EPOCHS)}
        masks = dict.fromkeys(("_pruned", "_undecided"), tensor(torch.bool, None))
        return {**super().state_fields(), **choice, **masks}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: As for `EpochRule.check_state`, or if the choice is damaged.
        """
        super().check_state(state)
        pruned, undecided = len(state["pruned"]), len(state["undecided"])
        fits = pruned == undecided <= state["examples"]
        if not fits or (pruned and state["chosen_at"] < 0):
            raise_damaged("UCB.pruned", (pruned, undecided), "a choice among the examples")
