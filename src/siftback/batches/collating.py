"""Collate functions: whether the rows of a batch have the order of the examples it is made of."""

import copy
import operator
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, unpack_sequence
from torch.utils.data import default_collate

from siftback.batches.generators import Generators
from siftback.batches.tree import columns, leaves, read_structure
from siftback.errors import BatchError
from siftback.tensor_arguments import is_dense

Collate = Callable[[list[Any]], Any]


REORDERS = "changes the order of examples, by which their losses are known: give one that keeps it"


class Reordered(NamedTuple):
    """A batch whose rows have another order than the examples that were asked for.

    Attributes:
        batch: The batch.
        cause: What gives them in another order, in words.
    """

    batch: Any
    cause: str = "collate function"


class TestedCollate:
    """A collate function that is called again for the first batch, to see the order it gives.

    Losses are remembered by an example's place in its batch, so that a collate function that sorts
    gives them to other examples: see `reorders`. It is called with copies of the first batch's
    examples, and random states and the attributes of the function's object are restored.

    Sent to worker processes, each of which tests it with the first batch that it makes.

    Args:
        function: The collate function.
        read: A data set's ``__getitems__``, which is tested too; None without one.

    Attributes:
        function: The collate function.
        tested: Whether it was tested.

    >>> by_value = TestedCollate(lambda examples: torch.tensor(sorted(examples)))
    >>> by_value([2, 3, 1]), by_value([2, 3, 1])
    (Reordered(batch=tensor([1, 2, 3]), cause='collate function'), tensor([1, 2, 3]))
    """

    def __init__(self, function: Collate, read: Any = None) -> None:
        self.function, self.tested, self._read = function, False, read

    def __call__(self, examples: list[Any]) -> Any:
        """The batch; one that is `Reordered` if the first batch's rows are in another order."""
        if self.tested or len(examples) < 2:  # of one, every order is the same
            return self.function(examples)
        self.tested = True

        def batch_of(order: list[int]) -> Any:
            return self.function(copy.deepcopy([examples[index] for index in order]))

        with undisturbed(self.function, self._read):
            cause = "collate function" if reorders(batch_of, len(examples)) else ""
            # Which examples a batch has is unknown in a worker.
            if self._read and not cause and reorders(self._read, 5):
                cause = "data set's __getitems__"
        batch = self.function(examples)
        return Reordered(batch, cause) if cause else batch


def with_test(collate: Collate, read: Any = None) -> Collate:
    """The collate function, tested with the first batch: PyTorch's own keeps the order."""
    return collate if collate is default_collate and not read else TestedCollate(collate, read)


def reorders(batch_of: Callable[[list[int]], Any], size: int) -> bool:
    """Returns whether a function certainly gives examples in another order than was asked for.

    They are asked for as they are, in reverse, and with the second one last; of two, with the first
    one twice. One that keeps the order gives rows that differ likewise; one that sorts gives the
    same rows. No order of places but the first commutes with both others, so that what reorders by
    place alone, as a shuffle, is seen too. Rows that are random, or the same for all examples, say
    nothing; nor does a function that fails.

    Args:
        batch_of: Returns a batch of examples by index, in [0, size).
        size: At least 2.

    >>> reorders(torch.tensor, 3), reorders(sorted, 3), reorders(lambda order: order[::-1], 3)
    (False, True, True)
    """
    forward = [*range(size)]
    orders = [forward[::-1], [0, *forward[2:], 1] if size > 2 else [0, 0]]
    is_reordered = False
    with suppress(Exception):
        rows, *trials = [row_keys(batch_of(order), size) for order in (forward, *orders)]
        for path, keys in rows.items():
            returned = [trial.get(path, []) for trial in trials]
            if len({*keys}) == 1 or len(keys) != size or [] in returned:
                continue
            expected = [[keys[index] for index in order] for order in orders]
            if returned == expected:
                return False
            # The other one of two, where one is asked for twice; else the same rows.
            others = [[keys[~index] for index in order] for order in orders]
            trios = zip(returned, expected, others, strict=True)
            is_reordered |= all(sorted(a) in (sorted(b), sorted(c)) for a, b, c in trios)
    return is_reordered


def are_reordered(rows: dict[str, list[bytes]], expected: dict[str, list[bytes]]) -> bool:
    """Returns whether rows are certainly not in the order that was expected.

    True where those of some column are the same, in another order, and in the expected one in
    none: rows that are random, or the same for all examples, say nothing.

    Args:
        rows: Of a batch, see `row_keys`.
        expected: Likewise, as they were expected.

    >>> rows = row_keys(torch.tensor([3, 1, 2]))
    >>> are_reordered(row_keys(torch.tensor([1, 2, 3])), rows), are_reordered(rows, rows)
    (True, False)
    """
    told = {path: keys for path, keys in expected.items() if path in rows and keys != keys[::-1]}
    if any(rows[path] == keys for path, keys in told.items()):
        return False
    return any(sorted(rows[path]) == sorted(keys) for path, keys in told.items())


