"""What the first batches tell, before selection begins: that they can be scored and pooled."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from siftback.batches import tree
from siftback.batches.collating import undisturbed
from siftback.batches.pool import Pool
from siftback.batches.reading import Lists
from siftback.batches.source import Item
from siftback.errors import BatchError
from siftback.loader.batch_selection import BatchSelection
from siftback.scorers.selection_pass import device_of, untouched


def try_scores(
    selection: BatchSelection, model: nn.Module, item: Item, count: int, place: str
) -> None:
    """Scores a batch as it will be once selection is on, and forgets the scores.

    Nothing is left changed: random states, the model's modes and buffers, the scorer.

    Args:
        selection: What scores.
        model: The model.
        item: A batch of ``count`` examples.
        count: N.
        place: Of the batch, in words.

    Raises:
        BatchError: As the scorer does.
        LossError: If there is not one loss per example.
    """
    scorer, losses = selection.scoring
    # What a lazy module makes of its first batch would come from other random numbers.
    if losses is None or any(map(is_lazy, model.parameters())):
        return
    with ExitStack() as stack:
        device = device_of(model, item.batch)
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(undisturbed(scorer))
        for module in (model, *_modules_of(losses)):
            stack.enter_context(untouched(module, None, device))
        stack.enter_context(
            _explained(
                f"while {place} was scored, once and without effect, as every batch is after the "
                "warm-up: losses=fn(model, batch) takes a model and batches of any kind"
            )
        )
        selection.score(model, item, count)


class PoolTrial:
    """Joins examples of the first batches as a pool will, until batches of two shapes were joined.

    Batches that are padded to the longest of each have rows of other shapes in the second batch.
    """

    def __init__(self) -> None:
        self._first: Any = None
        self._shapes: list[Any] | None = None
        self._joined = False

    def see(self, batch: Any, pool: Pool, lists: Lists, place: str) -> None:
        """Tries to pool examples of a batch with those of the one before.

        Args:
            batch: A batch.
            pool: The pool.
            lists: Its lists that hold one example per entry.
            place: Of it, in words.

        Raises:
            BatchError: If they cannot be pooled.
        """
        if self._joined:
            return
        shapes = tree.shapes(batch, lists)
        if shapes == self._shapes:
            return
        with undisturbed(), _explained(f"while examples of {place} were pooled on trial"):
            try:
                row = tree.take(batch, torch.zeros(1, dtype=torch.int64), lists)
                pool.join([row if self._first is None else self._first, row])
            except (RuntimeError, NotImplementedError) as error:
                raise BatchError(
                    f"{place} cannot be split into examples and pooled ({error}): have the "
                    "collate function make it of tensors with a row per example"
                ) from error
        self._joined = self._first is not None
        if self._first is None:
            self._first, self._shapes = row, shapes


@contextmanager
def _explained(note: str) -> Iterator[None]:
    """Adds to an error when it arose, as it may be of the user's own model."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


def _modules_of(function: Any) -> list[nn.Module]:
    """The modules that a loss function consists of."""
    if isinstance(function, partial):
        within = (function.func, *function.args, *function.keywords.values())
        return [module for part in within for module in _modules_of(part)]
    return [function] if isinstance(function, nn.Module) else []
