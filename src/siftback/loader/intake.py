"""What is kept of the batches of a wrapped loader, before training's forward."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from siftback.batches import tree
from siftback.batches.indices import IndexCheck, check_length, examples_of, length_of
from siftback.batches.order import has_indices_within, sampler_of
from siftback.batches.pool import Pool
from siftback.batches.source import Item, Source
from siftback.batches.stats import Stats
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.filtered_sampler import repeats
from siftback.epochs.sampler import check_rule_fits
from siftback.errors import BatchError
from siftback.loader.batch_selection import BatchSelection
from siftback.loader.first_batch import try_scores
from siftback.loader.wrapped_loader import no_indices, regroups
from siftback.processes.barrier import barrier
from siftback.schedule import Schedule
from siftback.selectors.selection import Selection


class Kept(NamedTuple):
    """What is kept of a batch.

    Attributes:
        batch: Of k examples.
        weights: float32[k], their loss weights.
        indices: int64[k], their dataset indices, on the CPU; None where unknown.
        size: k, where the structure of the batch need not say it; else None.
        is_whole: Whether it can be pooled with others; any other batch is given as it came.
    """

    batch: Any
    weights: Tensor
    indices: Tensor | None
    size: int | None
    is_whole: bool = True


class Intake:
    """Decides what is kept of each batch of a source, by a draw or by selection.

    Args:
        loader: The wrapped loader.
        source: It, with the place in it.
        draw: What leaves examples out before they are read; None where nothing does.
        selection: What leaves out examples that were read; None where nothing does.
        schedule: When selection is on.
        epochs: Of the whole training; None where it is not known.
        model: Whose device batches are moved to; None where they stay.
        stats: Counts what is done.
        pool: That makes the training batches, where the user gave one.

    Attributes:
        examples: How many there are; None where nobody knows.
    """

    def __init__(
        self,
        loader: Any,
        source: Source,
        draw: EpochDraw | None,
        selection: BatchSelection | None,
        schedule: Schedule,
        epochs: float | None,
        model: nn.Module | None,
        stats: Stats,
        pool: Pool | None,
    ) -> None:
        self._regroups, self._scored = regroups(loader, pool), False
        self._source, self._draw, self._selection = source, draw, selection
        self._schedule, self._epochs = schedule, epochs
        self._model, self._stats = model, stats
        self._offered = self._kept = 0  # examples of this epoch
        self.examples = examples_of(loader)
        self._length = length_of(getattr(loader, "dataset", None))
        # A sampler of the user's own repeats what it is meant to.
        is_filtered = draw is not None and draw.sampler is not None
        may_repeat = repeats(sampler_of(loader)) or has_indices_within(source.loader) or is_filtered
        self._check = IndexCheck(self.examples, repeats=may_repeat)
        if draw is not None and draw.rule.shards is not None:
            self._check = IndexCheck(self.examples, rows_of=draw.rows_of)
        # What of another loader than a DataLoader leaves out examples that were not drawn.
        self._drawer: Any = None
        if draw is not None and not source.is_ordered and hasattr(loader, "only"):
            self._drawer = loader

    @property
    def draws(self) -> bool:
        """Whether this epoch's examples were drawn before they are read."""
        return self._draw is not None and self._draw.draws

    @property
    def draws_fewer(self) -> bool:
        """Whether this epoch's draw left examples out before they are read."""
        return self._draw is not None and self._draw.leaves_out

    @property
    def reweights(self) -> bool:
        """Whether what is kept may have weights other than 1, which training must apply."""
        if self._draw is not None and self._draw.reweights:
            return True
        return self._selection is not None and self._selection.selector.reweights

    @property
    def shares_order(self) -> bool:
        """Whether each process has a share of one order that all of them have."""
        sampler: Any = sampler_of(self._source.loader)
        return int(getattr(sampler, "world", getattr(sampler, "num_replicas", 1))) > 1

    @property
    def splits(self) -> bool:
        """Whether batches are taken apart, or joined with others."""
        draws_after_reading = self._draw is not None and not self._reads_what_is_drawn
        return self._selection is not None or self._regroups or draws_after_reading

    @property
    def leaves_out(self) -> bool:
        """Whether some examples of the batches that were read will be left out."""
        draws_after_reading = self._draw is not None and not self._reads_what_is_drawn
        return draws_after_reading or (self._selection is not None and self._selection.leaves_out)

    def common_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that all processes must have alike; of the order, where they share one.

        Args:
            settings: Of the loader, with those in which processes may differ.
        """
        draw, selection, source = self._draw, self._selection, self._source.settings()
        own = {
            "memory": None if draw is None else draw.rule,
            **{name: value for name, value in settings.items() if name not in ("memory", "rank")},
            "selector": None if selection is None else selection.selector,
            "scorer": None if selection is None else selection.scorer,
            "loader": source.get("source", source),
        }
        if draw is None or not self.shares_order:
            del own["seed"]  # each may select by random numbers of its own
        if not self.shares_order:  # but each has a data set of its own
            del own["examples"]
            own["loader"] = own["loader"] | {"shuffle": None, "seed": None}
        return own

    def begin_epoch(self, settings: Mapping[str, Any], *, again: bool = False) -> None:
        """Draws the examples of an epoch.

        Args:
            settings: What all processes must have alike.
            again: Whether it begins again as it was drawn, as nothing of it was trained on.

        Raises:
            ConfigError: If the data set has another length than when the loader was made.
        """
        self.check_lengths()
        self._check.begin_epoch()
        self._offered = self._kept = 0
        barrier(f"the beginning of epoch {self._source.epoch}", settings)
        if self._draw is not None:
            started = time.perf_counter()
            self._draw.begin(self._source.epoch, again=again)
            self._tell_drawer()
            self._stats.seconds_selection += time.perf_counter() - started

    def check_lengths(self) -> None:
        """Checks that the data set and the rule have the length that the loader was made for.

        Without a rule a sampler of PyTorch's follows a data set that grows, as ever.

        Raises:
            ConfigError: If one has another.
        """
        if self._draw is None or self._length is None:
            return
        check_length("SelectiveLoader", self._length, getattr(self._source.loader, "dataset", None))
        if self.examples is not None:
            check_rule_fits(self._draw.rule, self.examples)

    @property
    def place(self) -> tuple[int, int]:
        """See `EpochDraw.progress`."""
        return (0, 0) if self._draw is None else self._draw.progress

    @place.setter
    def place(self, place: tuple[int, int]) -> None:
        if self._draw is not None:
            self._draw.progress = place

    def resume_epoch(self) -> None:
        """Goes on within an epoch, or before it, whose draw was loaded."""
        self._scored = self._source.epoch > 0 or self._source.is_within
        self._offered = self._kept = 0
        self._check.begin_epoch()  # as batches that were done do not come here again
        self._tell_drawer()

    def end_epoch(self) -> None:
        """Notes that the source has no more of an epoch."""
        if self._leaves_unread:
            assert self._draw is not None
            self._count_unread(self._draw.remaining)

    @property
    def kept_nothing(self) -> bool:
        """Whether there were examples in this epoch, and none was kept."""
        return self._offered > 0 == self._kept

    def keep(self, item: Item) -> Kept:
        """What is kept of a batch.

        Raises:
            BatchError: If it is empty, or its indices are needed and missing or wrong.
            LossError: If its scores cannot be selected by.
        """
        batch, indices, count = item.batch, item.indices, item.size
        place = self._source.place
        if self._draw is not None and indices is None:
            name = type(self._draw.rule).__name__
            raise BatchError(f"{place}: {no_indices(name, self._source)}")
        if count is None or (self.splits and item.lists is None):
            self._raise_unsplit(item)
        assert count is not None
        if count == 0:
            raise BatchError(f"{place} is empty: leave empty batches out of the wrapped loader")
        self._stats.seen += count if self._draw is None else item.asked or count
        started = time.perf_counter()
        if self._model is not None:
            batch = tree.to_device_of(batch, self._model)
        if self._draw is not None:
            assert indices is not None
            self._check.check(indices, place)
            self._draw.admit(indices)
        selection = self._select(item._replace(batch=batch), count)
        self._offered += count
        self._kept += count if selection is None else len(selection.positions)
        known = None if self.splits else count  # which an unknown structure need not say
        fits = item.lists is not None and item.asked in (None, count)
        is_whole = self.splits or fits
        if selection is None:
            ones = torch.ones(count, device=tree.device(batch), dtype=torch.float32)
            return Kept(batch, ones, indices, known, is_whole)
        if len(selection.positions) < count:
            batch, known = tree.take(batch, selection.positions, item.lists), None
        weights = selection.weights.to(tree.device(batch))  # those from memory are on the CPU
        if indices is not None:
            indices = indices[selection.positions.to(indices.device)]
        self._stats.considered += count
        self._stats.kept += len(weights)
        self._stats.seconds_selection += time.perf_counter() - started
        return Kept(batch, weights, indices, known, is_whole)

    def _raise_unsplit(self, item: Item) -> None:
        """Says why a batch cannot be split into examples.

        Raises:
            BatchError: Always.
        """
        try:
            self._source.read(item.batch, item.size)
        except BatchError as error:
            raise BatchError(
                f"{self._source.place} cannot be split into examples: {error}"
            ) from None

    @property
    def _leaves_unread(self) -> bool:
        """Whether what was not drawn is not read either."""
        return self.draws and self._reads_what_is_drawn

    @property
    def _reads_what_is_drawn(self) -> bool:
        return self._source.is_ordered or self._drawer is not None

    def _select(self, item: Item, count: int) -> Selection | None:
        """What is to be kept of a batch; None where all of it is, without selection."""
        source, draw, selection = self._source, self._draw, self._selection
        if draw is not None and draw.draws:
            assert item.indices is not None
            if self._leaves_unread:
                read = item.asked or count
                self._count_unread(draw.advance(read) - read)
            weights = draw.weights_of(item.indices)
            rows = weights.nonzero().squeeze(1)
            return Selection(rows, weights[rows])
        if selection is None:
            return None
        done = source.epochs_done
        is_on = draw.is_pass(source.epoch) if draw is not None else True
        model = self._model if self._model is not None else nn.Identity()
        if not is_on or not self._schedule.is_on(done, self._epochs, source.position):
            if not self._scored:
                self._scored = True
                try_scores(selection, model, item, count, source.place)
            return None
        self._scored = True
        if self._schedule.anneal is not None:
            keep = self._schedule.keep(done, self._epochs, own=selection.own_keep)
            selection.selector.set_keep(keep)  # type: ignore[attr-defined]
        scores = selection.score(model, item, count)
        if selection.scores:
            self._stats.scored += count
            if draw is not None and item.indices is not None:
                draw.rescore(item.indices, scores.float().cpu(), source.epoch)
        return selection.select(scores, source.place, self._stats)

    def _count_unread(self, count: int) -> None:
        """Examples of the source that were left out unread count as seen and considered."""
        self._stats.seen += count
        self._stats.considered += count
        self._stats.unread += count

    def _tell_drawer(self) -> None:
        """Passes what was drawn to a wrapped loader that leaves examples out itself."""
        if self._drawer is not None and self._draw is not None:
            drawn = self._draw.weights.nonzero().squeeze(1) if self._draw.draws else None
            self._drawer.only(drawn)
