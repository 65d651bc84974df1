"""InfoBatch: prunes a share of the examples with low loss, and upweights the rest of them."""

import torch
from torch import Tensor

from siftback.arguments import check_share
from siftback.rules.rule import LastLossRule, weigh_known
from siftback.schedule import Epochs, Moment, Share
from siftback.tables.score_table import ScoreTable


def infobatch_weights(losses: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Returns loss weights with which the expected sum of losses is that of all examples.

    Qin et al. 2024, for a loss L and the mean of all losses m::

        P(pruned) = r if L < m, else 0
        weight    = 1 / (1 - r) if L < m, else 1

    Args:
        losses: float32[N]. Losses that are not finite are not part of the mean, and kept if
            positive.
        ratio: r, in [0, 1).
        generator: On the CPU. N numbers are drawn, however many examples are kept.

    Returns:
        float32[N], 0 for pruned examples.

    >>> losses = torch.tensor([0.1, 0.2, 0.3, 4.0])
    >>> infobatch_weights(losses, 0.5, torch.Generator().manual_seed(0))
    tensor([0., 2., 0., 1.])
    """
    # In float64, so that the mean of any number of equal losses is not above them.
    below = losses.double() < losses[losses.isfinite()].double().mean()
    draws = torch.rand(len(losses), generator=generator, dtype=torch.float32)
    weights = torch.ones_like(draws).masked_fill_(below, 1 / (1 - ratio))
    return weights.masked_fill_(below & (draws < ratio), 0.0)


class InfoBatch(LastLossRule):
    """InfoBatch: prunes a share of the examples below the mean loss, and upweights the rest.

    Qin et al. 2024, *InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning*. At
    the start of each epoch, each example with a remembered loss below the mean of all is pruned
    with probability r; those of them that remain have weight 1 / (1 - r), so that the expected
    gradient is that of the whole data set. In the last epochs all examples are trained on with
    weight 1. See `infobatch_weights`. Ideal cost per example of an epoch in which a share b of
    the examples was below the mean, in forwards (1) and backwards (2): ``3 (1 - r b)``. The
    examples are drawn independently, so their number is not known in advance.

    Pruning ends before the first epoch that begins when ``delta * epochs`` are done: with 10 epochs
    and ``delta=0.875``, epochs 0 to 8 are pruned and the last one is not. From then on every
    weight is 1, whether or not ``delta * epochs`` is an integer, except that examples that a
    loader carries over into the next epoch keep the weight that they were drawn with.

    Args:
        ratio: r, in [0, 1).
        delta: The share of training, in (0, 1], after which all examples are trained on. If it is
            less than 1 the number of epochs must be known.
        warmup: How long all examples are trained on at first. The first epoch is always whole, as
            no losses are known yet.
        table: Stores the losses, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> infobatch = InfoBatch(ratio=0.5)
    >>> infobatch.grow(5)
    >>> infobatch.update(torch.arange(4), torch.tensor([0.1, 0.2, 0.3, 4.0]), epoch=0)
    >>> infobatch.draw(1, torch.Generator().manual_seed(0))
    tensor([0., 2., 0., 1., 1.])

    In a training loop, in which ``loader.loss`` applies the weights:

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import SelectiveLoader
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> model = torch.nn.Linear(8, 4)
    >>> loader = DataLoader(data, batch_size=32, shuffle=True)
    >>> loader = SelectiveLoader(loader, memory=InfoBatch(), epochs=4)
    >>> for _ in range(4):
    ...     for x, y in loader:
    ...         loss = loader.loss(F.cross_entropy(model(x), y, reduction="none"))
    ...         loss.backward()
    >>> loader.stats.scored, loader.stats.forwards, loader.stats.seen > 4 * 256
    (0, 1024, True)
    """

    reweights = True
    setting_names = ("ratio", "delta")

    def __init__(
        self,
        ratio: float = 0.5,
        delta: float = 0.875,
        *,
        warmup: Moment = Epochs(0),
        table: ScoreTable | None = None,
    ) -> None:
        self.ratio = check_share("ratio", ratio)
        self.delta = check_share("delta", delta, least=False, most=True)
        super().__init__(table, warmup=warmup, tail=Share(1 - self.delta))

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns `infobatch_weights`."""
        return weigh_known(
            self.values[:, 0], lambda losses: infobatch_weights(losses, self.ratio, generator)
        )
