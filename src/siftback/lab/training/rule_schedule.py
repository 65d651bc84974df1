"""When a run selects, in trainings of any kind of length."""

import math
from collections.abc import Callable

from siftback import EpochRule, Epochs, Schedule, Selector, Share
from siftback.errors import ConfigError
from siftback.lab.settings import Settings


def schedule_of(
    choice: EpochRule | Selector,
    keep: float,
    tail: float,
    settings: Settings,
    done: Callable[[], float],
) -> Schedule | None:
    """When what chooses a run's examples is on; None where its own counts right.

    Args:
        choice: The rule, or the selector.
        keep: The share that it is asked to keep.
        tail: The last share of training on everything, where the settings ask for none.
        settings: The run's, which say its warm-up.
        done: Gives the share of the training that is done.

    Raises:
        ConfigError: As `whole_epochs`.
    """
    warmup = settings.warmup or Epochs(0)
    if not isinstance(choice, EpochRule):
        return Between(done, warmup)
    if choice.needs_passes:
        return Schedule(warmup=Epochs(whole_epochs(settings)))
    if choice.learns and choice.count(0) is not None:  # as Memory
        return _of_memory(keep, warmup, settings, done)
    return Between(done, warmup, 1 - (settings.tail or tail))


def whole_epochs(settings: Settings) -> int:
    """The epochs of a warm-up that ends between two of them.

    Raises:
        ConfigError: If it is a share of a training whose epochs nobody knows.
    """
    warmup = settings.warmup or Epochs(0)
    if isinstance(warmup, Epochs):
        return math.ceil(warmup.value)
    if settings.epochs is None and settings.budget is None:
        raise ConfigError(
            f"warmup={warmup.value:.0%} of a training by time, with a strategy that begins to "
            "select between two epochs: give the warm-up in epochs, such as 1e"
        )
    # In a budget, an epoch of the warm-up costs as much as one of Traditional.
    return math.ceil(round(warmup.value * (settings.epochs or settings.budget or 0.0), 9))


def warmup_share(settings: Settings) -> float:
    """The share of a training of a given budget that its warm-up takes."""
    if isinstance(settings.warmup, Epochs):
        assert settings.budget is not None
        return min(settings.warmup.value / settings.budget, 1.0)
    return 0.0 if settings.warmup is None else settings.warmup.value


def warmup_epochs(settings: Settings, epochs: float) -> float:
    """How many of so many epochs its warm-up takes."""
    warmup = settings.warmup or Epochs(0)
    wanted = warmup.value * (epochs if isinstance(warmup, Share) else 1.0)
    return min(wanted, epochs)


def _of_memory(
    keep: float, warmup: Epochs | Share, settings: Settings, done: Callable[[], float]
) -> Schedule | None:
    if settings.epochs is not None:
        return None
    if settings.budget is None:
        return Between(done, warmup, 1 - settings.tail)
    share = warmup_share(settings)
    first = round(share * settings.budget)
    selective = (1 - share - settings.tail) * settings.budget / keep
    end = Epochs(first + max(1, round(selective))) if settings.tail else None
    return Schedule(warmup=Epochs(first), end=end)


class Between(Schedule):
    """On from a warm-up to a share of a training, whether it is of epochs, cost or time.

    Args:
        done: Gives the share that is done.
        warmup: From when on: `Epochs` of source examples, or a `Share` of the training.
        end: Up to which share.
    """

    def __init__(self, done: Callable[[], float], warmup: Epochs | Share, end: float = 1.0) -> None:
        super().__init__(warmup=Epochs(0))
        self._done, self._from, self._to = done, warmup, end

    def is_on(
        self, epochs_done: float, epochs: float | None = None, batch: int | None = None
    ) -> bool:
        """Whether to select now: a share of the training does not ask for the epoch."""
        done = self._done()
        begun = epochs_done if isinstance(self._from, Epochs) else done
        return begun >= self._from.value and (self._to >= 1 or done < self._to)
