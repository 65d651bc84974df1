"""Loss ratio: examples are drawn by their remembered loss over the mean of all."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_share
from siftback.rules.rule import EpochRule, checked_table, record_average, weights_of_known
from siftback.rules.score_table import ScoreTable
from siftback.schedule import Moment, Share


def loss_ratio_weights(losses: Tensor, floor: float, generator: torch.Generator) -> Tensor:
    """1 for examples that are drawn, 0 for the others, each drawn independently.

    For a loss L and the mean of all losses m::

        P(drawn) = max(floor, min(1, L / m))

    Args:
        losses: float32[N], at least 0. Those that are not finite are not part of the mean, and
            their examples are drawn.
        floor: The least probability, in [0, 1).
        generator: On the CPU. N numbers are drawn.

    Returns:
        float32[N].

    >>> losses = torch.tensor([0.01, 0.01, 0.02, 3.96])
    >>> loss_ratio_weights(losses, 0.1, torch.Generator().manual_seed(0))
    tensor([0., 0., 1., 1.])
    >>> loss_ratio_weights(torch.ones(4), 0.1, torch.Generator().manual_seed(0))  # none is easier
    tensor([1., 1., 1., 1.])
    """
    finite = losses.isfinite()
    mean = losses[finite].double().mean()
    probabilities = (losses.double() / mean).nan_to_num(1.0).clamp(floor, 1.0)
    probabilities[~finite] = 1.0
    return (torch.rand(len(losses), generator=generator) < probabilities).float()


class LossRatio(EpochRule):
    """Draws each example with a probability that is its remembered loss over the mean of all.

    There are no scoring passes. During warm-up, every example is trained on and its training loss
    remembered. From then on, examples are drawn before they are read, with probability::

        max(floor, min(1, loss / mean loss))

    so that the share of an epoch follows the state of training. While all losses are alike nearly
    all are drawn; once a few examples have most of the loss, little more than these. See
    `loss_ratio_weights`. This rule is new in this project. Ideal cost per example of an epoch with
    a share s drawn, in forwards (1) and backwards (2): ``3 s``. The examples are drawn
    independently, so their number is not known in advance.

    Args:
        floor: The minimum probability, in [0, 1), so that no example is forgotten.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        table: Stores the losses, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> rule = LossRatio()
    >>> rule.grow(5)
    >>> rule.update(torch.arange(4), torch.tensor([0.01, 0.01, 0.02, 3.96]), epoch=0)
    >>> rule.draw(1, torch.Generator().manual_seed(0))
    tensor([0., 0., 1., 1., 1.])
    """

    def __init__(
        self,
        floor: float = 0.1,
        *,
        warmup: Moment = Share(0.15),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        self.floor = checked_share("floor", floor)
        super().__init__(checked_table("LossRatio", table, 1), warmup=warmup, tail=tail)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """See `loss_ratio_weights`."""
        return weights_of_known(
            self.values[:, 0], lambda losses: loss_ratio_weights(losses, self.floor, generator)
        )

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Remembers the losses."""
        record_average(self.table, indices, losses, 0.0)

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        return {"floor": self.floor}
