"""Draws exactly k examples, those without a score first."""

from collections.abc import Callable

import torch
from torch import Tensor

from siftback.selectors.sampling import choose_exactly


def draw_exactly(
    scores: Tensor, proportions: Callable[[Tensor], Tensor], count: int, generator: torch.Generator
) -> Tensor:
    """Draws exactly k examples, in proportion to a function of their scores.

    Examples without a score are kept; if there are more than k of them, k of those are drawn, all
    with the same probability. The others are drawn by systematic sampling (`choose_exactly`).

    Args:
        scores: float32[N], NaN where unknown.
        proportions: From the known scores, float32[n], to float64[n], at least 0.
        count: k, from 0 to N.
        generator: On the CPU.

    Returns:
        float32[N], 1 for the k drawn and 0 for the others.

    >>> scores = torch.tensor([0.0, 5.0, torch.nan, 0.0])
    >>> draw_exactly(scores, torch.Tensor.double, 2, torch.Generator().manual_seed(0))
    tensor([0., 1., 1., 0.])
    """
    weights = torch.zeros(len(scores), dtype=torch.float32)
    unknown = scores.isnan()
    known, new = (~unknown).nonzero().squeeze(1), unknown.nonzero().squeeze(1)
    if len(new) > count:
        new = new[torch.randperm(len(new), generator=generator)[:count]]
    weights[new] = 1.0
    count -= len(new)
    if count:
        weights[known[choose_exactly(proportions(scores[known]), count, generator)]] = 1.0
    return weights
