"""Trials with the first batches, before selection begins: that they can be scored and pooled."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from siftback.batches import tree
from siftback.batches.batch import Batch, Pad
from siftback.batches.collating import undisturbed
from siftback.batches.pool import Pool
from siftback.errors import BatchError
from siftback.loader.selection import BatchSelection
from siftback.scorers.selection_pass import common_device, untouched


def try_scores(selection: BatchSelection, batch: Batch, where: str) -> None:
    """Scores a batch as it will be once selection is on, and forgets the scores.

    Nothing is left changed: random states, the model's modes and buffers, the scorer.

    Raises:
        BatchError: As the scorer does.
        LossError: If there is not one loss per example.
    """
    model, losses = selection.model, selection.losses
    # What a lazy module makes of its first batch would come from other random numbers.
    if not selection.needs_scores or any(map(is_lazy, model.parameters())):
        return
    with ExitStack() as stack:
        device = common_device(model, batch.data)
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(undisturbed(selection.scorer))
        for module in (model, *modules_of(losses)):
            stack.enter_context(untouched(module, None, device))
        stack.enter_context(
            explaining(
                f"while {where} was scored, once and without effect, as every batch is after the "
                "warm-up: losses=fn(model, batch) takes a model and batches of any kind"
            )
        )
        selection.score(batch)


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
                row, pool = batch.take(torch.zeros(1, dtype=torch.int64)), Pool(2, pad=pad)
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


def modules_of(function: Any) -> list[nn.Module]:
    """Returns the modules that a loss function consists of."""
    if isinstance(function, partial):
        within = (function.func, *function.args, *function.keywords.values())
        return [module for argument in within for module in modules_of(argument)]
    return [function] if isinstance(function, nn.Module) else []
