"""The papers' experiments in the results page: their numbers beside ours, and their figures."""

import os
from pathlib import Path
from urllib.parse import quote

from siftback.errors import ConfigError
from siftback.lab.analyses import Analysis, Grid, Missing, analyse, as_markdown, read
from siftback.lab.papers import RUNS, beside
from siftback.lab.recipes import Recipe, experiments, find, names
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import facts_line, listed
from siftback.lab.records.summary_table import series
from siftback.lab.records.tables import markdown

SCALE = "small"
NOTES = "notes.md"

_BESIDE = """\
## The papers' numbers beside ours

Theirs as they print them; ours from the runs of their recipes at the small scale, and of table 1
from longer ones too, each in its section below. The scales are far apart, as the last two columns
say: other networks, fewer images, fewer epochs, other machines. Where a number differs, that says
what was seen here at this size, and nothing about theirs. Speed-ups are medians over the seeds, in
time and in cost, with a dash where a seed did not come to the target; differences in error are in
percentage points, mean and standard deviation over the seeds, and below zero where the method ends
lower than Traditional.
"""

_EXPERIMENTS = """\
## The papers' experiments, at the small scale

Each recipe was run by `siftback run RECIPE --out {folder}`, and its figures were drawn from what
was recorded. [The recipes](recipes.md) tell what each is at the papers' own scale.
"""


def chapter(results: Path, page: Path) -> list[str]:
    """The sections of the recipes that were run; none where there is none.

    Args:
        results: Holds their runs in ``recipes/``, as ``siftback run --scale small --out`` leaves
            them; that folder and each recipe's may have ``notes.md`` on what the numbers mean.
        page: The page that the sections are for; links are relative to where it lies.
    """
    folder = results / RUNS
    found = [text for recipe in map(find, names()) if (text := _section(recipe, folder, page))]
    if not found:
        return []
    return [
        "\n\n".join([_BESIDE.rstrip(), *notes(folder), markdown(beside(results))]) + "\n",
        _EXPERIMENTS.format(folder=f"{results.name}/{RUNS}"),
        *found,
    ]


def notes(folder: Path) -> list[str]:
    """What ``notes.md`` of a folder says, a paragraph or more; empty where there is none."""
    file = folder / NOTES
    return [file.read_text(encoding="utf-8").strip()] if file.is_file() else []


def _section(recipe: Recipe, folder: Path, page: Path) -> str:
    """A recipe's runs and figures; empty where it was not run."""
    drawn_from = [folder / f"{used.name}-{SCALE}" for used in experiments(recipe)]
    home = drawn_from[-1]
    if not home.is_dir():
        return ""
    try:
        comparisons, problems = read([one for one in drawn_from if one.is_dir()])
    except ConfigError:
        return ""
    parts = [f"### {recipe.name}: {recipe.title}", f"{recipe.source}."]
    parts += [f"**{problem}.**" for problem in problems]
    if any(recipe.comparisons.values()):
        own = [one for one in comparisons if home.resolve() in (one.folder, one.folder.parent)]
        parts += [*notes(home), *_runs([one for one in own if one.runs])]
    else:
        parts.append(f"From the runs of {listed(recipe.uses)}.")
    where = quote(Path(os.path.relpath(home, page.parent)).as_posix())
    for analysis in analyse(comparisons, recipe.draw).values():
        parts += _shown(analysis, home, where)
    return "\n\n".join(parts) + "\n"


def _runs(comparisons: list[Comparison]) -> list[str]:
    if not comparisons:
        return ["No run has finished."]
    shared, rows = series(comparisons, "final error, %")
    if len(comparisons) == 1:
        for row in rows:
            del row["comparison"], row["settings"]
    return [
        f"- Asked for: {facts_line(shared)}\n"
        f"- Measured on: {facts_line(comparisons[0].environment)}",
        markdown(rows),
    ]


def _shown(analysis: Analysis, home: Path, where: str) -> list[str]:
    if isinstance(analysis, Missing):
        return [f"**{analysis.title}**: {analysis.why}"]
    told = "\n".join(f"- {sentence}" for sentence in analysis.sentences)
    parts = [f"**{analysis.title}**", told]
    if isinstance(analysis, Grid):
        return [*parts, as_markdown(analysis)]
    if (home / f"{analysis.name}.png").is_file():
        picture = f"![{analysis.title}]({where}/{analysis.name}.png)"
        parts.append(f"[{picture}]({where}/{analysis.name}.svg)")
    return parts
