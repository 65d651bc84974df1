"""What rules have in common that predict a loss, or whether it exceeds a threshold."""

from typing import Any, Literal

from torch import Tensor

from siftback.arguments import checked_choice, checked_number
from siftback.rules.loss_threshold import LossThreshold
from siftback.rules.rule import RefreshedRule
from siftback.schedule import Moment
from siftback.scorers.scorer import Scorer
from siftback.tables.score_table import ScoreTable

Predict = Literal["loss", "probability"]


class PredictingRule(RefreshedRule):
    """A rule that predicts each example's next loss from those of passes and of training.

    A rule of this kind defines `predicted` and `observe`.

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        every: n, the epochs from one scoring pass to the next, at least 1.
        predict: "loss"; or "probability", that of a loss above the threshold.
        threshold_share: Share of the losses above the threshold, in (0, 1). The threshold is that
            quantile of the last 1,024 losses of scoring passes; losses of training are of selected
            examples, and are used only before the first pass.
        optimism: c, at least 0, the bonus for what is uncertain.
        scorer: Scores the examples in a pass; by default a `Fresh` forward.
        table: Values remembered per example.
        warmup: How long all examples are trained on before the first pass.

    Raises:
        ConfigError: If one of them is out of range, or both or neither of ``keep`` and ``beta``
            are given.
    """

    def __init__(
        self,
        keep: float | None,
        beta: float | None,
        *,
        every: int,
        predict: Predict,
        threshold_share: float,
        optimism: float,
        scorer: Scorer | None,
        table: ScoreTable,
        warmup: Moment,
    ) -> None:
        super().__init__(keep, beta, every=every, scorer=scorer, table=table, warmup=warmup)
        self.predict = checked_choice("predict", predict, "loss", "probability")
        self.optimism = checked_number("optimism", optimism, least=0)
        self._threshold = LossThreshold(threshold_share)

    @property
    def threshold(self) -> float:
        """The loss threshold; NaN before any loss, or if losses are predicted."""
        return self._threshold.value

    def rescore(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Observes the scores of a pass, and updates the threshold."""
        if self.predict == "probability":
            self._threshold.join(scores)
        super().rescore(indices, scores, epoch)

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Observes training's losses; before any pass, updates the threshold."""
        if self.predict == "probability" and self.last_pass is None:
            self._threshold.join(losses)
        self.observe(indices, losses, epoch)

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        own = {"predict": self.predict, "threshold_share": self._threshold.share}
        return {**super().settings(), **own, "optimism": self.optimism}

    def members(self) -> dict[str, Any]:
        """The scorer and the threshold."""
        return {**super().members(), "threshold": self._threshold}
