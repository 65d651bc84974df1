"""Batches that carry the index and the weight of their examples."""

import copy
from collections import UserDict
from typing import Any

from torch import Tensor

from siftback.errors import BatchError

INDEX, WEIGHT = "sift_index", "sift_weight"


def attached(batch: Any, indices: Tensor | None, weights: Tensor, *, is_list: bool = False) -> Any:
    """Adds indices and weights to a batch: two keys of a dict, or elements of a tuple or list.

    Args:
        batch: A batch of b examples; it is not changed.
        indices: int64[b], the dataset indices; None gives -1 for all.
        weights: float32[b], the loss weights.
        is_list: Whether the batch is a list or tuple of its examples.

    Raises:
        BatchError: If the batch is none of these, a list of examples, or already has such a key.

    >>> import torch
    >>> attached({"x": torch.zeros(1)}, torch.tensor([7]), torch.ones(1))
    {'x': tensor([0.]), 'sift_index': tensor([7]), 'sift_weight': tensor([1.])}
    """
    if indices is None:
        indices = weights.new_full(weights.shape, -1).long()
    if isinstance(batch, dict | UserDict):
        taken = [key for key in (INDEX, WEIGHT) if key in batch]
        if taken:
            raise BatchError(f"the batch already has a key {taken[0]!r}: rename it")
        same: Any = copy.copy(batch)
        same[INDEX], same[WEIGHT] = indices, weights
        return same
    if type(batch) in (tuple, list) and not is_list:
        return type(batch)([*batch, indices, weights])
    of = " of its examples" if is_list else ""
    raise BatchError(
        f"attach=True adds index and weight to a dict, or to a tuple or list of parts, and the "
        f"batch is a {type(batch).__name__}{of}: have the collate function make one of them"
    )
