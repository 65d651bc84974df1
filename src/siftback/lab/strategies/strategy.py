"""A strategy, and the batches of a run: of every example, or of those that a loader selects."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import siftback
from siftback.lab.data.augment import mix
from siftback.lab.data.data_set import KINDS, DataSet, ImageData, Kind, TextData
from siftback.lab.data.stream import PADDING, Batch
from siftback.lab.forward import autocast_of, batch_stream, example_losses, mean_loss
from siftback.lab.length import BACKWARD, FORWARD, Length, PhaseClock
from siftback.lab.settings import Run, Settings

AN_EPOCH = siftback.Epochs(1)

OWN_SHARE = 0.5
"""The share in the names of runs by a strategy that finds its share itself, whatever was asked."""

SAMPLE = 2000  # examples whose scores are compared with losses

TokenScore = Literal["loss", "reference", "memory", "entropy", "random"]
"""The score that tokens are selected by, the highest first."""


@dataclass(frozen=True)
class IdealCost:
    """The ideal cost of one source example: a forward counts 1, a backward 2.

    With s the share kept, n the epochs from one selection pass to the next, and r what a score
    costs in forwards, it is ``offered * r / n + proxy * r * s + kept * s``. As text, numbers
    stand for themselves and s, n and r for what the settings or a measurement say.

    Attributes:
        kept: Forwards that each kept example costs.
        offered: Forwards that each example costs, kept or not.
        interval: n, where it is fixed; None leaves it to the settings.
        cheap_scores: Whether a score costs r forwards in place of one.
        proxy: Forwards of a smaller model, of r each, that each kept example costs.
        note: What the number leaves out, in words.

    >>> str(IdealCost(3, offered=1)), str(IdealCost(3, offered=1, interval=None))
    ('1 + 3s', '1/n + 3s')
    >>> IdealCost(3, offered=1, interval=None).amount(keep=0.5, stale_every=2)
    2.0
    """

    kept: float = 0.0
    offered: float = 0.0
    interval: int | None = 1
    cheap_scores: bool = False
    proxy: float = 0.0
    note: str = ""

    def amount(self, keep: float, stale_every: int = 3) -> float:
        """Returns the number of forwards where r, what a score costs, is one forward.

        Args:
            keep: s, the share kept.
            stale_every: n, where it is not fixed.
        """
        return self.offered / (self.interval or stale_every) + (self.proxy + self.kept) * keep

    def __str__(self) -> str:
        interval = "" if self.interval == 1 else f"/{self.interval or 'n'}"
        terms = {
            "r" if self.cheap_scores else f"{self.offered:g}{interval}": self.offered,
            f"{self.proxy:g}rs": self.proxy,
            f"{self.kept:g}s": self.kept,
        }
        text = " + ".join(term for term, forwards in terms.items() if forwards)
        return ", ".join(filter(None, (text, self.note)))


class Job(NamedTuple):
    """The run that batches are made for.

    Attributes:
        run: Name, share to keep and seed.
        strategy: The run's.
        settings: Those of the comparison, with the strategy's warm-up.
        data: What is trained on.
        model: The model, for selection passes and for the loss.
        device: Where it is.
        length: How long the training is.
        clock: The training's, not yet started.
        scores: float32[N], of the examples, for a strategy that needs them before it trains.
        counts_uses: Whether to count how often each example is trained on.
        score_cost: What scoring an example costs in forwards, where it is no fresh one.
    """

    run: Run
    strategy: "Strategy"
    settings: Settings
    data: DataSet
    model: nn.Module
    device: torch.device
    length: Length
    clock: PhaseClock
    scores: Tensor | None = None
    counts_uses: bool = False
    score_cost: float = 1.0

    def progress_in_steps(self) -> dict[str, Any]:
        """Returns the warm-up and the steps of an epoch, for selection within a step."""
        return {
            "schedule": siftback.Schedule(warmup=siftback.Epochs(self.settings.whole_warmup)),
            "steps_per_epoch": len(self.data.train_labels) // self.settings.batch_size,
        }


class TrainingBatches:
    """The batches of a run that trains on every example, their loss and their cost.

    Strategies that select override what is other for them. An iteration goes through epoch after
    epoch until the training is over.

    Args:
        job: The run.

    Attributes:
        stream: All examples, in the order of the seed.
        source: Gives the batches, and holds the state of their order.
        stats: Counts of examples so far.
        uses: float32[N], how often each example was trained on; None where that is not counted.
    """

    fills_batches = False  # with the rows that it keeps of larger ones
    lr_scale = 1.0  # of a strategy that changes the rate
    refreshing = 0.0  # seconds that the scorer took to copy or train its model
    guard: siftback.NoiseGuard | None = None

    def __init__(self, job: Job) -> None:
        self.job = job
        settings, data = job.settings, job.data
        augment = None
        if isinstance(data, ImageData):
            augment = replace(data.augmentation, cutout=settings.cutout)
        self.call = job.model
        if settings.compile:
            # Shapes are few, as all batches are full, except those of texts.
            dynamic = None if augment is None else False
            self.call = cast(nn.Module, torch.compile(job.model, dynamic=dynamic))
        self.losses = partial(example_losses, smoothing=settings.label_smoothing)
        size, seed = job.strategy.selection_batch(job.run.keep, settings), job.run.seed
        self.stream = batch_stream(settings, data, size, seed, augment=augment, indexed=True)
        self.source: Any = self.stream
        self.stats: siftback.Stats | siftback.SinglePassStats = siftback.Stats()
        self.epoch_examples = len(data.train_labels) // settings.batch_size * settings.batch_size
        self.uses = torch.zeros(len(data.train_labels)) if job.counts_uses else None
        self.epoch = 0
        self.positions = torch.arange(0)  # of the stream's last batch
        self._mixed = 0  # batches
        self._surplus = 0.0  # cost that lengths of texts add to that of mean examples

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.source.set_epoch(self.epoch)
            for batch in self.batches_of_epoch():
                yield batch
                if self.is_over():
                    return
            self.epoch += 1
            if self.is_over():
                return

    def batches_of_epoch(self) -> Iterator[Batch]:
        """Yields the rest of the current epoch, counted as a loader would."""
        assert isinstance(self.stats, siftback.Stats)
        for indices, batch in self.stream:
            self.positions = indices
            self.stats.seen += len(batch[1])
            self.stats.released += len(batch[1])
            yield batch

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss to run backward, after the strategy has learned from it."""
        if self.job.settings.mixup:
            return self._mixed_loss(inputs, labels)
        return self.plain_loss(inputs, labels)

    def plain_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of a batch that is not mixed."""
        self.count_lengths(inputs, FORWARD + BACKWARD)
        if weighted := self.job.strategy.weighted:
            return weighted(self.call(inputs), labels)
        return mean_loss(self.call, (inputs, labels), self.job.settings.label_smoothing)

    def count_lengths(self, inputs: Tensor, price: float) -> None:
        """Counts what texts cost beyond mean ones, at this many forwards of each."""
        sizes = self.job.data.sizes(inputs)
        if sizes is not None:
            self._surplus += price * (float(sizes.sum()) - len(sizes))

    def weights(self, labels: Tensor) -> Tensor:
        """float[B], the weights of the last batch's losses."""
        return torch.ones(len(labels), device=labels.device)

    def _mixed_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of mixed images against both labels, each of its example's weight."""
        smoothing = self.job.settings.label_smoothing
        weights = self.weights(labels)
        mixed, others, share = mix(images, self.job.settings.mixup, self.job.run.seed, self._mixed)
        self._mixed += 1
        outputs = self.call(mixed)
        first, second = (
            F.cross_entropy(outputs, labels[rows], reduction="none", label_smoothing=smoothing)
            * weights[rows]
            for rows in (torch.arange(len(labels), device=labels.device), others)
        )
        return (share * first + (1 - share) * second).mean()

    def used_indices(self) -> Tensor:
        """int64[n], the examples of the last loss."""
        return self.positions

    def count_uses(self) -> None:
        """Counts the examples of the last loss, where the run asks for it."""
        if self.uses is not None:
            used = self.used_indices()  # where an example that was carried may be twice
            self.uses.index_add_(0, used, torch.ones(len(used)))

    @property
    def kept_share(self) -> float:
        """Share kept of the examples that selection decided on, or of their tokens."""
        return self.stats.kept_share

    @property
    def cost(self) -> float:
        """Cost so far in forwards of the mean example."""
        return self.stats.cost + self._surplus

    @property
    def epochs(self) -> float:
        """Epochs of source examples done, a fraction where training is within one."""
        return self.stats.seen / self.epoch_examples

    @property
    def spent(self) -> tuple[float, float, float]:
        """Epochs, cost and seconds so far."""
        return self.epochs, self.cost, self.job.clock.passed

    def done(self) -> float:
        """Returns the share of the training done: of its source examples, its cost or its time."""
        return self.job.length.done(*self.spent)

    def is_over(self) -> bool:
        """Returns whether the training ends."""
        return self.job.length.is_over(*self.spent)

    def rate_progress(self) -> float:
        """Returns how far the learning rate is, by what was seen, or by what was trained on."""
        if self.job.settings.rate_by == "seen":
            return self.done()
        length = self.job.length
        unit = FORWARD + BACKWARD if length.kind == "cost" else 1 / self.epoch_examples
        return min(self.stats.backwards * unit / length.amount, 1.0)

    @property
    def selecting(self) -> float:
        """Seconds that selection took so far; waiting for a replica's scores is loading's."""
        return self.stats.seconds_selection

    def agreement(self) -> float | None:
        """Returns how scores agree with fresh losses; None without scores of another kind."""
        return None

    def close(self) -> None:
        """Ends other processes."""

    def state_dict(self) -> dict[str, Any]:
        """Returns all that decides which batches come next, and the counts.

        Training is then done with its last batch.
        """
        source = self.source.state_dict()  # which ends the step that is counted
        return {
            "epoch": self.epoch,
            "mixed": self._mixed,
            "surplus": self._surplus,
            "uses": self.uses,
            "source": source,
            "stats": asdict(self.stats),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same run."""
        self.epoch, self._mixed = state["epoch"], state["mixed"]
        self._surplus = state["surplus"]
        self.uses = None if self.uses is None else state["uses"].clone()
        self.source.load_state_dict(state["source"])
        vars(self.stats).update(state["stats"])


class ProgressSchedule(siftback.Schedule):
    """On from a warm-up to a share of a training, whether it is of epochs, cost or time.

    Args:
        done: Tells the share that is done.
        warmup: From when on: `Epochs` of source examples, or a `Share` of the training.
        end: Up to which share.
    """

    def __init__(
        self, done: Callable[[], float], warmup: siftback.Epochs | siftback.Share, end: float = 1.0
    ) -> None:
        super().__init__(warmup=siftback.Epochs(0))
        self._done, self._start, self._end = done, warmup, end

    def is_on(
        self, epochs_done: float, epochs: float | None = None, batch: int | None = None
    ) -> bool:
        """Returns whether to select now; a share of the training does not depend on the epoch."""
        done = self._done()
        begun = epochs_done if isinstance(self._start, siftback.Epochs) else done
        return begun >= self._start.value and (self._end >= 1 or done < self._end)


class LoaderBatches(TrainingBatches):
    """The stream, with a `SelectiveLoader` between it and training.

    Attributes:
        records_losses: Whether the loader records the losses of training, or weighs them.
    """

    records_losses = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        settings = job.settings
        self.exact = fresh_scorer(settings)
        padding = PADDING if isinstance(job.data, TextData) else None
        choice = self.selection()
        memory = choice.get("memory")
        if not memory or memory.needs_passes:
            choice["exact"] = False  # as the papers draw
        self.loader = self.source = siftback.SelectiveLoader(
            model=job.model,
            losses=self._scored_losses,
            epochs=settings.epochs,
            # All batches are full, and examples that fill none are carried to the next epoch.
            pool=siftback.Pool(settings.batch_size, drop_last="carry", pad=padding),
            seed=job.run.seed,
            shorter_epochs=memory is not None,  # whose cost is compared at equal backward passes
            on_nonfinite="keep",  # a training that diverges goes on to its end, as a plain one does
            **choice,
        )
        self.stats = self.loader.stats

    @abstractmethod
    def selection(self) -> dict[str, Any]:
        """Returns the loader's arguments that are the strategy's own."""

    def batches_of_epoch(self) -> Iterator[Batch]:
        """Yields the rest of the current epoch."""
        yield from self.loader

    def plain_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss, weighted and recorded where the strategy needs that."""
        if not self.records_losses:
            return super().plain_loss(inputs, labels)
        self.count_lengths(inputs, FORWARD + BACKWARD)
        losses, predictions = self.predict(inputs, labels)
        return self.loader.loss(losses, **predictions)

    def predict(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Returns losses, and the predictions that the loader needs besides."""
        return self.losses(self.call, (inputs, labels)), {}

    def weights(self, labels: Tensor) -> Tensor:
        """float[B], the weights of the last batch's losses."""
        return self.loader.weights

    def used_indices(self) -> Tensor:
        """int64[n], the examples of the last loss."""
        return self.loader.indices

    def _scored_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the losses of a batch that is scored."""
        self.count_lengths(batch[0], FORWARD * self.job.score_cost)
        return self.losses(model, batch)

    @property
    def lr_scale(self) -> float:  # type: ignore[override]
        """The factor of the learning rate that the rule asks for."""
        return self.loader.lr_scale

    def score_sample(self, scorer: siftback.Scorer) -> Tensor:
        """float32[n], a scorer's scores of the first training examples, not augmented."""
        rows = torch.split(torch.arange(self.stream.examples)[:SAMPLE], self.stream.batch_size)
        scored = [
            scorer.score(self.losses, self.job.model, self.stream.batch_of(indices), indices)
            for indices in rows
        ]
        return torch.cat(scored).cpu()

    def agreement_of(self, scores: Tensor) -> float | None:
        """Returns the rank correlation (Spearman) of scores with fresh losses, in [-1, 1].

        Those are of the first training examples, by a forward pass that is not compiled.

        Args:
            scores: float32[N], NaN where there is none.

        Returns:
            None where less than two of the examples have a score, or all have the same score or
            loss.
        """
        losses = self.score_sample(siftback.Fresh(autocast=autocast_of(self.job.settings)))
        columns = {"score": scores[: len(losses)].cpu().numpy(), "loss": losses.numpy()}
        correlation = float(pd.DataFrame(columns).corr("spearman").loc["score", "loss"])
        return None if math.isnan(correlation) else correlation


def fresh_scorer(settings: Settings) -> siftback.Fresh:
    """Returns the scorer that forwards each batch as training does."""
    return siftback.Fresh(autocast=autocast_of(settings), compile=settings.compile)


@dataclass(frozen=True)
class Strategy:
    """A named way to train.

    Attributes:
        name: Its name on the command line.
        summary: What it does, in one line.
        cost: Its ideal cost of one source example.
        moment: When it selects, as the class of its batches.
        build: Makes, from the share to keep and the settings, the selector or the rule that
            chooses among the examples; None where it trains on every one, or all left by pruning.
        scorer: Makes a scorer from the settings, the data and the scores that `prior` names; None
            for a fresh forward pass.
        prior: Name of the score that each example has before training: "el2n" to prune by,
            "irreducible" or "token-irreducible" for the scores of batches; "" for none.
        guardable: Whether the settings may have its rule hold back mislabelled examples.
        guarded: Whether it does so in any case.
        balanced: Whether its rule draws all classes equally often.
        own_schedule: Whether the rule says itself when it selects, so that its counts are exact.
        has_own_share: Whether the rule finds the share to keep itself, whatever is asked for.
        forwards_left_out: Whether examples left out of an epoch are forwarded after it, as its
            paper does, so that what is remembered of them stays fresh.
        warmup: How long it trains on everything at first, if the settings do not say. By default
            one epoch, as the authors of Selective-Backprop had it; strategies that choose in
            batches at random have it too, so that they differ by what they choose alone.
        tail: The last share of training on everything, as its paper has it; the settings may ask
            for another. Only of rules.
        schedule: Says when the tail begins in a training of a known number of epochs.
        prunes: The most of the examples that it prunes by EL2N before training, where the share to
            keep leaves as many out. The selector keeps its share of what is left.
        weighted: Computes, from logits and labels, the loss of a batch whose losses it weighs.
        tokens: The score by which it selects the tokens of each batch.
        kinds: The kinds of examples that it trains on.
        library: The call of the library that does the same in a loop of one's own, for
            `str.format` with ``keep``, the share to keep, ``left_out``, the rest, and ``root``,
            the square root of the share; "" where there is no single one.
    """

    name: str
    summary: str
    cost: IdealCost
    moment: type[TrainingBatches] = TrainingBatches
    build: Callable[[float, Settings], siftback.Selector | siftback.EpochRule] | None = None
    scorer: Callable[[Settings, DataSet, Tensor | None], siftback.Scorer] | None = None
    prior: str = ""
    guardable: bool = False
    guarded: bool = False
    balanced: bool = False
    own_schedule: bool = False
    has_own_share: bool = False
    forwards_left_out: bool = False
    warmup: siftback.Epochs | siftback.Share = AN_EPOCH
    tail: float = 0.0
    schedule: siftback.Schedule | None = None
    prunes: float = 0.0
    weighted: Callable[[Tensor, Tensor], Tensor] | None = None
    tokens: TokenScore | None = None
    kinds: tuple[Kind, ...] = tuple(KINDS)
    library: str = ""

    @property
    def selects(self) -> bool:
        """Whether it leaves examples out, or tokens."""
        return any((self.build, self.prunes, self.tokens))

    def tail_share(self, settings: Settings) -> float:
        """Returns the last share of a training that is on everything."""
        if settings.tail is not None:
            return settings.tail
        length = settings.epochs or settings.budget
        if not (self.schedule and length):
            return self.tail
        return round(max(0.0, 1 - self.schedule.span(length)[1] / length), 9)

    def warmed(self, settings: Settings) -> Settings:
        """Returns settings that say how long it trains on everything, at first and at the end.

        Raises:
            ConfigError: If that leaves no training to select in.
        """
        if not self.selects:
            return settings
        warmup = self.warmup if settings.warmup is None else settings.warmup
        return replace(settings, warmup=warmup, tail=self.tail_share(settings))

    def has_guard(self, settings: Settings) -> bool:
        """Whether it holds back examples that seem mislabelled."""
        return self.guarded or (self.guardable and settings.noise_guard)

    def choice(self, keep: float, settings: Settings, classes: int = 2) -> Any:
        """Returns the selector or rule that chooses examples; None if all that are left stay.

        Args:
            keep: The share to keep.
            settings: Those of the run.
            classes: The data's, for a noise guard; where nothing is drawn it may be left out.

        Raises:
            ConfigError: If it cannot have the share to keep, or the settings.
        """
        if self.build is None:
            return None
        choice = self.build(self.kept_of_left(keep), self.warmed(settings))
        if isinstance(choice, siftback.EpochRule) and self.has_guard(settings):
            choice.guard = siftback.NoiseGuard(classes)
        return choice

    def kept_of_left(self, keep: float) -> float:
        """Returns the share to keep of what pruning leaves, from the share to keep of all."""
        return min(1.0, keep / (1 - self.dropped(keep)))

    def selection_batch(self, keep: float, settings: Settings) -> int:
        """Returns the examples in each batch that it chooses among."""
        size = settings.batch_size
        return round(size / self.kept_of_left(keep)) if self.moment.fills_batches else size

    def dropped(self, keep: float) -> float:
        """Returns the share of the examples pruned before training."""
        return min(self.prunes, 1 - keep)

    def score(self, keep: float) -> str:
        """Returns the score that it needs of each example before it trains; "" for none."""
        return "" if self.prunes and not self.dropped(keep) else self.prior


def learns(choice: siftback.Selector | siftback.EpochRule | None) -> bool:
    """Returns whether examples are chosen by a rule that goes by training's own losses.

    >>> from siftback import RS2, Memory, Uniform
    >>> learns(RS2(0.5)), learns(Memory(0.5)), learns(Uniform(keep=0.5))
    (False, True, False)
    """
    return isinstance(choice, siftback.EpochRule) and choice.learns
