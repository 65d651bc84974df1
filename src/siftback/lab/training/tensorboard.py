"""Evaluations as scalars for TensorBoard."""

from pathlib import Path

from siftback.errors import ConfigError
from siftback.lab.records.run_summary import Evaluation, RunSummary
from siftback.lab.training.progress import Reporter
from siftback.lab.training.settings import Run

TENSORBOARD = "tensorboard"  # the folder of a comparison's events

SCALARS = (
    "test_error", "test_loss", "train_loss", "agreement", "epoch", "examples", "cost", "seconds"
)  # fmt: skip


class TensorBoard:
    """Writes each evaluation's numbers, by steps; and passes on what it gets.

    Args:
        folder: Gets a folder of events for each run.
        reporter: Gets everything too.

    Raises:
        ConfigError: If the package ``tensorboard`` is missing.
    """

    def __init__(self, folder: Path, reporter: Reporter) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "--tensorboard needs the package of that name: "
                'pip install "siftback[tensorboard]", or leave it out'
            ) from None
        self._folder, self._reporter = folder, reporter
        self._open = SummaryWriter
        self._writer: SummaryWriter | None = None

    def start(self, run: Run, number: int, of: int) -> None:
        """See `Reporter`."""
        self._writer = self._open(str(self._folder / run.name))
        self._reporter.start(run, number, of)

    def scoring(self, done: float) -> None:
        """See `Reporter`."""
        self._reporter.scoring(done)

    def update(self, done: float) -> None:
        """See `Reporter`."""
        self._reporter.update(done)

    def evaluation(self, evaluation: Evaluation) -> None:
        """See `Reporter`."""
        assert self._writer is not None
        for name in SCALARS:
            if (value := getattr(evaluation, name)) is not None:
                self._writer.add_scalar(name, value, evaluation.steps)
        self._writer.flush()
        self._reporter.evaluation(evaluation)

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._reporter.note(text)

    def finish(self, summary: RunSummary) -> None:
        """See `Reporter`."""
        if self._writer is not None:
            self._writer.close()
        self._reporter.finish(summary)
