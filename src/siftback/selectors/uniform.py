"""A selector that uses no scores: uniformly random."""

import torch
from torch import Tensor

from siftback.selectors.sampling import ShareSelector
from siftback.selectors.selection import check_scores


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
