"""Selectors turn one score per example into the examples to keep, and their weights.

On top the mathematics, pure functions; below, thin selectors that hold what state there is.
"""

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.selectors.history import LossHistory

# Stands for a probability of 0, so that k examples can be kept whatever the probabilities.
_LEAST = 1e-12


def beta_of_keep(keep: float, floor: float = 0.0) -> float:
    """The exponent that keeps a given share: ``beta = (1 - floor) / (keep - floor) - 1``.

    The chance of a loss at percentile p is ``p^beta`` (Jiang et al. 2019, eq. 1). Percentiles
    are uniform, so the share kept is ``E[p^beta] = 1 / (beta + 1)``; and with a floor, the least
    chance of an example, ``floor + (1 - floor) / (beta + 1)``.

    Raises:
        ConfigError: Where ``keep`` is not in (0, 1], or not above the floor.

    >>> beta_of_keep(1 / 3), beta_of_keep(1.0), round(beta_of_keep(0.55, floor=0.1), 6)
    (2.0, 0.0, 1.0)
    """
    if checked_keep(keep) <= floor:
        raise ConfigError(
            f"keep={keep!r} is not above floor={floor!r}, the least chance of an example: "
            "give a larger keep or a smaller floor"
        )
    return (1 - floor) / (keep - floor) - 1


def keep_of_beta(beta: float, floor: float = 0.0) -> float:
    """The share that an exponent keeps: ``keep = floor + (1 - floor) / (beta + 1)``, beta >= 0.

    Raises:
        ConfigError: Where ``beta`` is negative or not finite.

    >>> keep_of_beta(1.0)
    0.5
    """
    if not is_number(beta) or beta < 0:
        raise ConfigError(f"beta={beta!r} is no exponent: give a finite number, at least 0")
    return floor + (1 - floor) / (beta + 1)


def percentile_probabilities(below: Tensor, up_to: Tensor, beta: float) -> Tensor:
    """Chance of being kept, for examples whose losses hold the percentiles (below, up_to].

    Eq. 1 of Jiang et al. 2019, ``P = percentile^beta``, in the mean over the percentiles that a
    loss shares with those equal to it::

        P = 1 / (b - a) * integral of u^beta from a to b
          = (b^(beta+1) - a^(beta+1)) / ((beta + 1) * (b - a)),    a = below, b = up_to

    For a loss without equals this is mid-rank to the power of beta, up to O(1/R^2). Over a whole
    history the chances sum to exactly ``R / (beta + 1)``, however many losses tie and however
    short the history is; mid-rank^beta would keep 1/4 instead of 1/3 of a history of equal
    losses at beta = 2.

    Args:
        below: float32[N], share of the history less than each loss.
        up_to: float32[N], share less than or equal, greater than ``below``.
        beta: Exponent, at least 0.

    Returns:
        float32[N] in [0, 1].

    >>> percentile_probabilities(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 1.0]), beta=1.0)
    tensor([0.2500, 0.7500])
    >>> percentile_probabilities(torch.tensor([0.0]), torch.tensor([1.0]), beta=2.0)
    tensor([0.3333])
    """
    if beta == 0:
        return torch.ones_like(up_to)  # exactly: keeping all must keep all
    # b^(beta+1) - a^(beta+1), without the cancellation that a narrow (a, b] would suffer.
    width = up_to - below
    powers = -torch.expm1((beta + 1) * torch.log1p(-width / up_to))
    return (up_to.pow(beta + 1) * powers / ((beta + 1) * width)).clamp(max=1.0)


class Selection(NamedTuple):
    """The examples of a batch to train on.

    Attributes:
        indices: int64[k], their positions in the batch, ascending.
        weights: float32[k], the factor of each one's loss.
    """

    indices: Tensor
    weights: Tensor


class Selector(Protocol):
    """Turns scores into a selection; holds no reference to data or model.

    Two methods more are optional. ``chances(scores)`` gives float32[N], each example's chance of
    being kept by a ``select`` without a count; what moves on in ``select``, such as a history,
    moves on in it too. `Unbiased` needs it. ``set_keep(keep)`` changes the share from the next
    batch on; a `Schedule` that anneals needs it. That share is the loader's to set, each batch,
    and no part of the selector's state.

    Attributes:
        needs_scores: Whether ``select`` looks at the scores. Where it does not, no selection
            pass is made and the scores are all zero.
        reweights: Whether it gives weights other than 1, which training must then apply.
        keep: Share of the examples that it aims to keep.
    """

    needs_scores: bool
    reweights: bool
    keep: float

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """Chooses among the examples of a batch.

        Args:
            scores: float32[N], finite; for the selectors here, losses.
            generator: Where chance comes from; on the CPU, so that a seed means the same
                examples on every device.
            count: Exactly how many to choose, 1 <= count <= N, without waiting for the device;
                None leaves the number to chance.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What ``select`` will depend on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another selector's state."""
        ...


