"""What scores cost that are not fresh forward passes: measured once for a comparison."""

import statistics
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from siftback import Fresh, Scorer
from siftback.contrib import Pipelined
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.stream import Batch, BatchStream
from siftback.lab.forward import (
    ExampleLosses,
    autocast_of,
    build_model,
    example_losses,
    training_device,
)
from siftback.lab.records.run_summary import ScoringCost
from siftback.lab.settings import Settings
from siftback.lab.training.strategy import Strategy

ROUNDS = 11


class Replica(Scorer):
    """Waits for a replica of the model to score each batch: what `Pipelined` gives, and its cost.

    Args:
        model: The model, whose weights are copied for each batch.
        losses: Gives the losses that training scores by.
        scorer: What scores in the replica.
        options: More arguments of `Pipelined`.
    """

    def __init__(self, model: nn.Module, losses: ExampleLosses, scorer: Scorer, **options: Any):
        self._batches: list[Batch] = []
        self._scored = Pipelined(
            self._batches, model, losses=losses, depth=0, scorer=scorer, **options
        )

    def score(self, losses: Any, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """float32[N], the replica's scores."""
        self._batches[:] = [batch]
        (scored,) = self._scored
        return scored.scores

    def close(self) -> None:
        """Ends the replica."""
        self._scored.close()


def measure(strategy: Strategy, settings: Settings, data: DataSet) -> ScoringCost | None:
    """Measures what a strategy's score costs, on a model and a batch as its runs have them.

    Args:
        strategy: Which one.
        settings: Its runs'.
        data: Theirs.

    Returns:
        None where scores are fresh forward passes, whose price is 1, or there are none.
    """
    if strategy.scorer is None and not strategy.pipelined:
        return None
    device = training_device(settings)
    with torch.random.fork_rng([]):
        model = build_model(settings, data)
    stream = BatchStream(
        data, settings.batch_size, 0, device=device, channels_last=settings.channels_last
    )
    losses = partial(example_losses, smoothing=settings.label_smoothing)
    exact = Fresh(autocast=autocast_of(settings), compile=settings.compile)
    batch = next(stream.plain(settings.batch_size))
    if strategy.scorer is not None:
        return price_of(strategy.scorer(settings, data), exact, model, batch, losses)
    replica = Replica(model, losses, exact, threads=torch.get_num_threads())
    try:
        return price_of(replica, exact, model, batch, losses)
    finally:
        replica.close()


def price_of(
    scorer: Scorer, exact: Fresh, model: nn.Module, batch: Batch, losses: ExampleLosses
) -> ScoringCost:
    """What a scorer's pass costs in forwards, of rounds in which both take their turn.

    Args:
        scorer: Whose pass; it is called, and keeps what state that leaves.
        exact: The forward pass it is measured against.
        model: The model.
        batch: A batch as training has them.
        losses: Gives the losses that training scores by.
    """

    def seconds(which: Scorer) -> float:
        started = time.perf_counter()
        which.score(losses, model, batch, None).sum().item()
        return time.perf_counter() - started

    for which in (scorer, exact):
        seconds(which)  # what is made once, such as a copy, does not count
    ratios = [seconds(scorer) / seconds(exact) for _ in range(ROUNDS)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return ScoringCost(statistics.median(ratios), low, high, ROUNDS)
