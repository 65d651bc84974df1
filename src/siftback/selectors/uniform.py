"""Selectors that use no scores: uniformly random, and all."""

from typing import Any

import torch
from torch import Tensor

from siftback.selectors.sampling import ShareSelector, choose
from siftback.selectors.selection import Selection, check_call, check_scores, unweighted
from siftback.state import Stateful


class Uniform(ShareSelector):
    """Random-Backprop: keeps every example with the same probability, whatever its loss.

    The baseline of Lu et al. (Diet Selective-Backprop): it makes no selection pass.

    Args:
        keep: Probability of each example, in (0, 1].

    Raises:
        ConfigError: If ``keep`` is outside its range.

    >>> kept = Uniform(keep=0.5).select(torch.zeros(1000), torch.Generator().manual_seed(0))
    >>> len(kept.positions)
    492
    """

    needs_scores = False

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N], all equal."""
        check_scores(scores)
        return torch.full_like(scores, self.keep, dtype=torch.float32)


class All(Stateful):
    """Keeps every example: ordinary training.

    >>> All().select(torch.zeros(3), torch.Generator()).positions
    tensor([0, 1, 2])
    """

    needs_scores = False
    reweights = False
    keep = 1.0

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N], all 1."""
        check_scores(scores)
        return torch.ones_like(scores, dtype=torch.float32)

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """See `Selector.select`; no scores are used, and random numbers only with a count."""
        check_call(scores, generator, count)
        if count is not None:
            return choose(self.probabilities(scores), generator, count)
        return unweighted(torch.arange(len(scores), device=scores.device))

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {"selector": type(self).__name__}
