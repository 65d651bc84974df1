"""Nested batches: their size, rows, concatenation and device.

A batch is a tensor or array, or a tuple, list, mapping, named tuple or dataclass of batches.
Tensors and arrays hold one example per row. ``None`` is kept as it is. All parts have the same
number of examples.

A list or tuple is a structure, such as ``(inputs, targets)``, or holds one example per entry, such
as images of any size, or a dict of boxes for each. `read` tells them apart once, by the number of
examples where that is known; what it finds, the paths of the second kind, is passed to the other
functions for all batches of a loader. A list of strings and Python numbers, or a tuple of strings,
always holds one example per entry.
"""

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from siftback.errors import BatchError

_VALUES = (str, bytes, bool, int, float)
_ARRAYS = (Tensor, np.ndarray)

Lists = frozenset[str]
"""Paths within a batch, such as ``[0]``, of lists and tuples that hold one example per entry."""


class Reading(NamedTuple):
    """How a batch is made of examples.

    Attributes:
        size: N, the number of examples.
        lists: Which lists and tuples hold one example per entry.
        doubtful: Others that do, or are a structure of parts with N rows each.
        values: Others that do, of strings and numbers.
    """

    size: int
    lists: Lists = frozenset()
    doubtful: Lists = frozenset()
    values: Lists = frozenset()


def read(batch: Any, size: int | None = None, *, collated: bool = False) -> Reading:
    """Finds how a batch is made of examples.

    Args:
        batch: A batch.
        size: N, where it is known from elsewhere, such as a sampler. It decides what a list is.
        collated: Whether PyTorch's default collate function made the batch, whose lists are
            structures.

    Returns:
        The reading; of another size than the one given if no reading has that one.

    >>> images = [torch.zeros(3, 8, 6), torch.zeros(3, 4, 4)]
    >>> sorted(read((images, [{"boxes": torch.zeros(1, 4)}, {"boxes": torch.zeros(5, 4)}])).lists)
    ['[0]', '[1]']
    >>> read((torch.zeros(2, 3), torch.zeros(2)), size=2).lists
    frozenset()

    Raises:
        BatchError: If the batch cannot be split into examples, or its parts have mismatched sizes,
            or which of several readings is right cannot be told.
    """
    readings = _candidates(batch, size, collated)
    if size not in readings and len(readings) > 1:
        listed = " or ".join(map(str, readings))
        raise BatchError(
            f"a batch of {listed} examples, as the entries or the rows of its lists are counted: "
            "have the collate function stack each list into one tensor with a row per example"
        )
    reading = _preferred(readings, size)
    if reading.doubtful and not reading.lists:
        path = min(reading.doubtful)
        raise BatchError(
            f"batch{path} holds {reading.size} entries of {reading.size} rows each, so that an "
            "entry or a row may be an example: have the collate function stack them into one "
            "tensor with a row per example, or take another batch size"
        )
    # Where one list holds an example per entry, so do those beside it.
    return Reading(reading.size, reading.lists | reading.doubtful | reading.values)


def size(batch: Any, known: int | None = None, *, lists: Lists | None = None) -> int:
    """The number of examples in a batch.

    Args:
        batch: A batch.
        known: N, where it is known from elsewhere; returned if the batch may have as many.
        lists: The lists that hold one example per entry, from `read`.

    >>> size({"image": torch.zeros(4, 3, 8, 8), "name": ["a", "b", "c", "d"]})
    4

    Raises:
        BatchError: If parts have mismatched sizes, a part has no size, or there is no part.
    """
    if lists is None:
        return _preferred(_candidates(batch, known, False), known).size
    sizes = {path: len(part) for path, part in parts(batch, lists)}
    if len(set(sizes.values())) != 1:
        raise _mismatched(batch, sizes)
    return next(iter(sizes.values()))


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

    def rows_of(path: str, part: Any) -> Any:
        if isinstance(part, Tensor):
            if part.device not in on_device:
                on_device[part.device] = rows.to(part.device)
            return _take_rows(part, on_device[part.device])
        # One synchronization with the device, only for batches with parts that are not tensors.
        if not on_host:
            on_host.extend(rows.tolist())
        if isinstance(part, np.ndarray):
            return part[on_host]
        return type(part)(clone(part[row]) for row in on_host)

    return _map(rows_of, _lists_of(batch) if lists is None else lists, batch)


