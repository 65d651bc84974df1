"""When selection is on, and how much it keeps."""

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from siftback.arguments import (
    check_choice,
    check_integer,
    check_number,
    check_share,
    format_value,
    is_number,
)
from siftback.errors import ConfigError

# Epochs are compared rounded, as 0.07 * 100 is a little more than 7 and 8 / 12 of an epoch less
# than Share(2 / 3) of one.
_DIGITS = 9


@dataclass(frozen=True, repr=False)
class Epochs:
    """A number of epochs: from the beginning of training, or, for a tail, up to its end.

    Attributes:
        value: Number of epochs, at least 0; may be fractional.

    Raises:
        ConfigError: If it is not such a number.

    >>> Epochs(2), Epochs(0.5)
    (Epochs(2), Epochs(0.5))
    """

    value: float

    def __post_init__(self) -> None:
        if not is_number(self.value) or self.value < 0:
            raise ConfigError(
                f"Epochs({format_value(self.value)}): give a number of epochs, at least 0"
            )
        whole = self.value == int(self.value)
        object.__setattr__(self, "value", int(self.value) if whole else float(self.value))

    def __repr__(self) -> str:
        return f"Epochs({self.value!r})"


@dataclass(frozen=True, repr=False)
class Share:
    """A share of the whole training. The number of epochs must then be known.

    Attributes:
        value: The share, in [0, 1].

    Raises:
        ConfigError: If it is not such a number.

    >>> Share(0.15)
    Share(0.15)
    """

    value: float

    def __post_init__(self) -> None:
        if not is_number(self.value) or not 0 <= self.value <= 1:
            raise ConfigError(
                f"Share({format_value(self.value)}): give a share of training, in [0, 1]"
            )
        object.__setattr__(self, "value", float(self.value))

    def __repr__(self) -> str:
        return f"Share({self.value!r})"


Moment = Epochs | Share
"""A point in training, or a duration."""

Shape = Literal["linear", "cosine", "step"]


@dataclass(frozen=True)
class Annealing:
    """Changes the share kept from one value to another while selection is on.

    With t the progress from selection's beginning to ``until``, from 0 to 1::

        keep(t) = first + (last - first) * w(t)
        linear: w = t      cosine: w = (1 - cos(pi t)) / 2      step: w = floor(t * steps) / steps

    From ``until`` on, the share is ``last``.

    Attributes:
        shape: "linear", "cosine", or "step" (``steps`` equal steps).
        first: The share at selection's beginning, in (0, 1].
        last: The final share; None is the selector's own.
        until: When it is reached, `Epochs` or a `Share`, counted from the beginning of training.
        steps: Number of steps, for "step".

    Raises:
        ConfigError: If one is out of its range.

    >>> annealing = Annealing("step", first=1.0, last=0.5, until=Epochs(4), steps=2)
    >>> [annealing.keep(part, own=1 / 3) for part in (0.0, 0.4, 0.5, 0.9, 1.0)]
    [1.0, 1.0, 0.75, 0.75, 0.5]
    """

    shape: Shape = "linear"
    first: float = 1.0
    last: float | None = None
    until: Moment = Share(1.0)
    steps: int = 4

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, "linear", "cosine", "step")
        check_share("first", self.first, least=False, most=True)
        if self.last is not None:
            check_share("last", self.last, least=False, most=True)
        check_moment("until", self.until)
        check_integer("steps", self.steps, 1)

    def keep(self, part: float, own: float) -> float:
        """Returns the share at a given progress.

        Args:
            part: t, in [0, 1].
            own: The selector's own share, for ``last=None``.
        """
        last = own if self.last is None else self.last
        if part >= 1:
            return last
        weight = part
        if self.shape == "cosine":
            weight = (1 - math.cos(math.pi * part)) / 2
        elif self.shape == "step":
            weight = math.floor(part * self.steps) / self.steps
        return self.first + (last - self.first) * weight


