"""RePB: losses are compared within a batch, and weighted by how often an example was drawn."""

import torch
from torch import Tensor

from siftback.arguments import check_share
from siftback.rules.rule import EpochRule
from siftback.schedule import Epochs, Moment, Share
from siftback.state import MOST_EPOCHS, Check, integer
from siftback.tables.score_table import ScoreTable


def relative_losses(losses: Tensor) -> Tensor:
    """Returns the losses of a window less their mean, so that those of several can be compared.

    Args:
        losses: float[n], of one state of the model. Those that are not finite are not part of the
            mean.

    Returns:
        float32[n]; equal losses give exactly 0.

    >>> relative_losses(torch.tensor([1.0, 2.0, 6.0]))
    tensor([-2., -1.,  3.])
    """
    # In float64, so that the mean of any number of equal losses is not above them.
    wide = losses.double()
    return (wide - wide[wide.isfinite()].mean()).float()


def repb_weights(
    relative: Tensor, left_out: Tensor, passes: int, ratio: float, generator: torch.Generator
) -> Tensor:
    """Draws examples, and returns their loss weights.

    Zhou et al. 2026, in the draw of pass E, counted from 1, for an example that was left out in M
    of the E - 1 passes before, and so is drawn for the N-th time::

        P(left out) = r if it was below the mean of its window, else 0
        weight      = E / N,    N = E - M

    Args:
        relative: float32[n], `relative_losses`; an example where it is NaN is drawn.
        left_out: float32[n], M.
        passes: E.
        ratio: r, in [0, 1).
        generator: On the CPU. n numbers are drawn, however many examples are kept.

    Returns:
        float32[n], 0 for those left out.

    >>> relative, left_out = torch.tensor([-0.1, -0.2, 0.3]), torch.tensor([2.0, 0.0, 1.0])
    >>> repb_weights(relative, left_out, 4, 0.5, torch.Generator().manual_seed(1))
    tensor([2.0000, 0.0000, 1.3333])
    """
    draws = torch.rand(len(relative), generator=generator, dtype=torch.float32)
    weights = passes / (passes - left_out).clamp(min=1)
    return weights.masked_fill_((relative < 0) & (draws < ratio), 0.0)


class RePB(EpochRule):
    """RePB: compares losses within a batch, and weights them by how often an example was drawn.

    Zhou et al. 2026, *Inconsistency Biases in Dynamic Data Pruning*. The losses of a training batch
    are of one state of the model, before its step: an example below their mean is left out of
    the next pass with probability r, and, once left out, drawn again with probability 1 - r until
    it is. So losses of unlike ages are never compared, as `InfoBatch` compares them. The loss
    of an example that is drawn for the N-th time in E passes has the weight E / N, see
    `repb_weights`, so that over the training the examples count alike. Ideal cost per example of
    an epoch in which a share b of the examples was below the mean, in forwards (1) and backwards
    (2): ``3 (1 - r b)``. Examples are drawn independently, so their number is not known in advance.

    The weight of an example that was left out by chance many times is large, at most E. Batches of
    a few examples have means that say little: losses should come in batches of training's size.

    The paper itself could not be read, but a summary of it and its reviews. Its window is a batch,
    or several of which each changes the model little; here it is a batch, of each process its
    own. The value of r, and whether it ends with epochs on everything, are not known: see
    ``ratio`` and ``tail``.

    Args:
        ratio: r, in [0, 1).
        warmup: How long all examples are trained on at first. The first epoch is always whole, as
            no losses are known yet.
        tail: How long all examples are trained on at the end, with weight 1.
        table: Stores the relative losses and the passes that left an example out, such as a
            `ScoreTable` in a file, of two columns; by default in memory, 8 bytes per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> repb = RePB(ratio=0.5)
    >>> repb.grow(5)
    >>> repb.update(torch.tensor([0, 1]), torch.tensor([9.0, 8.0]), epoch=0)
    >>> repb.update(torch.tensor([2, 3]), torch.tensor([1.0, 2.0]), epoch=0)
    >>> repb.draw(1, torch.Generator().manual_seed(1))
    tensor([1., 0., 0., 1., 1.])
    >>> repb.draw(2, torch.Generator().manual_seed(0))
    tensor([1.0000, 1.5000, 0.0000, 1.0000, 1.0000])
    """

    reweights = True
    updates_by_batch = True
    setting_names = ("ratio",)

    def __init__(
        self,
        ratio: float = 0.5,
        *,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(table, columns=2, warmup=warmup, tail=tail)
        self.ratio = check_share("ratio", ratio)
        self._drawn_last = -1  # pass

    def scores(self, epoch: int) -> Tensor:
        """Returns float32[examples], the `relative_losses`; NaN where unknown."""
        return self.values[:, 0]

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns `repb_weights`, and counts those left out."""
        if epoch < self._drawn_last:  # another training has begun, whose passes are counted anew
            self.table.record(torch.arange(self._examples), torch.zeros(self._examples), 1)
        self._drawn_last = epoch
        relative, left_out = self.values[:, 0], self.values[:, 1].nan_to_num()
        weights = repb_weights(relative, left_out, epoch + 1, self.ratio, generator)
        rows = self.drawn_among
        is_out = weights == 0
        self.table.record(rows[is_out], left_out[is_out] + 1, 1)
        return weights

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Tensor | None) -> None:
        """Remembers the losses of a batch less their mean."""
        self.table.record(indices, relative_losses(losses), 0)

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {**super().state_fields(), "_drawn_last": integer(-1, MOST_EPOCHS)}
