"""Segmentation, detection, several labels and preferences, by remembered losses beside plain.

Small networks learn which digits of MNIST are where, in pictures with at most one in each half, and
with a faint one in both, which does not count: the class of each pixel ("segmentation"), the place
and class of each digit ("detection"), and which of ten digits there are ("labels"). In
"preferences" a network learns a reward from pairs of digits, of which the higher one is preferred
with the probability of Bradley and Terry (1952), so that some pairs disagree; tests are of the true
order. Compared are all examples, random halves (``RS2``) and ``Memory()``, on as many examples.

``python benchmarks/guides/tasks.py --json results/guides/tasks.json`` trains all, in half an hour
on two cores, and writes the record that docs/which_method.md quotes.
"""

import argparse
import functools
import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from guide_records import Run, beside_plain, spread, start_training, write_record
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from siftback import RS2, Memory, per_example
from siftback.lab.data.load import load

BATCH, CLASSES, HELD_OUT = 64, 10, 2000
DIGIT, CELL = 10, 16  # pixels of a side: of a digit, and of the half of a picture
FAINT, INK = 0.3, 0.4  # of digits that do not count; and from where on a pixel is of a digit
RATES = (5e-3, 1e-2, 2e-2)
CODE = {
    "plain": "all examples",
    "random": "`RS2(keep=0.5)`",
    "memory": "`Memory()`",
}


def place(digits: Tensor, offsets: Tensor) -> Tensor:
    """Returns float[N, 16, 32], pictures of two digits, one in each half.

    Args:
        digits: float[N, 2, 10, 10].
        offsets: int64[N, 2, 2], of a digit's first row and column in its half.
    """
    room = CELL - DIGIT
    rows, columns = (room - offsets[..., None] + torch.arange(CELL)).unbind(2)
    padded = F.pad(digits, [room] * 4)
    cells = padded.gather(2, rows[..., None].expand(-1, -1, -1, padded.shape[3]))
    return tile(cells.gather(3, columns[:, :, None].expand(-1, -1, CELL, -1)))


def tile(cells: Tensor) -> Tensor:
    """Returns [N, 16, 32] of its halves, [N, 2, 16, 16]."""
    return torch.cat(cells.unbind(1), 2)


def make_scenes(digits: Tensor, labels: Tensor, count: int, seed: int) -> dict[str, Tensor]:
    """Makes pictures, and what is to be learned of them.

    Args:
        digits: float[M, 10, 10], in [0, 1].
        labels: int64[M].
        count: N.
        seed: Of the digits and their places.

    Returns:
        "inputs": float[N, 1, 16, 32]. "segmentation": int64[N, 16, 32], one more than the digit,
        and 0 of the ground. "detection": float[N, 2, 4], of each half whether it has a digit,
        which, and the row and column of its place, from 0 to 1. "labels": float[N, 10].
    """
    generator = torch.Generator().manual_seed(seed)
    chosen, faint = torch.randint(len(digits), (2, count, 2), generator=generator)
    offsets, others = torch.randint(CELL - DIGIT + 1, (2, count, 2, 2), generator=generator)
    is_there = torch.rand(count, 2, generator=generator) < 0.75
    images = place(digits[chosen] * is_there[..., None, None], offsets)
    classes = tile((1 + labels[chosen])[..., None, None].expand(-1, -1, CELL, CELL))
    segmentation = classes * (images > INK)
    images = images.maximum(FAINT * place(digits[faint], others))
    images = images + 0.2 * torch.randn(images.shape, generator=generator)
    places = offsets / (CELL - DIGIT)
    return {
        "inputs": images[:, None],
        "segmentation": segmentation,
        "detection": torch.cat([torch.stack([is_there, labels[chosen]], 2), places], 2),
        "labels": (F.one_hot(labels[chosen], CLASSES) * is_there[..., None]).amax(1).float(),
    }


