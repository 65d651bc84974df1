"""The structure of a batch: its columns, and which lists hold an example each.

A batch is a tensor or array, or a tuple, list, mapping, named tuple or dataclass of batches.
Tensors and arrays hold one example per row. ``None`` is kept as it is. All parts have the same
number of examples.

A list or tuple is a structure, such as ``(inputs, targets)``, or holds one example per entry, such
as images of any size, or a dict of boxes for each. `read_structure` tells them apart once, by the
number of examples where that is known; the paths of the second kind are passed to the other
functions for all batches of a loader. A list of strings and Python numbers, or a tuple of strings,
always holds one example per entry.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from siftback.errors import BatchError

_VALUES = (str, bytes, bool, int, float)
ARRAYS = (Tensor, np.ndarray)

Lists = frozenset[str]
"""Paths within a batch, such as ``[0]``, of lists and tuples that hold one example per entry."""


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
    return Structure(reading.size, reading.lists | reading.doubtful | reading.values)


def size(batch: Any, known: int | None = None, *, lists: Lists | None = None) -> int:
    """Returns the number of examples in a batch.

    Args:
        batch: A batch.
        known: N, where it is known from elsewhere; returned if the batch may have as many.
        lists: The lists that hold one example per entry, from `read_structure`.

    >>> size({"image": torch.zeros(4, 3, 8, 8), "name": ["a", "b", "c", "d"]})
    4

    Raises:
        BatchError: If parts have mismatched sizes, a part has no size, or there is no part.
    """
    if lists is None:
        return _preferred(_candidates(batch, known, False), known).size
    sizes = {path: len(leaf) for path, leaf in columns(batch, lists)}
    if len(set(sizes.values())) != 1:
        raise _mismatched(batch, sizes)
    return next(iter(sizes.values()))


def leaves(batch: Any) -> list[Any]:
    """Returns the leaves of a batch, which are no structure, whatever they are; without None."""
    if batch is None:
        return []
    if isinstance(batch, ARRAYS) or is_values(batch) or (children := children_of(batch)) is None:
        return [batch]
    return [leaf for child in children.values() for leaf in leaves(child)]


def is_column(leaf: Any, path: str, lists: Lists) -> bool:
    """Returns whether a leaf holds a row or an entry per example."""
    if isinstance(leaf, Tensor):  # in rows that can be taken and joined
        return leaf.ndim > 0 and leaf.layout == torch.strided and not leaf.is_nested
    if isinstance(leaf, np.ndarray):
        return leaf.ndim > 0
    return isinstance(leaf, list | tuple) and (path in lists or is_values(leaf))


def columns(batch: Any, lists: Lists | None, path: str = "") -> list[tuple[str, Any]]:
    """Returns the columns of a batch, which hold a row or an entry per example, by path.

    Args:
        batch: A batch.
        lists: The lists that hold one example per entry; None is all whose entries are objects.
        path: Of the batch within another one.

    Raises:
        BatchError: If a part has no rows.
    """
    if batch is None:
        return []
    if is_column(batch, path, lists or frozenset()):
        return [(path, batch)]
    if lists is None and isinstance(batch, list | tuple) and _are_objects(batch):
        return [(path, batch)]
    children = children_of(batch)
    if children is None:
        raise without_rows(batch, path)
    return [leaf for step, child in children.items() for leaf in columns(child, lists, path + step)]


def without_rows(leaf: Any, path: str) -> BatchError:
    """Returns the error of a leaf that cannot be split into examples."""
    if isinstance(leaf, ARRAYS):
        return BatchError(
            f"batch{path} is {describe(leaf)} without rows; give it a row per example"
        )
    return BatchError(
        f"batch{path} is {describe(leaf)}, which has no rows; "
        "give a tensor, or a list with one value per example"
    )


def _mismatched(batch: Any, sizes: Mapping[str, int]) -> BatchError:
    if not sizes:
        return BatchError(f"a batch without examples: {describe(batch)}; give at least one tensor")
    listed = ", ".join(f"batch{path}: {length}" for path, length in sizes.items())
    return BatchError(f"parts of mismatched sizes ({listed}); give each part a row per example")


def _candidates(batch: Any, size: int | None, collated: bool) -> dict[int, Structure]:
    """Returns the possible readings of a batch, by number of examples; those as a structure first.

    Raises:
        BatchError: If there are none.
    """
    readings = _readings(batch, "", size, collated)
    if not readings:
        raise _mismatched(batch, {path: len(leaf) for path, leaf in columns(batch, None)})
    return readings


def _preferred(readings: dict[int, Structure], size: int | None) -> Structure:
    first = next(iter(readings.values()))
    return first if size is None else readings.get(size, first)


def lists_of(batch: Any) -> Lists:
    """Returns the lists of a batch by itself that hold one example per entry."""
    reading = _preferred(_candidates(batch, None, False), None)
    return reading.lists | reading.values


def _readings(
    leaf: Any, path: str, size: int | None, collated: bool
) -> dict[int, Structure] | None:
    """Returns the possible readings of a leaf, by number of examples; None where any fits."""
    if leaf is None:
        return None
    if isinstance(leaf, ARRAYS):
        return {len(leaf): Structure(len(leaf))} if is_column(leaf, path, frozenset()) else {}
    if is_values(leaf):
        return {len(leaf): Structure(len(leaf), values=frozenset({path}))}
    children = children_of(leaf)
    if children is None:
        return {}
    readings = [_readings(child, path + step, size, collated) for step, child in children.items()]
    whole = reduce(_common, readings, None)
    if collated or is_named_tuple(leaf) or not isinstance(leaf, list | tuple):
        return whole
    return _readings_of_list(leaf, path, size, whole)


def _common(
    first: dict[int, Structure] | None, second: dict[int, Structure] | None
) -> dict[int, Structure] | None:
    """Returns the readings of two parts together, of the numbers of examples that both may have."""
    if first is None or second is None:
        return second if first is None else first
    joined: dict[int, Structure] = {}
    for size in first.keys() & second.keys():
        kinds = zip(first[size][1:], second[size][1:], strict=True)
        joined[size] = Structure(size, *(first | second for first, second in kinds))
    return {size: joined[size] for size in first if size in joined}


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
        doubtful = whole[count].doubtful | {path}
        return {**whole, count: whole[count]._replace(doubtful=doubtful)}
    return {**whole, **entries}


def _are_objects(leaf: Sequence[Any]) -> bool:
    """Returns whether the entries of a list are of any kind but tensors, arrays and lists."""
    return bool(leaf) and not any(
        entry is None
        or isinstance(entry, (*ARRAYS, *_VALUES))
        or (isinstance(entry, list | tuple) and not is_named_tuple(entry))
        for entry in leaf
    )


def _are_alike(leaf: Sequence[Any]) -> bool:
    """Returns whether the entries of a list are of one kind, as the examples of a data set are."""
    if not leaf:
        return False
    first = leaf[0]
    if isinstance(first, ARRAYS):
        return all(
            isinstance(entry, ARRAYS)
            and type(entry) is type(first)
            and (entry.dtype, entry.ndim) == (first.dtype, first.ndim)
            for entry in leaf
        )
    return all(type(entry) is type(first) for entry in leaf)


def children_of(batch: Any) -> dict[str, Any] | None:
    """Returns the batches that a batch consists of, by their path within it, such as ``[0]``."""
    if isinstance(batch, PackedSequence):  # a named tuple of which no rows can be taken
        return None
    if isinstance(batch, Mapping):
        return {f"[{key!r}]": value for key, value in batch.items()}
    if is_named_tuple(batch):
        return {f".{name}": getattr(batch, name) for name in batch._fields}
    if isinstance(batch, list | tuple):
        return {f"[{index}]": value for index, value in enumerate(batch)}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {f".{f.name}": getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return None


def is_values(leaf: Any) -> bool:
    """Returns whether it is a list of strings or numbers, some of which may be None."""
    if not isinstance(leaf, list | tuple) or hasattr(leaf, "_fields"):
        return False
    # A tuple of numbers may be the shape of an image, the same for the whole batch.
    values = _VALUES if isinstance(leaf, list) else (str, bytes)
    if not all(value is None or isinstance(value, values) for value in leaf):
        return False
    return any(value is not None for value in leaf) or leaf == []


def is_named_tuple(leaf: Any) -> bool:
    """Returns whether it is a named tuple."""
    return isinstance(leaf, tuple) and hasattr(leaf, "_fields")


def describe(value: Any) -> str:
    """Returns the type of a value, and its shape if it has one, in words."""
    if isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        return f"a {kind} {type(value).__name__}"
    if isinstance(value, ARRAYS):
        return f"{type(value).__name__}{list(value.shape)}"
    return f"a {type(value).__name__}"
