"""The milliseconds of a training step on a GPU, plain and by every kind of selection.

``python benchmarks/gpu.py --json results/benchmarks/gpu.json`` trains a ResNet-18 of width 64 on
batches of 128 and of 1,024, and a GPT of 25 million parameters, in bfloat16, on data that are on
the device. In each round plain training, two rules, exact selection after reading, the single pass
and forwards alone have their turn, an epoch each; times are medians over the rounds, per batch of
the wrapped loader. With P the time of a plain step, O of the optimizer's, F of a forward in
training and E of one in a scoring pass, and s the share kept, the ideals are: P of a rule, whose
epochs have as many steps; ``E + s P`` of selection after reading; ``F + s (P - F - O) + O`` of the
single pass. How often the host waits for the device in a step is counted by PyTorch.

``python benchmarks/gpu.py --budgets --minutes 9 --folder FOLDER`` trains the recipe ``pays-gpu``,
the longest runs first, or another ``--recipe``, a run in each of several processes, and goes on
where the last call stopped; each draws the figures of what is recorded so far. Steps of a small
network leave most of a GPU idle: under NVIDIA's Multi-Process Service (``nvidia-cuda-mps-control
-d``) those of several processes run at once, without it in turns. Seconds are then of runs beside
others. Data are read from ``SIFTBACK_DATA``. With ``--device auto`` records say no device, so that
``siftback run`` can go on with them elsewhere. All is tried without a GPU by ``--device cpu
--quick``.
"""

import argparse
import itertools
import multiprocessing
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from goals import Goal, begin, options, report
from siftback import EpochRule, Epochs, Fresh, Memory, Schedule, SelectiveLoader, SinglePass
from siftback.batches import tree
from siftback.cli.options import parse_seeds
from siftback.lab.experiments.comparison import (
    TOKENIZER,
    Plan,
    compare,
    is_finished,
    prepare_data,
)
from siftback.lab.models import build
from siftback.lab.recipes.recipe import Scale, draw_recipe, find_recipe, plan_cost, recipe_plans
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import is_comparison
from siftback.lab.run.checkpoints import CheckpointPolicy
from siftback.lab.run.progress import Reporter
from single_pass import image_losses, medians, token_losses

TITLE = "What a step on {device} costs: resnet18 of width 64 and a GPT, bf16, data on the device"
RECIPE = "pays-gpu"
KEEP = 1 / 3
EPOCHS = 10_000  # of a training that does not end
LEAST = {"rule": 0.97, "selects": 0.95}  # of the ideal's speed
SAVED = CheckpointPolicy(seconds=30.0, keep=1)
RULES: dict[str, Callable[[], EpochRule]] = {
    "Memory(keep=1/3)": lambda: Memory(keep=KEEP, warmup=Epochs(0)),
    "Memory()": lambda: Memory(warmup=Epochs(0)),
}


class Sizes(NamedTuple):
    """The size of a training: of the model, of its data, and of a batch.

    Attributes:
        model: Name of the model.
        width: Its width.
        examples: The number of them.
        batch: How many a batch has.
        classes: Number of classes; of text of tokens.
        length: Tokens of a text; None of images.
    """

    model: str
    width: int
    examples: int
    batch: int
    classes: int = 10
    length: int | None = None


FULL = (
    Sizes("resnet18", 64, 12_800, 128),
    Sizes("resnet18", 64, 51_200, 1024),
    Sizes("gpt", 640, 4096, 64, classes=4096, length=256),
)
QUICK = (Sizes("fastcnn", 4, 64, 16), Sizes("gpt", 32, 64, 16, classes=64, length=16))


class OnDevice(Dataset[Any]):
    """Examples on a device, of which a batch is gathered at once.

    Args:
        batch: All of them; images are [N, H, W, C], so that those of a batch lie channels last.
    """

    def __init__(self, batch: Any) -> None:
        self.batch, self.device = batch, tree.tensors(batch)[0].device

    def __len__(self) -> int:
        return tree.size(self.batch)

    def __getitems__(self, indices: list[int]) -> Any:
        rows = torch.tensor(indices)
        if self.device.type == "cuda":
            rows = rows.pin_memory().to(self.device, non_blocking=True)
        return tree.take(self.batch, rows)


