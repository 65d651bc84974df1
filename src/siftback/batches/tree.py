"""Nested batches: their structure, rows, concatenation and device.

A batch is a tensor or array, or a tuple, list, mapping, named tuple or dataclass of batches.
Tensors and arrays hold one example per row. ``None`` is kept as it is. All parts have the same
number of examples.

A list or tuple is a structure, such as ``(inputs, targets)``, or holds one example per entry, such
as images of any size, or a dict of boxes for each. `read_structure` tells them apart once, by the
number of examples where that is known; the paths of the second kind are passed to the other
functions for all batches of a loader. A list of strings and Python numbers, or a tuple of strings,
always holds one example per entry.
"""

import copy
import dataclasses
import operator
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from siftback.errors import BatchError
from siftback.host_reads import move
from siftback.tensor_arguments import is_dense

_VALUES = (str, bytes, bool, int, float)
ARRAYS = (Tensor, np.ndarray)

Lists = frozenset[str]
"""Paths within a batch, such as ``[0]``, of lists and tuples that hold one example per entry."""

# In place of paths: each leaf is a column, with rows or not; or each list of objects is.
LEAVES, _OBJECTS = frozenset({"leaves"}), frozenset({"objects"})


class Structure(NamedTuple):
    """The structure of a batch.

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


def read_structure(batch: Any, size: int | None = None, *, collated: bool = False) -> Structure:
    """Returns the structure of a batch.

    Args:
        batch: A batch.
        size: N, where it is known from elsewhere, such as a sampler. It decides what a list is.
        collated: Whether PyTorch's default collate function made the batch, whose lists are
            structures.

    Returns:
        The reading; of another size than the one given if no reading has that one.

    >>> images = [torch.zeros(3, 8, 6), torch.zeros(3, 4, 4)]
    >>> boxes = [{"boxes": torch.zeros(1, 4)}, {"boxes": torch.zeros(5, 4)}]
    >>> sorted(read_structure((images, boxes)).lists)
    ['[0]', '[1]']
    >>> read_structure((torch.zeros(2, 3), torch.zeros(2)), size=2).lists
    frozenset()

    Raises:
        BatchError: If the batch cannot be split into examples, or its parts have mismatched sizes,
            or which of several readings is right cannot be told.
    """
    readings = _readings(batch, size, collated)
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
    return Structure(reading.size, reading.lists | reading.doubtful | reading.values)


def size(batch: Any, known: int | None = None) -> int:
    """Returns the number of examples in a batch.

    Args:
        batch: A batch.
        known: N, where it is known from elsewhere; returned if the batch may have as many.

    >>> size({"image": torch.zeros(4, 3, 8, 8), "name": ["a", "b", "c", "d"]})
    4

    Raises:
        BatchError: If parts have mismatched sizes, a part has no size, or there is no part.
    """
    return _preferred(_readings(batch, known), known).size


def measure(batch: Any, lists: Lists) -> tuple[int, torch.device]:
    """Returns the number of examples in a batch, and its `device`.

    Args:
        batch: A batch.
        lists: The lists that hold one example per entry, from `read_structure`.

    >>> measure((torch.zeros(4, 3), torch.zeros(4)), lists=frozenset())
    (4, device(type='cpu'))

    Raises:
        BatchError: As for `size`.
    """
    members = _tensors_alone(batch, "", lists) or [leaf for _, leaf in columns(batch, lists)]
    sizes = {len(leaf) for leaf in members}
    if len(sizes) != 1:
        raise _mismatched(batch, columns(batch, lists))
    first = members[0]
    return sizes.pop(), first.device if isinstance(first, Tensor) else device(batch)


def lists_of(batch: Any) -> Lists:
    """Returns the lists of a batch by itself that hold one example per entry."""
    reading = _preferred(_readings(batch), None)
    return reading.lists | reading.values


def columns(batch: Any, lists: Lists, path: str = "") -> list[tuple[str, Any]]:
    """Returns the columns of a batch, which hold a row or an entry per example, by path.

    Args:
        batch: A batch.
        lists: The lists that hold one example per entry.
        path: Of the batch within another one.

    Raises:
        BatchError: If a part has no rows.
    """
    members = _tensors_alone(batch, path, lists)
    if members:
        return [(f"{path}[{index}]", leaf) for index, leaf in enumerate(members)]
    if _is_column(batch, path, lists):
        return [(path, batch)]
    if batch is None:
        return []
    children = _children_of(batch)
    if not isinstance(children, dict):
        if lists is LEAVES:
            return [(path, batch)]
        raise _without_rows(batch, path)
    return [leaf for step, child in children.items() for leaf in columns(child, lists, path + step)]


def leaves(batch: Any) -> Sequence[Any]:
    """Returns the leaves of a batch, which are no structure, whatever they are; without None."""
    return _tensors_alone(batch, "", LEAVES) or [leaf for _, leaf in columns(batch, LEAVES)]


def take(batch: Any, rows: Tensor, lists: Lists | None = None) -> Any:
    """Copies rows out of a batch.

    Args:
        batch: A batch of N examples.
        rows: int64[k], positions in [0, N).
        lists: The lists that hold one example per entry, from `read_structure`; by default those
            of this batch by itself.

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
            if not is_dense(leaf):
                raise BatchError(
                    "a batch has a sparse, nested, quantized or meta tensor, of which no rows can "
                    "be taken: make it dense, in the collate function"
                )
            if leaf.device not in on_device:
                on_device[leaf.device] = move(rows, leaf.device)
            taken = on_device[leaf.device]
            is_packed = leaf.stride(0) == leaf.shape[1:].numel()
            if not is_packed or leaf.requires_grad:
                return leaf[taken]
            # In the tensor's memory layout, so that a model computes as with the whole; several
            # times faster than indexing where that is channels_last.
            shape, layout = (len(taken), *leaf.shape[1:]), leaf.stride()
            copied = torch.empty_strided(shape, layout, dtype=leaf.dtype, device=leaf.device)
            return torch.index_select(leaf, 0, taken, out=copied)
        # One synchronization with the device, only for batches with parts that are not tensors.
        if not on_host:
            on_host.extend(rows.tolist())
        if isinstance(leaf, np.ndarray):
            return leaf[on_host]
        return type(leaf)(clone(leaf[row]) for row in on_host)

    return map_leaves(rows_of, lists_of(batch) if lists is None else lists, batch)


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
    first = map_leaves(lambda _, leaf: leaf[:at], lists, batch)
    return first, map_leaves(lambda _, leaf: leaf[at:], lists, batch)


