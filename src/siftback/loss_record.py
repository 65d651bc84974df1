"""Losses that training found: checked, counted, and given to a rule that learns from them."""

from typing import Any

import torch
from torch import Tensor

from siftback.batch_selection import OnNonfinite
from siftback.errors import ConfigError, LossError
from siftback.loading.stats import Stats
from siftback.rules.epoch_draw import EpochDraw
from siftback.rules.score_table import ScoreTable


class LossRecord:
    """Takes the losses of training's batches to a rule, and makes their mean.

    Args:
        draw: Whose rule learns from them; None where nothing does.
        on_nonfinite: What to do with an example whose loss is not finite.
        stats: Counts those.
    """

    def __init__(self, draw: EpochDraw | None, on_nonfinite: OnNonfinite, stats: Stats) -> None:
        self._draw = draw
        self._on_nonfinite = on_nonfinite
        self._stats = stats
        # Of losses of whole batches: the mean that each example had a part in, and of how many.
        self._means: ScoreTable | None = None

    def check_reduced(self, losses: Tensor, reduced: bool) -> None:
        """Makes sure that it is one loss for each example, or one for the batch as was said.

        Raises:
            LossError: Where it is not.
        """
        if not isinstance(losses, Tensor) or not losses.is_floating_point():
            kind = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
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

    def take(
        self,
        losses: Tensor,
        indices: Tensor | None,
        epoch: int,
        correct: Tensor | None,
        confidence: Tensor | None,
        reduced: bool,
    ) -> Tensor | None:
        """Gives the losses to the rule, where it learns from them.

        Args:
            losses: float[n], or a single one of the whole batch.
            indices: int64[n], the dataset indices of the examples.
            epoch: That they were trained on in.
            correct: bool[n], for rules that need it.
            confidence: float[n], likewise.
            reduced: Whether it is a single one.

        Returns:
            bool[n], which of them are to stay in the mean; None where all are.

        Raises:
            LossError: Where there is not one for each example, or one is not finite and that is
                to be an error.
        """
        self.check_reduced(losses, reduced)
        if self._draw is None or not self._draw.learns or indices is None:
            return None
        indices = indices.cpu()
        values = losses.detach().float().cpu()
        values = values.reshape(()).expand(len(indices)) if reduced else values
        if len(values) != len(indices):
            raise LossError(
                f"{len(values)} losses were given for {len(indices)} examples: give one for each"
            )
        finite = values.isfinite()
        all_finite = bool(finite.all())
        if not all_finite:
            self._count_nonfinite(values, finite, indices)
        if reduced and all_finite:
            values = self._averaged(indices, values)
        found = {"correct": correct, "confidence": confidence}
        parts = {
            name: part.detach().cpu()[finite] if part.shape == indices.shape else part
            for name, part in found.items()
            if part is not None
        }
        self._draw.update(indices[finite], values[finite], epoch, **parts)
        drops = self._on_nonfinite == "drop" and not all_finite and not reduced
        return finite.to(losses.device) if drops else None

    def mean(
        self, losses: Tensor, weights: Tensor | None, kept: Tensor | None, reduced: bool
    ) -> Tensor:
        """The weighted mean of losses.

        Args:
            losses: float[n], or a single one of the whole batch.
            weights: float32[n]; None where all are 1.
            kept: bool[n], which stay in the mean; None where all do.
            reduced: Whether it is a single one.

        Raises:
            ConfigError: Where weights are to be applied to a single one.
        """
        if reduced:
            if weights is not None and bool((weights != 1).any()):
                raise ConfigError(
                    "the examples of this batch have weights, which cannot be applied to a loss of "
                    "the whole batch: give one loss per example"
                )
            return losses.reshape(())
        if weights is not None:
            losses = losses * weights.to(losses.device)
        return (losses if kept is None else losses[kept]).mean()

    def state_dict(self) -> dict[str, Any]:
        """The means of losses of whole batches."""
        return {"means": None if self._means is None else self._means.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        self._means = None
        if state["means"] is not None:
            self._means = ScoreTable(columns=2)
            self._means.load_state_dict(state["means"])

    def _count_nonfinite(self, values: Tensor, finite: Tensor, indices: Tensor) -> None:
        self._stats.nonfinite += int((~finite).sum())
        if self._on_nonfinite == "error":
            row = int((~finite).nonzero()[0])
            raise LossError(
                f"the loss of example {int(indices[row])} of the data set is {float(values[row])}: "
                "lower the learning rate or fix the example, or give the loader "
                'on_nonfinite="keep" or "drop"'
            )

    def _averaged(self, indices: Tensor, values: Tensor) -> Tensor:
        """The mean of the losses of all batches that each example was in."""
        if self._means is None:
            self._means = ScoreTable(columns=2)
        self._means.grow(int(indices.max()) + 1)
        mean, visits = self._means.values[indices].nan_to_num(0.0).unbind(1)
        visits = visits + 1
        mean = mean + (values - mean) / visits
        self._means.record(indices, torch.stack((mean, visits), 1))
        return mean
