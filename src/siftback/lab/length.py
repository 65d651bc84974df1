"""The length of a run: by its epochs, its cost, or the clock, which knows what took the time."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import torch

from siftback.errors import ConfigError
from siftback.lab.settings import Run, Settings

# Costs of one example, in forwards: the unit of every budget and of `cost_forward_units`.
FORWARD, BACKWARD = 1, 2

PHASES = {
    "scoring": "scoring before training",
    "loading": "loading",
    "selection": "selection, its forwards among it",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "syncing": "syncing",
    "other": "other",
}
"""The phases of the clock, and their names in figures, as in the paper."""

RAPL = Path("/sys/class/powercap/intel-rapl")
"""The counters of the processors' energy, where the kernel shows them."""


@dataclass(frozen=True)
class Length:
    """The length of a training.

    Attributes:
        kind: What the length is counted in.
        amount: How much of it there is.
        most_cost: The most that it may cost, where that is not its length.
        most_seconds: The longest that it may take, likewise.

    >>> length = Length("epochs", 10.0, most_seconds=60.0)
    >>> length.done(4.0, 1e6, 59.0), length.is_over(4.0, 1e6, 61.0)
    (0.4, True)
    """

    kind: Literal["epochs", "cost", "seconds"]
    amount: float
    most_cost: float = math.inf
    most_seconds: float = math.inf

    @classmethod
    def of(
        cls,
        run: Run,
        settings: Settings,
        examples: int,
        scoring_cost: float = 0.0,
        scoring_seconds: float = 0.0,
    ) -> Self:
        """Returns the length of a run.

        Args:
            run: Which run; one with a budget of its own has that length.
            settings: Those of the comparison.
            examples: Those of an epoch of the whole data set.
            scoring_cost: Of scores of the whole set before training; a budget includes it.
            scoring_seconds: Of these scores, likewise.

        Raises:
            ConfigError: If that was all of a budget.
        """
        cost, seconds = settings.cost_budget or math.inf, settings.time_budget or math.inf
        if settings.budget:
            cost = (FORWARD + BACKWARD) * examples * settings.budget
        cost = run.cost_budget or cost
        budgets = ("forwards", cost, scoring_cost), ("seconds", seconds, scoring_seconds)
        for unit, budget, taken in budgets:
            if budget <= taken:
                raise ConfigError(
                    f"{run.strategy} has a budget of {budget:.0f} {unit}, and its scores cost "
                    f"{taken:.0f}: give more, or fewer --score-models or --score-epochs"
                )
        cost -= scoring_cost
        if settings.epochs and not run.cost_budget:
            return cls("epochs", settings.epochs, cost, seconds)
        if cost < math.inf:
            return cls("cost", cost, most_seconds=seconds)
        return cls("seconds", seconds)

    def done(self, epochs: float, cost: float, seconds: float) -> float:
        """Returns the share of the training done, in [0, 1].

        Args:
            epochs: Epochs of source examples so far, with fractions.
            cost: Forwards of one example so far.
            seconds: Seconds of training so far.
        """
        spent = {"epochs": epochs, "cost": cost, "seconds": seconds}[self.kind]
        return min(spent / self.amount, 1.0)

    def is_over(self, epochs: float, cost: float, seconds: float) -> bool:
        """Returns whether the training is done, or has used up what it may."""
        is_spent = cost >= self.most_cost or seconds >= self.most_seconds
        return is_spent or self.done(epochs, cost, seconds) >= 1


class PhaseClock:
    """Every second from the start on belongs to one phase, so that phases sum to the total.

    Marks are explicit: each says what begins. What a loader does within another phase, and times
    itself, is moved to its own by `move`. Joules are counted of the same time, where
    `energy_monitor` finds a counter.

    Args:
        device: Where the work is done. On an accelerator its queue is waited for whenever the
            clock is read, not at each mark: there, phases are those of the host.
        scoring: Seconds that scoring took before.

    Attributes:
        joules: Energy until the last pause, of the "gpu", of the "cpu" packages, and of the "dram".

    >>> clock = PhaseClock(torch.device("cpu"))
    >>> clock.start("loading")
    >>> clock.mark("forward")
    >>> with clock.paused():
    ...     phases = clock.phases
    >>> phases["loading"] > 0, phases["backward"]
    (True, 0.0)
    """

    def __init__(self, device: torch.device, scoring: float = 0.0) -> None:
        self._device = device
        self._spent = dict.fromkeys(PHASES, 0.0) | {"scoring": scoring}
        self._phase = ""  # while it does not count
        self._since = 0.0
        self.joules: dict[str, float] = {}
        self._monitor = energy_monitor(device)

    def start(self, phase: str) -> None:
        """Begins to count."""
        if self._monitor:
            self._monitor.begin_window("training")
        self._phase, self._since = phase, self._now()

    def mark(self, phase: str) -> None:
        """Ends a phase: time from now on belongs to another."""
        now = time.perf_counter()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def move(self, seconds: float, source: str, target: str) -> None:
        """Takes seconds from one phase to another."""
        self._spent[source] -= seconds
        self._spent[target] += seconds

    @property
    def phases(self) -> dict[str, float]:
        """Seconds so far of each phase."""
        spent = dict(self._spent)
        if self._phase:
            spent[self._phase] += self._now() - self._since
        return spent

    @property
    def passed(self) -> float:
        """Seconds so far by the host, which does not wait for what it has queued."""
        running = time.perf_counter() - self._since if self._phase else 0.0
        return sum(self._spent.values()) + running

    def load(self, phases: dict[str, float], joules: dict[str, float]) -> None:
        """Takes up the seconds and the joules of another clock, before this one is started."""
        self._spent, self.joules = dict.fromkeys(PHASES, 0.0) | phases, dict(joules)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops counting within the context."""
        phase, self._spent, self._phase = self._phase, self.phases, ""
        if phase and self._monitor:
            window = self._monitor.end_window("training")
            for domain in ("gpu", "cpu", "dram"):
                if energies := getattr(window, f"{domain}_energy"):
                    self.joules[domain] = self.joules.get(domain, 0.0) + sum(energies.values())
        yield
        if phase:
            self.start(phase)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # work that is queued is work to be timed
        return time.perf_counter()


def energy_monitor(device: torch.device) -> Any:
    """Returns Zeus's monitor of the device's energy and the processors'.

    None where there is no counter that can be read, or Zeus is not installed.
    """
    if not (device.type == "cuda" or RAPL.exists()) or not find_spec("zeus"):
        return None
    from zeus.monitor import ZeusMonitor  # takes a second to import

    monitor = ZeusMonitor([device.index or 0] if device.type == "cuda" else [])
    return monitor if monitor.gpu_indices or monitor.cpu_indices else None
