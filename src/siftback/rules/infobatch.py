"""InfoBatch: prune a share of the well learnt, and weight the rest of them up."""

import torch
from torch import Tensor

from siftback.loading.score_table import ScoreTable
from siftback.rules.every_epoch import ByLastLoss, checked_share
from siftback.schedule import Moment


def infobatch_weights(losses: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Loss weights by which the expected sum of losses is that of all examples.

    Qin et al. 2024, for a loss L and the mean of all losses m::

        P(pruned) = r where L < m, else 0
        weight    = 1 / (1 - r) where L < m, else 1

    Args:
        losses: float32[N]. One that is not finite is no part of the mean, and kept if positive.
        ratio: r, in [0, 1).
        generator: On the CPU. N numbers are drawn, whatever is kept.

    Returns:
        float32[N], 0 for the pruned.

    >>> losses = torch.tensor([0.1, 0.2, 0.3, 4.0])
    >>> infobatch_weights(losses, 0.5, torch.Generator().manual_seed(0))
    tensor([0., 2., 0., 1.])
    """
    below = losses < losses[losses.isfinite()].mean()
    draws = torch.rand(len(losses), generator=generator).to(losses.device)
    weights = torch.where(below, 1 / (1 - ratio), 1.0)
    return weights.masked_fill_(below & (draws < ratio), 0.0)


class InfoBatch(ByLastLoss):
    """InfoBatch: a share of the examples below the mean loss is pruned, the rest weighted up.

    Qin et al. 2024, *InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning*. At
    the start of each epoch, of the examples whose remembered loss is below the mean of all, each
    is pruned with chance r; the remaining ones of them have weight 1 / (1 - r), so that the
    expected gradient is that of the whole data set. In the last epochs everything is trained on
    with weight 1. See `infobatch_weights`. Ideal cost of an epoch in which a share b of the
    examples was below the mean, in forwards (1) and backwards (2): ``3 (1 - r b)``.

    Pruning ends with the first epoch that begins when ``delta * epochs`` are done: with 10 epochs
    and ``delta=0.875``, epochs 0 to 8 are pruned and the last one is not. From there on every
    weight is 1, whether or not ``delta * epochs`` is a whole number; only with
    ``drop_last="carry"`` are the few that wait for a full batch trained on with the weight that
    they were drawn with.

    The training loop tells its losses and applies the weights::

        for x, y in loader:
            losses = F.cross_entropy(model(x), y, reduction="none")
            loader.remember(losses)
            (losses * loader.weights).mean().backward()

    Args:
        ratio: r, in [0, 1).
        delta: The share of training, in (0, 1], after which everything is trained on. Less than
            1 needs the loader's ``epochs=``.
        warmup: How long everything is trained on at first. Nothing is known in the first epoch,
            so that one is whole in any case.
        table: Where losses are remembered, such as a `ScoreTable` in a file; by default in
            memory, 8 bytes an example.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import Indexed, SelectiveLoader, SelectiveSampler
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> loader = DataLoader(Indexed(data), batch_size=32, sampler=SelectiveSampler(data))
    >>> model = torch.nn.Linear(8, 4)
    >>> loader = SelectiveLoader(loader, model, scorer=InfoBatch(), epochs=4)
    >>> for _ in range(4):
    ...     for x, y in loader:
    ...         losses = F.cross_entropy(model(x), y, reduction="none")
    ...         loader.remember(losses)
    ...         (losses * loader.weights).mean().backward()
    >>> loader.stats.scored, loader.stats.forwards < 4 * 256
    (0, True)
    """

    reweights = True

    def __init__(
        self,
        ratio: float = 0.5,
        delta: float = 0.875,
        *,
        warmup: Moment = 0,
        table: ScoreTable | None = None,
    ) -> None:
        self.ratio = checked_share("ratio", ratio)
        self.delta = checked_share("delta", delta, least=False, most=True)
        super().__init__(table, warmup, 1 - self.delta)

    def weigh(self, scores: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """See `infobatch_weights`."""
        return infobatch_weights(scores, self.ratio, generator)
