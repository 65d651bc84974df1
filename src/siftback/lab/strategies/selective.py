"""The batches of a run whose examples a `SelectiveLoader` selects, before or after reading."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from siftback import Epochs, Fresh, Pool, Schedule, Scorer, SelectiveLoader, Share
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.stream import PADDING, Batch
from siftback.lab.forward import autocast_of
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.strategies.strategy import Job, TrainingBatches

SAMPLE = 2000  # examples whose scores are compared with losses


class ProgressSchedule(Schedule):
    """On from a warm-up to a share of a training, whether it is of epochs, cost or time.

    Args:
        done: Tells the share that is done.
        warmup: From when on: `Epochs` of source examples, or a `Share` of the training.
        end: Up to which share.
    """

    def __init__(self, done: Callable[[], float], warmup: Epochs | Share, end: float = 1.0) -> None:
        super().__init__(warmup=Epochs(0))
        self._done, self._start, self._end = done, warmup, end

    def is_on(
        self, epochs_done: float, epochs: float | None = None, batch: int | None = None
    ) -> bool:
        """Returns whether to select now; a share of the training does not depend on the epoch."""
        done = self._done()
        begun = epochs_done if isinstance(self._start, Epochs) else done
        return begun >= self._start.value and (self._end >= 1 or done < self._end)


class LoaderBatches(TrainingBatches):
    """The stream, with a `SelectiveLoader` between it and training."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        settings = job.settings
        self.exact = Fresh(autocast=autocast_of(settings), compile=settings.compile)
        images = isinstance(job.data, ImageData)
        self.loader = self.source = SelectiveLoader(
            model=job.model,
            losses=self._scored_losses,
            epochs=settings.epochs,
            # All batches are full, and examples that fill none are carried to the next epoch.
            pool=Pool(settings.batch_size, drop_last="carry", pad=None if images else PADDING),
            seed=job.run.seed,
            exact=False,  # as the papers draw
            **self.selection(),
        )
        self.stats = self.loader.stats

    @abstractmethod
    def selection(self) -> dict[str, Any]:
        """Returns the loader's arguments that are the strategy's own."""

    @abstractmethod
    def records_losses(self) -> bool:
        """Returns whether the loader records the losses of training, or weighs them."""

    def batches_of_epoch(self) -> Iterator[Batch]:
        """Yields the rest of the current epoch."""
        yield from self.loader

    def plain_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss, weighted and recorded where the strategy needs that."""
        if not self.records_losses():
            return super().plain_loss(inputs, labels)
        self.count_lengths(inputs, FORWARD + BACKWARD)
        return self.recorded_loss(inputs, labels)

    def recorded_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss of losses that the loader records."""
        return self.loader.loss(self.losses(self.call, (inputs, labels)))

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

    def sample(self) -> Sequence[Batch]:
        """Returns the first training examples, not augmented."""
        return list(self.stream.plain(SAMPLE))

    def score_sample(self, scorer: Scorer, batches: Sequence[Batch]) -> Tensor:
        """float32[n], a scorer's scores of the sample."""
        indices = torch.arange(sum(len(labels) for _, labels in batches))
        rows = torch.split(indices, [len(labels) for _, labels in batches])
        scored = [
            scorer.score(self.losses, self.job.model, batch, positions)
            for batch, positions in zip(batches, rows, strict=True)
        ]
        return torch.cat(scored).cpu()

    def fresh_losses(self, batches: Sequence[Batch]) -> Tensor:
        """float32[n], the losses of the sample by a forward pass that is not compiled."""
        return self.score_sample(Fresh(autocast=autocast_of(self.job.settings)), batches)


def rank_agreement(scores: Tensor, losses: Tensor) -> float | None:
    """Returns the rank correlation (Spearman) of scores with losses of the first examples.

    Args:
        scores: float32[N], NaN where there is none.
        losses: float32[n].

    Returns:
        A number in [-1, 1]; None where less than two of the examples have a score, or all have
        the same score or loss.
    """
    count = min(len(scores), len(losses))
    pairs = torch.stack([scores[:count].cpu(), losses[:count]])
    pairs = pairs[:, ~pairs.isnan().any(0)]
    if pairs.shape[1] < 2 or (pairs.diff() == 0).all(1).any():
        return None
    from scipy.stats import spearmanr  # takes longer to import than all else here

    return float(spearmanr(*pairs.numpy()).statistic)
