"""Batches of every kind: rows, joins, and messages that name the part that is wrong."""

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import MutableMapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from siftback.batches import tree
from siftback.errors import BatchError


class Named(NamedTuple):
    image: torch.Tensor
    label: list[str]


@dataclasses.dataclass
class Plain:
    image: torch.Tensor
    label: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    image: torch.Tensor
    nested: dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    image: torch.Tensor
    label: torch.Tensor


class Encoding(UserDict):
    """As a tokenizer's batch: a mapping that holds more than its items."""

    def __init__(self, data: dict[str, Any], language: str = "en") -> None:
        super().__init__(data)
        self.language = language


class Wrapped(MutableMapping):
    """A mapping whose shallow copy shares its items."""

    def __init__(self, items):
        self.inner = dict(items)

    def __getitem__(self, key):
        return self.inner[key]

    def __setitem__(self, key, value):
        self.inner[key] = value

    def __delitem__(self, key):
        del self.inner[key]

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


def images(rows):
    return torch.stack([torch.full((2, 3, 3), float(row)) for row in rows])


# Each makes a batch of the given rows.
KINDS = {
    "tensor": lambda rows: torch.tensor(rows),
    "tensor of ones dimension more": images,
    "array": lambda rows: np.array(rows),
    "pair": lambda rows: (images(rows), torch.tensor(rows)),
    "list of parts": lambda rows: [torch.tensor(rows), torch.tensor(rows) * 2],
    "strings": lambda rows: [f"row {row}" for row in rows],
    "dict": lambda rows: {"image": images(rows), "name": [str(row) for row in rows]},
    "dict in tuple in dict": lambda rows: {"a": ({"b": torch.tensor(rows)}, None)},
    "ordered dict": lambda rows: OrderedDict(z=torch.tensor(rows), a=torch.tensor(rows)),
    "default dict": lambda rows: defaultdict(list, x=torch.tensor(rows)),
    "user dict": lambda rows: Encoding({"ids": torch.tensor(rows)}, language="de"),
    "other mapping": lambda rows: Wrapped({"ids": torch.tensor(rows)}),
    "named tuple": lambda rows: Named(images(rows), [str(row) for row in rows]),
    "dataclass": lambda rows: Plain(images(rows), torch.tensor(rows)),
    "frozen": lambda rows: Frozen(images(rows), {"deep": torch.tensor(rows)}),
    "slots": lambda rows: Slotted(images(rows), torch.tensor(rows)),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def content(batch):
    """A batch as nested Python values with the types of its structure, to compare."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return type(batch), str(batch.dtype), batch.tolist()
    if isinstance(batch, UserDict | Wrapped | dict):
        return type(batch), [(key, content(value)) for key, value in batch.items()]
    if dataclasses.is_dataclass(batch):
        return type(batch), [content(getattr(batch, f.name)) for f in dataclasses.fields(batch)]
    if isinstance(batch, list | tuple):
        return type(batch), [content(part) for part in batch]
    return batch


@every_kind
def test_rows_and_joins_of_every_kind(make):
    batch, given = make([0, 1, 2, 3]), content(make([0, 1, 2, 3]))
    assert tree.size(batch) == 4
    assert content(tree.take(batch, torch.tensor([3, 1]))) == content(make([3, 1]))
    assert tree.size(tree.take(batch, torch.tensor([], dtype=torch.int64))) == 0
    first, rest = tree.split(batch, 1)
    assert content(first) == content(make([0]))
    assert content(tree.concatenate([rest, first])) == content(make([1, 2, 3, 0]))
    assert content(tree.clone(batch)) == given
    assert content(tree.to_device(batch, torch.device("cpu"))) == given
    assert content(batch) == given  # the source is as it was


def test_what_a_mapping_holds_beyond_its_items_is_kept():
    assert tree.take(KINDS["user dict"]([1, 2]), torch.tensor([0])).language == "de"


def test_copies_share_no_memory():
    batch = {"x": torch.arange(4.0), "y": np.arange(4), "z": ["a", "b", "c", "d"]}
    for copied in (tree.take(batch, torch.arange(4)), tree.clone(batch)):
        copied["x"].zero_()
        copied["y"][:] = 0
        copied["z"][0] = "other"
    assert batch["x"].tolist() == [0, 1, 2, 3]
    assert batch["y"].tolist() == [0, 1, 2, 3]
    assert batch["z"] == ["a", "b", "c", "d"]


def test_layout_is_kept():
    batch = torch.rand(6, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    taken = tree.take(batch, torch.tensor([0, 2, 4]))
    joined = tree.concatenate([taken, tree.clone(tree.split(batch, 2)[1])])
    for part in (taken, joined):
        assert part.is_contiguous(memory_format=torch.channels_last)
    assert joined.equal(torch.cat((batch[[0, 2, 4]], batch[2:])))


UNFIT = {
    "mismatched sizes": (
        (torch.zeros(3), {"y": torch.zeros(2), "z": ["a", "b", "c"]}),
        r"mismatched sizes \(batch\[0\]: 3, batch\[1\]\['y'\]: 2, batch\[1\]\['z'\]: 3\)",
    ),
    "mismatched sizes in a dataclass": (
        Plain(torch.zeros(3), torch.zeros(4)),
        r"batch\.image: 3, batch\.label: 4.*give each part a row per example",
    ),
    "a number": (
        {"x": torch.zeros(2), "epoch": 3},
        r"batch\['epoch'\] is a int, which has no rows",
    ),
    "a scalar": (
        (torch.zeros(2), torch.tensor(1.0)),
        r"batch\[1\] is Tensor\[\], which has no rows",
    ),
    "a lone string": ("images", r"batch is a str, which has no rows: give a tensor"),
    "nothing": ({}, r"a batch without examples: a dict; give at least one tensor"),
    "None": (None, r"a batch without examples"),
}


@pytest.mark.parametrize(("batch", "message"), UNFIT.values(), ids=UNFIT)
def test_a_batch_that_cannot_be_taken_apart_is_named(batch, message):
    with pytest.raises(BatchError, match=message):
        tree.size(batch)


MISMATCHED = {
    "types": ([(torch.zeros(2),), [torch.zeros(2)]], r"mismatched structure \(a tuple, a list\)"),
    "keys": ([{"a": torch.zeros(2)}, {"b": torch.zeros(2)}], r"mismatched parts .*'a'.*'b'"),
    "lengths": ([(torch.zeros(1),), (torch.zeros(1), torch.zeros(1))], r"mismatched parts"),
    "shapes": ([torch.zeros(2, 3), torch.zeros(2, 4)], r"Tensor\[2, 3\], Tensor\[2, 4\].*pad"),
    "shapes of arrays": ([np.zeros((2, 3)), np.zeros((2, 4))], r"ndarray\[2, 4\].*pad"),
    "a part and a list": ([["a"], torch.zeros(1)], r"mismatched types \(a list, Tensor\[1\]\)"),
    "a tensor and an array": ([np.zeros(1), torch.zeros(1)], r"ndarray\[1\], Tensor\[1\]"),
    "missing part": ([(torch.zeros(1), None), (torch.zeros(1), torch.zeros(1))], r"mismatched"),
}


@pytest.mark.parametrize(("batches", "message"), MISMATCHED.values(), ids=MISMATCHED)
def test_batches_that_do_not_fit_together_are_named(batches, message):
    with pytest.raises(BatchError, match=message):
        tree.concatenate(batches)
