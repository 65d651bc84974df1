"""What a run trains on: batches as its strategy chooses them, their loss, and what they cost."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback import (
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
from siftback.lab import strategies
from siftback.lab.agreement import SAMPLE, agreement, losses, score_cost
from siftback.lab.data import ImageData
from siftback.lab.settings import Run, Settings
from siftback.lab.stream import BatchStream

if TYPE_CHECKING:
    from siftback import SinglePass

# The last share of training on everything, of methods that have one, where none is asked for.
TAILS = {"infobatch": 0.125, "seta": 0.125}

# Costs of one example, in forwards: the unit of every budget and of `cost_forward_units`.
FORWARD, BACKWARD = 1, 2


class Feed:
    """The batches of a run, of which its strategy chose the examples.

    Args:
        run: Which run.
        settings: What it shares with the others of its comparison.
        data: What it is trained on.
        model: The model, for selection passes and for the loss.
        device: Where it is.
        budget: What training may cost in forwards of one example, where that is what ends it.
        scores: float32[N], for a strategy that needs scores of the examples before it trains.
        counts_uses: Whether to count how often each example is trained on; of a strategy that
            selects.

    Attributes:
        strategy: The run's.
        stream: All examples, in the order of the seed.
        stats: What was done so far, in examples.
        uses: float32[N], how often each example was trained on, where that is counted.
        score_cost: What scoring an example costs in forwards, as measured.
        loss: ``loss(images, labels)``, the mean that is to be run backward; the strategy's scorer
            is told what it learns from.
    """

    def __init__(
        self,
        run: Run,
        settings: Settings,
        data: ImageData,
        model: nn.Module,
        device: torch.device,
        budget: float | None,
        scores: Tensor | None = None,
        counts_uses: bool = False,
    ) -> None:
        self._run, self._settings, self._data = run, settings, data
        self._model, self._device, self._budget = model, device, budget
        self._scores = scores
        self._epoch_examples = len(data.train_labels) // settings.batch_size * settings.batch_size
        strategy = self.strategy = strategies.find(run.strategy)
        self._keep = min(1.0, run.keep / (1 - strategy.dropped(run.keep)))  # of what is left
        augment = replace(data.augmentation, cutout=settings.cutout)
        size = settings.batch_size
        if strategy.single_pass:  # so much larger that backwards are of the size asked for
            size = round(size / self._keep)
        learns = any((strategy.scorer, strategy.rule, strategy.irreducible))
        indexed = learns or counts_uses
        self.uses = torch.zeros(len(data.train_labels)) if counts_uses else None
        self.stream = BatchStream(data, size, run.seed, augment, device, indexed=indexed)
        self.stats: Stats | SinglePassStats = Stats()
        self.loss: Callable[[Tensor, Tensor], Tensor] = self._loss_of_all
        self.score_cost = 1.0
        self._source: SelectiveLoader | BatchStream | None = None
        self._scorer: Scorer | None = None
        self._exact = Fresh(autocast=settings.autocast)
        if strategy.single_pass:
            self._source = self.stream
            self.loss = self._single_pass()
        elif strategy.selector is not None or strategy.rule is not None:
            self._source = self._selective()
            if learns or self._source.selector.reweights:
                self.loss = self._remembered_loss

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches, epoch after epoch, until the training is done."""
        epoch = 0
        while self.done < 1:
            if self._source is not None:
                self._source.set_epoch(epoch)
            else:
                self.stream.set_epoch(epoch)
            for batch in self._plain() if self._source is None else self._source:
                if self.uses is not None:
                    assert isinstance(self._source, SelectiveLoader)
                    used = self._source.indices  # one that was carried may be there twice
                    self.uses.index_add_(0, used, torch.ones(len(used)))
                yield batch
                if self.done >= 1:
                    return
            if self.strategy.forwards_left_out:
                self._forward_left_out()
            epoch += 1

    @property
    def cost(self) -> float:
        """Cost so far in forwards of one example, selection's at their price."""
        cost: float = FORWARD * self.stats.forwards + BACKWARD * self.stats.backwards
        if self.score_cost != 1:
            assert isinstance(self.stats, Stats)
            cost += (self.score_cost - FORWARD) * self.stats.scored
        if isinstance(self._scorer, Proxy):  # whose training costs in proportion
            cost += self.score_cost * (FORWARD + BACKWARD) * self._scorer.backwards
        return cost

    @property
    def epochs(self) -> float:
        """Epochs of source examples done, a fraction where training is within one."""
        return self.stats.seen / self._epoch_examples

    @property
    def done(self) -> float:
        """Share of the training done, in [0, 1]: of its cost or of its source examples."""
        if self._budget is not None:
            share = self.cost / self._budget
        else:
            share = self.epochs / self._settings.length
        return min(share, 1.0)

    @property
    def lr_scale(self) -> float:
        """What the strategy multiplies the learning rate with."""
        return self._source.lr_scale if isinstance(self._source, SelectiveLoader) else 1.0

    @property
    def refreshing(self) -> float:
        """Seconds that the scorer took so far to copy weights, or to train a model of its own."""
        names = ("seconds_sync", "seconds_refresh")
        return sum(getattr(self._scorer, name, 0.0) for name in names)

    def agreement(self) -> float | None:
        """Of the scorer's scores with the losses as they are, where it is not a fresh pass."""
        if self._scorer is None:
            return None
        assert isinstance(self._source, SelectiveLoader)
        batches = self.stream.plain(SAMPLE)
        return agreement(self._scorer, self._exact, self._model, batches, self._source.epoch)

    def close(self) -> None:
        """Ends what a scorer has running elsewhere."""
        if isinstance(self._scorer, Pipelined):
            self._scorer.close()

    def _selector(self) -> Selector:
        """The strategy's, of the share and the history asked for."""
        assert self.strategy.selector is not None
        return self.strategy.selector(self._keep, self._settings)

    def _selective(self) -> SelectiveLoader:
        """The stream, with the strategy's selector between it and training."""
        settings = self._settings
        selector = None if self.strategy.rule else self._selector()
        if self.strategy.rule is not None:
            self._scorer = self.strategy.rule(self._run.keep, settings)
        elif self.strategy.irreducible is not None:
            assert self._scores is not None
            self._scorer = self.strategy.irreducible(settings, self._scores)  # of fresh passes
        elif self.strategy.scorer is not None:
            self._scorer = self.strategy.scorer(settings, self._data)
            batch = next(self.stream.plain(settings.batch_size))
            self.score_cost = score_cost(self._scorer, self._exact, self._model, batch)
        loader = SelectiveLoader(
            self.stream,
            self._model,
            losses=losses,
            selector=selector,
            scorer=self._scorer or self._exact,
            schedule=self._schedule(),
            epochs=settings.epochs,
            drop_last="carry",  # all batches full, and nothing kept is lost between epochs
            seed=self._run.seed,
        )
        self.stats = loader.stats
        return loader

    def _schedule(self) -> Schedule | None:
        """When to select, where the scorer does not say so in epochs of the whole training."""
        settings = self._settings
        if self.strategy.rule is not None:
            tail = settings.tail or TAILS.get(self.strategy.name, 0.0)
            return _Spent(lambda: self.done, 1 - tail)
        if settings.budget is None or self.strategy.name != "sb-memory":
            return None
        warmup = round(settings.warmup * settings.budget)
        selective = (1 - settings.warmup - settings.tail) * settings.budget / self._run.keep
        end = warmup + max(1, round(selective)) if settings.tail else None
        return Schedule(warmup=warmup, end=end)

    def _single_pass(self) -> "SinglePass":
        """The losses of a batch, of which the strategy's selector keeps some."""
        from siftback import SinglePass  # brings in the compiler, which takes its time

        sift = SinglePass(
            self._model,
            F.cross_entropy,
            selector=self._selector(),
            check=False,  # its models are this laboratory's own, and tested
            seed=self._run.seed,
        )
        self.stats = sift.stats
        return sift

    def _remembered_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The weighted mean loss, of which the loader is told what each example has in it."""
        assert isinstance(self._source, SelectiveLoader)
        if isinstance(self._scorer, Kakurenbo):
            each, correct, confidence = self._predict(images, labels)
            self._source.remember(each, correct=correct, confidence=confidence)
        else:
            each = losses(self._model, (images, labels))
            self._source.remember(each)
        if self._source.selector.reweights:
            each = each * self._source.weights
        return each.mean()

    def _predict(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Losses, whether each guess is right, and its probability."""
        outputs = self._model(images)
        confidence, guess = outputs.detach().float().softmax(1).max(1)
        each = F.cross_entropy(outputs, labels, reduction="none")
        return each, guess == labels, confidence

    @torch.no_grad()
    def _forward_left_out(self) -> None:
        """Has what was left out of an epoch remembered as the model now sees it."""
        assert isinstance(self._source, SelectiveLoader)
        assert isinstance(self.stats, Stats)
        started = time.perf_counter()
        self._model.eval()
        for indices in torch.split(self._source.left_out, self._settings.batch_size):
            with self._settings.casting(self._device):
                each, correct, confidence = self._predict(*self.stream.plain_of(indices))
            self._source.remember(each, correct=correct, confidence=confidence, indices=indices)
            self.stats.scored += len(indices)
        self._model.train()
        self.stats.seconds_selection += time.perf_counter() - started

    def _plain(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The stream as it is, its examples counted as the loader would."""
        assert isinstance(self.stats, Stats)
        for images, labels in self.stream:
            self.stats.seen += len(labels)
            self.stats.released += len(labels)
            yield images, labels

    def _loss_of_all(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self._model(images), labels)


class _Spent(Schedule):
    """On until a share of training is done, in epochs or in cost, whichever is its length."""

    def __init__(self, done: Callable[[], float], end: float) -> None:
        super().__init__()
        self._done, self._end = done, end

    def is_on(
        self, epochs_done: float, epochs: float | None = None, batch: int | None = None
    ) -> bool:
        return self._done() < self._end