class Percentile:
    """Selective-Backprop's selector: ``P(keep) = CDF_R(loss)^beta``.

    Algorithm 2 and eq. 1 of Jiang et al. 2019. Give ``keep`` or ``beta``, which are one knob:
    ``keep = 1 / (beta + 1)``. One host round trip a batch, to learn how many were kept.

    Args:
        keep: Share of the examples to keep in the mean, in (0, 1].
        beta: Exponent, at least 0.
        history: R, the number of losses that a loss is ranked among.
        floor: The least chance of an example, in [0, 1), so that none is forgotten: the chance
            is ``floor + (1 - floor) * CDF_R(loss)^beta``.

    Raises:
        ConfigError: Where both or neither of ``keep`` and ``beta`` are given, or one is out of
            its range.

    >>> selector = Percentile(keep=1 / 3)
    >>> selector.beta
    2.0
    >>> losses = torch.linspace(0, 5, 1000)
    >>> kept = selector.select(losses, torch.Generator().manual_seed(0))
    >>> len(kept.indices), losses[kept.indices].mean() > losses.mean()
    (339, tensor(True))
    """

    needs_scores = True
    reweights = False

    def __init__(
        self,
        *,
        keep: float | None = None,
        beta: float | None = None,
        history: int = 1024,
        floor: float = 0.0,
    ) -> None:
        if not is_number(floor) or not 0 <= floor < 1:
            raise ConfigError(f"floor={floor!r}: give a chance in [0, 1)")
        if (keep is None) == (beta is None):
            raise ConfigError(
                f"keep={keep!r} and beta={beta!r}: give one of them, keep = 1 / (beta + 1)"
            )
        if keep is not None:
            self.beta, self.keep = beta_of_keep(keep, floor), float(keep)
        elif beta is not None:
            self.keep, self.beta = keep_of_beta(beta, floor), float(beta)
        self.floor = float(floor)
        self.history = LossHistory(history)

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (floor, 1], and the exponent with it."""
        self.beta, self.keep = beta_of_keep(keep, self.floor), float(keep)

    def chances(self, scores: Tensor) -> Tensor:
        """float32[N], ``floor + (1 - floor) * CDF_R(score)^beta``; the scores join the history."""
        below, up_to = self.history.rank(scores)
        chances = percentile_probabilities(below, up_to, self.beta)
        if self.floor:
            chances.mul_(1 - self.floor).add_(self.floor)
        return chances

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """See `Selector.select`; the scores join the history."""
        return choose(self.chances(scores), generator, count)

    def state_dict(self) -> dict[str, Any]:
        """The history."""
        return self.history.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another history of the same size."""
        self.history.load_state_dict(state)


class Uniform:
    """Random-Backprop: every example with the same chance, whatever its loss.

    The baseline of Lu et al. (Diet Selective-Backprop): it makes no selection pass.

    Args:
        keep: Chance of each example, in (0, 1].

    Raises:
        ConfigError: Where ``keep`` is out of its range.

    >>> kept = Uniform(keep=0.5).select(torch.zeros(1000), torch.Generator().manual_seed(0))
    >>> len(kept.indices)
    492
    """

    needs_scores = False
    reweights = False

    def __init__(self, *, keep: float) -> None:
        self.set_keep(keep)

    def set_keep(self, keep: float) -> None:
        """Changes the chance of each example, in (0, 1]."""
        self.keep = checked_keep(keep)

    def chances(self, scores: Tensor) -> Tensor:
        """float32[N], all equal."""
        return torch.full_like(scores, self.keep, dtype=torch.float32)

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """See `Selector.select`; of the scores only the number counts."""
        return choose(self.chances(scores), generator, count)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the chances never change."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


class All:
    """Keeps every example: ordinary training.

    >>> All().select(torch.zeros(3), torch.Generator()).indices
    tensor([0, 1, 2])
    """

    needs_scores = False
    reweights = False
    keep = 1.0

    def chances(self, scores: Tensor) -> Tensor:
        """float32[N], all 1."""
        return torch.ones_like(scores, dtype=torch.float32)

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """See `Selector.select`; no scores are used, and chance only where a count is asked."""
        if count is not None:
            return choose(self.chances(scores), generator, count)
        return Selection(torch.arange(len(scores), device=scores.device), self.chances(scores))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: there is no state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


