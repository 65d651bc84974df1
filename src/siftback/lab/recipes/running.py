"""Running a recipe: its comparisons, each in its folder, and then its figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siftback.lab.analyses import Missing, analyse
from siftback.lab.compare import Existing, Plan, compare, finished
from siftback.lab.progress import Reporter
from siftback.lab.recipes import Recipe, Scale, experiments
from siftback.lab.records import Comparison


@dataclass(frozen=True)
class Task:
    """A comparison that a recipe draws from.

    Attributes:
        plan: What to run.
        folder: Where it goes.
    """

    plan: Plan
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the folder holds all of its runs."""
        return finished(self.plan, self.folder)


def tasks(
    recipe: Recipe, scale: Scale, out: Path, changes: Mapping[str, Any] | None = None
) -> list[Task]:
    """The comparisons that a recipe draws from, those of the recipes that it uses among them.

    Each experiment has a folder, named after it and the scale, and a comparison of several one
    within that: recipes that share runs find them under the same ``out``.

    Args:
        recipe: The recipe.
        scale: Which scale.
        out: The folder of all runs.
        changes: What to take in place of what the files say.
    """
    return [
        Task(plan, out / f"{used.name}-{scale}" / name)
        for used in experiments(recipe)
        for name, plan in used.plans(scale, changes).items()
    ]


def train(todo: Sequence[Task], reporter: Reporter, existing: Existing) -> None:
    """Runs what is not finished yet.

    Args:
        todo: The comparisons.
        reporter: Is told what happens.
        existing: What to do with a folder that holds a part of a comparison, or another one.
    """
    for task in todo:
        if existing == "overwrite" or not task.finished:
            compare(task.plan, task.folder, reporter, existing)
