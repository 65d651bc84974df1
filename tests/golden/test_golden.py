"""Numbers made from the committed records stay as they are.

A change of the laboratory that is meant to leave its numbers alone is compared with the JSON files
beside this one; ``docs/results.md`` is compared in ``tests/lab/report/test_results_page.py``. Where
new records or a new definition change the numbers, ``make golden`` writes the files again: their
difference is reviewed with the change.
"""
# ruff: noqa: RUF001 - × and – are meant.

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from siftback.lab.experiments.summary_table import rows
from siftback.lab.figures.analyses import ANALYSES, analyse
from siftback.lab.figures.figure import Cell, Figure, Grid, Missing, Panel
from siftback.lab.figures.reading import read
from siftback.lab.papers import beside
from siftback.lab.recipes.recipe import comparisons_for
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import comparison_folders
from siftback.lab.records.frame import Axis, Range, speedups
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.report.numbers import numbers
from siftback.lab.report.verdict import verdicts
from siftback.lab.strategies.table import PLAIN, library_name

GOLDEN = Path(__file__).parent
RESULTS = GOLDEN.parents[1] / "results"
# Not in the report as comparisons.
APART = ("benchmarks", "forecast", "guides", "map", "peers", "rare", "tuning")
PICTURES = ("fig2", "choices", "strip", "diet-e", "diet-f")  # drawn of images, not of records
COMPARED = ("cifar10-budget", "pays/pays-full/shakespeare-2", "recipes/diet-figs-small/googlenet")


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    """The comparisons that the report shows."""
    folders = [folder for folder in sorted(RESULTS.iterdir()) if folder.name not in APART]
    comparisons, problems = read(folders)
    assert not problems
    return comparisons


def total(values: Iterable[float]) -> float:
    return math.fsum(value for value in values if math.isfinite(value))


def view_numbers(panels: Sequence[Panel]) -> list[float]:
    """Counts and sums over all points of a view: a point that moves changes one of them."""
    series = [each for panel in panels for each in panel.series]
    x = [value for each in series for value in each.x if not isinstance(value, str)]
    sums = (
        total(values)
        for values in (
            x,
            (y for each in series for y in each.y),
            (y for each in series for y in each.low or ()),
            (y for each in series for y in each.high or ()),
        )
    )
    return [len(panels), len(series), sum(len(each.y) for each in series), len(x), *sums]


def column_sum(cells: Iterable[Cell]) -> float:
    numbers = (cell if isinstance(cell, Range) else [cell] for cell in cells)
    return total(value for each in numbers for value in each if isinstance(value, float))


def analysis_numbers(name: str, comparisons: list[Comparison]) -> dict[str, Any]:
    (analysis,) = analyse(comparisons_for(name, comparisons), [name]).values()
    if isinstance(analysis, Missing):
        return {"missing": analysis.why}
    assert isinstance(analysis, Figure | Grid)
    found: dict[str, Any] = {"findings": digest(analysis.sentences)}
    if isinstance(analysis, Figure):
        return found | {view: view_numbers(panels) for view, panels in analysis.views.items()}
    columns = zip(analysis.columns, zip(*analysis.rows, strict=True), strict=True)
    return found | {"rows": len(analysis.rows)} | {name: column_sum(of) for name, of in columns}


def report_numbers(comparisons: list[Comparison]) -> dict[str, Any]:
    judged = verdicts(comparisons)
    outcomes = Counter(verdict.outcome for verdict in judged)
    differences = [verdict.difference for verdict in judged if verdict.difference is not None]
    return {
        name: analysis_numbers(name, comparisons) for name in ANALYSES if name not in PICTURES
    } | {
        "papers": digest(f"{row['what']}: {row['ours']}" for row in beside(RESULTS)),
        "verdicts": dict(sorted(outcomes.items()))
        | {
            "mean": total(each.mean for each in differences),
            "spread": total(each.spread or 0.0 for each in differences),
            "sentences": digest(verdict.sentence for verdict in judged),
        },
    }


