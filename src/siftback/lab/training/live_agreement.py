"""How well the scores that a strategy selects by agree with the losses as they are."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from siftback import Fresh, Scorer
from siftback.lab.data.stream import Batch
from siftback.lab.forward import ExampleLosses, example_losses

SAMPLE = 2000


def live_agreement(
    scores: Scorer | Tensor,
    exact: Fresh,
    model: nn.Module,
    batches: Iterator[Batch],
    losses: ExampleLosses = example_losses,
) -> float | None:
    """Rank correlation (Spearman) of scores with the losses of a fresh forward pass.

    Args:
        scores: A scorer, which makes them now; or float32[examples], NaN where there is none.
        exact: Makes the fresh forward passes.
        model: The model as it now is.
        batches: Training examples from index 0 on, not augmented.
        losses: Gives the losses that training scores by.

    Returns:
        A number in [-1, 1]; None where less than two of the examples have a score, or all have
        the same score or loss.
    """
    part = list(batches)
    indices = torch.arange(sum(len(labels) for _, labels in part))
    of = torch.split(indices, [len(labels) for _, labels in part])
    fresh = torch.cat([exact.score(losses, model, batch, None) for batch in part]).cpu()
    if isinstance(scores, Scorer):
        scorer, made = scores, zip(part, of, strict=True)
        scores = torch.cat([scorer.score(losses, model, *each) for each in made])
    scores = scores[: len(fresh)].cpu()
    fresh = fresh[: len(scores)]
    seen = ~(scores.isnan() | fresh.isnan())
    if seen.sum() < 2:
        return None
    both = torch.stack([scores[seen], fresh[seen]])
    if (both.diff() == 0).all(1).any():
        return None
    from scipy.stats import spearmanr  # takes longer to import than all else here

    return float(spearmanr(*both.numpy()).statistic)
