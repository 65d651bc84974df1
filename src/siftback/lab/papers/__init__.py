"""The papers' numbers beside ours, row by row."""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from siftback.lab.figures.titles import task
from siftback.lab.papers import ours
from siftback.lab.recipes.recipe import find_recipe, recipe_names
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import UNREADABLE
from siftback.lab.records.formatting import counted
from siftback.lab.records.run_summary import TRADITIONAL

RUNS = "recipes"  # holds the recipes' runs, as `siftback run --out` leaves them


@dataclass(frozen=True)
class Claim:
    """A number that a paper gives, as ``claims.toml`` has it.

    Attributes:
        place: The paper, and where in it.
        what: What the number is.
        paper: The number, as it is there.
        there: What it was measured on.
        folders: The comparisons that ours is found in: their folders in that of all results.
        ours: The function of `siftback.lab.papers.ours` that finds it, and its arguments.
    """

    place: str
    what: str
    paper: str
    there: str
    folders: Sequence[str]
    ours: Sequence[Any]


_FILE = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))
OVERHEAD = Claim(**_FILE["overhead"])
CLAIMS: Sequence[Claim] = [
    Claim(**group | claim) for group in _FILE["group"] for claim in group.pop("claims")
]


def beside(results: Path) -> Iterator[dict[str, str]]:
    """Yields each number of the papers, ours, and what either was measured on, a row each.

    Args:
        results: Holds the recipes' runs in ``recipes/``, as ``siftback run --scale small --out``
            leaves them, and ``benchmarks/``. A row says where they are not
            there, or cannot be read.
    """
    read = cache(lambda name: Comparison.read(results / name))  # many claims are of the same runs
    for claim in (*CLAIMS, OVERHEAD):
        comparisons: list[Comparison] = []  # up to a damaged one
        name, *arguments = claim.ours
        try:
            comparisons.extend(map(read, claim.folders))
            if claim is OVERHEAD:
                number = ours.overhead(results / "benchmarks" / "overhead.json")
            else:
                number = getattr(ours, name)(comparisons, *arguments)
        except FileNotFoundError:
            number = "not run"
        except ours.NotRecordedError as error:
            number = f"not recorded: {error}"
        except UNREADABLE as error:
            number = f"unreadable ({type(error).__name__}: {error})"
        setups = dict.fromkeys(_setup(recorded) for recorded in comparisons if recorded.runs)
        yield {
            "in": claim.place,
            "what": claim.what,
            "the paper's": claim.paper,
            "ours": number,
            "measured there on": claim.there,
            "and here on": "benchmarks/overhead.py" if claim is OVERHEAD else "; ".join(setups),
        }


def by_recipe(results: Path) -> Iterator[dict[str, str]]:
    """Yields a row for each recipe, or for each number that its paper prints, with ours.

    What a benchmark measured, and no recipe, comes last.

    Args:
        results: As for `beside`.
    """
    rows = [*zip(map(_recipe_of, [*CLAIMS, OVERHEAD]), beside(results), strict=True)]
    for name in (*recipe_names(), ""):
        link = {"recipe": name and f"[`{name}`](recipes.md#the-recipes)"}
        claims = [row for recipe_name, row in rows if recipe_name == name]
        if not claims:
            recipe = find_recipe(name)
            yield link | {"of": recipe.source, "what": recipe.title}
        for row in claims:
            numbers = {column: row[column] for column in ("what", "the paper's", "ours")}
            yield link | {"of": row["in"]} | numbers | {"measured here on": row["and here on"]}


def _recipe_of(claim: Claim) -> str:
    """Returns the recipe whose runs a claim is of: the longest name that fits its folder."""
    folder = next(iter(claim.folders), "").removeprefix(f"{RUNS}/")
    fitting = (name for name in recipe_names() if folder.startswith(f"{name}-"))
    return max(fitting, key=len, default="")


def _setup(comparison: Comparison) -> str:
    runs = comparison.runs
    whole = [run.epochs for run in runs if run.label == TRADITIONAL]
    epochs = f", {whole[0]:g} epochs" if whole else ""
    return f"{task(comparison)}{epochs}, {counted(len({run.seed for run in runs}), 'seed')}"
