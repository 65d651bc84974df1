"""What a run trains on: batches as its strategy chooses them, their loss, and what they cost."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback import (
    EpochRule,
    Epochs,
    Fresh,
    NoiseGuard,
    Pool,
    Schedule,
    Scorer,
    SelectiveLoader,
    SinglePassStats,
    Stats,
)
from siftback.contrib import Pipelined, Proxy
from siftback.lab.data.augment import mix
from siftback.lab.data.data_set import DataSet, ImageData
from siftback.lab.data.stream import PADDING, Batch, BatchStream
from siftback.lab.forward import (
    autocast_context,
    autocast_of,
    cross_entropies,
    example_losses,
    mean_loss,
)
from siftback.lab.settings import Run, Settings
from siftback.lab.training import strategies
from siftback.lab.training.length import BACKWARD, FORWARD, Length, Spent
from siftback.lab.training.live_agreement import SAMPLE, live_agreement
from siftback.lab.training.phase_clock import PhaseClock
from siftback.lab.training.rule_schedule import schedule_of, whole_epochs
from siftback.lab.training.score_price import Replica
from siftback.lab.training.strategy import learns
from siftback.lab.training.token_selection import TokenSelection

if TYPE_CHECKING:
    from siftback import SinglePass


class TrainingBatches:
    """The batches of a run, of which its strategy chose the examples.

    Args:
        run: Which run.
        settings: What it shares with the others of its comparison.
        data: What it is trained on.
        model: The model, for selection passes and for the loss.
        device: Where it is.
        length: How long the training is.
        clock: That of the training, not yet started.
        scores: float32[N], for a strategy that needs scores of the examples before it trains.
        counts_uses: Whether to count how often each example is trained on.
        score_cost: What scoring an example costs in forwards, where it is no fresh one.

    Attributes:
        strategy: The run's.
        stream: All examples, in the order of the seed.
        uses: float32[N], how often each example was trained on, where that is counted.
        score_cost: As given.
        loss: ``loss(inputs, labels)``, the mean that is to be run backward; the strategy's rule
            gets what it learns from.
    """

    def __init__(
        self,
        run: Run,
        settings: Settings,
        data: DataSet,
        model: nn.Module,
        device: torch.device,
        length: Length,
        clock: PhaseClock,
        scores: Tensor | None = None,
        counts_uses: bool = False,
        score_cost: float = 1.0,
    ) -> None:
        strategy = self.strategy = strategies.find(run.strategy)
        settings = strategy.warmed(settings)
        self._run, self._settings, self._data = run, settings, data
        self._model, self._device, self._length, self._clock = model, device, length, clock
        self._scores = scores
        # What training calls; shapes are few, as all of its batches are full, but for texts.
        self._call = model
        of_images = isinstance(data, ImageData)
        if settings.compile:
            dynamic = False if of_images else None
            self._call = cast(nn.Module, torch.compile(model, dynamic=dynamic))
        self._losses = partial(example_losses, smoothing=settings.label_smoothing)
        self._epoch_examples = len(data.train_labels) // settings.batch_size * settings.batch_size
        augment = None
        if isinstance(data, ImageData):
            augment = replace(data.augmentation, cutout=settings.cutout)
        size = self._selection_batch = strategy.selection_batch(run.keep, settings)
        indexed = counts_uses or any((strategy.rule, strategy.irreducible, strategy.tokens))
        self.uses = torch.zeros(len(data.train_labels)) if counts_uses else None
        self.stream = BatchStream(
            data, size, run.seed, augment, device, settings.channels_last, indexed
        )
        self.loss: Callable[[Tensor, Tensor], Tensor] = self._loss_of_all
        self.score_cost = score_cost
        self._epoch = 0
        self._mixed = 0  # batches
        self._surplus = 0.0  # what lengths of texts add to the cost of as many mean examples
        self._loader: SelectiveLoader | None = None
        self._stats = Stats()
        self._scorer: Scorer | None = None  # where it is not the exact one
        self._replica: Pipelined | None = None
        self._sift: SinglePass | None = None
        self._tokens: TokenSelection | None = None
        self._positions = torch.arange(0)  # of the batch that the stream gave last
        self._exact = Fresh(autocast=autocast_of(settings), compile=settings.compile)
        self._padding = None if of_images else PADDING
        if strategy.single_pass:
            self._sift = self._single_pass()
            self.loss = partial(self._kept_loss, self._sift)
        elif strategy.selector is not None or strategy.rule is not None:
            self._loader = self._selective()
            self._stats = self._loader.stats
            rule, selector = self._loader.memory, self._loader.selector
            if learns(rule) or (selector is not None and selector.reweights):
                self.loss = partial(self._recorded_loss, self._loader)
        elif strategy.tokens is not None:
            self._tokens = TokenSelection(
                strategy.tokens,
                run.keep,
                model,
                data,
                run.seed,
                reference=scores,
                compiled=settings.compile,
                **self._in_steps(),
            )
            self.loss = partial(self._token_loss, self._tokens)
        elif strategy.weighted is not None:
            self.loss = partial(self._weighted_loss, strategy.weighted)
        if settings.mixup:
            self.loss = self._mixed_loss

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches, epoch after epoch, until the training is over."""
        while True:
            source = self._source
            if self._sift is not None:  # whose kept rows fill a batch once it selects
                warm = self._epoch < whole_epochs(self._settings)
                self.stream.resize(self._settings.batch_size if warm else self._selection_batch)
            source.set_epoch(self._epoch)
            for batch in self._streamed() if source is self.stream else source:
                yield batch
                if self.is_over:
                    return
            if self._loader is not None and self.strategy.forwards_left_out:
                self._forward_left_out(self._loader)
            self._epoch += 1
            if self.is_over:
                return

    def count_uses(self) -> None:
        """Counts the examples that the last loss was of, where that is asked for."""
        if self.uses is None:
            return
        if self._loader is not None:
            used = self._loader.indices  # one that was carried may be there twice
        elif self._sift is None:
            used = self._positions
        else:
            used = self._positions[self._sift.selection.positions.cpu()]
        self.uses.index_add_(0, used, torch.ones(len(used)))

    @property
    def stats(self) -> Stats | SinglePassStats:
        """What was done so far, in examples."""
        return self._stats if self._sift is None else self._sift.stats

    @property
    def kept_share(self) -> float:
        """Share kept of the examples that selection decided on, or of their tokens."""
        return self.stats.kept_share if self._tokens is None else self._tokens.kept_share

    @property
    def cost(self) -> float:
        """Cost so far in forwards of the mean example, selection's at their price."""
        cost: float = FORWARD * self.stats.forwards + BACKWARD * self.stats.backwards
        cost += self._surplus
        if self._tokens is not None:
            cost -= self._tokens.saved
        if self.score_cost != 1:
            cost += (self.score_cost - FORWARD) * self._stats.scored
        if isinstance(self._scorer, Proxy):  # whose training costs in proportion
            cost += self.score_cost * (FORWARD + BACKWARD) * self._scorer.backwards
        return cost

    @property
    def epochs(self) -> float:
        """Epochs of source examples done, a fraction where training is within one."""
        return self.stats.seen / self._epoch_examples

    @property
    def done(self) -> float:
        """Share of the training done, in [0, 1]: of its source examples, its cost or its time."""
        return self._length.done(self._spent)

    @property
    def moved(self) -> float:
        """How far the learning rate is, in [0, 1]: by what was seen, or by what was trained on."""
        if self._settings.rate_by == "seen":
            return self.done
        of_an_epoch = 1 / self._epoch_examples
        if self._length.kind == "cost":
            of_an_epoch = FORWARD + BACKWARD
        return min(self.stats.backwards * of_an_epoch / self._length.amount, 1.0)

    @property
    def is_over(self) -> bool:
        """Whether the training ends."""
        return self._length.is_over(self._spent)

    @property
    def lr_scale(self) -> float:
        """What the strategy multiplies the learning rate with."""
        return 1.0 if self._loader is None else self._loader.lr_scale

    @property
    def selecting(self) -> float:
        """Seconds that selection took so far; waiting for a replica's scores is loading's."""
        of_tokens = 0.0 if self._tokens is None else self._tokens.seconds
        replicas = 0.0 if self._replica is None else self.refreshing
        return self.stats.seconds_selection + replicas + of_tokens

    @property
    def refreshing(self) -> float:
        """Seconds that the scorer took so far to copy weights, or to train a model of its own."""
        if self._replica is not None:
            return self._replica.seconds_sync
        return float(getattr(self._scorer, "seconds_refresh", 0.0))

    def agreement(self) -> float | None:
        """Of the scores it selects by with the losses as they are, where those are others."""
        scores: Scorer | Tensor | None = self._scorer
        if self._loader is not None and self._loader.memory is not None:
            scores = self._loader.memory.scores(self._loader.epoch)
        elif self._replica is not None:  # any place gives the scores that the process gives
            scores = Replica(self._model, self._losses, self._exact, place=self._device)
        if scores is None:
            return None
        exact = Fresh(autocast=autocast_of(self._settings))
        return live_agreement(scores, exact, self._model, self.stream.plain(SAMPLE), self._losses)

    @property
    def guard(self) -> NoiseGuard | None:
        """What holds back examples that seem mislabelled, of a strategy that has it."""
        rule = None if self._loader is None else self._loader.memory
        return None if rule is None else rule.guard

    def close(self) -> None:
        """Ends what runs elsewhere."""
        if self._replica is not None:
            self._replica.close()

    def state_dict(self) -> dict[str, Any]:
        """All that decides which batches come next, and what was counted; for ``torch.save``.

        Training is then done with the batch it was given.
        """
        source = self._source.state_dict()  # which ends the step that is counted
        return {
            "epoch": self._epoch,
            "mixed": self._mixed,
            "surplus": self._surplus,
            "uses": self.uses,
            "source": source,
            "single_pass": None if self._sift is None else self._sift.get_extra_state(),
            "tokens": None if self._tokens is None else self._tokens.state_dict(),
            "stats": asdict(self.stats),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same run."""
        self._epoch, self._mixed = state["epoch"], state["mixed"]
        self._surplus = state["surplus"]
        self.uses = None if self.uses is None else state["uses"].clone()
        self._source.load_state_dict(state["source"])
        if self._sift is not None:
            self._sift.set_extra_state(state["single_pass"])
        elif self._loader is None:  # which counts by itself
            vars(self._stats).update(state["stats"])
        if self._tokens is not None:
            self._tokens.load_state_dict(state["tokens"])

    @property
    def _source(self) -> SelectiveLoader | BatchStream:
        """What gives batches, and has the state of how."""
        return self.stream if self._loader is None else self._loader

    @property
    def _spent(self) -> Spent:
        return Spent(self.epochs, self.cost, self._clock.passed)

    def _selective(self) -> SelectiveLoader:
        """The stream, with the strategy's choice between it and training."""
        strategy, settings, choice = self.strategy, self._settings, dict[str, Any]()
        chosen_by = strategy.choice(self._run.keep, settings, self._data.classes)
        assert chosen_by is not None
        schedule = schedule_of(
            chosen_by, self._run.keep, strategy.tail, settings, done=lambda: self.done
        )
        if isinstance(chosen_by, EpochRule):
            choice = {"memory": chosen_by}
        else:
            self._scorer = self._cheap_scorer()
            choice = {"selector": chosen_by, "scorer": self._scorer or self._exact}
        return SelectiveLoader(
            self._pipelined() if strategy.pipelined else self.stream,
            self._model,
            losses=self._scored_losses,
            epochs=settings.epochs,
            # All batches full, and nothing kept is lost between epochs.
            pool=Pool(settings.batch_size, drop_last="carry", pad=self._padding),
            seed=self._run.seed,
            schedule=schedule,
            exact=False,  # as the papers draw
            **choice,
        )

    def _cheap_scorer(self) -> Scorer | None:
        """The strategy's scorer; None for fresh forward passes."""
        strategy = self.strategy
        if strategy.irreducible is not None:
            assert self._scores is not None
            return strategy.irreducible(self._settings, self._scores)  # of fresh passes
        if strategy.scorer is None:
            return None
        return strategy.scorer(self._settings, self._data)

    def _pipelined(self) -> Pipelined:
        """The stream, scored ahead by a replica whose process has been started."""
        self._replica = Pipelined(
            self.stream,
            self._model,
            losses=self._losses,
            threads=torch.get_num_threads(),
            scorer=self._exact,
        )
        next(iter(self._replica))  # its start is no part of training, which begins again
        return self._replica

    def _in_steps(self) -> dict[str, Any]:
        """When what selects within a step does so: the warm-up, and its steps in an epoch."""
        return {
            "schedule": Schedule(warmup=Epochs(whole_epochs(self._settings))),
            "steps_per_epoch": self._epoch_examples // self._settings.batch_size,
        }

    def _single_pass(self) -> "SinglePass":
        """The losses of a batch, of which the strategy's selector keeps some."""
        from siftback import SinglePass  # brings in the compiler, which takes its time

        selector = self.strategy.choice(self._run.keep, self._settings)
        assert not isinstance(selector, EpochRule)
        return SinglePass(
            self._model,
            losses=self._losses,
            selector=selector,
            **self._in_steps(),
            backend="inductor" if self._settings.compile else "graph",
            check=False,  # its models are this laboratory's own, and tested
            seed=self._run.seed,
        )

    def _scored_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The losses of a batch that is scored."""
        self._count_lengths(batch[0], FORWARD * self.score_cost)
        return self._losses(model, batch)

    def _count_lengths(self, inputs: Tensor, price: float) -> None:
        """Counts what examples cost beyond as many mean ones, at so many forwards of each."""
        sizes = self._data.sizes(inputs)
        if sizes is not None:
            self._surplus += price * (float(sizes.sum()) - len(sizes))

    def _kept_loss(self, sift: "SinglePass", inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of the rows that a single pass keeps."""
        loss: Tensor = sift(inputs, labels)
        self._count_lengths(inputs, FORWARD)
        self._count_lengths(inputs[sift.selection.positions], BACKWARD)
        return loss

    def _recorded_loss(self, loader: SelectiveLoader, inputs: Tensor, labels: Tensor) -> Tensor:
        """The weighted mean loss; the losses of the examples are recorded."""
        self._count_lengths(inputs, FORWARD + BACKWARD)
        if loader.memory is not None and loader.memory.needs_predictions:
            each, correct, confidence = self._predict(inputs, labels)
            return loader.loss(each, correct=correct, confidence=confidence)
        return loader.loss(self._losses(self._call, (inputs, labels)))

    def _token_loss(self, tokens: TokenSelection, inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of the tokens that are kept."""
        self._count_lengths(inputs, FORWARD + BACKWARD)
        return tokens.loss(inputs, labels, self._positions)

    def _weighted_loss(
        self, weighted: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, labels: Tensor
    ) -> Tensor:
        """The loss of a batch whose losses are weighted."""
        self._count_lengths(inputs, FORWARD + BACKWARD)
        return weighted(self._call(inputs), labels)

    def _mixed_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of mixed images against both labels, each of its own example's weight."""
        if self._loader is None:
            weights = torch.ones(len(labels), device=labels.device)
        else:
            weights = self._loader.weights
        mixed, partners, share = mix(images, self._settings.mixup, self._run.seed, self._mixed)
        self._mixed += 1
        outputs = self._call(mixed)
        own, other = (
            F.cross_entropy(
                outputs,
                labels[rows],
                reduction="none",
                label_smoothing=self._settings.label_smoothing,
            )
            * weights[rows]
            for rows in (torch.arange(len(labels), device=labels.device), partners)
        )
        return (share * own + (1 - share) * other).mean()

    def _predict(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Losses, whether each guess is right, of a window all of them, and its probability."""
        outputs = (self._call if self._model.training else self._model)(inputs)
        confidence, guess = outputs.detach().float().softmax(-1).max(-1)
        right = guess == labels
        if labels.ndim == 2:
            right, confidence = right.all(1), confidence.mean(1)
        each = cross_entropies(outputs, labels, self._settings.label_smoothing)
        return each, right, confidence

    @torch.no_grad()
    def _forward_left_out(self, loader: SelectiveLoader) -> None:
        """Has what was left out of an epoch remembered as the model now sees it."""
        started = time.perf_counter()
        self._model.eval()
        for indices in torch.split(loader.left_out, self._settings.batch_size):
            if self.is_over:  # no epoch will be drawn by it
                break
            with autocast_context(self._settings, self._device):
                inputs, labels = self.stream.plain_of(indices)
                each, correct, confidence = self._predict(inputs, labels)
            self._count_lengths(inputs, FORWARD)
            loader.record(each, correct=correct, confidence=confidence, indices=indices)
            self._stats.scored += len(indices)
        self._model.train()
        self._stats.seconds_selection += time.perf_counter() - started

    def _streamed(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The stream without the indices that may come with it, counted as a loader would."""
        for batch in self.stream:
            if self.stream.indexed:
                self._positions, batch = batch
            self._stats.seen += len(batch[1])
            self._stats.released += len(batch[1])
            yield batch

    def _loss_of_all(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self._count_lengths(inputs, FORWARD + BACKWARD)
        return mean_loss(self._call, (inputs, labels), self._settings.label_smoothing)
