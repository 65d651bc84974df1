"""Selection among the examples of one batch, by scores computed before training's forward."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.arguments import check_choice, check_flag, check_object
from siftback.batches import tree
from siftback.batches.source import Item
from siftback.batches.stats import Stats
from siftback.errors import ConfigError, LossError
from siftback.losses.per_example import Losses, LossFn, check_losses, resolve_losses
from siftback.processes.distributed import rank_and_world
from siftback.rules.rule import EpochRule
from siftback.scorers.fresh import check_scorer
from siftback.scorers.scorer import Scorer
from siftback.selectors.in_batch import check_takes_count, takes_count
from siftback.selectors.percentile import resolve_selector
from siftback.selectors.sampling import count_of
from siftback.selectors.selection import Selection, Selector
from siftback.tensor_arguments import check_module

OnNonfinite = Literal["error", "keep", "drop"]


def checked_nonfinite(on_nonfinite: OnNonfinite) -> OnNonfinite:
    """Returns ``on_nonfinite`` after checking it.

    Raises:
        ConfigError: If it is not one of the three values.
    """
    return check_choice("on_nonfinite", on_nonfinite, "error", "keep", "drop")


def check_functions(model: nn.Module | None, loss_fn: LossFn | None, losses: Losses | None) -> None:
    """Checks that a loader was given a model and functions of losses, as far as it was given any.

    Raises:
        ConfigError: If one of them is something else.
    """
    if model is not None:
        check_module(model)
    if loss_fn is not None:
        kind = "a loss function of (outputs, targets)"
        check_object("loss_fn", loss_fn, kind, "__call__")
    if losses is not None:
        check_object("losses", losses, "a function losses(model, batch)", "__call__")


class BatchSelection:
    """Scores a batch and selects by the scores.

    Args:
        selector: Selects by the scores.
        scorer: Computes the scores.
        losses: Those of training; None if no scores are needed.
        on_nonfinite: How to treat an example with a score that is not finite.
        generator: Source of random numbers.
        exact: Whether exactly ``max(1, round(keep * N))`` of N examples are kept.

    Attributes:
        own_keep: The selector's own share, which a schedule may change.
    """

    def __init__(
        self,
        selector: Selector,
        scorer: Scorer,
        losses: Losses | None,
        on_nonfinite: OnNonfinite,
        generator: torch.Generator,
        exact: bool = False,
    ) -> None:
        self.selector, self.scorer, self._losses = selector, scorer, losses
        self._on_nonfinite = checked_nonfinite(on_nonfinite)
        self._generator, self.exact = generator, exact
        self.own_keep = selector.keep

    @property
    def scores(self) -> bool:
        """Whether batches are scored: some selectors need no scores."""
        return self._losses is not None

    @property
    def leaves_out(self) -> bool:
        """Whether some examples are left out where it is on."""
        return self.own_keep < 1 or getattr(self.selector, "above", None) is not None

    @property
    def scoring(self) -> tuple[Scorer, Losses | None]:
        """What scores a batch, and the losses that it is called with."""
        return self.scorer, self._losses

    def score(self, model: nn.Module, item: Item, count: int) -> Tensor:
        """float32[N], the scores of a batch; zeros if the selector needs none.

        Args:
            model: The model; read only.
            item: A batch of ``count`` examples, with scores if the wrapped loader gave some.
            count: N.
        """
        if self._losses is None:
            return torch.zeros(count, device=tree.device(item.batch), dtype=torch.float32)
        if item.scores is not None:
            return check_losses(item.scores, count).to(tree.device(item.batch))
        return self.scorer.score(self._losses, model, item.batch, item.indices)

    def select(self, scores: Tensor, place: str, stats: Stats) -> Selection:
        """Selects by the scores.

        Args:
            scores: float32[N].
            place: Description of the batch, for errors.
            stats: Counts the scores that are not finite.

        Raises:
            LossError: If a score is not finite and ``on_nonfinite="error"``, or if fewer scores
                are finite than examples must be kept.
        """
        count = count_of(self.selector.keep, len(scores)) if self.exact else None
        if self._losses is None:
            return self.selector.select(scores, self._generator, count)
        finite = scores.isfinite()
        if self._on_nonfinite != "error":
            return self._select_finite(scores, finite, count, place, stats)
        # Read only after the selection, which waits for the scores in any case, so that there is
        # one synchronization with the accelerator.
        all_finite = finite.all()
        ranked = scores.nan_to_num(nan=torch.inf, posinf=torch.inf)
        selection = self.selector.select(ranked, self._generator, count)
        if not all_finite:
            stats.nonfinite += int((~finite).sum())
            row = int((~finite).nonzero()[0])
            raise LossError(
                f"the loss of example {row} in {place} is {float(scores[row])}: "
                "lower the learning rate or fix the example, or give "
                'on_nonfinite="keep" or "drop"'
            )
        return selection

    def after_step(self, model: nn.Module, batch: Any) -> None:
        """Calls the scorer once training is done with a batch."""
        if self._losses is not None:
            self.scorer.after_step(self._losses, model, batch)

    def _select_finite(
        self, scores: Tensor, finite: Tensor, count: int | None, place: str, stats: Stats
    ) -> Selection:
        """Selects among the finite scores; keeps all or none of the others."""
        rows, others = finite.nonzero().squeeze(1), (~finite).nonzero().squeeze(1)
        stats.nonfinite += len(others)
        if self._on_nonfinite == "drop":
            others = others[:0]
        if count is not None:
            others = others[:count]
            count -= len(others)
            if count > len(rows):
                raise LossError(
                    f"only {len(rows)} losses of {place} are finite, and {count} must be kept: "
                    'lower the learning rate, give exact=False, or leave on_nonfinite="drop" out'
                )
        selection = Selection(rows[:0], scores[:0])
        if len(rows) and count != 0:
            chosen, weights = self.selector.select(scores[rows], self._generator, count)
            selection = Selection(rows[chosen], weights)
        return _joined(selection, others) if len(others) else selection


def selection_of(
    selector: Selector | None,
    scorer: Scorer | None,
    model: nn.Module | None,
    loss_fn: LossFn | None,
    losses: Losses | None,
    on_nonfinite: OnNonfinite,
    generator: torch.Generator,
    exact: bool,
) -> BatchSelection | None:
    """The selection by a selector, see `BatchSelection`; None where there is no selector.

    Args:
        selector: Makes the selection.
        scorer: Makes the scores; by default `Fresh`.
        model: The model; None is enough where no scores are needed.
        loss_fn: ``loss_fn(outputs, targets)``.
        losses: In its place, ``losses(model, batch)``.
        on_nonfinite: What to do with an example whose score is not finite.
        generator: Where random numbers come from.
        exact: Whether exactly ``round(keep * N)`` are kept.

    Raises:
        ConfigError: If scores are needed, and no model or not one loss function was given; or if
            exact numbers are, and the selector cannot keep them.
    """
    if selector is None:
        return None
    if selector.needs_scores and model is None:
        raise ConfigError(_no_model(type(selector).__name__))
    if exact:
        check_takes_count(selector)
    needed = resolve_losses(loss_fn, losses) if selector.needs_scores else None
    return BatchSelection(selector, check_scorer(scorer), needed, on_nonfinite, generator, exact)


def is_exact(exact: bool | None, selector: Selector | None, on_nonfinite: OnNonfinite) -> bool:
    """Returns whether exact numbers are kept: by default wherever they can be.

    Args:
        exact: As `SelectiveLoader` was given it.
        selector: The selector; None where there is none.
        on_nonfinite: What to do with an example whose score is not finite, which may leave fewer
            or more than an exact number.
    """
    checked_nonfinite(on_nonfinite)
    if exact is None:
        exact = selector is not None and takes_count(selector) and on_nonfinite == "error"
    # Several processes must make equally many steps, without asking each other.
    return check_flag("exact", exact) or rank_and_world()[1] > 1


def selector_of(selector: Selector | None, keep: float | None, model: nn.Module | None) -> Selector:
    """The selector given, or Selective-Backprop's of a share.

    Raises:
        ConfigError: If both are given, or neither, or a share without a model.
    """
    if selector is None and keep is None:
        raise ConfigError(
            "nothing says what to keep: give memory=Memory(), which chooses before reading, or "
            "keep= or selector="
        )
    found = resolve_selector(selector, keep)
    if keep is not None and model is None:
        raise ConfigError(_no_model(f"keep={keep}"))
    return found


def _no_model(name: str) -> str:
    return (
        f"{name} selects by losses, and no model was given: give a model and its loss function "
        "after the loader, (loader, model, loss_fn, ...), or memory=Memory() in place of it, "
        "which needs neither"
    )


def parts_of_rule(
    rule: EpochRule, keep: float | None, selector: Selector | None, scorer: Scorer | None
) -> tuple[Selector | None, Scorer | None]:
    """The selector and scorer of a rule's scoring passes, where it has some.

    Raises:
        ConfigError: If others were given too.
    """
    name = type(rule).__name__
    for what, value in (("keep", keep), ("selector", selector), ("scorer", scorer)):
        if value is not None:
            raise ConfigError(
                f"both memory={name}(...) and {what}= given: the rule chooses; leave {what}= out, "
                f"and give {name} what it is to keep"
            )
    return rule.selector, rule.scorer


def _joined(selection: Selection, others: Tensor) -> Selection:
    """A selection and others of weight 1, in the order of their rows."""
    positions, order = torch.cat((selection.positions, others)).sort()
    ones = selection.weights.new_ones(len(others))
    return Selection(positions, torch.cat((selection.weights, ones))[order])
