"""The one new line in a training loop."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import check_flag, check_integer, check_object, check_seed
from siftback.batches.collating import TestedCollate
from siftback.batches.indices import fingerprint
from siftback.batches.order import batches_of, sampler_of
from siftback.batches.pool import Pool
from siftback.errors import ConfigError, StateError
from siftback.host_reads import move
from siftback.loader.before_reading import DrawingPipeline
from siftback.loader.chained import ChainedSource, ChainingPipeline, count_whole_batches
from siftback.loader.losses import LossRecord, OnNonfinite, watched_loss
from siftback.loader.pipeline import Pipeline, ScoringPipeline
from siftback.loader.selection import BatchSelection, is_exact, resolve_loader_selector
from siftback.loader.wrapped import (
    has_shorter_epochs,
    no_indices,
    open_source,
    regroups,
    resolve_draw,
    resolve_pool,
)
from siftback.losses.per_example import Losses, LossFn
from siftback.processes.barrier import settings_of_shards
from siftback.processes.distributed import rank_and_world
from siftback.rules.forecast import Forecast, forecast
from siftback.rules.rule import EpochRule
from siftback.schedule import Schedule, check_epochs, check_schedule
from siftback.scorers.scorer import Scorer
from siftback.selectors.selection import Selector
from siftback.state import (
    anything,
    check_digest,
    check_entries,
    choice,
    dict_of,
    generator_state,
    integer,
    load_all_or_none,
    optional,
    seal,
)
from siftback.tensor_arguments import check_module

VERSION = 5

_OF_ALL = {"rank": None, "world": None}
"""Settings in which processes differ, in a state of all of them together."""

_FOUND_OUT = ("examples", "batch_size", "drop_last")  # perhaps not before the first batch
_PASSED_THROUGH = ("dataset", "num_workers", "collate_fn", "pin_memory", "persistent_workers")
_DERIVED = ("batch_size", "drop_last", "sampler", "batch_sampler", "generator", "worker_init_fn")


class SelectiveLoader:
    """Wraps a loader so that training gets only examples worth it.

    With ``memory=``, examples are chosen **before they are read**, by what training taught. An
    epoch has exactly the batches of the wrapped loader: where a pass over the data ends, the next
    one is drawn, by the losses recorded until then, and it goes on in the next epoch::

        loader = SelectiveLoader(loader, memory=Memory(), epochs=20)
        for epoch in range(20):
            for x, y in loader:
                loss = loader.loss(F.cross_entropy(model(x), y, reduction="none"))

    With a model, a loss function and ``keep`` (or a selector), **after they are read**:
    Selective-Backprop (Jiang et al. 2019, Algorithm 1). Each batch of the wrapped loader is scored
    by a forward pass, each example is kept with probability ``CDF_R(loss)^beta``, scaled within the
    batch so that as many are kept of each unless ``exact=False``, and kept examples are pooled into
    full batches, and epochs are shorter. Ideal cost per example of a pass with share s kept, in
    forwards (1) and backwards (2): ``3s`` with memory, ``1 + 3s`` with a scoring pass, instead of
    3.

    Args:
        loader: Any iterable of batches, iterated once an epoch. With ``memory=``, a ``DataLoader``
            over a map-style data set is enough: its random or sequential sampler is replaced.
        model: The model, for scoring passes. It is read, never changed; batches are moved to its
            device.
        loss_fn: ``loss_fn(outputs, targets)`` for batches that are ``(inputs, targets)`` pairs.
            A loss of ``torch.nn`` or ``torch.nn.functional`` is called without reduction; any
            other function must give one loss per example.
        losses: In place of ``loss_fn``, for any batch: ``losses(model, batch) -> Tensor[N]``.
            A selector that needs no scores needs neither.
        keep: Share of the examples to keep, in (0, 1]: short for ``Percentile(keep=keep)``.
        selector: In place of ``keep``, any selector.
        scorer: Where scores come from; by default `Fresh`, a forward pass of the model as it is.
        memory: An `EpochRule`, such as `Memory`, in place of ``keep``, ``selector`` and ``scorer``.
        schedule: When to select. By default what the rule says; without one, after one epoch on
            all examples, or always by a selector that needs no scores.
        epochs: Epochs of the whole training, for `progress`, `total_steps` and schedules in shares.
        shorter_epochs: With ``memory=``, whether each epoch is one pass, shorter by what is left
            out. It is also that of a stream whose length is not known. How long it is is only known
            once it is begun.
        pool: A `Pool`, which makes the training batches; by default of the wrapped loader's
            ``batch_size`` and ``drop_last``, or of the size of its first batch.
        exact: Whether exactly ``round(keep * N)`` of each scored batch are kept, so that counts
            of steps are known beforehand; not with a rule that makes no scoring passes. By default
            where the selector can, and no example is dropped or kept as its loss is not finite; in
            several processes always. With False the number is left to chance, as in the paper.
        attach: Whether each batch carries what belongs to it: keys ``sift_index`` and
            ``sift_weight`` of a dict, two more elements of a tuple or list.
        on_nonfinite: What to do with an example whose loss is not finite, in a scoring pass and in
            `loss`: "error", "keep" (in training, but its loss is not remembered) or "drop" it.
        seed: Seed of all draws and orders here; no global generator is used.

    Attributes:
        stats: What was done so far, a `Stats`.

    Raises:
        ConfigError: If an argument is out of its range or two exclude each other.

    While iterating:

    Raises:
        BatchError: If the wrapped loader gives no batch or an empty one, parts of a batch
            have mismatched sizes; or where indices that are needed are missing, out of range, or
            repeated within an epoch.
        ConfigError: If a rule that learns from training was not given the losses of an epoch,
            or weights were never applied.
        LossError: If there is not one finite floating-point loss per example.

    >>> from torch.nn import functional as F
    >>> from siftback import Memory
    >>> x, y = torch.randn(512, 8), torch.randint(4, (512,))
    >>> data = torch.utils.data.TensorDataset(x, y)
    >>> plain = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    >>> model = nn.Linear(8, 4)
    >>> loader = SelectiveLoader(plain, memory=Memory(keep=0.5), epochs=10)
    >>> for _ in range(10):
    ...     for inputs, targets in loader:
    ...         loss = loader.loss(F.cross_entropy(model(inputs), targets, reduction="none"))
    ...         loss.backward()
    >>> loader.total_steps, loader.stats.released, loader.stats.seen
    (80, 5120, 9216)
    >>> loader = SelectiveLoader(plain, model, F.cross_entropy, keep=1 / 2)
    >>> for _ in range(2):
    ...     for inputs, targets in loader:
    ...         F.cross_entropy(model(inputs), targets).backward()
    >>> loader.stats.seen, loader.stats.scored, loader.stats.released == 512 + loader.stats.kept
    (1024, 512, True)
    """

    def __init__(
        self,
        loader: Iterable[Any],
        model: nn.Module | None = None,
        loss_fn: LossFn | None = None,
        *,
        losses: Losses | None = None,
        keep: float | None = None,
        selector: Selector | None = None,
        scorer: Scorer | None = None,
        memory: EpochRule | None = None,
        schedule: Schedule | None = None,
        epochs: float | None = None,
        shorter_epochs: bool = False,
        pool: Pool | None = None,
        exact: bool | None = None,
        attach: bool = False,
        on_nonfinite: OnNonfinite = "error",
        seed: int = 0,
    ) -> None:
        if isinstance(loader, SelectiveLoader):
            raise ConfigError(
                "loader is a SelectiveLoader already, as where a notebook's cell runs again, and "
                "would be selected from twice: give it the DataLoader"
            )
        self.epochs = check_epochs(epochs)
        if model is not None:
            check_module(model)
        if loss_fn is not None:
            check_object("loss_fn", loss_fn, "a loss function of (outputs, targets)", "__call__")
        if losses is not None:
            check_object("losses", losses, "a function losses(model, batch)", "__call__")
        self.model, self._loss = model, losses if loss_fn is None else loss_fn
        self._seed = check_seed(seed)
        self._generator = torch.Generator().manual_seed(self._seed)
        is_shorter = check_flag("shorter_epochs", shorter_epochs) or has_shorter_epochs(loader)
        draw = resolve_draw(loader, memory, epochs, schedule, seed, shorter_epochs=is_shorter)
        source = open_source(loader, draw, seed)
        self._draw = draw
        # Whether a state between epochs is that of all processes, whatever their number.
        self._is_common = bool(draw and draw.rule.shards)
        if draw is None:
            if shorter_epochs:
                raise ConfigError(
                    "shorter_epochs=True without memory=: batches that are selected after they "
                    "were read always make shorter epochs; leave it out"
                )
            selector = resolve_loader_selector(selector, keep, model)
            self.schedule = check_schedule(schedule, by_losses=selector.needs_scores)
            self.schedule.is_on(0, epochs)  # shares without epochs are an error now, not later
            self.schedule.check_selector(selector)
        else:
            name = type(draw.rule).__name__
            excluded = {"keep": keep, "selector": selector, "scorer": scorer}
            if not draw.rule.needs_passes:
                excluded["exact"] = exact
            for argument, value in excluded.items():
                if value is not None:
                    raise ConfigError(
                        f"both memory={name}(...) and {argument}= given: the rule chooses; leave "
                        f"{argument}= out, and give {name} what it is to keep"
                    )
            self.schedule = draw.schedule
            selector = draw.rule.selector
            scorer = draw.rule.scorer
        self._exact = is_exact(exact, selector, on_nonfinite)
        self.schedule.warn_if_never_on(self.epochs)
        self._record = LossRecord(
            draw, on_nonfinite, attach=attach, reweights=bool(selector and selector.reweights)
        )
        self.stats = self._record.stats
        selection = None
        if selector is not None:
            selection = BatchSelection(
                self.schedule,
                self.epochs,
                selector,
                scorer,
                model,
                loss_fn,
                losses,
                self._generator,
                self._exact,
                self._record,
            )
        shared: dict[str, Any] = {
            "wrapped": loader,
            "source": source,
            "selection": selection,
            "epochs": self.epochs,
            "model": model,
            "pool": resolve_pool(loader, pool),
            "record": self._record,
        }
        self._pipeline: Pipeline
        if draw is None:
            self._pipeline = ScoringPipeline(**shared)
        else:
            shared |= {"draw": draw, "regroups": regroups(loader, pool)}
            self._pipeline = DrawingPipeline(**shared)
            # What reads whole passes has them in turn, where an epoch's length is known.
            if draw.shorter > is_shorter and count_whole_batches(self._pipeline) is not None:
                shared["source"] = ChainedSource(source)
                self._pipeline = ChainingPipeline(**shared)

    def __iter__(self) -> Iterator[Any]:
        """One epoch of training batches; continues the epoch that a loaded state was within.

        An epoch that the loop left early has ended, and this is the next one; there is one warning.
        But an epoch begins again if no more was done than to look at it: no loss was recorded, and
        where a rule does not need losses, a single batch was taken.
        """
        pipeline, record, stats = self._pipeline, self._record, self.stats
        epoch, selection = pipeline.begin_epoch(self._common_settings()), pipeline.selection
        follows = selection and selection.follows_steps
        try:
            for batch in pipeline.training_batches(epoch):
                stats.released += batch.size
                epoch.batches += 1
                record.give(batch, epoch.number)
                if epoch.batches == 2:  # not at a look at one
                    pipeline.warn_of_use()
                    pipeline.warn_of_steps()
                if selection and follows:
                    pipeline.follow_step(selection, batch)
                yield batch.with_columns(batch.loss_weights()) if record.attach else batch.data
                if pipeline.epoch is not epoch:
                    raise ConfigError(
                        "the loader was iterated again, or a state was loaded, since this iterator "
                        "gave a batch: take the batches of one iter(loader) at a time"
                    )
                if follows:
                    pipeline.finish_step()
            pipeline.end_epoch(epoch)
        finally:
            epoch.is_open = False

    def __len__(self) -> int:
        """Training batches of the current epoch, or of the next one between epochs.

        Raises:
            TypeError: If that is not known before the epoch is over; or, between epochs, if it is
                not known before all of them, and so not before the first one either.
        """
        return self._pipeline.length

    def __bool__(self) -> bool:
        return True  # not by its length, which may be unknown

    def __getstate__(self) -> dict[str, Any]:
        if not self._pipeline.epoch.is_over:  # whose iterators nothing can copy
            raise ConfigError(
                "a SelectiveLoader within an epoch cannot be copied or pickled: copy it between "
                "epochs, or load its state_dict() in another one that was made like it"
            )
        return vars(self)

    @property
    def sampler(self) -> Any:
        """The sampler that batches are made from: the wrapped loader's, or what replaced it."""
        return sampler_of(self._pipeline.source.loader)

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler: the wrapped loader's, or what replaced it."""
        return batches_of(self._pipeline.source.loader)

    def __getattr__(self, name: str) -> Any:
        if name in _PASSED_THROUGH and "_pipeline" in self.__dict__:
            value = getattr(self._pipeline.source.loader, name)
            return value.function if isinstance(value, TestedCollate) else value
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PASSED_THROUGH + _DERIVED:
            raise ConfigError(f"{name} is set too late: give it to the loader that is wrapped")
        super().__setattr__(name, value)

    @property
    def batch_size(self) -> int | None:
        """Examples per training batch; None before the first batch says so."""
        return self._pipeline.pool.batch_size or None

    @property
    def drop_last(self) -> bool:
        """Whether examples that fill no batch at an epoch's end are not given."""
        return self._pipeline.pool.drop_last is not False

    def steps(self, epoch: int) -> int:
        """Returns the number of training batches of an epoch, counted from 0.

        Raises:
            TypeError: If they are not known before it: where a selector leaves the number to
                chance (``exact=True`` does not), or a rule or the wrapped loader cannot say.
        """
        return self._pipeline.steps(check_integer("epoch", epoch, 0))

    @property
    def total_steps(self) -> int:
        """Training batches of the whole training, for learning-rate schedules.

        Raises:
            ConfigError: If the loader was not given its ``epochs``.
            TypeError: If they are not known beforehand, see `steps`.
        """
        if self.epochs is None:
            raise ConfigError("total_steps needs the training's length: give epochs= to the loader")
        return self._pipeline.total_steps(math.ceil(self.epochs))

    def loss(
        self,
        losses: Tensor,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
        indices: Tensor | None = None,
        weights: Tensor | None = None,
        reduced: bool = False,
    ) -> Tensor:
        """Records the losses of a batch, and returns their mean, to run backward.

        It is the plain mean over the batch's examples, ``1/b * sum of w_i * losses_i``, with the
        loss weights w of the rule or selector, 1 where it has none, and without examples that are
        dropped as not finite; `watch` keeps the reduction of a loss function.

        Args:
            losses: float[b], one for each example of the batch: of those that wait for their
                losses, the one that was given first.
            correct: bool[b], whether each was predicted right, for rules that need it.
            confidence: float[b], the probability of the prediction, likewise.
            indices: int64[b], in place of the order: of which examples the losses are, such as
                ``sift_index`` of a batch with ``attach=True``.
            weights: float32[b], at least 0, with ``indices``: their weights, such as
                ``sift_weight``; by default those that they were given with.
            reduced: Whether ``losses`` is one number for the whole batch. Each of its examples
                is then remembered by the mean of the numbers it had a part in.

        Returns:
            float[], the mean, with the gradient of ``losses``; with ``reduced``, the number itself.

        Raises:
            BatchError: If ``indices`` are not those of examples.
            ConfigError: If no batch waits for its losses, or weights or a `NoiseGuard` do not fit.
            LossError: If there is not one finite loss for each example, or one weight.
        """
        weights, stays = self._record.record(
            losses,
            correct=correct,
            confidence=confidence,
            indices=indices,
            weights=weights,
            reduced=reduced,
        )
        if reduced:
            return losses.reshape(())
        if weights is not None:
            losses = losses * move(weights, losses.device)
        if stays is None:
            return losses.mean()
        # Without an index, of whose length the host would wait to be told; of none, a zero.
        # Divided first, as the sum of many is beyond half precision.
        return torch.where(stays, losses, 0).div(stays.sum().clamp(min=1)).sum()

    def record(
        self,
        losses: Tensor,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
        indices: Tensor | None = None,
        reduced: bool = False,
    ) -> None:
        """Records losses as `loss` does, and no more; weights are then the loop's to apply.

        Args:
            losses: As for `loss`; gradients are not followed.
            correct: As for `loss`.
            confidence: As for `loss`.
            indices: int64[b], the examples, where they are not those of the next batch that waits
                for its losses: such as some of those `left_out`, forwarded after the epoch.
            reduced: As for `loss`.

        Raises:
            BatchError: As for `loss`.
            ConfigError: As for `loss`.
            LossError: As for `loss`.
        """
        self._record.record(
            losses,
            correct=correct,
            confidence=confidence,
            indices=indices,
            reduced=reduced,
            apply_weights=False,
        )

    def watch(self, loss_fn: LossFn) -> Callable[..., Tensor]:
        """Returns the same loss function, which also records the losses of the examples.

        Its value and gradient are those of ``loss_fn`` itself, whatever its reduction; of one loss
        per example, their mean. Weights of a rule multiply the examples' terms of it, and the
        losses that a call with ``reduction="none"`` returns, of which those that are dropped as not
        finite are 0. What is recorded is `per_example`, by a second call; without gradients nothing
        is.

        Args:
            loss_fn: ``loss_fn(outputs, targets)``, or of other arguments, such as a ``CTCLoss``.

        Raises:
            ConfigError: If its ``reduction`` is not one of PyTorch's, or a `NoiseGuard` of the rule
                needs plain cross-entropy.
            LossError: On a call, as for `loss`, or if weights cannot be applied to its reduction.

        >>> from torch.nn import functional as F
        >>> from siftback import Memory
        >>> data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randint(4, (8,)))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        >>> loader = SelectiveLoader(loader, memory=Memory(), epochs=2)
        >>> criterion, model = loader.watch(F.cross_entropy), nn.Linear(4, 4)
        >>> for x, y in loader:
        ...     criterion(model(x), y).backward()
        """
        return watched_loss(loss_fn, self._record, self.loss)

    @property
    def weights(self) -> Tensor:
        """float32[b], the loss weights of the batch in training: all 1 where nothing reweights.

        Raises:
            ConfigError: If the loop reads ahead, so that it could be that of several batches.
        """
        # A copy, as a loop may normalize them in place before `loss` applies its own.
        return self._record.current("weights").loss_weights().clone()

    @property
    def reweights(self) -> bool:
        """Whether the `weights` of the batch in training may differ from 1."""
        return self._record.current("indices").weights is not None

    @property
    def indices(self) -> Tensor:
        """int64[b], the dataset indices of the batch in training, on the CPU.

        Raises:
            ConfigError: If the loader does not know them, or the loop reads ahead.
        """
        indices = self._record.current("indices").indices
        if indices is None:
            raise ConfigError(no_indices("loader.indices", self._pipeline.source))
        return indices.cpu().clone()  # not that by which losses are matched

    @property
    def left_out(self) -> Tensor:
        """int64[n], the examples left out unread of this pass, or of the one just done.

        An epoch goes over the data in several passes, another of which may have read them; with
        ``shorter_epochs=True`` it is one pass, and they are what the epoch leaves out.
        """
        return self._draw.left_out if self._draw else torch.arange(0)

    @property
    def share(self) -> float:
        """Share of the examples that is trained on: of this pass, or that selection is to keep."""
        return self._pipeline.share

    def log_entries(self) -> dict[str, float]:
        """Returns `Stats.log_entries` as they are now, for a logger, such as ``wandb.log``."""
        return self.stats.log_entries(self.share)

    @property
    def forecast(self) -> Forecast:
        """The worth that ``Memory()`` is expected to have, by the losses until now.

        It is computed when it is asked for, from the end of the first epoch until examples are left
        out, which is when the warm-up ends; see `siftback.forecast`.

        Raises:
            ConfigError: If the loader was not given its ``epochs``, or no rule remembers losses.
            LossError: If a remembered loss is negative.
        """
        rule = self.memory
        losses = None if rule is None else rule.scores(self.epoch)
        if losses is None or self.epochs is None:
            raise ConfigError(
                f"forecast with memory={_name_of_class(rule)} and epochs={self.epochs}: it needs a "
                "rule that remembers losses, such as Memory(), and the length of training"
            )
        if self.stats.considered:
            return Forecast.untold("examples were left out already: ask before the warm-up ends")
        return forecast(losses, epochs=self.epochs, done=self.epochs_done)

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate in this epoch: 1 except for `Kakurenbo`."""
        return self._draw.lr_scale if self._draw else 1.0

    @property
    def memory(self) -> EpochRule | None:
        """The rule that chooses before reading; None where none does."""
        return self._draw.rule if self._draw else None

    @property
    def selector(self) -> Selector | None:
        """The selector among the examples of scored batches; None where nothing does."""
        return getattr(self._pipeline.selection, "selector", None)

    @property
    def scorer(self) -> Scorer | None:
        """The scorer of batches; None where nothing does."""
        return getattr(self._pipeline.selection, "scorer", None)

    @property
    def epoch(self) -> int:
        """The current epoch, from 0; or the next one, between epochs."""
        return self._pipeline.next_epoch

    @property
    def epochs_done(self) -> float:
        """Epochs of source examples done before the batch in training."""
        return self._pipeline.done

    @property
    def progress(self) -> float:
        """Share of training done before the batch in training, in [0, 1].

        It is counted in source examples, and moves on by equal parts over the batches that come
        of them; after the last batch it is 1.

        Raises:
            ConfigError: If the loader was not given its ``epochs``.
        """
        if self.epochs is None:
            raise ConfigError("progress needs the length of training: give epochs= to the loader")
        return min(self._pipeline.done / self.epochs, 1.0)

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch comes next, of this loader and of the one it wraps.

        What is left of another epoch that was broken off is then not given any more.
        """
        self._pipeline.set_epoch(check_integer("epoch", epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Returns all that decides which examples come next; fit for ``torch.save``.

        Of a ``DataLoader`` over a map-style data set, the rest of the epoch's order is part of it,
        so that nothing done is read again. Another loader's own state is saved with it where it has
        one; otherwise the batches done are read again and skipped on resuming, which needs an order
        that repeats. PyTorch's global generator is the training loop's own to save, and random
        augmentation is the same again only as a function of seed, epoch and index. Of a rule with
        shards, ``torch.distributed.checkpoint`` re-shards what is saved between epochs.
        """
        pipeline = self._pipeline
        pipeline.finish_step()
        # The state of all processes together.
        is_common = self._is_common and pipeline.is_between_epochs
        state = {
            "version": VERSION,
            "settings": self._settings() | (_OF_ALL if is_common else {}),
            **pipeline.state_dict(),
            "generator": self._generator.get_state(),
        }
        # Seconds and PyTorch's global generator are each process's own, and a checkpoint of all
        # processes may take them, and the digest, from different ones.
        return seal(state, uncovered=("source", "stats") if is_common else ())

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits, and changes nothing.

        Raises:
            StateError: As for `load_state_dict`.
        """
        version = state.get("version") if isinstance(state, dict) else None
        if version != VERSION or isinstance(version, bool):
            raise StateError(
                f"a loader's state of version {version!r}; this release reads version "
                f"{VERSION}: resume with the release that saved it"
            )
        check_digest(self, state)
        settings = self._settings()
        late = {"drop_last": choice(None, False, True, "carry"), "batch_size": optional(integer(1))}
        check_entries(self, state, {"settings": dict_of(dict.fromkeys(settings, anything) | late)})
        saved = state["settings"]
        if self._is_common and all(saved[name] is None for name in _OF_ALL):
            # Several processes are always exact, one is not, and a rule with shards is in any case.
            settings |= {**_OF_ALL, "exact": saved["exact"]}
        for name in _OF_ALL:
            if saved[name] != settings[name]:
                raise StateError(
                    f"the state was saved with {name}={saved[name]!r}, and this loader has {name}="
                    f"{settings[name]!r}: each process loads its own state, of as many processes"
                )
        for name in _FOUND_OUT:
            if None in (settings[name], saved[name]):
                settings[name] = saved[name]
        check_entries(self, state, {"generator": generator_state}, settings)
        self._pipeline.check_state(self, state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another loader, built with the same arguments, was stopped.

        Raises:
            StateError: If the state is of another version, of a loader with other settings or
                another wrapped loader, or damaged; this one is then as it was.
        """
        self.check_state(state)
        pipeline = self._pipeline
        pairs = [(member, state[name]) for name, member in pipeline.members().items()]
        load_all_or_none(*pairs, finish=lambda: pipeline.load_flow(state))
        self._generator.set_state(state["generator"])

    def _settings(self) -> dict[str, Any]:
        """Returns the settings that a state must have been saved with to fit."""
        selection, pool = self._pipeline.selection, self._pipeline.pool
        rank, world = rank_and_world()
        choices = {"memory": self.memory, "selector": self.selector, "scorer": self.scorer}
        return {
            "rank": rank,
            "world": world,
            **{name: _name_of_class(value) for name, value in choices.items()},
            "keep": getattr(selection, "keep", 1.0),
            **self.schedule.settings(self.epochs),
            "on_nonfinite": self._record.on_nonfinite,
            "exact": self._exact,
            "seed": self._seed,
            "examples": self._pipeline.examples,
            "batch_size": pool.batch_size or None,
            "drop_last": pool.drop_last if pool.batch_size else None,
        }

    def _common_settings(self) -> dict[str, Any]:
        """Returns the settings that all processes must have alike; of a common order, with it."""
        pipeline = self._pipeline
        source = pipeline.source.settings()
        order = source.get("source", source)
        settings = {
            **self._settings(),
            "memory": self.memory,
            "selector": self.selector,
            "scorer": self.scorer,
            "epochs": self.epochs,
            "loss": self._loss,
            "attach": self._record.attach,
            "pad": pipeline.pool.pad,
        }
        del settings["rank"]
        if self.memory is None or not pipeline.shares_order:
            del settings["seed"]  # each may select by random numbers of its own
        if not pipeline.shares_order:  # but each has a data set of its own
            del settings["examples"]
            settings = settings_of_shards(settings) if settings["world"] > 1 else settings
            order = order | dict.fromkeys(("shuffle", "seed", "num_workers"))
        elif self.memory:
            settings["dataset"] = fingerprint(getattr(pipeline.source.loader, "dataset", None))
        if (draw := self._draw) and draw.losses.exchanges and not (draw.shorter or draw.is_ahead):
            # Passes are drawn as they are asked for, and processes exchange their losses there.
            names = "num_workers", "prefetch_factor"
            order = order | {name: getattr(pipeline.source.loader, name, None) for name in names}
        return settings | {"loader": order}


def _name_of_class(value: object) -> str | None:
    return None if value is None else type(value).__name__
