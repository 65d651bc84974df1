"""Selection among the examples of one batch: which are scored, and what becomes of the scores."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.errors import ConfigError, LossError
from siftback.loading import tree
from siftback.loading.stats import Stats
from siftback.loss_functions import Losses
from siftback.rules.noise_guard import NoiseGuard
from siftback.scorers.fresh import Scorer
from siftback.selectors.percentile import Selection, Selector, choose_exactly, is_number

OnNonfinite = Literal["error", "keep", "drop"]

Begun = tuple[Tensor | None] | None
"""The rows of a batch being scored ahead of its turn, all where None; None if none are."""


class Chooser:
    """Scores a batch, or a share of it, and selects by the scores.

    Args:
        selector: Makes the selection.
        scorer: Makes the scores.
        losses: Those of training; None where no scores are needed.
        share: Share of a batch that is scored.
        on_nonfinite: What to do with an example whose score is not finite.
        generator: Where chance comes from.
        guard: Holds suspects of a wrong label back; None where nothing does.

    Raises:
        ConfigError: Where an argument is out of its range.
    """

    def __init__(
        self,
        selector: Selector,
        scorer: Scorer,
        losses: Losses | None,
        share: float,
        on_nonfinite: OnNonfinite,
        generator: torch.Generator,
        guard: NoiseGuard | None = None,
    ) -> None:
        if on_nonfinite not in ("error", "keep", "drop"):
            raise ConfigError(f'on_nonfinite={on_nonfinite!r}: give "error", "keep" or "drop"')
        if not is_number(share) or not 0 < share <= 1:
            raise ConfigError(f"score_share={share!r}: give a share in (0, 1]")
        self._selector, self._scorer, self._losses = selector, scorer, losses
        self._share, self._on_nonfinite = float(share), on_nonfinite
        self._generator, self._guard = generator, guard

    @property
    def depth(self) -> int:
        """How many batches ahead of their turn scores can be begun on."""
        return 0 if self._losses is None else self._scorer.depth

    def begin(self, model: nn.Module, batch: Any, count: int) -> Begun:
        """Has a batch scored ahead of its turn."""
        assert self._losses is not None
        rows = self._candidates(batch, count)
        self._scorer.submit(self._losses, model, _rows_of(batch, rows))
        return (rows,)

    def score(
        self, model: nn.Module, batch: Any, count: int, begun: Begun, indices: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The scores of a batch, and the rows that have one: all where None.

        Args:
            model: The model; read only.
            batch: A batch of ``count`` examples.
            count: N.
            begun: What was begun on it ahead of its turn.
            indices: int64[N], the dataset indices, for a scorer that needs them.
        """
        if self._losses is None:
            return torch.zeros(count, device=tree.device(batch)), None
        if begun is None:
            rows = self._candidates(batch, count)
            part = _rows_of(batch, rows)
            if not self._scorer.needs_indices:
                return self._scorer.score(self._losses, model, part), rows
            assert indices is not None
            of = indices if rows is None else indices[rows.to(indices.device)]
            return self._scorer.score_indexed(self._losses, model, part, of), rows
        (rows,) = begun
        return self._scorer.collect().to(tree.device(batch)), rows

    def select(
        self,
        scores: Tensor,
        rows: Tensor | None,
        place: str,
        stats: Stats,
        indices: Tensor | None = None,
    ) -> Selection:
        """Selects by the scores.

        Args:
            scores: float32[n].
            rows: The rows of the batch that they are of, all where None.
            place: Which batch it is, for an error, which names an example by its row.
            stats: Counts the scores that are not finite, and the suspects.
            indices: int64[n], whose they are, where that is known.

        Raises:
            LossError: Where one is not finite, and that is to be an error.
        """
        if self._guard is None or indices is None:
            chosen, weights = self._select(scores, rows, place, stats)
        else:
            chosen, weights = self._guarded(self._guard, scores, rows, place, stats, indices)
        return Selection(chosen if rows is None else rows[chosen], weights)

    def after_step(self, model: nn.Module, batch: Any) -> None:
        """Tells the scorer that training is done with a batch."""
        if self._losses is not None:
            self._scorer.after_step(self._losses, model, batch)

    def _candidates(self, batch: Any, count: int) -> Tensor | None:
        """The rows of a batch that are to be scored; None where all are."""
        if self._share == 1:
            return None
        candidates = torch.ones(count, device=tree.device(batch))
        return choose_exactly(candidates, max(1, round(self._share * count)), self._generator)

    def _guarded(
        self,
        guard: NoiseGuard,
        scores: Tensor,
        rows: Tensor | None,
        place: str,
        stats: Stats,
        indices: Tensor,
    ) -> Selection:
        """Selects among all but the suspects, of which a few are let in."""
        guard.observe(indices, scores)
        suspected = guard.suspected(indices).to(scores.device) & scores.isfinite()
        trusted, suspects = (~suspected).nonzero().squeeze(1), suspected.nonzero().squeeze(1)
        selection = Selection(trusted[:0], scores[:0])
        if len(trusted):
            of = trusted if rows is None else rows[trusted]
            chosen, weights = self._select(scores[trusted], of, place, stats)
            selection = Selection(trusted[chosen], weights)
        stats.capped += len(suspects)
        let_in = guard.let_in(len(suspects), self._selector.keep, self._generator)
        return _joined(selection, suspects[let_in.to(suspects.device)])

    def _select(self, scores: Tensor, rows: Tensor | None, place: str, stats: Stats) -> Selection:
        if self._losses is None:
            return self._selector.select(scores, self._generator)
        finite = scores.isfinite()
        if self._on_nonfinite != "error":
            return self._select_finite(scores, finite, stats)
        # Read only after the selection was made, which waits for the scores in any case: so the
        # accelerator is waited for once.
        all_finite = finite.all()
        selection = self._selector.select(scores, self._generator)
        if not all_finite:
            stats.nonfinite += int((~finite).sum())
            first = (~finite).nonzero()[0]
            row = int(first if rows is None else rows[first])
            raise LossError(
                f"the loss of example {row} in {place} is {float(scores[first])}: "
                "lower the learning rate or mend the example, or say "
                'on_nonfinite="keep" or "drop"'
            )
        return selection

    def _select_finite(self, scores: Tensor, finite: Tensor, stats: Stats) -> Selection:
        """Selects among the finite scores; keeps all or none of the others."""
        rows, others = finite.nonzero().squeeze(1), (~finite).nonzero().squeeze(1)
        stats.nonfinite += len(others)
        selection = Selection(rows[:0], scores[:0])
        if len(rows):
            chosen, weights = self._selector.select(scores[rows], self._generator)
            selection = Selection(rows[chosen], weights)
        if self._on_nonfinite == "drop" or not len(others):
            return selection
        return _joined(selection, others)


def _joined(selection: Selection, others: Tensor) -> Selection:
    """A selection and others of weight 1, in the order of their rows."""
    indices, order = torch.cat((selection.indices, others)).sort()
    ones = selection.weights.new_ones(len(others))
    return Selection(indices, torch.cat((selection.weights, ones))[order])


def _rows_of(batch: Any, rows: Tensor | None) -> Any:
    return batch if rows is None else tree.take(batch, rows)
