"""Experiments of the papers, each a TOML file in this folder, at two scales.

>>> find_recipe("fig6").title
'Test error over training iterations'
"""

import re
from pathlib import Path

from siftback.errors import ConfigError
from siftback.lab.recipes.recipe import SCALES, Recipe, Scale, changes_of, read_recipe
from siftback.lab.records.formatting import one_of

__all__ = [
    "SCALES",
    "Recipe",
    "Scale",
    "changes_of",
    "find_recipe",
    "read_recipe",
    "recipe_names",
    "recipes_used",
]

_FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """The recipes that come with this package: those of figures in their order, then the others."""
    found = (path.stem for path in _FOLDER.glob("*.toml"))
    return sorted(found, key=lambda name: (not name.startswith("fig"), _numbered(name)))


def find_recipe(name: str) -> Recipe:
    """The recipe of a name, or of a file's path.

    Raises:
        ConfigError: If there is none, or the file does not say what it must.
    """
    path = Path(name)
    if path.suffix != ".toml":
        if name not in recipe_names():
            raise ConfigError(
                f"no recipe {name!r}: {one_of(name, recipe_names())}, or a file, such as own.toml"
            )
        path = _FOLDER / f"{name}.toml"
    elif not path.is_file():
        raise ConfigError(f"no file {name}: give the path of a recipe, or the name of one")
    return read_recipe(path)


def recipes_used(recipe: Recipe) -> list[Recipe]:
    """Those whose runs a recipe draws from: the ones it uses, then itself if it trains anything.

    Raises:
        ConfigError: If it uses one that there is not, or that trains nothing itself.
    """
    used = [find_recipe(name) for name in recipe.uses]
    for other in used:
        if not all(other.comparisons.values()):
            raise ConfigError(
                f"recipe {recipe.name} uses {other.name}, which trains nothing: name those that "
                f"{other.name} uses ({', '.join(other.uses)})"
            )
    return [*used, *([recipe] if any(recipe.comparisons.values()) else [])]


def _numbered(name: str) -> list[tuple[int, str]]:
    """Orders fig2 before fig10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
