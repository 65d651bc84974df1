"""Running a recipe: its comparisons, each in its folder, and then its figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.analyses import Analysis, analyse, write_analysis
from siftback.lab.data.address import parse_address
from siftback.lab.data.load import DATA_SETS, IMAGE_SETS, NAMES
from siftback.lab.experiments.comparison import Existing, Plan, compare, is_finished
from siftback.lab.recipes import SCALES, Recipe, Scale, find_recipe, recipe_names, recipes_used
from siftback.lab.records.comparison_record import SUMMARY, Comparison
from siftback.lab.records.formatting import one_of
from siftback.lab.run.progress import Reporter


@dataclass(frozen=True)
class Task:
    """A comparison that a recipe draws from.

    Attributes:
        plan: What to run.
        folder: Where it goes.
    """

    plan: Plan
    folder: Path

    def is_named(self, beginning: str | None) -> bool:
        """Whether its name begins so; None is the beginning of each."""
        return beginning is None or self.folder.name.startswith(beginning)

    @property
    def finished(self) -> bool:
        """Whether the folder holds all of its runs."""
        return is_finished(self.plan, self.folder)

    def train(self, reporter: Reporter, existing: Existing) -> None:
        """Runs what is not finished.

        Args:
            reporter: Reports what happens.
            existing: What to do with a folder that holds a part of it, or another comparison.
        """
        if existing == "overwrite" or not self.finished:
            compare(self.plan, self.folder, reporter, existing)


class Drawn(NamedTuple):
    """What was made of the records.

    Attributes:
        analysis: It, or why it is missing.
        paths: Its files.
    """

    analysis: Analysis
    paths: list[Path]


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
        Task(plan, _folder(used, scale, out) / name)
        for used in recipes_used(recipe)
        for name, plan in used.plans(scale, changes).items()
    ]


def _folder(experiment: Recipe, scale: Scale, out: Path) -> Path:
    return out / f"{experiment.name}-{scale}"


def comparisons_for(analysis: str, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """What an analysis is made of, where many comparisons are shown together.

    Where they are of several recipes, which their folders are named after, those of a recipe are
    left to the analyses that it or a recipe that uses it draws. All others are in every analysis,
    and so is everything in one that no recipe draws.
    """
    wanted = _drawn_from().get(analysis)
    recipes = {_recipe_of(one.folder) for one in comparisons} - {None}
    if wanted is None or len(recipes) < 2:
        return list(comparisons)
    return [one for one in comparisons if _recipe_of(one.folder) in (None, *wanted)]


@cache
def _drawn_from() -> dict[str, frozenset[str]]:
    """By analysis the recipes whose runs are drawn in it."""
    drawn: dict[str, frozenset[str]] = {}
    for recipe in map(find_recipe, recipe_names()):
        used = frozenset(one.name for one in recipes_used(recipe))
        for analysis in recipe.draw:
            drawn[analysis] = drawn.get(analysis, frozenset()) | used
    return drawn


@cache
def _recipe_of(folder: Path) -> str | None:
    """The recipe that a comparison is of: its folder, or the one around it, is named after it."""
    for place in (folder, folder.parent):
        recipe, _, scale = place.name.rpartition("-")
        if scale in SCALES and recipe in recipe_names():
            return recipe
    return None


def count_parameters(plan: Plan) -> int:
    """Makes the model of a plan, which needs neither data nor a device.

    Returns:
        How many parameters it has.

    Raises:
        ConfigError: If the data set is none, or the model cannot be had.
    """
    settings = plan.settings
    classes, channels = _shape(settings.data)
    return models.count(settings.model, settings.width, classes, channels, norm=settings.norm)


def _shape(data: str) -> tuple[int, int]:
    """Classes and channels of a data set that need not be there; a guess for a user's own."""
    if published := IMAGE_SETS.get(data):
        return published.classes, published.channels
    if data not in DATA_SETS and parse_address(data) is None:
        raise ConfigError(f"data set {data!r} is not known: {one_of(data, NAMES)}")
    return 10, 1 if data == "digits" else 3


def draw_recipe(recipe: Recipe, scale: Scale, out: Path, todo: Sequence[Task]) -> Iterator[Drawn]:
    """Makes a recipe's figures and tables from what was recorded.

    They go into the folder of its experiment, or of the first that it uses where it trains
    nothing itself: a folder of figures holds records too.

    Args:
        recipe: Whose.
        scale: At which scale.
        out: The folder of all runs.
        todo: Its comparisons, run before.
    """
    home = recipe if any(recipe.comparisons.values()) else recipes_used(recipe)[0]
    folder = _folder(home, scale, out)
    recorded = [task.folder for task in todo if (task.folder / SUMMARY).is_file()]
    for analysis in analyse(list(map(Comparison.read, recorded)), recipe.draw).values():
        yield Drawn(analysis, write_analysis(analysis, folder))
