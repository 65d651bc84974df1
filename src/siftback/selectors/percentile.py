"""Selective-Backprop's selector: a loss's percentile among the last ones, to a power.

First the formulas, as pure functions; then the history of the last losses, and the selector.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from siftback.arguments import check_either, check_integer, check_number, check_object, check_share
from siftback.errors import ConfigError
from siftback.host_reads import move
from siftback.selectors.sampling import ShareSelector
from siftback.selectors.selection import Selector, check_scores
from siftback.state import Check, Stateful, tensor

_LONG = 1 << 14  # losses that are quickly sorted
_MANY = 1 << 20  # float32 tells shares of this many apart, and is searched quickly in any order
_WORN = 16  # one loss in this many is exchanged before a long window is sorted again


def beta_of_keep(keep: float, floor: float = 0.0) -> float:
    """Returns the exponent that keeps a share: ``beta = (1 - floor) / (keep - floor) - 1``.

    The probability of a loss at percentile p is ``p^beta`` (Jiang et al. 2019, eq. 1). Percentiles
    are uniform, so the share kept is ``E[p^beta] = 1 / (beta + 1)``; with a floor, the minimum
    probability of any example, it is ``floor + (1 - floor) / (beta + 1)``.

    Raises:
        ConfigError: If ``keep`` is not in (0, 1], or not above the floor.

    >>> beta_of_keep(1 / 3), beta_of_keep(1.0), round(beta_of_keep(0.55, floor=0.1), 6)
    (2.0, 0.0, 1.0)
    """
    if check_share("keep", keep, least=False, most=True) <= floor:
        raise ConfigError(
            f"keep={keep!r} is not above floor={floor!r}, the minimum probability: "
            "give a larger keep or a smaller floor"
        )
    return float((1 - floor) / (keep - floor) - 1)


def keep_of_beta(beta: float, floor: float = 0.0) -> float:
    """Returns the share that an exponent keeps: ``floor + (1 - floor) / (beta + 1)``.

    Raises:
        ConfigError: If ``beta`` is negative or not finite.

    >>> keep_of_beta(1.0)
    0.5
    """
    return floor + (1 - floor) / (check_number("beta", beta, least=0) + 1)


def percentile_probabilities(below: Tensor, up_to: Tensor, beta: float) -> Tensor:
    """Computes the probability of being kept, for losses at the percentiles (below, up_to].

    Eq. 1 of Jiang et al. 2019, ``P = percentile^beta``, averaged over the percentiles that a
    loss shares with those equal to it::

        P = 1 / (b - a) * integral of u^beta from a to b
          = (b^(beta+1) - a^(beta+1)) / ((beta + 1) * (b - a)),    a = below, b = up_to

    For a loss without ties this is mid-rank to the power of beta, up to O(1/R^2). Over a whole
    history the probabilities sum to exactly ``R / (beta + 1)``, for any number of ties and any
    length of the history; mid-rank^beta would keep 1/4 instead of 1/3 of a history of equal
    losses at beta = 2.

    Args:
        below: float[N], share of the history less than each loss.
        up_to: float[N], share less than or equal to it, greater than ``below``.
        beta: Exponent, at least 0.

    Returns:
        float[N] in [0, 1], of the dtype of the shares.

    >>> percentile_probabilities(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 1.0]), beta=1.0)
    tensor([0.2500, 0.7500])
    >>> percentile_probabilities(torch.tensor([0.0]), torch.tensor([1.0]), beta=2.0)
    tensor([0.3333])
    """
    if beta == 0:
        return torch.ones_like(up_to)  # exactly: keeping all must keep all
    # a^(beta+1) - b^(beta+1), without cancellation for a narrow (a, b].
    width = below - up_to
    powers = (width / up_to).log1p_().mul_(beta + 1).expm1_().mul_(up_to.pow(beta + 1))
    return powers.div_(width.mul_(beta + 1)).clamp_(max=1.0)


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

    One sort and two searches, on the device of the losses, without synchronizing with it.

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
    losses = losses.contiguous()  # as PyTorch warns of a search by others
    shares, is_long = list[Tensor](), len(losses) > _MANY
    if is_long:  # in order, as each search is then near the one before
        losses, order = losses.sort()
    for right in (False, True):
        counts = torch.searchsorted(arrived[0], losses, right=right)
        for losses_sorted in arrived[1:]:
            counts += torch.searchsorted(losses_sorted, losses, right=right)
        for losses_sorted in departed:
            counts -= torch.searchsorted(losses_sorted, losses, right=right)
        share = counts.to(torch.float64 if size > _MANY else losses.dtype).div_(size)
        shares.append(torch.empty_like(share).scatter_(0, order, share) if is_long else share)
    return RankShares(*shares)


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

    setting_names = ("size",)

    def __init__(self, size: int = 1024) -> None:
        self.size = check_integer("history size", size, 1)
        self._losses = torch.empty(0, dtype=torch.float32)
        # Many losses are sorted again only once a share of them was exchanged since.
        self._sorted: Tensor | None = None
        self._arrived = self._departed = self._losses

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
        joined = torch.cat((move(self._losses, losses.device), losses))
        left = max(len(joined) - max(self.size, len(losses)), 0)
        self._losses = joined[-self.size :]
        window = joined[left:]
        if not _LONG < len(window) <= self.size:
            self._sorted = None
            return count_shares(losses, len(window), [window.sort().values])
        is_worn = len(self._arrived) > len(window) // _WORN
        if self._sorted is None or self._sorted.device != losses.device or is_worn:
            self._sorted = window.sort().values
            self._arrived = self._departed = losses[:0]
        else:
            self._arrived = torch.cat((self._arrived, losses))
            self._departed = torch.cat((self._departed, joined[:left]))
        arrived, departed = self._arrived.sort().values, self._departed.sort().values
        return count_shares(losses, len(window), [self._sorted, arrived], [departed])

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

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"_losses": tensor(torch.float32, range(self.size + 1), finite=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Stateful.load_state_dict`."""
        super().load_state_dict(state)
        self._sorted = None