class Schedule:
    """When selection is on: from warm-up and ``start`` to ``end`` and the tail, with interrupts.

    By default it begins after one epoch on all examples, as in the prototype of Jiang et al. 2019:
    the losses of an untrained network say little of its examples. ``Schedule(warmup=Epochs(0))``
    selects at once.

    Times are given as `Epochs`, or as a `Share` of the whole training, for which the number of
    epochs must be known.

    Composer's Selective-Backprop is ``Schedule(start=Share(0.5), end=Share(0.9), interrupt=2)``;
    InfoBatch's full data for the last eighth ``Schedule(tail=Share(0.125))`` (Qin et al. 2024,
    section 3.3).

    Args:
        warmup: All examples are trained on until then; by default for one epoch.
        start: Selection is off before then. The later one of ``warmup`` and ``start`` applies.
        end: Selection is off from then on; None is never.
        tail: Length of the last part of training, which is on all data. The earlier one of ``end``
            and the tail's beginning applies. It needs the number of epochs.
        tail_after: The tail does not begin before then, so that a training that is no longer has
            none.
        interrupt: Every n-th batch of an epoch is trained on whole, first the n-th; 0 is none, 1 is
            not allowed.
        anneal: Changes the share kept while selection is on; None leaves the selector's. The
            selector must have ``set_keep`` and a share: all selectors here do, except a fixed
            `Threshold`; of the rules those with ``keep``.

    Attributes:
        needs_epochs: Whether the number of epochs must be known: for a share above 0, or a tail.

    Raises:
        ConfigError: If a time is neither `Epochs` nor a `Share`, ``end`` or the annealing's end
            is not after the beginning, or ``interrupt`` is out of range.

    >>> schedule = Schedule(warmup=Epochs(1), end=Share(0.75))
    >>> [schedule.is_on(epochs_done, epochs=4) for epochs_done in (0.5, 1, 2.9, 3)]
    [False, True, True, False]
    >>> schedule = Schedule(warmup=Epochs(0), interrupt=3)
    >>> [schedule.is_on(0, batch=batch) for batch in range(6)]
    [True, True, False, True, True, False]
    >>> schedule = Schedule(warmup=Epochs(1), anneal=Annealing("linear", until=Epochs(3)))
    >>> [schedule.keep(epochs_done, own=0.5) for epochs_done in (1, 1.5, 2, 3)]
    [1.0, 0.875, 0.75, 0.5]
    """

    def __init__(
        self,
        *,
        warmup: Moment = Epochs(1),
        start: Moment = Epochs(0),
        end: Moment | None = None,
        tail: Moment = Epochs(0),
        tail_after: Moment = Epochs(0),
        interrupt: int = 0,
        anneal: Annealing | None = None,
    ) -> None:
        begins = (("warmup", warmup), ("start", start))
        for name, moment in (*begins, ("tail", tail), ("tail_after", tail_after)):
            check_moment(name, moment)
        ends: list[tuple[str, Moment]] = []
        if end is not None:
            check_moment("end", end)
            ends.append(("end", end))
        if not isinstance(anneal, Annealing | None):
            raise ConfigError(f"anneal={format_value(anneal)}: give an Annealing, or None")
        if anneal:
            ends.append(("until", anneal.until))
        for (name, moment), (before, begin) in itertools.product(ends, begins):
            if type(moment) is type(begin) and moment.value <= begin.value:
                raise ConfigError(
                    f"{name}={moment!r} is not after {before}={begin!r}: give a later one"
                )
        if check_integer("interrupt", interrupt, 0) == 1:
            raise ConfigError(
                "interrupt=1: give n, at least 2, to train on every n-th batch whole, or 0 for none"
            )
        self.warmup, self.start, self.end = warmup, start, end
        self.tail, self.tail_after = tail, tail_after
        self.interrupt, self.anneal = interrupt, anneal
        moments = warmup, start, end, anneal and anneal.until
        shares = any(isinstance(moment, Share) and moment.value for moment in moments)
        self.needs_epochs = shares or tail.value != 0

    @property
    def is_always_on(self) -> bool:
        """Whether it selects from the first batch to the last one, and always as much."""
        begins = self.warmup.value or self.start.value
        ends = self.end is not None or self.tail.value
        return not (begins or ends or self.interrupt or self.anneal)

    def is_on(
        self, epochs_done: float, epochs: float | None = None, batch: int | None = None
    ) -> bool:
        """Returns whether to select.

        Args:
            epochs_done: Epochs of source examples done so far, with fractions.
            epochs: Epochs of the whole training; required with shares and with a tail.
            batch: Number of the batch in its epoch, from 0, for interrupts; None ignores them.

        Raises:
            ConfigError: If ``epochs`` is needed and not given, or an argument is no number.
        """
        check_number("epochs_done", epochs_done, least=0)
        if batch is not None:
            check_integer("batch", batch, 0)
        return self.covers(self.span(epochs), epochs_done, batch)

    def covers(
        self, span: tuple[float, float], epochs_done: float, batch: int | None = None
    ) -> bool:
        """Returns `is_on` of a training whose `span` is known, without checks of the numbers."""
        begin, end = span
        if self.interrupt and batch is not None and (batch + 1) % self.interrupt == 0:
            return False
        return begin <= round(epochs_done, _DIGITS) < end

    def bind(self, epochs: float | None) -> Callable[[float, int], bool]:
        """Returns ``is_on(epochs_done, batch)`` of a training, for a loader to call at each batch.

        Args:
            epochs: Epochs of the whole training; required with shares and with a tail.

        Raises:
            ConfigError: As for `is_on`.
        """
        if getattr(self.is_on, "__func__", None) is Schedule.is_on:
            return partial(self.covers, self.span(epochs))
        return lambda epochs_done, batch: self.is_on(epochs_done, epochs, batch)

    def span(self, epochs: float | None) -> tuple[float, float]:
        """Returns the epochs, with fractions, from which and until which selection is on.

        Args:
            epochs: Epochs of the whole training; required with shares and with a tail.

        Raises:
            ConfigError: If ``epochs`` is needed and not given, or no number above 0.
        """
        check_epochs(epochs)
        if self.needs_epochs and epochs is None:
            raise ConfigError(
                f"epochs= is missing: {self!r} counts in shares of the training: give the number "
                "of its epochs, such as epochs=10"
            )
        begin = max(in_epochs(self.warmup, epochs), in_epochs(self.start, epochs))
        end = math.inf if self.end is None else in_epochs(self.end, epochs)
        if self.tail.value:
            tail = (epochs or 0) - in_epochs(self.tail, epochs)
            end = min(end, max(tail, in_epochs(self.tail_after, epochs)))
        return begin, end

    def warn_if_never_on(self, epochs: float | None) -> None:
        """Warns if there is no selection at all in a training of a known number of epochs."""
        if epochs is None:
            return
        begin, end = self.span(epochs)
        if begin >= min(end, epochs):
            warnings.warn(
                f"{self!r} never selects in a training of epochs={epochs:g}: all examples are used",
                stacklevel=3,
            )

    def keep(self, epochs_done: float, epochs: float | None = None, *, own: float) -> float:
        """Returns the share to keep.

        Args:
            epochs_done: Epochs of source examples done so far, with fractions.
            epochs: Epochs of the whole training; required with shares and with a tail.
            own: The selector's own share, which is returned if nothing is annealed.

        Raises:
            ConfigError: If ``epochs`` is needed and not given, or an argument is no number.
        """
        check_number("epochs_done", epochs_done, least=0)
        begin, _ = self.span(epochs)
        if not self.anneal:
            return own
        until = in_epochs(self.anneal.until, epochs)
        if round(epochs_done, _DIGITS) >= until:
            return self.anneal.keep(1.0, own)
        return self.anneal.keep(max(0.0, epochs_done - begin) / (until - begin), own)

    def check_selector(self, selector: Any) -> None:
        """Checks that a selector can keep all shares that are annealed, and restores its own.

        Raises:
            ConfigError: If it cannot.
        """
        if not self.anneal:
            return
        own = getattr(selector, "keep", None)
        if own is None or not hasattr(selector, "set_keep"):
            raise ConfigError(
                f"{type(selector).__name__} has no share that a schedule could anneal: give one "
                "with set_keep, such as Percentile(keep=0.5) or Memory(keep=0.5), or no anneal="
            )
        for keep in (self.anneal.first, self.anneal.keep(1.0, own), own):
            selector.set_keep(keep)

    def settings(self, epochs: float | None) -> dict[str, Any]:
        """Returns what a state must have been saved with: the schedule, and epochs if needed."""
        return {"schedule": repr(self), "epochs": epochs if self.needs_epochs else None}

    def __repr__(self) -> str:
        moments = {"tail": self.tail, "tail_after": self.tail_after}
        options: dict[str, Any] = {name: given for name, given in moments.items() if given.value}
        options |= {"interrupt": self.interrupt, "anneal": self.anneal}
        text = "".join(f", {name}={value!r}" for name, value in options.items() if value)
        return f"Schedule(warmup={self.warmup!r}, start={self.start!r}, end={self.end!r}{text})"


