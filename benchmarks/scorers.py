"""The cost of scores that are remembered, predicted or cheap.

1. A `ScoreTable` of 1e6, 1e7 and 1e8 examples, in memory and in a mapped file: rows recorded and
   gathered in batches of random indices, and rows of whole-table scores, in millions per second;
   the resident memory that a table adds once every row was recorded, in bytes per row, and the most
   that the process has had, in MB. For a file these count the pages of it that are in memory.
   Each table has a process of its own.
2. The predictions of `GaussianProcess` for all examples, against scikit-learn's regressor in a
   loop over examples, per example: with the epochs that ``every=3`` and training of a third of
   the examples leave, and with epochs that differ from example to example. Both are timed in
   turns, and the ratio is the median over rounds.
3. An epoch with each scorer, over its ideal, for a narrow `resnet18` and a ViT on images of
   CIFAR's shape. With T the time of Traditional's epoch, P that of a bare scoring pass over all
   examples (`Scorer.score` alone) and s the share actually kept, the ideal is
   ``passes * P + s * T``, where an epoch has 1 pass, 1/3 (`Stale`) or none. In each round
   every loop has its turn; ratios are medians over rounds. For larger selection batches it is the
   time over that of one as large as the training batch.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import nn

from goals import Goal, begin, median_seconds, options, report
from siftback import (
    Epochs,
    Memory,
    Percentile,
    Pool,
    Reduced,
    Schedule,
    ScoreTable,
    SelectiveLoader,
    Stale,
    Uniform,
)
from siftback.contrib import Downsampled, GaussianProcess, Int8
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.stream import BatchStream
from siftback.lab.forward import example_losses
from siftback.lab.models import build
from transformers import Vit

TITLE = "What scores from elsewhere cost: keep 1/3, batch 128"
ROWS = (10**6, 10**7, 10**8)
BATCHES = (128, 4096)
FILL = 1 << 16  # rows recorded at a time to fill a table
GP_SPEEDUP = 100
KEEP, BATCH, NEAR_IDEAL = 1 / 3, 128, 0.95


def memory(name: str) -> int:
    """Bytes of this process's memory: VmRSS is what is resident, VmHWM the most that was."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def table_numbers(rows: int, folder: str | None, threads: int) -> dict[str, float]:
    """Measures a table of a number of rows, in memory or in a file of a folder."""
    torch.set_num_threads(threads)
    fill(ScoreTable(FILL), FILL)  # so that what a first call loads is not the table's
    before = memory("VmRSS")
    table = ScoreTable(rows, path=None if folder is None else Path(folder) / "scores.table")
    fill(table, rows)
    added = (memory("VmRSS") - before) / rows
    numbers, generator = {}, torch.Generator().manual_seed(0)
    for batch in BATCHES:
        batches = torch.randint(rows, (1 << 20,), generator=generator).split(batch)
        scores = torch.rand(batch, generator=generator)
        started = time.perf_counter()
        for indices in batches:
            table.record(indices, scores)
        recorded = time.perf_counter()
        for indices in batches:
            table.values[indices]
        gathered = time.perf_counter()
        millions = len(batches) * batch / 1e6
        numbers[f"record by {batch}, M/s"] = millions / (recorded - started)
        numbers[f"gather by {batch}, M/s"] = millions / (gathered - recorded)
    numbers["all scores, M/s"] = rows / median_seconds(table.scores, 3) / 1e6
    numbers["bytes per row"] = added
    numbers["most MB"] = memory("VmHWM") / 1e6
    return numbers


def fill(table: ScoreTable, rows: int) -> None:
    """Records every row."""
    scores = torch.rand(FILL, generator=torch.Generator().manual_seed(0))
    for start in range(0, rows, FILL):
        indices = torch.arange(start, min(start + FILL, rows))
        table.record(indices, scores[: len(indices)])


def tables(asked: argparse.Namespace) -> list[Goal]:
    """Throughput and memory of `ScoreTable`."""
    goals = []
    spawn = multiprocessing.get_context("spawn")
    for rows in track(ROWS[: 2 if asked.quick else None], description="tables", transient=True):
        for place in ("memory", "file"):
            with (
                tempfile.TemporaryDirectory() as folder,
                ProcessPoolExecutor(1, mp_context=spawn) as process,
            ):
                given = folder if place == "file" else None
                threads = torch.get_num_threads()
                numbers = process.submit(table_numbers, rows, given, threads).result()
            setting = f"{rows:.0e} rows, {place}"
            goals += [Goal(setting, what, value) for what, value in numbers.items()]
    return goals


