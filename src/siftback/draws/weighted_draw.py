"""Probabilities of draws with base weights, and the loss weights that undo the bias of a draw."""

from collections.abc import Callable

import torch
from torch import Tensor

from siftback.draws.ratio_draw import ratio_probabilities
from siftback.selectors.sampling import inclusion_probabilities


def exact_probabilities(
    scores: Tensor, proportions: Callable[[Tensor], Tensor], base: Tensor, count: int
) -> Tensor:
    """Computes the probability of each example to be among the k drawn, with base weights.

    With b the base weight of an example and p the proportion of its score::

        pi = min(1, c * b * p),    with c such that the sum of pi is k

    Examples without a score are certain; if there are more than k of them, k of those are drawn,
    with ``pi = min(1, c * b)``.

    Args:
        scores: float32[N], NaN where unknown.
        proportions: From the known scores, float32[n], to float64[n], at least 0.
        base: float64[N], above 0, about 1.
        count: k, from 0 to N.

    Returns:
        float64[N], whose sum is k.

    >>> base = torch.tensor([1.0, 1.0, 2.0, 4.0]).double()
    >>> exact_probabilities(torch.tensor([1.0, 4.0, 2.0, 1.0]), torch.Tensor.double, base, 2)
    tensor([0.1538, 0.6154, 0.6154, 0.6154], dtype=torch.float64)
    """
    unknown = scores.isnan()
    new, known = int(unknown.sum()), ~unknown
    if new < count:
        probabilities = unknown.double()
        sizes = base[known] * proportions(scores[known])
        probabilities[known] = inclusion_probabilities(sizes, count - new).double()
        return probabilities
    probabilities = torch.zeros_like(base)
    if count:
        probabilities[unknown] = inclusion_probabilities(base[unknown], count).double()
    return probabilities


def independent_probabilities(losses: Tensor, floor: float, base: Tensor) -> Tensor:
    """Computes the probability of each example that is drawn independently, with base weights.

    With b the base weight of an example::

        pi = min(1, b / mean(b) * max(floor, min(1, loss / mean loss)))

    An example without a loss is certain.

    Args:
        losses: float32[N], NaN where unknown.
        floor: The minimum probability before it is weighted, in [0, 1).
        base: float64[N], above 0.

    Returns:
        float64[N].

    >>> base = torch.tensor([1.0, 1.0, 4.0, 2.0])
    >>> independent_probabilities(torch.tensor([1.0, 3.0, 0.5, torch.nan]), 0.1, base)
    tensor([0.3333, 0.5000, 0.6667, 1.0000], dtype=torch.float64)
    """
    probabilities = ratio_probabilities(losses, floor) * (base / base.mean())
    return probabilities.clamp(max=1.0).masked_fill(losses.isnan(), 1.0)


def unbiased_weights(probabilities: Tensor, base: Tensor) -> Tensor:
    """Computes loss weights by which the mean over a draw estimates the base weights' mean.

    With pi the probability of an example and b its base weight::

        v = sum(pi) / sum(b) * b / pi

    so that the expectation of ``sum of v * loss over the drawn / sum(pi)`` is
    ``sum(b * loss) / sum(b)`` over all examples (Horvitz and Thompson 1952).

    Args:
        probabilities: float64[N], above 0.
        base: float64[N], above 0.

    Returns:
        float32[N].

    >>> unbiased_weights(torch.tensor([1.0, 0.25, 0.25]).double(), torch.ones(3).double())
    tensor([0.5000, 2.0000, 2.0000])
    """
    return (probabilities.sum() / base.sum() * base / probabilities).float()
