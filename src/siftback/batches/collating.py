"""Collate functions: whether the rows of a batch have the order of the examples it is made of."""

import copy
import operator
import random
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
    """A collate function that is called once more for the first batch, to see the order it gives.

    Losses are remembered by an example's place in its batch, so that a collate function that sorts
    gives them to other examples. Called with the first batch's examples in reverse, one that keeps
    their order gives the rows in reverse. The examples of that call are copies, and random states
    and the attributes of the function's object are restored.

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
        reverse = self._of_reversed(examples)
        batch = self.function(examples)
        if reverse is not None and _reorders(batch, reverse, len(examples)):
            return Reordered(batch)
        if self._read:  # of a few others, as which these are is not known in a worker process
            with suppress(Exception), undisturbed(self._read):
                if _reorders(self._read([0, 1, 2, 3, 4]), self._read([4, 3, 2, 1, 0]), 5):
                    return Reordered(batch, "data set's __getitems__")
        return batch

    def _of_reversed(self, examples: list[Any]) -> Any:
        """The batch of the examples in reverse; None where there is none."""
        try:
            copies = copy.deepcopy(list(reversed(examples)))
            with undisturbed(self.function):
                return self.function(copies)
        except Exception:  # of what cannot be copied, or of a function that expects one order
            return None


def with_test(collate: Collate, read: Any = None) -> Collate:
    """The collate function, tested with the first batch: PyTorch's own keeps the order."""
    is_known = collate is default_collate and not read
    return collate if is_known else TestedCollate(collate, read)


def _reorders(batch: Any, reverse: Any, size: int) -> bool:
    """Whether rows are certainly not in the order of the examples.

    True where rows of some part are the same in both batches, not in reverse, and in reverse in
    none: rows that are random, or the same for all examples, say nothing.

    Args:
        batch: A batch.
        reverse: That of the same examples in reverse.
        size: The number of examples.
    """
    rows, others = _rows(batch, size), _rows(reverse, size)
    if rows.keys() != others.keys():
        return False
    told = {path: keys for path, keys in rows.items() if keys != keys[::-1]}
    if any(others[path] == keys[::-1] for path, keys in told.items()):
        return False
    return any(sorted(others[path]) == sorted(keys) for path, keys in told.items())


def _rows(batch: Any, size: int, path: str = "") -> dict[str, list[bytes]]:
    """Returns a key of each row, of each column of a batch by path; nothing if unknown."""
    rows = {}
    if isinstance(batch, PackedSequence):
        return {path: [_key(row) for row in unpack_sequence(batch)]}
    with suppress(BatchError):
        for step, leaf in columns(batch, read_structure(batch, size).lists):
            if len(leaf) == size:
                rows[path + step] = [_key(row) for row in leaf]
    # Else one by one, as what has no rows, such as a number for all, says nothing of the others.
    leaves_of: Any = vars(batch) if not path and _has_attributes(batch) else batch
    leaves_of = dict(enumerate(leaves_of)) if isinstance(leaves_of, list | tuple) else leaves_of
    if not rows and isinstance(leaves_of, Mapping):
        for step, leaf in leaves_of.items():
            rows |= _rows(leaf, size, f"{path}[{step!r}]")
    return rows


def _key(value: Any) -> bytes:
    """Bytes that are equal for equal examples, of tensors and what is made of them."""
    reached = []
    for leaf in leaves(value):
        if isinstance(leaf, Tensor):
            leaf = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        is_array = isinstance(leaf, np.ndarray)
        reached.append(leaf.tobytes() if is_array else repr(leaf).encode())
    return b"|".join(reached)


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
