"""SeTa: a sliding window of difficulty, from easy to hard."""

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_share
from siftback.rules.rule import LastLossRule, round_down, weigh_known
from siftback.schedule import Epochs, Moment, Share
from siftback.state import MOST_EPOCHS, Check, integer
from siftback.tables.score_table import ScoreTable

_ROUNDS = 100  # of k-means; in one dimension it converges much earlier


def loss_groups(losses: Tensor, groups: int) -> Tensor:
    """Groups losses of similar size: k-means in one dimension from evenly spaced quantiles.

    Zhou et al. 2025. Lloyd's algorithm: each loss is assigned to the nearest centre, with ties to
    the lower one, and each centre moves to the mean of its losses, until none moves.

    Args:
        losses: float32[N], finite.
        groups: k, the number of centres. There are fewer groups if centres have no losses.

    Returns:
        int64[N], the group of each loss, numbered from 0 by increasing loss; none is empty.

    >>> loss_groups(torch.tensor([0.1, 5.0, 0.2, 5.1, 9.0]), 3)
    tensor([0, 1, 0, 1, 2])
    """
    wide = losses.double()
    middles = (2 * torch.arange(groups) + 1) * len(losses) // (2 * groups)
    centres = wide.sort().values[middles]
    for _ in range(_ROUNDS):
        labels = torch.bucketize(wide, (centres[1:] + centres[:-1]) / 2)
        counts = torch.bincount(labels, minlength=groups)
        sums = torch.zeros_like(centres).index_add_(0, labels, wide)
        moved = torch.where(counts > 0, sums / counts, centres).sort().values
        if moved.equal(centres):
            break
        centres = moved
    return labels - (counts == 0).cumsum(0)[labels]


class SeTa(LastLossRule):
    """SeTa: a sliding window of difficulty, from easy to hard, within a random subset.

    Zhou, Gao & Wang 2025, *Scale Efficient Training for Large Datasets*: at the start
    of each epoch (a) a random share r of the examples is pruned; (b) the others are grouped into k
    groups by their remembered loss, see `loss_groups`; (c) of the groups, from easy to hard, a
    window of ``w = round(a k)`` is kept. In draw t, counted from 0, the window begins at group
    ``t mod (k - w + 1)``, so that it slides from easy to hard and then starts again; draw 0 keeps
    all groups.

    Draw 0 is the first by losses, after an epoch on everything. (In the paper's code it is that of
    the first epoch, when all losses are equal, so that the window slides an epoch earlier.) At the
    end all examples are trained on. (The paper's code still prunes the random share then; with
    ``ratio=0`` the two are the same.) Ideal cost per example of an epoch with share s kept, in
    forwards (1) and backwards (2): 3s, where s depends on the distribution of the losses over the
    groups, and is not known in advance.

    Args:
        ratio: r, in [0, 1).
        groups: k, at least 1.
        window: a, the share of the groups in the window, in (0, 1]; at least one group.
        delta: The share of training, in (0, 1], after which all examples are trained on. If it is
            less than 1 the number of epochs must be known.
        warmup: How long all examples are trained on at first. The first epoch is always whole, as
            no losses are known yet.
        table: Stores the losses, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> seta = SeTa(ratio=0, groups=4, window=0.5, delta=1.0)
    >>> seta.grow(4)
    >>> seta.update(torch.arange(4), torch.tensor([4.0, 3.0, 2.0, 1.0]), epoch=0)
    >>> for epoch in range(1, 5):
    ...     print(seta.draw(epoch, torch.Generator()))
    tensor([1., 1., 1., 1.])
    tensor([0., 1., 1., 0.])
    tensor([1., 1., 0., 0.])
    tensor([0., 0., 1., 1.])
    """

    setting_names = ("ratio", "groups", "window", "delta")

    def __init__(
        self,
        ratio: float = 0.1,
        groups: int = 10,
        window: float = 0.5,
        delta: float = 0.875,
        *,
        warmup: Moment = Epochs(0),
        table: ScoreTable | None = None,
    ) -> None:
        self.ratio = check_share("ratio", ratio)
        self.groups = check_integer("groups", groups, 1)
        self.window = check_share("window", window, least=False, most=True)
        self.delta = check_share("delta", delta, least=False, most=True)
        super().__init__(table, warmup=warmup, tail=Share(1 - self.delta))
        self._draws = 0

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns 1 for examples of the random subset within the window."""

        def weigh(losses: Tensor) -> Tensor:
            weights = torch.zeros_like(losses)
            size = max(1, len(losses) - round_down(self.ratio, len(losses)))
            subset = torch.randperm(len(losses), generator=generator)[:size]
            groups = loss_groups(losses[subset].nan_to_num(), self.groups)
            count = int(groups.max()) + 1
            window = max(1, round(count * self.window))
            start = self._draws % (count - window + 1)
            inside = (groups >= start) & (groups < start + window) if self._draws else groups >= 0
            weights[subset[inside]] = 1.0
            self._draws += 1
            return weights

        return weigh_known(self.values[:, 0], weigh)

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {**super().state_fields(), "_draws": integer(most=MOST_EPOCHS)}
