"""Pooling selected examples into full batches."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from siftback.arguments import check_choice, check_integer, format_value
from siftback.batches import tree
from siftback.batches.batch import Batch, Pad
from siftback.batches.collating import explaining, undisturbed
from siftback.batches.tree import Lists, read_structure
from siftback.errors import BatchError, ConfigError
from siftback.host_reads import move
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

DropLast = bool | Literal["carry"]


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
        ready: Number of full batches to be released next, after the one released last.
        lists: Which lists in a batch hold one example per entry, see `read_structure`; None before
            the first batch, which says it unless it is set.
        is_tried: Whether rows of two shapes were joined, on trial or in earnest.

    Raises:
        ConfigError: If ``batch_size`` is not a positive integer, or ``drop_last`` is not one of
            the three values, or ``pad`` neither a mapping nor a function.

    On releasing:

    Raises:
        BatchError: If the rows to release differ in shape and ``pad`` does not say how to join
            them.

    >>> import torch
    >>> examples, pool = torch.tensor([0, 3, 4]), Pool(batch_size=2)
    >>> pool.add_batch(Batch(examples, 3, examples.device, lists=frozenset()))
    >>> [batch.data for batch in pool.release_full(math.inf)]
    [tensor([0, 3])]
    >>> list(pool.release_last(single=False)), len(pool)
    ([], 1)
    """

    def __init__(
        self, batch_size: int, drop_last: DropLast = False, *, pad: Pad | None = None
    ) -> None:
        batch_size = check_integer("batch_size", batch_size, 1)
        check_choice("drop_last", drop_last, False, True, "carry")
        if not (pad is None or callable(pad) or isinstance(pad, Mapping)):
            raise ConfigError(
                f"pad={format_value(pad)}: give the fill values by name, such as "
                '{"input_ids": 0, "labels": -100}, or a function that joins a list of batches'
            )
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.pad = pad
        self.dropped = self.ready = 0
        self.lists: Lists | None = None
        self._batches: deque[Batch] = deque()
        self._pooled = 0
        self.is_tried = False
        self._tried_row: Batch | None = None
        self._tried_shapes: list[Any] | None = None

    def __len__(self) -> int:
        return self._pooled

    def add_batch(self, batch: Batch, *, is_copy: bool = False) -> None:
        """Adds a batch with what belongs to its examples.

        Args:
            batch: The batch.
            is_copy: Whether nothing else has its memory.
        """
        if not batch.size:
            return
        if not is_copy and self._pooled + batch.size < self.batch_size:
            batch = batch.clone()  # it waits, and its loader may fill the same memory again
        self._batches.append(batch)
        self._pooled += batch.size

    def release_full(self, to_come: float) -> Iterator[Batch]:
        """Releases batches of ``batch_size`` examples while there are enough.

        Args:
            to_come: Examples that this epoch still adds: the batch before the last one then leaves
                it a second row. Infinity where that is not known.
        """
        pooled, sizes = self._pooled, list[int]()
        while True:
            size = self.batch_size
            if pooled + to_come == size + 1 and size > 1 and not self.drop_last:
                size = self._size_before_last(pooled)
            if pooled < size:
                break
            sizes.append(size)
            pooled -= size
        for index, size in enumerate(sizes, 1):
            self.ready = len(sizes) - index
            yield self._release(size)

    def release_last(self, *, single: bool) -> Iterator[Batch]:
        """Treats the rest as ``drop_last`` says; releases at most one smaller batch.

        Args:
            single: Whether a single row is released too; it otherwise stays for the next epoch.
        """
        count = self._pooled
        if self.drop_last == "carry" or not count:
            return
        if self.drop_last:
            self.abandon()
        elif count > 1 or single or self.batch_size == 1 or self._batches[0].lists is None:
            yield self._release(count)

    def try_batch(self, batch: Batch, where: str) -> None:
        """Pools an example of a batch with one of the batch before, on trial.

        It is done until batches of two shapes were joined: batches that are padded to the longest
        of each have rows of other shapes in the second batch.

        Args:
            batch: A batch.
            where: Description of the batch, for errors.

        Raises:
            BatchError: If they cannot be pooled.
        """
        shapes = tree.shapes(batch.data, batch.lists or frozenset())
        if shapes == self._tried_shapes:
            return
        with undisturbed(), explaining(f"while examples of {where} were pooled on trial"):
            try:
                data = tree.take(batch.data, torch.zeros(1, dtype=torch.int64), batch.lists)
                row, pool = Batch(data, 1, batch.device, lists=batch.lists), Pool(2, pad=self.pad)
                for single in (self._tried_row or row, row):
                    pool.add_batch(single, is_copy=True)
                next(pool.release_full(math.inf))
            except (RuntimeError, NotImplementedError) as error:
                raise BatchError(
                    f"{where} cannot be split into examples and pooled ({error}): have the "
                    "collate function make it of tensors with a row per example"
                ) from error
        self.is_tried = bool(self._tried_row)
        if not self._tried_row:
            self._tried_row, self._tried_shapes = row, shapes

    def abandon(self) -> None:
        """Drops the rest of an interrupted epoch, unless ``drop_last="carry"``."""
        if self.drop_last != "carry":
            self.dropped += self._pooled
            self._batches.clear()
            self._pooled = self.ready = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the pooled batches."""
        # Copies, as training may change released batches in place. Not joined, as padding depends
        # on what is released together.
        pooled = [batch.clone() for batch in self._batches]
        weighted = bool(pooled) and pooled[0].weights is not None
        state = {
            "settings": self.settings(),
            "weighted": weighted,
            "indexed": [batch.indices is not None for batch in pooled],
            "counts": [batch.size for batch in pooled],
            # Plain tuples, which `torch.load(weights_only=True)` takes.
            "pool": [
                (b.data, b.weights, None if b.indices is None else b.indices.cpu())
                if weighted
                else b.data
                for b in pooled
            ],
            "dropped": self.dropped,
        }
        return seal(state)

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
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
        checks = {"weighted": flag, "counts": list_of(integer(1)), "dropped": integer()}
        check_entries(self, state, checks, self.settings())
        counts, weighted = state["counts"], state["weighted"]
        check_entries(self, state, {"indexed": tuple_of(*[flag] * len(counts))})
        pooled = zip(counts, state["indexed"], strict=True)
        checks = {"pool": tuple_of(*(_batch_check(count, weighted, i) for count, i in pooled))}
        check_entries(self, state, checks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the examples of another pool.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self._batches.clear()
        for saved, count in zip(state["pool"], state["counts"], strict=True):
            data, weights, indices = saved if state["weighted"] else (saved, None, None)
            batch = replace(self._read(data, count), weights=weights, indices=indices)
            self._batches.append(batch.clone())
        self._pooled, self.dropped = sum(state["counts"]), state["dropped"]

    def _read(self, data: Any, size: int) -> Batch:
        """Returns a batch of a size, with its lists where they say the same size."""
        try:
            if self.lists is None:
                self.lists = read_structure(data, size).lists
            count, device = tree.measure(data, self.lists)
        except BatchError:
            return Batch(data, size, tree.device(data))
        return Batch(data, size, device, lists=self.lists if count == size else None)

    def _size_before_last(self, pooled: int) -> int:
        """Returns the size of a batch after which a single row of ``pooled`` would be left."""
        size = self.batch_size
        if size == 2:
            return 3
        # A batch of unknown structure is released whole or not at all.
        remaining = self._pooled - pooled + size - 1
        for batch in self._batches:
            if remaining < batch.size:
                return size if remaining and batch.lists is None else size - 1
            remaining -= batch.size
        return size - 1

    def _release(self, count: int) -> Batch:
        """Returns the first examples, joined.

        Raises:
            BatchError: If their rows differ in shape and ``pad`` does not say how to join them.
        """
        waiting, pooled = self._batches.copy(), self._pooled - count
        batches: list[Batch] = []
        while count:
            batch = waiting.popleft()
            if batch.size > count:
                batch, remaining = batch.split(count)
                # The rest is copied, so that it does not keep the released batch's memory alive,
                # unless the next batch takes it immediately.
                waiting.appendleft(remaining.clone() if pooled < self.batch_size else remaining)
            batches.append(batch)
            count -= batch.size
        released = first = batches[0]
        if len(batches) > 1:
            data, pad = [batch.data for batch in batches], self.pad
            indices = [batch.indices for batch in batches if batch.indices is not None]
            if len({examples.device for examples in indices}) > 1:
                indices = [move(examples, first.device) for examples in indices]
            weights = [batch.weights for batch in batches if batch.weights is not None]
            released = Batch(
                pad(data) if callable(pad) else tree.concatenate(data, pad, first.lists),
                sum(batch.size for batch in batches),
                first.device,
                torch.cat(indices) if len(indices) == len(batches) else None,
                torch.cat(weights) if len(weights) == len(batches) else None,
                lists=first.lists,
            )
        # Only now, as a training that is stopped while rows are joined may save its state.
        self._batches, self._pooled = waiting, pooled
        return released


def _batch_check(count: int, weighted: bool, indexed: bool) -> Check:
    """Returns a check for a batch of ``count`` examples, with their weights and indices if any."""
    weights = tensor(torch.float32, count, least=0, finite=True)
    indices = tensor(torch.int64, count) if indexed else nothing

    def check(name: str, value: Any) -> None:
        if weighted:
            tuple_of(anything, weights, indices)(name, value)
        data = value[0] if weighted else value
        try:
            fits = tree.size(data, count) == count
        except BatchError:  # a structure of the user's own, with the size that it was given with
            fits = not isinstance(data, str | int | float | None)
        if not fits:
            raise_damaged(name, data, f"a batch of {count} examples")

    return check
