"""Batches of a loader to measure on, and the loader left as it was."""

import copy
import random
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from siftback.device_time import now
from siftback.errors import BatchError
from siftback.loading import tree
from siftback.loading.indices import is_indexed

DISTINCT = 8
"""Distinct batches kept, for scores to be compared on."""


class Sample:
    """Batches of the loader's full size, with the seconds that getting each took.

    Args:
        loader: Iterated again when it ends; one that cannot be is read once.
        device: Where to move batches; None leaves them where they are.

    Attributes:
        size: N, examples of a full batch, which the first one is; 0 before it was read.
        batches: The distinct full batches read, at most `DISTINCT`.
        took: Seconds of getting each full batch, the distinct ones and others.
        workers: Processes that load beside training.

    >>> sample = Sample([torch.zeros(4, 2), torch.ones(4, 2), torch.ones(1, 2)], None)
    >>> sample.first().shape, [sample.next(turn)[0] for turn in range(4)]
    (torch.Size([4, 2]), [0, 1, 0, 1])
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | None) -> None:
        self._loader, self._device = loader, device
        self.workers = int(getattr(loader, "num_workers", 0) or 0)
        self.size = 0
        self.batches: list[Any] = []
        self.took: list[float] = []
        self._iterator: Iterator[Any] | None = iter(loader)
        self._indexed = is_indexed(loader)  # the indices are of no use here
        self._whole = False  # whether all of an epoch was read

    def first(self) -> Any:
        """The first batch, which says how large a full one is."""
        self._read()
        if not self.batches:
            raise BatchError(
                f"the {type(self._loader).__name__} gave no batch: give one that is not empty"
            )
        return self.batches[0]

    def read_ahead(self, deadline: float) -> None:
        """Measures workers, by how fast batches come once those loaded in advance are used up."""
        ahead = self.workers * (getattr(self._loader, "prefetch_factor", None) or 2)
        while len(self.took) < 2 * ahead + DISTINCT and time.monotonic() < deadline:
            if not self._read(again=False):
                break
        late = self.took[ahead:]
        self.took = [statistics.fmean(late) if late else statistics.median(self.took)]
        self._iterator = None  # stops the workers, which would slow down what is measured next

    def next(self, turn: int) -> tuple[int, Any]:
        """A batch to measure on, and its place among the distinct ones; reads one more."""
        if not self.workers:
            self._read()
        place = turn % len(self.batches)
        return place, self.batches[place]

    def _read(self, again: bool = True) -> bool:
        """Reads a batch, if so asked from the start again where the loader is at its end."""
        for _ in range(2):
            if self._iterator is None:
                return False
            started = time.perf_counter()
            batch = next(self._iterator, None)
            if batch is not None:
                break
            self._whole = True
            self._iterator = iter(self._loader) if again and self.batches else None
        else:  # an iterable that can be iterated once only
            self._iterator = None
            return False
        if self._indexed:
            _, batch = batch
        if self._device is not None:
            batch = tree.to_device(batch, self._device)
        took = now(tree.device(batch)) - started
        size = tree.size(batch)
        self.size = self.size or size
        if size == self.size:  # not a short last one
            self.took.append(took)
            if not self._whole and len(self.batches) < DISTINCT:
                self.batches.append(batch)
        return True


@contextmanager
def unmoved(loader: Any) -> Iterator[None]:
    """Puts back every generator that reading the loader may move, and a state of its own."""
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    generators = {id(g): g for g in found if isinstance(g, torch.Generator)}.values()
    states = [generator.get_state() for generator in generators]
    stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    state = copy.deepcopy(loader.state_dict()) if stateful else None
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        for generator, before in zip(generators, states, strict=True):
            generator.set_state(before)
        if stateful:
            loader.load_state_dict(state)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
