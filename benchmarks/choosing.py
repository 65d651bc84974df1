"""The cost of choosing: every selector and every rule, as a share of a training step.

A step is that of a narrow ``resnet18`` on the whole batch, forward, backward and optimizer. Times
are taken in turns; each ratio is the median over rounds. Nothing here makes a forward pass for
scores: that is what `scorers.py` measures.

1. A selector turns the scores of a batch of 128, and of 4,096, into a selection.
2. A rule draws an epoch's examples from 50,000, once an epoch: its share of a batch is that time
   over the number of batches. What is done for each batch is added: finding the batch's weights,
   and recording its losses.
"""

import inspect
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from rich.progress import track
from torch.nn import functional as F

import siftback
from goals import Goal, begin, options, report
from siftback import (
    EpochRule,
    InBatch,
    Kath18,
    Percentile,
    Schedule,
    Selector,
    Threshold,
)
from siftback.contrib import GaussianProcess
from siftback.epochs.epoch_draw import EpochDraw
from siftback.lab.models import build

KEEP, EXAMPLES, BATCHES, MOST = 1 / 2, 50_000, (128, 4096), 0.005
TITLE = "What choosing costs: over a step of resnet18 of width 16, 3x32x32, keep 1/2"


def public(kind: Callable[[type], bool]) -> list[type]:
    """The public classes of a kind: a new one is measured without being named here."""
    values = [getattr(siftback, name) for name in siftback.__all__ if name != "SinglePass"]
    return [value for value in values if inspect.isclass(value) and kind(value)]


def selectors() -> dict[str, Selector]:
    """Every public selector, with the default arguments and some that lead to other work."""
    made: dict[str, Selector] = {}
    for kind in public(lambda c: hasattr(c, "select") and c not in (Selector, InBatch)):
        parameters = inspect.signature(kind).parameters
        if "selector" in parameters:
            made[kind.__name__] = kind(Percentile(keep=KEEP))
        else:
            made[kind.__name__] = kind(keep=KEEP) if "keep" in parameters else kind()
    made["Kath18(replace=False)"] = Kath18(keep=KEEP, replace=False)
    made["Threshold(above=0.5)"] = Threshold(above=0.5)
    return made


def rules() -> dict[str, EpochRule]:
    """Every public rule, and the Gaussian process."""
    made: dict[str, EpochRule] = {}
    kinds = public(lambda c: issubclass(c, EpochRule) and not inspect.isabstract(c))
    for kind in (*kinds, GaussianProcess):
        has_keep = "keep" in inspect.signature(kind).parameters
        made[kind.__name__] = kind(keep=KEEP) if has_keep else kind()
    return made


class Timer:
    """Takes times on a device, by turns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, fn: Callable[[], object], repeats: int) -> float:
        """The median time of a call, with all that it asked of the device done."""
        taken = []
        for _ in range(repeats):
            self._wait()
            started = time.perf_counter()
            fn()
            self._wait()
            taken.append(time.perf_counter() - started)
        return statistics.median(taken)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def training_step(size: int, device: torch.device) -> Callable[[], None]:
    """A step of ordinary training on a batch of so many."""
    torch.manual_seed(0)
    model = build("resnet18", width=16, classes=10, channels=3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(size, 3, 32, 32, device=device)
    targets = torch.randint(10, (size,), device=device)

    def step() -> None:
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def selection(selector: Selector, size: int, device: torch.device) -> Callable[[], object]:
    """One selection after the other among batches of so many scores."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(8, size, generator=generator).to(device)
    for batch in scores:  # until the history is full and a variable start has come
        selector.select(batch, generator)
    turns = iter(range(10**9))
    return lambda: selector.select(scores[next(turns) % 8], generator)


class KnownRule:
    """A rule that knows all examples, as a loader uses it."""

    def __init__(self, rule: EpochRule, size: int, device: torch.device) -> None:
        rule.grow(EXAMPLES)
        self._draw, self._epoch = EpochDraw(rule, schedule=Schedule()), 0
        generator = torch.Generator().manual_seed(0)
        losses = torch.rand(5, EXAMPLES, generator=generator)
        for each in losses:  # enough for all that look at several
            correct, confidence = each < KEEP, each
            self._draw.update(
                torch.arange(EXAMPLES), each, self._epoch, correct=correct, confidence=confidence
            )
            if rule.needs_passes:
                self._draw.rescore(torch.arange(EXAMPLES), each, self._epoch)
            self._epoch += 1
        self._indices = torch.randperm(EXAMPLES, generator=generator)[:size].sort().values
        self._losses = losses[0, :size].to(device)

    def draw(self) -> None:
        """Does what is done once an epoch."""
        if self._draw.is_pass(self._epoch):
            self._draw.rescore(torch.arange(1), torch.ones(1), self._epoch)
            self._epoch += 1
        self._draw.begin(self._epoch)
        self._epoch += 1

    def batch(self) -> None:
        """Does what is done for each batch."""
        self._draw.weights_of(self._indices).nonzero()
        losses = self._losses.cpu()
        correct = losses < KEEP
        self._draw.update(self._indices, losses, self._epoch, correct=correct, confidence=losses)


def measure(size: int, rounds: int, repeats: int, device: torch.device) -> Iterable[Goal]:
    """Ratios of one size of batch."""
    timer, step = Timer(device), training_step(size, device)
    calls = {name: selection(made, size, device) for name, made in selectors().items()}
    drawing = {name: KnownRule(made, size, device) for name, made in rules().items()}
    shares: dict[str, list[float]] = {name: [] for name in (*calls, *drawing)}
    timer.seconds(step, 1)  # warming up
    for _ in track(range(rounds), description=f"batches of {size}", transient=True):
        whole = timer.seconds(step, 3 if size < 1000 else 1)
        for name, call in calls.items():
            shares[name].append(timer.seconds(call, repeats) / whole)
        for name, rule in drawing.items():
            once = timer.seconds(rule.draw, 3) * size / EXAMPLES
            shares[name].append((once + timer.seconds(rule.batch, repeats)) / whole)
    for name, values in shares.items():
        share = statistics.median(values)
        what = f"{name}: draw and record" if name in drawing else name
        yield Goal(
            f"batches of {size:,} on {device.type}", f"{what} over step", share,
            f"at most {MOST}", share <= MOST,
        )  # fmt: skip


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="fewer rounds and repeats")
    parser.add_argument("--device", help="cpu or cuda; by default both, where there is one")
    asked = begin(parser)
    rounds, repeats = (2, 10) if asked.quick else (7, 50)
    there = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    goals: list[Goal] = []
    for device in [asked.device] if asked.device else there:
        for size in BATCHES:
            goals += measure(size, rounds, repeats, torch.device(device))
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
