"""Draws exactly k examples by the percentiles of their remembered scores."""

import torch
from torch import Tensor

from siftback.draws.exact_draw import draw_exactly
from siftback.draws.histogram_draw import draw_in_blocks, tied_probabilities
from siftback.selectors.sampling import sort_values

SORTED = 1 << 22
"""Up to how many scores are sorted; more are drawn by a histogram, in blocks."""


def draw_probabilities(scores: Tensor, beta: float, floor: float = 0.0) -> Tensor:
    """Computes the probability of each example by its percentile among all scores.

    Jiang et al. 2019, eq. 1, with a floor::

        p = floor + (1 - floor) * percentile^beta

    averaged over the percentiles that equal scores share (see `percentile_probabilities`). Their
    sum is ``N * (floor + (1 - floor) / (beta + 1))``, for any number of examples, as ranks are
    integers and everything else is float64.

    Args:
        scores: float32[N], none NaN; infinite ones are the highest or lowest.
        beta: Exponent, at least 0.
        floor: The minimum probability, in [0, 1).

    Returns:
        float64[N].

    >>> draw_probabilities(torch.tensor([3.0, 1.0, 3.0, 2.0]), beta=1.0, floor=0.2)
    tensor([0.8000, 0.3000, 0.8000, 0.5000], dtype=torch.float64)
    """
    if not len(scores):
        return scores.double()
    ordered, order = sort_values(scores)
    last = (ordered[1:] != ordered[:-1]).nonzero().squeeze(1) + 1
    ends = torch.cat((last, last.new_tensor([len(scores)])))
    sizes = ends.diff(prepend=ends.new_zeros(1))
    tied = tied_probabilities(sizes, beta, floor)
    probabilities = torch.empty(len(scores), dtype=torch.float64)
    probabilities[order] = tied.repeat_interleave(sizes)
    return probabilities


def draw_by_percentile(
    scores: Tensor, beta: float, floor: float, count: int, generator: torch.Generator
) -> Tensor:
    """Draws exactly k examples, with probabilities in proportion to `draw_probabilities`.

    Examples without a score are kept, as far as there are not more than k of them; see
    `draw_exactly`. The others are drawn by systematic sampling (`choose_exactly`): if
    all scores are known and k is ``N * (floor + (1 - floor) / (beta + 1))``, the probability of
    each is exactly that of `draw_probabilities`. Of more than `SORTED` scores, percentiles are
    those of a histogram; see `draw_in_blocks`.

    Args:
        scores: float32[N], NaN where unknown.
        beta: Exponent, at least 0.
        floor: The minimum probability, in [0, 1).
        count: k, from 0 to N.
        generator: On the CPU.

    Returns:
        float32[N], 1 for the k drawn and 0 for the others.

    >>> scores = torch.tensor([0.1, 5.0, torch.nan, 0.2])
    >>> draw_by_percentile(scores, 8.0, 0.0, 2, torch.Generator().manual_seed(0))
    tensor([0., 1., 1., 0.])
    """
    if len(scores) > SORTED:
        return draw_in_blocks(
            scores, lambda _, sizes: tied_probabilities(sizes, beta, floor), count, generator
        )
    return draw_exactly(scores, lambda s: draw_probabilities(s, beta, floor), count, generator)