def make_pairs(digits: Tensor, labels: Tensor, count: int, seed: int) -> dict[str, Tensor]:
    """Makes pairs of unlike digits, the first of which is preferred.

    Args:
        digits: float[M, 10, 10], in [0, 1].
        labels: int64[M].
        count: N.
        seed: Of the pairs and preferences.

    Returns:
        "inputs": float[N, 2, 100]. "preferences": int64[N], 0 where the first is the higher digit,
        and 1 where the preference disagrees.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(len(digits), (2 * count, 2), generator=generator)
    pairs = pairs[labels[pairs[:, 0]] != labels[pairs[:, 1]]][:count]
    first, second = labels[pairs].unbind(1)
    is_first = torch.rand(count, generator=generator) < (first - second).sigmoid()
    pairs = torch.where(is_first[:, None], pairs, pairs.flip(1))
    first, second = labels[pairs].unbind(1)
    return {"inputs": digits[pairs].flatten(2), "preferences": (first < second).long()}


class SceneNetwork(nn.Module):
    """A convolutional network of pictures, each block of which halves their sides.

    Args:
        outputs: Of each pixel or half.
        of_pixels: Whether they are of pixels, computed of the features of all blocks.
    """

    def __init__(self, outputs: int, *, of_pixels: bool = False) -> None:
        super().__init__()
        widths = (1, 16, 32, 64, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )
        self.of_pixels = of_pixels
        self.head = nn.Conv2d(
            sum(widths[1:]) if of_pixels else widths[-1], outputs * (4 if of_pixels else 1), 1
        )

    def forward(self, images: Tensor) -> Tensor:
        """Returns float[N, outputs, 16, 32], or of halves float[N, 2, outputs]."""
        maps = [images]
        for block in self.blocks:
            maps.append(block(maps[-1]))
        if self.of_pixels:
            maps = [F.interpolate(each, size=maps[1].shape[2:]) for each in maps[1:]]
            return F.pixel_shuffle(self.head(torch.cat(maps, 1)), 2)
        halves: Tensor = self.head(maps[-1]).flatten(2).transpose(1, 2)
        return halves


class Presence(nn.Module):
    """The labels of a picture: those of its halves."""

    def __init__(self) -> None:
        super().__init__()
        self.network = SceneNetwork(CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Returns float[N, 10], logits."""
        return self.network(images).amax(1)


