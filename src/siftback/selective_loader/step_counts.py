"""How many training batches an epoch has, where that is known before it."""

from collections.abc import Iterator
from typing import Any

from siftback.loading.indices import examples_of
from siftback.loading.order import batches_of, is_plain, is_trackable, sampler_of
from siftback.loading.pool import Pool
from siftback.rules.epoch_draw import EpochDraw
from siftback.rules.filtered_sampler import FilteredSampler
from siftback.schedule import Schedule
from siftback.selective_loader.batch_selection import BatchSelection
from siftback.selectors.sampling import count_of


class StepCounts:
    """Counts the training batches of epochs beforehand.

    Args:
        loader: The wrapped loader.
        pool: Makes the training batches.
        draw: Draws epochs before they are read; None where nothing does.
        selection: Selects among scored batches; None where nothing does.
        schedule: When selection is on.
        epochs: Of the whole training; None where it is not known.
    """

    def __init__(
        self,
        loader: Any,
        pool: Pool | None,
        draw: EpochDraw | None,
        selection: BatchSelection | None,
        schedule: Schedule,
        epochs: float | None,
    ) -> None:
        self._loader, self._pool, self._draw = loader, pool, draw
        self._selection, self._schedule, self._epochs = selection, schedule, epochs
        self._examples: dict[int, int] = {}  # of each epoch asked about

    def of_epoch(self, epoch: int) -> int:
        """Training batches of an epoch.

        Raises:
            TypeError: If they are not known before it.
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
            TypeError: If they are not known before it.
        """
        if epoch not in self._examples:
            self._examples[epoch] = self._count(epoch)
        return self._examples[epoch]

    def _count(self, epoch: int) -> int:
        draw = self._draw
        if draw is None or draw.plans_pass(epoch):
            return sum(self._kept(epoch))
        sampler = sampler_of(self._loader)
        whole = sampler.whole if isinstance(sampler, FilteredSampler) else None
        count = draw.count(epoch, whole)
        if count is None:
            raise TypeError(
                f"how many examples {type(draw.rule).__name__} draws is not known before the "
                "epoch begins: take a rule of a fixed count, such as Memory, or follow "
                "loader.progress in place of a number of steps"
            )
        self._check_each_once()
        return self._read_of(count // draw.world)

    def _check_each_once(self) -> None:
        """Makes sure that the loader gives each drawn example once.

        Raises:
            TypeError: If it may not, or nobody knows how many there are.
        """
        loader = self._loader
        if is_trackable(loader):
            sampler = sampler_of(loader)
            kind, known = sampler, getattr(sampler, "replays", False)
            if isinstance(sampler, FilteredSampler):
                kind, known = sampler.sampler, sampler.whole is not None
            if known and is_plain(batches_of(loader)):
                return
            if not is_plain(batches_of(loader)):
                kind = batches_of(loader)
            raise TypeError(
                f"how many examples of a {type(kind).__name__} are drawn is not known before the "
                "epoch begins: follow loader.progress in place of a number of steps, or give the "
                "DataLoader shuffle=True or a SubsetRandomSampler in place of it"
            )
        if examples_of(loader) is None:
            raise TypeError(
                f"how many examples a {type(loader).__name__} has is not known before an epoch is "
                "over: follow loader.progress in place of a number of steps"
            )

    def _read_of(self, examples: int) -> int:
        """How many of some examples are read, as the wrapped loader may drop a last short batch."""
        owner = batches_of(self._loader)
        owner = owner if is_plain(owner) else self._loader
        size = getattr(owner, "batch_size", None)
        if size and getattr(owner, "drop_last", False):
            return int(examples // size * size)
        return examples

    def _kept(self, epoch: int) -> Iterator[int]:
        """Examples kept of each batch of the wrapped loader."""
        selection, (count, size, examples) = self._selection, self._sizes()
        for batch in range(count):
            here = min(size, examples - batch * size)
            done = epoch + batch / count
            if selection is None or not self._schedule.is_on(done, self._epochs, batch):
                yield here
                continue
            keep = self._schedule.keep(done, self._epochs, own=selection.own_keep)
            if not selection.exact and keep < 1:
                raise TypeError(
                    f"how many examples {type(selection.selector).__name__} keeps is left to "
                    "randomness: give exact=True, which keeps exactly round(keep * N) of each "
                    "batch, or follow loader.progress in place of a number of steps"
                )
            yield count_of(keep, here) if selection.exact else here

    def _sizes(self) -> tuple[int, int, int]:
        """How many batches the wrapped loader has, of what size, and of how many examples.

        Raises:
            TypeError: If it cannot say.
        """
        loader, batches = self._loader, batches_of(self._loader)
        try:
            if is_trackable(loader) and is_plain(batches):
                sampler = sampler_of(loader)
                if isinstance(sampler, FilteredSampler):  # whose length is of the last epoch
                    sampler = sampler.sampler
                examples = len(sampler)
                if getattr(sampler, "replays", False):  # of which a draw may leave out some
                    examples = sampler.examples // sampler.world
                examples = self._read_of(examples)
                return -(-examples // batches.batch_size), batches.batch_size, examples
        except TypeError:  # a sampler without a length
            pass
        raise TypeError(
            f"how many examples each batch of a {type(loader).__name__} has is not known before "
            "it is read: follow loader.progress in place of a number of steps, or wrap a "
            "DataLoader of a map-style data set"
        )
