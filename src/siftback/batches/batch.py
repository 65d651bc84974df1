"""A batch with what belongs to its examples."""

import copy
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import format_value
from siftback.batches import tree
from siftback.batches.tree import Lists
from siftback.errors import BatchError, ConfigError
from siftback.host_reads import move

INDEX, WEIGHT = "sift_index", "sift_weight"

Pad = Mapping[Any, float] | Callable[[list[Any]], Any]
"""The way batches of several shapes are joined: values by column, or a function."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch with what belongs to its examples; made once, as the wrapped loader gives it.

    Attributes:
        data: The batch, as training gets it.
        size: N, its number of examples.
        device: That of its first tensor; the CPU without one.
        indices: int64[N], the dataset indices of its examples; None where unknown. On the CPU, or
            on a device on which examples were selected, for which the host need not wait.
        weights: float32[N], their loss weights; None where all are 1.
        scores: float32[N], their scores, where these came with the batch.
        lists: Which lists in it hold one example per entry, see `read_structure`; None where it
            cannot be split into examples.
        requested: The indices that its sampler asked for, of which a collate function may have left
            out or repeated some, or changed the order; none without such a sampler.
    """

    data: Any
    size: int
    device: torch.device
    indices: Tensor | None = None
    weights: Tensor | None = None
    scores: Tensor | None = None
    lists: Lists | None = None
    requested: Sequence[Any] = ()

    def keep(self, rows: Tensor, weights: Tensor) -> "Batch":
        """Returns a copy of some rows, int64[k], with their weights, float32[k]; itself of all.

        Raises:
            ConfigError: If they are not those of a selector, such as a mask.
        """
        if rows.dtype != torch.int64 or rows.ndim != 1 or rows.shape != weights.shape:
            raise ConfigError(
                f"a selector chose positions={format_value(rows)} with weights="
                f"{format_value(weights)}: give Selection(positions, weights), int64[k] and "
                "float32[k], such as mask.nonzero().squeeze(1) of a mask"
            )
        weights, indices = move(weights, self.device), self.indices
        # In another order, or with one twice, they are not all; for a device the host would wait.
        if len(rows) == self.size and (not rows.is_cpu or torch.arange(self.size).equal(rows)):
            return replace(self, weights=weights)
        if indices is not None:
            indices = move(indices, rows.device)[rows]
        data = tree.take(self.data, rows, self.lists)
        return Batch(data, len(rows), self.device, indices, weights, lists=self.lists)

    def to_device_of(self, model: nn.Module) -> "Batch":
        """Returns the batch on the device of a model's first parameter, if it has one."""
        weight = next(model.parameters(), None)
        if weight is None:
            return self
        if any(
            leaf.device != weight.device if isinstance(leaf, Tensor) else hasattr(leaf, "to")
            for leaf in tree.leaves(self.data)
        ):
            data = tree.to_device(self.data, weight.device)
            return replace(self, data=data, device=tree.device(data))
        return self

    def loss_weights(self) -> Tensor:
        """Returns float32[N], the loss weights of its examples, on the device of its data."""
        if self.weights is None:
            return torch.ones(self.size, device=self.device, dtype=torch.float32)
        return move(self.weights, self.device)

    def split(self, count: int) -> tuple["Batch", "Batch"]:
        """Returns the first ``count`` examples and the others, as views."""
        data = tree.split(self.data, count, self.lists)
        columns = tree.split((self.indices, self.weights), count, frozenset())
        sizes = count, self.size - count
        first, last = (
            Batch(half, size, self.device, indices, weights, lists=self.lists)
            for half, size, (indices, weights) in zip(data, sizes, columns, strict=True)
        )
        return first, last

    def clone(self) -> "Batch":
        """Returns a copy that shares no memory with this batch."""
        data, indices, weights = tree.clone((self.data, self.indices, self.weights))
        return Batch(data, self.size, self.device, indices, weights, lists=self.lists)

    def with_columns(self, weights: Tensor) -> Any:
        """Returns the data with indices and weights: two keys of a dict, or elements of a tuple.

        Args:
            weights: float32[N], the loss weights. Unknown indices are -1.

        Raises:
            BatchError: If the data is neither, or a list of examples, or already has such a key.

        >>> cpu, index = torch.device("cpu"), torch.tensor([7])
        >>> batch = Batch({"x": torch.zeros(1)}, 1, cpu, index, lists=frozenset())
        >>> batch.with_columns(torch.ones(1))
        {'x': tensor([0.]), 'sift_index': tensor([7]), 'sift_weight': tensor([1.])}
        """
        data, indices, weights = self.data, self.indices, weights.clone()
        # Copies, as losses are matched with those of this batch, whatever a loop does to them.
        unknown = torch.full_like(weights, -1, dtype=torch.int64)
        indices = unknown if indices is None else indices.clone()
        if isinstance(data, dict | UserDict):
            for key in (INDEX, WEIGHT):
                if key in data:
                    raise BatchError(f"the batch already has a key {key!r}: rename it")
            extended: Any = copy.copy(data)
            extended[INDEX], extended[WEIGHT] = indices, weights
            return extended
        is_list = "" in (self.lists or ())
        if type(data) in (tuple, list) and not is_list:
            return type(data)([*data, indices, weights])
        raise BatchError(
            "attach=True adds index and weight to a dict, or to a tuple or list of parts, and the "
            f"batch is a {type(data).__name__}{' of its examples' if is_list else ''}: have the "
            "collate function make one of them"
        )
