"""Ewma: predicts losses by a moving average of each example's earlier losses."""

import torch
from torch import Tensor

from siftback.arguments import check_share
from siftback.contrib.predicting import Predict, PredictingRule
from siftback.schedule import Epochs, Moment
from siftback.scorers.scorer import Scorer
from siftback.tables.score_table import ScoreTable


class Ewma(PredictingRule):
    """Predicts an example's loss by an exponentially weighted average of its earlier losses.

    Jiang et al. 2019, section 3.3, "exponentially weighted average of historical losses". As in
    `Stale`, scoring passes are made every n-th epoch, and the examples of the n - 1 epochs after
    one are drawn before they are read, by this average, which is updated with each loss of a
    scoring pass or of training::

        average = decay * average + (1 - decay) * loss

    ``Ewma(decay=0)`` is `Stale` with scores that training also updates. Ideal cost per example of
    n epochs with share s kept, in forwards (1) and backwards (2): ``1 + 3ns``.

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        decay: In [0, 1); 0 remembers only the last loss.
        every: n, the epochs from one scoring pass to the next, at least 1.
        predict: "loss"; or "probability", the paper's easier problem: the average is of
            ``loss > threshold``, 1 or 0, and so the probability that the loss exceeds it.
        threshold_share: Share of the losses above the threshold, in (0, 1). The threshold is that
            quantile of the last 1,024 losses of scoring passes; losses of training are of selected
            examples, and are used only before the first pass.
        optimism: c, at least 0, the bonus for an old average: ``c * sd * sqrt(age)``. Age is in
            epochs since the example's last loss, and sd the standard deviation of the averages
            over all examples; the uncertainty of a random walk grows in this way. By default 0,
            as a scoring pass scores every example again; give more, such as 1, if passes are rare.
        scorer: Scores the examples in a pass; by default a `Fresh` forward.
        table: Stores the averages and the epochs of the last losses: a `ScoreTable` of two
            columns, such as one in a file; by default in memory, 8 bytes per example.
        warmup: How long all examples are trained on before the first pass; `Epochs` or a `Share`.

    Raises:
        ConfigError: If one of them is out of range, or both or neither of ``keep`` and ``beta``
            are given.

    >>> import torch
    >>> ewma = Ewma(keep=0.5, decay=0.5)
    >>> ewma.grow(3)
    >>> ewma.rescore(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]), epoch=0)
    >>> ewma.update(torch.tensor([1]), torch.tensor([1.0]), epoch=0)
    >>> ewma.predicted(epoch=1)
    tensor([1.0000, 1.5000,    nan])
    >>> ewma.draw(1, torch.Generator().manual_seed(1))  # examples never scored are kept
    tensor([0., 1., 1.])
    """

    setting_names = ("decay",)

    def __init__(
        self,
        keep: float | None = None,
        beta: float | None = None,
        *,
        decay: float = 0.5,
        every: int = 3,
        predict: Predict = "loss",
        threshold_share: float = 1 / 3,
        optimism: float = 0.0,
        scorer: Scorer | None = None,
        table: ScoreTable | None = None,
        warmup: Moment = Epochs(1),
    ) -> None:
        super().__init__(
            keep, beta, every=every, predict=predict, threshold_share=threshold_share,
            optimism=optimism, scorer=scorer, table=table, columns=2, warmup=warmup,
        )  # fmt: skip
        self.decay = check_share("decay", decay)

    def predicted(self, epoch: int) -> Tensor:
        """Returns float32[examples], the averages, raised with their age by ``optimism``."""
        scores, epochs = self.values.unbind(1)
        finite = scores[scores.isfinite()]
        if not self.optimism or len(finite) < 2:
            return scores
        return scores + self.optimism * finite.std() * (epoch - epochs).clamp(min=0).sqrt()

    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Averages the losses, or whether they exceed the threshold, into the table."""
        if self.predict == "probability":
            losses = (~(losses <= self.threshold)).float()  # 1 if there is no threshold yet
        self.table.record(indices, losses, 0, decay=self.decay)
        self.table.record(indices, torch.full_like(losses, epoch, dtype=torch.float32), 1)
