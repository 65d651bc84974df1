"""The number of training batches of an epoch, where it is known before it or as it begins."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from siftback.batches.indices import examples_of
from siftback.batches.last_batches import count_batches
from siftback.batches.order import batches_of, is_plain, is_trackable, sampler_of
from siftback.batches.pool import Pool
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.loader_order import FilteredSampler
from siftback.loader.selection import BatchSelection
from siftback.loader.wrapped import is_own_size, size_owner
from siftback.schedule import Schedule
from siftback.selectors.sampling import count_of


@dataclass(eq=False)
class StepCounts:
    """Counts the training batches of epochs beforehand.

    Attributes:
        loader: The wrapped loader.
        pool: Makes the training batches.
        draw: Draws epochs before they are read; None without a rule.
        selection: Selects among scored batches; None where nothing does.
        schedule: When selection is on.
        epochs: Epochs of the whole training; None where they are not known.
    """

    loader: Any
    pool: Pool | None
    draw: EpochDraw | None
    selection: BatchSelection | None
    schedule: Schedule
    epochs: float | None
    _planned: dict[int, tuple[int, bool]] = field(default_factory=dict)  # of each epoch asked about

    def of_epoch(self, epoch: int) -> int:
        """Training batches of an epoch.

        Raises:
            TypeError: If they are not known before it.
        """
        pool, (rows, is_whole) = self._checked_pool(), self._plan(epoch)
        if pool.drop_last == "carry":
            before = sum(self._plan(earlier)[0] for earlier in range(epoch))
            return (before + rows) // pool.batch_size - before // pool.batch_size
        return self._batches(rows, is_whole)

    def of_next(self, epoch: int) -> int:
        """Training batches of an epoch that has not begun, as the length of a loader.

        Raises:
            TypeError: If they are not known before it, or in other epochs would not be. A loop that
                needs a length then stops in the first epoch, and not after it.
        """
        self._checked_pool()
        self._check_not_by_chance()
        if self.draw is not None and self.draw.rule.count(epoch) is None:
            raise self._unknown(self.draw)
        return self.of_epoch(epoch)

    def of_current(self, epoch: int, waiting: int) -> int | None:
        """Training batches of an epoch that has begun; None where they are not known.

        Args:
            epoch: The epoch.
            waiting: Examples that were pooled before it.
        """
        try:
            pool = self._checked_pool()
            self._check_not_by_chance()
            rows, is_whole = self._begun(epoch)
        except TypeError:
            return None
        if pool.drop_last == "carry":
            return (waiting + rows) // pool.batch_size
        return self._batches(waiting + rows, is_whole and not waiting)

    def to_come(self, epoch: int) -> int | None:
        """Examples that an epoch that has begun gives to training; None where they are not known.

        It is None too where the batches are the user's own, which are given as they are, the last
        one of a single row included.
        """
        pool: Pool | None = None
        rows: int | None
        try:
            pool = self._checked_pool()
            rows, is_whole = self._begun(epoch)
        except TypeError:
            draw = self.draw
            if draw is None or draw.is_pass(epoch) or not is_trackable(self.loader):
                return None
            # A batch sampler of the user's own may give fewer, of which nothing depends on this.
            pool, rows, is_whole = self.pool, draw.to_read, not draw.draws
        return None if is_whole and is_own_size(self.loader, pool) else rows

    def _batches(self, rows: int, is_whole: bool) -> int:
        """Training batches of an epoch of some examples, of which no other epoch has any."""
        pool = self._checked_pool()
        if is_whole and is_own_size(self.loader, pool) and not pool.drop_last:
            return -(-rows // pool.batch_size)
        return count_batches(rows, pool.batch_size, bool(pool.drop_last))

    def _checked_pool(self) -> Pool:
        if self.pool is None:
            raise TypeError(
                "how many steps an epoch has is not known before its first batch, as a "
                f"{type(self.loader).__name__} has no batch_size: give pool=Pool(batch_size)"
            )
        return self.pool

    def _check_not_by_chance(self) -> None:
        """Makes sure that no epoch has a number of examples that is left to chance.

        Raises:
            TypeError: If one has.
        """
        selection = self.selection
        if selection is None or selection.exact:
            return
        if selection.keep < 1 or self.schedule.anneal is not None:
            raise self._left_to_chance(selection)

    @staticmethod
    def _left_to_chance(selection: BatchSelection) -> TypeError:
        return TypeError(
            f"how many examples {type(selection.selector).__name__} keeps is left to "
            "randomness: give exact=True, which keeps exactly round(keep * N) of each "
            "batch, or follow loader.progress in place of a number of steps"
        )

    @staticmethod
    def _unknown(draw: EpochDraw) -> TypeError:
        return TypeError(
            f"how many examples {type(draw.rule).__name__} draws is not known before the "
            "epoch begins: ask for len(loader) within the epoch, take a rule of a fixed count, "
            "such as Memory, or follow loader.progress in place of a number of steps"
        )

    def _plan(self, epoch: int) -> tuple[int, bool]:
        """Examples of an epoch, but for what its last batch drops, and whether these are all.

        Raises:
            TypeError: If they are not known before it.
        """
        if epoch not in self._planned:
            self._planned[epoch] = self._count(epoch)
        return self._planned[epoch]

    def _count(self, epoch: int) -> tuple[int, bool]:
        draw = self.draw
        if draw is None or draw.plans_pass(epoch):
            return self._selected(epoch)
        sampler = sampler_of(self.loader)
        whole = sampler.whole if isinstance(sampler, FilteredSampler) else None
        count = draw.count(epoch, whole)
        if count is None:
            raise self._unknown(draw)
        self._check_each_once()
        is_whole = count == (draw.count_whole if whole is None else whole)
        return self._read_of(count // draw.world), is_whole

    def _begun(self, epoch: int) -> tuple[int, bool]:
        """As `_plan`, of an epoch whose examples are drawn."""
        draw = self.draw
        if draw is None or draw.is_pass(epoch):
            return self._selected(epoch)
        if is_trackable(self.loader) and is_plain(batches_of(self.loader)):
            return self._read_of(len(sampler_of(self.loader))), not draw.leaves_out
        self._check_each_once()
        return self._read_of(draw.drawn // draw.world), not draw.leaves_out

    def _selected(self, epoch: int) -> tuple[int, bool]:
        """As `_plan`, of an epoch whose batches are selected from."""
        rows = sum(self._kept(epoch))
        return rows, rows == self._sizes()[2]

    def _check_each_once(self) -> None:
        """Makes sure that the loader gives each drawn example once.

        Raises:
            TypeError: If it may not, or nobody knows how many there are.
        """
        loader = self.loader
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
        """Returns the examples that are read, without a last short batch that is dropped."""
        owner = size_owner(self.loader)
        size = getattr(owner, "batch_size", None)
        if size and getattr(owner, "drop_last", False):
            return int(examples // size * size)
        return examples

    def _kept(self, epoch: int) -> Iterator[int]:
        """Examples kept of each batch of the wrapped loader."""
        selection, (count, size, examples) = self.selection, self._sizes()
        for batch in range(count):
            rows = min(size, examples - batch * size)
            done = epoch + batch / count
            if selection is None or not self.schedule.is_on(done, self.epochs, batch):
                yield rows
                continue
            keep = self.schedule.keep(done, self.epochs, own=selection.keep)
            if not selection.exact and keep < 1:
                raise self._left_to_chance(selection)
            yield count_of(keep, rows) if selection.exact else rows

    def _sizes(self) -> tuple[int, int, int]:
        """Returns the wrapped loader's batches, their size, and their examples, as numbers.

        Raises:
            TypeError: If it cannot say.
        """
        loader, batches = self.loader, batches_of(self.loader)
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
