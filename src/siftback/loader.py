"""The one new line in a training loop."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor, nn

from siftback import loader_state
from siftback.batch_selection import Begun, Chooser, OnNonfinite
from siftback.epoch_draw import Recall, selector_for
from siftback.errors import BatchError, ConfigError
from siftback.guard import Guard, Watch
from siftback.loading import tree
from siftback.loading.indices import IndexOf, Indices
from siftback.loading.lookahead import Lookahead
from siftback.loading.pool import BatchFormer, DropLast
from siftback.loading.source import Source
from siftback.loading.stats import Stats
from siftback.loss_functions import Losses, LossFn, resolve
from siftback.rules.every_epoch import EveryEpoch
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.remembered import Remembering
from siftback.schedule import Schedule
from siftback.scorers.fresh import Fresh, Mode, Scorer
from siftback.selectors.percentile import Selection, Selector


class SelectiveLoader:
    """Wraps a loader so that training gets only examples worth a backward pass.

    Selective-Backprop (Jiang et al. 2019, Algorithm 1), unless another selector is given: each
    batch of the wrapped loader is scored by a forward pass, each example is kept with chance
    ``CDF_R(loss)^beta``, and kept examples are pooled into full batches. Ideal cost of an epoch
    with share s kept, in forwards (1) and backwards (2): ``1 + 3s`` instead of 3.

    Args:
        loader: Any iterable of batches, iterated once an epoch.
        model: The model, for the selection pass. It is read, never changed.
        loss_fn: ``loss_fn(outputs, targets)`` for batches that are ``(inputs, targets)`` pairs.
            A loss of ``torch.nn`` or ``torch.nn.functional`` is told not to reduce; any other
            function must give one loss per example.
        losses: In place of ``loss_fn``, for any batch: ``losses(model, batch) -> Tensor[N]``.
            A selector that needs no scores needs neither.
        keep: Share of the examples to keep, in (0, 1]; ``keep = 1 / (beta + 1)``.
        beta: In place of ``keep``: the exponent, at least 0.
        history: R, how many losses a loss is ranked among.
        selector: In place of ``keep``, ``beta`` and ``history``: any selector.
        scorer: Where scores come from; by default `Fresh`, a forward pass of the model as it is.
        score_share: Share of each selection batch that is scored, in (0, 1]. The others, a
            uniform choice, are left out unseen, so the share kept is ``score_share * keep``.
        schedule: When to select; while off, everything passes through. Always by default.
        epochs: Epochs of the whole training, for `progress` and for schedules in shares.
        batch_size: Examples per training batch; by default that of the wrapped loader, or the
            size of its first batch. A wrapped loader of larger batches makes fewer, larger
            selection passes (section 4).
        drop_last: What becomes of kept examples that fill no batch at the end of an epoch:
            False releases them as a smaller batch, which may be of a single example (too few for
            batch normalisation over vectors), True drops them (see `Stats.dropped`), "carry"
            keeps them for the next epoch. By default what the wrapped loader has.
        device: Where to move each batch first; None leaves it where it is.
        mode: Mode of the model in the selection pass of `Fresh`, "eval" or "train".
        autocast: Type to compute in during that pass, such as ``torch.bfloat16``.
        on_nonfinite: What to do with an example whose loss is not finite: "error", "keep" or
            "drop" it.
        index_of: ``index_of(batch) -> int64[N]``, the examples' indices in the data set, for
            scorers that remember and for a `NoiseGuard`; not needed over an `Indexed` data set.
        guard: A `NoiseGuard` holds back examples that seem mislabelled. True is another: it
            measures, over 20 selection batches after 20 others, what selection takes and what it
            saves, and warns once (`SelectionCostWarning`, with the numbers) where it takes more.
            Both are off unless asked for: that warning depends on the clock, and would come and
            go between runs, and an accelerator is waited for while it measures.
        seed: Of the loader's own generator; no global one is used.

    Attributes:
        stats: What was done so far, a `Stats`.

    Raises:
        ConfigError: Where an argument is out of its range or two exclude each other.

    While iterating:

    Raises:
        BatchError: Where the wrapped loader gives no batch or an empty one, parts of a batch
            have unlike sizes, or it lies on another device than the model; or where indices
            that are needed are missing, out of range, or repeated within an epoch.
        ConfigError: Where a scorer that learns from training was not told its losses.
        LossError: Where there is not one finite floating-point loss per example.

    >>> from torch.nn import functional as F
    >>> x, y = torch.randn(512, 8), torch.randint(4, (512,))
    >>> data = torch.utils.data.TensorDataset(x, y)
    >>> loader = torch.utils.data.DataLoader(data, batch_size=64)
    >>> model = nn.Linear(8, 4)
    >>> loader = SelectiveLoader(loader, model, F.cross_entropy, keep=1 / 2)
    >>> for inputs, targets in loader:
    ...     loss = F.cross_entropy(model(inputs), targets)
    ...     loss.backward()
    >>> loader.stats.seen, loader.stats.kept == loader.stats.released
    (512, True)
    """

    def __init__(
        self,
        loader: Iterable[Any],
        model: nn.Module,
        loss_fn: LossFn | None = None,
        *,
        losses: Losses | None = None,
        keep: float | None = None,
        beta: float | None = None,
        history: int = 1024,
        selector: Selector | None = None,
        scorer: Scorer | None = None,
        score_share: float = 1.0,
        schedule: Schedule | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        drop_last: DropLast | None = None,
        device: torch.device | str | None = None,
        mode: Mode = "eval",
        autocast: torch.dtype | None = None,
        on_nonfinite: OnNonfinite = "error",
        index_of: IndexOf | None = None,
        guard: bool | NoiseGuard = False,
        seed: int = 0,
    ) -> None:
        selector = selector_for(scorer, selector, keep, beta, history)
        if epochs is not None and not epochs > 0:
            raise ConfigError(f"epochs={epochs!r}: give the number of epochs, more than 0")
        if scorer is not None and (mode, autocast) != ("eval", None):
            raise ConfigError(
                f"mode={mode!r} and autocast={autocast!r} are those of the default scorer, and "
                f"{type(scorer).__name__} was given: say them to it, or leave it out"
            )
        batch_size = getattr(loader, "batch_size", None) if batch_size is None else batch_size
        drop_last = bool(getattr(loader, "drop_last", False)) if drop_last is None else drop_last
        if schedule is None and isinstance(scorer, Remembering):
            schedule = scorer.schedule
        self.schedule = schedule or Schedule()
        self.schedule.is_on(0, epochs)  # shares without epochs are an error now, not later
        self._own_keep = selector.keep
        self.schedule.check_selector(selector)
        if self.schedule.interrupt and isinstance(scorer, Remembering):
            raise ConfigError(
                f"interrupt={self.schedule.interrupt} lets whole batches pass, and "
                f"{type(scorer).__name__} leaves examples out before there are any: leave it out"
            )
        self._source = Source(loader)
        self.model = model
        self.selector = selector
        self.epochs = epochs
        self.stats = Stats()
        self.scorer = scorer or Fresh(mode, autocast)
        self._generator = torch.Generator().manual_seed(seed)
        self._needs_losses = selector.needs_scores and self.scorer.makes_passes
        self._guard = guard if isinstance(guard, NoiseGuard) else None
        self._chooser = Chooser(
            selector,
            self.scorer,
            resolve(loss_fn, losses) if self._needs_losses else None,
            score_share,
            on_nonfinite,
            self._generator,
            self._guard,
        )
        self._lookahead = Lookahead(self._source, self._chooser.depth)
        self._indices_of = Indices(loader, index_of)
        if self.scorer.needs_indices:
            self._indices_of.require(type(self.scorer).__name__)
        self._recall: Recall | None = None
        if isinstance(scorer, Remembering):
            self._recall = Recall(loader, scorer, self._indices_of, selector, self._guard)
        if self._guard is not None:
            self._indices_of.require("NoiseGuard")
            if not (self._needs_losses or (self._recall and self._recall.scorer.learns)):
                raise ConfigError(
                    f"{type(selector).__name__} looks at no losses, and NoiseGuard judges by them: "
                    "leave the guard out, or give keep=, which selects by losses"
                )
        self._unfinished: Any = None  # the batch that training was given last
        self._drop_last: DropLast = drop_last
        self._former = None if batch_size is None else BatchFormer(batch_size, drop_last)
        self._device = None if device is None else torch.device(device)
        self._watch = Watch(Guard() if guard is True else None)
        self._weights = torch.empty(0)
        self._weights_read: bool | None = None  # nothing was given yet
        self._indices: Tensor | None = None
        self._remembered = False
        self._training_epoch = 0  # of the batch given last, also where the source is done with it

    def __iter__(self) -> Iterator[Any]:
        """One epoch of training batches; continues the epoch that a loaded state was within."""
        self._finish_step()
        if not self._source.is_resumed:  # what is left of an epoch that was broken off
            self.scorer.cancel()
            if self._former is not None:
                self._former.abandon()
                self.stats.dropped = self._former.dropped
        if not (self._source.is_resumed and self._source.is_within):
            self._begin_epoch()
        self._training_epoch = self._source.epoch
        batches = self._lookahead.batches(self._begin)
        yield from self._full_batches()  # those still pooled when a state was saved
        for (batch, *indices), begun in batches:
            self._offer(batch, indices[0] if indices else None, begun)
            self._source.position += 1
            yield from self._full_batches()
        if self._former is None or (self._source.position == 0 and not self._draws):
            raise BatchError(
                f"the wrapped {type(self._source.loader).__name__} gave no batch: "
                "give one that is not empty and can be iterated once an epoch"
            )
        if self.selector.reweights and self._weights_read is False:
            rule = self.scorer if isinstance(self.scorer, EveryEpoch) else self.selector
            raise ConfigError(
                f"{type(rule).__name__} reweights losses and the weights were never "
                "read: multiply each batch's losses with loader.weights"
            )
        if self._recall is not None and self._draws:
            self._count_unread(self._recall.end_epoch())
        self._source.end_epoch()
        yield from self._give(self._former.end_epoch())
        self.stats.dropped = self._former.dropped

    @property
    def weights(self) -> Tensor:
        """float32[b], the loss weights of the batch just given.

        All 1 for selectors that do not reweight. Of one that does, they must be read: it is an
        error at the end of an epoch if they never were.
        """
        self._weights_read = True
        return self._weights

    @property
    def indices(self) -> Tensor:
        """int64[b], the dataset indices of the batch just given.

        Raises:
            ConfigError: Where the loader does not know them.
        """
        if self._indices is None:
            raise ConfigError(
                "the loader knows no indices: wrap the data set, DataLoader(Indexed(dataset), "
                "...), or give index_of=fn(batch) -> int64[N]"
            )
        return self._indices

    def remember(
        self,
        losses: Tensor,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
        indices: Tensor | None = None,
    ) -> None:
        """Tells training's own losses of the batch just given to a scorer that learns from them.

        To other scorers it means nothing, so that the line may stay in the training loop.

        Args:
            losses: float[b], one an example; gradients are not followed.
            correct: bool[b], whether each was predicted right, for scorers that ask for it.
            confidence: float[b], the probability of what was predicted, likewise.
            indices: int64[b], the examples, where they are others than those of that batch, such
                as some of those `left_out`, forwarded after the epoch.

        Raises:
            ConfigError: Where a scorer that asks for it was not told what was predicted.
            LossError: Where there is not one for each example of the batch.
        """
        self._remembered = self._remembered or indices is None
        if self._recall is not None:
            of = self.indices if indices is None else indices
            self._recall.learn(of, losses, self._training_epoch, correct, confidence)
            if self._guard is not None and not self._needs_losses:
                self._guard.observe(of, losses)

    @property
    def left_out(self) -> Tensor:
        """int64[n], the examples left out unread of this epoch, or of the one just done."""
        return torch.arange(0) if self._recall is None else self._recall.left_out

    @property
    def lr_scale(self) -> float:
        """What the learning rate is to be multiplied with in this epoch: 1 but for `Kakurenbo`."""
        return 1.0 if self._recall is None else self._recall.lr_scale

    @property
    def epoch(self) -> int:
        """The current epoch, from 0; or the next one, between epochs."""
        return self._source.epoch

    @property
    def epochs_done(self) -> float:
        """Epochs of source examples done, with the fraction of the current one where known."""
        return self._source.epochs_done

    @property
    def progress(self) -> float:
        """Share of training done, in [0, 1], counted in source examples.

        Drives learning-rate schedules: the number of steps varies with what is kept.

        Raises:
            ConfigError: Where the loader was not told its ``epochs``.
        """
        if self.epochs is None:
            raise ConfigError("progress needs the length of training: give epochs= to the loader")
        return min(self.epochs_done / self.epochs, 1.0)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch comes next, to this loader and to the one it wraps."""
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """All that decides which examples come next; fit for ``torch.save``.

        Where the wrapped loader has a state of its own it is saved too. Otherwise the batches
        done are read again and skipped on resuming, which gives the same examples where the
        wrapped loader repeats its order: one without shuffling, one that shuffles by a
        ``generator``, by its sampler's or by PyTorch's global one, or one whose order follows
        `set_epoch`. The global generator is put back after that; between epochs its state is
        the training loop's own to save.
        """
        self._finish_step()
        return {
            "version": loader_state.VERSION,
            "source": self._source.state_dict(),
            "selector": {type(self.selector).__name__: self.selector.state_dict()},
            "scorer": {type(self.scorer).__name__: self.scorer.state_dict()},
            "guard": None if self._guard is None else {"NoiseGuard": self._guard.state_dict()},
            "lookahead": self._lookahead.state_dict(),
            "recall": None if self._recall is None else self._recall.state_dict(),
            "former": None if self._former is None else self._former.state_dict(),
            "generator": self._generator.get_state(),
            "stats": asdict(self.stats),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another loader, built with the same arguments, was stopped.

        Raises:
            StateError: Where the state is of another version, or of a loader with another
                selector or wrapped loader.
        """
        parts = {"selector": self.selector, "scorer": self.scorer, "guard": self._guard}
        loader_state.check(state, self.state_dict(), parts)
        self._unfinished = None
        self._indices_of.begin_epoch()  # as batches that were done do not come here again
        self._source.check(state["source"])  # so that nothing is changed if anything is refused
        self.selector.load_state_dict(*state["selector"].values())
        self.scorer.load_state_dict(*state["scorer"].values())
        if self._guard is not None:
            self._guard.load_state_dict(*state["guard"].values())
        if self._recall is not None:
            self._recall.load_state_dict(state["recall"])
        self._source.load_state_dict(state["source"])
        self._lookahead.load_state_dict(state["lookahead"])
        if state["former"] is None:
            self._former = None
        else:
            self._former = self._former or BatchFormer(
                state["former"]["batch_size"], self._drop_last
            )
            self._former.load_state_dict(state["former"])
        self.stats = Stats(**state["stats"])
        self._generator.set_state(state["generator"])

    @property
    def _draws(self) -> bool:
        """Whether this epoch's examples were drawn from memory before they were read."""
        return self._recall is not None and self._recall.draws

    def _begin_epoch(self) -> None:
        self._indices_of.begin_epoch()
        if self._recall is not None:
            on = self.schedule.is_on(self._source.epoch, self.epochs)
            self._anneal(self._source.epoch)
            started = time.perf_counter()
            self._recall.begin_epoch(on, self._source.epoch, self._generator)
            if self._guard is not None and self._draws:
                self.stats.capped += len(self._guard.suspects)
            self.stats.seconds_selection += time.perf_counter() - started

    def _begin(self, batch: Any) -> tuple[Any, Begun]:
        """Makes a batch just read ready; where that is ahead of its turn, has it scored.

        Gives ``(batch, indices)``, without the indices where they are not known.
        """
        indices: list[Tensor] = []
        if self._indices_of.known:
            place = f"batch {self._source.position + self._source.ahead} of epoch {self.epoch}"
            batch, *indices = self._indices_of.take_off(batch, place)
        if self._device is not None:
            batch = tree.to_device(batch, self._device)
        begun: Begun = None
        if self._lookahead.depth:
            count = tree.size(batch)
            batch_read = self._source.position + self._source.ahead
            if count and self.schedule.is_on(self._source.epochs_read, self.epochs, batch_read):
                started = time.perf_counter()
                begun = self._chooser.begin(self.model, batch, count)
                self.stats.seconds_selection += time.perf_counter() - started
        return (batch, *indices), begun

    def _offer(self, batch: Any, indices: Tensor | None, begun: Begun) -> None:
        """Adds to the pool what is to be kept of a batch of the wrapped loader."""
        count = tree.size(batch)
        if count == 0:
            raise BatchError(
                f"{self._source.place} is empty: leave empty batches out of the wrapped loader"
            )
        if self._former is None:
            self._former = BatchFormer(count, self._drop_last)
        self.stats.seen += count
        started = time.perf_counter()
        self._watch.start(tree.device(batch))
        selection = self._selection(batch, count, indices, begun)
        if selection is None:
            weights = torch.ones(count, device=tree.device(batch))
        else:
            batch = tree.take(batch, selection.indices)
            weights = selection.weights.to(tree.device(batch))  # those from memory are on the CPU
            if indices is not None:
                indices = indices[selection.indices.to(indices.device)]
            self._watch.selected(weights.device, count, len(weights))
            self.stats.considered += count
            self.stats.kept += len(weights)
            self.stats.seconds_selection += time.perf_counter() - started
        self._former.add((batch, weights) if indices is None else (batch, weights, indices))

    def _selection(
        self, batch: Any, count: int, indices: Tensor | None, begun: Begun
    ) -> Selection | None:
        """What is to be kept of a batch; None where all of it is, without selection."""
        if self._recall is not None and indices is not None:
            if self._recall.draws:
                self._count_unread(self._recall.passed(count) - count)
                return self._recall.keep(indices)
            self._recall.scorer.grow(int(indices.max()) + 1)
            if not self.scorer.makes_passes:
                return None
        on = self.schedule.is_on(self.epochs_done, self.epochs, self._source.position)
        if begun is None and not on:
            return None
        self._anneal(self.epochs_done)
        scores, rows = self._chooser.score(self.model, batch, count, begun, indices)
        of = indices if indices is None or rows is None else indices[rows.to(indices.device)]
        if self._needs_losses:
            self.stats.scored += len(scores)
            if self._recall is not None and of is not None:
                self._recall.scored(of, scores, self._source.epoch)
        return self._chooser.select(scores, rows, self._source.place, self.stats, of)

    def _anneal(self, epochs_done: float) -> None:
        """Has the selector keep the share that the schedule says."""
        if self.schedule.anneal is not None:
            keep = self.schedule.keep(epochs_done, self.epochs, own=self._own_keep)
            cast(Any, self.selector).set_keep(keep)

    def _count_unread(self, count: int) -> None:
        """Examples of the source that were left out unread count as seen and considered."""
        self.stats.seen += count
        self.stats.considered += count
        self.stats.unread += count

    def _full_batches(self) -> Iterator[Any]:
        if self._former is not None:
            yield from self._give(self._former.full_batches())

    def _give(self, released: Iterator[Any]) -> Iterator[Any]:
        """Gives batches to training, and does after each what is to be done then."""
        for batch, self._weights, *indices in released:
            self._indices = indices[0] if indices else None
            self.stats.released += len(self._weights)
            self._weights_read = bool(self._weights_read)
            self._unfinished, self._remembered = batch, False
            self._watch.start(self._weights.device)
            yield batch
            self._watch.trained(self._weights.device, len(self._weights))
            if self._recall is not None and self._recall.scorer.learns and not self._remembered:
                raise ConfigError(
                    f"{type(self.scorer).__name__} learns from training and was not told its "
                    "losses: call loader.remember(losses) for each batch, one loss an example"
                )
            self._finish_step()
            self._watch.refreshed(self._weights.device)

    def _finish_step(self) -> None:
        """Training is done with the batch it was given: it asks for the next one, or for state."""
        batch, self._unfinished = self._unfinished, None
        if batch is not None:
            started = time.perf_counter()
            self._chooser.after_step(self.model, batch)
            self.stats.seconds_selection += time.perf_counter() - started
