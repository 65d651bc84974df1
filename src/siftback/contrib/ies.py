"""Instance-dependent early stopping: leaves out examples with settled losses."""

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_number, check_share
from siftback.rules.rule import EpochRule, round_down, weigh_known
from siftback.schedule import Epochs, Moment, Share
from siftback.tables.score_table import ScoreTable


def unrest(losses: Tensor) -> Tensor:
    """Computes the mean absolute second difference of each example's losses, 0 when they settle.

    Yuan et al. 2025: with the losses L(1), ..., L(n) of an example, the mean over t of
    ``|L(t) - 2 L(t-1) + L(t-2)|``.

    Args:
        losses: float32[N, n], each example's last n >= 3 losses in order.

    Returns:
        float32[N]; NaN where a loss is missing.

    >>> unrest(torch.tensor([[3.0, 2.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]]))
    tensor([0., 2.])
    """
    return losses.diff(n=2, dim=1).abs().mean(1)


class IES(EpochRule):
    """Instance-dependent early stopping: leaves out an example whose loss has settled.

    Yuan et al. 2025, *Instance-dependent Early Stopping*: an example is mastered while the second
    differences of its losses are near 0, see `unrest`: their mean absolute value over the last few
    is below a threshold, the same for easy and hard examples. It is then left out.

    In the paper mastered examples are still forwarded each epoch, so that forgotten ones come
    back. Here the training loop may do that, with ``shorter_epochs=True``, by which an epoch is
    one pass: ``loader.left_out`` gives their indices, and
    ``loader.record(losses, indices=...)`` records the losses of a forward pass in eval mode.
    Without it, settled examples stay out. Ideal cost per example of an epoch with share s trained
    on, in forwards (1) and backwards (2): ``1 + 2s`` with those passes, 3s without. The number of
    examples drawn depends on their losses, and is not known in advance.

    Args:
        threshold: The mean absolute second difference, above 0, below which a loss is settled.
        window: Number of second differences in the mean, at least 1. An example has no score
            until it has had two losses more than that.
        keep: The minimum share of the known examples to keep, in [0, 1): if more are settled, the
            least settled of them stay. 0, as in the paper, leaves out all settled ones.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        table: Stores the last losses, such as a `ScoreTable` in a file, of ``window + 2`` columns;
            by default in memory, 4 bytes per loss.

    Raises:
        ConfigError: If one of them is out of range.

    >>> ies = IES(threshold=0.1, window=1)
    >>> ies.grow(3)
    >>> for epoch, losses in enumerate([[2.0, 1.0], [1.0, 0.9], [0.5, 0.8]]):
    ...     ies.update(torch.arange(2), torch.tensor(losses), epoch)
    >>> ies.draw(3, torch.Generator())
    tensor([1., 0., 1.])
    """

    updates_by_example = True
    setting_names = ("threshold", "window", "keep")

    def __init__(
        self,
        threshold: float = 1e-3,
        window: int = 3,
        keep: float = 0.0,
        *,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        self.threshold = check_number("threshold", threshold, above=0)
        self.window = check_integer("window", window, 1)
        self.keep = check_share("keep", keep)
        # The last losses, oldest first.
        super().__init__(table, columns=self.window + 2, warmup=warmup, tail=tail)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns 0 for settled examples, the most settled first if not all may be left out."""

        def weigh(scores: Tensor) -> Tensor:
            weights = torch.ones_like(scores)
            settled = scores.argsort(stable=True)[: round_down(1 - self.keep, len(scores))]
            weights[settled[scores[settled] < self.threshold]] = 0.0
            return weights

        return weigh_known(unrest(self.values), weigh)

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Tensor | None) -> None:
        """Appends the losses and drops the oldest ones."""
        moved = self.values[indices.cpu()].roll(-1, 1)
        moved[:, -1] = losses.detach().to(moved)
        self.table.record(indices, moved)