class StepSchedule:
    """A schedule counted in steps, for those who select within a step of their own.

    Args:
        selector: Whose share is annealed.
        schedule: The schedule; None is that of `check_schedule` if the steps of an epoch are
            known, and always on if they are not.
        epochs: Epochs of the whole training; None where they are not known.
        steps_per_epoch: Steps of an epoch; None where they are not known.

    Attributes:
        selector_keep: The selector's own share.

    Raises:
        ConfigError: If the schedule needs steps or epochs that are not known, or cannot anneal.

    Warns:
        UserWarning: If it is by losses and always on only because the steps are not known.

    >>> from siftback import TopK
    >>> primed = StepSchedule(TopK(keep=0.5), None, None, steps_per_epoch=3)
    >>> [primed.keep(step) for step in range(5)]
    [None, None, None, 0.5, 0.5]
    """

    def __init__(
        self,
        selector: Any,
        schedule: Schedule | None,
        epochs: float | None,
        steps_per_epoch: int | None,
    ) -> None:
        self.selector_keep, self._epochs = float(selector.keep), check_epochs(epochs)
        self._selector = type(selector).__name__
        if schedule is None and steps_per_epoch is None:
            schedule = Schedule(warmup=Epochs(0))
            if selector.needs_scores:
                warnings.warn(
                    "selection begins at the first step, by losses of a model that has learned "
                    "nothing, as steps_per_epoch= is not given: give steps_per_epoch=len(loader), "
                    "and the first epoch trains on everything, or "
                    "schedule=Schedule(warmup=Epochs(0)) to select at once",
                    stacklevel=3,  # the caller of `InBatch` or `SinglePass`
                )
        self._schedule = check_schedule(schedule, by_losses=selector.needs_scores)
        self._schedule.check_selector(selector)
        self._schedule.is_on(0.0, epochs)  # raises where it needs the number of epochs
        self._schedule.warn_if_never_on(epochs)
        if steps_per_epoch is None:
            if not self._schedule.is_always_on:
                raise ConfigError(
                    f"{self._schedule!r} without steps_per_epoch: give the number of calls per "
                    "epoch, from which it computes the progress of training, or "
                    "schedule=Schedule(warmup=Epochs(0)), which selects at once"
                )
            steps_per_epoch = 1  # on which nothing depends
        self._steps = check_integer("steps_per_epoch", steps_per_epoch, 1)

    def keep(self, step: int) -> float | None:
        """Returns the share to keep in a step, from 0; None while selection is off."""
        done, batch = step / self._steps, step % self._steps
        if not self._schedule.is_on(done, self._epochs, batch=batch):
            return None
        return self._schedule.keep(done, self._epochs, own=self.selector_keep)

    def settings(self) -> dict[str, Any]:
        """Returns what a state must have been saved with; of one that is always on, no times."""
        settings: dict[str, Any] = {"selector": self._selector, "keep": self.selector_keep}
        if not self._schedule.is_always_on:
            settings |= {**self._schedule.settings(self._epochs), "steps_per_epoch": self._steps}
        return settings


