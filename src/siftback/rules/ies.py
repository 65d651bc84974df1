"""Instance-dependent early stopping: leave out what is settled."""

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.rules.every_epoch import Columns, EveryEpoch, checked_share, count_of
from siftback.schedule import Moment
from siftback.selectors.percentile import is_number


def unrest(losses: Tensor) -> Tensor:
    """How much the losses of examples still bend: the mean size of their second differences.

    Yuan et al. 2025: with the losses L(1), ..., L(n) of an example, the mean over t of
    ``|L(t) - 2 L(t-1) + L(t-2)|``.

    Args:
        losses: float32[N, n], each example's last n >= 3 losses in their order.

    Returns:
        float32[N]; NaN where a loss is missing.

    >>> unrest(torch.tensor([[3.0, 2.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]]))
    tensor([0., 2.])
    """
    return losses.diff(n=2, dim=1).abs().mean(1)


class IES(EveryEpoch):
    """Instance-dependent early stopping: leaves out an example whose loss has settled.

    Yuan et al. 2025, *Instance-dependent Early Stopping*: an example is mastered where the second
    differences of its losses stay near 0, see `unrest`: their mean size over the last few is
    below a threshold, the same for easy and hard examples. It is left out while that holds.

    In the paper mastered examples are still forwarded each epoch, so that one that is forgotten
    comes back. Here that is the loop's choice: ``loader.left_out`` says who they were, and
    ``loader.remember(losses, indices=...)`` takes what a forward pass in eval mode finds. Without
    it what is settled stays out. Ideal cost of an epoch with share s trained on, in forwards (1)
    and backwards (2): ``1 + 2s`` with those passes, 3s without.

    Args:
        threshold: The mean size of second differences, above 0, below which a loss is settled.
        window: Over how many second differences the mean is taken, at least 1. Nothing is known
            of an example until it had two losses more.
        keep: The least share of the known examples to keep, in [0, 1): where more are settled,
            those that bend most of them stay. 0, as in the paper, keeps none of them.
        warmup: How long everything is trained on at first.
        tail: The last part of training in which everything is trained on, a share.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> ies = IES(threshold=0.1, window=1)
    >>> ies.grow(3)
    >>> for epoch, losses in enumerate([[2.0, 1.0], [1.0, 0.9], [0.5, 0.8]]):
    ...     ies.trained(torch.arange(2), torch.tensor(losses), epoch)
    >>> ies.draw(3, torch.Generator())
    tensor([1., 0., 1.])
    """

    def __init__(
        self,
        threshold: float = 1e-3,
        window: int = 3,
        keep: float = 0.0,
        *,
        warmup: Moment = 0,
        tail: float = 0.0,
    ) -> None:
        if not is_number(threshold) or threshold <= 0:
            raise ConfigError(f"threshold={threshold!r}: give a number above 0")
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise ConfigError(f"window={window!r}: give a whole number of losses, at least 1")
        self._losses = Columns(window + 2)  # the last ones, oldest first
        super().__init__(self._losses, warmup, tail)
        self.threshold, self.window = float(threshold), window
        self.keep = checked_share("keep", keep)

    def predicted(self, epoch: int) -> Tensor:
        """How much each one's losses still bend."""
        return unrest(self._losses.values)

    def weigh(self, scores: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """0 for the settled, the most settled first where not all may be left out."""
        weights = torch.ones_like(scores)
        calmest = scores.argsort(stable=True)[: count_of(1 - self.keep, len(scores))]
        weights[calmest[scores[calmest] < self.threshold]] = 0.0
        return weights

    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Appends the losses; the oldest ones are forgotten."""
        indices, values = indices.cpu(), self._losses.values
        moved = values[indices].roll(-1, 1)
        moved[:, -1] = losses.detach().to(values)
        values[indices] = moved
