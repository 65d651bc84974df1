"""The last losses seen, and the rank of a loss among them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from siftback.arguments import check_integer
from siftback.state import Check, Stateful, tensor

_LONG = 1 << 14  # losses that are quickly sorted
_MANY = 1 << 20  # float32 tells shares of so many apart, and is searched quickly in any order
_WORN = 16  # one loss in this many is exchanged before a long window is sorted again


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
    """Computes the shares of a history that are less than each loss, and less than or equal to it.

    One sort and one ``searchsorted``, on the device of the losses, without synchronizing with it.

    Args:
        losses: float[N], finite.
        history: float[R], R >= 1, of the same dtype.

    Returns:
        Shares of the dtype of the losses; of a history of more than a million in float64, as
        float32 does not tell those of 2^24 apart.

    >>> rank_shares(torch.tensor([0.5, 3.0]), torch.tensor([0.5, 0.1, 2.0, 0.5]))
    RankShares(below=tensor([0.2500, 1.0000]), up_to=tensor([0.7500, 1.0000]))
    """
    return count_shares(losses, len(history), [history.sort().values])


def count_shares(
    losses: Tensor, size: int, arrived: list[Tensor], departed: Sequence[Tensor] = ()
) -> RankShares:
    """Computes `rank_shares` in a history of sorted losses that arrived and have not departed.

    Args:
        losses: float[N], finite.
        size: R, the size of the history.
        arrived: Losses that were added, in any number of sorted tensors.
        departed: Losses that were removed since, likewise.
    """
    order: Tensor | slice = slice(None)
    if len(losses) > _MANY:  # in order, as each search is then near the one before
        losses, order = losses.sort()
    # Both sides of every tie in one search: the first half from the left, the other from the right,
    # which is the left of the next representable number.
    above = torch.nextafter(losses, losses.new_full((), torch.inf))
    sides = torch.cat((losses, above))
    counts = torch.zeros_like(sides, dtype=torch.int64)
    for losses_sorted in arrived:
        counts += torch.searchsorted(losses_sorted, sides)
    for losses_sorted in departed:
        counts -= torch.searchsorted(losses_sorted, sides)
    ordered = (counts.to(torch.float64 if size > _MANY else losses.dtype) / size).view(2, -1)
    shares = torch.empty_like(ordered)
    shares[:, order] = ordered
    return RankShares(*shares)


class LongWindow:
    """A long history that is sorted again only when a share of it was exchanged.

    Until then the losses that arrived and those that departed are sorted and counted apart.

    Args:
        losses: float[R].
    """

    def __init__(self, losses: Tensor) -> None:
        self.sorted = losses.sort().values
        self.arrived = self.departed = losses[:0]

    @property
    def is_worn(self) -> bool:
        """Whether it is faster to sort all of it again."""
        return len(self.arrived) > len(self.sorted) // _WORN

    def exchange(self, arrived: Tensor, departed: Tensor) -> None:
        """Adds losses, and removes the oldest."""
        self.arrived = torch.cat((self.arrived, arrived))
        self.departed = torch.cat((self.departed, departed))

    def rank_shares(self, losses: Tensor) -> RankShares:
        """Computes `rank_shares` in the window."""
        size = len(self.sorted) + len(self.arrived) - len(self.departed)
        arrived, departed = self.arrived.sort().values, self.departed.sort().values
        return count_shares(losses, size, [self.sorted, arrived], [departed])


class LossHistory(Stateful):
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
        self.size = check_integer("history size", size, 1)
        self._losses = torch.empty(0, dtype=torch.float32)
        self._window: LongWindow | None = None  # of those, where there are many

    def __len__(self) -> int:
        return len(self._losses)

    def rank(self, losses: Tensor) -> RankShares:
        """Adds losses, and returns the shares of the history below and up to each.

        Args:
            losses: float[N], finite, N >= 1; ranked as float32.

        Returns:
            Those of `rank_shares`; each ``up_to`` is above its ``below``, as every loss is in the
            history.
        """
        losses = losses.detach().float()
        # To an accelerator without waiting; from one, the numbers must have arrived.
        before = self._losses.to(losses.device, non_blocking=losses.device.type != "cpu")
        joined = torch.cat((before, losses))
        left = max(len(joined) - max(self.size, len(losses)), 0)
        self._losses = joined[-self.size :].clone()
        if not _LONG < len(joined) - left <= self.size:
            self._window = None
            return count_shares(losses, len(joined) - left, [joined[left:].sort().values])
        window = self._window
        if window is None or window.sorted.device != losses.device or window.is_worn:
            window = self._window = LongWindow(joined[left:])
        else:
            window.exchange(losses, joined[:left])
        return window.rank_shares(losses)

    def percentile(self, losses: Tensor) -> Tensor:
        """Adds losses, and returns each one's percentile in the history, ties at mid-rank.

        ``(#{less} + #{less or equal}) / 2R``, in (0, 1).

        Args:
            losses: float[N], finite, N >= 1.

        Returns:
            float[N], on the device of the losses.
        """
        below, up_to = self.rank(losses)
        return (below + up_to) / 2

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {"size": self.size}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"_losses": tensor(torch.float32, range(self.size + 1), finite=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Stateful.load_state_dict`."""
        super().load_state_dict(state)
        self._window = None