class Training:
    """A model, its data and its optimizer, with the ways to train it for an epoch."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        torch.manual_seed(0)
        self.device, classes, length = device, sizes.classes, sizes.length
        self.losses: Callable[[nn.Module, Any], Tensor]
        if length is not None:
            data: Any = torch.randint(classes, (sizes.examples, length + 1), device=device)
            shape = {"vocabulary": classes, "length": length}
            self.losses = token_losses
        else:
            images = torch.randn(sizes.examples, 32, 32, 3, device=device)
            data = images, torch.randint(classes, (sizes.examples,), device=device)
            shape = {"channels": 3}
            self.losses = channels_last_losses
        self.model = build(sizes.model, width=sizes.width, classes=classes, **shape).to(device)
        if length is None:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, 0.9)
        self.loader = DataLoader(
            OnDevice(data), sizes.batch, shuffle=True, drop_last=True, collate_fn=as_it_is
        )
        self.steps = len(self.loader)

    def casting(self) -> torch.autocast:
        """Returns a context of mixed precision."""
        return torch.autocast(self.device, torch.bfloat16)

    def step(self, loss: Tensor) -> None:
        """Makes the optimizer's step after the backward of a loss."""
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def plain(self) -> None:
        """Trains for an epoch without selection."""
        for batch in self.loader:
            with self.casting():
                loss = self.losses(self.model, batch).mean()
            self.step(loss)

    def forward(self) -> None:
        """Makes the forwards of an epoch of training."""
        for batch in self.loader:
            with self.casting():
                self.losses(self.model, batch).mean()

    def scoring(self) -> None:
        """Makes the forwards of a scoring pass over an epoch."""
        self.model.eval()
        for batch in self.loader:
            with torch.no_grad(), self.casting():  # weights that have changed are cast each time
                self.losses(self.model, batch)
        self.model.train()

    def optimizing(self) -> None:
        """Makes the optimizer's steps of an epoch."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for _ in range(self.steps):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def selective(self, loader: SelectiveLoader) -> Callable[[], None]:
        """Returns an epoch with a rule, or with selection after reading."""

        def epoch() -> None:
            for batch in loader:
                with self.casting():
                    losses = self.losses(self.model, batch)
                self.step(loader.loss(losses))

        return epoch

    def single_pass(self) -> Callable[[], None]:
        """Returns an epoch of the single pass."""
        sift = SinglePass(
            self.model, losses=self.losses, keep=KEEP, schedule=Schedule(warmup=Epochs(0))
        )

        def epoch() -> None:
            for batch in self.loader:
                with self.casting():
                    loss = sift(batch)
                self.step(loss)

        return epoch

    def ways(self) -> dict[str, Callable[[], None]]:
        """Returns all ways to spend an epoch, by name."""
        ways: dict[str, Callable[[], None]] = {"plain": self.plain}
        for name, make in RULES.items():
            ways[name] = self.selective(SelectiveLoader(self.loader, memory=make(), epochs=EPOCHS))
        exact = SelectiveLoader(
            self.loader, self.model, losses=self.losses, keep=KEEP, exact=True,
            scorer=Fresh(autocast=torch.bfloat16), schedule=Schedule(warmup=Epochs(0)),
        )  # fmt: skip
        ways["keep=1/3, after reading"] = self.selective(exact)
        ways["SinglePass(keep=1/3)"] = self.single_pass()
        return ways


def as_it_is(batch: Any) -> Any:
    return batch


def channels_last_losses(model: nn.Module, batch: Any) -> Tensor:
    """Returns the losses of images that are [N, H, W, C]."""
    images, labels = batch
    return image_losses(model, (images.permute(0, 3, 1, 2), labels))


def count_waits(name: str, epoch: Callable[[], None]) -> int:
    """Returns how often the host waits for the GPU in an epoch, and prints where it does."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            epoch()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "synchronizing CUDA operation" in str(each.message)]
    lines = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in waits)
    print(f"{name} waits: {dict(lines) or 'never'}")
    return len(waits)


