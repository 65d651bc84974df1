"""A trial with the first batches, before selection begins: that their examples can be pooled."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from siftback.batches import tree
from siftback.batches.batch import Batch, Pad
from siftback.batches.collating import undisturbed
from siftback.batches.pool import Pool
from siftback.errors import BatchError


class PoolTrial:
    """Joins examples of the first batches as a pool will, until batches of two shapes were joined.

    Batches that are padded to the longest of each have rows of other shapes in the second batch.

    Attributes:
        is_over: Whether batches of two shapes were joined.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._row: Batch | None = None
        self._shapes: list[Any] | None = None

    def join(self, batch: Batch, pad: Pad | None, where: str) -> None:
        """Tries to pool examples of a batch with those of the one before.

        Args:
            batch: A batch.
            pad: How rows of several shapes are joined.
            where: Description of the batch, for errors.

        Raises:
            BatchError: If they cannot be pooled.
        """
        shapes = tree.shapes(batch.data, batch.lists or frozenset())
        if shapes == self._shapes:
            return
        with undisturbed(), explaining(f"while examples of {where} were pooled on trial"):
            try:
                data = tree.take(batch.data, torch.zeros(1, dtype=torch.int64), batch.lists)
                row, pool = Batch(data, 1, batch.device, lists=batch.lists), Pool(2, pad=pad)
                for single in (self._row or row, row):
                    pool.add_batch(single, is_copy=True)
                next(pool.release_full(math.inf))
            except (RuntimeError, NotImplementedError) as error:
                raise BatchError(
                    f"{where} cannot be split into examples and pooled ({error}): have the "
                    "collate function make it of tensors with a row per example"
                ) from error
        self.is_over = self._row is not None
        if self._row is None:
            self._row, self._shapes = row, shapes


@contextmanager
def explaining(note: str) -> Iterator[None]:
    """Adds to an error when it arose, as it may be of the user's own model."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise
