"""Selective-Backprop's selector: a loss's percentile, to the power of an exponent.

First the formulas, as pure functions; then the selector, which holds the history.
"""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_number, check_object, check_share, format_value
from siftback.errors import ConfigError
from siftback.selectors.history import LossHistory
from siftback.selectors.sampling import choose
from siftback.selectors.selection import (
    Selection,
    Selector,
    ShareSelector,
    check_call,
    check_scores,
)


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
            f"keep={format_value(keep)} is not above floor={floor!r}, the minimum probability: "
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
    # b^(beta+1) - a^(beta+1), without cancellation for a narrow (a, b].
    width = up_to - below
    powers = -torch.expm1((beta + 1) * torch.log1p(-width / up_to))
    return (up_to.pow(beta + 1) * powers / ((beta + 1) * width)).clamp(max=1.0)


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

    def __init__(
        self,
        *,
        keep: float | None = None,
        beta: float | None = None,
        history: int = 1024,
        floor: float = 0.0,
    ) -> None:
        self.floor = check_share("floor", floor)
        if (keep is None) == (beta is None):
            raise ConfigError(
                f"keep={format_value(keep)} and beta={format_value(beta)}: give one of them, "
                "keep = 1 / (beta + 1)"
            )
        if keep is not None:
            super().__init__(keep=keep)
        elif beta is not None:
            # Not by `set_keep`: an infinite exponent, but for rounding, keeps the floor alone.
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

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """See `Selector.select`; adds the scores to the history."""
        check_call(scores, generator, count)
        return choose(self.probabilities(scores), generator, count)

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {**super().settings(), "floor": self.floor}

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