def choose(
    probabilities: Tensor, generator: torch.Generator, count: int | None = None
) -> Selection:
    """Keeps each example by chance, independently of the others: Algorithm 1's ``choose``.

    Args:
        probabilities: float32[N] in [0, 1].
        generator: On the CPU. N numbers are drawn, whatever is kept.
        count: k, to keep exactly so many, by `choose_exactly`; None for independent draws.

    Returns:
        The kept examples, each with weight 1.

    >>> choose(torch.tensor([0.0, 1.0, 1.0]), torch.Generator()).indices
    tensor([1, 2])
    """
    if count is not None:
        indices = choose_exactly(probabilities, count, generator)
    else:
        draws = torch.rand(len(probabilities), generator=generator)
        kept = draws.to(probabilities.device, non_blocking=True) < probabilities
        indices = kept.nonzero().squeeze(1)
    return Selection(indices, torch.ones(len(indices), device=indices.device))


def count_of(keep: float, size: int) -> int:
    """How many of N a share stands for: ``max(1, round(keep * N))``.

    >>> count_of(1 / 3, 128), count_of(0.1, 3)
    (43, 1)
    """
    return max(1, round(keep * size))


def choose_exactly(probabilities: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Keeps exactly k examples, each with a chance in proportion to its probability.

    Systematic sampling (Madow 1949) in a random order: the chances of `inclusion_chances`, which
    sum to k, are laid end to end in the order of a random permutation, and the examples are kept
    into whose stretch one of the points ``u, u + 1, ..., u + k - 1`` falls, u uniform in [0, 1).
    A stretch is no longer than 1, so nothing is kept twice, and an example's chance is exactly
    its stretch.

    How it relates to independent draws: those keep ``sum(p)`` examples in the mean, with a
    standard deviation of ``sqrt(sum(p (1 - p)))``. Here the number is fixed, so a batch that is
    harder than the history on the whole has its chances scaled down, and an easier one up; within
    a batch they stay in proportion, up to those that reach 1. Where ``sum(p) = k``, as in the
    mean over batches for ``keep = k / N``, the chances are those of the independent draws.

    Args:
        probabilities: float32[N], at least 0.
        count: k, in [1, N].
        generator: On the CPU. Nothing is drawn where k = N.

    Returns:
        int64[k], ascending, on the device of the probabilities, which is not waited for.

    >>> choose_exactly(torch.tensor([0.0, 1.0, 0.0, 0.5, 0.5]), 2, torch.Generator().manual_seed(1))
    tensor([1, 4])
    """
    device = probabilities.device
    size = len(probabilities)
    if count == size:
        return torch.arange(size, device=device)
    order = torch.randperm(size, generator=generator).to(device, non_blocking=True)
    start = torch.rand((), generator=generator).to(device, non_blocking=True)
    ends = inclusion_chances(probabilities, count)[order].cumsum(0)
    points = torch.ceil((ends * (count / ends[-1]) - start).clamp(min=0))  # left of each end
    hits = points.diff(prepend=points.new_zeros(1))
    # In float32 a stretch of about 1 may hold no point or two: `topk` still keeps exactly k.
    return order[hits.topk(count).indices].sort().values


def inclusion_chances(probabilities: Tensor, count: int) -> Tensor:
    """Scales probabilities so that they sum to k: ``min(1, c p)``, with c as that demands.

    Args:
        probabilities: float32[N], at least 0.
        count: k, in [1, N]. Where fewer than k are above 0, the others share what is left.

    Returns:
        float32[N] in [0, 1].

    >>> inclusion_chances(torch.tensor([0.1, 0.2, 0.9]), 2)
    tensor([0.3333, 0.6667, 1.0000])
    """
    ordered, order = probabilities.clamp(min=_LEAST).sort(descending=True)
    certain = torch.arange(len(ordered), device=ordered.device)
    # With the j largest at 1, the others are scaled by (k - j) / (their sum). The right j is the
    # first for which the largest of them stays within 1.
    left = ordered.flip(0).cumsum(0).flip(0)
    scales = (count - certain) / left
    fits = (scales * ordered <= 1) | (certain >= count - 1)
    first = fits.int().argmax()
    scale = scales.take(first)  # an index in brackets would be waited for
    scaled = torch.where(certain < first, 1.0, (scale * ordered).clamp(max=1.0))
    return torch.empty_like(scaled).scatter_(0, order, scaled)


def resolve_selector(
    selector: Selector | None, keep: float | None, beta: float | None, history: int
) -> Selector:
    """The selector given, or Selective-Backprop's of a share or an exponent.

    Raises:
        ConfigError: Where both are given, or neither, or one is out of its range.
    """
    if selector is None:
        return Percentile(keep=keep, beta=beta, history=history)
    if keep is not None or beta is not None:
        raise ConfigError("both a selector and keep or beta given: give one of them")
    return selector


def checked_keep(keep: float) -> float:
    """The share, where it is one.

    Raises:
        ConfigError: Where it is no number in (0, 1].
    """
    if not is_number(keep) or not 0 < keep <= 1:
        raise ConfigError(f"keep={keep!r} is not a share of the batch: give a number in (0, 1]")
    return float(keep)


def is_number(value: object) -> bool:
    """Whether it is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
