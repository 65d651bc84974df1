"""Weights of losses, in place of a selection: nothing is left out, and nothing is saved."""

from collections.abc import Callable

import torch
from torch import Tensor

from siftback.arguments import check_number
from siftback.errors import LossError
from siftback.tensor_arguments import check_tensor


def linupper_weights(losses: Tensor, mask: Tensor | None = None, *, delta: float = 1.0) -> Tensor:
    """Computes weights that rise with the loss up to a point, and stay the same above it.

    With ``h = delta * (2 l - max - min) / (max - min)`` of the batch's losses l, in
    [-delta, delta], ``w = n * softmax(min(h + delta, delta))`` (Sow et al. 2025, LinUpper), so that
    easy examples count less, and very hard ones, which may be noise, no more than the middling.

    Args:
        losses: float[...], of sequences or of tokens; no gradient flows through the weights.
        mask: bool[...], True for those that count; None is all.
        delta: How far weights differ: by a factor of up to ``exp(delta)``. At least 0.

    Returns:
        float32[...], of mean 1 over those that count, and 0 elsewhere.

    Raises:
        ConfigError: If ``delta`` is out of range.
        LossError: If a loss that counts is not finite, or none does, or the mask does not fit.

    >>> linupper_weights(torch.tensor([0.0, 1.0, 2.0]))
    tensor([0.4661, 1.2670, 1.2670])
    """
    check_number("delta", delta, least=0)

    def weigh(losses: Tensor) -> Tensor:
        low, high = losses.min(), losses.max()
        spread = (high - low).clamp(min=torch.finfo(losses.dtype).tiny)
        scaled = delta * (2 * losses - high - low) / spread
        return len(losses) * (scaled + delta).clamp(max=delta).softmax(0)

    return weigh_losses(losses, mask, weigh)


def dft_weights(losses: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes the probability p of each label, ``exp(-loss)``: likely tokens count more.

    Dynamic Fine-Tuning (Wu et al. 2025, equation 9), for losses that are cross-entropies of
    tokens. It is the contrary of selecting what is hard.

    Args:
        losses: float[...]; no gradient flows through the weights.
        mask: bool[...], True for those that count; None is all.

    Returns:
        float32[...] in [0, 1], and 0 elsewhere; not normalised.

    Raises:
        LossError: If a loss that counts is not finite, or none does, or the mask does not fit.

    >>> dft_weights(torch.tensor([0.0, 0.6931]))
    tensor([1.0000, 0.5000])
    """
    return weigh_losses(losses, mask, lambda losses: (-losses).exp())


def inverse_probability_weights(
    losses: Tensor, mask: Tensor | None = None, *, largest: float = 10.0
) -> Tensor:
    """Computes ``1 / p = exp(loss)``, p the probability of each label: unlikely tokens count more.

    The inverse of `dft_weights`. A cap bounds them, and they are scaled to a mean of 1.

    Args:
        losses: float[...], cross-entropies; no gradient flows through the weights.
        mask: bool[...], True for those that count; None is all.
        largest: The cap of 1 / p, before the scaling; at least 1.

    Returns:
        float32[...], of mean 1 over those that count, and 0 elsewhere.

    Raises:
        ConfigError: If ``largest`` is out of range.
        LossError: If a loss that counts is not finite, or none does, or the mask does not fit.

    >>> inverse_probability_weights(torch.tensor([0.0, 0.6931, 99.0]), largest=3.0)
    tensor([0.5000, 1.0000, 1.5000])
    """
    check_number("largest", largest, least=1)

    def weigh(losses: Tensor) -> Tensor:
        weights = losses.exp().clamp(max=largest)
        return weights / weights.mean()

    return weigh_losses(losses, mask, weigh)


def weigh_losses(losses: Tensor, mask: Tensor | None, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns weights of the losses that count, and 0 for the others."""
    losses = losses.detach().float()
    counted = torch.ones_like(losses, dtype=torch.bool) if mask is None else mask
    check_tensor("mask", counted, "bool", *losses.shape, error=LossError)
    values = losses[counted]
    if not len(values) or not values.isfinite().all():
        wrong = int((~values.isfinite()).sum())
        raise LossError(
            f"of {losses.numel()} losses {len(values)} count, and {wrong} of these are not "
            "finite: mask those out, and skip a batch in which none counts"
        )
    weights = torch.zeros_like(losses)
    weights[counted] = weigh(values)
    return weights
