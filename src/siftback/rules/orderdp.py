"""OrderDP: the highest losses of a random subset."""

import math

import torch
from torch import Generator, Tensor

from siftback.arguments import check_share
from siftback.rules.rule import LastLossRule
from siftback.schedule import Epochs, Moment, Share
from siftback.selectors.ranking import choose_top
from siftback.selectors.sampling import count_of
from siftback.tables.score_table import ScoreTable


def draw_top_of_subset(losses: Tensor, subset: int, count: int, generator: Generator) -> Tensor:
    """Draws a random subset of s of N examples, and of it the q highest losses.

    Jin et al. 2026: the example with the j-th highest loss is drawn with probability::

        gamma_j = sum over l = max(1, s - N + j), ..., min(q, j) of
                  C(j - 1, l - 1) C(N - j, s - l) / C(N, s)

    which is that of being in the subset, as the l-th highest of it. Ties are broken at random.

    Args:
        losses: float32[N], NaN where unknown. These examples are the first to be in the subset, and
            count as the highest.
        subset: s, at most N.
        count: q, in [1, s].
        generator: On the CPU.

    Returns:
        float32[N], 1 for the q drawn and 0 for the others.

    >>> losses = torch.tensor([1.0, 4.0, torch.nan, 2.0, 3.0])
    >>> draw_top_of_subset(losses, 3, 2, torch.Generator().manual_seed(0))
    tensor([0., 0., 1., 0., 1.])
    """
    order = torch.randperm(len(losses), generator=generator)
    order = order[losses[order].isnan().argsort(descending=True, stable=True)][:subset]
    keys = losses[order].nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.zeros_like(losses).index_fill_(0, order[choose_top(keys, count, generator)], 1.0)


class OrderDP(LastLossRule):
    """OrderDP: another random subset every epoch, and of it the examples of highest loss.

    Jin et al. 2026, *OrderDP: A Theoretically Guaranteed Lossless Dynamic Data Pruning Framework*.
    Exactly ``q = round(top * s)`` examples are drawn of a subset of ``s = round(subset * N)``, by
    their remembered losses, see `draw_top_of_subset`. All have weight 1. So the expected gradient
    is not that of the mean loss, but of a surrogate, in which L_(j) is the j-th highest loss::

        1/q * (sum over j of gamma_j L_(j))

    as far as remembered losses have the order of the present ones. With ``top=1`` it is the mean
    loss. Ideal cost per example of an epoch with share s kept, in forwards (1) and backwards (2):
    3s.

    The paper itself could not be read, but a summary of it and its authors' code. That begins
    without a warm-up, with equal scores of all examples, and goes on to the end of training. Here
    one epoch is on everything by default, and examples without a loss are drawn first.

    Args:
        subset: Share of the examples that is drawn at random, in (0, 1].
        top: Share of the subset that is kept, in (0, 1].
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        table: Stores the losses, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> orderdp = OrderDP(subset=0.5, top=0.5)
    >>> orderdp.grow(8)
    >>> orderdp.update(torch.arange(8), torch.arange(8.0), epoch=0)
    >>> orderdp.draw(1, torch.Generator().manual_seed(0))
    tensor([0., 0., 0., 0., 1., 0., 0., 1.])
    """

    setting_names = ("subset", "top")

    def __init__(
        self,
        subset: float = 0.5,
        top: float = 0.6,
        *,
        warmup: Moment = Epochs(1),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(table, warmup=warmup, tail=tail)
        self.subset = check_share("subset", subset, least=False, most=True)
        self.top = check_share("top", top, least=False, most=True)

    @property
    def subset_size(self) -> int:
        """Number of examples of which the highest losses are drawn."""
        return count_of(self.subset, self.examples)

    def count(self, epoch: int) -> int:
        """Returns how many examples a draw keeps: ``round(top * s)``, at least 1."""
        return count_of(self.top, self.subset_size)

    def draw(self, epoch: int, generator: Generator) -> Tensor:
        """Returns `draw_top_of_subset`."""
        count = self.count(epoch)
        return draw_top_of_subset(self.scores(epoch), self.subset_size, count, generator)