def row_keys(batch: Any, size: int | None = None, path: str = "") -> dict[str, list[bytes]]:
    """Returns a key of each row, of each column of a batch by path; nothing where unknown.

    Args:
        batch: A batch.
        size: The number of its examples, where it is known from elsewhere.
        path: Where it is within another batch.
    """
    if isinstance(batch, PackedSequence):
        return {path: [_key(row) for row in unpack_sequence(batch)]}
    rows = {}
    with suppress(BatchError):
        structure = read_structure(batch, size)
        for step, column in columns(batch, structure.lists):
            if len(column) == structure.size:
                rows[path + step] = [_key(row) for row in column]
    # Else one by one, as what has no rows, such as a number for all, says nothing of the others.
    entries: Any = vars(batch) if not path and _has_attributes(batch) else batch
    entries = dict(enumerate(entries)) if isinstance(entries, list | tuple) else entries
    if size and not rows and isinstance(entries, Mapping):
        for step, entry in entries.items():
            rows |= row_keys(entry, size, f"{path}[{step!r}]")
    return rows


def _key(value: Any, *, is_inner: bool = False) -> bytes:
    """Bytes that are equal for equal examples, of tensors and what is made of them.

    Of an object without a ``__repr__`` of its own they are those of its attributes. Addresses are
    left out, as another object may have had them before.
    """
    reached = []
    for leaf in leaves(value):
        if is_dense(leaf):  # else a tensor has no bytes to look at, and says what it is
            resolved = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
            leaf = resolved.reshape(-1).view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray):
            reached.append(leaf.tobytes())
        elif not is_inner and _has_attributes(leaf) and repr(leaf) == object.__repr__(leaf):
            reached.append(_key(list(vars(leaf).values()), is_inner=True))
        else:
            reached.append(re.sub(" at 0x[0-9A-Fa-f]+", "", repr(leaf)).encode())
    return b"|".join(reached)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute of an object, which then stands before that of its class."""
    variables = vars(owner)
    before = {name: variables[name]} if name in variables else {}
    variables[name] = value
    try:
        yield
    finally:
        del variables[name]
        variables.update(before)


@contextmanager
def undisturbed(*roots: Any) -> Iterator[None]:
    """Restores random states, and the attributes of objects, whatever is done in between.

    The objects are those reached from the roots by attributes, methods and arguments of partial
    functions; but no modules, whose buffers `untouched` restores. Containers and small tensors
    among the attributes are restored too.

    Args:
        roots: Functions and objects.
    """
    objects = _reached(roots)
    attributes = [(member, dict(vars(member))) for member in objects if _has_attributes(member)]
    contents: list[tuple[Any, Any]] = [
        (member, copy.copy(member)) for member in objects if isinstance(member, _CONTAINERS)
    ]
    tensors = [leaf for leaf in objects if isinstance(leaf, Tensor) and leaf.numel() < _MANY]
    values = [(member, member.detach().clone()) for member in tensors]
    generators = Generators(objects)
    states, python, numpy = generators.states(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for member, before in attributes:
            _put_back(vars(member), before)
        for member, before in contents:
            if isinstance(member, dict):
                _put_back(member, before)
            elif isinstance(member, set):
                member.intersection_update(before)
                member.update(before)
            elif len(member) != len(before) or any(map(operator.is_not, member, before)):
                member.clear()
                member.extend(before)
        for tensor, value in values:
            tensor.data.copy_(value)
        generators.put_back(states)
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def explaining(note: str) -> Iterator[None]:
    """Adds to an error when it arose, as it may be of the user's own model."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


_CONTAINERS = (list, dict, set, deque)
_MANY = 10_000


def _put_back(entries: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Restores what was changed alone, as another thread may read the rest."""
    for key in entries.keys() - before.keys():
        del entries[key]
    for key, value in before.items():
        if key not in entries or entries[key] is not value:
            entries[key] = value


def _has_attributes(member: Any) -> bool:
    kinds = (type, ModuleType, FunctionType, partial, nn.Module, Tensor)
    return hasattr(member, "__dict__") and not isinstance(member, kinds)


def _reached(roots: Iterable[Any]) -> list[Any]:
    reached: list[Any] = []
    seen: set[int] = set()
    waiting = [*roots]
    while waiting and len(reached) < _MANY:
        member = waiting.pop()
        if isinstance(member, partial):
            waiting += [member.func, *member.args, *member.keywords.values()]
            continue
        member = member.__self__ if isinstance(member, MethodType) else member
        known = isinstance(member, (*_CONTAINERS, Tensor)) or _has_attributes(member)
        if id(member) in seen or not known:
            continue
        seen.add(id(member))
        reached.append(member)
        if isinstance(member, _CONTAINERS):
            if len(member) < _MANY:
                waiting += member.values() if isinstance(member, dict) else member
        elif not isinstance(member, Tensor):
            waiting += vars(member).values()
    return reached
