"""Seconds of training, by what they were spent on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PHASES = (
    "scoring", "loading", "selection", "forward", "backward", "optimizer", "syncing", "other"
)  # fmt: skip


class PhaseClock:
    """Every second from the start on belongs to one phase, so that phases sum to the total.

    Marks are explicit: each says what begins. What a loader does within another phase, and times
    itself, is moved to its own by `move`.

    Args:
        device: Where the work is done. On an accelerator its queue is waited for whenever the
            clock is read, not at each mark: there, phases are those of the host.

    >>> clock = PhaseClock(torch.device("cpu"))
    >>> clock.start("loading")
    >>> clock.mark("forward")
    >>> with clock.paused():
    ...     seconds, phases = clock.seconds, clock.phases
    >>> phases["loading"] > 0, sum(phases.values()) == seconds
    (True, True)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._phase: str | None = None
        self._since = 0.0

    def start(self, phase: str) -> None:
        """Begins to count."""
        self._phase, self._since = phase, self._now()

    def mark(self, phase: str) -> None:
        """What comes from here on belongs to another phase."""
        assert self._phase is not None
        now = time.perf_counter()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def move(self, seconds: float, source: str, target: str) -> None:
        """Takes seconds from one phase to another."""
        self._spent[source] -= seconds
        self._spent[target] += seconds

    def add(self, seconds: float, phase: str) -> None:
        """Counts seconds that were spent before."""
        self._spent[phase] += seconds

    @property
    def phases(self) -> dict[str, float]:
        """Seconds so far of each phase."""
        spent = dict(self._spent)
        if self._phase is not None:
            spent[self._phase] += self._now() - self._since
        return spent

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return sum(self.phases.values())

    @property
    def passed(self) -> float:
        """Seconds so far by the host, which does not wait for what it has queued."""
        running = 0.0 if self._phase is None else time.perf_counter() - self._since
        return sum(self._spent.values()) + running

    def load(self, phases: dict[str, float]) -> None:
        """Takes up another one's seconds, before it is started."""
        self._spent = dict.fromkeys(PHASES, 0.0) | phases

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count what is done within."""
        phase, self._spent, self._phase = self._phase, self.phases, None
        yield
        if phase is not None:
            self.start(phase)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # work that is queued is work to be timed
        return time.perf_counter()