def clone(batch: Any) -> Any:
    """Returns a copy that shares neither memory nor graph with a batch of tensors and arrays."""

    def copied(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return copy.copy(leaf)
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return map_leaves(copied, LEAVES, batch)


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
    fills = (pad or {}).items()
    values = {step: value for key, value in fills for step in (f"[{key!r}]", f".{key}")}
    lists = lists_of(batches[0]) if lists is None else lists
    return map_leaves(partial(_join, values), lists, *batches)


def shapes(batch: Any, lists: Lists) -> list[Any]:
    """Returns the shape and type of a row of each column: batches of equal ones can be joined."""
    return [
        (path, (tuple(leaf.shape[1:]), leaf.dtype) if isinstance(leaf, ARRAYS) else type(leaf))
        for path, leaf in columns(batch, lists)
    ]


def to_device(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a batch, to an accelerator without waiting for it.

    An object of another kind moves by its own ``to``, if it has one.
    """

    def moved(_: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if leaf.is_meta and device.type != "meta":
                raise BatchError("a batch has a meta tensor, without values: give one with them")
            return move(leaf, device)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    return map_leaves(moved, LEAVES, batch)


def map_tensors(fn: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Applies a function to each tensor of a batch, keeping its structure.

    >>> map_tensors(torch.neg, {"x": torch.tensor([1, 2]), "name": ["a", "b"]})
    {'x': tensor([-1, -2]), 'name': ['a', 'b']}
    """
    return map_leaves(lambda _, leaf: fn(leaf) if isinstance(leaf, Tensor) else leaf, LEAVES, batch)


def map_outputs(fn: Callable[[Tensor], Tensor], outputs: Any) -> Any:
    """Applies a function to each tensor of what a model returns.

    It may be any of PyTorch's trees, and a dataclass, which is a leaf of these.
    """
    return tree_map(partial(map_tensors, fn), outputs)


def tensors(batch: Any) -> list[Tensor]:
    """Returns the tensors of a batch, in the order of its structure."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]


def device(batch: Any) -> torch.device:
    """Returns the device of the batch's first tensor; the CPU if there is none."""
    return next((tensor.device for tensor in tensors(batch)), torch.device("cpu"))


def map_leaves(fn: Callable[..., Any], lists: Lists, *batches: Any, path: str = "") -> Any:
    """Applies ``fn(path, *columns)`` to the columns of batches that have the same structure.

    They are found by ``lists``, as `columns` does; with `LEAVES` they are all leaves.
    """
    first = batches[0]
    members = [_tensors_alone(batch, path, lists) for batch in batches]
    if all(members) and len({(type(batch), len(batch)) for batch in batches}) == 1:
        rows = enumerate(zip(*members, strict=True))
        return type(first)(fn(f"{path}[{index}]", *leaves) for index, leaves in rows)
    if all(_is_column(batch, path, lists) for batch in batches):
        return fn(path, *batches)
    if any(type(other) is not type(first) for other in batches):
        kinds = ", ".join(describe(batch) for batch in batches)
        raise BatchError(f"batches of mismatched structure ({kinds}); give each batch the same one")
    if first is None:
        return None
    families: list[Any] = [_children_of(batch) for batch in batches]
    if not isinstance(families[0], dict):
        if lists is LEAVES:
            return fn(path, *batches)
        raise _without_rows(first, path)
    if any(family.keys() != families[0].keys() for family in families):
        keys = " and ".join(str(list(family)) for family in families)
        raise BatchError(f"batches of mismatched parts ({keys}); give every batch the same ones")
    values = [
        map_leaves(fn, lists, *(family[step] for family in families), path=path + step)
        for step in families[0]
    ]
    return _rebuild(first, values)


def _rebuild(batch: Any, values: list[Any]) -> Any:
    if isinstance(batch, Mapping) and not isinstance(batch, dict | UserDict):
        return cast(Any, type(batch))(dict(zip(batch, values, strict=True)))  # copies share items
    if isinstance(batch, list | tuple):
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    # A copy keeps attributes besides the items, which a tokenizer's batch has.
    same: Any = copy.copy(batch)
    if isinstance(batch, dict | UserDict):
        for key, value in zip(batch, values, strict=True):
            same[key] = value
    else:
        for field, value in zip(dataclasses.fields(batch), values, strict=True):
            # Works for frozen dataclasses, and does not run __init__ again.
            object.__setattr__(same, field.name, value)
    return same


def _children_of(batch: Any) -> dict[str, Any] | None:
    """Returns the batches that a batch consists of, by their path within it, such as ``[0]``."""
    # A named tuple of which no rows can be taken, and a TensorDict, whose iterator gives rows.
    if isinstance(batch, PackedSequence) or hasattr(batch, "batch_dims"):
        return None
    if isinstance(batch, Mapping):
        return {f"[{key!r}]": value for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        if hasattr(batch, "_fields"):
            return {f".{name}": getattr(batch, name) for name in batch._fields}
        return {f"[{index}]": value for index, value in enumerate(batch)}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {f".{f.name}": getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return None


def _tensors_alone(batch: Any, path: str, lists: Lists) -> Sequence[Tensor]:
    """Returns the parts of a tuple or list of tensors with rows; none of anything else.

    It is as most batches are, and needs no walk through its structure.
    """
    if type(batch) not in (tuple, list) or path in lists:
        return ()
    is_alone = all(
        type(leaf) is Tensor and leaf.ndim and leaf.layout == torch.strided and not leaf.is_nested
        for leaf in batch
    )
    return batch if is_alone else ()


def _is_column(leaf: Any, path: str, lists: Lists) -> bool:
    """Returns whether a leaf holds a row or an entry per example."""
    if isinstance(leaf, Tensor):  # in rows that can be taken and joined
        has_rows = leaf.ndim > 0 and leaf.layout == torch.strided and not leaf.is_nested
        return has_rows or lists is LEAVES
    if isinstance(leaf, np.ndarray):
        return leaf.ndim > 0 or lists is LEAVES
    if not isinstance(leaf, list | tuple):
        return False
    return path in lists or _is_values(leaf) or (lists is _OBJECTS and _are_objects(leaf))


def _without_rows(leaf: Any, path: str) -> BatchError:
    """Returns the error of a leaf that cannot be split into examples."""
    return BatchError(
        f"batch{path} is {describe(leaf)}, which has no rows: give a tensor with a row for each "
        "example (of a DataFrame, to_numpy(); of a TensorDict, to_dict()), or a list of one each"
    )


def _mismatched(batch: Any, columns: list[tuple[str, Any]]) -> BatchError:
    if not columns:
        return BatchError(f"a batch without examples: {describe(batch)}; give at least one tensor")
    listed = ", ".join(f"batch{path}: {len(leaf)}" for path, leaf in columns)
    return BatchError(f"parts of mismatched sizes ({listed}); give each part a row per example")


def _readings(batch: Any, size: int | None = None, collated: bool = False) -> dict[int, Structure]:
    """Returns the possible readings of a batch, by number of examples; those as a structure first.

    Raises:
        BatchError: If there are none.
    """
    readings = _analyze(batch, "", size, collated)
    if not readings:
        raise _mismatched(batch, columns(batch, _OBJECTS))
    return readings


def _preferred(readings: dict[int, Structure], size: int | None) -> Structure:
    first = next(iter(readings.values()))
    return first if size is None else readings.get(size, first)


def _analyze(leaf: Any, path: str, size: int | None, collated: bool) -> dict[int, Structure] | None:
    """Returns the possible readings of a leaf, by number of examples; None where any fits."""
    if leaf is None:
        return None
    if isinstance(leaf, ARRAYS):
        return {len(leaf): Structure(len(leaf))} if _is_column(leaf, path, frozenset()) else {}
    if _is_values(leaf):
        return {len(leaf): Structure(len(leaf), values=frozenset({path}))}
    children = _children_of(leaf)
    if children is None:
        return {}
    readings = [_analyze(child, path + step, size, collated) for step, child in children.items()]
    whole = reduce(_common, readings, None)
    if collated or hasattr(leaf, "_fields") or not isinstance(leaf, list | tuple):
        return whole
    return _readings_of_list(leaf, path, size, whole)


def _common(
    first: dict[int, Structure] | None, second: dict[int, Structure] | None
) -> dict[int, Structure] | None:
    """Returns the readings of two parts together, of the numbers of examples that both may have."""
    if first is None or second is None:
        return second if first is None else first
    return {
        size: Structure(size, *map(operator.or_, first[size][1:], second[size][1:]))
        for size in first
        if size in second
    }


def _readings_of_list(
    leaf: Any, path: str, size: int | None, whole: dict[int, Structure] | None
) -> dict[int, Structure] | None:
    """Returns the readings of a list or tuple: of its entries as parts, or as examples.

    Args:
        leaf: The list or tuple.
        path: Of it.
        size: The number of examples, where that is known.
        whole: The readings of it as a structure.
    """
    count = len(leaf)
    entries = {count: Structure(count, frozenset({path}))}
    is_asked = size is not None and count == size
    if whole is None or (leaf and all(isinstance(entry, _VALUES) for entry in leaf)):
        # Nothing but None, or a tuple of numbers, which may be something of the whole batch.
        return entries if is_asked else whole
    if not _are_alike(leaf):
        return whole
    if not path and (isinstance(leaf, tuple) or (count == 2 and count in whole)):
        return whole or (entries if _are_objects(leaf) else {})  # such as (inputs, targets)
    if _are_objects(leaf):
        same_keys = not isinstance(leaf[0], Mapping) or all(
            entry.keys() == leaf[0].keys() for entry in leaf
        )
        if is_asked or not whole or same_keys:
            return {**whole, **entries} if size is not None else entries
        return whole
    if not path and size is None and isinstance(leaf[0], ARRAYS):  # such as [inputs, targets]
        return whole
    if count in whole:
        return {**whole, count: whole[count]._replace(doubtful=whole[count].doubtful | {path})}
    return {**whole, **entries}


def _are_objects(leaf: Sequence[Any]) -> bool:
    """Returns whether the entries of a list are of any kind but tensors, arrays and lists."""
    return bool(leaf) and not any(
        entry is None
        or isinstance(entry, (*ARRAYS, *_VALUES))
        or (isinstance(entry, list | tuple) and not hasattr(entry, "_fields"))
        for entry in leaf
    )


def _are_alike(leaf: Sequence[Any]) -> bool:
    """Returns whether the entries of a list are of one kind, as the examples of a data set are."""
    kinds = {
        (type(entry), *((entry.dtype, entry.ndim) if isinstance(entry, ARRAYS) else ()))
        for entry in leaf
    }
    return len(kinds) == 1


def _is_values(leaf: Any) -> bool:
    """Returns whether it is a list of strings or numbers, some of which may be None."""
    if not isinstance(leaf, list | tuple) or hasattr(leaf, "_fields"):
        return False
    # A tuple of numbers may be the shape of an image, the same for the whole batch.
    values = _VALUES if isinstance(leaf, list) else (str, bytes)
    if not all(value is None or isinstance(value, values) for value in leaf):
        return False
    return any(value is not None for value in leaf) or leaf == []


def describe(value: Any) -> str:
    """Returns the type of a value, and its shape if it has one, in words."""
    if isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        return f"a {kind} {type(value).__name__}"
    if isinstance(value, ARRAYS):
        return f"{type(value).__name__}{list(value.shape)}"
    return f"a {type(value).__name__}"


def _join(values: Mapping[str, float], path: str, *columns: Any) -> Any:
    """Returns columns joined, of which those with a value at their path are filled with it."""
    first, value = columns[0], values.get(path)
    family = next(kind for kind in (*ARRAYS, type(first)) if isinstance(first, kind))
    if not all(isinstance(leaf, family) for leaf in columns):
        kinds = ", ".join(describe(leaf) for leaf in columns)
        raise BatchError(f"parts of mismatched types ({kinds}); give every batch the same ones")
    if not isinstance(first, ARRAYS):
        return type(first)(value for leaf in columns for value in leaf)
    shapes = {leaf.shape[1:] for leaf in columns}
    if value is not None and len(shapes) > 1 and len({*map(len, shapes)}) == 1:
        longest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        columns = tuple(_padded(leaf, longest, value) for leaf in columns)
    try:
        return torch.cat(columns) if isinstance(first, Tensor) else np.concatenate(columns)
    except (RuntimeError, ValueError) as error:
        listed = ", ".join(describe(leaf) for leaf in columns)
        raise BatchError(
            f"batch{path} has rows of several shapes ({listed}), which cannot be pooled: pad every "
            "batch to the same shape, or give pool=Pool(batch_size, pad=...), with the value that "
            "fills the shorter ones, or with a function that joins batches"
        ) from error


def _padded(leaf: Any, shape: tuple[int, ...], value: float) -> Any:
    """Returns the column, its rows filled at the end of each dimension."""
    sizes = (len(leaf), *shape)
    is_tensor = isinstance(leaf, Tensor)
    whole = leaf.new_full(sizes, value) if is_tensor else np.full(sizes, value, leaf.dtype)
    whole[tuple(slice(size) for size in leaf.shape)] = leaf
    return whole
