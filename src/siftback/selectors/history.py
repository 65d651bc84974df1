"""The last losses seen, and the rank of a loss among them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from siftback.arguments import checked_integer
from siftback.errors import StateError


class RankShares(NamedTuple):
    """The ranks of losses in a history, as shares of its size.

    Attributes:
        below: float[N], share of the history that is less than the loss.
        up_to: float[N], share that is less than or equal to it. For a loss that is itself in the
            history, ``up_to > below``.
    """

    below: Tensor
    up_to: Tensor


def rank_shares(losses: Tensor, history: Tensor) -> RankShares:
    """The shares of a history that are less than each loss, and less than or equal to it.

    One sort and one ``searchsorted``, on the device of the losses, without synchronizing with it.

    Args:
        losses: float[N], finite.
        history: float[R], R >= 1, of the same dtype.

    Returns:
        Shares of the dtype of the losses.

    >>> rank_shares(torch.tensor([0.5, 3.0]), torch.tensor([0.5, 0.1, 2.0, 0.5]))
    RankShares(below=tensor([0.2500, 1.0000]), up_to=tensor([0.7500, 1.0000]))
    """
    ordered = history.sort().values
    # Both sides of every tie in one search: the first half from the left, the other from the right,
    # which is the left of the next representable number.
    above = torch.nextafter(losses, losses.new_full((), torch.inf))
    counts = torch.searchsorted(ordered, torch.cat((losses, above)))
    below, up_to = (counts.to(losses.dtype) / len(history)).chunk(2)
    return RankShares(below, up_to)


class LossHistory:
    """The last R losses, and a loss's percentile among them: the paper's CDF_R.

    Algorithm 2 of Jiang et al. 2019, batched: the batch is added to the history, then each of its
    losses is ranked among the last ``max(R, N)``, on the device of the losses (`rank_shares`). For
    N = 1 it is exactly Algorithm 2. Until R losses were seen, the history is shorter.

    Args:
        size: R, the number of losses remembered.

    Raises:
        ConfigError: If ``size`` is not a positive integer.

    >>> history = LossHistory(size=4)
    >>> history.percentile(torch.tensor([0.1, 0.2, 0.2, 0.9]))
    tensor([0.1250, 0.5000, 0.5000, 0.8750])
    >>> history.percentile(torch.tensor([0.5]))  # 0.1 has left
    tensor([0.6250])
    """

    def __init__(self, size: int = 1024) -> None:
        self.size = checked_integer("history size", size, 1)
        self._losses = torch.empty(0)

    def __len__(self) -> int:
        return len(self._losses)

    def rank(self, losses: Tensor) -> RankShares:
        """Adds losses, and returns the shares of the history below and up to each.

        Args:
            losses: float[N], finite, N >= 1; ranked as float32.

        Returns:
            Shares as float32[N]; each ``up_to`` is above its ``below``, as every loss is in the
            history.
        """
        losses = losses.detach().float()
        joined = torch.cat((self._losses.to(losses.device), losses))
        joined = joined[-max(self.size, len(losses)) :]
        self._losses = joined[-self.size :].clone()
        return rank_shares(losses, joined)

    def percentile(self, losses: Tensor) -> Tensor:
        """Adds losses, and returns each one's percentile in the history, ties at mid-rank.

        ``(#{less} + #{less or equal}) / 2R``, in (0, 1).

        Args:
            losses: float[N], finite, N >= 1.

        Returns:
            float32[N], on the device of the losses.
        """
        below, up_to = self.rank(losses)
        return (below + up_to) / 2

    def state_dict(self) -> dict[str, Any]:
        """The losses remembered, oldest first, and the size R."""
        return {"size": self.size, "losses": self._losses.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the losses of another history of the same size.

        Raises:
            StateError: If the size differs.
        """
        if state["size"] != self.size:
            raise StateError(
                f"a history of {state['size']} losses does not fit one of {self.size}; "
                f"build the selector with history={state['size']}"
            )
        self._losses = state["losses"].clone()