def make_reward() -> nn.Module:
    """Makes a network of a digit, float[..., 100], whose output is its reward."""
    return nn.Sequential(
        nn.Linear(DIGIT**2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


pixel_losses = per_example(nn.CrossEntropyLoss())
label_losses = per_example(nn.BCEWithLogitsLoss())


def detection_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns float[N]: whether halves have a digit, and of those that do, which and where."""
    is_there, labels, places = targets[..., 0], targets[..., 1].long(), targets[..., 2:]
    presence = F.binary_cross_entropy_with_logits(outputs[..., 0], is_there, reduction="none")
    classes = F.cross_entropy(outputs[..., 3:].transpose(1, 2), labels, reduction="none")
    boxes = F.smooth_l1_loss(outputs[..., 1:3], places, reduction="none").sum(2)
    return (presence + is_there * (classes + boxes)).sum(1)


def preference_losses(rewards: Tensor, _: Tensor) -> Tensor:
    """Returns float[N], minus the log probability of each preference."""
    return -F.logsigmoid(rewards[:, 0, 0] - rewards[:, 1, 0])


def segmentation_error(outputs: Tensor, targets: Tensor) -> float:
    """Returns 100 less the mean intersection over union of the classes, in percent."""
    predicted = outputs.argmax(1)
    masks = [(predicted == label, targets == label) for label in range(1 + CLASSES)]
    overlaps = [float((a & b).sum() / (a | b).sum()) for a, b in masks]
    return 100 * (1 - sum(overlaps) / len(overlaps))


def detection_error(outputs: Tensor, targets: Tensor) -> float:
    """Returns 100 less the F1 score of digits found, of their class and within a pixel."""
    is_found, is_there = outputs[..., 0] > 0, targets[..., 0] > 0
    distances = (CELL - DIGIT) * (outputs[..., 1:3] - targets[..., 2:]).abs().amax(2)
    is_right = (outputs[..., 3:].argmax(2) == targets[..., 1]) & (distances < 1)
    right = (is_found & is_there & is_right).sum()
    return float(100 * (1 - 2 * right / (is_found.sum() + is_there.sum())))


def label_error(outputs: Tensor, targets: Tensor) -> float:
    """Returns the share of pictures of which a label is wrong, in percent."""
    return float(100 * ((outputs > 0) != (targets > 0)).any(1).float().mean())


def preference_error(rewards: Tensor, disagrees: Tensor) -> float:
    """Returns the share of pairs whose higher digit has no higher reward, in percent."""
    is_first = rewards[:, 0, 0] > rewards[:, 1, 0]
    return float(100 * (is_first == disagrees.bool()).float().mean())


class Task(NamedTuple):
    """What is learned.

    Attributes:
        unit: The error that is tested.
        make_model: Makes a network.
        losses: Computes float[N] of outputs and targets.
        error: Computes the error of outputs and targets of a whole set, in percent.
    """

    unit: str
    make_model: Callable[[], nn.Module]
    losses: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], float]


TASKS = {
    "segmentation": Task(
        "1 - mean IoU",
        lambda: SceneNetwork(1 + CLASSES, of_pixels=True),
        pixel_losses,
        segmentation_error,
    ),
    "detection": Task(
        "1 - F1", lambda: SceneNetwork(3 + CLASSES), detection_losses, detection_error
    ),
    "labels": Task("pictures with a wrong label", Presence, label_losses, label_error),
    "preferences": Task("pairs out of order", make_reward, preference_losses, preference_error),
}


def train(
    task: Task, method: str, data: TensorDataset, epochs: int, rate: float, seed: int
) -> nn.Module:
    """Trains a network by a method."""
    torch.manual_seed(seed)
    model = task.make_model()
    rules = {"random": RS2(keep=0.5), "memory": Memory()}
    loader, optimizer, schedule = start_training(
        model, data, rules.get(method), batch_size=BATCH, epochs=epochs, rate=rate, seed=seed
    )
    for _ in range(epochs):
        for inputs, targets in loader:
            losses = task.losses(model(inputs), targets)
            loss = losses.mean() if method == "plain" else loader.loss(losses)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model.eval()


@torch.no_grad()
def test(task: Task, model: nn.Module, data: TensorDataset) -> dict[str, float]:
    """Returns the mean loss, and the error."""
    inputs, targets = data.tensors
    outputs = torch.cat([model(batch) for batch in inputs.split(500)])
    loss = float(task.losses(outputs, targets).mean())
    return {"loss": loss, "error": task.error(outputs, targets)}


def best_rates(runs: Sequence[Run]) -> list[Run]:
    """Returns the test results of each method at the rate of the lowest validation loss."""
    return [row for row, _ in beside_plain(runs, "task", "error")]


def table(rows: list[Run]) -> list[str]:
    """Returns the lines of a table in Markdown: means over the seeds, and their range."""
    lines = [
        "| task and its test error | trained on | % | less that of all examples |",
        "|---|---|---:|---:|",
    ]
    for row in rows:
        less = "" if row["method"] == "plain" else spread(row["differences"], 2)
        task = f"{row['task']}: {TASKS[row['task']].unit}"
        lines.append(f"| {task} | {CODE[row['method']]} | {spread(row['errors'], 2)} | {less} |")
    return lines


@functools.cache
def make_sets(task: str, examples: int) -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Returns the examples to train on, held-out ones and those of the test."""
    data, make = load("mnist"), make_pairs if task == "preferences" else make_scenes
    digits, tests = (
        F.avg_pool2d(images[:, 0, 4:24, 4:24].float().div(255), 2)
        for images in (data.train_inputs, data.test_inputs)
    )
    labels, half = data.train_labels.long(), len(digits) // 2
    made = (
        make(digits[half:], labels[half:], examples, 3),
        make(digits[:half], labels[:half], HELD_OUT, 1),
        make(tests, data.test_labels.long(), HELD_OUT, 2),
    )
    trained, held_out, tested = (TensorDataset(each["inputs"], each[task]) for each in made)
    return trained, held_out, tested


def run(examples: int, epochs: int, task: str, seed: int, method: str, rate: float) -> Run:
    """Trains a network, and returns its losses and errors."""
    torch.set_num_threads(1)
    trained, *others = make_sets(task, examples)
    model = train(TASKS[task], method, trained, epochs, rate, seed)
    validation, tested = (test(TASKS[task], model, data) for data in others)
    settings = {"task": task, "method": method, "rate": rate, "seed": seed}
    return settings | {"validation": validation, "test": tested}


def main() -> None:
    """Trains, prints a table and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--examples", type=int, default=16_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the numbers to")
    asked = parser.parse_args()
    cells = [*itertools.product(TASKS, range(asked.seeds), CODE, RATES)]
    runs = []
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        train_one = functools.partial(run, asked.examples, asked.epochs)
        for finished in pool.map(train_one, *zip(*cells, strict=True)):
            runs.append(finished)
            print(json.dumps(finished), flush=True)
    rows = best_rates(runs)
    print("\n".join(table(rows)))
    write_record(asked, __doc__.partition("\n")[0], rows, runs)


if __name__ == "__main__":
    main()
