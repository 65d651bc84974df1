"""A quantile of the recent losses."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import is_number, shown
from siftback.errors import ConfigError
from siftback.state import check_entries, integer, tensor

_RECENT = 1024  # R, as in the paper's CDF_R


class LossThreshold:
    """The loss that a share of the last 1,024 losses exceeds: their quantile.

    Args:
        share: The share above it, in (0, 1).

    Raises:
        ConfigError: If ``share`` is out of range.

    >>> threshold = LossThreshold(0.25)
    >>> threshold.join(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    >>> threshold.value
    4.0
    """

    def __init__(self, share: float) -> None:
        if not is_number(share) or not 0 < share < 1:
            raise ConfigError(f"threshold_share={shown(share)}: give a share in (0, 1)")
        self.share = float(share)
        self._recent = torch.empty(0, dtype=torch.float32)

    @property
    def value(self) -> float:
        """The threshold; NaN before any loss was added."""
        if not len(self._recent):
            return torch.nan
        return float(self._recent.quantile(1 - self.share))

    def join(self, losses: Tensor) -> None:
        """Adds losses, float[n]; those that are not finite are ignored."""
        losses = losses.detach().float().cpu()
        self._recent = torch.cat((self._recent, losses[losses.isfinite()]))[-_RECENT:]

    def state_dict(self) -> dict[str, Any]:
        """The recent losses, oldest first."""
        return {"count": len(self._recent), "recent": self._recent.clone()}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it does not have as many finite losses as it says.
        """
        check_entries(self, state, {"count": integer(most=_RECENT)})
        recent = tensor(torch.float32, state["count"], finite=True)
        check_entries(self, state, {"recent": recent})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another threshold's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self._recent = state["recent"].clone()
