"""The page of where selection pays: a map to find one's own case on, and the default's worst cases.

Made of the records of the recipe `map` and of all other budget ratios. Of a recipe that was
interrupted it has what is recorded, and says how much is not.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from siftback.lab.figures import pays
from siftback.lab.figures.analyses import join_findings
from siftback.lab.figures.drawing import render
from siftback.lab.figures.figure import Figure, Grid
from siftback.lab.figures.styles import FLAT
from siftback.lab.figures.writing import format_rows
from siftback.lab.recipes.recipe import Recipe, Scale, find_recipe
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import counted, listed
from siftback.lab.records.tables import pivot
from siftback.lab.report import results_page
from siftback.lab.report.measurements_page import rows_of

PICTURE = "map.svg"


def write_map(results: Path, page: Path, elsewhere: Sequence[pays.MethodRatio]) -> list[Path]:
    """Writes the page, and its picture beside it where there is enough for one.

    Args:
        results: Holds comparisons at any depth, those of the recipe under ``map/``.
        page: The Markdown file to write; its links are relative to its folder.
        elsewhere: The budget ratios of the other comparisons.

    Returns:
        The files.
    """
    of_map, damaged = results_page.read_within([results / results_page.MAP])
    # The bootstrap of each ratio takes a while: all parts of the page are made of the same ones.
    on_map = pays.method_ratios(pays.experiments(of_map))
    methods = sorted([*on_map, *elsewhere], key=lambda method: method.experiment.title)
    worst = join_findings("worst", pays.worst_findings(methods))
    figure, recipe = picture_of(methods), find_recipe(results_page.MAP)
    results_page.write_from_template(
        "map.md.j2",
        results,
        page,
        recipe=recipe,
        picture=PICTURE,
        figure=figure,
        of_map=by_budget(pays.default_ratios(on_map)),
        machines=listed(sorted(name for case in on_map for name in case.experiment.runs.machine)),
        of_others=by_budget(pays.default_ratios(elsewhere)),
        forecasts=forecasts_of(results / results_page.BENCHMARKS),
        worst=worst.sentences if isinstance(worst, Grid) else [],
        worst_rows=format_rows(worst),
        missing=missing_of(recipe, of_map),
        damaged=damaged,
    )
    if not figure:
        return [page]
    picture = page.with_name(PICTURE)
    picture.write_bytes(render(figure, "svg"))
    return [page, picture]


def picture_of(methods: Sequence[pays.MethodRatio]) -> Figure | None:
    """Returns the panels of the default alone, side by side; None where there are none."""
    cases = pays.group_for_map(methods).get(pays.DEFAULT_LABEL, ())
    figure = join_findings("map", pays.map_findings(pays.DEFAULT_LABEL, cases))
    if not isinstance(figure, Figure):
        return None
    return replace(figure, views={"both": [*chain.from_iterable(figure.views.values())]})


def by_budget(cases: Sequence[pays.MethodRatio]) -> list[dict[str, str]]:
    """Lays out ratios: a row for each experiment, a column for each budget.

    A cell has the ratio, and in parentheses where plain training of that budget ends.
    """

    def cell(case: pays.MethodRatio) -> str:
        means = case.experiment.means
        words = FLAT if case.ratio.flat and case.outcome == "undecided" else case.words
        if case.budget not in means:
            return words
        return f"{words} ({case.experiment.metric.written(means[case.budget])})"

    rows = pivot(
        ({"model and data": case.experiment.title}, f"{case.budget:g} epochs", cell(case))
        for case in sorted(cases, key=lambda case: case.budget)  # so that columns are in order
    )
    sizes = {case.experiment.title: case.experiment.examples or 0 for case in cases}
    titles = sorted(sizes, key=lambda title: (title.partition(",")[2], sizes[title], title))
    return sorted(rows, key=lambda row: titles.index(row["model and data"]))


def forecasts_of(folder: Path) -> list[dict[str, str]]:
    """Lays out the forecasts of `benchmarks/forecast.py` and what was measured over each.

    Args:
        folder: Holds the records of the benchmarks.
    """
    return pivot(
        (
            {"model, data and budget": row["setting"]},
            row["what"],
            f"**{row['measured']:.2f}**" if row["met"] is False else f"{row['measured']:.2f}",
        )
        for row in rows_of(folder, "Forecasts", "forecast", "measured over forecast")
    )


def missing_of(recipe: Recipe, recorded: Sequence[Comparison]) -> str:
    """Returns how much of a recipe the records lack, in words; empty where that is nothing."""
    runs = {
        comparison.folder.name: {run.record for run in comparison.runs} for comparison in recorded
    }
    plans = recipe.plans(Scale.FULL)
    lacking = [
        name
        for name, plan in plans.items()
        if not {run.record for run in plan.runs()} <= runs.get(name, set())
    ]
    return (
        f"{len(plans) - len(lacking)} of its {counted(len(plans), 'comparison')} are recorded in "
        f"full, and {sum(name in runs for name in lacking)} in part."
        if lacking
        else ""
    )
