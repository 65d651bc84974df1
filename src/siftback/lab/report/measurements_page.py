"""The page of measurements: rare classes, benchmarks, learning rates and settings.

What is not the first question of a reader of the results, but what they rest on.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.titles import PLAN
from siftback.lab.figures.writing import format_rows
from siftback.lab.records.folder import UNREADABLE, is_comparison
from siftback.lab.records.formatting import NOT_REACHED, facts_line, listed
from siftback.lab.records.frame import mean_and_spread, read_runs
from siftback.lab.records.tables import pivot
from siftback.lab.report.results_page import (
    BENCHMARKS,
    RARE,
    TUNING,
    read_within,
    write_from_template,
    written,
)

# Of the settings that all tuning shares, those that the page has.
_SHARED = ("data", "model", "width", "budget", "epochs", "batch_size", "train_limit", "validation")
# Benchmarks of which the page has all measurements, beside how often their goals were met.
_IN_FULL = ("gpu.json", "reading.json", "seconds.json", "step.json")


def write_measurements(results: Path, page: Path) -> None:
    """Writes the page.

    Args:
        results: Holds comparisons of rare classes in ``rare/``; ``benchmarks/*.json``; and in
            ``tuning/`` comparisons that settings were chosen by, those of learning rates in a
            folder of their own.
        page: The Markdown file to write; its links are relative to its folder.
    """
    benchmarks, damaged_benchmarks = benchmarks_of(results / BENCHMARKS)
    at_rates, damaged_rates = read_within(
        path for path in (results / TUNING).glob("*") if not is_comparison(path)
    )
    of_rare, damaged_rare = read_within([results / RARE])
    rare = format_rows(ANALYSES["rare"](of_rare))
    shared, tuned, damaged_tuning = _tuning(results / TUNING)
    write_from_template(
        "measurements.md.j2",
        results,
        page,
        goals=_goals,
        rare=[row | {"method": written(row["method"])} for row in rare],
        damaged_rare=damaged_rare,
        benchmarks=[item for item in benchmarks if any(row["goal"] for row in item["rows"])],
        damaged_benchmarks=damaged_benchmarks,
        in_full=[_in_full(item) for item in benchmarks if item["file"] in _IN_FULL],
        rates=_by_rule(format_rows(ANALYSES["rates"](at_rates))),
        damaged_rates=damaged_rates,
        shared=facts_line(shared),
        tuned=tuned,
        damaged_tuning=damaged_tuning,
    )


def benchmarks_of(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the records of the benchmarks, in the order of their files' names.

    Args:
        folder: Holds a JSON file for each.

    Returns:
        Each one's ``title``, ``environment``, ``rows`` and ``file``; what is damaged, a line each.
    """
    benchmarks, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            keys = ("setting", "what", "measured", "goal", "met")
            rows = [{key: row[key] for key in keys} for row in record["rows"]]
            about = {"title": str(record["title"]), "file": path.name, "rows": rows}
            benchmarks.append(about | {"environment": dict(record.get("environment") or {})})
        except UNREADABLE as error:
            problems.append(f"{path.name} is damaged, and left out ({type(error).__name__})")
    return benchmarks, problems


def rows_of(folder: Path, title: str, *names: str) -> list[dict[str, Any]]:
    """Returns the rows of some names of the benchmarks whose titles begin so.

    Args:
        folder: Holds a JSON file for each benchmark.
        title: What their titles begin with.
        names: Of the rows: what they measure.
    """
    titled = [record for record in benchmarks_of(folder)[0] if record["title"].startswith(title)]
    return [row for record in titled for row in record["rows"] if row["what"] in names]


def _by_rule(rates: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Lays out learning rates: a row for each experiment, a column for each method."""
    return pivot(
        ({"data and model": title, "seeds": seeds}, written(method), f"{ends}; lowest at {rate}")
        for title, method, seeds, ends, rate in (row.values() for row in rates)
    )


def _in_full(benchmark: Mapping[str, Any]) -> tuple[str, str, list[dict[str, str]]]:
    """Returns a benchmark's title, where it ran, and its measurements, a row for each setting."""
    cells = (
        ({"setting": row["setting"]}, row["what"], f"{row['measured']:.3g}")
        for row in benchmark["rows"]
    )
    environment = benchmark["environment"]
    facts = {name: environment[name] for name in ("device", "cpu", "torch") if name in environment}
    return benchmark["title"], facts_line(facts), pivot(cells)


def _goals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says what is asked of a benchmark, and how often that was met."""
    goals = pd.DataFrame([row for row in rows if row["goal"]])
    if len(goals[["what", "goal"]].drop_duplicates()) > 5:  # too many to name each
        goals["what"] = "the ratios"
    texts = []
    for (what, goal), group in goals.groupby(["what", "goal"], sort=False):
        ends = (group.measured.min(), group.measured.max())
        span = dict.fromkeys(f"{end:,.0f}" if end >= 100 else f"{end:.2g}" for end in ends)
        met = group.met.astype(bool).sum()
        texts.append(f"{what} {' to '.join(span)}, {goal} in {met} of {len(group)}")
    return "; ".join(texts)


def _tuning(folder: Path) -> tuple[dict[str, Any], list[dict[str, str]], list[str]]:
    """Lays out comparisons on held-out examples, that differ in settings, as one table.

    Returns:
        Of the settings that all share those that the page has; a row for each configuration with
        the settings that are its own; and what is damaged, a line each.
    """
    comparisons, problems = read_within(filter(is_comparison, folder.glob("*")))
    settings = [comparison.arguments for comparison in comparisons]
    shared = {
        name: value
        for name, value in (settings[0] if settings else {}).items()
        if name not in PLAN and all(other.get(name) == value for other in settings)
    }
    errors = all(comparison.metric.name == "error" for comparison in comparisons)
    judged = "error on held-out examples, %" if errors else "error, %, or loss, held-out examples"
    rows = []
    for comparison, arguments in zip(comparisons, settings, strict=True):
        differing = {k: v for k, v in arguments.items() if k not in shared and k not in PLAN}
        for label, runs in read_runs(comparison).groupby("label", sort=False):
            row = {
                "comparison": comparison.folder.name,
                "strategy": written(label),
                "settings": facts_line(differing) or NOT_REACHED,
                judged: f"{mean_and_spread(runs.final):.{comparison.metric.digits}f}",
                "cost in forwards": f"{runs.cost_forward_units.mean():,.0f}",
                "seeds": listed(sorted(runs.seed)),
            }
            rows.append(row)
    return {name: shared[name] for name in _SHARED if name in shared}, rows, problems