def compare_numbers() -> dict[str, Any]:
    """The numbers of ``siftback compare --json``, of some comparisons."""
    return {name: numbers(Comparison.read(RESULTS / name)) | {"folder": name} for name in COMPARED}


def digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def test_numbers_of_compare(hold: Callable[[str, Any], None]) -> None:
    hold("compare", compare_numbers())


def test_numbers_of_the_report(
    comparisons: list[Comparison], hold: Callable[[str, Any], None]
) -> None:
    hold("report", report_numbers(comparisons))


def reference(curve: Sequence[tuple[float, float]], target: float) -> float:
    """The amount spent where straight lines through a curve first fall to a target; inf if never.

    Args:
        curve: Amounts spent, each with the error or loss after it.
        target: The error or loss.
    """
    for number, (spent, height) in enumerate(curve):
        if height <= target:
            if number == 0:
                return spent
            before, start = curve[number - 1]
            way = (start - target) / (start - height)
            return before + way * (spent - before)
    return math.inf


def reference_speedup(
    comparison: Comparison, label: str, factor: float, axis: Axis
) -> float | None:
    """The median over the seeds of Traditional's amount over the configuration's."""
    machines = {
        name: {comparison.machine_of(run) for run in comparison.by_label()[name]}
        for name in (label, TRADITIONAL)
    }
    if axis == "seconds" and machines[label] != machines[TRADITIONAL]:
        return None
    field = f"test_{comparison.metric.name}"
    by_seed = [
        {
            run.seed: (
                run.final,
                [
                    (getattr(each, axis), getattr(each, field))
                    for each in comparison.evaluations(run)
                ],
            )
            for run in comparison.by_label()[name]
        }
        for name in (label, TRADITIONAL)
    ]
    ratios = []
    for seed, (_, curve) in by_seed[0].items():
        if seed in by_seed[1]:
            final, plain = by_seed[1][seed]
            ratios.append(reference(plain, factor * final) / reference(curve, factor * final))
    reached = ratios and all(0 < ratio < math.inf for ratio in ratios)
    return statistics.median(ratios) if reached else None


@pytest.mark.parametrize(
    "folder",
    comparison_folders(RESULTS),
    ids=lambda folder: str(folder.relative_to(RESULTS)),
)
@pytest.mark.sampled(13)
def test_a_speed_up_is_one_number(folder: Path) -> None:
    """In JSON, in the rows of a sweep and in table 1, from which the papers' numbers come."""
    comparison = Comparison.read(folder)
    (table,) = analyse([comparison], ["table1"]).values()
    in_table = {row[0]: row[4:] for row in table.rows} if isinstance(table, Grid) else {}
    in_rows = {row["strategy"]: row for row in rows(comparison)}
    selective = {run.label for run in comparison.runs if run.selective}
    names = {label: library_name(label) for label in selective}
    found = numbers(comparison)["configurations"]
    assert set(in_table) == (set(names.values()) if PLAIN in in_rows else set())
    for configuration in found:
        label, speedups = configuration["label"], configuration["speedups"]
        assert len(speedups) == (3 if PLAIN in in_rows else 0)
        for factor, speedup in speedups.items():
            text = "–" if speedup is None else f"{speedup:.2f}"
            assert in_rows[library_name(label)][f"speed-up to ×{factor}"] == text
        if label in selective and speedups:
            medians = [
                cell.median if isinstance(cell, Range) else cell for cell in in_table[names[label]]
            ]
            assert medians[:3] == list(speedups.values())


@pytest.mark.parametrize("name", COMPARED)
def test_a_speed_up_is_the_median_of_ratios_of_crossings(name: str) -> None:
    comparison = Comparison.read(RESULTS / name)
    for axis in ("seconds", "cost"):
        for label, found in speedups(comparison, axis=axis).items():
            for factor, speedup in found.items():
                expected = reference_speedup(comparison, label, factor, axis)
                assert (speedup and speedup.median) == pytest.approx(expected)
