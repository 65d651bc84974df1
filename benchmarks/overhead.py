"""The cost of selection beyond its forward passes, and an SB step over its ideal.

Four questions, each answered by a ratio of times taken in turns in the same run:

1. The loader's own code (modes and random state put back, ranks, draws, taking rows, pooling) as a
   share of an SB step. It is timed within a training loop whose losses are given instead of
   computed: all is real but the scoring pass's forward.
2. Turning 128 losses into a selection, against Algorithm 2 one loss at a time with
   ``scipy.stats.percentileofscore``; and ranking them in a history of a million, against sorting
   all of it each time.
3. An SB step over its ideal, ``(1 + 3s) / 3`` of Traditional's step with share s trained on, which
   counts a backward as two forwards; and over the ideal with this model's own forward share f,
   ``f + s``.
4. What memory adds to a training step, as a share of it: giving a drawn batch and recording its
   losses, and the step's part of the epoch's draw among 50,000 examples.

A step is counted per batch of the wrapped loader, so that an SB step is one scoring pass and s
training steps. Ratios are medians over rounds; in each round every loop has its turn.
"""

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import cycle
from typing import Any

import numpy as np
import torch
from rich.progress import track
from scipy.stats import percentileofscore
from torch import Tensor, nn
from torch.nn import functional as F

from goals import Goal, begin, median_seconds, options, report
from siftback import Epochs, Fresh, Memory, Percentile, Pool, Schedule, SelectiveLoader
from siftback.lab.models import build
from siftback.selectors.percentile import LossHistory, rank_shares

KEEP, HISTORY, BATCH, EXAMPLES = 1 / 3, 1024, 128, 50_000
LONG_HISTORY = 1_000_000
SETTINGS = {
    "fp32": (None, torch.contiguous_format),
    "fp32 channels_last": (None, torch.channels_last),
    "bf16 channels_last": (torch.bfloat16, torch.channels_last),
}
TITLE = "What selection costs: resnet18 of width 16, batch 128, 3x32x32, keep 1/3"


def selection_speedup(repeats: int) -> float:
    """Returns the speed-up over Algorithm 2 one at a time; each full of history first."""
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(HISTORY + BATCH, generator=generator)
    selector = Percentile(keep=KEEP, history=HISTORY)
    selector.select(losses[:HISTORY], generator)
    history = deque(losses[:HISTORY].tolist(), maxlen=HISTORY)
    batch, values, draws = losses[HISTORY:], losses[HISTORY:].tolist(), np.random.default_rng(0)

    def one_at_a_time() -> list[int]:
        kept = []
        for row, loss in enumerate(values):
            history.append(loss)
            percentile = percentileofscore(history, loss, kind="mean") / 100
            if draws.random() < percentile**selector.beta:
                kept.append(row)
        return kept

    ratios = []
    for _ in range(repeats):
        slow = median_seconds(one_at_a_time, 3)
        ratios.append(slow / median_seconds(lambda: selector.select(batch, generator), 30))
    return statistics.median(ratios)


def long_history_speedup(repeats: int) -> float:
    """Returns the speed-up over sorting a history of a million losses for each batch."""
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(LONG_HISTORY, generator=generator)
    history = LossHistory(LONG_HISTORY)
    history.rank(losses)
    batch = losses[:BATCH].clone()
    ratios = []
    for _ in range(repeats):
        slow = median_seconds(lambda: rank_shares(batch, losses), 3)
        ratios.append(slow / median_seconds(lambda: history.rank(batch), 30))
    return statistics.median(ratios)


class Drawn:
    """Batches that are there already, under the indices of the examples that were drawn."""

    indexed = True

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.examples, self._batches = EXAMPLES, cycle(batches)
        self._drawn = torch.arange(EXAMPLES)

    def only(self, drawn: Tensor) -> None:
        """Leaves all other examples out."""
        self._drawn = drawn

    def __iter__(self) -> Iterator[Any]:
        for indices in self._drawn.split(BATCH):
            if len(indices) == BATCH:
                yield indices, next(self._batches)


