"""Nested batches: their rows, concatenation and device. See `reading` for what a batch is."""

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from siftback.batches.structure import (
    ARRAYS,
    Lists,
    children_of,
    columns,
    describe,
    is_column,
    is_named_tuple,
    is_values,
    leaves,
    lists_of,
    without_rows,
)
from siftback.batches.structure import size as size
from siftback.errors import BatchError
from siftback.tensor_arguments import is_dense


def take(batch: Any, rows: Tensor, lists: Lists | None = None) -> Any:
    """Copies rows out of a batch.

    Args:
        batch: A batch of N examples.
        rows: int64[k], positions in [0, N).
        lists: The lists that hold one example per entry, from `read`; by default those of this
            batch by itself.

    Returns:
        A batch of k examples of the same structure. Tensors are copies, so that they do not keep
        the memory of the whole batch.

    Raises:
        BatchError: If the batch cannot be split into examples.

    >>> take((torch.tensor([10, 20, 30]), ["a", "b", "c"]), torch.tensor([2, 0]))
    (tensor([30, 10]), ['c', 'a'])
    """
    on_device: dict[torch.device, Tensor] = {rows.device: rows}
    on_host: list[int] = []

    def rows_of(path: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if leaf.device not in on_device:
                on_device[leaf.device] = rows.to(leaf.device)
            return _take_rows(leaf, on_device[leaf.device])
        # One synchronization with the device, only for batches with parts that are not tensors.
        if not on_host:
            on_host.extend(rows.tolist())
        if isinstance(leaf, np.ndarray):
            return leaf[on_host]
        return type(leaf)(clone(leaf[row]) for row in on_host)

    return _map(rows_of, lists_of(batch) if lists is None else lists, batch)


def _take_rows(leaf: Tensor, rows: Tensor) -> Tensor:
    """Returns rows in the tensor's memory layout, so that a model computes as with the whole."""
    if not is_dense(leaf):
        raise BatchError(
            "a batch has a sparse, nested, quantized or meta tensor, of which no rows can be "
            "taken: make it dense, in the collate function"
        )
    dense = leaf.stride(0) == leaf[0].numel() if len(leaf) else False
    if not dense or leaf.requires_grad:
        return leaf[rows]
    # Several times faster than indexing where the layout is channels_last.
    taken = torch.empty_strided(
        (len(rows), *leaf.shape[1:]), leaf.stride(), dtype=leaf.dtype, device=leaf.device
    )
    return torch.index_select(leaf, 0, rows, out=taken)


def split(batch: Any, at: int, lists: Lists | None = None) -> tuple[Any, Any]:
    """Returns the first ``at`` examples and the others, as views.

    >>> split(torch.tensor([1, 2, 3]), 2)
    (tensor([1, 2]), tensor([3]))

    Args:
        batch: A batch of N examples.
        at: At most N.
        lists: As for `take`.

    Raises:
        BatchError: If the batch cannot be split into examples.
    """
    lists = lists_of(batch) if lists is None else lists
    first = _map(lambda _, leaf: leaf[:at], lists, batch)
    return first, _map(lambda _, leaf: leaf[at:], lists, batch)


def clone(batch: Any) -> Any:
    """Returns a copy that shares no memory with the batch, as far as this is tensors and arrays."""
    return _map_leaves(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else copy.copy(leaf), batch
    )


def concatenate(
    batches: Sequence[Any], pad: Mapping[Any, float] | None = None, lists: Lists | None = None
) -> Any:
    """Joins batches of the same structure; a single one is returned as it is.

    Args:
        batches: At least one.
        pad: For parts whose rows differ in shape, the value that shorter rows are filled with at
            their end: by key of a mapping, position in a tuple or list, or name of a field.
        lists: As for `take`; by default those of the first batch by itself.

    >>> concatenate([(torch.tensor([1]), ["a"]), (torch.tensor([2, 3]), ["b", "c"])])
    (tensor([1, 2, 3]), ['a', 'b', 'c'])
    >>> concatenate([{"ids": torch.ones(1, 2)}, {"ids": torch.ones(1, 3)}], pad={"ids": 0})
    {'ids': tensor([[1., 1., 0.],
            [1., 1., 1.]])}

    Raises:
        BatchError: If the structures differ, or the shapes of rows for which ``pad`` has no value.
    """
    if len(batches) == 1:
        return batches[0]
    values = {
        step: value for key, value in (pad or {}).items() for step in (f"[{key!r}]", f".{key}")
    }

    def join(path: str, *columns: Any) -> Any:
        return _join(path, values.get(path), columns)

    return _map(join, lists_of(batches[0]) if lists is None else lists, *batches)


def shapes(batch: Any, lists: Lists) -> list[Any]:
    """Returns the shape and type of a row of each column: batches of equal ones can be joined."""
    return [
        (path, (tuple(leaf.shape[1:]), leaf.dtype) if isinstance(leaf, ARRAYS) else type(leaf))
        for path, leaf in columns(batch, lists)
    ]


def to_device(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a batch, asynchronously if their memory is pinned.

    An object of another kind moves by its own ``to``, if it has one.
    """

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if leaf.is_meta and device.type != "meta":
                raise BatchError(
                    "a batch has a meta tensor, which has no values: give one with them"
                )
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    return _map_leaves(moved, batch)


def to_device_of(batch: Any, model: nn.Module) -> Any:
    """Moves a batch to the device of a model's first parameter, if it has one."""
    weight = next(model.parameters(), None)
    if weight is None:
        return batch
    if any(
        leaf.device != weight.device if isinstance(leaf, Tensor) else hasattr(leaf, "to")
        for leaf in leaves(batch)
    ):
        return to_device(batch, weight.device)
    return batch


def map_tensors(fn: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Applies a function to each tensor of a batch, keeping its structure.

    >>> map_tensors(torch.neg, {"x": torch.tensor([1, 2]), "name": ["a", "b"]})
    {'x': tensor([-1, -2]), 'name': ['a', 'b']}
    """
    return _map_leaves(lambda leaf: fn(leaf) if isinstance(leaf, Tensor) else leaf, batch)


def tensors(batch: Any) -> list[Tensor]:
    """Returns the tensors of a batch, in the order of its structure."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]


def device(batch: Any) -> torch.device:
    """Returns the device of the batch's first tensor; the CPU if there is none."""
    devices = (leaf.device for leaf in leaves(batch) if isinstance(leaf, Tensor))
    return next(devices, torch.device("cpu"))


def _rebuild(batch: Any, values: list[Any]) -> Any:
    if isinstance(batch, dict | UserDict):
        # A copy keeps attributes besides the items, which a tokenizer's batch has.
        same: Any = copy.copy(batch)
        for key, value in zip(batch, values, strict=True):
            same[key] = value
        return same
    if isinstance(batch, Mapping):  # whose copy may share its items
        return cast(Any, type(batch))(dict(zip(batch, values, strict=True)))
    if is_named_tuple(batch):
        return type(batch)(*values)
    if isinstance(batch, list | tuple):
        return type(batch)(values)
    if not dataclasses.is_dataclass(batch) or isinstance(batch, type):
        raise BatchError(
            f"a batch is a {type(batch).__name__}: give tensors, or a structure of them"
        )
    names = (f.name for f in dataclasses.fields(batch))
    same = copy.copy(batch)
    for name, value in zip(names, values, strict=True):
        # Works for frozen dataclasses, and does not run __init__ again.
        object.__setattr__(same, name, value)
    return same


def _map_leaves(fn: Callable[[Any], Any], batch: Any) -> Any:
    """Applies a function to each part that is no structure, whatever it is, except None."""
    if batch is None:
        return None
    if isinstance(batch, ARRAYS) or is_values(batch) or (children := children_of(batch)) is None:
        return fn(batch)
    return _rebuild(batch, [_map_leaves(fn, child) for child in children.values()])


def _map(fn: Callable[..., Any], lists: Lists, *batches: Any, path: str = "") -> Any:
    """Applies ``fn(path, *parts)`` to the parts of batches that hold a row or entry per example."""
    first = batches[0]
    if all(is_column(batch, path, lists) for batch in batches):
        return fn(path, *batches)
    if any(type(other) is not type(first) for other in batches):
        kinds = ", ".join(describe(batch) for batch in batches)
        raise BatchError(
            f"batches of mismatched structure ({kinds}); give every batch the same one"
        )
    if first is None:
        return None
    families = [children_of(batch) for batch in batches]
    if families[0] is None:
        raise without_rows(first, path)
    if any(family is None or family.keys() != families[0].keys() for family in families):
        keys = " and ".join(str(list(family or ())) for family in families)
        raise BatchError(f"batches of mismatched parts ({keys}); give every batch the same ones")
    values = [
        _map(fn, lists, *(cast(Any, family)[step] for family in families), path=path + step)
        for step in families[0]
    ]
    return _rebuild(first, values)


def _join(path: str, value: float | None, columns: tuple[Any, ...]) -> Any:
    first = columns[0]
    family = next(kind for kind in (Tensor, np.ndarray, type(first)) if isinstance(first, kind))
    if not all(isinstance(leaf, family) for leaf in columns):
        kinds = ", ".join(describe(leaf) for leaf in columns)
        raise BatchError(f"parts of mismatched types ({kinds}); give every batch the same ones")
    if not isinstance(first, ARRAYS):
        return type(first)(value for leaf in columns for value in leaf)
    if value is not None and len({leaf.shape[1:] for leaf in columns}) > 1:
        columns = tuple(_padded(leaf, _longest(columns), value) for leaf in columns)
    try:
        return torch.cat(columns) if isinstance(first, Tensor) else np.concatenate(columns)
    except (RuntimeError, ValueError) as error:
        shapes = ", ".join(describe(leaf) for leaf in columns)
        raise BatchError(
            f"batch{path} has rows of several shapes ({shapes}), which cannot be pooled: pad every "
            "batch to the same shape, or give pool=Pool(batch_size, pad=...), with the value that "
            "fills the shorter ones, or with a function that joins batches"
        ) from error


def _longest(columns: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns the largest size of each dimension of the rows."""
    shapes = [leaf.shape[1:] for leaf in columns]
    if len({len(shape) for shape in shapes}) > 1:
        return tuple(shapes[0])  # does not fit, whatever it is filled with
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _padded(leaf: Any, shape: tuple[int, ...], value: float) -> Any:
    """Returns the column, its rows filled at the end of each dimension."""
    if leaf.ndim != len(shape) + 1:
        return leaf
    sizes = (len(leaf), *shape)
    if isinstance(leaf, Tensor):
        whole: Any = leaf.new_full(sizes, value)
    else:
        whole = np.full(sizes, value, leaf.dtype)
    whole[tuple(slice(size) for size in leaf.shape)] = leaf
    return whole
