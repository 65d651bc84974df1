"""The cross-entropy of a language model's head, without the logits of tokens that are left out."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from siftback.arguments import check_integer
from siftback.errors import BatchError, ConfigError, LossError
from siftback.losses.sequences import IGNORED

_LOGITS = 1 << 24  # of a chunk, where the user names no size: 64 MiB in float32


def chunked_cross_entropy(
    hidden: Tensor,
    head: nn.Linear | Tensor,
    labels: Tensor,
    *,
    weights: Tensor | None = None,
    rows: int | None = None,
) -> Tensor:
    """The mean cross-entropy of the tokens that have a label, from the inputs of the head.

    As ``F.cross_entropy(head(hidden).float().flatten(0, -2), labels.flatten())``, but a token whose
    label is -100 is left out **before** the product with the head, and the rest are taken a chunk
    at a time, so that at no time there are the logits of more than ``rows`` tokens. The gradient is
    computed in the forward: three products of [n, D] and [V, D] for n tokens, as autograd makes,
    and none for those left out. Selecting tokens (`InBatch` on ``[B, T]``) saves this and nothing
    else of a step: the layers below see every token, as the kept ones attend to the others.

    Under autocast the products are in its dtype, and the losses in float32. The result can be
    differentiated once.

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
        ConfigError: If the head is neither, or ``rows`` is not an integer, at least 1.
        LossError: If shapes do not fit, or a label is not a class.

    >>> hidden = torch.tensor([[[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]], requires_grad=True)
    >>> head = torch.eye(2)
    >>> chunked_cross_entropy(hidden, head, torch.tensor([[1, -100, 0]]))
    tensor(0.5032, grad_fn=<_ChunkedBackward>)
    """
    weight, bias = _head(head)
    _check_shapes(hidden, weight, labels, weights)
    kept = (labels != IGNORED).flatten().nonzero().squeeze(1)
    if not len(kept):
        raise BatchError(
            f"labels of shape {list(labels.shape)} are all {IGNORED}: there is no token to compute "
            "a loss of; skip this batch"
        )
    labels = labels.flatten()[kept]
    _check_labels(labels, len(weight))
    scale = torch.full((len(kept),), 1 / len(kept), device=hidden.device, dtype=torch.float32)
    if weights is not None:
        scale = scale * weights.detach().flatten()[kept].float()
    inputs = hidden.flatten(0, -2)
    if len(kept) < len(inputs):
        inputs = inputs[kept]
    loss: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        inputs, weight, bias, labels, scale, _rows(rows, weight)
    )
    return loss


@torch.no_grad()
def chunked_token_losses(
    hidden: Tensor, head: nn.Linear | Tensor, labels: Tensor, *, rows: int | None = None
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each token, to select by, without the logits of all of them at once.

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
    weight, bias = _head(head)
    _check_shapes(hidden, weight, labels, None)
    mask = labels != IGNORED
    kept = mask.flatten().nonzero().squeeze(1)
    _check_labels(labels.flatten()[kept], len(weight))
    losses = torch.zeros(labels.numel(), device=hidden.device, dtype=torch.float32)
    inputs, labels = hidden.flatten(0, -2), labels.flatten()
    for part in torch.split(kept, _rows(rows, weight)):
        logits = F.linear(inputs[part], weight, bias).float()
        losses[part] = F.cross_entropy(logits, labels[part], reduction="none")
    return losses.view(mask.shape), mask


class _Chunked(torch.autograd.Function):
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
        wanted = ctx.needs_input_grad[:3]
        of_inputs = torch.empty_like(inputs) if wanted[0] else None
        # Sums over chunks, which would be rounded at each in half precision.
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        of_bias = None
        if bias is not None and wanted[2]:
            of_bias = torch.zeros_like(bias, dtype=torch.float32)
        total = torch.zeros((), device=inputs.device, dtype=torch.float32)
        for start in range(0, len(inputs), rows):
            part = slice(start, start + rows)
            product = F.linear(inputs[part], weight, bias)
            log_sums, errors = _softmax(product)
            right = labels[part, None]
            losses = log_sums - product.gather(1, right).squeeze(1).float()
            total += losses @ scale[part]
            if not any(wanted):
                continue
            errors.scatter_add_(1, right, errors.new_full((1, 1), -1.0).expand_as(right))
            errors *= scale[part, None]
            cast = errors.to(product.dtype)
            if of_inputs is not None:
                of_inputs[part] = cast @ weight
            if of_weight is not None:
                of_weight += cast.T @ inputs[part]
            if of_bias is not None:
                of_bias += errors.sum(0)
        found = of_inputs, of_weight, of_bias
        ctx.found = [
            None if part is None else part.to(of)
            for part, of in zip(found, (inputs, weight, bias), strict=True)
        ]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        found = [None if part is None else part * gradient.to(part) for part in ctx.found]
        return (*found, None, None, None)


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """float32[n], the logarithm of the sum of the exponentials, and float32[n, V], the softmax."""
    logits = logits.float()
    log_sums = logits.logsumexp(1)
    return log_sums, (logits - log_sums[:, None]).exp_()


def _head(head: nn.Linear | Tensor) -> tuple[Tensor, Tensor | None]:
    if isinstance(head, nn.Linear):
        return head.weight, head.bias
    if isinstance(head, Tensor) and head.ndim == 2:
        return head, None
    given = f"a tensor of shape {list(head.shape)}" if isinstance(head, Tensor) else repr(head)
    raise ConfigError(f"head={given}: give a torch.nn.Linear, or its weight of shape [V, D]")


def _rows(rows: int | None, weight: Tensor) -> int:
    return max(_LOGITS // len(weight), 1) if rows is None else check_integer("rows", rows, 1)


def _check_shapes(hidden: Tensor, weight: Tensor, labels: Tensor, weights: Tensor | None) -> None:
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


def _check_labels(labels: Tensor, classes: int) -> None:
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise LossError(
            f"labels from {int(labels.min())} to {int(labels.max())} for {classes} classes: give "
            f"classes from 0 to {classes - 1}, or {IGNORED} for tokens to leave out"
        )
