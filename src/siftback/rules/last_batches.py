"""Batches of an epoch of which none has a single example out of several."""

from collections.abc import Iterator, Sized
from typing import cast

from torch.utils.data import BatchSampler


class LastBatches(BatchSampler):
    """Batches as torch's, but the last two share their examples where the last would have one.

    A single example stops ``BatchNorm``, and how many examples a rule draws is not in the hands of
    the user. The number of batches stays the same; of batches of two, where it cannot, the last
    has three. It depends on the number of examples alone, and so is the same in all processes. With
    ``drop_last``, and in batches of one, all is as torch has it.

    >>> [len(batch) for batch in LastBatches(range(17), 8, False)]
    [8, 4, 5]
    >>> list(LastBatches(range(5), 2, False)), list(LastBatches(range(1), 8, False))
    ([[0, 1], [2, 3, 4]], [[0]])
    """

    def __iter__(self) -> Iterator[list[int]]:
        waiting: list[int] = []
        for index in self.sampler:
            waiting.append(index)
            if len(waiting) == 2 * self.batch_size + 1:  # so that the last two are still together
                yield waiting[: self.batch_size]
                del waiting[: self.batch_size]
        start = 0
        for end in ends_of(len(waiting), self.batch_size, self.drop_last):
            yield waiting[start:end]
            start = end

    def __len__(self) -> int:
        examples = len(cast(Sized, self.sampler))
        return count_batches(examples, self.batch_size, self.drop_last)


def count_batches(examples: int, batch_size: int, drop_last: bool = False) -> int:
    """How many batches `LastBatches` makes.

    >>> count_batches(17, 8), count_batches(17, 8, drop_last=True), count_batches(5, 2)
    (3, 2, 2)
    """
    whole, left = divmod(examples, batch_size)
    is_merged = left == 1 and batch_size == 2 and whole > 0
    return whole + (left > 0 and not drop_last and not is_merged)


def end_of(batch: int, examples: int, batch_size: int, drop_last: bool = False) -> int:
    """The place in an epoch's order after a batch, from 0.

    >>> [end_of(batch, 17, 8) for batch in range(3)]
    [8, 12, 17]
    """
    last = count_batches(examples, batch_size, drop_last) - 1
    if batch == last and not drop_last:
        return examples
    is_shared = examples % batch_size == 1 and batch_size > 2 and not drop_last
    return (batch + 1) * batch_size - (batch_size // 2 if is_shared and batch == last - 1 else 0)


def ends_of(examples: int, batch_size: int, drop_last: bool = False) -> Iterator[int]:
    """The places after each batch of an epoch."""
    for batch in range(count_batches(examples, batch_size, drop_last)):
        yield end_of(batch, examples, batch_size, drop_last)
