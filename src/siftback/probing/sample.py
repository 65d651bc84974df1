"""Batches of a loader to measure on; the loader's state is restored."""

import copy
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch.distributed as dist
from torch import nn

from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.collating import replaced, undisturbed
from siftback.batches.indices import examples_of
from siftback.batches.order import is_plain, is_trackable
from siftback.batches.source import Source, saved_state
from siftback.device_time import now
from siftback.errors import BatchError

DISTINCT = 8
"""Number of distinct batches kept, on which scores are compared."""


class Sample:
    """Full batches of a loader, with the seconds that loading each took.

    Args:
        loader: The loader; it is iterated again when it ends, if possible.
        model: Batches are moved to its device.

    Attributes:
        size: N, examples in a full batch, such as the first one; 0 before it was read.
        items: The distinct full batches read, at most `DISTINCT`, with the indices of their
            examples if known.
        took: Seconds of loading each full batch, the distinct ones and others.
        workers: Number of processes that load in parallel to training.
        examples: Number of examples; None if the loader does not know it.
        reads_chosen_only: Whether the loader can leave examples unread: a ``DataLoader`` over a
            map-style data set, or a loader with a method ``only`` that sets which to read.

    >>> import torch
    >>> sample = Sample([torch.zeros(4, 2), torch.ones(4, 2), torch.ones(1, 2)], nn.Identity())
    >>> sample.first().data.shape, [sample.next(turn)[0] for turn in range(4)]
    (torch.Size([4, 2]), [0, 1, 0, 1])
    """

    def __init__(self, loader: Iterable[Any], model: nn.Module) -> None:
        self._model = model
        self._name = type(loader).__name__
        self._ahead = getattr(loader, "prefetch_factor", None) or 2  # batches of each worker
        self._has_ended = False  # whether an epoch was read to its end
        self._batches = self._epochs(Source(loader))
        self.workers = int(getattr(loader, "num_workers", 0) or 0)
        self.examples = examples_of(loader)
        by_index = is_trackable(loader) and is_plain(getattr(loader, "batch_sampler", None))
        self.reads_chosen_only = by_index or hasattr(loader, "only")
        self.size = 0
        self.items: list[Batch] = []
        self.took: list[float] = []

    def first(self) -> Batch:
        """Returns the first batch, which defines the full batch size.

        Raises:
            BatchError: If there is none.
        """
        self._read()
        if not self.items:
            raise BatchError(f"the {self._name} gave no batch: give one that is not empty")
        return self.items[0]

    def read_ahead(self, deadline: float) -> None:
        """Measures workers by the rate of batches after those loaded in advance are used up."""
        ahead = self.workers * self._ahead
        while len(self.took) < 2 * ahead + DISTINCT and time.monotonic() < deadline:
            if not self._read():
                break
        late = self.took[ahead:]
        self.took = [statistics.fmean(late) if late else statistics.median(self.took)]
        # Stops the workers, even persistent ones, which would slow down later measurements.
        self._batches = iter(())

    def next(self, turn: int) -> tuple[int, Batch]:
        """Returns a distinct batch to measure on, with its index; reads one more."""
        if not self.workers and not self._read():
            self._read()  # of the next epoch
        index = turn % len(self.items)
        return index, self.items[index]

    def _epochs(self, source: Source) -> Iterator[Batch | None]:
        """Yields the batches of each epoch, with None after it; ends with an epoch without any."""
        while True:
            for item in source.batches():
                source.position += 1
                yield item
            self._has_ended, was_empty = True, not source.is_within
            source.end_epoch()
            if was_empty:  # an iterable that can be iterated once only
                return
            yield None

    def _read(self) -> bool:
        """Reads a batch; returns whether the epoch had one more."""
        started = time.perf_counter()
        item = next(self._batches, None)
        if item is None:
            return False
        item = item.to_device_of(self._model)
        took = now(item.device) - started
        size = tree.size(item.data)
        self.size = self.size or size
        if size == self.size:  # not a short last one
            self.took.append(took)
            if not self._has_ended and len(self.items) < DISTINCT:
                self.items.append(item)
        return True


@contextmanager
def unmoved(loader: Iterable[Any]) -> Iterator[None]:
    """Restores the state of the loader, its sampler, and the generators that reading may use.

    Of several processes each is alone meanwhile, and so are layers such as ``SyncBatchNorm``: the
    others may wait for it, or measure for longer.
    """
    source, sampler = Source(loader), cast(Any, getattr(loader, "sampler", None))
    position = copy.deepcopy(source.state_dict())
    order = saved_state(sampler)
    with undisturbed(), replaced(dist, "is_initialized", lambda: False):
        try:
            yield
        finally:
            source.load_state_dict(position)
            if order is not None:
                sampler.load_state_dict(order)
