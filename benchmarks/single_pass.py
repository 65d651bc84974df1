"""The single pass over its ideal, and its memory and compilation.

A step here is a forward and a backward pass, without the optimizer's, which is the same for all.
In each round Traditional's step on N examples, two-pass SB's (a scoring forward on N, then a
step on the k kept), the single pass's and a forward on N have their turn; ratios are of medians
over rounds. With f the forward's share of Traditional's step, as measured, and s the share kept,
the ideal speed-ups over Traditional are ``1 / (f + (1 - f) s)`` for the single pass and
``1 / (f + s)`` for two passes. Memory is the peak of what PyTorch allocates during a step, above
what was there before.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault(
    "KINETO_LOG_LEVEL", "99"
)  # the profiler otherwise writes a line at each start

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from goals import Goal, begin, options, report
from siftback import Epochs, Percentile, Schedule, SinglePass, probe
from siftback.batches import tree
from siftback.lab.models import build
from step_profile import Step, profiled, shares
from transformers import Gpt, Vit

TITLE = "What the single pass saves: {n} examples, resnet18 of width 64, 3x32x32; text of 64 tokens"
PROFILE_TITLE = "Where a step of the single pass goes, in percent of it: {n} examples"
CLASSES, VOCABULARY, LENGTH = 10, 256, 64
PROBED_SECONDS = 10  # as the Trainer's method="auto" does
MODELS = ("resnet18 group norm", "resnet18 batch norm", "vit", "gpt", "mixer", "googlenet")
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
# Of the laboratory's own runs on CIFAR-10 and MNIST, on so many times as many examples.
NARROW, SMALL = "narrow resnet18 batch norm", "small cnn"
TIMES = {NARROW: 5, SMALL: 8}
FULL = [
    *((m, p, k) for p in PRECISIONS for m in MODELS for k in (1 / 2, 1 / 3, 1 / 4)),
    *((NARROW, "bf16", k) for k in (3 / 4, 1 / 2, 1 / 3)),
    *((SMALL, "fp32", k) for k in (1 / 2, 1 / 3)),
]
QUICK = [(m, "fp32", 1 / 3) for m in MODELS]
PROFILED = [
    *((m, "bf16", 1 / 3) for m in MODELS),
    ("gpt", "fp32", 1 / 2),
    (NARROW, "bf16", 1 / 2),
    (SMALL, "fp32", 1 / 3),
]


class Setting(NamedTuple):
    """A training: a model, its batch and its losses."""

    model: nn.Module
    batch: Any
    losses: Callable[[nn.Module, Any], Tensor]


def image_losses(model: nn.Module, batch: Any) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none")


def token_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1]).flatten(0, 1)
    each = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    return each.view(len(tokens), -1).mean(1)


def setting(name: str, count: int, device: str) -> Setting:
    torch.manual_seed(0)
    if name == "gpt":
        tokens = torch.randint(VOCABULARY, (count, LENGTH + 1), device=device)
        return Setting(Gpt(VOCABULARY, LENGTH).to(device), tokens, token_losses)
    count *= TIMES.get(name, 1)
    shape = (count, 1, 28, 28) if name == SMALL else (count, 3, 32, 32)
    images = torch.randn(shape, device=device)
    labels = torch.randint(CLASSES, (len(images),), device=device)
    if name == "vit":
        return Setting(Vit(CLASSES).to(device), (images, labels), image_losses)
    if name == "mixer":
        return Setting(Mixer().to(device), (images, labels), image_losses)
    if name == "googlenet":
        model = build("googlenet", width=32, classes=CLASSES, channels=3)
    elif name == SMALL:
        model = build("cnn", width=8, classes=CLASSES, channels=1)
    else:
        width = 8 if name == NARROW else 64
        norm = name.split()[-2]
        model = build("resnet18", width=width, classes=CLASSES, channels=3, norm=norm)
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = images.to(memory_format=torch.channels_last)
    return Setting(model, (images, labels), image_losses)


class Mixing(nn.Module):
    """A multilayer perceptron over the patches, then one over the channels (Tolstikhin et al.)."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.perceptrons = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
            for size in (patches, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns float[N, patches, width]."""
        x = x + self.perceptrons[0](self.norms[0](x).mT).mT
        return x + self.perceptrons[1](self.norms[1](x))


class Mixer(nn.Module):
    """Four blocks over 64 patches of 4x4."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(Mixing(64, width) for _ in range(4)))
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Returns float[N, classes]."""
        return self.classify(self.blocks(self.embed(images).flatten(2).mT).mean(1))


class Prepared(NamedTuple):
    """Steps to time, by name, and the single pass among them."""

    runs: dict[str, Callable[[], Any]]
    sift: SinglePass
    share: float


def prepare(
    name: str, precision: str, keep: float, count: int, device: str, backend: Any
) -> Prepared:
    model, batch, losses = setting(name, count, device)
    count = tree.size(batch)
    kept = round(keep * count)
    at_once = Schedule(warmup=Epochs(0))
    sift = SinglePass(
        model, losses=losses, keep=keep, schedule=at_once, backend=backend, check=False
    )
    selector, generator = Percentile(keep=keep), torch.Generator().manual_seed(0)
    few = tree.take(batch, torch.arange(kept, device=device))
    dtype = PRECISIONS[precision]

    def casting() -> torch.autocast:
        return torch.autocast(device, dtype, enabled=dtype is not None)

    def loss_of(examples: Any) -> Tensor:
        with casting():
            return losses(model, examples).mean()

    def chosen() -> Tensor:
        model.eval()
        with torch.no_grad(), casting():
            scores = losses(model, batch).float()
        model.train()
        rows = selector.select(scores, generator, kept).positions
        return loss_of(tree.take(batch, rows))

    def sifted() -> Tensor:
        with casting():
            return sift(batch)

    runs = {
        "traditional": Step(lambda: loss_of(batch), model),
        "two passes": Step(chosen, model),
        "single pass": Step(sifted, model),
        "forward": lambda: loss_of(batch),
        "few": Step(lambda: loss_of(few), model),
    }
    return Prepared(runs, sift, kept / count)


def medians(runs: dict[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first is for warming up
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in times.items()}


def choice(name: str, precision: str, keep: float, count: int, device: str) -> str:
    """Returns what the Trainer's ``method="auto"`` takes, by a probe as short as its own."""
    model, batch, losses = setting(name, count, device)
    found = probe(
        model,
        [batch],
        losses=losses,
        keep=[keep],
        autocast=PRECISIONS[precision],
        seconds=PROBED_SECONDS,
    )
    return found.faster_pass(keep)


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """The most that PyTorch holds during a call, above what it holds before."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def measure(
    name: str, precision: str, keep: float, count: int, rounds: int, device: str, backend: Any
) -> list[Goal]:
    runs, sift, kept_share = prepare(name, precision, keep, count, device, backend)
    took = medians(runs, rounds, device)
    memory = {each: peak_bytes(run, device) for each, run in runs.items()}
    chosen = choice(name, precision, keep, count, device)
    share = took["forward"] / took["traditional"]
    ideal = 1 / (share + (1 - share) * kept_share)
    speed = took["traditional"] / took["single pass"]
    over_two = took["two passes"] / took["single pass"]
    where = f"{name}, {precision}, keep {keep:.2f}"
    held = memory["single pass"]
    return [
        Goal(where, "forward's share f of Traditional's step", share),
        Goal(
            where, "two passes' speed over Traditional's", took["traditional"] / took["two passes"]
        ),
        Goal(where, "single pass's speed over Traditional's", speed),
        Goal(
            where,
            "single pass's speed over its ideal",
            speed / ideal,
            "at least 0.95",
            speed >= 0.95 * ideal,
        ),
        Goal(
            where,
            "single pass's speed over two passes'",
            over_two,
            'at least 1, or refused by method="auto"',
            over_two >= 1 or chosen == "two_pass",
        ),
        Goal(where, 'method="auto" takes the single pass', float(chosen == "single_pass")),
        Goal(where, "memory over Traditional's, as many forward", held / memory["traditional"]),
        Goal(where, "memory over Traditional's, as many backward", held / memory["few"]),
        Goal(where, "memory over two passes'", held / memory["two passes"]),
        Goal(where, "compilations", sift.stats.compilations),
        Goal(where, "seconds compiling", sift.stats.seconds_compiling),
    ]


def where_time_goes(
    name: str, precision: str, keep: float, count: int, rounds: int, backend: Any
) -> list[Goal]:
    """The kinds of operation that a step's time goes to, beside its ideal's."""
    runs, _, kept_share = prepare(name, precision, keep, count, "cpu", backend)
    times = profiled([runs[each] for each in ("traditional", "few", "single pass")], rounds)
    where = f"{name}, {precision}, keep {keep:.2f}"
    return [
        Goal(f"{where}: {kind}", what, percent)
        for kind, percents in shares(*times, kept_share).items()
        for what, percent in percents.items()
    ]


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="keep 1/3 in fp32 alone, fewer rounds")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--backend", default="graph", choices=("graph", "inductor"))
    parser.add_argument("--examples", type=int, default=48, help="N, examples forward")
    parser.add_argument("--profile", action="store_true", help="show where the time goes (CPU)")
    asked = begin(parser)
    rounds = 5 if asked.quick else 9
    goals = []
    if asked.profile:
        for name, precision, keep in track(PROFILED, "profiling"):
            goals += where_time_goes(name, precision, keep, asked.examples, rounds, asked.backend)
        report(PROFILE_TITLE.format(n=asked.examples), goals, asked)
        return
    for name, precision, keep in track(QUICK if asked.quick else FULL, "measuring"):
        goals += measure(name, precision, keep, asked.examples, rounds, asked.device, asked.backend)
    report(TITLE.format(n=asked.examples), goals, asked)


if __name__ == "__main__":
    main()
