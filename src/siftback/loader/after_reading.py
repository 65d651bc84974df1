"""One way to training batches: examples are chosen among those of each batch that was read.

DataLoader ─► batch ─► scorer ─► selector ─► pool ─► your forward ─► backward
"""

from dataclasses import dataclass

from siftback.batches.batch import Batch
from siftback.loader.pipeline import Pipeline
from siftback.loader.selection import BatchSelection


@dataclass(eq=False, kw_only=True)
class ScoringPipeline(Pipeline):
    """Training batches of the examples that a selector keeps of each batch of a wrapped loader."""

    selection: BatchSelection

    def __post_init__(self) -> None:
        super().__post_init__()
        self.leaves_out_read = self.selection.leaves_out

    @property
    def share(self) -> float:
        """See `Pipeline.share`."""
        is_on = self.schedule.is_on(self.done, self.epochs)
        return self.schedule.keep(self.done, self.epochs, own=self.selection.keep) if is_on else 1.0

    def check_lengths(self) -> None:
        """Checks nothing: a sampler of PyTorch's follows a data set that grows."""

    def select(self, batch: Batch) -> Batch:
        """See `Pipeline.select`."""
        self.stats.seen += batch.size
        return self.select_by_scores(self.selection, batch)

    def plan_rows(self, number: int) -> tuple[int, bool]:
        """See `Pipeline.plan_rows`."""
        return self.scored_rows(self.selection, number)
