"""Evolved Sampling: draws by two moving averages of each example's losses."""

import torch
from torch import Tensor

from siftback.arguments import check_share
from siftback.draws.exact_draw import draw_exactly
from siftback.draws.ratio_draw import warn_of_negative
from siftback.rules.rule import EpochRule
from siftback.schedule import Epochs, Moment, Share
from siftback.selectors.importance import importance_distribution
from siftback.selectors.sampling import count_of
from siftback.tables.score_table import ScoreTable


def decoupled_averages(
    averages: Tensor, losses: Tensor, fast: float, slow: float
) -> tuple[Tensor, Tensor]:
    """Updates the two moving averages of each example's losses with one loss each.

    Cheng et al. 2025, equation 3.1, with the slow average s, a loss L, b1 = fast and b2 = slow::

        w' = b1 s + (1 - b1) L,    s' = b2 s + (1 - b2) L

    so that ``w' = s' + (b2 - b1) (L - s)``: the slow average, and how far the loss has moved from
    it.

    Args:
        averages: float32[n], s.
        losses: float32[n].
        fast: b1, in [0, 1).
        slow: b2, in [0, 1).

    Returns:
        float32[n] and float32[n], w' and s'.

    >>> decoupled_averages(torch.tensor([1.0]), torch.tensor([3.0]), fast=0.25, slow=0.75)
    (tensor([2.5000]), tensor([1.5000]))
    """
    return fast * averages + (1 - fast) * losses, slow * averages + (1 - slow) * losses


class EvolvedSampling(EpochRule):
    """Evolved Sampling: draws in proportion to two moving averages of each example's losses.

    Cheng, Li & Bian 2025, *Data-Efficient Training by Evolved Sampling* (arXiv:2509.23461). Each
    loss of training updates the two averages of its example, see `decoupled_averages`, and exactly
    ``round(keep * N)`` of N examples are drawn with probability::

        pi = min(1, c * w),    c such that this many are drawn

    The slow average is 1/N at first, as in the paper. Examples without a loss are drawn first.
    Ideal cost per example of an epoch with share s kept, in forwards (1) and backwards (2): 3s.

    The paper forwards each large batch and draws from it by w, of the losses just computed, at
    ``1 + 3s``; its variant with pruning (ESWP) also draws from the whole data set beforehand. Here
    the whole set is drawn from, before examples are read, by w as training last left it.

    Only the paper's abstract, its equation and its reviews could be read. A review has it that the
    draw from the whole set is by s; by w it keeps the differences of losses, which are what is new.
    That draws are without replacement is our reading, and ``fast`` and ``slow`` are those that a
    review names. At both ends of training the paper trains on everything, for how long is not
    known: see ``warmup`` and ``tail``.

    Args:
        keep: Share of the examples in an epoch, in (0, 1].
        fast: b1, in [0, 1).
        slow: b2, in [0, 1).
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        table: Stores w and s, such as a `ScoreTable` in a file, of two columns; by default in
            memory, 8 bytes per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> evolved = EvolvedSampling(keep=0.5)
    >>> evolved.grow(4)
    >>> evolved.update(torch.arange(4), torch.tensor([1.0, 1.0, 1.0, 0.0]), epoch=0)
    >>> evolved.update(torch.arange(4), torch.tensor([2.0, 1.0, 0.0, 0.0]), epoch=1)
    >>> evolved.scores(epoch=2)
    tensor([1.6800, 0.8800, 0.0800, 0.0400])
    >>> evolved.draw(2, torch.Generator().manual_seed(0))
    tensor([1., 1., 0., 0.])
    """

    # No `updates_by_example`: the first average depends on how many examples of a stream came.
    setting_names = ("keep", "fast", "slow")

    def __init__(
        self,
        keep: float = 0.5,
        fast: float = 0.2,
        slow: float = 0.8,
        *,
        warmup: Moment = Epochs(1),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(table, columns=2, warmup=warmup, tail=tail)
        self.keep = check_share("keep", keep, least=False, most=True)
        self.fast = check_share("fast", fast)
        self.slow = check_share("slow", slow)

    def scores(self, epoch: int) -> Tensor:
        """Returns float32[examples], w; NaN where unknown."""
        return self.values[:, 0]

    def count(self, epoch: int) -> int:
        """Returns how many examples a draw keeps: ``round(keep * N)``, at least 1."""
        return count_of(self.keep, self.examples)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Draws exactly `count` examples, in proportion to w."""
        averages = self.scores(epoch)
        warn_of_negative(averages, "EvolvedSampling")
        return draw_exactly(averages, importance_distribution, self.count(epoch), generator)

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Tensor | None) -> None:
        """Updates both averages with the losses."""
        averages = self.values[indices, 1]
        averages = averages.where(averages.isfinite(), 1 / max(1, self.examples))
        moved = decoupled_averages(averages, losses.to(averages), self.fast, self.slow)
        self.table.record(indices, torch.stack(moved, 1))
