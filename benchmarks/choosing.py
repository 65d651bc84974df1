"""What choosing costs: every selector and every rule, as a share of a training step.

A step is that of a narrow ``resnet18`` on the whole batch, forward, backward and optimizer. Times
are taken in turns; each ratio is the median over rounds. Nothing here makes a forward pass for
scores: that is what `scorers.py` measures.

1. A selector turns the scores of a batch of 128, and of 4,096, into a selection.
2. What draws an epoch's examples draws them from 50,000, once an epoch: its share of a batch is
   that time over the number of batches. What it does for each batch is added: finding the batch's
   weights, and remembering its losses.
"""

import inspect
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from rich.progress import track
from siftback.epoch_draw import Recall, selector_for
from siftback.rules.remembered import Remembering
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

import siftback
from goals import Goal, begin, options, report
from siftback import Indexed, Kath18, Percentile, SelectiveSampler, Selector, Threshold
from siftback.lab.models import build
from siftback.loading.indices import Indices

KEEP, EXAMPLES, BATCHES, MOST = 1 / 2, 50_000, (128, 4096), 0.005
TITLE = "What choosing costs: over a step of resnet18 of width 16, 3x32x32, keep 1/2"


def public(kind: Callable[[type], bool]) -> list[type]:
    """The public classes of a kind: a new one is measured without being named here."""
    values = [getattr(siftback, name) for name in siftback.__all__ if name != "SinglePass"]
    return [value for value in values if inspect.isclass(value) and kind(value)]


def selectors() -> dict[str, Selector]:
    """Every public selector, and those of its forms that do other work."""
    made: dict[str, Selector] = {}
    for kind in public(lambda c: hasattr(c, "select") and c is not siftback.Selector):
        parameters = inspect.signature(kind).parameters
        if "selector" in parameters:
            made[kind.__name__] = kind(Percentile(keep=KEEP))
        else:
            made[kind.__name__] = kind(keep=KEEP) if "keep" in parameters else kind()
    made["Kath18(replace=False)"] = Kath18(keep=KEEP, replace=False)
    made["Threshold(above=0.5)"] = Threshold(above=0.5)
    return made


def remembering() -> dict[str, Remembering]:
    """Every public scorer that draws an epoch's examples before they are read."""
    return {kind.__name__: kind() for kind in public(lambda c: issubclass(c, Remembering))}


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


class Memory:
    """A scorer that knows all examples, as a loader uses it."""

    def __init__(self, scorer: Remembering, size: int, device: torch.device) -> None:
        examples = range(EXAMPLES)
        loader = DataLoader(Indexed(examples), size, sampler=SelectiveSampler(examples))
        keep = None if scorer.selector() is not None else KEEP
        selector = selector_for(scorer, None, keep, None, 1024)
        self._recall = Recall(loader, scorer, Indices(loader, None), selector)
        self._scorer, self._generator = scorer, torch.Generator().manual_seed(0)
        self._epoch = 0
        losses = torch.rand(5, EXAMPLES, generator=self._generator).to(device)
        for each in losses:  # enough for all that look at several
            self._told(torch.arange(EXAMPLES), each)
            self._epoch += 1
        self._indices = torch.randperm(EXAMPLES, generator=self._generator)[:size].sort().values
        self._losses = losses[0, :size]
        self._correct = self._losses < KEEP

    def draw(self) -> None:
        """What is done once an epoch."""
        if not self._scorer.draws(self._epoch):  # a selection pass is due
            self._told(torch.arange(1), self._losses[:1])
            self._epoch += 1
        self._recall.begin_epoch(on=True, epoch=self._epoch, generator=self._generator)
        self._epoch += 1

    def batch(self) -> None:
        """What is done for each batch."""
        self._recall.keep(self._indices)
        self._recall.learn(self._indices, self._losses, self._epoch, self._correct, self._losses)

    def _told(self, indices: Tensor, losses: Tensor) -> None:
        self._recall.learn(indices, losses, self._epoch, losses < KEEP, losses)
        if self._scorer.makes_passes:
            self._recall.scored(indices, losses, self._epoch)


def measure(size: int, rounds: int, repeats: int, device: torch.device) -> Iterable[Goal]:
    """Ratios of one size of batch."""
    timer, step = Timer(device), training_step(size, device)
    calls = {name: selection(made, size, device) for name, made in selectors().items()}
    memories = {name: Memory(made, size, device) for name, made in remembering().items()}
    shares: dict[str, list[float]] = {name: [] for name in (*calls, *memories)}
    timer.seconds(step, 1)  # warming up
    for _ in track(range(rounds), description=f"batches of {size}", transient=True):
        whole = timer.seconds(step, 3 if size < 1000 else 1)
        for name, call in calls.items():
            shares[name].append(timer.seconds(call, repeats) / whole)
        for name, memory in memories.items():
            drawing = timer.seconds(memory.draw, 3) * size / EXAMPLES
            shares[name].append((drawing + timer.seconds(memory.batch, repeats)) / whole)
    for name, values in shares.items():
        share = statistics.median(values)
        what = f"{name}: draw and memory" if name in memories else name
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