def measure(sizes: Sizes, rounds: int, device: str) -> list[Goal]:
    """Times the epochs of one training, all in turns."""
    training = Training(sizes, device)
    ways = training.ways()
    apart = {
        "forward": training.forward,
        "scoring": training.scoring,
        "optimizer": training.optimizing,
    }
    took = {
        name: 1000 * seconds / training.steps
        for name, seconds in medians(ways | apart, rounds, device).items()
    }
    kept = round(KEEP * sizes.batch) / sizes.batch
    plain, forward, optimizer = took["plain"], took["forward"], took["optimizer"]
    ideals = dict.fromkeys(["plain", *RULES], plain) | {
        "keep=1/3, after reading": took["scoring"] + kept * plain,
        "SinglePass(keep=1/3)": forward + kept * (plain - forward - optimizer) + optimizer,
    }
    goals = []
    for name, epoch in ways.items():
        where = f"{sizes.model} of width {sizes.width}, batch {sizes.batch:,}: {name}"
        speed = ideals[name] / took[name]
        least = None if name == "plain" else LEAST["rule" if name in RULES else "selects"]
        goals += [
            Goal(where, "milliseconds a step", took[name]),
            Goal(where, "over plain's", took[name] / plain),
            Goal(
                where, "ideal over it", speed, f"at least {least}" if least else "",
                speed >= least if least else None,
            ),
        ]  # fmt: skip
        if device == "cuda":
            goals.append(Goal(where, "waits a step", count_waits(name, epoch) / training.steps))
    return goals


def save_data(plan: Plan, path: Path) -> Path:
    """Reads or makes the data of a plan once for all processes, which map the file."""
    torch.set_num_threads(1)
    torch.save(prepare_data(plan), path)
    return path


def train_run(plan: Plan, folder: Path, path: Path) -> None:
    """Goes on with a comparison of one run."""
    torch.set_num_threads(1)
    data = torch.load(path, mmap=True, weights_only=False)
    compare(plan, folder, Reporter(), "resume", policy=SAVED, data=data)


def single_runs(plan: Plan, asked: argparse.Namespace) -> Iterator[Plan]:
    """Yields a plan for each strategy and seed of a plan of equal budgets that are asked for."""
    seeds = parse_seeds(asked.seeds) if asked.seeds else plan.seeds
    strategies = asked.strategies.split(",") if asked.strategies else plan.strategies
    for seed, strategy in itertools.product(plan.seeds, plan.strategies):
        if seed in seeds and strategy in strategies:
            yield replace(plan, seeds=[seed], strategies=[strategy])


def join_runs(plan: Plan, folder: Path, parts: Iterable[Path]) -> None:
    """Copies runs that have ended into the folder of their comparison.

    Args:
        plan: The comparison's.
        folder: Its folder.
        parts: Those of its single runs.
    """
    joined = {}
    for part in filter(is_comparison, parts):
        for run in Comparison.read(part).runs:
            joined[run.record] = run  # in place of one of other settings
            (folder / run.record).parent.mkdir(parents=True, exist_ok=True)
            for name in filter(lambda name: (part / name).is_file(), (run.record, TOKENIZER)):
                shutil.copy(part / name, folder / name)
    if comparison := Comparison.recover(folder):
        order = {run.record: number for number, run in enumerate(plan.runs())}
        runs = {run.record: run for run in comparison.runs} | joined
        comparison.runs[:] = sorted(
            runs.values(), key=lambda run: order.get(run.record, len(order))
        )
        comparison.environment["arguments"] = plan.arguments()
        comparison.write()


def data_key(plan: Plan) -> tuple[Any, ...]:
    """Returns what decides the data of a plan."""
    settings = plan.settings
    return (
        *(settings.data, settings.train_limit, settings.validation, settings.flip),
        *(settings.max_tokens, settings.rare, settings.subset),
    )