class Loops:
    """Traditional, SB, and SB with given losses, over the same batches with a model each."""

    def __init__(self, setting: str, batches: int, device: torch.device) -> None:
        self.autocast, layout = SETTINGS[setting]
        self.device, self.batches = device, batches
        generator = torch.Generator().manual_seed(0)
        self.data = [
            (
                torch.randn(BATCH, 3, 32, 32, generator=generator).to(device, memory_format=layout),
                torch.randint(10, (BATCH,), generator=generator).to(device),
            )
            for _ in range(batches)
        ]
        self.models = []
        for _ in range(3):
            torch.manual_seed(0)
            model = build("resnet18", width=16, classes=10, channels=3)
            self.models.append(model.to(device, memory_format=layout))
        self.optimizers = [torch.optim.SGD(m.parameters(), 0.01, 0.9) for m in self.models]
        # One draw of losses for each batch; which they are makes no difference to the cost.
        stored = cycle(torch.rand(97, BATCH, generator=generator).to(device))
        self.selective = [
            self._loader(self.models[1], F.cross_entropy),
            self._loader(self.models[2], None, losses=lambda model, batch: next(stored)),
        ]
        memory = Memory(keep=KEEP, warmup=Epochs(0))
        self.remembering = SelectiveLoader(Drawn(self.data), memory=memory, pool=Pool(BATCH))
        memory.update(torch.arange(EXAMPLES), torch.rand(EXAMPLES, generator=generator), epoch=0)

    def _loader(self, model: nn.Module, loss_fn: Any, **arguments: Any) -> SelectiveLoader:
        return SelectiveLoader(
            self.data, model, loss_fn, selector=Percentile(keep=KEEP, history=HISTORY),
            scorer=Fresh(autocast=self.autocast), pool=Pool(BATCH, drop_last="carry"),
            schedule=Schedule(warmup=Epochs(0)), **arguments,
        )  # fmt: skip

    def casting(self) -> Any:
        """The precision of the setting, for training and scoring alike."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def step(self, which: int, batch: tuple[Tensor, Tensor]) -> Tensor:
        """One training step of one of the models; gives its losses."""
        inputs, targets = batch
        with self.casting():
            losses = F.cross_entropy(self.models[which](inputs), targets, reduction="none")
        losses.mean().backward()
        self.optimizers[which].step()
        self.optimizers[which].zero_grad()
        return losses.detach()

    def clock(self) -> float:
        """The time, when all that was asked of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def traditional(self) -> float:
        """Seconds per batch of ordinary training."""
        started = self.clock()
        for batch in self.data:
            self.step(0, batch)
        return (self.clock() - started) / self.batches

    def forward(self) -> float:
        """Seconds per batch of a forward pass as a scoring pass makes it."""
        model = self.models[0].eval()
        started = self.clock()
        with torch.no_grad(), self.casting():
            for inputs, _ in self.data:
                model(inputs)
        seconds = (self.clock() - started) / self.batches
        model.train()
        return seconds

    def sb(self) -> tuple[float, float]:
        """Seconds per batch, and the share of the examples that was trained on."""
        before = self.selective[0].stats.released
        started = self.clock()
        for batch in self.selective[0]:
            self.step(1, batch)
        seconds = (self.clock() - started) / self.batches
        share = (self.selective[0].stats.released - before) / (BATCH * self.batches)
        return seconds, share

    def own_code(self) -> float:
        """Seconds per batch in the loader's own code, with training steps between as ever."""
        batches: Iterator[Any] = iter(self.selective[1])
        seconds = 0.0
        while True:
            started = self.clock()
            batch = next(batches, None)
            seconds += self.clock() - started
            if batch is None:
                return seconds / self.batches
            self.step(2, batch)

    def memory(self) -> float:
        """Seconds that memory adds to a batch, with training steps between as ever."""
        started = self.clock()
        batches = iter(self.remembering)
        batch = next(batches)
        drawing = self.clock() - started
        seconds = 0.0
        for _ in range(self.batches):
            losses = self.step(2, batch)
            started = self.clock()
            self.remembering.record(losses)
            batch = next(batches)
            seconds += self.clock() - started
        self.remembering.record(losses)
        return seconds / self.batches + drawing * BATCH / (KEEP * EXAMPLES)


def measure(setting: str, rounds: int, batches: int, device: torch.device) -> list[Goal]:
    loops = Loops(setting, batches, device)
    own, ideal, own_ideal, forwards, shares, memory = [], [], [], [], [], []
    for turn in track(range(rounds + 2), description=setting, transient=True):
        traditional, forward = loops.traditional(), loops.forward()
        sb, share = loops.sb()
        code, remembering = loops.own_code(), loops.memory()
        if turn < 2:
            continue  # warming up, and filling the pool and the history
        own.append(code / sb)
        ideal.append(sb / (traditional * (1 + 3 * share) / 3))
        own_ideal.append(sb / (forward + share * traditional))
        forwards.append(forward / traditional)
        shares.append(share)
        memory.append(remembering / traditional)
    middle = {
        name: statistics.median(values)
        for name, values in (
            ("own", own), ("ideal", ideal), ("own ideal", own_ideal), ("memory", memory)
        )
    }  # fmt: skip
    return [
        Goal(setting, "share trained on, s", statistics.mean(shares)),
        Goal(setting, "forward over step, f", statistics.median(forwards)),
        Goal(setting, "selection beyond its forward, over SB step", middle["own"],
             "at most 0.005", middle["own"] <= 0.005),
        Goal(setting, "SB step over ideal (1+3s)/3", middle["ideal"],
             "at most 1.05", middle["ideal"] <= 1.05),
        Goal(setting, "SB step over ideal f+s", middle["own ideal"]),
        Goal(setting, "memory's draw and record, over training step", middle["memory"],
             "at most 0.005", middle["memory"] <= 0.005),
    ]  # fmt: skip


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="fewer rounds, fp32 alone")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, help="rounds of each setting (9; 3 if quick)")
    asked = begin(parser)
    rounds = asked.rounds or (3 if asked.quick else 9)
    speedup, long = selection_speedup(rounds), long_history_speedup(rounds)
    goals = [
        Goal("128 losses", "Algorithm 2 one at a time over Percentile", speedup,
             "at least 80", speedup >= 80),
        Goal("128 losses", "sorting a history of 1e6 over LossHistory", long,
             "at least 10", long >= 10),
    ]  # fmt: skip
    for setting in list(SETTINGS)[: 1 if asked.quick else None]:
        goals += measure(setting, rounds, 6, torch.device(asked.device))
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
