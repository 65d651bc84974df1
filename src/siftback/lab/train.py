"""One run: a model trained from its seed to its length, tested on the way."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback import (
    ConfigError,
    Fresh,
    Kakurenbo,
    Pipelined,
    Proxy,
    Schedule,
    Scorer,
    SelectiveLoader,
    Selector,
    SinglePassStats,
    Stats,
)
from siftback.lab import models, strategies
from siftback.lab.agreement import SAMPLE, agreement, losses, score_cost
from siftback.lab.clock import Clock
from siftback.lab.data import ImageData
from siftback.lab.progress import Reporter, Silent
from siftback.lab.rates import RATES
from siftback.lab.records import Evaluation, RecordWriter, RunSummary
from siftback.lab.settings import Run, Settings, resolve_device
from siftback.lab.stream import BatchStream, test_batches

if TYPE_CHECKING:
    from siftback import SinglePass

TEST_BATCH = 500

# The last share of training on everything, of methods that have one, where none is asked for.
TAILS = {"infobatch": 0.125, "seta": 0.125}

# Costs of one example, in forwards: the unit of every budget and of `cost_forward_units`.
FORWARD, BACKWARD = 1, 2


class Pruned(NamedTuple):
    """What a strategy that prunes trains on.

    Attributes:
        data: What is left of the data set.
        cost: What the scores cost, in forwards of one example.
        seconds: What they took.
    """

    data: ImageData
    cost: float
    seconds: float


class Stage(NamedTuple):
    """A model on its way.

    Attributes:
        model: As it is now.
        stream: The batches that it is trained on.
        cost: What its training cost so far, in forwards of one example.
        seconds: What it took.
    """

    model: nn.Module
    stream: BatchStream
    cost: float
    seconds: float


def train(
    run: Run,
    settings: Settings,
    data: ImageData,
    record: RecordWriter,
    reporter: Reporter,
    pruned: Pruned | None = None,
) -> tuple[RunSummary, nn.Module]:
    """Trains and tests one model.

    Args:
        run: Which run.
        settings: What it shares with the others of its comparison.
        data: The data set of ``settings``.
        record: Gets each evaluation as it is made, and the summary at the end.
        reporter: Is told how far the run has come.
        pruned: For a strategy that prunes, what it left of the data set.

    Returns:
        The summary, and the trained model.
    """
    training = _Training(run, settings, data, pruned)
    evaluations: list[Evaluation] = []
    try:
        for evaluation in training.evaluations(reporter):
            record.evaluation(evaluation)
            reporter.evaluation(evaluation)
            evaluations.append(evaluation)
    finally:
        training.close()
    summary = training.summary(evaluations)
    record.end(summary)
    return summary, training.model


def stages(seed: int, settings: Settings, data: ImageData, epochs: float) -> Iterator[Stage]:
    """Trains a model on everything, and gives it after each epoch; it is never tested.

    Args:
        seed: Of its initial weights and data order.
        settings: How to train, but for the length.
        data: What to train on.
        epochs: How long; 0 gives the initial weights.
    """
    asked = replace(settings, epochs=epochs or 1.0, budget=None)
    training = _Training(Run("traditional", 1.0, seed), asked, data)
    if not epochs:
        yield Stage(training.model, training.stream, 0.0, 0.0)
        return
    for _ in training.stretches(max(1, round(epochs)), Silent()):
        with training.clock.paused():
            yield Stage(training.model, training.stream, training.cost, training.clock.seconds)


class _Training:
    """A run's model, optimizer, source of batches, tally of examples and clock."""

    def __init__(
        self, run: Run, settings: Settings, data: ImageData, pruned: Pruned | None = None
    ) -> None:
        whole = len(data.train_labels)
        self.scoring = pruned or Pruned(data, 0.0, 0.0)
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
            size=data.size,
        )
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.momentum > 0,
            weight_decay=settings.weight_decay,
        )
        augment = replace(data.augmentation, cutout=settings.cutout)
        strategy = self.strategy = strategies.find(run.strategy)
        size = settings.batch_size
        self.epoch_examples = len(data.train_labels) // size * size
        self._budget = self._budget_of(whole // size * size)
        self.keep = min(1.0, run.keep / (1 - strategy.dropped(run.keep)))  # of what is left
        if strategy.single_pass:  # so much larger that backwards are of the size asked for
            size = round(size / self.keep)
        indexed = strategy.scorer is not None or strategy.rule is not None
        self.stream = BatchStream(data, size, run.seed, augment, self.device, indexed=indexed)
        self.stats: Stats | SinglePassStats = Stats()
        self.source: SelectiveLoader | BatchStream | None = None
        self._loss: Callable[[Tensor, Tensor], Tensor] = self._loss_of_all
        self.score_cost = 1.0
        self._scorer: Scorer | None = None
        self._exact = Fresh(autocast=settings.autocast)
        if strategy.single_pass:
            self.source = self.stream
            self._loss = self._single_pass()
        elif strategy.selector is not None or strategy.rule is not None:
            self.source = self._selective()
            if indexed or self.source.selector.reweights:
                self._loss = self._remembered_loss
        self.clock = Clock(self.device)
        self.clock.add(self.scoring.seconds, "scoring")
        self._selection = 0.0  # seconds of it that the clock was told of, and of refreshing copies
        self._syncing = sum(self._refreshing())
        self.steps = 0
        self._losses = torch.zeros((), device=self.device)  # summed since the last evaluation
        self._trained = 0

    def evaluations(self, reporter: Reporter) -> Iterator[Evaluation]:
        """Trains; yields an evaluation whenever one is due, and one at the end."""
        wanted = self.settings.evaluations or max(1, round(self.settings.length))
        for _ in self.stretches(wanted, reporter):
            yield self._evaluate()

    def stretches(self, wanted: int, reporter: Reporter) -> Iterator[None]:
        """Trains; yields at so many even shares of it, and at its end."""
        made, before, steps = 0, 0.0, 0
        self.clock.start("loading")
        for images, labels in self._batches():
            self._move_selection("loading")
            self._step(images, labels, before)
            before = self.done
            reporter.update(before)
            if int(before * wanted) > made:
                made, steps = int(before * wanted), self.steps
                yield
            self.clock.mark("loading")
        if self.steps > steps:
            yield

    def close(self) -> None:
        """Ends what a scorer has running elsewhere."""
        if isinstance(self._scorer, Pipelined):
            self._scorer.close()

    @property
    def cost(self) -> float:
        """Cost so far in forwards of one example, selection's at their price; no more than that.

        What scores cost before training began is not in it.
        """
        cost: float = FORWARD * self.stats.forwards + BACKWARD * self.stats.backwards
        if self.score_cost != 1:
            assert isinstance(self.stats, Stats)
            cost += (self.score_cost - FORWARD) * self.stats.scored
        if isinstance(self._scorer, Proxy):  # whose training costs in proportion
            cost += self.score_cost * (FORWARD + BACKWARD) * self._scorer.backwards
        return cost

    @property
    def done(self) -> float:
        """Share of the training done, in [0, 1]: of its cost or of its source examples."""
        if self._budget is not None:
            share = self.cost / self._budget
        else:
            share = self.stats.seen / (self.epoch_examples * self.settings.length)
        return min(share, 1.0)

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
            keep_measured=self.stats.kept_share * self.left,
            epochs=self.stats.seen / self.epoch_examples,
            steps=self.steps,
            examples_forwarded=self.stats.forwards,
            examples_backpropped=self.stats.backwards,
            seconds_train=evaluations[-1].seconds,
            seconds_selection=self.stats.seconds_selection,
            cost_forward_units=self.cost + self.scoring.cost,
            test_error_final=errors[-1],
            test_error_best=min(errors),
            record=self.run.record,
            seconds_by_phase=phases,
            score_cost=self.score_cost,
            cost_scoring=self.scoring.cost,
            seconds_scoring=self.scoring.seconds,
        )

    def _budget_of(self, examples: int) -> float | None:
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

    def _selector(self) -> Selector:
        """The strategy's, of the share and the history asked for."""
        assert self.strategy.selector is not None
        return self.strategy.selector(self.keep, self.settings)

    def _selective(self) -> SelectiveLoader:
        """The stream, with the strategy's selector between it and training."""
        settings = self.settings
        selector = None if self.strategy.rule else self._selector()
        if self.strategy.rule is not None:
            self._scorer = self.strategy.rule(self.run.keep, settings)
        elif self.strategy.scorer is not None:
            self._scorer = self.strategy.scorer(settings, self.data)
            batch = next(self.stream.plain(settings.batch_size))
            self.score_cost = score_cost(self._scorer, self._exact, self.model, batch)
        loader = SelectiveLoader(
            self.stream,
            self.model,
            losses=losses,
            selector=selector,
            scorer=self._scorer or self._exact,
            schedule=self._schedule(),
            epochs=settings.epochs,
            drop_last="carry",  # all batches full, and nothing kept is lost between epochs
            seed=self.run.seed,
        )
        self.stats = loader.stats
        return loader

    def _schedule(self) -> Schedule | None:
        """When to select, where the scorer does not say so in epochs of the whole training."""
        settings = self.settings
        if self.strategy.rule is not None:
            tail = settings.tail or TAILS.get(self.strategy.name, 0.0)
            return _Spent(lambda: self.done, 1 - tail)
        if settings.budget is None or self.strategy.name != "sb-memory":
            return None
        warmup = round(settings.warmup * settings.budget)
        selective = (1 - settings.warmup - settings.tail) * settings.budget / self.run.keep
        end = warmup + max(1, round(selective)) if settings.tail else None
        return Schedule(warmup=warmup, end=end)

    def _single_pass(self) -> "SinglePass":
        """The losses of a batch, of which the strategy's selector keeps some."""
        from siftback import SinglePass  # brings in the compiler, which takes its time

        sift = SinglePass(
            self.model,
            F.cross_entropy,
            selector=self._selector(),
            check=False,  # its models are this laboratory's own, and tested
            seed=self.run.seed,
        )
        self.stats = sift.stats
        return sift

    def _remembered_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The weighted mean loss, of which the loader is told what each example has in it."""
        assert isinstance(self.source, SelectiveLoader)
        if isinstance(self._scorer, Kakurenbo):
            each, correct, confidence = self._predict(images, labels)
            self.source.remember(each, correct=correct, confidence=confidence)
        else:
            each = losses(self.model, (images, labels))
            self.source.remember(each)
        if self.source.selector.reweights:
            each = each * self.source.weights
        return each.mean()

    def _predict(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Losses, whether each guess is right, and its probability."""
        outputs = self.model(images)
        confidence, guess = outputs.detach().float().softmax(1).max(1)
        each = F.cross_entropy(outputs, labels, reduction="none")
        return each, guess == labels, confidence

    @torch.no_grad()
    def _forward_left_out(self) -> None:
        """Has what was left out of an epoch remembered as the model now sees it."""
        assert isinstance(self.source, SelectiveLoader)
        assert isinstance(self.stats, Stats)
        started = time.perf_counter()
        self.model.eval()
        for indices in torch.split(self.source.left_out, self.settings.batch_size):
            with self._casting():
                each, correct, confidence = self._predict(*self.stream.plain_of(indices))
            self.source.remember(each, correct=correct, confidence=confidence, indices=indices)
            self.stats.scored += len(indices)
        self.model.train()
        self.stats.seconds_selection += time.perf_counter() - started

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches, epoch after epoch, until the training is done."""
        epoch = 0
        while self.done < 1:
            if self.source is not None:
                self.source.set_epoch(epoch)
            else:
                self.stream.set_epoch(epoch)
            for batch in self._plain() if self.source is None else self.source:
                yield batch
                if self.done >= 1:
                    return
            if self.strategy.forwards_left_out:
                self._forward_left_out()
            epoch += 1

    def _plain(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The stream as it is, its examples counted as the loader would."""
        assert isinstance(self.stats, Stats)
        for images, labels in self.stream:
            self.stats.seen += len(labels)
            self.stats.released += len(labels)
            yield images, labels

    def _step(self, images: Tensor, labels: Tensor, before: float) -> None:
        self.clock.mark("forward")
        with self._casting():
            loss = self._loss(images, labels)
        self._move_selection("forward")
        self.clock.mark("other")
        # The rate of a step is that of the middle of the share of training it stands for.
        rate = RATES[self.settings.rate]((before + self.done) / 2)
        if isinstance(self.source, SelectiveLoader):
            rate *= self.source.lr_scale
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
        taken = self.stats.seconds_selection - self._selection
        self.clock.move(taken, phase, "selection")
        self._selection += taken
        syncing = sum(self._refreshing()) - self._syncing
        self.clock.move(syncing, "selection", "syncing")
        self._syncing += syncing

    def _refreshing(self) -> list[float]:
        """Seconds that the scorer took so far to copy weights, or to train a model of its own."""
        names = ("seconds_sync", "seconds_refresh")
        return [getattr(self._scorer, name, 0.0) for name in names]

    def _loss_of_all(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(images), labels)

    def _evaluate(self) -> Evaluation:
        with self.clock.paused():
            test_loss, test_error = self._test()
            agreed = self._agreement()
            phases = self.clock.phases
            train_loss = float(self._losses) / self._trained
            self._losses.zero_()
            self._trained = 0
        return Evaluation(
            epoch=self.stats.seen / self.epoch_examples,
            examples=self.stats.seen,
            steps=self.steps,
            seconds=sum(phases.values()),
            cost=self.cost + self.scoring.cost,
            train_loss=train_loss,
            test_loss=test_loss,
            test_error=test_error,
            phases=phases,
            agreement=agreed,
        )

    def _agreement(self) -> float | None:
        """Of the scorer's scores with the losses as they are, where it is not a fresh pass."""
        if self._scorer is None:
            return None
        assert isinstance(self.source, SelectiveLoader)
        batches = self.stream.plain(SAMPLE)
        return agreement(self._scorer, self._exact, self.model, batches, self.source.epoch)

    @torch.no_grad()
    def _test(self) -> tuple[float, float]:
        """Mean loss and error in percent over the test set."""
        self.model.eval()
        loss = torch.zeros((), device=self.device)
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for images, labels in test_batches(self.data, TEST_BATCH, self.device):
            with self._casting():
                logits = self.model(images).float()
            loss += F.cross_entropy(logits, labels, reduction="sum")
            wrong += (logits.argmax(1) != labels).sum()
        self.model.train()
        count = len(self.data.test_labels)
        return float(loss) / count, 100 * float(wrong) / count

    def _casting(self) -> torch.autocast:
        dtype = self.settings.autocast
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)


class _Spent(Schedule):
    """On until a share of training is done, in epochs or in cost, whichever is its length."""

    def __init__(self, done: Callable[[], float], end: float) -> None:
        super().__init__()
        self._done, self._end = done, end

    def is_on(
        self, epochs_done: float, epochs: float | None = None, batch: int | None = None
    ) -> bool:
        return self._done() < self._end
