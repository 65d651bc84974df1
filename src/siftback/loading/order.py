"""The order of a DataLoader's batches: which examples each has, and how to come back to a place."""

import copy
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler


class TrackedBatches(Sampler[list[Any]]):
    """A batch sampler that remembers which examples each batch has, until the batch has come.

    A ``DataLoader`` gives batches in the order in which it asked for them, worker processes or
    not. So the examples of the batch that came are those that were asked for first: their indices
    are known without being part of the batch.

    Args:
        batches: The batch sampler whose order this is.

    Attributes:
        begun: Whether a batch was asked for, since whoever reads it last set it to False.

    >>> batches = TrackedBatches(BatchSampler(range(5), batch_size=2, drop_last=False))
    >>> asked = [next(order) for order in [iter(batches)] for _ in range(2)]
    >>> batches.take()
    [0, 1]
    >>> batches.rest()
    [[2, 3], [4]]
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self._asked: deque[list[Any]] = deque()  # for batches that have not come yet
        self._order: Iterator[Any] = iter(())
        self.begun = False
        self._resumed: Iterable[Any] | None = None
        self._before: list[tuple[torch.Generator | None, Tensor]] = []

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[Any]]:
        # Nothing is drawn before the first batch is asked for: a DataLoader may call this twice.
        self._asked.clear()
        return self._ask()

    def take(self) -> list[Any]:
        """The indices of the batch that came next."""
        return self._asked.popleft()

    def rest(self) -> list[list[Any]]:
        """The indices of the batches of this epoch that have not come, asked for or not."""
        left = [list(batch) for batch in self._order]
        self._order = iter(left)
        return [*self._asked, *left]

    def resume(self, batches: Iterable[Any]) -> None:
        """Has the next epoch that is begun consist of these batches."""
        self._resumed = batches

    def draw_after(self, states: list[tuple[torch.Generator | None, Tensor]]) -> None:
        """Puts generators into a state just before the next epoch's order is drawn from them.

        Args:
            states: Each generator, None for PyTorch's global one, with its state.
        """
        self._before = states

    def _ask(self) -> Iterator[list[Any]]:
        self.begun = True
        for generator, state in self._before:
            if generator is None:
                torch.set_rng_state(state)
            else:
                generator.set_state(state)
        order = self.batches if self._resumed is None else self._resumed
        self._resumed, self._before = None, []
        self._order = iter(order)
        for batch in iter(lambda: next(self._order, None), None):
            self._asked.append(list(batch))
            yield self._asked[-1]


def skipping(batches: Iterable[Any], count: int) -> Iterator[Any]:
    """The batches without the first few, which are not asked for before they are wanted.

    >>> list(skipping(range(5), 3))
    [3, 4]
    """
    yield from itertools.islice(batches, count, None)


def is_trackable(loader: object) -> bool:
    """Whether a loader gives batches in an order of indices: a DataLoader of a map-style data set.

    >>> is_trackable(DataLoader(range(4))), is_trackable([1, 2])
    (True, False)
    """
    return (
        isinstance(loader, DataLoader)
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
        and getattr(loader, "in_order", True)
    )


def with_order(loader: "DataLoader[Any]", batches: Iterable[Any]) -> "DataLoader[Any]":
    """The same loader, but for which examples its batches have.

    Workers, pinning, collating and whatever else a subclass has stay as they are.

    Args:
        loader: One that `is_trackable`; it is not changed.
        batches: A batch sampler.
    """
    same = copy.copy(loader)
    # A DataLoader refuses that these are set once it was made, since its iterator may have
    # read them; this one has no iterator yet.
    same.__dict__.update(
        batch_sampler=batches,
        sampler=getattr(batches, "sampler", loader.sampler),
        _iterator=None,
    )
    return same


def is_plain(batches: object) -> bool:
    """Whether a batch sampler is one that cuts a sampler's order into batches, and no more.

    >>> is_plain(DataLoader(range(4)).batch_sampler)
    True
    """
    kind = type(batches)
    return kind is BatchSampler or (
        kind.__name__ == "BatchSampler" and kind.__module__.startswith("torchdata.")
    )
