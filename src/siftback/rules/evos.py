"""EVOS: the highest losses of the last whole pass, and random others."""

import math

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_share
from siftback.rules.rule import LastLossRule
from siftback.schedule import Epochs, Moment, Share
from siftback.selectors.ranking import choose_top
from siftback.selectors.sampling import count_of
from siftback.tables.score_table import ScoreTable


def draw_fittest(losses: Tensor, count: int, mutated: int, generator: torch.Generator) -> Tensor:
    """Draws the k - m highest losses, and m of the others at random.

    Args:
        losses: float32[N], NaN where unknown. These come first, as far as k allows.
        count: k, in [1, N].
        mutated: m, at most k.
        generator: On the CPU.

    Returns:
        float32[N], 1 for the k drawn and 0 for the others.

    >>> losses = torch.tensor([4.0, 1.0, 3.0, 2.0])
    >>> draw_fittest(losses, 2, 1, torch.Generator().manual_seed(0))
    tensor([1., 1., 0., 0.])
    """
    top = max(count - mutated, min(count, int(losses.isnan().sum())))
    drawn = torch.zeros(len(losses), dtype=torch.bool)
    if top:
        keys = losses.nan_to_num(nan=math.inf, posinf=torch.finfo(losses.dtype).max)
        drawn[choose_top(keys, top, generator)] = True
    others = (~drawn).nonzero().squeeze(1)
    drawn[others[torch.randperm(len(others), generator=generator)[: count - top]]] = True
    return drawn.float()


class EVOS(LastLossRule):
    """EVOS: the highest losses of the last whole pass, and random others.

    Zhang et al. 2025, *EVOS: Efficient Implicit Neural Training via EVOlutionary Selector* (CVPR,
    arXiv:2412.10153), for networks that map coordinates to a signal, such as the pixels of a
    picture. Every n-th pass is on everything, and its losses are the *fitness* of the examples
    until the next such pass ("sparse fitness evaluation"). In the passes between exactly
    ``round(keep * N)`` of N examples are drawn: the fittest, and a share of random others
    ("mutation"), see `draw_fittest`. Ideal cost per example, in forwards (1) and backwards (2):
    ``3 (1/n + (1 - 1/n) s)`` for the share s kept.

    Of the paper its abstract, a summary and the authors' code were read. Its third part, the
    "frequency-guided crossover", is not here: it adds the Laplacian of the picture that the
    network gives, which losses do not tell, to the fitness and to the loss; so this is its
    ``crossover_method="no"``. There a pass is one step on all coordinates, and n falls in a
    straight line from 100 to 50 of 5,000; here a pass is an epoch of batches, and n is fixed.

    Args:
        keep: Share of the examples in a pass that is not on everything, in (0, 1].
        mutation: Share of those drawn that are drawn at random, in [0, 1].
        every: n, from one pass on everything to the next, at least 1.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        table: Stores the fitness, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> evos = EVOS(keep=0.5, mutation=0.5, every=3)
    >>> evos.grow(4)
    >>> evos.update(torch.arange(4), torch.tensor([4.0, 1.0, 3.0, 2.0]), epoch=0)
    >>> evos.draw(1, torch.Generator().manual_seed(0)), evos.draw(3, torch.Generator())
    (tensor([1., 1., 0., 0.]), tensor([1., 1., 1., 1.]))
    """

    updates_by_example = True
    setting_names = ("keep", "mutation", "every")

    def __init__(
        self,
        keep: float = 0.5,
        mutation: float = 0.5,
        every: int = 4,
        *,
        warmup: Moment = Epochs(1),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(table, warmup=warmup, tail=tail)
        self.keep = check_share("keep", keep, least=False, most=True)
        self.mutation = check_share("mutation", mutation, most=True)
        self.every = check_integer("every", every, 1)

    def is_whole(self, epoch: int) -> bool:
        """Returns whether a pass is on everything, and its losses are the fitness."""
        return epoch % self.every == 0

    def count(self, epoch: int) -> int:
        """Returns how many examples a draw keeps: all, or ``round(keep * N)``, at least 1."""
        return self.examples if self.is_whole(epoch) else count_of(self.keep, self.examples)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns `draw_fittest`, of a pass on everything 1 for all examples."""
        count = self.count(epoch)
        return draw_fittest(self.scores(epoch), count, round(self.mutation * count), generator)

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **options: Tensor | None) -> None:
        """Remembers the losses of passes on everything."""
        if self.is_whole(epoch):
            super().update(indices, losses, epoch, **options)
