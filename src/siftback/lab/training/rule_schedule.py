"""When a run's rule draws, in trainings of any kind of length."""

from collections.abc import Callable

from siftback import EpochRule, Epochs, Memory, RefreshedRule, Schedule
from siftback.lab.training.settings import Settings


def schedule_of(
    rule: EpochRule, keep: float, tail: float, settings: Settings, done: Callable[[], float]
) -> Schedule | None:
    """The schedule of a rule in a run; None where its own counts right.

    Args:
        rule: The rule.
        keep: The share that it is asked to keep.
        tail: The last share of training on everything, where the settings ask for none.
        settings: The run's.
        done: Gives the share of the training that is done.
    """
    if isinstance(rule, RefreshedRule):
        return None
    if not isinstance(rule, Memory):
        return Between(done, 0.0, 1 - (settings.tail or tail))
    if settings.epochs is not None:
        return None
    if settings.budget is None:
        return Between(done, settings.warmup, 1 - settings.tail)
    warmup = round(settings.warmup * settings.budget)
    selective = (1 - settings.warmup - settings.tail) * settings.budget / keep
    end = Epochs(warmup + max(1, round(selective))) if settings.tail else None
    return Schedule(warmup=Epochs(warmup), end=end)


class Between(Schedule):
    """On from one share of a training to another, whether it is of epochs, cost or time.

    Args:
        done: Gives the share that is done.
        begin: From which share on.
        end: Up to which.
    """

    def __init__(self, done: Callable[[], float], begin: float, end: float) -> None:
        super().__init__()
        self._done, self._from, self._to = done, begin, end

    def is_on(
        self, epochs_done: float, epochs: float | None = None, batch: int | None = None
    ) -> bool:
        """Whether to select now, whatever the epoch."""
        return self._from <= self._done() < self._to