def as_training_leaves(process: GaussianProcess, examples: int, epochs: int) -> None:
    """Passes over all every third epoch, and training on a random third in each."""
    generator = torch.Generator().manual_seed(1)
    for epoch in range(epochs):
        if epoch % process.every == 0:
            scores = torch.rand(examples, generator=generator)
            process.rescore(torch.arange(examples), scores, epoch)
        chosen = torch.randperm(examples, generator=generator)[: examples // 3]
        process.update(chosen, torch.rand(len(chosen), generator=generator), epoch)


def at_random(process: GaussianProcess, examples: int, epochs: int) -> None:
    """Every example seen in epochs of its own, a fifth of all of them."""
    generator = torch.Generator().manual_seed(2)
    for epoch in range(5 * epochs):
        chosen = torch.rand(examples, generator=generator) < 0.2
        indices = chosen.nonzero().squeeze(1)
        process.rescore(indices, torch.rand(len(indices), generator=generator), epoch)


HISTORIES: dict[str, Callable[[GaussianProcess, int, int], None]] = {
    "process, epochs as training leaves them": as_training_leaves,
    "process, epochs at random": at_random,
}


def one_at_a_time(process: GaussianProcess, count: int, epoch: int) -> Callable[[], object]:
    """The predictions of the first examples by scikit-learn, one after the other."""
    losses, epochs = process.values.split(process.history, 1)
    latest = losses[:, -1].double()
    mean, variance = float(latest.mean()), float(latest.var(correction=0))
    kernel = ConstantKernel(variance) * RBF(process.length_scale)
    kernel += WhiteKernel(process.noise * variance)
    examples = []
    for row in range(count):
        there = ~epochs[row].isnan()
        when = epochs[row][there].double().numpy()[:, None]
        examples.append((when, (losses[row][there].double() - mean).numpy()))

    def predict() -> list[tuple[float, float]]:
        found = []
        for when, residuals in examples:
            regressor = GaussianProcessRegressor(kernel, alpha=0, optimizer=None)
            means, sds = regressor.fit(when, residuals).predict([[epoch]], return_std=True)
            found.append((mean + float(means[0]), float(sds[0])))
        return found

    return predict


def processes(asked: argparse.Namespace) -> list[Goal]:
    """`GaussianProcess` against scikit-learn in a loop."""
    examples, count, rounds = (20_000, 50, 3) if asked.quick else (50_000, 200, 7)
    goals = []
    for setting, observe in HISTORIES.items():
        process = GaussianProcess(keep=KEEP)
        process.grow(examples)
        observe(process, examples, 12)
        epoch = 60
        slow = one_at_a_time(process, count, epoch)
        expected = torch.tensor(slow())
        found = torch.stack(process.posterior(epoch), 1)[:count]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        ratios, seconds = [], []
        for _ in track(range(rounds), description=setting, transient=True):
            ours = median_seconds(lambda: process.posterior(epoch), 3) / examples  # noqa: B023
            ratios.append(median_seconds(slow, 1) / count / ours)
            seconds.append(ours)
        speedup = statistics.median(ratios)
        goals += [
            Goal(setting, "scikit-learn in a loop over ours", speedup,
                 f"at least {GP_SPEEDUP}", speedup >= GP_SPEEDUP),
            Goal(setting, "predicted, M/s", 1e-6 / statistics.median(seconds)),
        ]  # fmt: skip
    return goals


class Loop:
    """A training loop of one model, an epoch at a time."""

    def __init__(self, model: nn.Module, source: BatchStream | SelectiveLoader) -> None:
        self.model, self.source = model, source
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run(self, epochs: int) -> float:
        """Seconds of an epoch."""
        started = time.perf_counter()
        for _ in range(epochs):
            for batch in self.source:
                each = example_losses(self.model, batch)
                selects = isinstance(self.source, SelectiveLoader)
                loss = self.source.loss(each) if selects else each.mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
        return (time.perf_counter() - started) / epochs


class Way(NamedTuple):
    """A way to select.

    Attributes:
        arguments: Makes what the loader is given.
        passes: Scoring passes per epoch.
        has_goal: Whether an epoch is to be near its ideal.
    """

    arguments: Callable[[], dict[str, Any]]
    passes: float
    has_goal: bool


AT_ONCE = Epochs(0)


def percentile(**more: Any) -> dict[str, Any]:
    return {"selector": Percentile(keep=KEEP), "schedule": Schedule(warmup=AT_ONCE), **more}


WAYS = {
    "random": Way(lambda: {"selector": Uniform(keep=KEEP)}, 0, True),
    "sb": Way(percentile, 1, False),
    "stale-sb, n = 3": Way(
        lambda: {"memory": Stale(keep=KEEP, every=3, warmup=AT_ONCE)}, 1 / 3, True
    ),
    "sb-memory": Way(lambda: {"memory": Memory(keep=KEEP, floor=0.0, warmup=AT_ONCE)}, 0, False),
    "sb-bf16": Way(lambda: percentile(scorer=Reduced("bf16", channels_last=True)), 1, True),
    "sb-int8": Way(lambda: percentile(scorer=Int8(channels_last=True)), 1, False),
    "sb-small": Way(lambda: percentile(scorer=Downsampled(2)), 1, False),
}
SELECTION_BATCHES = (2, 4, 8)


def images(batches: int) -> ImageData:
    """So many batches of random images, larger ones of 8 times the size among them."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (batches * BATCH, 3, 32, 32), generator=generator)
    labels = torch.randint(10, (len(pixels),), generator=generator)
    return ImageData(
        "random", pixels.byte(), labels, pixels[:1].byte(), labels[:1], tuple("0123456789")
    )


def resnet() -> nn.Module:
    model = build("resnet18", width=8, classes=10, channels=3)
    return model.to(memory_format=torch.channels_last)


def epochs(asked: argparse.Namespace) -> list[Goal]:
    """An epoch with each scorer over its ideal."""
    rounds = 3 if asked.quick else 15
    data = images(8)
    models = {"resnet18": resnet} | ({} if asked.quick else {"vit": lambda: Vit(10)})
    return [goal for name, make in models.items() for goal in of_model(name, make, data, rounds)]


def of_model(name: str, make: Callable[[], nn.Module], data: ImageData, rounds: int) -> list[Goal]:
    """The goals of one model; a ViT takes no images of another size."""
    plain = Loop(make(), BatchStream(data, BATCH, seed=0))
    batch = next(plain.source.plain(BATCH))
    passes = len(data.train_labels) // BATCH
    loops: dict[str, Loop] = {}
    ways = {way: its for way, its in WAYS.items() if name != "vit" or way != "sb-small"}
    for way, its in ways.items():
        loops[way] = looping(make(), data, BATCH, its.arguments())
    skipped = () if name == "vit" else SELECTION_BATCHES
    for times in skipped:
        loops[f"selection batch {times}"] = looping(make(), data, times * BATCH, percentile())
    for loop in (plain, *loops.values()):
        loop.run(3)  # kernels are chosen, and what is remembered is there
    taken: dict[str, list[float]] = {way: [] for way in loops}
    ideals: dict[str, list[float]] = {way: [] for way in ways}
    for _ in track(range(rounds), description=name, transient=True):
        whole = plain.run(1)
        for way, loop in loops.items():
            before = (loop.source.stats.seen, loop.source.stats.released)
            taken[way].append(loop.run(3))
            if way not in ways:
                continue
            stats = loop.source.stats
            share = (stats.released - before[1]) / (stats.seen - before[0])
            often = WAYS[way].passes
            bare = often and passes * median_seconds(
                lambda scorer=loop.source.scorer, model=loop.model: scorer.score(
                    example_losses, model, batch, None
                ),
                3,
            )
            ideals[way].append((often * bare + share * whole) / taken[way][-1])
    goals = []
    for way, found in ideals.items():
        ratio = statistics.median(found)
        wanted = WAYS[way].has_goal
        goals.append(
            Goal(f"{name}, {way}", "ideal over measured epoch", ratio,
                 f"at least {NEAR_IDEAL}" if wanted else "",
                 ratio >= NEAR_IDEAL if wanted else None)
        )  # fmt: skip
    for times in skipped:
        pairs = zip(taken[f"selection batch {times}"], taken["sb"], strict=True)
        ratio = statistics.median(larger / usual for larger, usual in pairs)
        goals.append(
            Goal(f"{name}, sb, selection batch {times * BATCH}", "over that of 128", ratio)
        )
    return goals


def looping(model: nn.Module, data: ImageData, batch: int, arguments: dict[str, Any]) -> Loop:
    """A loop whose loader selects in batches of a size."""
    stream = BatchStream(data, batch, seed=0, indexed=True)
    pool = Pool(BATCH, drop_last="carry")
    loader = SelectiveLoader(stream, model, losses=example_losses, pool=pool, **arguments)
    return Loop(model, loader)


PARTS: dict[str, Callable[[argparse.Namespace], list[Goal]]] = {
    "tables": tables,
    "processes": processes,
    "epochs": epochs,
}


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="tables up to 1e7 rows, fewer examples")
    parser.add_argument("--only", choices=PARTS, help="a single part")
    asked = begin(parser)
    parts = [asked.only] if asked.only else PARTS
    report(TITLE, [goal for part in parts for goal in PARTS[part](asked)], asked)


if __name__ == "__main__":
    main()
