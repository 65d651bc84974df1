"""Nested batches: their size, rows, concatenation and device.

A batch is a tensor or array, or a tuple, list, mapping, named tuple or dataclass of batches. A
list of strings and Python numbers, or a tuple of strings, is one part, with a value per example.
Tensors and arrays hold one example per row. ``None`` is kept as it is. All parts have the same
number of examples.
"""

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from siftback.arguments import is_dense
from siftback.errors import BatchError

_VALUES = (str, bytes, bool, int, float)
_ARRAYS = (Tensor, np.ndarray)


def size(batch: Any) -> int:
    """The number of examples in a batch.

    >>> size({"image": torch.zeros(4, 3, 8, 8), "name": ["a", "b", "c", "d"]})
    4

    Raises:
        BatchError: If parts have mismatched sizes, a part has no size, or there is no part.
    """
    sizes = {path: _length(part, path) for path, part in _parts(batch, "batch")}
    if not sizes:
        raise BatchError(f"a batch without examples: {_describe(batch)}; give at least one tensor")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{path}: {length}" for path, length in sizes.items())
        raise BatchError(f"parts of mismatched sizes ({listed}); give each part a row per example")
    return next(iter(sizes.values()))


def take(batch: Any, rows: Tensor) -> Any:
    """Copies rows out of a batch.

    Args:
        batch: A batch of N examples.
        rows: int64[k], positions in [0, N).

    Returns:
        A batch of k examples of the same structure. Tensors are copies, so that they do not keep
        the memory of the whole batch.

    >>> take((torch.tensor([10, 20, 30]), ["a", "b", "c"]), torch.tensor([2, 0]))
    (tensor([30, 10]), ['c', 'a'])
    """
    on_device: dict[torch.device, Tensor] = {rows.device: rows}
    on_host: list[int] = []

    def rows_of(part: Any) -> Any:
        if isinstance(part, Tensor):
            if part.device not in on_device:
                on_device[part.device] = rows.to(part.device)
            return _take_rows(part, on_device[part.device])
        # One synchronization with the device, only for batches with parts that are not tensors.
        if not on_host:
            on_host.extend(rows.tolist())
        if isinstance(part, np.ndarray):
            return part[on_host]
        return type(part)(part[row] for row in on_host)

    return _map(rows_of, batch)


def _take_rows(part: Tensor, rows: Tensor) -> Tensor:
    """Rows in the tensor's own memory layout, so that a model computes as with the whole."""
    if not is_dense(part):
        raise BatchError(
            "a batch has a sparse, nested, quantized or meta tensor, of which no rows can be "
            "taken: make it dense, in the collate function"
        )
    dense = part.stride(0) == part[0].numel() if len(part) else False
    if not dense or part.requires_grad:
        return part[rows]
    # Several times faster than indexing where the layout is channels_last.
    taken = torch.empty_strided(
        (len(rows), *part.shape[1:]), part.stride(), dtype=part.dtype, device=part.device
    )
    return torch.index_select(part, 0, rows, out=taken)


def split(batch: Any, at: int) -> tuple[Any, Any]:
    """The first ``at`` examples and the others, as views.

    >>> split(torch.tensor([1, 2, 3]), 2)
    (tensor([1, 2]), tensor([3]))
    """
    return _map(lambda part: part[:at], batch), _map(lambda part: part[at:], batch)


def clone(batch: Any) -> Any:
    """A copy that shares no memory with the batch."""
    return _map(
        lambda part: part.clone() if isinstance(part, Tensor) else copy.copy(part),
        batch,
    )


def concatenate(batches: Sequence[Any], pad: Mapping[Any, float] | None = None) -> Any:
    """Joins batches of the same structure; a single one is returned as it is.

    Args:
        batches: At least one.
        pad: For parts whose rows differ in shape, the value that shorter rows are filled with at
            their end: by key of a mapping, position in a tuple or list, or name of a field.

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
    paths = iter([path for path, _ in _parts(batches[0], "")])  # in the order of _map

    def join(*parts: Any) -> Any:
        path = next(paths)
        return _join(path, values.get(path), parts)

    return _map(join, *batches)


def to_device(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a batch, asynchronously if their memory is pinned."""

    def move(part: Tensor) -> Tensor:
        if part.is_meta and device.type != "meta":
            raise BatchError("a batch has a meta tensor, which has no values: give one with them")
        return part.to(device, non_blocking=True)

    return map_tensors(move, batch)


def to_device_of(batch: Any, model: nn.Module) -> Any:
    """Moves the tensors of a batch to the device of a model's first parameter, if it has one."""
    weight = next(model.parameters(), None)
    if weight is None or all(part.device == weight.device for part in tensors(batch)):
        return batch
    return to_device(batch, weight.device)


