"""Probabilities by the loss over the mean loss, and exactly k examples drawn by them."""

import torch
from torch import Tensor

from siftback.rules.exact_draw import drawn_exactly


def ratio_probabilities(losses: Tensor, floor: float) -> Tensor:
    """Probabilities by the loss over the mean of all: ``max(floor, min(1, loss / mean))``.

    A loss that is not finite is not part of the mean, and its example is certain to be drawn. If
    the mean is not above 0, all are.

    Args:
        losses: float[N].
        floor: The minimum probability, in [0, 1).

    Returns:
        float64[N].

    >>> ratio_probabilities(torch.tensor([0.0, 0.5, 0.5, 3.0]), floor=0.1)
    tensor([0.1000, 0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """
    losses = losses.double()
    finite = losses.isfinite()
    mean = losses[finite].mean()
    if not mean > 0:
        return torch.ones_like(losses)
    return (losses / mean).clamp(floor, 1).where(finite, 1.0)


def drawn_by_ratio(losses: Tensor, floor: float, count: int, generator: torch.Generator) -> Tensor:
    """Draws exactly k examples, with probabilities in proportion to `ratio_probabilities`.

    Examples without a loss are kept, as far as there are not more than k of them. The probability
    of the others is ``min(1, c * max(floor, min(1, loss / mean)))``, with c such that exactly k are
    drawn; see `drawn_exactly`.

    Args:
        losses: float32[N], NaN where unknown.
        floor: The minimum probability before it is scaled by c, in [0, 1).
        count: k, from 0 to N.
        generator: On the CPU.

    Returns:
        float32[N], 1 for the k drawn and 0 for the others.

    >>> losses = torch.tensor([0.0, 5.0, torch.nan, 0.0])
    >>> drawn_by_ratio(losses, 0.0, 2, torch.Generator().manual_seed(0))
    tensor([0., 1., 1., 0.])
    """
    return drawn_exactly(losses, lambda known: ratio_probabilities(known, floor), count, generator)
