"""SeTa: a window of difficulty that slides from easy to hard."""

from typing import Any

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.loading.score_table import ScoreTable
from siftback.rules.every_epoch import ByLastLoss, checked_share, count_of
from siftback.schedule import Moment

_ROUNDS = 100  # of k-means; in one dimension it settles long before


def loss_groups(losses: Tensor, groups: int) -> Tensor:
    """Groups losses of like size: k-means in one dimension, begun at evenly spaced quantiles.

    Zhou et al. 2025. Lloyd's algorithm: each loss joins the nearest centre, of two
    equally near ones the lower, and each centre moves to the mean of its losses, until none moves.

    Args:
        losses: float32[N], finite.
        groups: k, the number of centres. Fewer groups come out where centres are left alone.

    Returns:
        int64[N], each one's group, from 0 on, none empty, in the order of their losses.

    >>> loss_groups(torch.tensor([0.1, 5.0, 0.2, 5.1, 9.0]), 3)
    tensor([0, 1, 0, 1, 2])
    """
    wide = losses.double()
    shares = (torch.arange(groups, device=losses.device) + 0.5) / groups
    ordered = wide.sort().values
    centres = ordered[(shares * len(losses)).long().clamp(max=len(losses) - 1)]
    for _ in range(_ROUNDS):
        labels = torch.bucketize(wide, (centres[1:] + centres[:-1]) / 2)
        counts = torch.bincount(labels, minlength=groups)
        sums = torch.zeros_like(centres).index_add_(0, labels, wide)
        moved = torch.where(counts > 0, sums / counts, centres).sort().values
        if moved.equal(centres):
            break
        centres = moved
    alone = counts == 0
    return labels - alone.cumsum(0)[labels]


class SeTa(ByLastLoss):
    """SeTa: a random subset, of it a window of difficulty that slides from easy to hard.

    Zhou, Gao & Wang 2025, *Scale Efficient Training for Large Datasets*: at the start
    of each epoch (a) a random share r of the examples is pruned; (b) the others are grouped into k
    groups by their remembered loss, see `loss_groups`; (c) of the groups, from easy to hard, a
    window of ``w = round(a k)`` is kept. In draw t, counted from 0, the window begins at group
    ``t mod (k - w + 1)``, so that it slides from easy to hard and begins again; draw 0 keeps all
    groups.

    At the end everything is trained on. (The paper's own code then still prunes the random share;
    with ``ratio=0`` the two are the same.) Ideal cost of an epoch with share s kept, in forwards
    (1) and backwards (2): 3s, where s depends on how the losses are spread over the groups.

    Args:
        ratio: r, in [0, 1).
        groups: k, at least 1.
        window: a, the share of the groups in the window, in (0, 1]; at least one group.
        delta: The share of training, in (0, 1], after which everything is trained on. Less than
            1 needs the loader's ``epochs=``.
        warmup: How long everything is trained on at first. Nothing is known in the first epoch,
            so that one is whole in any case.
        table: Where losses are remembered, such as a `ScoreTable` in a file; by default in
            memory, 8 bytes an example.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> seta = SeTa(ratio=0, groups=4, window=0.5, delta=1.0)
    >>> seta.grow(4)
    >>> seta.trained(torch.arange(4), torch.tensor([4.0, 3.0, 2.0, 1.0]), epoch=0)
    >>> for epoch in range(1, 5):
    ...     print(seta.draw(epoch, torch.Generator()))
    tensor([1., 1., 1., 1.])
    tensor([0., 1., 1., 0.])
    tensor([1., 1., 0., 0.])
    tensor([0., 0., 1., 1.])
    """

    def __init__(
        self,
        ratio: float = 0.1,
        groups: int = 10,
        window: float = 0.5,
        delta: float = 0.875,
        *,
        warmup: Moment = 0,
        table: ScoreTable | None = None,
    ) -> None:
        if not isinstance(groups, int) or isinstance(groups, bool) or groups < 1:
            raise ConfigError(f"groups={groups!r}: give a whole number of groups, at least 1")
        self.ratio = checked_share("ratio", ratio)
        self.groups = groups
        self.window = checked_share("window", window, least=False, most=True)
        self.delta = checked_share("delta", delta, least=False, most=True)
        super().__init__(table, warmup, 1 - self.delta)
        self._draws = 0

    def weigh(self, scores: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """1 for the random subset's examples within the window."""
        weights = torch.zeros_like(scores)
        kept = max(1, len(scores) - count_of(self.ratio, len(scores)))
        subset = torch.randperm(len(scores), generator=generator)[:kept].to(scores.device)
        groups = loss_groups(scores[subset].nan_to_num(), self.groups)
        count = int(groups.max()) + 1
        window = max(1, round(count * self.window))
        start = self._draws % (count - window + 1)
        inside = (groups >= start) & (groups < start + window) if self._draws else groups >= 0
        weights[subset[inside]] = 1.0
        self._draws += 1
        return weights

    def state_dict(self) -> dict[str, Any]:
        """The losses, and how often the window was drawn."""
        return {"draws": self._draws, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        super().load_state_dict(state)
        self._draws = state["draws"]
