"""RatioMemory: selection without extra cost, whose share follows what is learned."""

import torch
from torch import Tensor

from siftback.arguments import check_share
from siftback.draws.ratio_draw import draw_independently
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.rule import LastLossRule
from siftback.schedule import Moment, Share
from siftback.tables.score_table import ScoreTable


class RatioMemory(LastLossRule):
    """Selection without extra cost, by the loss over the mean loss, without a share to set.

    As in `Memory`, there are no scoring passes, and each epoch is drawn by the losses that examples
    had when they were last trained on. Each is drawn independently, with probability::

        max(floor, min(1, loss / mean loss))

    with the mean over all examples. While all losses are alike nearly all examples are drawn; once
    a few have most of the loss, little more than these and the floor. So nothing is saved where
    little is learned yet, and much where nearly all is. The number of examples, and of steps, is
    not known in advance: where a learning-rate schedule must know it take `Memory`. This rule is
    new in this project. Ideal cost per example of an epoch with share s drawn, in forwards (1) and
    backwards (2): ``3 s``.

    Args:
        floor: The minimum probability, in [0, 1), so that no example is forgotten.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        guard: Holds back examples whose label is probably wrong: of S that are held back exactly
            ``round(cap * S)`` are drawn, all with the same probability; the others are drawn as if
            those were not there.
        table: Stores the losses, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> memory = RatioMemory()
    >>> memory.grow(5)
    >>> memory.update(torch.arange(4), torch.tensor([0.01, 0.01, 0.02, 3.96]), epoch=0)
    >>> memory.draw(1, torch.Generator().manual_seed(0))
    tensor([0., 0., 0., 1., 1.])

    In a training loop:

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import SelectiveLoader
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> model = torch.nn.Linear(8, 4)
    >>> loader = DataLoader(data, batch_size=32, shuffle=True)
    >>> loader = SelectiveLoader(loader, memory=RatioMemory(), epochs=4)
    >>> for _ in range(4):
    ...     for x, y in loader:
    ...         loss = loader.loss(F.cross_entropy(model(x), y, reduction="none"))
    ...         loss.backward()
    >>> loader.stats.scored, loader.stats.forwards < 4 * 256
    (0, True)
    """

    setting_names = ("floor", "guard")

    def __init__(
        self,
        *,
        floor: float = 0.1,
        warmup: Moment = Share(0.15),
        tail: Moment = Share(0.0),
        guard: NoiseGuard | None = None,
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(table, warmup=warmup, tail=tail, guard=guard)
        self.floor = check_share("floor", floor)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Draws by `ratio_probabilities`; of the suspects as many as the guard admits."""
        suspects = self.suspects
        weights = draw_independently(self.scores(epoch), self.floor, generator, excluded=suspects)
        if self.guard:
            weights[suspects] = self.guard.admit(len(suspects), 1.0, generator).float()
        return weights
