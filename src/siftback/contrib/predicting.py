"""The base class of rules that predict a loss, or whether it exceeds a threshold."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from siftback.arguments import check_choice, check_number, check_share
from siftback.rules.rule import RefreshedRule
from siftback.state import Check, Stateful, tensor

Predict = Literal["loss", "probability"]

_RECENT = 1024  # R, as in the paper's CDF_R


class LossThreshold(Stateful):
    """The loss that a share of the last 1,024 losses exceeds: their quantile.

    Args:
        share: The share above it, in (0, 1).

    Raises:
        ConfigError: If ``share`` is out of range.

    >>> threshold = LossThreshold(0.25)
    >>> threshold.add(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    >>> threshold.value
    4.0
    """

    def __init__(self, share: float) -> None:
        self.share = check_share("threshold_share", share, least=False)
        self._recent = torch.empty(0, dtype=torch.float32)

    @property
    def value(self) -> float:
        """The threshold; NaN before any loss was added."""
        return float(self._recent.quantile(1 - self.share)) if len(self._recent) else torch.nan

    def add(self, losses: Tensor) -> None:
        """Adds losses, float[n]; those that are not finite are ignored."""
        losses = losses.detach().float().cpu()
        self._recent = torch.cat((self._recent, losses[losses.isfinite()]))[-_RECENT:]

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {"_recent": tensor(torch.float32, range(_RECENT + 1), finite=True)}


class PredictingRule(RefreshedRule):
    """A rule that predicts each example's next loss from those of passes and of training.

    A rule of this kind defines `predicted` and `observe`.

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        predict: "loss"; or "probability", that of a loss above the threshold.
        threshold_share: Share of the losses above the threshold, in (0, 1). The threshold is that
            quantile of the last 1,024 losses of scoring passes; losses of training are of selected
            examples, and are used only before the first pass.
        optimism: c, at least 0, the bonus for what is uncertain.
        options: The others of `RefreshedRule`.

    Raises:
        ConfigError: If one of them is out of range, or both or neither of ``keep`` and ``beta``
            are given.
    """

    setting_names: ClassVar[tuple[str, ...]] = ("predict", "optimism")

    def __init__(
        self,
        keep: float | None,
        beta: float | None,
        *,
        predict: Predict,
        threshold_share: float,
        optimism: float,
        **options: Any,
    ) -> None:
        super().__init__(keep, beta, **options)
        self.predict = check_choice("predict", predict, "loss", "probability")
        self.optimism = check_number("optimism", optimism, least=0)
        self._threshold = LossThreshold(threshold_share)

    @property
    def threshold(self) -> float:
        """The loss threshold; NaN before any loss, or if losses are predicted."""
        return self._threshold.value

    def rescore(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Observes the scores of a pass, and updates the threshold."""
        if self.predict == "probability":
            self._threshold.add(scores)
        super().rescore(indices, scores, epoch)

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Tensor | None) -> None:
        """Observes training's losses; before any pass, updates the threshold."""
        if self.predict == "probability" and self.last_pass is None:
            self._threshold.add(losses)
        self.observe(indices, losses, epoch)

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        return {**super().settings(), "threshold_share": self._threshold.share}

    def members(self) -> dict[str, Any]:
        """Returns the scorer and the threshold."""
        return {**super().members(), "threshold": self._threshold}
