"""What a noise guard finds, beside confident learning out of sample at the same cost.

Labels are made wrong at random. The guard's label issues come with a training by `Memory`.
Confident learning (cleanlab) asks for probabilities of models that have not seen the example: two,
each trained on one half and asked about the other, for as many epochs, so that both ways cost the
same but for a forward on every example, which is not counted. The ratio is of the F1 of what each
finds: the harmonic mean of precision and recall.
"""

import statistics
import sys
from itertools import product
from pathlib import Path

import torch
from cleanlab.filter import find_label_issues
from torch import Tensor

from goals import Goal, begin, options, report
from siftback import Memory, NoiseGuard
from siftback.lab.data.datasets import load

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from train import MEMORY_SHARE, by_rule, plain
from work import Images, Work

TITLE = "What a noise guard finds, beside confident learning out of sample at the same cost"
EXAMPLES, BUDGET, SEEDS = 10_000, 6.0, 3
SHARES = (0.01, 0.1, 0.2, 0.4)


def by_guard(data: Images, seed: int, budget: float) -> Tensor:
    """bool[N], the label issues at the end of a training by `Memory` with a guard."""
    guard = NoiseGuard(int(data.labels.max()) + 1)
    by_rule(Work(data, seed, budget), Memory(guard=guard), budget / MEMORY_SHARE)
    found = torch.zeros(len(data), dtype=torch.bool)
    found[guard.label_issues] = True
    return found


def by_cleanlab(data: Images, seed: int, budget: float) -> Tensor:
    """bool[N], label issues by the probabilities of two models, each asked about the other half."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    probabilities = torch.zeros(len(data), int(data.labels.max()) + 1)
    halves = order.chunk(2)
    for own, other in (halves, halves[::-1]):
        part = Images(data.pixels[own], data.labels[own], flip=data.flip)
        work = Work(part, seed, budget)
        plain(work)
        work.model.eval()
        with torch.no_grad():
            for rows in other.split(1000):
                probabilities[rows] = work.model(data.pixels[rows]).softmax(1)
    return torch.from_numpy(find_label_issues(data.labels.numpy(), probabilities.numpy(), n_jobs=1))


def scores(found: Tensor, wrong: Tensor) -> tuple[float, float, float]:
    """Precision, recall and F1; all 0 where nothing that is wrong was found."""
    right = int((found & wrong).sum())
    if not right:
        return 0.0, 0.0, 0.0
    precision, recall = right / int(found.sum()), right / int(wrong.sum())
    return precision, recall, 2 * precision * recall / (precision + recall)


def measure(name: str, share: float, count: int, seeds: int) -> list[Goal]:
    """What both find at one share of wrong labels, means over the seeds."""
    stored = load(name, train_limit=count, flipped=share)
    pixels = stored.train_images.float()
    pixels = (pixels - pixels.mean((0, 2, 3), True)) / pixels.std((0, 2, 3), keepdim=True)
    data = Images(pixels, stored.train_labels, flip=name.startswith("cifar"))
    wrong = stored.train_labels != stored.true_labels
    setting = f"{name}, {count:,} examples, {share:.0%} of the labels wrong"
    ways = {"guard": by_guard, "cleanlab": by_cleanlab}
    found = {
        way: [scores(find(data, seed, BUDGET), wrong) for seed in range(seeds)]
        for way, find in ways.items()
    }
    mean = {
        way: [statistics.mean(each) for each in zip(*of, strict=True)] for way, of in found.items()
    }
    ratio = mean["guard"][2] / max(mean["cleanlab"][2], 1e-9)
    return [
        Goal(setting, "F1 of the guard over cleanlab's", ratio, "at least 1", ratio >= 1),
        *(
            Goal(setting, f"{what} of {way}", mean[way][place])
            for way in ways
            for place, what in enumerate(("precision", "recall"))
        ),
    ]


def main() -> None:
    parser = options(__doc__, quick="one seed, a fifth of the examples, one share of each set")
    parser.add_argument(
        "--data", nargs="+", default=["mnist", "cifar10"], help="image sets of the laboratory"
    )
    asked = begin(parser)
    count, seeds = (EXAMPLES // 5, 1) if asked.quick else (EXAMPLES, SEEDS)
    goals = []
    for name, share in product(asked.data, SHARES[2:3] if asked.quick else SHARES):
        goals += measure(name, share, count, seeds)
    report(f"{TITLE}: {', '.join(asked.data)}", goals, asked)


if __name__ == "__main__":
    main()
