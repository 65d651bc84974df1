"""How well the scores that a strategy selects by agree with the losses as they are."""

import math
import statistics
import time
from collections.abc import Iterator

import torch
from scipy.stats import spearmanr
from torch import nn

from siftback import Fresh, Scorer
from siftback.lab.data.batch_stream import Batch
from siftback.lab.training.example_losses import ExampleLosses, example_losses

SAMPLE = 2000
ROUNDS = 5


def live_agreement(
    scorer: Scorer,
    exact: Fresh,
    model: nn.Module,
    batches: Iterator[Batch],
    epoch: int,
    losses: ExampleLosses = example_losses,
) -> float | None:
    """Rank correlation (Spearman) of a scorer's scores with the losses of a fresh forward pass.

    Args:
        scorer: Whose scores. Of one that remembers, they are what it predicts for the epoch.
        exact: Makes the fresh forward passes.
        model: The model as it now is.
        batches: Training examples from index 0 on, not augmented.
        epoch: The current epoch, from 0.
        losses: Gives the losses that training scores by.

    Returns:
        A number in [-1, 1]; None where less than two of the examples have a score, or all have
        the same.
    """
    part = list(batches)
    indices = torch.arange(sum(len(labels) for _, labels in part))
    fresh = torch.cat([exact.score(losses, model, batch) for batch in part]).cpu()
    predicted = getattr(scorer, "predicted", None)
    if predicted is not None:
        scores = predicted(epoch)[: len(fresh)].cpu()
    elif scorer.needs_indices:
        of = torch.split(indices, [len(labels) for _, labels in part])
        scores = torch.cat(
            [scorer.score_indexed(losses, model, *each) for each in zip(part, of, strict=True)]
        ).cpu()
    else:
        scores = torch.cat([scorer.score(losses, model, batch) for batch in part]).cpu()
    seen = ~scores.isnan()
    if seen.sum() < 2 or bool((scores[seen].diff() == 0).all()):
        return None
    found = float(spearmanr(scores[seen].numpy(), fresh[: len(scores)][seen].numpy()).statistic)
    return None if math.isnan(found) else found


def score_cost(
    scorer: Scorer,
    exact: Fresh,
    model: nn.Module,
    batch: Batch,
    losses: ExampleLosses = example_losses,
) -> float:
    """What a scorer's pass costs in forwards: medians of both, taken in turns.

    Of one that remembers, the passes it makes are forwards: 1.

    Args:
        scorer: Whose pass; it is called, and keeps what state that leaves.
        exact: The forward pass it is measured against.
        model: The model.
        batch: A batch as training has them.
        losses: Gives the losses that training scores by.
    """
    if hasattr(scorer, "predicted"):
        return 1.0
    taken: dict[Scorer, list[float]] = {scorer: [], exact: []}
    for which in taken:
        which.score(losses, model, batch)  # what is made once, such as a copy, is not timed
    for _ in range(ROUNDS):
        for which, seconds in taken.items():
            started = time.perf_counter()
            which.score(losses, model, batch).sum().item()
            seconds.append(time.perf_counter() - started)
    return statistics.median(taken[scorer]) / statistics.median(taken[exact])
