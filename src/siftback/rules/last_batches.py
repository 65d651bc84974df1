"""Batches of an epoch of which some examples are left out, none of a single row."""

from collections.abc import Iterator, Sized
from typing import cast

from torch.utils.data import BatchSampler, Sampler


class LastBatches(BatchSampler):
    """Batches as torch's, but the last two share their rows where the last would have a single one.

    A single row stops ``BatchNorm``, and how many examples a rule draws is not in the hands of the
    user. B and 1 rows become B - 1 and 2, and 2 and 1 become 3. That depends on their number alone,
    and so is the same in all processes. Where nothing is left out of an epoch, with ``drop_last``,
    and in batches of one, all is as torch has it.

    Args:
        sampler: The order.
        batch_size: Examples per batch.
        drop_last: Whether a last batch of fewer is left out.
        whole: Examples of an epoch of which none is left out.

    >>> list(LastBatches(range(7), 3, False, whole=10))
    [[0, 1, 2], [3, 4], [5, 6]]
    >>> list(LastBatches(range(5), 2, False, whole=10))
    [[0, 1], [2, 3, 4]]
    """

    def __init__(self, sampler: Sampler[int], batch_size: int, drop_last: bool, whole: int) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._whole = whole

    def __iter__(self) -> Iterator[list[int]]:
        last: list[int] = []
        count = 0
        for batch in super().__iter__():
            count += len(batch)
            is_single = len(batch) == 1 < self.batch_size and len(last) > 0 and count < self._whole
            if is_single and len(last) == 2:
                last = last + batch
                continue
            if is_single:
                last, batch = last[:-1], last[-1:] + batch
            if last:
                yield last
            last = batch
        if last:
            yield last

    def __len__(self) -> int:
        examples = len(cast(Sized, self.sampler))
        return count_batches(examples, self.batch_size, self.drop_last, whole=self._whole)


def count_batches(
    examples: int, batch_size: int, drop_last: bool = False, *, whole: int | None = None
) -> int:
    """How many batches `LastBatches` makes.

    >>> count_batches(17, 8), count_batches(17, 8, drop_last=True), count_batches(5, 2)
    (3, 2, 2)
    """
    if drop_last:
        return examples // batch_size
    is_merged = batch_size == 2 and examples % 2 == 1 and 1 < examples != whole
    return -(-examples // batch_size) - is_merged


def start_of(batch: int, examples: int, batch_size: int, *, whole: int | None = None) -> int:
    """The place in an epoch's order of the first example of a batch, both from 0.

    >>> [start_of(batch, 17, 8) for batch in range(4)]
    [0, 8, 15, 17]
    """
    batches = count_batches(examples, batch_size, whole=whole)
    if batch >= batches:
        return examples
    is_shared = examples % batch_size == 1 and batch_size > 2 and examples != whole
    return batch * batch_size - (is_shared and 0 < batch == batches - 1)