def _take_rows(part: Tensor, rows: Tensor) -> Tensor:
    """Rows in the tensor's own memory layout, so that a model computes as with the whole."""
    dense = part.stride(0) == part[0].numel() if len(part) else False
    if not dense or part.requires_grad:
        return part[rows]
    # Several times faster than indexing where the layout is channels_last.
    taken = torch.empty_strided(
        (len(rows), *part.shape[1:]), part.stride(), dtype=part.dtype, device=part.device
    )
    return torch.index_select(part, 0, rows, out=taken)


def split(batch: Any, at: int, lists: Lists | None = None) -> tuple[Any, Any]:
    """The first ``at`` examples and the others, as views.

    >>> split(torch.tensor([1, 2, 3]), 2)
    (tensor([1, 2]), tensor([3]))

    Args:
        batch: A batch of N examples.
        at: At most N.
        lists: As for `take`.

    Raises:
        BatchError: If the batch cannot be split into examples.
    """
    lists = _lists_of(batch) if lists is None else lists
    first = _map(lambda _, part: part[:at], lists, batch)
    return first, _map(lambda _, part: part[at:], lists, batch)


def clone(batch: Any) -> Any:
    """A copy that shares no memory with the batch, as far as it consists of tensors and arrays."""
    return _map_leaves(
        lambda part: part.clone() if isinstance(part, Tensor) else copy.copy(part), batch
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

    def join(path: str, *parts: Any) -> Any:
        return _join(path, values.get(path), parts)

    return _map(join, _lists_of(batches[0]) if lists is None else lists, *batches)


def shapes(batch: Any, lists: Lists) -> list[Any]:
    """The shape and type of a row of each part: batches of the same ones can be joined."""
    return [(path, _row_of(part)) for path, part in parts(batch, lists)]


def _row_of(part: Any) -> Any:
    return (tuple(part.shape[1:]), part.dtype) if isinstance(part, _ARRAYS) else type(part)


def to_device(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a batch, asynchronously if their memory is pinned.

    An object of another kind moves by its own ``to``, if it has one.
    """

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(device, non_blocking=True)
        return part.to(device) if hasattr(part, "to") else part

    return _map_leaves(moved, batch)


def to_device_of(batch: Any, model: nn.Module) -> Any:
    """Moves a batch to the device of a model's first parameter, if it has one."""
    weight = next(model.parameters(), None)
    if weight is None:
        return batch
    if any(
        part.device != weight.device if isinstance(part, Tensor) else hasattr(part, "to")
        for part in leaves(batch)
    ):
        return to_device(batch, weight.device)
    return batch


def map_tensors(fn: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Applies a function to each tensor of a batch, keeping its structure.

    >>> map_tensors(torch.neg, {"x": torch.tensor([1, 2]), "name": ["a", "b"]})
    {'x': tensor([-1, -2]), 'name': ['a', 'b']}
    """
    return _map_leaves(lambda part: fn(part) if isinstance(part, Tensor) else part, batch)


def tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in the order of its structure."""
    return [part for part in leaves(batch) if isinstance(part, Tensor)]


def device(batch: Any) -> torch.device:
    """The device of the batch's first tensor; the CPU if there is none."""
    return next((part.device for part in tensors(batch)), torch.device("cpu"))


def _is_values(part: Any) -> bool:
    """Whether it is a list of strings or numbers, some of which may be None."""
    if not isinstance(part, list | tuple) or _is_named_tuple(part):
        return False
    # A tuple of numbers may be the shape of an image, the same for the whole batch.
    values = _VALUES if isinstance(part, list) else (str, bytes)
    is_any = any(value is not None for value in part) or (not part and isinstance(part, list))
    return is_any and all(value is None or isinstance(value, values) for value in part)


def _is_named_tuple(part: Any) -> bool:
    return isinstance(part, tuple) and hasattr(part, "_fields")


def _is_object(part: Any) -> bool:
    """Whether it is a whole of which nothing is known, although it is made as a named tuple is."""
    return isinstance(part, PackedSequence)


def _children(batch: Any) -> dict[str, Any] | None:
    """The batches that a batch consists of, by their path within it, such as ``[0]``."""
    if _is_object(batch):
        return None
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


def leaves(batch: Any) -> list[Any]:
    """The parts of a batch that are no structure, whatever they are; without None."""
    if batch is None:
        return []
    children = None if isinstance(batch, _ARRAYS) or _is_values(batch) else _children(batch)
    if children is None:
        return [batch]
    return [leaf for child in children.values() for leaf in leaves(child)]


def _map_leaves(fn: Callable[[Any], Any], batch: Any) -> Any:
    """Applies a function to each part that is no structure, whatever it is, except None."""
    if batch is None:
        return None
    children = None if isinstance(batch, _ARRAYS) or _is_values(batch) else _children(batch)
    if children is None:
        return fn(batch)
    return _rebuild(batch, [_map_leaves(fn, child) for child in children.values()])


def _map(fn: Callable[..., Any], lists: Lists, *batches: Any, path: str = "") -> Any:
    """Applies ``fn(path, *parts)`` to the parts of batches that hold a row or entry per example."""
    first = batches[0]
    if all(_is_part(batch, path, lists) for batch in batches):
        return fn(path, *batches)
    if any(type(other) is not type(first) for other in batches):
        kinds = ", ".join(_describe(batch) for batch in batches)
        raise BatchError(
            f"batches of mismatched structure ({kinds}); give every batch the same one"
        )
    if first is None:
        return None
    families = [_children(batch) for batch in batches]
    if families[0] is None:
        raise _without_rows(first, path)
    if any(family is None or family.keys() != families[0].keys() for family in families):
        keys = " and ".join(str(list(family or ())) for family in families)
        raise BatchError(f"batches of mismatched parts ({keys}); give every batch the same ones")
    values = [
        _map(fn, lists, *(cast(Any, family)[step] for family in families), path=path + step)
        for step in families[0]
    ]
    return _rebuild(first, values)


def _is_part(part: Any, path: str, lists: Lists) -> bool:
    """Whether a part holds a row or an entry per example."""
    in_rows = isinstance(part, _ARRAYS) and _has_rows(part)
    return in_rows or _is_values(part) or (path in lists and isinstance(part, list | tuple))


def _has_rows(part: Any) -> bool:
    """Whether a tensor or array has rows that can be taken and joined."""
    if isinstance(part, Tensor) and (part.is_nested or part.layout != torch.strided):
        return False
    return bool(part.ndim > 0)


def parts(batch: Any, lists: Lists | None, path: str = "") -> list[tuple[str, Any]]:
    """The parts of a batch that hold a row or an entry per example, by path.

    Args:
        batch: A batch.
        lists: The lists that hold one example per entry; None is all whose entries are objects.
        path: Of the batch within another one.

    Raises:
        BatchError: If a part has no rows.
    """
    if batch is None:
        return []
    if _is_part(batch, path, lists or frozenset()):
        return [(path, batch)]
    if lists is None and isinstance(batch, list | tuple) and _are_objects(batch):
        return [(path, batch)]
    children = _children(batch)
    if children is None:
        raise _without_rows(batch, path)
    return [part for step, child in children.items() for part in parts(child, lists, path + step)]


def _without_rows(part: Any, path: str) -> BatchError:
    if isinstance(part, _ARRAYS):
        return BatchError(
            f"batch{path} is {_describe(part)} without rows; give it a row per example"
        )
    return BatchError(
        f"batch{path} is {_describe(part)}, which has no rows; "
        "give a tensor, or a list with one value per example"
    )


def _mismatched(batch: Any, sizes: Mapping[str, int]) -> BatchError:
    if not sizes:
        return BatchError(f"a batch without examples: {_describe(batch)}; give at least one tensor")
    listed = ", ".join(f"batch{path}: {length}" for path, length in sizes.items())
    return BatchError(f"parts of mismatched sizes ({listed}); give each part a row per example")


def _candidates(batch: Any, size: int | None, collated: bool) -> dict[int, Reading]:
    """The possible readings of a batch, by number of examples; those as a structure first.

    Raises:
        BatchError: If there are none.
    """
    readings = _readings(batch, "", size, collated)
    if not readings:
        raise _mismatched(batch, {path: len(part) for path, part in parts(batch, None)})
    return readings


def _preferred(readings: dict[int, Reading], size: int | None) -> Reading:
    first = next(iter(readings.values()))
    return first if size is None else readings.get(size, first)


def _lists_of(batch: Any) -> Lists:
    """The lists of a batch by itself that hold one example per entry."""
    reading = _preferred(_candidates(batch, None, False), None)
    return reading.lists | reading.values


def _readings(part: Any, path: str, size: int | None, collated: bool) -> dict[int, Reading] | None:
    """The possible readings of a part, by number of examples; None where any number fits."""
    if part is None:
        return None
    if isinstance(part, _ARRAYS):
        return {len(part): Reading(len(part))} if _has_rows(part) else {}
    if _is_values(part):
        return {len(part): Reading(len(part), values=frozenset({path}))}
    children = _children(part)
    if children is None:
        return {}
    found = [_readings(child, path + step, size, collated) for step, child in children.items()]
    whole = reduce(_common, found, None)
    if collated or _is_named_tuple(part) or not isinstance(part, list | tuple):
        return whole
    return _readings_of_list(part, path, size, whole)


def _common(
    one: dict[int, Reading] | None, other: dict[int, Reading] | None
) -> dict[int, Reading] | None:
    """The readings of two parts together, of the numbers of examples that both may have."""
    if one is None or other is None:
        return other if one is None else one
    joined: dict[int, Reading] = {}
    for size in one.keys() & other.keys():
        kinds = zip(one[size][1:], other[size][1:], strict=True)
        joined[size] = Reading(size, *(first | second for first, second in kinds))
    return {size: joined[size] for size in one if size in joined}


def _readings_of_list(
    part: Any, path: str, size: int | None, whole: dict[int, Reading] | None
) -> dict[int, Reading] | None:
    """The readings of a list or tuple: of its entries as parts, or as examples.

    Args:
        part: The list or tuple.
        path: Of it.
        size: The number of examples, where that is known.
        whole: The readings of it as a structure.
    """
    count = len(part)
    entries = {count: Reading(count, frozenset({path}))}
    is_asked = size is not None and count == size
    if whole is None or (part and all(isinstance(entry, _VALUES) for entry in part)):
        # Nothing but None, or a tuple of numbers, which may be something of the whole batch.
        return entries if is_asked else whole
    if not _are_alike(part):
        return whole
    if not path and (isinstance(part, tuple) or (count == 2 and count in whole)):
        return whole or (entries if _are_objects(part) else {})  # such as (inputs, targets)
    if _are_objects(part):
        if is_asked or not whole or _have_same_keys(part):
            return {**whole, **entries} if size is not None else entries
        return whole
    if not path and size is None and isinstance(part[0], _ARRAYS):  # such as [inputs, targets]
        return whole
    if count in whole:
        doubtful = whole[count].doubtful | {path}
        return {**whole, count: whole[count]._replace(doubtful=doubtful)}
    return {**whole, **entries}


def _are_objects(part: Sequence[Any]) -> bool:
    """Whether the entries of a list are of any kind but tensors, arrays and lists."""
    return bool(part) and not any(
        entry is None
        or isinstance(entry, (*_ARRAYS, *_VALUES))
        or (isinstance(entry, list | tuple) and not _is_named_tuple(entry))
        for entry in part
    )


def _are_alike(part: Sequence[Any]) -> bool:
    """Whether the entries of a list are of one kind, as the examples of a data set are."""
    if not part:
        return False
    first = part[0]
    if isinstance(first, _ARRAYS):
        return all(
            isinstance(entry, _ARRAYS)
            and type(entry) is type(first)
            and (entry.dtype, entry.ndim) == (first.dtype, first.ndim)
            for entry in part
        )
    return all(type(entry) is type(first) for entry in part)


def _have_same_keys(part: Sequence[Any]) -> bool:
    if not isinstance(part[0], Mapping):
        return True
    return all(entry.keys() == part[0].keys() for entry in part)


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


def _describe(value: Any) -> str:
    if isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        return f"a {kind} {type(value).__name__}"
    if isinstance(value, _ARRAYS):
        return f"{type(value).__name__}{list(value.shape)}"
    return f"a {type(value).__name__}"
