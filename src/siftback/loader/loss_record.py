"""Losses that training found: of which batch they are, and what becomes of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_flag
from siftback.batches.handover import MOST_AHEAD, Handed, Handover
from siftback.batches.indices import checked_indices
from siftback.batches.stats import Stats
from siftback.epochs.epoch_draw import EpochDraw
from siftback.errors import ConfigError, LossError
from siftback.loader.batch_selection import OnNonfinite, checked_nonfinite
from siftback.losses.per_example import LossFn, Reduction
from siftback.rules.noise_guard import check_cross_entropy
from siftback.state import check_entries, flag, nothing, state_of
from siftback.tables.score_table import ScoreTable
from siftback.tensor_arguments import is_dense

# Batches that a loop may have read before it trains on the first of an epoch.
_FEW = 5


class LossRecord:
    """Matches losses with the batches given, gives them to a rule, and makes their mean.

    Args:
        draw: Whose rule learns from the losses; None where nothing does.
        on_nonfinite: What to do with an example whose loss is not finite.
        stats: Counts those.
        attach: Whether batches carry their weights, which are then the loop's to apply.
        knows_indices: Whether the examples of batches are known by index.

    Attributes:
        on_nonfinite: What to do with an example whose loss is not finite.
    """

    def __init__(
        self,
        draw: EpochDraw | None,
        on_nonfinite: OnNonfinite,
        stats: Stats,
        *,
        attach: bool,
        knows_indices: bool,
    ) -> None:
        self._draw, self._stats = draw, stats
        self.on_nonfinite = checked_nonfinite(on_nonfinite)
        self._attach, self._knows_indices = attach, knows_indices
        self._handover = Handover()
        self._epoch = 0  # of the batch given last
        self._reweights = False  # any batch given
        self._without_finite = 0  # batches one after another
        self._calls = 0  # with losses that a guard judges by
        # Of losses of whole batches: the mean that each example had a part in, and of how many.
        self._means: ScoreTable | None = None

    def give(self, weights: Tensor, indices: Tensor | None, epoch: int, reweights: bool) -> None:
        """Notes a batch that training is being given.

        Args:
            weights: float32[b], its loss weights.
            indices: int64[b], the dataset indices of its examples; None where unknown.
            epoch: That it is given in.
            reweights: Whether its weights must be applied.

        Raises:
            ConfigError: If the losses or weights of many batches before it were not used.
        """
        self._check(MOST_AHEAD - 1)
        self._epoch, self._reweights = epoch, self._reweights or reweights
        must_apply = reweights and not self._attach
        self._handover.give(Handed(weights, indices, epoch, self._learns, must_apply))

    def current(self, what: str) -> Handed:
        """The batch in training, see `Handover.current`."""
        return self._handover.current(what)

    def end_epoch(self) -> None:
        """Makes sure that an epoch's losses and weights were used, as far as can be known by now.

        A loop may have read the last few batches ahead.

        Raises:
            ConfigError: If none were.
        """
        if not self._handover.settled:
            self._check(_FEW)

    def begin_epoch(self, *, broken_off: bool) -> None:
        """Makes sure that the losses and weights of the epoch before were used.

        Args:
            broken_off: Whether not all of its batches were trained on.

        Raises:
            ConfigError: If they were not.
        """
        if not broken_off:
            self._check(0)
        else:
            self.end_epoch()
        self.clear()

    def clear(self) -> None:
        """Forgets the batches given."""
        self._handover.clear()
        self._reweights = False

    def loss(self, losses: Tensor, *, reduced: bool, **found: Tensor | None) -> Tensor:
        """The weighted mean of losses, which are recorded: see `SelectiveLoader.loss`."""
        weights, finite = self.take(losses, reduced=reduced, **found)
        if reduced:
            return losses.reshape(())
        if weights is not None:
            losses = losses * weights.to(losses.device)
        if finite is not None:
            losses = losses[finite]
        return losses.mean() if len(losses) else losses.sum()  # of none, a zero

    def watch(self, loss_fn: LossFn) -> Callable[..., Tensor]:
        """A loss function that records its losses: see `SelectiveLoader.watch`."""
        reduction = Reduction(loss_fn)
        reduction.check_name()
        if self.guard is not None:
            reduction.check_cross_entropy()

        def losses_of(*arguments: Any, **options: Any) -> Tensor:
            losses = reduction.per_example(*arguments, **options)
            if isinstance(losses, Tensor) and losses.ndim == 0:
                raise LossError(
                    f"{reduction} gives one number, and loader.watch needs one loss per example: "
                    "give it the loss function of PyTorch itself, with its options, or a function "
                    "that returns one loss for each example of a batch"
                )
            return losses

        def of_examples(*arguments: Any, **options: Any) -> Tensor:
            losses = losses_of(*arguments, **options)
            return self.loss(losses, reduced=False) if torch.is_grad_enabled() else losses.mean()

        def watched(*arguments: Any, **options: Any) -> Tensor:
            value = loss_fn(*arguments, **options)
            if not torch.is_grad_enabled():
                return value
            with torch.no_grad():
                losses = losses_of(*arguments, **options)
            weights, finite = self.take(losses)
            if weights is None and finite is None:
                return value
            terms = reduction.terms(*arguments, **options)
            if not reduction.is_known:
                reduction.check(value, terms, *arguments, **options)
            stays = torch.ones_like(losses, dtype=torch.bool) if finite is None else finite
            rows = stays.nonzero().squeeze(1)
            return reduction.reduce(terms, rows, weights, *arguments, **options)

        return of_examples if reduction.name == "none" else watched

    def take(
        self,
        losses: Tensor,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
        indices: Tensor | None = None,
        weights: Tensor | None = None,
        reduced: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Records losses: see `SelectiveLoader.loss`.

        Returns:
            float32[b], the weights to multiply them with, None if all are 1; and bool[b], which of
            them stay in the loss, None if all do.
        """
        self._check_kind(losses, reduced)
        if indices is None:
            if weights is not None:
                raise ConfigError(
                    "weights= are those of the examples in indices=: give both, or neither"
                )
            handed = self._handover.next(None if reduced else len(losses))
            handed.used = True
            own, epoch, indices = handed.weights, handed.epoch, handed.indices
            weights = own if handed.needs_weights or (self._attach and self._reweights) else None
            count = len(own)
        else:
            indices, epoch = self._checked(indices, losses, reduced), self._epoch
            count = len(indices)
            if weights is not None:
                check_weights(weights, count)
            found = self._found(indices, use=True)
            if weights is None and self._reweights:
                weights = found
                if found is None:
                    raise ConfigError(
                        "the examples in indices= are not those of batches that wait for their "
                        "losses, so that their weights are not known: give weights= too, or call "
                        "loader.record(losses, indices=...), which applies none"
                    )
        weighs = weights is not None and bool((weights != 1).any())
        # Also while all weights are 1, as in a warm-up, since others will come.
        will_weigh = self._reweights or (self._draw is not None and self._draw.rule.reweights)
        if reduced and (weighs or will_weigh):
            raise ConfigError(
                "the examples of this batch have weights, which cannot be applied to a loss of "
                "the whole batch: give one loss per example"
            )
        finite = self._take(losses, indices, count, epoch, correct, confidence, reduced)
        return weights if weighs else None, finite

    def record(
        self,
        losses: Tensor,
        *,
        correct: Tensor | None,
        confidence: Tensor | None,
        indices: Tensor | None,
        reduced: bool,
    ) -> None:
        """Records losses: see `SelectiveLoader.record`."""
        self._check_kind(losses, reduced)
        if indices is None:
            handed = self._handover.next(None if reduced else len(losses))
            indices, epoch, count = handed.indices, handed.epoch, len(handed.weights)
        else:
            indices, epoch = self._checked(indices, losses, reduced), self._epoch
            count = len(indices)
            self._found(indices, use=False)
        self._take(losses, indices, count, epoch, correct, confidence, reduced)

    @property
    def learns(self) -> bool:
        """Whether losses are recorded for a rule."""
        return self._learns

    @property
    def has_losses(self) -> bool:
        """Whether losses of any batch of this epoch were recorded."""
        return self._handover.settled > 0

    @property
    def has_means(self) -> bool:
        """Whether there are means of losses of whole batches."""
        return self._means is not None

    def state_dict(self) -> dict[str, Any]:
        """The means of losses of whole batches."""
        means = None if self._means is None else self._means.state_dict()
        return {"averages": means is not None, "means": means}

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
        means = None
        if state["means"] is not None:
            means = ScoreTable(columns=2)
            means.load_state_dict(state["means"])
        self._means = means

    @property
    def _learns(self) -> bool:
        return self._draw is not None and self._draw.rule.learns

    def _check(self, most: int) -> None:
        """Makes sure that of all but so many batches the losses and weights were used."""
        losses, weights = self._handover.without_losses, self._handover.without_weights
        if max(losses, weights) <= most:
            return
        self._handover.clear()
        if losses:
            assert self._draw is not None
            raise ConfigError(
                f"{type(self._draw.rule).__name__} learns from training, and of {losses} batches "
                "no losses were recorded: call loader.loss(losses) for each batch, in the order "
                "they were given, with one loss per example"
            )
        raise ConfigError(
            f"the weights of {weights} batches were never used: run loader.loss(losses) backward, "
            "which applies them, or multiply each batch's losses with loader.weights"
        )

    def _check_kind(self, losses: Any, reduced: bool) -> None:
        """Makes sure that it is one loss for each example, or one for the batch as was said."""
        check_flag("reduced", reduced)
        if not is_dense(losses) or not losses.is_floating_point():
            kind = losses.dtype if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
            raise LossError(
                f"the losses are {kind}: give a floating-point tensor, one loss per example"
            )
        if reduced and losses.numel() != 1:
            raise LossError(
                f"reduced=True means one loss of the whole batch, and the losses have shape "
                f"{list(losses.shape)}: leave reduced= out, or give their mean"
            )
        if not reduced and losses.ndim == 0:
            raise LossError(
                'the loss is reduced to one number: compute it with reduction="none", one loss '
                "per example; or, where they cannot be had, give reduced=True"
            )
        if not reduced and losses.ndim > 1:
            raise LossError(
                f"the losses have shape {list(losses.shape)}: give one loss per example, averaged "
                "over the other dimensions"
            )
        if self.guard is not None and losses.grad_fn is not None:
            self._calls += 1
            if self._calls & (self._calls - 1) == 0:  # the 1st, 2nd, 4th, ...: it reads numbers
                check_cross_entropy(losses)

    @property
    def guard(self) -> Any:
        """The rule's `NoiseGuard`; None without one."""
        return None if self._draw is None else self._draw.rule.guard

    def _checked(self, indices: Any, losses: Tensor, reduced: bool) -> Tensor:
        """The indices given with losses, as int64[n] on the CPU."""
        count = len(losses) if not reduced else len(indices)
        checked = checked_indices(indices, count, "loader.loss")
        if self._knows_indices and self._draw is not None:
            self._draw.rows_of(checked)  # raises if one is not that of an example
        return checked

    def _found(self, indices: Tensor, *, use: bool) -> Tensor | None:
        return (
            self._handover.find(indices, use=use)
            if len(indices)
            else torch.ones(0, dtype=torch.float32)
        )

    def _take(
        self,
        losses: Tensor,
        indices: Tensor | None,
        count: int,
        epoch: int,
        correct: Tensor | None,
        confidence: Tensor | None,
        reduced: bool,
    ) -> Tensor | None:
        """Gives losses to the rule; returns bool[n], which stay in the mean, or None if all do."""
        values = losses.detach().float().cpu()
        values = values.reshape(()).expand(count) if reduced else values
        finite = values.isfinite()
        all_finite = bool(finite.all())
        if not all_finite:
            self._count_nonfinite(values, finite, indices)
        self._check_weights(finite)
        if self._learns and indices is not None:
            assert self._draw is not None
            if reduced and all_finite:
                values = self._averaged(self._draw.rows_of(indices), values)
            self._draw.update(indices, values, epoch, correct=correct, confidence=confidence)
        drops = self.on_nonfinite == "drop" and not all_finite and not reduced
        return finite.to(losses.device) if drops else None

    def _count_nonfinite(self, values: Tensor, finite: Tensor, indices: Tensor | None) -> None:
        self._stats.nonfinite += int((~finite).sum())
        if self.on_nonfinite == "error":
            row = int((~finite).nonzero()[0])
            example = f"{row} of the batch" if indices is None else f"{int(indices[row])}"
            raise LossError(
                f"the loss of example {example} is {float(values[row])}: lower the learning rate "
                'or fix the example, or give the loader on_nonfinite="keep" or "drop"'
            )

    def _check_weights(self, finite: Tensor) -> None:
        """Makes sure that leaving out what is not finite did not go on with weights that are not.

        Two batches, as with several processes all then have them, and raise in the same step.
        """
        self._without_finite = 0 if finite.any() else self._without_finite + 1
        if self.on_nonfinite == "drop" and self._without_finite > 1:
            raise LossError(
                "no loss of two batches is finite, so the weights are not either: "
                "a NaN within the model's forward, as of a NaN in an input, makes all gradients "
                'NaN, though on_nonfinite="drop" leaves its loss out. Go back to a checkpoint, '
                "and leave the example out of the data, or select by a scoring pass, which drops "
                "it before training's forward"
            )

    def _averaged(self, indices: Tensor, values: Tensor) -> Tensor:
        """The mean of the losses of all batches that each example was in."""
        if self._means is None:
            self._means = ScoreTable(columns=2)
        self._means.grow(int(indices.max()) + 1)
        before = self._means.values[indices].nan_to_num(0.0)
        visits = before[:, 1] + 1
        mean: Tensor = before[:, 0] + (values - before[:, 0]) / visits
        self._means.record(indices, torch.stack((mean, visits), 1))
        return mean


def check_weights(weights: Any, count: int) -> None:
    """Checks the weights of some losses.

    Raises:
        LossError: If there is not one finite number, at least 0, for each.
    """
    expected = f"there are {count} examples: give one weight for each, float[{count}], at least 0"
    if not isinstance(weights, Tensor):
        raise LossError(f"weights is a {type(weights).__name__}, and {expected}")
    if weights.shape != (count,):
        raise LossError(f"weights has shape {list(weights.shape)}, and {expected}")
    if not weights.is_floating_point():
        raise LossError(f"weights is {weights.dtype}, and {expected}")
    wrong = ~(weights.isfinite() & (weights >= 0))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise LossError(f"weights[{row}] is {float(weights[row])}, and {expected}")
