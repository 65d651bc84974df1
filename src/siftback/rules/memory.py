"""Memory: selection without extra cost, by the loss of each example when last trained on."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_share, format_value
from siftback.draws.histogram_draw import draw_in_shards
from siftback.draws.percentile_draw import draw_by_percentile
from siftback.draws.ratio_draw import draw_by_ratio
from siftback.errors import ConfigError
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.rule import LastLossRule
from siftback.schedule import Moment, Share
from siftback.selectors.percentile import beta_of_keep, keep_of_beta
from siftback.selectors.sampling import count_of
from siftback.tables.score_table import ScoreTable


class Memory(LastLossRule):
    """Selection without extra cost, by the loss of each example when it was last trained on.

    There are no scoring passes. During warm-up, every example is trained on and its training loss
    remembered. From then on, the examples of each epoch are drawn before they are read, with
    probability::

        floor + (1 - floor) * percentile^beta

    where the percentile is that of the remembered loss among all of them, and their new losses
    are remembered. Exactly ``round(keep * N)`` of N examples are drawn, at least one, with
    ``keep = floor + (1 - floor) / (beta + 1)`` (see `draw_by_percentile`). This rule is new in
    this project, after Jiang et al. 2019, section 3.3. Ideal cost per example of an epoch, in
    forwards (1) and backwards (2): ``3 * keep``.

    Args:
        keep: Share of the examples in an epoch, in (floor, 1].
        beta: In place of ``keep``, the exponent, at least 0; 1 if neither is given.
        floor: The minimum probability, in [0, 1), so that no example is forgotten.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        decay: Weight of the old loss in the remembered one, in [0, 1):
            ``decay * old + (1 - decay) * new``; 0 remembers only the last loss.
        guard: Holds back examples whose label is probably wrong. Of S that are held back exactly
            ``round(min(cap, keep) * S)`` are drawn, all with the same probability; the rest of
            the epoch is drawn from the other examples. If there are too few of those, more of
            the S are drawn, so that the count does not change. The others are drawn in
            proportion to ``max(floor, min(1, loss / mean loss))`` (see `draw_by_ratio`), and
            ``beta`` sets only the share: percentiles are high for losses that are only a little
            above the others, and wrong labels that are not suspected yet have the highest losses.
            While the guard holds nothing back since most suspects seem to be merely hard
            (`NoiseGuard.released`), all are drawn as without a guard.
        table: Stores the losses, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.
        shards: S, so that each of several processes remembers only the examples that it reads, in
            all epochs those of its share of S `Shards`, and nothing per example is exchanged. A
            multiple of all numbers of processes that the training is to run on, such as 960. Of
            each shard ``round(keep * N) // S`` are drawn (see `draw_in_shards`), and the draw does
            not depend on the number of processes.

    Raises:
        ConfigError: If one of them is out of range, both ``keep`` and ``beta`` are given, or both
            ``shards`` and a guard or a table in a file.

    >>> memory = Memory(keep=0.5, floor=0.0)
    >>> memory.grow(6)
    >>> memory.update(torch.arange(6), torch.tensor([9.0, 0.1, 0.2, 8.0, 0.3, 7.0]), epoch=0)
    >>> memory.draw(1, torch.Generator().manual_seed(1))
    tensor([1., 0., 0., 1., 0., 1.])

    In a training loop:

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import SelectiveLoader
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> model = torch.nn.Linear(8, 4)
    >>> loader = DataLoader(data, batch_size=32, shuffle=True)
    >>> loader = SelectiveLoader(loader, memory=Memory(), epochs=4)
    >>> for _ in range(4):
    ...     for x, y in loader:
    ...         loss = loader.loss(F.cross_entropy(model(x), y, reduction="none"))
    ...         loss.backward()
    >>> loader.stats.seen, loader.stats.scored, loader.stats.forwards  # 256 + 3 * 141
    (1024, 0, 679)
    """

    setting_names = ("floor", "decay", "guard")

    def __init__(
        self,
        keep: float | None = None,
        beta: float | None = None,
        *,
        floor: float = 0.1,
        warmup: Moment = Share(0.15),
        tail: Moment = Share(0.0),
        decay: float = 0.0,
        guard: NoiseGuard | None = None,
        table: ScoreTable | None = None,
        shards: int | None = None,
    ) -> None:
        super().__init__(table, warmup=warmup, tail=tail, decay=decay, guard=guard, shards=shards)
        self.floor = check_share("floor", floor)
        if keep is not None and beta is not None:
            raise ConfigError(
                f"keep={format_value(keep)} and beta={format_value(beta)}: give one of them, "
                "keep = floor + (1 - floor) / (beta + 1)"
            )
        if keep is not None:
            self.set_keep(keep)
        else:
            self.beta = 1.0 if beta is None else beta
            self.keep = keep_of_beta(self.beta, self.floor)
        self._keep = self.keep  # a schedule may change `keep`

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (floor, 1]; a `Schedule` that anneals needs it."""
        self.beta, self.keep = beta_of_keep(keep, self.floor), float(keep)

    def count(self, epoch: int) -> int:
        """Returns how many examples a draw keeps: ``round(keep * N)``, at least 1.

        Of shards it is rounded down to a multiple of their number.
        """
        count = min(count_of(self.keep, self.examples), self.examples)
        return self.shards.quota(count) * self.shards.count if self.shards else count

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Draws exactly `count` examples, by the remembered losses."""
        scores, count = self.scores(epoch), self.count(epoch)
        if self.shards:
            return draw_in_shards(scores, self.shards, self.beta, self.floor, count, generator)
        if not self.guard or self.guard.released:
            return draw_by_percentile(scores, self.beta, self.floor, count, generator)
        suspects = self.suspects
        trusted = torch.ones(self.examples, dtype=torch.bool).index_fill_(0, suspects, False)
        least = count - int(trusted.sum())
        admitted = self.guard.admit(len(suspects), self.keep, generator, least=least, most=count)
        weights = torch.zeros(self.examples, dtype=torch.float32)
        weights[suspects] = admitted.float()
        count -= int(admitted.sum())
        weights[trusted] = draw_by_ratio(scores[trusted], self.floor, count, generator)
        return weights

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        return {**super().settings(), "keep": self._keep, "shards": self.shard_count}