class Percentile(ShareSelector):
    """Selective-Backprop's selector: ``P(keep) = CDF_R(loss)^beta``.

    Algorithm 2 and eq. 1 of Jiang et al. 2019. Give ``keep`` or ``beta``, two forms of the same
    parameter: ``keep = 1 / (beta + 1)``. It synchronizes with the device once per batch, to know
    how many were kept.

    With ``count=k``, exactly k of N are kept, each with probability ``min(1, c P)``, with P as
    above and c such that these sum to k (`choose_exactly`): in proportion to P within the batch,
    and P itself if the P of the batch sum to k. It does not synchronize.

    Args:
        keep: Share of the examples to keep on average, in (0, 1].
        beta: Exponent, at least 0.
        history: R, the number of losses that a loss is ranked among.
        floor: The minimum probability of an example, in [0, 1), so that none is forgotten:
            ``P = floor + (1 - floor) * CDF_R(loss)^beta``.

    Raises:
        ConfigError: If both or neither of ``keep`` and ``beta`` are given, or one is out of
            range.

    >>> selector = Percentile(keep=1 / 3)
    >>> selector.beta
    2.0
    >>> losses = torch.linspace(0, 5, 1000)
    >>> kept = selector.select(losses, torch.Generator().manual_seed(0))
    >>> len(kept.positions), losses[kept.positions].mean() > losses.mean()
    (339, tensor(True))
    """

    setting_names = ("floor",)

    def __init__(
        self,
        *,
        keep: float | None = None,
        beta: float | None = None,
        history: int = 1024,
        floor: float = 0.0,
    ) -> None:
        self.floor = check_share("floor", floor)
        check_either("keep = 1 / (beta + 1)", keep=keep, beta=beta)
        if keep is not None:
            super().__init__(keep=keep)
        elif beta is not None:
            # Not by `set_keep`: an infinite exponent keeps, except for rounding, the floor alone.
            self.keep = self._first_keep = keep_of_beta(beta, self.floor)
            self.beta = float(beta)
        self.history = LossHistory(history)

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (floor, 1], and the exponent with it."""
        self.beta, self.keep = beta_of_keep(keep, self.floor), float(keep)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns ``floor + (1 - floor) * CDF_R(score)^beta``; adds scores to the history."""
        check_scores(scores)
        below, up_to = self.history.rank(scores)
        probabilities = percentile_probabilities(below, up_to, self.beta)
        if self.floor:
            probabilities.mul_(1 - self.floor).add_(self.floor)
        return probabilities

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"history": self.history}


def resolve_selector(
    selector: Selector | None, keep: float | None, beta: float | None = None
) -> Selector:
    """Returns the selector that was passed, or a `Percentile` of a share or an exponent.

    Raises:
        ConfigError: If both or neither are given, or one is out of range.
    """
    if selector is None:
        return Percentile(keep=keep, beta=beta)
    if keep is not None or beta is not None:
        raise ConfigError("both a selector and keep or beta given: give one of them")
    needed = ("select", "needs_scores", "reweights", "keep", "state_dict", "load_state_dict")
    return check_object("selector", selector, "TopK(keep=0.5)", *needed)
