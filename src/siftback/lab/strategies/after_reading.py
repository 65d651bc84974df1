"""Selection after a batch is read: a scorer's pass, and a selector that goes by its scores."""

import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from siftback import Epochs, Scorer
from siftback.contrib import Pipelined, Proxy
from siftback.lab import models
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.stream import Batch
from siftback.lab.forward import ExampleLosses, batch_stream, build_model, example_losses
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.records.run_summary import ScoringCost
from siftback.lab.settings import Settings
from siftback.lab.strategies.strategy import LoaderBatches, ProgressSchedule, Strategy, fresh_scorer

ROUNDS = 11


class AfterReading(LoaderBatches):
    """Batches of the examples that a selector keeps of each batch that is scored."""

    def selection(self) -> dict[str, Any]:
        """Returns the loader's arguments: the stream, the selector and the scorer."""
        job, settings = self.job, self.job.settings
        self.scorer: Scorer = self.exact
        if job.strategy.scorer:
            self.scorer = job.strategy.scorer(settings, job.data, job.scores)
        selector = job.strategy.choice(job.run.keep, settings)
        self.records_losses = bool(selector.reweights)
        return {
            "loader": self.stream,
            "selector": selector,
            "scorer": self.scorer,
            "schedule": ProgressSchedule(self.done, settings.warmup or Epochs(0)),
        }

    @property
    def cost(self) -> float:
        """Cost so far in forwards of the mean example, scores at their price."""
        cost, price = super().cost, self.job.score_cost
        if price != 1:
            cost += (price - FORWARD) * getattr(self.stats, "scored", 0)
        # Of a proxy, whose training costs in proportion.
        return cost + price * (FORWARD + BACKWARD) * getattr(self.scorer, "backwards", 0)

    @property
    def refreshing(self) -> float:  # type: ignore[override]
        """Seconds that the scorer took so far to copy weights, or to train a model of its own."""
        return float(getattr(self.scorer, "seconds_refresh", 0.0))

    def agreement(self) -> float | None:
        """Returns how the scores agree with fresh losses; None where they are fresh losses."""
        if self.scorer is self.exact:
            return None
        return self.agreement_of(self.score_sample(self.scorer))


class ScoredElsewhere(AfterReading):
    """The same, where a replica in another process scores batches before their turn."""

    def selection(self) -> dict[str, Any]:
        """Returns the loader's arguments, of which the replica gives the batches."""
        self.replica = Pipelined(
            self.stream,
            self.job.model,
            losses=self.losses,
            threads=torch.get_num_threads(),
            scorer=self.exact,
        )
        next(iter(self.replica))  # its start is no part of training, which begins again
        return super().selection() | {"loader": self.replica}

    @property
    def refreshing(self) -> float:  # type: ignore[override]
        """Seconds that copying weights to the replica took so far."""
        return self.replica.seconds_sync

    @property
    def selecting(self) -> float:
        """Seconds that selection took so far, the copying included."""
        return super().selecting + self.refreshing

    def agreement(self) -> float | None:
        """Returns how the scores agree with fresh losses; any device gives the process's scores."""
        replica = Replica(self.job.model, self.losses, self.exact, place=self.job.device)
        return self.agreement_of(self.score_sample(replica))

    def close(self) -> None:
        """Ends the replica."""
        self.replica.close()


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
        options |= {"depth": 0, "scorer": scorer}
        self._scored = Pipelined(self._batches, model, losses=losses, **options)

    def score(self, losses: Any, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """float32[N], the replica's scores."""
        self._batches[:] = [batch]
        (scored,) = self._scored
        return scored.scores

    def close(self) -> None:
        """Ends the replica."""
        self._scored.close()


def proxy_scorer(settings: Settings, data: DataSet) -> Scorer:
    """Returns a `cnn`, half as wide as the model if that is one, at its rate after the peak."""
    width = models.MODELS["cnn"].width
    if settings.model == "cnn":
        width = max(1, (settings.width or width) // 2)
    # Its weights are drawn aside, so that the run's random state is that of every strategy.
    with torch.random.fork_rng([]):
        small = build_model(replace(settings, model="cnn", width=width), data)
    optimizer = torch.optim.SGD(
        small.parameters(),
        lr=settings.lr / 5,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    return Proxy(small, optimizer, fresh_scorer(settings))


def measure_score_cost(strategy: Strategy, settings: Settings, data: DataSet) -> ScoringCost | None:
    """Measures what a strategy's score costs, on a model and a batch as its runs have them.

    Rounds of the scorer's pass and of a fresh forward pass take turns.

    Args:
        strategy: The strategy.
        settings: Its runs'.
        data: Theirs.

    Returns:
        None where scores are fresh forward passes, whose cost is 1, or there are none.
    """
    elsewhere = strategy.moment is ScoredElsewhere
    if strategy.prior or not (strategy.scorer or elsewhere):
        return None
    with torch.random.fork_rng([]):
        model = build_model(settings, data)
    stream = batch_stream(settings, data, settings.batch_size)
    losses = partial(example_losses, smoothing=settings.label_smoothing)
    exact, batch = fresh_scorer(settings), next(stream.plain(settings.batch_size))
    scorer = strategy.scorer(settings, data, None) if strategy.scorer else None

    def seconds(timed: Scorer) -> float:
        started = time.perf_counter()
        timed.score(losses, model, batch, None).sum().item()
        return time.perf_counter() - started

    with ExitStack() as stack:
        if scorer is None:
            scorer = Replica(model, losses, exact, threads=torch.get_num_threads())
            stack.callback(scorer.close)
        for timed in (scorer, exact):
            seconds(timed)  # what is made once, such as a copy, does not count
        ratios = [seconds(scorer) / seconds(exact) for _ in range(ROUNDS)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return ScoringCost(median, low, high, ROUNDS)
