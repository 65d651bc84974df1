"""The share of the loss that misfits have, by which `Memory()` judges whether labels are wrong.

Misfits are examples that are predicted worse than by chance. Before each draw of a training by
``Memory()`` after the one that follows the first pass, their share of the remembered loss is noted,
once the mean loss is below `LEARNED` of that of chance and they are `MISFITS` of the examples or
more. What counts is the lower share before two draws in a row, at its highest in the training.
Where labels are right it should stay below `MISFIT_LOSS`, also where classes are rare or many
images hard; where some are wrong it should be above it.
"""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from torch import Tensor

from goals import Goal, begin, options, report
from siftback.draws.ratio_draw import LEARNED, MISFIT_LOSS, MISFITS, are_mislabelled
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings

TITLE = "Share of the loss of examples that are predicted worse than by chance, at its highest"
FONTS: dict[str, Any] = {"model": "fastcnn", "width": 8, "batch_size": 128, "lr": 0.1}
RARE: dict[str, Any] = {"model": "fastcnn", "width": 4, "batch_size": 64, "lr": 0.2}
TEXTS: dict[str, Any] = {"model": "ngrams", "lr": 0.003, "weight_decay": 1.0}
IMAGES: dict[str, Any] = {"model": "fastcnn", "width": 16, "train_limit": 10_000}
RIGHT: list[dict[str, Any]] = [
    {"data": "fonts:5000", "budget": 8, **FONTS},
    {"data": "fonts:5000,hard=0.5", "budget": 8, **FONTS},
    {"data": "fonts:5000,hard=0.05", "budget": 16, **FONTS},
    {"data": "fonts:20000", "budget": 4, **FONTS},
    {"data": "fonts:20000,hard=0.5", "budget": 4, **FONTS},
    {"data": "fonts:6000,hard=0.05", "budget": 4, "rare": 30, **RARE},
    {"data": "mnist", "budget": 6, "model": "cnn", "train_limit": 10_000},
    {"data": "gtsrb", "budget": 6, **IMAGES},
    {"data": "cifar10", "budget": 6, **IMAGES},
    {"data": "cifar10", "budget": 12, **IMAGES, "width": 8},
    {"data": "cifar10", "budget": 4, **IMAGES, "width": 32},
    {"data": "cifar10", "budget": 8, "rare": 20, **IMAGES},
    {"data": "mnist", "budget": 6, "rare": 100, "model": "cnn", "train_limit": 10_000},
    {"data": "cifar100", "budget": 6, **IMAGES},
    {"data": "imdb", "budget": 4, **TEXTS},
    {"data": "sst2", "budget": 4, **TEXTS},
]
WRONG: list[dict[str, Any]] = [
    {"data": "fonts:5000", "flip": 0.02, "budget": 8, **FONTS},
    {"data": "fonts:5000", "flip": 0.1, "budget": 8, **FONTS},
    {"data": "fonts:5000", "flip": 0.3, "budget": 8, **FONTS},
    {"data": "fonts:5000", "flip": 0.3, "budget": 64, **FONTS},
    {"data": "fonts:5000", "flip": 0.3, "budget": 16, **FONTS, "width": 16},
    {"data": "fonts:5000,hard=0.5", "flip": 0.3, "budget": 16, **FONTS},
    {"data": "fonts:20000", "flip": 0.02, "budget": 4, **FONTS},
    {"data": "fonts:20000", "flip": 0.1, "budget": 4, **FONTS},
    {"data": "fonts:20000", "flip": 0.3, "budget": 4, **FONTS},
    {"data": "fonts:20000", "flip": 0.4, "budget": 4, **FONTS},
    {"data": "mnist", "flip": 0.02, "budget": 6, "model": "cnn", "train_limit": 10_000},
    {"data": "mnist", "flip": 0.1, "budget": 6, "model": "cnn", "train_limit": 10_000},
    {"data": "mnist", "flip": 0.3, "budget": 6, "model": "cnn", "train_limit": 10_000},
    {"data": "gtsrb", "flip": 0.1, "budget": 6, **IMAGES},
    {"data": "gtsrb", "flip": 0.3, "budget": 6, **IMAGES},
    {"data": "cifar10", "flip": 0.2, "budget": 6, **IMAGES},
    {"data": "imdb", "flip": 0.1, "budget": 4, **TEXTS},
]


def highest_share(settings: Settings, seed: int) -> float:
    """Returns the highest share before two draws in a row; 0 where there were none."""
    shares: list[float] = []

    def judge(losses: Tensor, chance: float) -> bool:
        known = losses[losses.isfinite()].double()
        misfits = known[known > chance]
        is_judged = known.mean() < chance * LEARNED and len(misfits) >= MISFITS * len(known)
        shares.append(float(misfits.sum() / known.sum()) if is_judged else 0.0)
        return are_mislabelled(losses, chance)

    with TemporaryDirectory() as folder, patch("siftback.rules.memory.are_mislabelled", judge):
        plan = Plan(settings, ["sb-memory-default"], (0.5,), [seed], matched=False)
        compare(plan, Path(folder), Reporter())
    return max((min(pair) for pair in pairwise(shares)), default=0.0)


def main() -> None:
    asked = begin(options(__doc__, quick="the first case of each kind"))
    goals = []
    for cases in (RIGHT, WRONG):
        for case in cases[:1] if asked.quick else cases:
            settings = Settings(rate="onecycle", evaluations=1, **case)
            share, epochs = highest_share(settings, seed=0), f"{settings.budget:g} epochs"
            wrong = f"{settings.flip:.0%} of the labels wrong" if settings.flip else "right labels"
            rare = ", three classes rare" if settings.rare > 1 else ""
            met = (share > MISFIT_LOSS) == (settings.flip > 0)
            goal = f"{'above' if settings.flip else 'at most'} {MISFIT_LOSS}"
            setting = f"{settings.model_name} on {settings.data}{rare}, {epochs}"
            goals.append(Goal(setting, wrong, share, goal, met))
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
