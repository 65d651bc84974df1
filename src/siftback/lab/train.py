"""One run: a model trained from its seed to its length, tested on the way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback import ConfigError
from siftback.lab import models
from siftback.lab.clock import Clock
from siftback.lab.data import ImageData
from siftback.lab.feed import BACKWARD, FORWARD, Feed
from siftback.lab.progress import Reporter
from siftback.lab.rates import RATES
from siftback.lab.records import Evaluation, RecordWriter, RunSummary
from siftback.lab.settings import Run, Settings, resolve_device
from siftback.lab.stream import BatchStream, test_batches

TEST_BATCH = 500


class Scored(NamedTuple):
    """What a strategy that has all examples scored before training trains on.

    Attributes:
        data: The data set, or what pruning left of it.
        cost: What the scores cost, in forwards of one example.
        seconds: What they took.
        scores: float32[N], those of the data; None where they were for pruning alone.
    """

    data: ImageData
    cost: float
    seconds: float
    scores: Tensor | None = None


class Stage(NamedTuple):
    """A model on its way.

    Attributes:
        model: As it is now.
        stream: The batches that it is trained on.
        cost: What its training cost so far, in forwards of one example.
        seconds: What it took.
        uses: float32[N], how often it was trained on each example, where a strategy chose.
    """

    model: nn.Module
    stream: BatchStream
    cost: float
    seconds: float
    uses: Tensor | None


def train(
    run: Run,
    settings: Settings,
    data: ImageData,
    record: RecordWriter,
    reporter: Reporter,
    scored: Scored | None = None,
) -> tuple[RunSummary, nn.Module]:
    """Trains and tests one model.

    Args:
        run: Which run.
        settings: What it shares with the others of its comparison.
        data: The data set of ``settings``.
        record: Gets each evaluation as it is made, and the summary at the end.
        reporter: Is told how far the run has come.
        scored: For a strategy that has all examples scored first, what came of it.

    Returns:
        The summary, and the trained model.
    """
    training = _Training(run, settings, data, scored)
    evaluations: list[Evaluation] = []
    try:
        for evaluation in training.evaluations(reporter):
            record.evaluation(evaluation)
            reporter.evaluation(evaluation)
            evaluations.append(evaluation)
    finally:
        training.feed.close()
    summary = training.summary(evaluations)
    record.end(summary)
    return summary, training.model


def stages(
    seed: int,
    settings: Settings,
    data: ImageData,
    epochs: float,
    update: Callable[[float], None] = lambda done: None,
    strategy: str = "traditional",
    keep: float = 1.0,
) -> Iterator[Stage]:
    """Trains a model, and gives it after each epoch; it is never tested.

    Args:
        seed: Of its initial weights and data order.
        settings: How to train, but for the length.
        data: What to train on.
        epochs: How long; 0 gives the initial weights.
        update: Is told what share of it is done.
        strategy: What chooses the examples; by default it is trained on everything.
        keep: The share that it keeps.
    """
    asked = replace(settings, epochs=epochs or 1.0, budget=None)
    training = _Training(Run(strategy, keep, seed), asked, data, counts_uses=keep < 1)
    if not epochs:
        yield Stage(training.model, training.feed.stream, 0.0, 0.0, None)
        return
    for _ in training.stretches(max(1, round(epochs)), update):
        with training.clock.paused():
            feed = training.feed
            yield Stage(training.model, feed.stream, feed.cost, training.clock.seconds, feed.uses)


class _Training:
    """A run's model, optimizer, batches, tally of steps and clock."""

    def __init__(
        self,
        run: Run,
        settings: Settings,
        data: ImageData,
        scored: Scored | None = None,
        counts_uses: bool = False,
    ) -> None:
        size = settings.batch_size
        whole = len(data.train_labels)
        self.scoring = scored or Scored(data, 0.0, 0.0)
        data = self.scoring.data
        self.left = len(data.train_labels) / whole  # by pruning
        self.run, self.settings, self.data = run, settings, data
        self.device = resolve_device(settings.device)
        # The one place that seeds: equal weights and dropout for every strategy of a seed.
        torch.manual_seed(run.seed)
        self.model = models.build(
            settings.model,
            width=settings.width,
            classes=data.classes,
            channels=data.train_images.shape[1],
            norm=settings.norm,
        )
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.momentum > 0,
            weight_decay=settings.weight_decay,
        )
        budget = self._budget(whole // size * size)
        self.feed = Feed(
            run,
            settings,
            data,
            self.model,
            self.device,
            budget,
            self.scoring.scores,
            counts_uses,
        )
        self.clock = Clock(self.device)
        self.clock.add(self.scoring.seconds, "scoring")
        self._selection = 0.0  # seconds of it that the clock was told of, and of refreshing copies
        self._syncing = self.feed.refreshing
        self.steps = 0
        self._losses = torch.zeros((), device=self.device)  # summed since the last evaluation
        self._trained = 0

    def evaluations(self, reporter: Reporter) -> Iterator[Evaluation]:
        """Trains; yields an evaluation whenever one is due, and one at the end."""
        wanted = self.settings.evaluations or max(1, round(self.settings.length))
        for _ in self.stretches(wanted, reporter.update):
            yield self._evaluate()

    def stretches(self, wanted: int, update: Callable[[float], None]) -> Iterator[None]:
        """Trains, telling what share is done; yields at so many even ones, and at its end."""
        made, before, steps = 0, 0.0, 0
        self.clock.start("loading")
        for images, labels in self.feed.batches():
            self._move_selection("loading")
            self._step(images, labels, before)
            before = self.feed.done
            update(before)
            if int(before * wanted) > made:
                made, steps = int(before * wanted), self.steps
                yield
            self.clock.mark("loading")
        if self.steps > steps:
            yield

    def summary(self, evaluations: list[Evaluation]) -> RunSummary:
        """The run's entry in ``summary.json``."""
        errors = [evaluation.test_error for evaluation in evaluations]
        phases = evaluations[-1].phases  # training ended with it
        return RunSummary(
            strategy=self.run.strategy,
            matched_to=self.run.matched_to,
            seed=self.run.seed,
            data=self.data.name,
            model=self.settings.model_name,
            keep_asked=self.run.keep,
            keep_measured=self.feed.stats.kept_share * self.left,
            epochs=self.feed.epochs,
            steps=self.steps,
            examples_forwarded=self.feed.stats.forwards,
            examples_backpropped=self.feed.stats.backwards,
            seconds_train=evaluations[-1].seconds,
            seconds_selection=self.feed.stats.seconds_selection,
            cost_forward_units=self.feed.cost + self.scoring.cost,
            test_error_final=errors[-1],
            test_error_best=min(errors),
            record=self.run.record,
            seconds_by_phase=phases,
            score_cost=self.feed.score_cost,
            cost_scoring=self.scoring.cost,
            seconds_scoring=self.scoring.seconds,
        )

    def _budget(self, examples: int) -> float | None:
        """What may be spent on training, where that is what ends it.

        Args:
            examples: Those of an epoch of the whole data set.
        """
        budget = self.run.cost_budget
        if budget is None and self.settings.budget is not None:
            budget = (FORWARD + BACKWARD) * examples * self.settings.budget
        if budget is not None and budget <= self.scoring.cost:
            raise ConfigError(
                f"{self.run.strategy} has a budget of {budget:.0f} forwards, and its scores cost "
                f"{self.scoring.cost:.0f}: give more, or fewer models or epochs to score by "
                "(--score-models, --score-epochs)"
            )
        return None if budget is None else budget - self.scoring.cost

    def _step(self, images: Tensor, labels: Tensor, before: float) -> None:
        self.clock.mark("forward")
        with self.settings.casting(self.device):
            loss = self.feed.loss(images, labels)
        self._move_selection("forward")
        self.clock.mark("other")
        # The rate of a step is that of the middle of the share of training it stands for.
        rate = RATES[self.settings.rate]((before + self.feed.done) / 2)
        rate *= self.feed.lr_scale
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * rate
        self.clock.mark("backward")
        loss.backward()  # type: ignore[no-untyped-call]
        self.clock.mark("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clock.mark("other")
        self.steps += 1
        self._losses += loss.detach() * len(labels)
        self._trained += len(labels)

    def _move_selection(self, phase: str) -> None:
        """Seconds that selection took within a phase are selection's own."""
        taken = self.feed.stats.seconds_selection - self._selection
        self.clock.move(taken, phase, "selection")
        self._selection += taken
        syncing = self.feed.refreshing - self._syncing
        self.clock.move(syncing, "selection", "syncing")
        self._syncing += syncing

    def _evaluate(self) -> Evaluation:
        with self.clock.paused():
            test_loss, test_error = self._test()
            agreed = self.feed.agreement()
            phases = self.clock.phases
            train_loss = float(self._losses) / self._trained
            self._losses.zero_()
            self._trained = 0
        return Evaluation(
            epoch=self.feed.epochs,
            examples=self.feed.stats.seen,
            steps=self.steps,
            seconds=sum(phases.values()),
            cost=self.feed.cost + self.scoring.cost,
            train_loss=train_loss,
            test_loss=test_loss,
            test_error=test_error,
            phases=phases,
            agreement=agreed,
        )

    @torch.no_grad()
    def _test(self) -> tuple[float, float]:
        """Mean loss and error in percent over the test set."""
        self.model.eval()
        loss = torch.zeros((), device=self.device)
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for images, labels in test_batches(self.data, TEST_BATCH, self.device):
            with self.settings.casting(self.device):
                logits = self.model(images).float()
            loss += F.cross_entropy(logits, labels, reduction="sum")
            wrong += (logits.argmax(1) != labels).sum()
        self.model.train()
        count = len(self.data.test_labels)
        return float(loss) / count, 100 * float(wrong) / count
