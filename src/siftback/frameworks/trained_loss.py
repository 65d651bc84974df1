"""Whether the loss that is trained on ranks the examples as the losses that selection goes by."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

_SCALE = 2.0**10  # keeps the gradient of a mean over many tokens representable in float16
_FIRST = 8  # steps that are all checked
_BATCHES = 4  # of a few rows, by which a term of the examples is told from a constant


class LossPair(NamedTuple):
    """The loss of a step, and those of its examples.

    Attributes:
        trained: The loss that is trained on, a scalar, before its backward.
        ranked: The sum of the losses that selection goes by, or their mean.
        outputs: What the step computed its loss from, such as the logits, or its edge in the graph.
        gradient: That of ``ranked`` at the outputs, or at those of the first rows alone.
        scale: What gradients at the outputs are multiplied with before they are compared.
    """

    trained: Tensor
    ranked: Tensor
    outputs: Tensor | GradientEdge
    gradient: Tensor
    scale: Tensor | float = 1.0


class CheckTimes:
    """Says which steps to check: the first eight, and then 16, 32, 64 and so on.

    A first batch may have no example of a class that has another weight, and a term that anneals
    in is 0 in the first step. A check of every step would have the host wait for the device.

    >>> times, checked = CheckTimes(), []
    >>> for step in range(1, 50):
    ...     if times.is_due():
    ...         checked.append(step)
    ...         times.reset()
    >>> checked
    [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
    """

    def __init__(self) -> None:
        self._steps, self._next = 0, 1

    def is_due(self) -> bool:
        """Counts a step, and returns whether to check it; all are due until one was checked."""
        self._steps += 1
        return self._steps >= self._next

    def reset(self) -> None:
        """Notes that the step was checked."""
        self._next = self._steps + 1 if self._steps < _FIRST else 2 * self._steps


def ranks_alike(
    pair: LossPair,
    count: int,
    on_rows: Callable[[Tensor], LossPair] | None = None,
    *,
    has_batch_term: bool = False,
) -> bool:
    """Returns whether a step trains on ``a * losses.mean() + b``, with a > 0 and a constant b.

    Such a loss prefers the same examples as the losses: a is the ratio of the two gradients, if it
    is the same for the outputs of all examples, and b whatever else the loss has, such as a penalty
    of the weights. If b is not 0, the step is computed for a few rows at a time: where b differs
    between them it is of the examples, such as the divergence of each example's code.

    Args:
        pair: Of the step.
        count: Examples of the batch.
        on_rows: Computes the same step, without side effects, for some rows, int64[n]; None where
            it cannot be, and then a loss with another term is not known to rank alike.
        has_batch_term: Whether the loss is known to have another term that is of no example.

    Returns:
        True also where nothing can be compared, as the losses are 0 or not finite.

    >>> outputs = torch.randn(4, requires_grad=True)
    >>> losses, weights = outputs.square(), torch.tensor([1.0, 1.0, 1.0, 100.0])
    >>> (gradient,) = torch.autograd.grad(losses.mean(), outputs, retain_graph=True)
    >>> ranks_alike(LossPair(losses.mean() / 2, losses.mean(), outputs, gradient), 4)
    True
    >>> ranks_alike(LossPair((losses * weights).mean(), losses.mean(), outputs, gradient), 4)
    False
    """
    trained = abs(float(pair.trained.detach()))
    if not math.isfinite(trained) or not has_losses(pair):
        return True
    term = find_constant(pair)
    if term is None or has_batch_term or abs(term.value) <= max(1e-3 * trained, 4 * term.error):
        return term is not None
    if on_rows is None:
        return False
    size = 2 if count >= 2 * _BATCHES else 1
    rows = torch.split(torch.arange(min(count, size * _BATCHES)), size)
    pairs = [pair for pair in map(on_rows, rows) if has_losses(pair)]
    terms = [term for term in map(find_constant, pairs) if term is not None]
    if len(terms) < max(len(pairs), 2):
        return False
    values = [term.value for term in terms]
    error = 2 * max(term.error for term in terms)
    return max(values) - min(values) <= 1e-2 * max(map(abs, values)) + error


def has_losses(pair: LossPair) -> bool:
    """Returns whether there is any loss to compare with: learned examples have none."""
    gradient = pair.gradient * pair.scale
    return bool(gradient.isfinite().all()) and bool(gradient.any())


class Constant(NamedTuple):
    """The b of ``trained = a * ranked + b``, and how far it may be off by rounding."""

    value: float
    error: float


def find_constant(pair: LossPair) -> Constant | None:
    """Computes the term of a loss besides its examples'; None where no a > 0 fits the outputs."""
    if not pair.trained.requires_grad:
        return None
    scale = torch.full_like(pair.trained, _SCALE)
    (gradient,) = torch.autograd.grad(
        pair.trained, pair.outputs, scale, retain_graph=True, allow_unused=True
    )
    if gradient is None:
        return None
    is_half = torch.finfo(gradient.dtype).bits < 32
    ranked = (pair.gradient * pair.scale).float()
    # Of the rows that both are of; the others' gradient is as large as the outputs themselves.
    trained = (gradient[: len(ranked)] if ranked.ndim else gradient).float() * pair.scale / _SCALE
    slope = float((trained * ranked).sum() / ranked.square().sum())
    apart = (trained - slope * ranked).norm()
    if not slope > 0 or apart > (3e-2 if is_half else 1e-2) * trained.norm():
        return None
    value = float(pair.trained.detach())
    error = (5e-3 if is_half else 1e-5) * abs(value) + 1e-6
    return Constant(value - slope * float(pair.ranked.detach()), error)
