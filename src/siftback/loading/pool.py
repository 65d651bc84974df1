"""Pooling kept examples into full batches."""

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor

from siftback.errors import ConfigError
from siftback.loading import tree

DropLast = bool | Literal["carry"]


class Pool:
    """Pools examples and releases batches of exactly ``batch_size``, in the order of arrival.

    The pool of Algorithm 1 in Jiang et al. 2019 (``batch_bp``), over nested batches
    (see `siftback.loading.tree`).

    Args:
        batch_size: Examples per released batch.
        drop_last: How to treat the rest at the end of an epoch: False releases it as a smaller
            batch, True drops it, "carry" keeps it for the next epoch.

    Attributes:
        dropped: Number of examples that ``drop_last=True`` has dropped.

    Raises:
        ConfigError: If ``batch_size`` is not a positive integer, or ``drop_last`` is not one of
            the three values.

    >>> import torch
    >>> pool = Pool(batch_size=2)
    >>> pool.add(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 3, 4]))
    >>> list(pool.full_batches())
    [tensor([0, 3])]
    >>> list(pool.end_epoch())
    [tensor([4])]
    """

    def __init__(self, batch_size: int, drop_last: DropLast = False) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ConfigError(f"batch_size={batch_size!r}: give an integer, at least 1")
        if drop_last not in (False, True, "carry"):
            raise ConfigError(f'drop_last={drop_last!r}: give False, True or "carry"')
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.dropped = 0
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
        if rows is not None:
            batch = tree.take(batch, rows)
        added = tree.size(batch) if size is None else size
        if added:
            self._pool.append((batch, added))
            self._pooled += added

    def full_batches(self) -> Iterator[Any]:
        """Releases batches of exactly ``batch_size`` examples while there are enough."""
        while self._pooled >= self.batch_size:
            yield self._release(self.batch_size)

    def end_epoch(self) -> Iterator[Any]:
        """Treats the rest as ``drop_last`` says; releases at most one smaller batch."""
        if self.drop_last == "carry" or not self._pooled:
            return
        count = self._pooled
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
        """A copy of the pooled examples, as one batch."""
        # A copy, as training may change released batches in place.
        pooled = [batch for batch, _ in self._pool]
        pool = tree.clone(tree.concatenate(pooled)) if pooled else None
        settings = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        return {**settings, "pool": pool, "dropped": self.dropped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the examples of another pool; its batch size may differ."""
        self._pool.clear()
        self._pooled = 0
        if state["pool"] is not None:
            self.add(tree.clone(state["pool"]))
        self.dropped = state["dropped"]

    def _release(self, count: int) -> Any:
        self._pooled -= count
        taken: list[Any] = []
        while count:
            batch, held = self._pool.popleft()
            if held > count:
                batch, rest = tree.split(batch, count)
                # The rest is copied, so that it does not keep the released batch's memory alive,
                # unless the next batch takes it immediately.
                stays = self._pooled < self.batch_size
                self._pool.appendleft((tree.clone(rest) if stays else rest, held - count))
                held = count
            taken.append(batch)
            count -= held
        return tree.concatenate(taken)
