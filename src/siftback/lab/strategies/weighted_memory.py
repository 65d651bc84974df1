"""Memory whose draws are weighted by one over their probability, wholly or more and more."""

from typing import Any

import torch
from torch import Tensor

from siftback import Memory


class WeightedMemory(Memory):
    """`Memory`, with loss weights that undo the bias of its draws.

    An example that is drawn with probability p has the weight ``(k / (N p))^a``. With a = 1 the
    expected mean loss of a draw of k of N examples is the mean over all of them: importance
    sampling. With a = 0 there are no weights, as in `Memory` itself. A log-loss measures
    probabilities, which a biased draw shifts; the error does not.

    Args:
        keep: Share of the examples in an epoch.
        epochs: After how many epochs a has risen from 0 to 1, in a straight line (as in Schaul et
            al. 2016); None has it at 1 from the beginning.
        options: More arguments of `Memory`, but for a guard.

    >>> memory = WeightedMemory(keep=0.5, floor=0.0)
    >>> memory.grow(4)
    >>> memory.update(torch.arange(4), torch.tensor([4.0, 1.0, 3.0, 2.0]), epoch=0)
    >>> memory.draw(1, torch.Generator().manual_seed(0))
    tensor([0.5714, 0.0000, 0.0000, 1.3333])
    """

    setting_names = ("epochs",)  # type: ignore[assignment]

    def __init__(self, keep: float, *, epochs: float | None = None, **options: Any) -> None:
        super().__init__(keep, **options)
        self.epochs = epochs

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """As `Memory` draws, and with what weights."""
        drawn = super().draw(epoch, generator)
        exponent = 1.0 if self.epochs is None else min(1.0, epoch / max(self.epochs, 1.0))
        share = self.count(epoch) / self.examples
        weights = (share / self._probabilities(self.count(epoch))) ** exponent
        return drawn * weights.float()

    def _probabilities(self, count: int) -> Tensor:
        """Of each example to be among the ``count`` drawn: float64[N]; 1 where no loss is known."""
        scores = self.values[:, 0]
        known = ~scores.isnan()
        left = count - int((~known).sum())
        probabilities = torch.ones(len(scores), dtype=torch.float64)
        if left <= 0 or not known.any():
            return probabilities
        _, indices, sizes = torch.unique(scores[known], return_inverse=True, return_counts=True)
        ends = sizes.cumsum(0).double() / sizes.sum()
        starts = ends - sizes.double() / sizes.sum()
        power = self.beta + 1
        # The mean of percentile^beta over the percentiles that equal losses share.
        means = (ends**power - starts**power) / (power * (ends - starts))
        of_known = (self.floor + (1 - self.floor) * means)[indices]
        # Those without a loss are drawn first, and leave fewer.
        probabilities[known] = (of_known * left / of_known.sum()).clamp(max=1.0)
        return probabilities