def train_budgets(asked: argparse.Namespace) -> None:
    """Trains the runs of the recipe, until all are finished or the time is up.

    Raises:
        SystemExit: If one fails.
    """
    ends = time.monotonic() + 60 * asked.minutes
    recipe, scale = find_recipe(asked.recipe), Scale.SMALL if asked.quick else Scale.FULL
    plans = recipe_plans(recipe, scale, asked.folder, {"device": asked.device})
    plans = {path: plan for path, plan in plans.items() if asked.only in (None, plan.settings.data)}
    parts = {
        path: {
            asked.folder / "parts" / path.name / single.runs()[0].name: single
            for single in single_runs(plan, asked)
        }
        for path, plan in plans.items()
    }
    left = [
        (folder, single)
        for path, singles in parts.items()
        for folder, single in singles.items()
        if not is_finished(single, path)
    ]
    if asked.recipe == RECIPE:  # the longest first; other recipes have an order of their own
        left.sort(key=lambda part: -(plan_cost(part[1]) or 0.0))
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as data,
        ProcessPoolExecutor(asked.processes, mp_context=spawn) as pool,
    ):
        try:
            train_side_by_side(pool, asked.processes, dict(left), Path(data), ends)
        finally:
            for process in multiprocessing.active_children():
                process.terminate()
            for path, plan in plans.items():
                join_runs(plan, path, parts[path])
            finished = [
                is_finished(single, path)
                for path, singles in parts.items()
                for single in singles.values()
            ]
            print(f"{sum(finished)} of {len(finished)} runs are finished")
    for analysis, paths in draw_recipe(recipe, scale, asked.folder, plans):
        print(analysis.name, *paths, sep="\n  ")


def train_side_by_side(
    pool: Executor, processes: int, plans: dict[Path, Plan], data: Path, ends: float
) -> None:
    """Gives runs to the processes of a pool as they become free, until a time.

    Args:
        pool: The processes.
        processes: Their number.
        plans: Plans of runs by their folders, in the order of their use; those begun are taken out.
        data: Folder for the data sets.
        ends: The time of ``time.monotonic``.

    Raises:
        SystemExit: If a run fails.
    """
    files: dict[tuple[Any, ...], Future[Path]] = {}
    running: set[Future[Any]] = set()
    while (plans or running) and time.monotonic() < ends:
        for done in [future for future in running if future.done()]:
            running.remove(done)
            if error := done.exception():
                raise SystemExit(f"{error}\nthe other runs go on with the next call")
        ready = []
        for folder, plan in itertools.islice(plans.items(), 2 * processes):
            key = data_key(plan)
            if key in files and files[key].done():
                ready.append(folder)
            elif key not in files and len(running) < processes:
                files[key] = pool.submit(save_data, plan, data / f"{len(files)}.pt")
                running.add(files[key])
        if ready and len(running) < processes:
            folder = ready[0]
            plan = plans.pop(folder)
            path = files[data_key(plan)].result()
            running.add(pool.submit(train_run, plan, folder, path))
        else:
            time.sleep(0.05)


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="tiny models, one round")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda", "auto"))
    parser.add_argument("--rounds", type=int, help="of each training, 5 by default")
    parser.add_argument("--minutes", type=float, default=9.0, help="no work is begun after these")
    parser.add_argument("--budgets", action="store_true", help="train at several budgets")
    parser.add_argument("--recipe", default=RECIPE, help="name or file of what is trained")
    parser.add_argument("--seeds", help="of the recipe's, separated by commas; by default all")
    parser.add_argument("--strategies", help="likewise")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/gpu"), help="of the budgets' runs"
    )
    parser.add_argument("--only", help="the data set of the budgets; by default all")
    parser.add_argument("--processes", type=int, default=4, help="runs side by side")
    asked = begin(parser)
    if asked.budgets:
        train_budgets(asked)
        return
    if asked.device == "auto":
        parser.error("--device auto is of --budgets: give cpu or cuda")
    torch.backends.cudnn.benchmark = True
    ends = time.monotonic() + 60 * asked.minutes
    goals: list[Goal] = []
    for sizes in QUICK if asked.quick else FULL:
        if time.monotonic() < ends:
            goals += measure(sizes, asked.rounds or (1 if asked.quick else 5), asked.device)
        else:
            print(f"{sizes} is left out: {asked.minutes:g} minutes are over")
    card = torch.cuda.get_device_name() if asked.device == "cuda" else "a processor"
    report(TITLE.format(device=card), goals, asked)


if __name__ == "__main__":
    main()
