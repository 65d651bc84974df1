"""Milliseconds of the host that a rule adds to a training step, beside the same loop without one.

A step of the loop takes a batch from a ``DataLoader`` and the mean of losses that are there
already: there is no model, so that all of its time is the host's. What a rule adds is the order,
the batch's indices, the losses on their way to the rule, and the step's part of the draws among
50,000 examples. Within frameworks a linear model is trained, see ``loops/framework_steps.py``.

Times are the CPU seconds of this process, which other processes disturb least, and not those of its
workers. With and without a rule have their turns in each round, and differences are medians. After
a wait the same code takes up to twice the time, as the processor's caches are cold: a loop that
sleeps in each step shows it. It is a part of what is added beside workers, which are waited for.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from goals import Goal, begin, options, report
from siftback import RS2, EpochRule, Epochs, InfoBatch, Memory, SelectiveLoader

EXAMPLES = 50_000
RULES: dict[str, Callable[[], EpochRule]] = {
    "Memory()": lambda: Memory(warmup=Epochs(0)),
    "Memory(keep=0.5)": lambda: Memory(keep=0.5, warmup=Epochs(0)),
    "InfoBatch()": lambda: InfoBatch(delta=1.0),
    "RS2(0.5)": lambda: RS2(0.5),
}


class Setting(NamedTuple):
    """A loop whose steps are measured.

    Attributes:
        batch: Examples of a batch.
        workers: Worker processes.
        wait: Seconds that each step sleeps, as one that waits for a batch.
        goal: The most milliseconds that a rule is to add to a step, without its draws; 0 for none.
    """

    batch: int
    workers: int = 0
    wait: float = 0.0
    goal: float = 0.0

    def __str__(self) -> str:
        wait = f", {self.wait * 1e3:g} ms asleep" if self.wait else ""
        return f"batch {self.batch:,}, {self.workers} workers{wait}"


SETTINGS = [
    Setting(128, goal=0.1),
    Setting(128, wait=3e-4),
    Setting(128, workers=2, goal=0.1),
    Setting(1024, goal=0.15),
]

TITLE = "Milliseconds that a rule adds to a step of the host, among 50,000 examples"


class Ready(Dataset[Any]):
    """Examples of four numbers, of which a batch is taken in one call."""

    def __init__(self) -> None:
        self.inputs = torch.zeros(EXAMPLES, 4)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitems__(self, indices: list[int]) -> Tensor:
        return self.inputs[torch.tensor(indices)]


def as_it_is(batch: Tensor) -> Tensor:
    """Collates a batch that is one already."""
    return batch


def seconds_of_epoch(
    loader: Any, loss: Callable[[Tensor], Tensor], losses: Tensor, wait: float
) -> float:
    """CPU seconds of a step, over an epoch."""
    started, steps = time.process_time(), 0
    for inputs in loader:
        if wait:
            time.sleep(wait)
        loss(losses[: len(inputs)])
        steps += 1
    return (time.process_time() - started) / steps


class DrawTimes:
    """Sums up the CPU seconds of a rule's draws."""

    def __init__(self, rule: EpochRule) -> None:
        self.seconds, self._draw = 0.0, rule.draw
        rule.draw = self.draw  # type: ignore[method-assign]

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Draws as the rule does."""
        started = time.process_time()
        weights = self._draw(epoch, generator)
        self.seconds += time.process_time() - started
        return weights


def rows_of(setting: Setting, rounds: int) -> list[Goal]:
    """Measures what each rule adds to the step of a loop."""
    batch, workers, wait, goal = setting

    def plain() -> DataLoader[Any]:
        return DataLoader(
            Ready(), batch, shuffle=True, collate_fn=as_it_is, num_workers=workers,
            persistent_workers=workers > 0,
        )  # fmt: skip

    # Of no two alike, as of a network; which they are makes no difference to the cost.
    losses = torch.rand(batch, generator=torch.Generator().manual_seed(0))
    rules = {name: make() for name, make in RULES.items()}
    times = {name: DrawTimes(rule) for name, rule in rules.items()}
    loaders = {
        name: SelectiveLoader(plain(), memory=rule, epochs=10_000) for name, rule in rules.items()
    }
    bare = plain()
    for loader in loaders.values():  # a first epoch, in which everything is read
        seconds_of_epoch(loader, loader.loss, losses, wait)
    added: dict[str, list[float]] = {name: [] for name in RULES}
    draws: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(rounds):
        without = seconds_of_epoch(bare, torch.mean, losses, wait)
        for name, loader in loaders.items():
            times[name].seconds = 0.0
            seconds = seconds_of_epoch(loader, loader.loss, losses, wait)
            added[name].append(seconds - without)
            draws[name].append(times[name].seconds / len(bare))
    rows = []
    for name in RULES:
        whole, drawing = (statistics.median(spent[name]) * 1e3 for spent in (added, draws))
        bound = (f"<= {goal}", whole - drawing <= goal) if goal else ()
        rows.append(Goal(f"{setting}", f"{name}, steps", whole - drawing, *bound))
        rows.append(Goal(f"{setting}", f"{name}, with its draws", whole))
    return rows


def rows_of_frameworks(rounds: int) -> list[Goal]:
    """Measures what a rule adds to the step of each framework."""
    script = Path(__file__).parent / "loops" / "framework_steps.py"
    command = [sys.executable, str(script), "--rounds", str(rounds)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, rows = json.loads(output.splitlines()[-1]), []
    for name, times in found.items():
        setting = f"{name}, linear model, batch 128"
        added = times["added"]
        rows.append(Goal(setting, "its own step", times["step"]))
        rows.append(Goal(setting, "Memory(), with its draws", added, "<= 0.1", added <= 0.1))
    return rows


def main() -> None:
    """Prints the table."""
    parser = options(__doc__.partition("\n")[0], "fewer rounds, and no frameworks")
    asked = begin(parser)
    torch.set_num_threads(asked.threads or 1)
    rounds = 3 if asked.quick else 15
    settings = SETTINGS[:1] if asked.quick else SETTINGS
    rows = [row for one in track(settings, transient=True) for row in rows_of(one, rounds)]
    if not asked.quick:
        rows += rows_of_frameworks(rounds=5)
    report(TITLE, rows, asked)


if __name__ == "__main__":
    main()
