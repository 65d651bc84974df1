"""Batches of an epoch from which examples are left out, none of a single row."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from torch.utils.data import BatchSampler


def count_batches(
    examples: int, batch_size: int, drop_last: bool = False, *, whole: int | None = None
) -> int:
    """Returns the number of batches of some examples, none of which has a single row.

    A last batch of a single row shares the rows of the batch before it: B and 1 become B - 1 and 2,
    and 2 and 1 become 3. Only a single example, or a ``batch_size`` of 1, makes batches of one row.

    Args:
        examples: Number of examples.
        batch_size: Examples per batch.
        drop_last: Whether a last batch of fewer is left out.
        whole: Number of examples where none is left out; batches are then PyTorch's own.

    >>> count_batches(9, 4), count_batches(9, 4, drop_last=True), count_batches(5, 2)
    (3, 2, 2)
    >>> count_batches(5, 2, whole=5)
    3
    """
    if drop_last:
        return examples // batch_size
    is_merged = batch_size == 2 and examples % 2 == 1 and 1 < examples != whole
    return -(-examples // batch_size) - is_merged


class SelectiveBatches(BatchSampler):
    """Batches of an order from which examples are left out, none of a single row.

    Batch normalisation stops at a batch of one row, and how many rows the last batch has changes
    with every draw. So a last row that would be alone shares the rows of the batch before it, see
    `count_batches`. Where nothing is left out, batches are those of PyTorch's ``BatchSampler``.

    Args:
        sampler: The order.
        batch_size: Examples per batch.
        drop_last: Whether a last batch of fewer is left out.
        leaves_out: Tells whether examples are left out of the current epoch.

    >>> list(SelectiveBatches(range(7), 3, False, lambda: True))
    [[0, 1, 2], [3, 4], [5, 6]]
    >>> list(SelectiveBatches(range(7), 3, False, lambda: False))
    [[0, 1, 2], [3, 4, 5], [6]]
    """

    def __init__(
        self,
        sampler: Iterable[int],
        batch_size: int,
        drop_last: bool,
        leaves_out: Callable[[], bool],
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._leaves_out = leaves_out

    def _whole_batches(self) -> Iterator[list[int]]:
        """Yields batches as PyTorch's ``BatchSampler`` does."""
        order = iter(self.sampler)
        take = getattr(order, "take", lambda count: list(islice(order, count)))
        while batch := take(self.batch_size):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._whole_batches()
        last = next(batches, None)  # an epoch begins, and is drawn, with its first index
        if last is None:
            return
        if self.drop_last or self.batch_size == 1 or not self._leaves_out():
            yield last
            yield from batches
            return
        for batch in batches:
            if len(batch) == 1 and len(last) == 2:
                last = last + batch
                break
            if len(batch) == 1:
                last, batch = last[:-1], last[-1:] + batch
            yield last
            last = batch
        yield last

    def __len__(self) -> int:
        if not self._leaves_out():
            return super().__len__()
        examples = len(self.sampler)  # type: ignore[arg-type]
        return count_batches(examples, self.batch_size, self.drop_last)
