"""Loss weights of examples in a Trainer: from a column of the data, and from the selection."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from siftback.errors import BatchError
from siftback.losses.sequences import IGNORED, Head, align_labels, find_labels

# Of a batch, float32[B] each: the weights of a column, and those of a rule or selector.
EXAMPLE_WEIGHT, SELECTION_WEIGHT = "sift_weight", "sift_factor"


class WeightCollate:
    """Collates examples without a column of weights, and adds them to the batch.

    Args:
        collate: The collate function, which never sees the column.
        column: Name of the column.

    >>> collate = WeightCollate(lambda rows: {"x": torch.tensor([row["x"] for row in rows])}, "w")
    >>> collate([{"x": 1, "w": 0.5}, {"x": 2, "w": 2.0}])
    {'x': tensor([1, 2]), 'sift_weight': tensor([0.5000, 2.0000])}
    """

    def __init__(self, collate: Callable[[list[Any]], Any], column: str) -> None:
        self.function, self.column = collate, column

    def __call__(self, examples: list[Mapping[str, Any]]) -> Any:
        """Returns a batch of examples, with their weights."""
        column = self.column
        missing = [example for example in examples if column not in example]
        if missing:
            raise BatchError(
                f"an example has {', '.join(map(str, missing[0]))} and no {column!r}: give "
                f"each one under weight_column={column!r}"
            )
        values = [example[column] for example in examples]
        try:
            weights = torch.tensor([float(value) for value in values])
        except (TypeError, ValueError):
            weights = torch.tensor([torch.nan])
        if not (weights.isfinite() & (weights >= 0)).all():
            raise BatchError(
                f"weight_column={column!r} has {values}: give each example a finite number, from "
                "0 on"
            )
        batch = self.function(
            [{key: example[key] for key in example if key != column} for example in examples]
        )
        batch[EXAMPLE_WEIGHT] = weights
        return batch


def weighted_losses(losses: Callable[[Any, Any], Tensor], model: Any, batch: Any) -> Tensor:
    """Returns the losses of a batch's rows, times the weights of its examples if it carries any.

    >>> batch = {"x": torch.tensor([1.0, 2.0]), "sift_weight": torch.tensor([0.5, 2.0])}
    >>> weighted_losses(lambda model, batch: model(batch["x"]), torch.square, batch)
    tensor([0.5000, 8.0000])
    """
    if not isinstance(batch, Mapping) or EXAMPLE_WEIGHT not in batch:
        return losses(model, batch)
    unweighted = losses(model, {key: batch[key] for key in batch if key != EXAMPLE_WEIGHT})
    weights: Tensor = batch[EXAMPLE_WEIGHT]
    return unweighted * weights.to(unweighted)


def count_items(head: Head, inputs: Mapping[str, Any]) -> Tensor:
    """Returns int64[B], how many labels of each row have a loss: tokens, or its one label.

    >>> labels = torch.tensor([[1, 2, -100], [1, 2, 3]])
    >>> count_items(Head("tokens", shift=True), {"labels": labels})
    tensor([1, 2])
    """
    if head.kind == "tokens":
        return align_labels(head, inputs)[1].sum(1)
    labels = find_labels(inputs)
    return (labels.reshape(len(labels), -1) != IGNORED).sum(1)


def weighted_mean(
    losses: Tensor, items: Tensor, weights: Tensor, count: Tensor | int | None = None
) -> Tensor:
    """Computes ``sum of w_i n_i l_i / N``, the loss of a Trainer whose examples have weights.

    With all weights 1 it is the Trainer's own loss: the mean over the labels of a step.

    Args:
        losses: float[B], l, the mean loss of each row's labels; NaN for a row without one.
        items: int64[B], n, how many labels each row has.
        weights: float32[B], w.
        count: N, of all batches of a step; by default the sum of ``items``.

    >>> losses, items = torch.tensor([1.0, 3.0]), torch.tensor([1, 1])
    >>> weighted_mean(losses, items, torch.tensor([1.0, 0.5]))
    tensor(1.2500)
    """
    count = items.sum() if count is None else count
    sums = torch.where(items > 0, losses, 0) * items * weights.to(losses)
    return sums.sum() / torch.as_tensor(count, device=losses.device).clamp(min=1)
