"""How many training batches an epoch has, where that is known before it."""

from collections.abc import Iterator
from typing import Any

from siftback.loading.order import is_plain, is_trackable
from siftback.loading.pool import Pool
from siftback.rules.epoch_draw import EpochDraw
from siftback.schedule import Schedule
from siftback.selectors.sampling import count_of
from siftback.selectors.selection import Selector


class StepCounts:
    """Counts the training batches of epochs beforehand.

    Args:
        loader: The wrapped loader.
        pool: Makes the training batches.
        draw: Draws epochs before they are read; None where nothing does.
        selector: Selects among scored batches; None where nothing does.
        schedule: When selection is on.
        epochs: Of the whole training.
        exact: Whether exactly ``round(keep * N)`` of each scored batch are kept.
    """

    def __init__(
        self,
        loader: Any,
        pool: Pool | None,
        draw: EpochDraw | None,
        selector: Selector | None,
        schedule: Schedule,
        epochs: float | None,
        exact: bool,
    ) -> None:
        self._loader, self._pool, self._draw = loader, pool, draw
        self._selector, self._schedule = selector, schedule
        self._epochs, self._exact = epochs, exact

    def of_epoch(self, epoch: int) -> int:
        """Training batches of an epoch.

        Raises:
            TypeError: Where they are not known before it.
        """
        if self._pool is None:
            raise TypeError(
                "how many steps an epoch has is not known before its first batch, as a "
                f"{type(self._loader).__name__} has no batch_size: give pool=Pool(batch_size)"
            )
        size, kept = self._pool.batch_size, self.examples(epoch)
        if self._pool.drop_last == "carry":
            before = sum(self.examples(earlier) for earlier in range(epoch))
            return (before + kept) // size - before // size
        return kept // size if self._pool.drop_last else -(-kept // size)

    def examples(self, epoch: int) -> int:
        """Examples given to training in an epoch, but for what its last batch drops.

        Raises:
            TypeError: Where they are not known before it.
        """
        if self._draw is None or self._draw.is_pass(epoch):
            return sum(self._kept(epoch))
        count = self._draw.count(epoch)
        if count is None:
            raise TypeError(
                f"how many examples {type(self._draw.rule).__name__} draws is not known before "
                "the epoch begins: take a rule of a fixed count, such as Memory, or follow "
                "loader.progress in place of a number of steps"
            )
        self._check_sampler()
        return count // self._draw.world

    def _check_sampler(self) -> None:
        """Makes sure that the sampler gives each drawn example once.

        Raises:
            TypeError: Where it is one of the user's own, which may not.
        """
        if not is_trackable(self._loader):
            return
        sampler = getattr(self._loader.batch_sampler.batches, "sampler", None)
        if getattr(sampler, "replays", False):
            return
        raise TypeError(
            f"how many examples of a {type(getattr(sampler, 'sampler', sampler)).__name__} are "
            "drawn is not known before the epoch begins: follow loader.progress, or give the "
            "DataLoader shuffle=True in place of that sampler"
        )

    def _kept(self, epoch: int) -> Iterator[int]:
        """Examples kept of each batch of the wrapped loader."""
        sizes = self._sizes()
        selector = self._selector
        own = 1.0 if selector is None else selector.keep
        for batch, size in enumerate(sizes):
            done = epoch + batch / len(sizes)
            if selector is None or not self._schedule.is_on(done, self._epochs, batch):
                yield size
                continue
            if not self._exact and selector.keep < 1:
                raise TypeError(
                    f"how many examples {type(selector).__name__} keeps is left to chance: give "
                    "exact=True, which keeps exactly round(keep * N) of each batch, or follow "
                    "loader.progress in place of a number of steps"
                )
            yield count_of(self._schedule.keep(done, self._epochs, own=own), size)

    def _sizes(self) -> list[int]:
        """The size of each batch of the wrapped loader.

        Raises:
            TypeError: Where it cannot say.
        """
        loader = self._loader
        try:
            count = len(loader)
            batches = loader.batch_sampler.batches if is_trackable(loader) else None
            if batches is not None and is_plain(batches):
                examples = len(batches.sampler)
                return [
                    min(batches.batch_size, examples - start)
                    for start in range(0, count * batches.batch_size, batches.batch_size)
                ]
        except TypeError:
            count = None
        raise TypeError(
            f"how many examples each batch of a {type(loader).__name__} has is not known before "
            f"it is read{'' if count is None else f', of {count} batches'}: follow loader.progress "
            "in place of a number of steps, or wrap a DataLoader of a map-style data set"
        )
