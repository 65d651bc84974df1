"""The papers' figures and tables: recipe, the paper's number, ours."""

from collections.abc import Iterable

from verdicts import RESULTS

from siftback.lab.papers import CLAIMS, RUNS, Claim, beside
from siftback.lab.recipes.recipe import find_recipe, recipe_names
from siftback.lab.records.tables import markdown


def figures() -> str:
    """A table: for each recipe a row, or one for each number that its paper prints."""
    found = [(_recipe(claim), row) for claim, row in zip(CLAIMS, beside(RESULTS), strict=False)]
    rows = []
    for name in recipe_names():
        recipe = find_recipe(name)
        link = {"recipe": f"[`{name}`](recipes.md#the-recipes)"}
        claims = [row for of, row in found if of == name]
        shown = {"of": recipe.source, "what": recipe.title, "the paper's": "", "ours": ""}
        rows += [link | shown] * (not claims)
        rows += [
            link
            | {"of": row["in"], "what": row["what"]}
            | {"the paper's": row["the paper's"], "ours": row["ours"]}
            | {"measured here on": row["and here on"]}
            for row in claims
        ]
    return markdown(rows)


def _recipe(claim: Claim) -> str:
    """The recipe whose runs a claim is found in; the longest name that fits."""
    folder = claim.folders[0].removeprefix(f"{RUNS}/")
    return max(_fitting(folder), key=len, default="")


def _fitting(folder: str) -> Iterable[str]:
    return (name for name in recipe_names() if folder.startswith(f"{name}-"))
