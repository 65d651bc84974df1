"""The last losses seen, and where among them a loss stands."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError


class RankShares(NamedTuple):
    """Where losses stand among the history, as shares of its size.

    Attributes:
        below: float32[N], share of the history that is less than the loss.
        up_to: float32[N], share that is less than or equal to it. A loss that is itself in the
            history, which every loss here is, has ``up_to > below``.
    """

    below: Tensor
    up_to: Tensor


class LossHistory:
    """The last R losses, and a loss's percentile among them: the paper's CDF_R.

    Algorithm 2 of Jiang et al. 2019, batched: the batch joins the history, then each of its
    losses is ranked among the last ``max(R, N)``, by one sort and one ``searchsorted`` on the
    device of the losses. For N = 1 it is Algorithm 2 to the letter. Before R losses were seen,
    those that were are the history.

    Args:
        size: R, how many losses are remembered.

    Raises:
        ConfigError: Where ``size`` is no positive whole number.

    >>> history = LossHistory(size=4)
    >>> history.percentile(torch.tensor([0.1, 0.2, 0.2, 0.9]))
    tensor([0.1250, 0.5000, 0.5000, 0.8750])
    >>> history.percentile(torch.tensor([0.5]))  # 0.1 has left
    tensor([0.6250])
    """

    def __init__(self, size: int = 1024) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"history size {size!r}: give a whole number of losses, at least 1")
        self.size = size
        self._losses = torch.empty(0)

    def __len__(self) -> int:
        return len(self._losses)

    def rank(self, losses: Tensor) -> RankShares:
        """Adds losses, and tells which share of the history lies below and up to each.

        Args:
            losses: float[N], finite, N >= 1; ranked as float32.
        """
        losses = losses.detach().float()
        joined = torch.cat((self._losses.to(losses.device), losses))
        joined = joined[-max(self.size, len(losses)) :]
        self._losses = joined[-self.size :].clone()
        ordered = joined.sort().values
        # Both sides of every tie in one search: the first half from the left, the other from
        # the right, which is the left of the next number that a float32 can hold.
        above = torch.nextafter(losses, losses.new_full((), torch.inf))
        counts = torch.searchsorted(ordered, torch.cat((losses, above)))
        below, up_to = (counts / len(joined)).chunk(2)
        return RankShares(below, up_to)

    def percentile(self, losses: Tensor) -> Tensor:
        """Adds losses, and gives each one's share of the history, ties at mid-rank.

        ``(#{less} + #{less or equal}) / 2R``, in (0, 1).

        Args:
            losses: float[N], finite, N >= 1.

        Returns:
            float32[N], on the device of the losses.
        """
        below, up_to = self.rank(losses)
        return (below + up_to) / 2

    def state_dict(self) -> dict[str, Any]:
        """The losses remembered, oldest first, and their number at most."""
        return {"size": self.size, "losses": self._losses.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the losses of another history of the same size.

        Raises:
            StateError: Where the size differs.
        """
        if state["size"] != self.size:
            raise StateError(
                f"a history of {state['size']} losses does not fit one of {self.size}; "
                f"build the selector with history={state['size']}"
            )
        self._losses = state["losses"].clone()
