"""Selection among the examples of one batch, by scores computed before training's forward."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from siftback.arguments import check_choice, check_flag
from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.collating import explaining, undisturbed
from siftback.batches.source import Source
from siftback.batches.stats import Stats
from siftback.errors import ConfigError, LossError
from siftback.loader.losses import LossRecord, OnNonfinite
from siftback.loader.wrapped import sizes_of
from siftback.losses.per_example import Losses, LossFn, check_finite, check_losses, resolve_losses
from siftback.processes.distributed import rank_and_world
from siftback.schedule import Schedule
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import check_scorer, common_device, untouched
from siftback.selectors.in_batch import check_takes_count, takes_count
from siftback.selectors.percentile import resolve_selector
from siftback.selectors.sampling import count_of
from siftback.selectors.selection import Selection, Selector, check_untrained


class BatchSelection:
    """Scores a batch and selects by the scores.

    Args:
        schedule: When it is on, and how much is kept.
        epochs: Epochs of the whole training; None where they are not known.
        selector: Selects by the scores.
        scorer: Computes the scores; by default `Fresh`.
        model: The model; None is enough where no scores are needed.
        loss_fn: ``loss_fn(outputs, targets)``.
        losses: In its place, ``losses(model, batch)``.
        generator: Source of random numbers.
        exact: Whether exactly ``max(1, round(keep * N))`` of N examples are kept.
        record: Says what to do with an example whose score is not finite, reads scores of a device
            without waiting for it, and has the statistics.

    Attributes:
        needs_scores: Whether the selector selects by scores.
        losses: The losses that the scorer is called with; None if the selector needs no scores.
        keep: The selector's own share, which a schedule may change.
        leaves_out: Whether some examples are left out where it is on.
        follows_steps: Whether the scorer is to know of each training step.
        is_tried: Whether a batch was scored, on trial or in earnest.
        is_by_chance: Whether the number of examples kept is left to chance in any epoch.

    Raises:
        ConfigError: If scores are needed, and no model or not one loss function was given; or if
            exact numbers are, and the selector cannot keep them.
    """

    def __init__(
        self,
        schedule: Schedule,
        epochs: float | None,
        selector: Selector,
        scorer: Scorer | None,
        model: nn.Module | None,
        loss_fn: LossFn | None,
        losses: Losses | None,
        generator: torch.Generator,
        exact: bool,
        record: LossRecord,
    ) -> None:
        self._schedule, self._epochs, self._stats = schedule, epochs, record.stats
        self._is_on = schedule.bind(epochs)
        self.needs_scores = selector.needs_scores
        if self.needs_scores and model is None:
            raise ConfigError(no_model(type(selector).__name__))
        if exact:
            check_takes_count(selector)
        self.losses: Any = resolve_losses(loss_fn, losses) if self.needs_scores else None
        self.selector, self.scorer, self.exact = selector, check_scorer(scorer), exact
        self.model = nn.Identity() if model is None else model
        self._generator, self._record = generator, record
        self.keep = selector.keep
        self.has_limit = getattr(selector, "above", None) is not None  # and no share to keep
        self.leaves_out = self.keep < 1 or self.has_limit
        self._drops = self.needs_scores and record.on_nonfinite == "drop"
        after_step = getattr(self.scorer.after_step, "__func__", None)
        self.follows_steps = self.needs_scores and after_step is not Scorer.after_step
        self.is_tried = False
        # A model or a loss function may write to its inputs, such as to normalise them, or pop one.
        self._copies = True
        self.is_by_chance = not exact and (self.leaves_out or self._drops or bool(schedule.anneal))

    def select(
        self,
        batch: Batch,
        source: Source,
        learn: Callable[[Tensor], None] | None = None,
        *,
        is_pass: bool = True,
    ) -> Selection | None:
        """Selects among the examples of a batch; returns None while selection is off.

        Args:
            batch: The batch.
            source: Where it is from.
            learn: Called with its scores, float32[N]; None where nothing learns from them.
            is_pass: Whether selection may be on in this epoch.

        Raises:
            ConfigError: If the selector or the scorer is of another training.
            LossError: If a score is not finite and ``on_nonfinite="error"``, of an accelerator in a
                later step; or if fewer scores are finite than examples must be kept.
        """
        done, schedule = source.epochs_done, self._schedule
        if not self.is_tried and source.epoch == 0:
            check_untrained(self.selector, self.scorer)
        is_on = is_pass and self._is_on(done, source.position)
        if not (is_on or self.is_tried):
            self.try_scores(batch, source.place)
        self.is_tried = True  # once all is well, so that a loop that is run again is refused again
        if not is_on:
            return None
        selector: Any = self.selector
        if schedule.anneal:
            selector.set_keep(schedule.keep(done, self._epochs, own=self.keep))
        scores = self.score(batch)
        count = count_of(selector.keep, len(scores)) if self.exact else None
        if not self.needs_scores:
            return self.selector.select(scores, self._generator, count)
        self._stats.scored += batch.size
        if learn:
            learn(scores)
        if self._record.on_nonfinite != "error":
            return self._select_finite(scores, scores.isfinite(), count, source)
        ranked = scores.nan_to_num(nan=torch.finfo(scores.dtype).max)
        selection = self.selector.select(ranked, self._generator, count)
        note = partial(count_nonfinite, source.position, source.epoch, self._stats)
        self._record.reads.add(note, scores)
        return selection

    def score(self, batch: Batch) -> Tensor:
        """Returns float32[N], the scores of a batch; zeros if the selector needs none."""
        if not self.needs_scores:
            return torch.zeros(batch.size, device=batch.device, dtype=torch.float32)
        if batch.scores is not None:
            return check_losses(batch.scores, batch.size).to(batch.device)
        data = tree.clone(batch.data) if self._copies else batch.data
        scores = self.scorer.score(self.losses, self.model, data, batch.indices)
        if self._copies:  # as the first batch, which shows whether that is necessary
            written = [tensor.is_inference() or tensor._version for tensor in tree.tensors(data)]
            self._copies = len(written) < len(tree.tensors(batch.data)) or any(written)
        return check_losses(scores, batch.size, "scores")

    def try_scores(self, batch: Batch, where: str) -> None:
        """Scores a batch as it will be once selection is on, and forgets the scores.

        Nothing is left changed: random states, the model's modes and buffers, the scorer.

        Raises:
            BatchError: As the scorer does.
            LossError: If there is not one loss per example.
        """
        model = self.model
        # What a lazy module makes of its first batch would come from other random numbers.
        if not self.needs_scores or any(map(is_lazy, model.parameters())):
            return
        with ExitStack() as stack:
            device = common_device(model, batch.data)
            stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
            stack.enter_context(undisturbed(self.scorer))
            for module in (model, *modules_of(self.losses)):
                stack.enter_context(untouched(module, None, device))
            stack.enter_context(
                explaining(
                    f"while {where} was scored, once and without effect, as every batch is after "
                    "the warm-up: losses=fn(model, batch) takes a model and batches of any kind"
                )
            )
            self.score(batch)

    def share(self, done: float) -> float:
        """Returns the share of the examples that is to be kept when as many epochs are done."""
        is_on = self._schedule.is_on(done, self._epochs)
        return self._schedule.keep(done, self._epochs, own=self.keep) if is_on else 1.0

    def plan_rows(self, loader: Any, number: int) -> tuple[int, bool]:
        """Returns the examples kept of an epoch of a loader, and whether these are all.

        Raises:
            TypeError: If they are not known before it.
        """
        (count, size, examples), total = sizes_of(loader), 0
        for batch in range(count):
            rows, done = min(size, examples - batch * size), number + batch / count
            if self._is_on(done, batch):
                keep = self._schedule.keep(done, self._epochs, own=self.keep)
                if not self.exact and (keep < 1 or self.has_limit or self._drops):
                    raise self.left_to_chance()
                rows = count_of(keep, rows) if self.exact else rows
            total += rows
        return total, total == examples

    def left_to_chance(self) -> TypeError:
        """Returns the error that the number of examples kept is left to chance."""
        return TypeError(
            f"how many examples {type(self.selector).__name__} keeps is left to "
            f"{'losses that are not finite' if self._drops else 'randomness'}: give "
            f"{'a share and ' * self.has_limit}exact=True, which keeps exactly "
            "round(keep * N) of each batch, or follow loader.progress in place of a number of steps"
        )

    def _select_finite(
        self, scores: Tensor, finite: Tensor, count: int | None, source: Source
    ) -> Selection:
        """Selects among the finite scores; keeps all or none of the others."""
        rows, others = finite.nonzero().squeeze(1), (~finite).nonzero().squeeze(1)
        self._stats.nonfinite += len(others)
        if self._record.on_nonfinite == "drop":
            others = others[:0]
        if count is not None:
            others = others[:count]
            count -= len(others)
            if count > len(rows):
                raise LossError(
                    f"only {len(rows)} losses of {source.place} are finite, of {count} to be kept: "
                    'lower the learning rate, give exact=False, or leave on_nonfinite="drop" out'
                )
        positions, weights = rows[:0], scores[:0]
        if len(rows) and count != 0:
            positions, weights = self.selector.select(scores[rows], self._generator, count)
            positions = rows[positions]
        positions, order = torch.cat((positions, others)).sort()
        return Selection(positions, torch.cat((weights, weights.new_ones(len(others))))[order])


def count_nonfinite(batch: int, epoch: int, stats: Stats, scores: Tensor) -> None:
    """Counts the scores of a batch that are not finite.

    Raises:
        LossError: If there are any.
    """
    if not math.isfinite(scores.sum()):  # of finite ones that overflow, none is counted
        stats.nonfinite += int((~scores.isfinite()).sum())
        advice = ', or give on_nonfinite="keep" or "drop"'
        check_finite(scores, lambda row: f"{row} in batch {batch} of epoch {epoch}", advice)


def modules_of(function: Any) -> list[nn.Module]:
    """Returns the modules that a loss function consists of."""
    if isinstance(function, partial):
        within = (function.func, *function.args, *function.keywords.values())
        return [module for argument in within for module in modules_of(argument)]
    return [function] if isinstance(function, nn.Module) else []


def is_exact(exact: bool | None, selector: Selector | None, on_nonfinite: OnNonfinite) -> bool:
    """Returns whether exact numbers are kept: by default wherever they can be.

    Args:
        exact: As `SelectiveLoader` was given it.
        selector: The selector; None where there is none.
        on_nonfinite: What to do with an example whose score is not finite, which may leave fewer
            or more than an exact number.

    Raises:
        ConfigError: If an argument is out of its range.
    """
    check_choice("on_nonfinite", on_nonfinite, "error", "keep", "drop")
    if exact is None:
        exact = selector is not None and takes_count(selector) and on_nonfinite == "error"
    # Several processes must make equally many steps, without asking each other.
    return check_flag("exact", exact) or rank_and_world()[1] > 1


def resolve_loader_selector(
    selector: Selector | None, keep: float | None, model: nn.Module | None
) -> Selector:
    """Returns the selector given, or Selective-Backprop's of a share.

    Raises:
        ConfigError: If both are given, or neither, or a share without a model.
    """
    if selector is None and keep is None:
        raise ConfigError(
            "nothing says what to keep: give memory=Memory(), to choose early, keep= or selector="
        )
    resolved = resolve_selector(selector, keep)
    if keep is not None and model is None:
        raise ConfigError(no_model(f"keep={keep}"))
    return resolved


def no_model(name: str) -> str:
    """Returns the message that something selects by losses, and there is no model."""
    return (
        f"{name} selects by losses, and no model was given: give a model and its loss function "
        "after the loader, (loader, model, loss_fn, ...), or memory=Memory() without either"
    )
