"""Selection before an example is read: rules that draw each epoch by what training taught."""

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from siftback import EpochRule, Epochs, Memory, NoiseGuard, Schedule, Share
from siftback.errors import ConfigError
from siftback.lab.data.stream import Batch
from siftback.lab.forward import autocast_context, losses_of_outputs
from siftback.lab.length import FORWARD
from siftback.lab.settings import Settings
from siftback.lab.strategies.strategy import LoaderBatches, ProgressSchedule


class BeforeReading(LoaderBatches):
    """Batches of the examples that a rule draws for each epoch."""

    def selection(self) -> dict[str, Any]:
        """Returns the loader's arguments: the stream, the rule and its schedule."""
        job = self.job
        self.rule: EpochRule = job.strategy.choice(job.run.keep, job.settings, job.data.classes)
        if self.rule.needs_labels:
            self.rule.set_labels(job.data.train_labels)
        if job.strategy.balanced:
            labels = job.data.train_labels
            self.rule.set_base_weights(1.0 / labels.bincount()[labels])
        self.rule.schedule = self._schedule()
        self.records_losses = self.rule.learns
        return {"loader": self.stream, "memory": self.rule}

    def _schedule(self) -> Schedule:
        """Returns when the rule is on: as it says itself, where it knows best."""
        job, settings = self.job, self.job.settings
        if self.rule.needs_passes:
            return Schedule(warmup=Epochs(settings.whole_warmup))
        tail, length = job.strategy.tail_share(settings), settings.epochs or settings.budget
        if not job.strategy.own_schedule or not length:
            whole = length if job.strategy.schedule else None  # the library draws whole epochs
            until = math.ceil(round((1 - tail) * whole, 6)) / whole if whole else 1 - tail
            return ProgressSchedule(self.done, settings.warmup or Epochs(0), until)
        if not settings.budget:
            return self.rule.schedule
        first = settings.whole_warmup  # of the passes that begin within it, as the rule has it
        selective = (settings.budget - first - tail * settings.budget) / job.run.keep
        end = Epochs(first + max(1, round(selective))) if tail else None
        return Schedule(warmup=Epochs(first), end=end)

    def batches_of_epoch(self) -> Iterator[Batch]:
        """Yields the rest of the current epoch, and forwards what was left out where asked."""
        yield from self.loader
        if self.job.strategy.forwards_left_out:
            self._forward_left_out()

    def predict(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Returns losses, and the predictions that the rule needs besides.

        They are whether each guess is right, of a window all, and its probability.
        """
        model = self.job.model
        outputs = (self.call if model.training else model)(inputs)
        losses = losses_of_outputs(outputs, labels, self.job.settings.label_smoothing)
        if not self.rule.needs_predictions:
            return losses, {}
        confidence, guess = outputs.detach().float().softmax(-1).max(-1)
        right = guess == labels
        if labels.ndim == 2:
            right, confidence = right.all(1), confidence.mean(1)
        return losses, {"correct": right, "confidence": confidence}

    @torch.no_grad()
    def _forward_left_out(self) -> None:
        """Has the rule remember the examples left out of an epoch as the model now sees them."""
        job, started = self.job, time.perf_counter()
        job.model.eval()
        for indices in torch.split(self.loader.left_out, job.settings.batch_size):
            if self.is_over():  # no epoch will be drawn by it
                break
            with autocast_context(job.settings, job.device):
                inputs, labels = self.stream.batch_of(indices)
                losses, predictions = self.predict(inputs, labels)
            self.count_lengths(inputs, FORWARD)
            self.loader.record(losses, indices=indices, **predictions)
            self.loader.stats.scored += len(indices)
        job.model.train()
        self.loader.stats.seconds_selection += time.perf_counter() - started

    def agreement(self) -> float | None:
        """Returns how the scores that the rule draws by agree with fresh losses."""
        scores = self.rule.scores(self.loader.epoch)
        return None if scores is None else self.agreement_of(scores)

    @property
    def guard(self) -> NoiseGuard | None:  # type: ignore[override]
        """The guard that holds back examples that seem mislabelled, where the rule has it."""
        return self.rule.guard


class AnnealedMemory(Memory):
    """`Memory` with unbiased loss weights, which rise from none to whole.

    A weight v counts as v^a, where a rises from 0 to 1 in a straight line (as in Schaul et al.
    2016).

    Args:
        keep: Share of the examples in an epoch.
        epochs: After how many epochs a is 1.
        options: More arguments of `Memory`, except a guard.
    """

    setting_names = ("epochs",)  # type: ignore[assignment]

    def __init__(self, keep: float, *, epochs: float, **options: Any) -> None:
        super().__init__(keep, unbiased=True, **options)
        self.epochs = epochs

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """As `Memory` draws, with the weights of the epoch."""
        weights = super().draw(epoch, generator)
        drawn = weights > 0  # as the weights of those left out would be 0^0 = 1 at first
        return drawn * weights ** min(1.0, epoch / max(self.epochs, 1.0))


def annealed_memory(keep: float, settings: Settings) -> Memory:
    """Returns a memory whose weights are whole once the training ends."""
    epochs = settings.epochs
    if settings.budget:  # as `BeforeReading` spreads it
        warmup = settings.whole_warmup
        epochs = warmup + (settings.budget - warmup) / keep
    if not epochs:
        raise ConfigError("its weights rise over a known number of epochs: give epochs or budget")
    return AnnealedMemory(keep, epochs=epochs - 1, **memory_options(settings))


def memory_options(settings: Settings) -> dict[str, Any]:
    """Returns the options of `Memory` that settings say."""
    return {
        "floor": settings.floor,
        "warmup": settings.warmup or Epochs(0),
        "tail": Share(settings.tail or 0.0),
        "decay": settings.decay,
    }