def map_tensors(fn: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Applies a function to each tensor of a batch, keeping its structure.

    >>> map_tensors(torch.neg, {"x": torch.tensor([1, 2]), "name": ["a", "b"]})
    {'x': tensor([-1, -2]), 'name': ['a', 'b']}
    """
    return _map(lambda part: fn(part) if isinstance(part, Tensor) else part, batch)


def tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in the order of its structure."""
    return [part for _, part in _parts(batch, "batch") if isinstance(part, Tensor)]


def device(batch: Any) -> torch.device:
    """The device of the batch's first tensor; the CPU if there is none."""
    try:
        return next((part.device for part in tensors(batch)), torch.device("cpu"))
    except BatchError:  # unknown structure
        return torch.device("cpu")


def _is_values(part: Any) -> bool:
    if isinstance(part, list):
        return all(isinstance(value, _VALUES) for value in part)
    # A tuple of numbers may be the shape of an image, the same for the whole batch.
    return (
        isinstance(part, tuple)
        and bool(part)
        and not _is_named_tuple(part)
        and all(isinstance(value, str | bytes) for value in part)
    )


def _is_named_tuple(part: Any) -> bool:
    return isinstance(part, tuple) and hasattr(part, "_fields")


def _is_part(batch: Any) -> bool:
    return isinstance(batch, _ARRAYS) or _is_values(batch)


def _children(batch: Any) -> dict[str, Any] | None:
    """The batches that a batch consists of, by their path within it, such as ``[0]``."""
    if isinstance(batch, Mapping):
        return {f"[{key!r}]": value for key, value in batch.items()}
    if _is_named_tuple(batch):
        return {f".{name}": getattr(batch, name) for name in batch._fields}
    if isinstance(batch, list | tuple):
        return {f"[{place}]": value for place, value in enumerate(batch)}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {f".{f.name}": getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return None


def _rebuild(batch: Any, values: list[Any]) -> Any:
    if isinstance(batch, dict | UserDict):
        # A copy keeps attributes besides the items, which a tokenizer's batch has.
        same: Any = copy.copy(batch)
        for key, value in zip(batch, values, strict=True):
            same[key] = value
        return same
    if isinstance(batch, Mapping):  # whose copy may share its items
        return cast(Any, type(batch))(dict(zip(batch, values, strict=True)))
    if _is_named_tuple(batch):
        return type(batch)(*values)
    if isinstance(batch, list | tuple):
        return type(batch)(values)
    names = (f.name for f in dataclasses.fields(batch))
    same = copy.copy(batch)
    for name, value in zip(names, values, strict=True):
        # Works for frozen dataclasses, and does not run __init__ again.
        object.__setattr__(same, name, value)
    return same


def _parts(batch: Any, path: str) -> list[tuple[str, Any]]:
    if batch is None:
        return []
    if _is_part(batch):
        return [(path, batch)]
    children = _children(batch)
    if children is None:
        raise BatchError(
            f"{path} is {_describe(batch)}, which has no rows; "
            "give a tensor, or a list with one value per example"
        )
    return [part for step, child in children.items() for part in _parts(child, path + step)]


def _map(fn: Callable[..., Any], *batches: Any) -> Any:
    first = batches[0]
    if _is_part(first) and all(_is_part(other) for other in batches):
        return fn(*batches)
    if any(type(other) is not type(first) for other in batches):
        kinds = ", ".join(_describe(batch) for batch in batches)
        raise BatchError(
            f"batches of mismatched structure ({kinds}); give every batch the same one"
        )
    if first is None:
        return None
    families = [_children(batch) or {} for batch in batches]
    if any(family.keys() != families[0].keys() for family in families):
        keys = " and ".join(str(list(family)) for family in families)
        raise BatchError(f"batches of mismatched parts ({keys}); give every batch the same ones")
    return _rebuild(first, [_map(fn, *(f[step] for f in families)) for step in families[0]])


def _join(path: str, value: float | None, parts: tuple[Any, ...]) -> Any:
    first = parts[0]
    family = next(kind for kind in (Tensor, np.ndarray, type(first)) if isinstance(first, kind))
    if not all(isinstance(part, family) for part in parts):
        kinds = ", ".join(_describe(part) for part in parts)
        raise BatchError(f"parts of mismatched types ({kinds}); give every batch the same ones")
    if not isinstance(first, _ARRAYS):
        return type(first)(value for part in parts for value in part)
    if value is not None and len({part.shape[1:] for part in parts}) > 1:
        parts = tuple(_padded(part, _longest(parts), value) for part in parts)
    try:
        return torch.cat(parts) if isinstance(first, Tensor) else np.concatenate(parts)
    except (RuntimeError, ValueError) as error:
        shapes = ", ".join(_describe(part) for part in parts)
        raise BatchError(
            f"batch{path} has rows of several shapes ({shapes}), which cannot be pooled: pad every "
            "batch to the same shape, or give pool=Pool(batch_size, pad=...), with the value that "
            "fills the shorter ones, or with a function that joins batches"
        ) from error


def _longest(parts: tuple[Any, ...]) -> tuple[int, ...]:
    """The largest size of each dimension of the rows."""
    shapes = [part.shape[1:] for part in parts]
    if len({len(shape) for shape in shapes}) > 1:
        return tuple(shapes[0])  # does not fit, whatever it is filled with
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _padded(part: Any, shape: tuple[int, ...], value: float) -> Any:
    """The part, its rows filled at the end of each dimension."""
    if part.ndim != len(shape) + 1:
        return part
    sizes = (len(part), *shape)
    if isinstance(part, Tensor):
        whole: Any = part.new_full(sizes, value)
    else:
        whole = np.full(sizes, value, part.dtype)
    whole[tuple(slice(size) for size in part.shape)] = part
    return whole


def _length(part: Any, path: str) -> int:
    if not isinstance(part, _ARRAYS):
        return len(part)
    if part.ndim == 0:
        raise BatchError(f"{path} is {_describe(part)} without rows; give it a row per example")
    return int(part.shape[0])


def _describe(value: Any) -> str:
    if isinstance(value, _ARRAYS):
        return f"{type(value).__name__}{list(value.shape)}"
    return f"a {type(value).__name__}"
