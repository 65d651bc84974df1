"""Dynamic pruning by upper confidence bounds."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_integer, checked_number, checked_share
from siftback.rules.rule import EpochRule, checked_table, rounded_down, weights_of_known
from siftback.schedule import Epochs, Moment, Share
from siftback.state import MOST_EPOCHS, check_entries, integer, optional, seal, tensor
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
    return (
        torch.where(old, decay * means + (1 - decay) * losses, losses),
        torch.where(old, spread, 0.0),
    )


class UCB(EpochRule):
    """Prunes the examples whose loss has the lowest upper confidence bound.

    Raju, Daruwalla & Lipasti 2021, *Accelerating Deep Learning with Dynamic Data Pruning*: a
    bandit with the examples as its arms. The bound is ``mean + c * sqrt(variance)`` of an example's
    losses, both moving averages, see `moving_moments`; every few epochs the share ``keep`` of
    highest bound is chosen, and the others are pruned until the next choice. A pruned example
    keeps its bound, and returns when other bounds have fallen below it. Ideal cost per example of
    an epoch with share s kept, in forwards (1) and backwards (2): 3s. The number of examples drawn
    depends on how many had a loss so far, and is not known in advance.

    The bound uses the standard deviation, in the unit of the loss; some public code adds the
    variance itself.

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
        self._pruned = torch.empty(0, dtype=torch.bool)  # of the last choice
        self._undecided = self._pruned.clone()  # those that it was not among
        self._chosen_at: int | None = None

    def bounds(self) -> Tensor:
        """float32[examples], the bound of each; NaN where unknown."""
        mean, variance = self.values.unbind(1)
        return mean + self.c * variance.sqrt()

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """The choice of this period, renewed when a new period begins."""
        if self._chosen_at is None or not 0 <= epoch - self._chosen_at < self.every:
            self._pruned = torch.zeros(self._examples, dtype=torch.bool)
            self._undecided = torch.ones_like(self._pruned)
            self._chosen_at = epoch
        rows = torch.arange(self.examples) if self.candidates is None else self.candidates
        weights = torch.ones(len(rows), dtype=torch.float32)
        there = rows < len(self._pruned)  # what came since is trained on until the next choice
        new = there.clone()
        new[there] = self._undecided[rows[there]]
        # A sampler may give others than it did as the period began: these are chosen among as
        # they come, so that the share is right in each epoch.
        self._pruned[rows[new]] = weights_of_known(self.bounds()[new], self._weigh) == 0
        self._undecided[rows[new]] = False
        weights[there] = (~self._pruned[rows[there]]).float()
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
        """Updates the averages with the losses."""
        # A loss that is not finite counts as infinite: it is kept, and replaced by the next one.
        indices = indices.cpu()
        losses = losses.detach().to(self.values).nan_to_num(nan=torch.inf)
        mean, variance = self.values[indices].unbind(1)
        both = moving_moments(mean, variance, losses, self.decay)
        self.table.record(indices, torch.stack(both, 1).nan_to_num(nan=torch.inf, posinf=torch.inf))

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        return {"keep": self.keep, "c": self.c, "decay": self.decay, "every": self.every}

    def state_dict(self) -> dict[str, Any]:
        """The averages, the pruned examples, and the epoch of the choice."""
        choice = {"pruned": self._pruned.clone(), "undecided": self._undecided.clone()}
        count = len(self._pruned)
        counts = {"chosen_at": self._chosen_at, "chosen_of": count}
        return seal({**super().state_dict(), **counts, **choice})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: As for `EpochRule.check_state`, or if the choice is damaged.
        """
        super().check_state(state)
        check_entries(self, state, {"chosen_of": integer(most=state["examples"])})
        chosen_at = integer(most=MOST_EPOCHS)
        check_entries(
            self,
            state,
            {
                "chosen_at": chosen_at if state["chosen_of"] else optional(chosen_at),
                "pruned": tensor(torch.bool, state["chosen_of"]),
                "undecided": tensor(torch.bool, state["chosen_of"]),
            },
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another rule's state.

        Raises:
            StateError: As for `EpochRule.check_state`, before anything is changed.
        """
        self.check_state(state)
        super().load_state_dict(state)
        self._pruned, self._undecided = state["pruned"].clone(), state["undecided"].clone()
        self._chosen_at = state["chosen_at"]

    def _weigh(self, bounds: Tensor) -> Tensor:
        """0 for the lowest bounds; among equal ones, earlier examples count as lower."""
        weights = torch.ones_like(bounds)
        # At least one is kept, and the pruned share is rounded down.
        pruned = min(rounded_down(1 - self.keep, len(bounds)), len(bounds) - 1)
        weights[bounds.argsort(stable=True)[:pruned]] = 0.0
        return weights
