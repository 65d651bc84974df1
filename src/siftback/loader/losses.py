"""Losses that training records: which batch they are of, and what becomes of them."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from threading import current_thread, get_ident, main_thread
from typing import Any, Literal, cast

import torch
from torch import Tensor

from siftback.arguments import check_flag, format_value
from siftback.batches.batch import Batch
from siftback.batches.indices import check_indices
from siftback.batches.stats import Stats
from siftback.epochs.epoch_draw import EpochDraw
from siftback.errors import ConfigError, LossError
from siftback.host_reads import HostReads, move
from siftback.losses.per_example import LossFn, Reduction, check_finite
from siftback.rules.rule import check_prediction_types
from siftback.state import check_entries, flag, nothing, state_of
from siftback.tables.score_table import ScoreTable
from siftback.tensor_arguments import check_tensor, is_dense

OnNonfinite = Literal["error", "keep", "drop"]

MOST_AHEAD = 100
"""The most batches that may wait for their losses: no loop reads further ahead."""

_FEW = 5
"""Batches that a loop may have read before it trains on the first batch of an epoch."""


@dataclass(eq=False)
class PendingBatch:
    """A batch that training was given, and whose losses it may still record.

    Attributes:
        batch: The batch without its data; its weights are None where all are known to be 1.
        passes: The passes that it is of, by number, with the number of its examples of each.
        needs_weights: Whether its weights are to be applied.
        missing: The number of its examples without a recorded loss.
        weights_used: Whether its weights were applied, or read.
        was_read: Whether its weights or indices were read.
    """

    batch: Batch
    passes: list[tuple[int, int]]
    needs_weights: bool
    missing: int
    weights_used: bool = False
    was_read: bool = False

    @cached_property
    def unrecorded(self) -> Tensor:
        """int64[N], its indices on the CPU, -2 where a loss was recorded by its index."""
        return cast(Tensor, self.batch.indices).cpu().clone()


class LossRecord:
    """Matches losses with the batches that training was given, and gives them to a rule.

    A loop may read batches ahead of the one that it trains on. Losses are then of the batch that
    was given first among those without; their number is never guessed from.

    Args:
        draw: Whose rule learns from the losses; None without a rule.
        on_nonfinite: What to do with an example whose loss is not finite.
        attach: Whether batches carry their weights, which are then the loop's to apply.
        reweights: Whether a selection among the examples of a batch gives them weights.

    Attributes:
        on_nonfinite: As given.
        stats: The statistics of the loader.
        attach: As given.
        learns: Whether a rule learns from the losses, which must then be recorded.
        guard: The rule's `NoiseGuard`; None without one.
        recorded: The number of batches of this epoch of which losses were recorded.
        reads: Reads losses of a device, in the order of the steps.

    >>> record = LossRecord(None, "error", attach=False)
    >>> for size in (2, 3):  # a loop that reads one batch ahead
    ...     record.give(Batch(torch.zeros(size), size, torch.device("cpu")), epoch=0)
    >>> record.next(2).batch.size, record.next(3).batch.size
    (2, 3)
    """

    def __init__(
        self,
        draw: EpochDraw | None,
        on_nonfinite: OnNonfinite,
        *,
        attach: bool,
        reweights: bool = False,
    ) -> None:
        self.on_nonfinite, self.stats = on_nonfinite, Stats()
        self._draw: Any = draw  # whenever a rule learns or reweights
        rule = getattr(draw, "rule", None)
        self.attach, self._selection_reweights = check_flag("attach", attach), reweights
        self.learns: bool = getattr(rule, "learns", False)
        self.guard: Any = getattr(rule, "guard", None)
        # Also while all weights are 1, as in a warm-up, since others will come.
        self._rule_reweights: bool = getattr(rule, "reweights", False)
        self._queue: deque[PendingBatch] = deque()
        self.reads = draw.losses.reads if draw else HostReads()
        self._epoch = self._nonfinite_batches = 0  # of the batch given last; one after another
        # Of losses of whole batches: their mean for each example in them, and their number.
        self._means = ScoreTable(columns=2)
        self._ahead = MOST_AHEAD - 1  # batches that the loop reads ahead, known after a few
        self.clear()

    def clear(self) -> None:
        """Forgets the batches given."""
        self._queue.clear()
        self._reweights = self._goes_on = False  # any batch given, or losses since the last one
        self.recorded = self._without_losses = self._without_weights = self._thread = 0
        # The size is that of the batch recorded last in its turn; -1 by one loss for all of it.
        self._size, self._ahead = 0, self._ahead if self.learns else MOST_AHEAD - 1

    def give(self, batch: Batch, epoch: int) -> None:
        """Notes a batch that training is being given; it is past those that were used before it.

        Args:
            batch: The batch.
            epoch: The epoch that it is given in, which is the pass where a rule does not draw.

        Raises:
            ConfigError: If the losses or weights of many batches before it were not used, or of
                more than a loop had read ahead until now; or in another thread than the one that
                trains, where processes exchange losses within an epoch.
        """
        draw, trains_here = self._draw, self._thread in (0, get_ident())
        if draw and draw.losses.exchanges and not (draw.shorter or trains_here):
            raise ConfigError(
                "batches are read in another thread than the one that trains, so that processes "
                "would exchange losses at different steps: read ahead by num_workers= instead"
            )
        waiting, most = max(self._without_losses, self._without_weights), MOST_AHEAD - 1
        if self._goes_on:  # after losses of a batch
            # A loop that reads ahead is as far ahead all along. Where one skips a batch, losses of
            # all later ones would be taken for those before. A thread reads as far as it comes.
            most = self._ahead if current_thread() is main_thread() else most
            self._goes_on = False
            self._ahead = waiting if self._ahead == MOST_AHEAD - 1 else self._ahead
        if waiting > most:
            self.check_used(0)
        while self._queue:
            first = self._queue[0]
            is_past = first.missing <= 0 or (
                first.was_read and not self.learns and first.weights_used >= first.needs_weights
            )
            if not is_past and len(self._queue) < MOST_AHEAD:
                break
            self._queue.popleft()
        reweights, passes = self._selection_reweights, [(epoch, batch.size)]
        if draw:
            passes, reweights = draw.pass_sizes(batch.size), reweights or draw.reweights
        weights = batch.weights if reweights else None  # those of a pool may be known to be 1
        needs_weights = isinstance(weights, Tensor) and not self.attach
        without_data = Batch((), batch.size, batch.device, batch.indices, weights)
        self._queue.append(PendingBatch(without_data, passes, needs_weights, missing=batch.size))
        self._epoch, self._reweights = passes[0][0], self._reweights or reweights
        self._without_losses += self.learns
        self._without_weights += needs_weights

    def end_epoch(self) -> None:
        """Checks that losses and weights of an epoch were used, as far as can be known by now.

        A loop may have read the last few batches ahead.

        Raises:
            ConfigError: If none were.
        """
        self.reads.finish()
        if not self.recorded:
            self.check_used(_FEW)

    @property
    def skips_last(self) -> bool:
        """Whether the last batch waits for losses and has another size than the batch before it.

        Many loops leave out a last batch that is not full. Had another batch been left out, losses
        of this one would have been given to that before, which has another number of examples.
        """
        return bool(self._queue) and 0 < self._size != self._queue[-1].batch.size

    def check_left(self) -> None:
        """Checks that no losses are to come of an epoch whose batches were all given.

        A loop that did not ask for its end may have them, if it reads ahead; else it left it.

        Raises:
            ConfigError: If they are.
        """
        if 0 < self._ahead < MOST_AHEAD - 1:
            self.check_used(self.skips_last)

    def check_used(self, most: int) -> None:
        """Checks that losses and weights of all batches given were used, or all but ``most``.

        A loop that gives the indices of all losses may leave out batches and examples.

        Raises:
            ConfigError: If they were not.
        """
        needs_all = self._size != 0 or not self.recorded
        losses, weights = self._without_losses * needs_all, self._without_weights
        if max(losses, weights) <= most:
            return
        self.clear()
        if losses:
            raise ConfigError(
                f"{type(self._draw.rule).__name__} learns from training, and of {losses} batches "
                "no losses were recorded: call loader.loss(losses) for each batch in its turn, and "
                "before the next epoch begins; or, where a loop skips batches, give the loader "
                "attach=True, and loader.loss indices="
            )
        raise ConfigError(
            f"the weights of {weights} batches were never used: run loader.loss(losses) backward, "
            "which applies them, or multiply each batch's losses with loader.weights"
        )

    def next(self, count: int | None, *, apply_weights: bool = True) -> PendingBatch:
        """Returns the batch whose losses are recorded next, which then counts as recorded.

        Args:
            count: The number of losses; None for a single loss of the whole batch.
            apply_weights: Whether its weights are applied.

        Raises:
            ConfigError: If no batch waits for its losses.
            LossError: If there are not as many losses as it has examples.
        """
        while self._queue and self._queue[0].missing <= 0:
            self._queue.popleft()
        if not self._queue:
            raise ConfigError(
                "no batch waits for its losses: call loader.loss(losses) once for each batch, or a "
                "watched function, in validation under torch.no_grad(), and of a closure that an "
                "optimizer such as LBFGS runs several times in its first run; or give indices=. "
                "itertools.cycle repeats batches whose losses are recorded: iterate anew instead"
            )
        first = self._queue[0]
        size = first.batch.size
        if count not in (None, size):
            raise LossError(
                f"{count} losses were given, and the batch has {size} examples: give one loss for "
                f"each, float[{size}], in the order of the batches, and those of the last batch of "
                "an epoch before the next epoch begins"
            )
        self._goes_on, self._size = True, count or -1
        self._count_used(first, first.missing, apply_weights)
        return first

    def find(self, indices: Tensor, *, apply_weights: bool) -> Tensor | None:
        """Counts losses as recorded by their examples, wherever in the pending batches these are.

        Args:
            indices: int64[n], on the CPU.
            apply_weights: Whether their weights are applied.

        Returns:
            float32[n], their weights; None where an example is in none of the batches, or in
            several with unlike weights.
        """
        waiting: Any = [p for p in self._queue if p.missing > 0 and p.batch.indices is not None]
        matches = [(p, *(p.unrecorded[:, None] == indices).nonzero().unbind(1)) for p in waiting]
        shared, is_told = torch.zeros(len(indices)), True
        weights = torch.ones(len(indices), dtype=torch.float32)
        # The losses of a call are of one batch as a rule, which has most of their examples. Batches
        # before it may have some of them too, of which a loop left the losses out.
        for pending, rows, columns in sorted(matches, key=lambda match: -len(match[1])):
            factors = pending.batch.loss_weights().cpu()[rows]
            is_told &= not ((shared[columns] == len(rows)) & (weights[columns] != factors)).any()
            is_new = shared[columns] == 0
            if bool(is_new.any()):
                new = columns[is_new]
                weights[new], shared[new] = factors[is_new], len(rows)
                pending.unrecorded[rows[is_new]] = -2
                self._count_used(pending, len(set(rows[is_new].tolist())), apply_weights)
        return weights if is_told and bool(shared.all()) else None

    def current(self, attribute: str) -> Batch:
        """Returns the batch in training, without its data: the only one that is not done with.

        Args:
            attribute: The attribute of the loader that is read, for the error.

        Raises:
            ConfigError: If there is none, or several, of which it might be any.
        """
        if not self._queue:
            raise ConfigError(f"loader.{attribute} is that of a batch, and none was given yet")
        if len(self._queue) > 1:
            raise ConfigError(
                f"loader.{attribute} could be that of any of {len(self._queue)} batches that were "
                "given: the loop reads ahead, or did not record the losses of each. Call "
                "loader.loss(losses) in the order of batches, or give the loader attach=True"
            )
        pending = self._queue[0]
        pending.was_read = True
        self._count_used(pending, 0, apply_weights=attribute == "weights")
        return pending.batch

    def _count_used(self, pending: PendingBatch, losses: int, apply_weights: bool) -> None:
        """Counts losses of a batch that were recorded, and whether its weights were applied."""
        if losses and pending.missing == pending.batch.size:  # the first of its losses
            self.recorded += 1
            self._without_losses -= self.learns
        pending.missing -= losses
        if apply_weights and not pending.weights_used:
            pending.weights_used = True
            self._without_weights -= pending.needs_weights

    def record(
        self,
        losses: Tensor,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
        indices: Tensor | None = None,
        weights: Tensor | None = None,
        reduced: bool = False,
        apply_weights: bool = True,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Records losses: see `SelectiveLoader.loss`, and `SelectiveLoader.record`.

        Returns:
            float32[b], the weights to multiply the losses with, None if all are 1; and bool[b], the
            losses that stay in the mean, None if all do.
        """
        self._thread = 0 if torch.compiler.is_compiling() else get_ident()
        if reduced is not False:
            check_flag("reduced", reduced)
        fits = is_dense(losses) and losses.is_floating_point()
        if not (fits and (losses.numel() == 1 if reduced else losses.ndim == 1)):
            raise wrong_losses(losses, reduced=reduced)
        if self.guard:
            self._draw.losses.check_guarded(losses)
        if indices is None:
            if weights is not None:
                raise ConfigError("weights= are of the examples in indices=: give both, or neither")
            pending = self.next(None if reduced else len(losses), apply_weights=apply_weights)
            batch, passes = pending.batch, pending.passes
            indices, count, weights = batch.indices, batch.size, batch.weights
        else:
            count = len(indices) if reduced else len(losses)
            passes = [(self._epoch, count)]
            indices = check_indices(indices, count, "loader.loss")
            if self._draw:
                self._draw.losses.rows_of(indices)  # raises if one is not that of an example
            if weights is not None:
                check_loss_weights(weights, count)
            known = self.find(indices, apply_weights=apply_weights)
            if weights is None and self._reweights and apply_weights:
                weights = known
                if known is None:
                    raise ConfigError(
                        "the examples in indices= are in no batch that waits for its losses, or in "
                        "several with unlike weights, so their weights are not known: give weights="
                        " too, or call loader.record(losses, indices=...), which applies none"
                    )
        reweights = self._reweights or self._rule_reweights
        if not apply_weights:
            weights = None
        elif reduced and (reweights or (weights is not None and bool((weights != 1).any()))):
            raise ConfigError(
                "the examples of this batch have weights, which cannot be applied to a loss of "
                "the whole batch: give one loss per example"
            )
        if self.learns and not (correct is confidence is None):
            check_prediction_types(correct, confidence, count)
        take = partial(self._take, passes, count, reduced)
        if indices is None or indices.is_cpu:
            self.reads.add(partial(take, indices), losses, correct, confidence)
        else:
            self.reads.add(take, indices, losses, correct, confidence)
        drops = self.on_nonfinite == "drop" and not reduced
        return weights, losses.detach().isfinite() if drops else None

    def _take(
        self,
        passes: list[tuple[int, int]],
        count: int,
        reduced: bool,
        indices: Tensor | None,
        values: Tensor,
        correct: Tensor | None,
        confidence: Tensor | None,
    ) -> None:
        """Judges losses that have come from the device, and gives them to the rule."""
        values = values.reshape(()).expand(count) if reduced else values
        # A sum is not finite if a value is not, and takes one operation on most batches.
        all_finite = math.isfinite(values.sum()) or bool(values.isfinite().all())
        if all_finite:
            self._nonfinite_batches = 0
        else:
            self._take_nonfinite(values, values.isfinite(), indices)
        if self.learns and indices is not None:
            losses = self._draw.losses
            rows = losses.rows.rows_of(indices) if losses.rows else indices
            if reduced and all_finite:
                values = self._average(rows, values)
            losses.receive(rows, passes, values, correct, confidence)

    def state_dict(self) -> dict[str, Any]:
        """Returns the means of losses of whole batches."""
        means = self._means.state_dict() if self.has_means else None
        return {"averages": self.has_means, "means": means}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is damaged.
        """
        check_entries(self, state, {"averages": flag})
        means = state_of(ScoreTable(columns=2)) if state["averages"] else nothing
        check_entries(self, state, {"means": means})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state, which was checked."""
        self._means = ScoreTable(columns=2)
        if state["averages"]:
            self._means.load_state_dict(state["means"])

    @property
    def has_means(self) -> bool:
        """Whether there are means of losses of whole batches."""
        self.reads.finish()
        return len(self._means) > 0

    def _take_nonfinite(self, values: Tensor, finite: Tensor, indices: Tensor | None) -> None:
        """Counts losses that are not finite, and raises where they end a training.

        Two batches without a finite loss, as with several processes all then have them, and raise
        in the same step.
        """
        self.stats.nonfinite += int((~finite).sum())
        if self.on_nonfinite == "error":
            check_finite(
                values,
                lambda row: f"{row} of the batch" if indices is None else f"{int(indices[row])}",
                ', or give the loader on_nonfinite="keep" or "drop"',
            )
        self._nonfinite_batches = 0 if finite.any() else self._nonfinite_batches + 1
        if self.on_nonfinite == "drop" and self._nonfinite_batches > 1:
            raise LossError(
                "no loss of two batches is finite, so the weights are not either: a NaN within the "
                "model's forward, as of a NaN in an input, makes all gradients NaN, though "
                'on_nonfinite="drop" leaves its loss out. Go back to a checkpoint, and leave the '
                "example out, or select by a scoring pass, which drops it before training's forward"
            )

    def _average(self, indices: Tensor, values: Tensor) -> Tensor:
        """Returns the mean of the losses of all batches that each example was in."""
        self._means.grow(int(indices.max()) + 1)
        before = self._means.values[indices].nan_to_num(0.0)
        visits = before[:, 1] + 1
        mean: Tensor = before[:, 0] + (values - before[:, 0]) / visits
        self._means.record(indices, torch.stack((mean, visits), 1))
        return mean


