"""The loss that a share of the recent ones exceeds."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import is_number
from siftback.errors import ConfigError

_RECENT = 1024  # R, as of the paper's CDF_R


class LossThreshold:
    """The loss that a share of the last 1,024 losses exceeds: their quantile.

    Args:
        share: The share above it, in (0, 1).

    Raises:
        ConfigError: If ``share`` is out of its range.

    >>> threshold = LossThreshold(0.25)
    >>> threshold.join(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    >>> threshold.value
    4.0
    """

    def __init__(self, share: float) -> None:
        if not is_number(share) or not 0 < share < 1:
            raise ConfigError(f"threshold_share={share!r}: give a share in (0, 1)")
        self.share = float(share)
        self._recent = torch.empty(0)

    @property
    def value(self) -> float:
        """The threshold; NaN before there was any loss."""
        if not len(self._recent):
            return torch.nan
        return float(self._recent.quantile(1 - self.share))

    def join(self, losses: Tensor) -> None:
        """Adds losses, float[n]; those that are not finite are left out."""
        losses = losses.detach().float().cpu()
        self._recent = torch.cat((self._recent, losses[losses.isfinite()]))[-_RECENT:]

    def state_dict(self) -> dict[str, Any]:
        """The recent losses, oldest first."""
        return {"recent": self._recent.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state."""
        self._recent = state["recent"].clone()
