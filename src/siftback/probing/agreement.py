"""The agreement of cheap scores with exact ones, in rank and in what they would select."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from siftback.selectors.percentile import Percentile


@dataclass(frozen=True)
class Overlap:
    """The overlap of two scorers' selections at one share kept.

    Attributes:
        keep: The share kept, which is also the expected overlap of two random selections.
        top: Share of the k examples with the highest exact scores that are also among the k with
            the highest cheap ones, ``k = round(keep * N)``.
        selected: Overlap of the selections of Selective-Backprop by either, with the same
            random numbers: ``2 |A and B| / (|A| + |B|)``.
    """

    keep: float
    top: float
    selected: float


@dataclass(frozen=True)
class Agreement:
    """Agreement of a scorer's scores with the exact ones, on the same examples and weights.

    Attributes:
        examples: Number of examples compared.
        rank_correlation: Spearman's; None if all scores of either are equal.
        overlaps: One per share kept.
    """

    examples: int
    rank_correlation: float | None
    overlaps: tuple[Overlap, ...]


def agreement(exact: Tensor, scores: Tensor, keeps: Sequence[float], seed: int = 0) -> Agreement:
    """Compares two scorers' scores of the same examples.

    Args:
        exact: float32[N], the exact scores.
        scores: float32[N], those of the other scorer; NaN counts as the highest.
        keeps: Shares to select, each in (0, 1].
        seed: Seed of the random numbers.

    >>> exact = torch.arange(100.0)
    >>> same = agreement(exact, exact.square(), [1 / 4])
    >>> same.rank_correlation, same.overlaps[0].top, same.overlaps[0].selected
    (1.0, 1.0, 1.0)
    >>> agreement(exact, -exact, [1 / 4]).overlaps[0].top
    0.0
    """
    exact, scores = (values.nan_to_num(nan=torch.inf).cpu() for values in (exact, scores))
    overlaps = []
    for keep in keeps:
        k = max(1, round(keep * len(exact)))
        selected = (
            Percentile(keep=keep, history=len(exact))
            .select(values, torch.Generator().manual_seed(seed))
            .positions
            for values in (exact, scores)
        )
        top = overlap(exact.topk(k).indices, scores.topk(k).indices)
        overlaps.append(Overlap(keep, top, overlap(*selected)))
    return Agreement(len(exact), rank_correlation(exact, scores), tuple(overlaps))


def rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Computes Spearman's rank correlation: Pearson's of the ranks; ties have their mean rank.

    Args:
        first: float[N].
        second: float[N].

    Returns:
        In [-1, 1]; None if all values of either are equal.

    >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 40.0, 30.0]))
    0.5
    """
    ranks = torch.stack([mean_ranks(first), mean_ranks(second)])
    correlation = float(torch.corrcoef(ranks)[0, 1])
    return None if math.isnan(correlation) else round(correlation, 12)


def mean_ranks(values: Tensor) -> Tensor:
    """Returns the rank of each of float[N] values; ties have their mean rank."""
    ordered = values.sort().values
    below, up_to = (torch.searchsorted(ordered, values, right=side) for side in (False, True))
    return (below + up_to).double() / 2


def overlap(first: Tensor, second: Tensor) -> float:
    """Returns ``2 |A and B| / (|A| + |B|)`` of two sets of positions; 1 if both are empty."""
    size = len(first) + len(second)
    return 2 * int(torch.isin(first, second).sum()) / size if size else 1.0
