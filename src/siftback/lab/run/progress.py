"""The progress of a run: a bar on a terminal, plain lines elsewhere."""

import time
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from siftback.errors import ConfigError
from siftback.installation import install_command
from siftback.lab.records.formatting import readable, readable_duration
from siftback.lab.records.run_summary import METRICS, Evaluation, RunSummary
from siftback.lab.settings import Run
from siftback.lab.strategies.table import library_name

SECONDS_BETWEEN_LINES = 10
TENSORBOARD = "tensorboard"  # the folder of a comparison's events
SCALARS = (
    "test_error", "test_loss", "train_loss", "agreement", "epoch", "examples", "cost", "seconds"
)  # fmt: skip


def remaining_time(elapsed: float, done: float, left: float) -> str:
    """Returns about how long the rest takes, to end a line; nothing if less than a minute.

    Args:
        elapsed: Seconds that the work done so far took.
        done: Its amount, such as 3 runs or a share of one.
        left: The amount that is left, in the same unit.

    >>> remaining_time(90.0, 3, 6), remaining_time(90.0, 3, 1), remaining_time(0.0, 0.0, 1.0)
    ('; about 3.0 min left', '', '')
    """
    seconds = elapsed / done * left if done else 0.0
    return f"; about {readable_duration(seconds)} left" if seconds >= 60 else ""


class Reporter:
    """Gets the events of a comparison; each method does nothing unless it is overridden."""

    def start(self, run: Run, number: int, count: int) -> None:
        """Gets a run that begins, the ``number``-th of ``count``."""

    def update(self, done: float) -> None:
        """Gets the share of the current run's training that is done."""

    def scoring(self, done: float) -> None:
        """Gets the share that is done of scoring all examples before a run."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """Gets a test of the current run."""

    def note(self, text: str) -> None:
        """Gets something that is worth a line."""

    def finish(self, summary: RunSummary) -> None:
        """Gets the current run's end."""


class ConsoleReporter(Reporter):
    """A bar for the current run where the console is a terminal; one line per run in any case.

    Args:
        console: Where to write; usually the error stream's, so that the standard output holds
            results only.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[error]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("", total=1.0, error="", visible=False)
        self._position, self._scoring = "", False
        self._last_line = self._first_start = self._began = time.monotonic()
        self._runs_ended = self._runs_left = 0
        self._resumed_at = self._done = -1.0  # shares of the current run; -1 before it goes on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, run: Run, number: int, count: int) -> None:
        """See `Reporter`."""
        self._runs_left, self._resumed_at, self._done = count - number, -1.0, 0.0
        if not self._runs_ended:
            self._first_start = time.monotonic()
        self._add_bar(f"[{number}/{count}] {library_name(run.label)}, seed {run.seed}")

    def update(self, done: float) -> None:
        """See `Reporter`."""
        if self._scoring:
            self._add_bar(self._position)
        if self._resumed_at < 0:
            self._resumed_at, self._began = done, time.monotonic()
        self._done = done
        self._bars.update(self._task, completed=done)

    def scoring(self, done: float) -> None:
        """See `Reporter`."""
        if not self._scoring:
            self._add_bar(self._position, scoring=True)
        self._bars.update(self._task, completed=done)
        self._print_seldom(f"{self._position} scoring".strip() + f" {done:.0%}")

    def evaluation(self, evaluation: Evaluation) -> None:
        """See `Reporter`."""
        error = f"test error {evaluation.test_error:.2f} %, loss {evaluation.test_loss:.3f}"
        self._bars.update(self._task, error=error)
        elapsed, done = time.monotonic() - self._began, self._done - max(self._resumed_at, 0.0)
        left = remaining_time(elapsed, done, 1 - self._done)
        self._print_seldom(f"{self._position} epoch {evaluation.epoch:.2f}: {error}{left}")

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        self._last_line = time.monotonic()

    def finish(self, summary: RunSummary) -> None:
        """See `Reporter`."""
        metric = METRICS[summary.metric]
        observing = sum(summary.seconds_observing.values())
        suspects = "" if summary.suspects is None else f", {summary.suspects} suspects"
        self._runs_ended += 1
        elapsed = time.monotonic() - self._first_start
        left = remaining_time(elapsed, self._runs_ended, self._runs_left)
        self.note(
            f"{self._position}: test {metric.noun} {metric.written(summary.final)}, "
            f"{'loss not finite, ' if summary.diverged else ''}"
            f"{readable_duration(summary.seconds_train)}, "
            f"{readable(summary.cost_forward_units)} forwards{suspects}"
            + (f"; observing took {readable_duration(observing)} more" if observing else "")
            + (f"{left} for {self._runs_left} more" if left else "")
        )

    def _add_bar(self, position: str, scoring: bool = False) -> None:
        """Replaces the bar by another."""
        self._bars.start()  # not before, as loading data has a bar of its own
        self._position, self._scoring = position, scoring
        self._bars.remove_task(self._task)
        title = f"{position} scoring".strip() if scoring else position
        self._task = self._bars.add_task(title, total=1.0, error="")

    def _print_seldom(self, line: str) -> None:
        elapsed = time.monotonic() - self._last_line
        if not self._console.is_terminal and elapsed > SECONDS_BETWEEN_LINES:
            self.note(line)


class TensorBoardReporter(ConsoleReporter):
    """A console reporter that also writes each evaluation's numbers, by steps, for TensorBoard.

    Args:
        console: As for `ConsoleReporter`.
        folder: Gets a folder of events for each run.

    Raises:
        ConfigError: If the package ``tensorboard`` is missing.
    """

    def __init__(self, console: Console, folder: Path) -> None:
        super().__init__(console)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                f"--tensorboard needs the package of that name: {install_command('tensorboard')}"
            ) from None
        self._folder, self._writer_class = folder, SummaryWriter

    def start(self, run: Run, number: int, count: int) -> None:
        """See `Reporter`."""
        self._writer = self._writer_class(str(self._folder / run.name))
        super().start(run, number, count)

    def evaluation(self, evaluation: Evaluation) -> None:
        """See `Reporter`."""
        for name in SCALARS:
            if (value := getattr(evaluation, name)) is not None:
                self._writer.add_scalar(name, value, evaluation.steps)
        self._writer.flush()
        super().evaluation(evaluation)

    def finish(self, summary: RunSummary) -> None:
        """See `Reporter`."""
        self._writer.close()
        super().finish(summary)
