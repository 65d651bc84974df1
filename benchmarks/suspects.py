"""The suspects of a noise guard, beside confident learning out of sample at the same cost.

Labels are made wrong at random. The guard's label issues come with a training by `Memory`.
Confident learning (cleanlab) asks for probabilities of models that have not seen the example: two,
each trained on one half and asked about the other, for as many epochs, so that both ways cost the
same but for a forward on every example, which is not counted. The ratio is of the F1 of what each
finds: the harmonic mean of precision and recall.
"""

import statistics
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cleanlab.filter import find_label_issues
from torch import Tensor

from goals import Goal, begin, options, report
from siftback.lab.data.data_set import NOUNS, DataSet
from siftback.lab.data.load import load
from siftback.lab.data.stream import evaluation_batches
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.experiments.suspects_report import precision_recall, read_suspects
from siftback.lab.forward import TEST_BATCH, autocast_context, training_device
from siftback.lab.run.progress import Reporter
from siftback.lab.run.train import stages
from siftback.lab.settings import Settings

TITLE = "What a noise guard finds, beside confident learning out of sample at the same cost"
GUARDED, KEEP = "sb-memory-guarded", 0.55
COMMON: dict[str, Any] = {"rate": "onecycle", "evaluations": 1}
SETS: dict[str, dict[str, Any]] = {
    "mnist": {"model": "cnn", "budget": 6.0, "train_limit": 10_000},
    "cifar10": {"model": "fastcnn", "precision": "bf16", "budget": 8.0, "train_limit": 10_000},
    "imdb": {"model": "ngrams", "lr": 0.003, "weight_decay": 1.0, "budget": 4.0},
}
SHARES, SEEDS = (0.01, 0.1, 0.2, 0.4), 3


def by_guard(settings: Settings, seed: int) -> Tensor:
    """bool[N], the label issues at the end of a training by `Memory` with a guard."""
    with TemporaryDirectory() as folder:
        plan = Plan(settings, [GUARDED], (KEEP,), [seed], matched=False)
        compare(plan, Path(folder), Reporter())
        (suspects,) = read_suspects(Path(folder)).values()
    return torch.tensor(suspects["guard"].to_numpy())


def by_cleanlab(settings: Settings, seed: int, data: DataSet) -> Tensor:
    """bool[N], label issues by the probabilities of two models, each asked about the other half."""
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(seed))
    probabilities = torch.zeros(len(order), data.classes)
    halves = order.chunk(2)
    for own, other in (halves, halves[::-1]):
        half = data.subset(own).with_test(data, other)
        *_, last = stages(seed, settings, half, settings.budget or 1.0)
        last.model.eval()
        with torch.no_grad(), autocast_context(settings, training_device(settings)):
            found = [
                last.model(x).float().softmax(1) for x, _ in evaluation_batches(half, TEST_BATCH)
            ]
        probabilities[other] = torch.cat(found)
    labels = data.train_labels.numpy()
    return torch.from_numpy(find_label_issues(labels, probabilities.numpy(), n_jobs=1))


def scores(found: Tensor, wrong: Tensor) -> tuple[float, float, float]:
    """Precision, recall and F1; all 0 where nothing that is wrong was found."""
    if not (found & wrong).any():
        return 0.0, 0.0, 0.0
    precision, recall = precision_recall(found, wrong)
    return precision, recall, 2 * precision * recall / (precision + recall)


def measure(settings: Settings, seeds: int) -> list[Goal]:
    """The suspects of both at one share of wrong labels, means over the seeds."""
    data: DataSet = load(settings.data, settings.train_limit, flipped=settings.flip)
    wrong = data.flipped
    count = f"{len(wrong):,} {NOUNS[data.kind]}"
    setting = f"{data.name}, {count}, {settings.flip:.0%} of the labels wrong"
    found = {
        "guard": [scores(by_guard(settings, seed), wrong) for seed in range(seeds)],
        "cleanlab": [scores(by_cleanlab(settings, seed, data), wrong) for seed in range(seeds)],
    }
    mean = {
        way: [statistics.mean(each) for each in zip(*of, strict=True)] for way, of in found.items()
    }
    ratio = mean["guard"][2] / max(mean["cleanlab"][2], 1e-9)
    return [
        Goal(setting, "F1 of the guard over cleanlab's", ratio, "at least 1", ratio >= 1),
        *(
            Goal(setting, f"{what} of {way}", mean[way][place])
            for way in found
            for place, what in enumerate(("precision", "recall"))
        ),
    ]


def main() -> None:
    parser = options(__doc__, quick="one seed and one share of each set")
    parser.add_argument("--data", nargs="+", choices=SETS, default=list(SETS), help="which sets")
    asked = begin(parser)
    shares, seeds = (SHARES[2:3], 1) if asked.quick else (SHARES, SEEDS)
    goals = []
    for name, share in product(asked.data, shares):
        goals += measure(Settings(data=name, flip=share, **COMMON, **SETS[name]), seeds)
    report(f"{TITLE}: {', '.join(asked.data)}", goals, asked)


if __name__ == "__main__":
    main()
