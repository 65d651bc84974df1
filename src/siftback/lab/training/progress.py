"""How far a run has come: a bar on a terminal, plain lines elsewhere."""

import time
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from siftback.lab.records.formatting import readable_duration
from siftback.lab.records.run_summary import METRICS, Evaluation, RunSummary
from siftback.lab.training.settings import Run

SECONDS_BETWEEN_LINES = 10


def remaining(elapsed: float, done: float, left: float) -> str:
    """About how long the rest takes, as the end of a line; empty where it is less than a minute.

    Args:
        elapsed: Seconds that what is done took.
        done: How much that is, such as 3 runs or a share of one.
        left: How much is left, in the same unit.

    >>> remaining(90.0, 3, 6), remaining(90.0, 3, 1), remaining(0.0, 0.0, 1.0)
    ('; about 3.0 min left', '', '')
    """
    seconds = elapsed / done * left if done else 0.0
    return f"; about {readable_duration(seconds)} left" if seconds >= 60 else ""


class Reporter(Protocol):
    """Reports what happens in a comparison."""

    def start(self, run: Run, number: int, of: int) -> None:
        """A run begins, the ``number``-th of ``of``."""

    def update(self, done: float) -> None:
        """The current run has come to this share of its training."""

    def scoring(self, done: float) -> None:
        """This share is done of scoring all examples by models trained for a little."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """The current run was tested."""

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""

    def finish(self, summary: RunSummary) -> None:
        """The current run ended."""


class Silent:
    """Says nothing."""

    def start(self, run: Run, number: int, of: int) -> None:
        """See `Reporter`."""

    def update(self, done: float) -> None:
        """See `Reporter`."""

    def scoring(self, done: float) -> None:
        """See `Reporter`."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """See `Reporter`."""

    def note(self, text: str) -> None:
        """See `Reporter`."""

    def finish(self, summary: RunSummary) -> None:
        """See `Reporter`."""


class Terminal:
    """A bar for the current run where the console is a terminal; one line per run in any case.

    Args:
        console: Where to write; usually that of the error stream, so that the standard output
            holds results only.
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
        self._task: TaskID | None = None
        self._position, self._scoring = "", False
        self._said = self._first = self._began = time.monotonic()
        self._ended = self._left = 0  # runs
        self._done = 0.0  # of the current run
        self._from: float | None = None  # where it began, later where it goes on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, run: Run, number: int, of: int) -> None:
        """See `Reporter`."""
        self._left, self._done, self._from = of - number, 0.0, None
        if not self._ended:
            self._first = time.monotonic()
        self._begin(f"[{number}/{of}] {run.name}")

    def update(self, done: float) -> None:
        """See `Reporter`."""
        if self._scoring:
            self._begin(self._position)
        if self._from is None:
            self._from, self._began = done, time.monotonic()
        self._done = done
        if self._task is not None:
            self._bars.update(self._task, completed=done)

    def scoring(self, done: float) -> None:
        """See `Reporter`."""
        if not self._scoring:
            self._begin(self._position, scoring=True)
        assert self._task is not None
        self._bars.update(self._task, completed=done)
        self._say_now_and_then(f"{self._title} {done:.0%}")

    def evaluation(self, evaluation: Evaluation) -> None:
        """See `Reporter`."""
        error = f"test error {evaluation.test_error:.2f} %, loss {evaluation.test_loss:.3f}"
        if self._task is not None:
            self._bars.update(self._task, error=error)
        elapsed, done = time.monotonic() - self._began, self._done - (self._from or 0.0)
        left = remaining(elapsed, done, 1 - self._done)
        self._say_now_and_then(f"{self._position} epoch {evaluation.epoch:.2f}: {error}{left}")

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._say(text)

    def finish(self, summary: RunSummary) -> None:
        """See `Reporter`."""
        metric = METRICS[summary.metric]
        observing = sum(summary.seconds_observing.values())
        suspects = "" if summary.suspects is None else f", {summary.suspects} suspects"
        self._ended += 1
        left = remaining(time.monotonic() - self._first, self._ended, self._left)
        self._say(
            f"{self._position}: test {metric.noun} {metric.written(summary.final)}, "
            f"{readable_duration(summary.seconds_train)}, "
            f"{summary.cost_forward_units / 1e6:.2f} M forwards{suspects}"
            + (f"; observing took {readable_duration(observing)} more" if observing else "")
            + (f"{left} for {self._left} more" if left else "")
        )

    def _begin(self, position: str, scoring: bool = False) -> None:
        """Puts a bar of its own in the place of the one there was."""
        self._bars.start()  # not before there is one, as loading data has a bar of its own
        self._position, self._scoring = position, scoring
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(self._title, total=1.0, error="")

    @property
    def _title(self) -> str:
        return f"{self._position} scoring".strip() if self._scoring else self._position

    def _say_now_and_then(self, line: str) -> None:
        if not self._console.is_terminal and time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._said = time.monotonic()
