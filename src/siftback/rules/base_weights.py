"""Base weights of examples, which multiply the probabilities that a rule draws them with."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.arguments import format_value
from siftback.errors import ConfigError
from siftback.tensor_arguments import is_dense

# The draws tell such weights apart; of a range without bounds the smallest would be 0 by rounding.
_NARROWEST = 1e-9


def resolve_weights(weights: Any, balance: Any) -> Any:
    """Returns the base weights that the arguments ``weights=`` and ``balance=`` of a rule mean.

    The weight of an example of class c, of which there are n_c examples, is ``1 / n_c``: the sum
    of the weights of a class is the same for all of them.

    Args:
        weights: float[N], as for `normalize_weights`.
        balance: int[N], the label of each example; a tensor, an array or a list.

    Returns:
        ``weights``, or float64[N] of ``balance``; None if neither is given.

    Raises:
        ConfigError: If both are given, or ``balance`` is not as above.

    >>> resolve_weights(None, [7, 7, 7, 7, 2])
    tensor([0.2500, 0.2500, 0.2500, 0.2500, 1.0000], dtype=torch.float64)
    """
    if weights is not None and balance is not None:
        raise ConfigError(
            "weights= and balance= given: give one of them, as balance= computes weights of labels"
        )
    if balance is None:
        return weights
    labels = labels_tensor("balance", balance)
    _, classes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return 1.0 / counts[classes].double()


def labels_tensor(name: str, labels: Any) -> Tensor:
    """Returns integers, one per example, as a tensor on the CPU, after checking them.

    Args:
        name: The argument's.
        labels: int[N]; a tensor, an array or a list.

    Raises:
        ConfigError: If they are not.

    >>> labels_tensor("labels", [3, 1])
    tensor([3, 1])
    """
    vector = _as_vector(labels)
    if vector is None or vector.is_floating_point() or vector.dtype == torch.bool:
        raise ConfigError(f"{name}={format_value(labels)}: give int[N], the label of each example")
    return vector


def normalize_weights(weights: Any) -> Tensor:
    """Returns weights as float64[N] of mean 1, after checking them.

    Args:
        weights: float[N], finite and above 0, of any scale, the largest at most 10^9 times the
            smallest; a tensor, an array or a list.

    Raises:
        ConfigError: If they are not.

    >>> normalize_weights([1, 2, 3])
    tensor([0.5000, 1.0000, 1.5000], dtype=torch.float64)
    """
    values = _as_vector(weights)
    if values is None or values.dtype == torch.bool:
        raise ConfigError(f"weights={format_value(weights)}: give float[N], one for each example")
    values = values.double()
    bad = (~(values.isfinite() & (values > 0))).nonzero()
    if len(bad):
        row = int(bad[0])
        raise ConfigError(
            f"weights[{row}] is {float(values[row])}: give finite weights above 0. Leave out what "
            "is never to be drawn with a Subset, or a SubsetRandomSampler"
        )
    low, high = (float(bound) for bound in values.aminmax())
    if low < _NARROWEST * high:
        raise ConfigError(
            f"weights from {low:g} to {high:g}: give weights of which the largest is at most "
            f"{1 / _NARROWEST:g} times the smallest"
        )
    values = values / high  # first, as a sum of the largest floats is infinite
    return values / values.mean()


def _as_vector(values: Any) -> Tensor | None:
    """Returns real numbers as a tensor on the CPU; None where they are not a row of those."""
    try:
        # By NumPy, which takes a list of floats in double precision.
        vector = values if isinstance(values, Tensor) else torch.tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError):
        return None
    fits = is_dense(vector) and vector.ndim == 1 and len(vector) and not vector.is_complex()
    return vector.detach().cpu() if fits else None
