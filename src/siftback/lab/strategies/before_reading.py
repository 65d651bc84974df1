"""Selection before an example is read: rules that draw each epoch by what training taught."""

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
from siftback.lab.strategies.strategy import LoaderBatches, ProgressSchedule, rank_agreement


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
        tail = job.strategy.tail_share(settings)
        if not job.strategy.own_schedule or (settings.epochs or settings.budget) is None:
            return ProgressSchedule(self.done, settings.warmup or Epochs(0), 1 - tail)
        if settings.budget is None:
            return self.rule.schedule
        warmup = warmup_share(settings, settings.budget)
        first = round(warmup * settings.budget)
        selective = (1 - warmup - tail) * settings.budget / job.run.keep
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
        return None if scores is None else rank_agreement(scores, self.fresh_losses(self.sample()))

    @property
    def guard(self) -> NoiseGuard | None:  # type: ignore[override]
        """The guard that holds back examples that seem mislabelled, where the rule has it."""
        return self.rule.guard


class WeightedMemory(Memory):
    """`Memory`, with loss weights that undo the bias of its draws.

    An example that is drawn with probability p has the weight ``(k / (N p))^a``. With a = 1 the
    expected mean loss of a draw of k of N examples is the mean over all of them: importance
    sampling. With a = 0 there are no weights, as in `Memory` itself. A log-loss measures
    probabilities, which a biased draw shifts; the error does not.

    Args:
        keep: Share of the examples in an epoch.
        epochs: After how many epochs a has risen from 0 to 1, in a straight line (as in Schaul et
            al. 2016); None has it at 1 from the beginning.
        options: More arguments of `Memory`, except a guard.

    >>> memory = WeightedMemory(keep=0.5, floor=0.0)
    >>> memory.grow(4)
    >>> memory.update(torch.arange(4), torch.tensor([4.0, 1.0, 3.0, 2.0]), epoch=0)
    >>> memory.draw(1, torch.Generator().manual_seed(0))
    tensor([0.5714, 0.0000, 0.0000, 1.3333])
    """

    setting_names = ("epochs",)  # type: ignore[assignment]

    def __init__(self, keep: float, *, epochs: float | None = None, **options: Any) -> None:
        super().__init__(keep, **options)
        self.epochs = epochs

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """As `Memory` draws, and with what weights."""
        drawn = super().draw(epoch, generator)
        exponent = 1.0 if self.epochs is None else min(1.0, epoch / max(self.epochs, 1.0))
        count = int(drawn.sum())
        weights = (count / self.examples / self._probabilities(count)) ** exponent
        return drawn * weights.float()

    def _probabilities(self, count: int) -> Tensor:
        """Of each example to be among the ``count`` drawn: float64[N]; 1 where no loss is known."""
        scores = self.values[:, 0]
        known = ~scores.isnan()
        left = count - int((~known).sum())
        probabilities = torch.ones(len(scores), dtype=torch.float64)
        if left <= 0 or not known.any():
            return probabilities
        _, indices, sizes = torch.unique(scores[known], return_inverse=True, return_counts=True)
        ends = sizes.cumsum(0).double() / sizes.sum()
        starts = ends - sizes.double() / sizes.sum()
        power = self.beta + 1
        # The mean of percentile^beta over the percentiles that equal losses share.
        means = (ends**power - starts**power) / (power * (ends - starts))
        of_known = (self.floor + (1 - self.floor) * means)[indices]
        # Those without a loss are drawn first, and leave fewer.
        probabilities[known] = (of_known * left / of_known.sum()).clamp(max=1.0)
        return probabilities


def warmup_share(settings: Settings, budget: float) -> float:
    """Returns the share of a training of a given budget that its warm-up takes."""
    warmup = settings.warmup or Epochs(0)
    return min(warmup.value / budget if isinstance(warmup, Epochs) else warmup.value, 1.0)


def annealed_memory(keep: float, settings: Settings) -> Memory:
    """Returns a memory whose weights are whole once the training ends."""
    epochs = settings.epochs
    if settings.budget is not None:  # as `BeforeReading` spreads it
        warmup = warmup_share(settings, settings.budget)
        epochs = settings.budget * (warmup + (1 - warmup) / keep)
    if epochs is None:
        raise ConfigError("its weights rise over a known number of epochs: give epochs or budget")
    return WeightedMemory(keep, epochs=epochs - 1, **memory_options(settings))


def memory_options(settings: Settings) -> dict[str, Any]:
    """Returns the options of `Memory` that settings say."""
    return {
        "floor": settings.floor,
        "warmup": settings.warmup or Epochs(0),
        "tail": Share(settings.tail),
        "decay": settings.decay,
    }
