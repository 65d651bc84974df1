"""The cross-entropy of a language model's head, without the logits of tokens that are left out."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from siftback.arguments import check_integer, format_value
from siftback.errors import BatchError, ConfigError, LossError
from siftback.losses.sequences import IGNORED
from siftback.tensor_arguments import check_within

_LOGITS = 1 << 24  # of a chunk, where the user names no size: 64 MiB in float32


def chunked_cross_entropy(
    hidden: Tensor,
    head: nn.Linear | Tensor,
    labels: Tensor,
    *,
    weights: Tensor | None = None,
    rows: int | None = None,
) -> Tensor:
    """Computes the mean cross-entropy of the tokens that have a label, from the inputs of the head.

    As ``F.cross_entropy(head(hidden).float().flatten(0, -2), labels.flatten())``, but a token whose
    label is -100 is left out **before** the product with the head, and the rest are taken a chunk
    at a time, so that at no time there are the logits of more than ``rows`` tokens. The gradient is
    computed in the forward: three products of [n, D] and [V, D] for n tokens, as autograd makes,
    and none for those left out. Selecting tokens (`InBatch` on ``[B, T]``) saves this and nothing
    else of a step: the layers below see every token, as the kept ones attend to the others.

    Under autocast the products are in its dtype, and the losses in float32; of float16 with a
    ``GradScaler``, as usual. The result can be differentiated once.

    Args:
        hidden: float[..., D], what the head is applied to.
        head: The head, or its weight alone, float[V, D], such as that of tied embeddings.
        labels: int64[...], the class of each token in [0, V), or -100. Position t is compared with
            the logits at t: shift labels before.
        weights: float[...], a factor of each token's loss; not differentiated. None is 1.
        rows: Tokens in a chunk; None takes as many as have 2^24 logits.

    Returns:
        float32 scalar, ``(weights * losses).sum() / n`` over the n tokens with a label.

    Raises:
        BatchError: If no token has a label.
        ConfigError: If the head is neither, or a ``Linear`` that has hooks or another forward, as
            of an adapter, or ``rows`` is not an integer, at least 1.
        LossError: If shapes do not fit, or a label is not a class.

    >>> hidden = torch.tensor([[[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]], requires_grad=True)
    >>> head = torch.eye(2)
    >>> chunked_cross_entropy(hidden, head, torch.tensor([[1, -100, 0]]))
    tensor(0.5032, grad_fn=<DivBackward0>)
    """
    weight, bias, positions, rows = check_tokens(hidden, head, labels, weights, rows)
    if not len(positions):
        raise BatchError(
            f"labels of shape {list(labels.shape)} are all {IGNORED}: there is no token to compute "
            "a loss of; skip this batch"
        )
    # Gradients are divided by the power of two, which is exact, once the factor of a GradScaler is
    # known: for float16 those of a mean are too small, and sums of many tokens may be too large.
    tokens = len(positions)
    power = 1 << (tokens // max(1, min(tokens, rows) // 256)).bit_length()
    scale = torch.full_like(positions, power / tokens, dtype=torch.float32)
    if weights is not None:
        scale = scale * weights.detach().flatten()[positions].float()
    inputs = hidden.flatten(0, -2)
    if len(positions) < len(inputs):
        inputs = inputs[positions]
    loss: Tensor = ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        inputs, weight, bias, labels.flatten()[positions], scale, rows
    )
    return loss / power


@torch.no_grad()
def chunked_token_losses(
    hidden: Tensor, head: nn.Linear | Tensor, labels: Tensor, *, rows: int | None = None
) -> tuple[Tensor, Tensor]:
    """Computes the cross-entropy of each token, to select by, without all logits at once.

    Args:
        hidden: As for `chunked_cross_entropy`.
        head: As for `chunked_cross_entropy`.
        labels: As for `chunked_cross_entropy`.
        rows: As for `chunked_cross_entropy`.

    Returns:
        float32[...], 0 where there is no label, and bool[...], where there is one: what
        `InBatch.select` takes. No gradient flows through them.

    Raises:
        ConfigError: As for `chunked_cross_entropy`.
        LossError: As for `chunked_cross_entropy`.

    >>> hidden = torch.tensor([[[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]])
    >>> chunked_token_losses(hidden, torch.eye(2), torch.tensor([[1, -100, 0]]))
    (tensor([[0.3133, 0.0000, 0.6931]]), tensor([[ True, False,  True]]))
    """
    weight, bias, positions, rows = check_tokens(hidden, head, labels, None, rows)
    losses = torch.zeros(labels.numel(), device=hidden.device, dtype=torch.float32)
    inputs, classes = hidden.flatten(0, -2), labels.flatten()
    for chunk in torch.split(positions, rows):
        logits = F.linear(inputs[chunk], weight, bias).float()
        losses[chunk] = F.cross_entropy(logits, classes[chunk], reduction="none")
    return losses.view(labels.shape), labels != IGNORED


class ChunkedCrossEntropy(torch.autograd.Function):
    """``(scale * losses).sum()``, whose gradient is computed with it, a chunk at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        scale: Tensor,
        rows: int,
    ) -> Tensor:
        """Returns the loss, and computes the gradients of the inputs, the weight and the bias."""
        needs_inputs, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        of_inputs = inputs.new_empty(inputs.shape if needs_inputs else 0)
        # Sums over chunks, which would be rounded at each in half precision.
        of_weight = inputs.new_zeros(weight.shape if needs_weight else 0, dtype=torch.float32)
        of_bias = inputs.new_zeros(len(weight) if needs_bias else 0, dtype=torch.float32)
        total = torch.zeros((), device=inputs.device, dtype=torch.float32)
        for start in range(0, len(inputs), rows):
            chunk = slice(start, start + rows)
            product = F.linear(inputs[chunk], weight, bias)
            logits, right = product.float(), labels[chunk, None]
            log_sums = logits.logsumexp(1)
            errors = (logits - log_sums[:, None]).exp_()
            # No product of vectors, which autocast rounds.
            total += ((log_sums - product.gather(1, right).squeeze(1)) * scale[chunk]).sum()
            if not (needs_inputs or needs_weight or needs_bias):
                continue
            errors.scatter_add_(1, right, errors.new_full((1, 1), -1.0).expand_as(right))
            errors *= scale[chunk, None]
            cast = errors.to(product.dtype)
            if needs_inputs:
                of_inputs[chunk] = cast @ weight
            if needs_weight:
                of_weight += cast.T @ inputs[chunk]
            if needs_bias:
                of_bias += errors.sum(0)
        ctx.gradients = of_inputs, of_weight.to(weight), of_bias.to(weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients, multiplied by that of the loss."""
        pairs = zip(ctx.gradients, ctx.needs_input_grad, strict=False)
        products = [value * gradient.to(value) if needed else None for value, needed in pairs]
        return (*products, None, None, None)


def check_tokens(
    hidden: Tensor,
    head: nn.Linear | Tensor,
    labels: Tensor,
    weights: Tensor | None,
    rows: int | None,
) -> tuple[Tensor, Tensor | None, Tensor, int]:
    """Checks the arguments of `chunked_cross_entropy`.

    Returns:
        The weight and the bias of the head, int64[n], the positions of the tokens with a label,
        and the number of rows of a chunk.
    """
    weight, bias = (head.weight, head.bias) if isinstance(head, nn.Linear) else (head, None)
    # An adapter adds to the product, and hooks make the weight anew, as those of spectral_norm.
    is_changed = isinstance(head, nn.Linear) and (
        getattr(head.forward, "__func__", None) is not nn.Linear.forward
        or head._forward_hooks
        or head._forward_pre_hooks
    )
    if is_changed or not isinstance(weight, Tensor) or weight.ndim != 2:
        raise ConfigError(
            f"head={format_value(head)}: give a torch.nn.Linear without hooks or a forward of "
            "its own, as pruning and adapters have, or its weight of shape [V, D] where the logits "
            "are hidden @ weight.T"
        )
    if hidden.shape[:-1] != labels.shape or hidden.shape[-1] != weight.shape[1]:
        raise LossError(
            f"hidden of shape {list(hidden.shape)}, labels of shape {list(labels.shape)} and a "
            f"head of shape {list(weight.shape)}: give [..., D], [...] and [V, D]"
        )
    if weights is not None and weights.shape != labels.shape:
        raise LossError(
            f"weights of shape {list(weights.shape)} for labels of shape {list(labels.shape)}: "
            "give one factor per token"
        )
    positions = (labels != IGNORED).flatten().nonzero().squeeze(1)
    advice = f"give classes of the head, or {IGNORED} for tokens to leave out"
    check_within("labels", labels.flatten()[positions], len(weight), advice, LossError)
    rows = max(_LOGITS // len(weight), 1) if rows is None else rows
    return weight, bias, positions, check_integer("rows", rows, 1)
