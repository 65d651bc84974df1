"""Stale: scoring passes every n-th epoch, with their losses reused in between."""

from torch import Tensor

from siftback.rules.rule import RefreshedRule
from siftback.schedule import Epochs, Moment
from siftback.scorers.scorer import Scorer
from siftback.tables.score_table import ScoreTable


class Stale(RefreshedRule):
    """Stale-SB: scoring passes every n-th epoch, with their losses reused in between.

    Jiang et al. 2019, section 3.3, "Re-using previous losses". In the n - 1 epochs after a
    scoring pass, examples are drawn before they are read, with probability ``percentile^beta`` of
    their loss in the pass, among all. Exactly ``round(keep * N)`` of N are drawn. Ideal
    cost per example of n epochs with share s kept, in forwards (1) and backwards (2):
    ``1 + 3ns``; n = 1 is plain Selective-Backprop, bit for bit.

    It does not learn from training. To use training's losses between passes too, see `Ewma`.

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        every: n, the epochs from one scoring pass to the next, at least 1.
        scorer: Scores the examples in a pass; by default a `Fresh` forward.
        table: Stores the scores, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.
        warmup: How long all examples are trained on before the first pass; `Epochs` or a `Share`.

    Raises:
        ConfigError: If one of them is out of range, or both or neither of ``keep`` and ``beta``
            are given.

    >>> import torch
    >>> stale = Stale(keep=0.5, every=2)
    >>> stale.grow(4)
    >>> stale.is_pass(0)
    True
    >>> stale.rescore(torch.arange(4), torch.tensor([0.1, 3.0, 0.2, 2.0]), epoch=0)
    >>> stale.is_pass(1), stale.draw(1, torch.Generator().manual_seed(4)), stale.is_pass(2)
    (False, tensor([0., 1., 0., 1.]), True)

    In a training loop:

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import SelectiveLoader
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> model = torch.nn.Linear(8, 4)
    >>> loader = DataLoader(data, batch_size=32, shuffle=True)
    >>> loader = SelectiveLoader(loader, model, F.cross_entropy, memory=Stale(1 / 2), epochs=4)
    >>> for _ in range(4):
    ...     for x, y in loader:
    ...         loss = loader.loss(F.cross_entropy(model(x), y, reduction="none"))
    ...         loss.backward()
    >>> loader.stats.seen, loader.stats.scored
    (1792, 512)
    """

    def __init__(
        self,
        keep: float | None = None,
        beta: float | None = None,
        *,
        every: int = 3,
        scorer: Scorer | None = None,
        table: ScoreTable | None = None,
        warmup: Moment = Epochs(1),
    ) -> None:
        super().__init__(
            keep, beta, every=every, scorer=scorer, table=table, columns=1, warmup=warmup
        )

    def predicted(self, epoch: int) -> Tensor:
        """Returns float32[examples], the last score of each."""
        return self.values[:, 0]

    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Records the scores in the table."""
        self.table.record(indices, losses, 0)