def check_schedule(schedule: Schedule | None, *, by_losses: bool = True) -> Schedule:
    """Returns the schedule that was passed, after checking it.

    Args:
        schedule: What was passed. None selects after one epoch by losses, and at once by anything
            else.
        by_losses: Whether what it is for selects by losses.

    Raises:
        ConfigError: If it is not a `Schedule`.
    """
    if not isinstance(schedule, Schedule | None):
        raise ConfigError(f"schedule={format_value(schedule)}: give a Schedule(...), or None")
    return schedule or Schedule(warmup=Epochs(1 if by_losses else 0))


def check_epochs(epochs: float | None) -> float | None:
    """Returns the length of the training that was passed, after checking it; None if unknown.

    Raises:
        ConfigError: If it is not a number above 0.
    """
    return None if epochs is None else check_number("epochs", epochs, above=0)


def check_moment(name: str, moment: object) -> None:
    """Checks that an argument is a point in training, or a duration.

    Raises:
        ConfigError: If it is not.
    """
    if isinstance(moment, Epochs | Share):
        return
    epochs = format_value(moment) if is_number(moment) and moment >= 0 else "..."  # type: ignore[operator]
    share = repr(moment) if isinstance(moment, float) and 0 <= moment <= 1 else "..."
    raise ConfigError(
        f"{name}={format_value(moment)}: give Epochs({epochs}) or Share({share}) of training"
    )


def in_epochs(moment: Moment, epochs: float | None) -> float:
    """Returns a moment or a duration in epochs of a training of ``epochs``."""
    return round(moment.value * ((epochs or 0) if isinstance(moment, Share) else 1), _DIGITS)