def wrong_losses(losses: Any, *, reduced: bool) -> LossError:
    """Returns the error of what is no loss for each example, or no single one for the batch."""
    if hasattr(losses, "full_tensor"):
        return LossError("the losses are a DTensor: give losses.full_tensor(), one per example")
    if isinstance(losses, Tensor) and torch.func.debug_unwrap(losses) is not losses:
        return LossError(
            "the losses are of within torch.func.grad, vmap or the like, and have no values that "
            "outlast it: have the function return them, as with has_aux=True, and record those"
        )
    if isinstance(losses, Tensor) and losses.ndim == 0 and not reduced:
        return LossError(
            'the loss is reduced to one number: compute it with reduction="none", one loss per '
            "example; or, where they cannot be computed, give reduced=True"
        )
    expected = "float[n], one for each example, averaged over other dimensions"
    if reduced:
        expected = "float[], the mean of the batch, or leave reduced= out"
    return LossError(f"losses={format_value(losses)}: give a dense tensor, {expected}")


def check_loss_weights(weights: Any, count: int) -> None:
    """Checks the weights of some losses.

    Raises:
        LossError: If there is not one finite number, at least 0, for each.
    """
    advice = ", one for each example, at least 0"
    check_tensor("weights", weights, "float", count, advice=advice, error=LossError)
    wrong = (~(weights.isfinite() & (weights >= 0))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise LossError(f"weights[{row}] is {float(weights[row])}: give finite weights, at least 0")


def watched_loss(loss_fn: LossFn, record: LossRecord, mean: Callable[[Tensor], Tensor]) -> LossFn:
    """Returns a loss function that records its losses: see `SelectiveLoader.watch`.

    Args:
        loss_fn: The loss function.
        record: Records the losses.
        mean: Returns the weighted mean of losses, which it records.
    """
    reduction = Reduction(loss_fn)
    reduction.check_name()
    if record.guard:
        reduction.check_cross_entropy()

    def losses_of(*arguments: Any, **options: Any) -> Tensor:
        losses = reduction.per_example(*arguments, **options)
        if isinstance(losses, Tensor) and losses.ndim == 0:
            raise LossError(
                f"{reduction} gives one number, and loader.watch needs one loss per example: give "
                "it the loss function of PyTorch itself, or a function that returns them; a loss "
                "of the whole batch, such as one of in-batch negatives, cannot be split"
            )
        return losses

    def mean_of_examples(*arguments: Any, **options: Any) -> Tensor:
        losses = losses_of(*arguments, **options)
        return mean(losses) if torch.is_grad_enabled() else losses.mean()

    def watched(*arguments: Any, **options: Any) -> Tensor:
        value: Tensor = loss_fn(*arguments, **options)
        if not torch.is_grad_enabled():
            return value
        with torch.no_grad():
            losses = losses_of(*arguments, **options)
        weights, stays = record.record(losses)
        if weights is None and (stays is None or bool(stays.all())):  # here the host waits
            return value
        rows = torch.arange(len(losses), device=losses.device)
        rows = rows if stays is None else rows[stays]
        if value.ndim:  # the call has reduction="none", and its result is reduced by the loop
            if weights is not None:
                value = value * move(weights, value.device).view(-1, *[1] * (value.ndim - 1))
            return torch.zeros_like(value).index_copy(0, rows, value[rows])
        called, arguments, options = reduction.bind(arguments, options)
        terms = called.terms(*arguments, **options)
        if not called.is_known:
            called.check(value, terms, *arguments, **options)
        return called.reduce(terms, rows, weights, *arguments, **options)

    return mean_of_examples if reduction.name == "none" else watched
