"""Pooling kept examples into full batches."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from siftback.arguments import checked_choice, checked_integer, shown
from siftback.batches import tree
from siftback.batches.reading import Lists, read
from siftback.errors import BatchError, ConfigError, StateError
from siftback.state import (
    Check,
    anything,
    check_digest,
    check_entries,
    flag,
    integer,
    list_of,
    nothing,
    raise_damaged,
    seal,
    tensor,
    tuple_of,
)
from siftback.tensor_arguments import checked_rows

DropLast = bool | Literal["carry"]

Pad = Mapping[Any, float] | Callable[[list[Any]], Any]
"""How batches of several shapes are joined: values by part of the batch, or a function."""


class Weighted(NamedTuple):
    """A batch with what belongs to its examples, pooled together.

    Attributes:
        batch: Of n examples.
        weights: float32[n], their loss weights.
        indices: int64[n], their dataset indices; None where unknown.
    """

    batch: Any
    weights: Tensor
    indices: Tensor | None


class Pool:
    """Pools examples and releases batches of exactly ``batch_size``, in the order of arrival.

    The pool of Algorithm 1 in Jiang et al. 2019 (``batch_bp``), over nested batches
    (see `siftback.batches.tree`).

    A single row, at which batch normalisation stops, is never released as a batch. Where it is
    known how many examples an epoch still adds, the last two batches share their rows: B and 1
    become B - 1 and 2, and 2 and 1 become 3. Where it is not, the row stays for the next epoch.

    Args:
        batch_size: Examples per released batch.
        drop_last: How to treat the rest at the end of an epoch: False releases it as a smaller
            batch, of two rows or more, True drops it, "carry" keeps it for the next epoch.
        pad: For batches whose rows differ in shape, such as those padded to the longest of each:
            the value that fills shorter rows at their end, by key of a dict, position in a tuple
            or list, or name of a field, such as ``{"input_ids": 0, "labels": -100}``; or a
            function that joins a list of batches into one.

    Attributes:
        dropped: Number of examples that ``drop_last=True`` has dropped.
        lists: Which lists in a batch hold one example per entry, see `read`; None before the
            first batch, which says it unless it is set.

    Raises:
        ConfigError: If ``batch_size`` is not a positive integer, or ``drop_last`` is not one of
            the three values, or ``pad`` neither a mapping nor a function.

    On releasing:

    Raises:
        BatchError: If the rows to release differ in shape and ``pad`` does not say how to join
            them.

    >>> import torch
    >>> pool = Pool(batch_size=2)
    >>> pool.add(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 3, 4]))
    >>> list(pool.full_batches())
    [tensor([0, 3])]
    >>> list(pool.end_epoch()), len(pool)
    ([], 1)
    """

    def __init__(
        self, batch_size: int, drop_last: DropLast = False, *, pad: Pad | None = None
    ) -> None:
        batch_size = checked_integer("batch_size", batch_size, 1)
        checked_choice("drop_last", drop_last, False, True, "carry")
        if not (pad is None or callable(pad) or isinstance(pad, Mapping)):
            raise ConfigError(
                f"pad={shown(pad)}: give the fill values by name, such as "
                '{"input_ids": 0, "labels": -100}, or a function that joins a list of batches'
            )
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.pad = pad
        self.dropped = 0
        self.lists: Lists | None = None
        self._pool: deque[tuple[Any, int]] = deque()  # batches, and their sizes
        self._pooled = 0

    def __len__(self) -> int:
        return self._pooled

    def add(self, batch: Any, rows: Tensor | None = None, size: int | None = None) -> None:
        """Adds a batch, or copies of some of its rows.

        Args:
            batch: A nested batch of N examples.
            rows: int64[k], the positions of the rows to add; None adds all.
            size: N, for a batch of unknown structure. It is released whole or not at all.

        Raises:
            BatchError: If the parts of the batch have mismatched sizes.
        """
        lists = None
        if rows is not None or size is None:
            lists = self._lists_of(batch)
        if rows is not None:
            batch = tree.take(batch, checked_rows("rows", rows), lists)
        elif size is None and self._pooled + tree.size(batch, lists=lists) < self.batch_size:
            batch = tree.clone(batch)  # it waits, and its loader may fill the same memory again
        added = tree.size(batch, lists=lists) if size is None else size
        if added:
            self._pool.append((batch, added))
            self._pooled += added

    def full_batches(self, to_come: int | None = None) -> Iterator[Any]:
        """Releases batches of ``batch_size`` examples while there are enough.

        Args:
            to_come: Examples that this epoch still adds, where that is known: the batch before
                the last one then leaves it a second row.
        """
        while self._pooled >= (size := self._next_size(self._pooled, to_come)):
            yield self._release(size)

    def ready(self, to_come: int | None = None) -> int:
        """Returns the number of batches that `full_batches` releases now."""
        count, pooled = 0, self._pooled
        while pooled >= (size := self._next_size(pooled, to_come)):
            count, pooled = count + 1, pooled - size
        return count

    def end_epoch(self, *, single: bool = False) -> Iterator[Any]:
        """Treats the rest as ``drop_last`` says; releases at most one smaller batch.

        Args:
            single: Whether a single row is released too; it otherwise stays for the next epoch.
        """
        if self.drop_last == "carry" or not self._pooled:
            return
        count = self._pooled
        stays = count == 1 < self.batch_size and not (self.drop_last or single)
        if stays and _is_structured(*self._pool[0]):
            return
        rest = self._release(count)
        if self.drop_last:
            self.dropped += count
        else:
            yield rest

    def abandon(self) -> None:
        """Drops the rest of an interrupted epoch, unless ``drop_last="carry"``."""
        if self.drop_last != "carry":
            self.dropped += self._pooled
            self._pool.clear()
            self._pooled = 0

    def state_dict(self) -> dict[str, Any]:
        """A copy of the pooled batches."""
        # Copies, as training may change released batches in place. Not joined, as padding depends
        # on what is released together.
        pooled = [tree.clone(batch) for batch, _ in self._pool]
        weighted = bool(pooled) and isinstance(pooled[0], Weighted)
        # Plain tuples, which `torch.load(weights_only=True)` takes.
        pool = [tuple(batch) for batch in pooled] if weighted else pooled
        state = {
            "settings": self.settings(),
            "weighted": weighted,
            "indexed": [weighted and batch.indices is not None for batch in pooled],
            "counts": [count for _, count in self._pool],
            "pool": pool,
            "dropped": self.dropped,
        }
        return seal(state)

    def settings(self) -> dict[str, Any]:
        """The arguments, by name, that a state must have been saved with to fit."""
        pad: Any = callable(self.pad)  # of which no state can tell whether it is the same
        if isinstance(self.pad, Mapping):
            pad = {str(name): repr(value) for name, value in self.pad.items()}
        return {"batch_size": self.batch_size, "drop_last": self.drop_last, "pad": pad}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of another batch size or ``drop_last``, or batches have other
                numbers of examples than it says.
        """
        check_digest(self, state)
        parts = {"weighted": flag, "counts": list_of(integer(1)), "dropped": integer()}
        check_entries(self, state, parts, self.settings())
        counts, weighted = state["counts"], state["weighted"]
        check_entries(self, state, {"indexed": tuple_of(*[flag] * len(counts))})
        pooled = zip(counts, state["indexed"], strict=True)
        batches = [_holds(count, weighted, indexed) for count, indexed in pooled]
        check_entries(self, state, {"pool": tuple_of(*batches)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the examples of another pool.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        try:
            pooled = [tree.clone(Weighted(*b) if state["weighted"] else b) for b in state["pool"]]
        except (BatchError, TypeError) as error:
            raise StateError(f"the state's pooled batches are damaged: {error}") from error
        self._pool.clear()
        self._pooled = 0
        for batch, count in zip(pooled, state["counts"], strict=True):
            self.add(batch, size=count)
        self.dropped = state["dropped"]

    def _next_size(self, pooled: int, to_come: int | None) -> int:
        """Returns how many examples the next batch has, of which some are pooled."""
        size = self.batch_size
        if to_come is None or self.drop_last or size == 1 or pooled + to_come != size + 1:
            return size
        if size == 2:
            return 3
        return size - 1 if self._can_cut(self._pooled - pooled + size - 1) else size

    def _can_cut(self, count: int) -> bool:
        """Returns whether a batch can end after so many of the pooled examples.

        It cannot within a batch of unknown structure, which is released whole or not at all.
        """
        for batch, size in self._pool:
            if count < size:
                return count == 0 or _is_structured(batch, size)
            count -= size
        return True

    def _release(self, count: int) -> Any:
        self._pooled -= count
        taken: list[Any] = []
        while count:
            batch, held = self._pool.popleft()
            if held > count:
                batch, rest = tree.split(batch, count, self._lists_of(batch))
                # The rest is copied, so that it does not keep the released batch's memory alive,
                # unless the next batch takes it immediately.
                stays = self._pooled < self.batch_size
                self._pool.appendleft((tree.clone(rest) if stays else rest, held - count))
                held = count
            taken.append(batch)
            count -= held
        return self.join(taken)

    def join(self, taken: list[Any]) -> Any:
        """Joins batches into one, as those are that it releases.

        Raises:
            BatchError: If their rows differ in shape and ``pad`` does not say how to join them.
        """
        if isinstance(taken[0], Weighted):
            batches, weights, indices = zip(*taken, strict=True)
            rest = tree.concatenate(list(zip(weights, indices, strict=True)), lists=frozenset())
            return Weighted(self.join(list(batches)), *rest)
        if callable(self.pad):
            return taken[0] if len(taken) == 1 else self.pad(taken)
        return tree.concatenate(taken, self.pad, self._lists_of(taken[0]))

    def _lists_of(self, batch: Any) -> Lists:
        """The lists in a batch, or in what is pooled with its weights, of one example per entry."""
        weighted = isinstance(batch, Weighted)
        if self.lists is None:
            inner = batch.batch if weighted else batch
            self.lists = read(inner, len(batch.weights) if weighted else None).lists
        return frozenset(f".batch{path}" for path in self.lists) if weighted else self.lists


def _is_structured(batch: Any, size: int) -> bool:
    """Returns whether a batch of some examples can be split, and joined with others."""
    try:
        return tree.size(batch.batch if isinstance(batch, Weighted) else batch) == size
    except BatchError:
        return False


def _holds(count: int, weighted: bool, indexed: bool) -> Check:
    """Checks for a batch of so many examples, with their weights and indices if it has them."""
    weights = tensor(torch.float32, count, least=0, finite=True)
    indices = tensor(torch.int64, count) if indexed else nothing

    def check(name: str, value: Any) -> None:
        if weighted:
            tuple_of(anything, weights, indices)(name, value)
        batch = value[0] if weighted else value
        try:
            fits = tree.size(batch, count) == count
        except BatchError:  # a structure of the user's own, with the size that it was given with
            fits = not isinstance(batch, str | int | float | None)
        if not fits:
            raise_damaged(name, batch, f"a batch of {count} examples")

    return check
