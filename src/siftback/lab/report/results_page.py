"""The page of results: what paid, what that rests on, the papers' numbers and the benchmarks.

All of its numbers come from the summaries, the records and the benchmarks' outputs in the
repository. It is for a person to read: the report (:mod:`siftback.lab.report.page`) has the rest.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from siftback.errors import ConfigError
from siftback.lab.analyses.configurations import task
from siftback.lab.analyses.figure import Cell, Grid, Missing
from siftback.lab.analyses.learning_rates import by_rate
from siftback.lab.analyses.noise import ends, with_wrong_labels
from siftback.lab.analyses.pays import on_curves, ratios
from siftback.lab.analyses.reading import read
from siftback.lab.analyses.writing import export_markdown, format_rows
from siftback.lab.papers import RUNS, short
from siftback.lab.records.comparison_record import SUMMARY, UNREADABLE, Comparison
from siftback.lab.records.formatting import NOT_REACHED, facts_line, listed
from siftback.lab.records.metric import Metric
from siftback.lab.records.summary_table import series
from siftback.lab.records.tables import markdown
from siftback.lab.report.verdict import (
    Verdict,
    counted,
    difference_of,
    headline,
    named,
    probability_of_paying,
    verdicts,
)

BENCHMARKS = "benchmarks"
TUNING = "tuning"

_BRIEF = {"paid": "**paid**", "level": "level", "lost": "worse", "undecided": "undecided"}

# Of the settings that all tuning shares, those that the page has.
_SHARED = ("data", "model", "width", "budget", "epochs", "batch_size", "train_limit", "validation")

_HEAD = """\
# Results

Written by `make results` from the records under [`{name}/`]({link}), and from nothing else; edit
nothing here. `make report` builds `report/index.html` from the same records in about a minute, with
every configuration, figure and table, all of the papers' numbers, and the benchmarks in full.
"""

_RATIOS = """\
## What selection pays, in budgets

A method's *budget ratio* is the budget that Traditional needs for the method's error (of language,
its loss), over the method's own: 1.5 is what one and a half times the budget would buy without
selection. Traditional's budget is the least at which its own curve, of five or more, comes to that
error, on straight lines over log budget; beyond what was measured a ratio is only known to be above
or below a number. Intervals are of 95 %, by a bootstrap over the seeds. Budgets are in epochs of
Traditional. Epochs over budget: how often the method went through the data while Traditional did
once, which is what its ratio would be if the examples that it left out had taught nothing. The
report has the errors.

{sentences}

{table}
"""

_WRONG = """\
## What wrong labels cost

A share of the training labels is made wrong, none of the test set's. Of each method: the difference
of its final test error from Traditional's of the same budget, in points, the mean over the seeds
with its 95 % interval; negative is better. `sb-memory-guarded` is
`Memory(guard=NoiseGuard(classes))`; `sb-memory-ratio-guarded` is `RatioMemory` with the same guard.
Precision: of the suspects at the end, the share with wrong labels; recall: of the wrong labels, the
share of suspects. While most suspects seem to be hard rather than wrong, none are held back.

{table}
"""

_RATES = """\
## Learning rates, compared on held-out training examples

Recipe `pays` trains all methods of a set at one rate. Here each method at several of them: its
final error in percent, or loss in nats, mean and standard deviation over the seeds.

{table}
"""

_PAID = """\
## What paid

{headline}

{by_data}

Of each strategy on each data set its longest training and, there, the share nearest one half, the
clearest first. A difference is in {unit}, selective less
Traditional of the same cost, mean and standard deviation over the seeds: negative is better. The
report has all configurations, with their budgets, seeds and intervals.

{tables}
"""

_RESTS = """\
## What a verdict rests on

- **Budget.** Cost is counted in forwards of one example, a backward being two. The baseline is
  Traditional of the same cost: shortened, with a learning-rate schedule that ends where it ends, or
  in a comparison by budget Traditional itself. A budget is given in epochs of that baseline.
- **First epoch.** Selection in batches begins after one epoch on everything, as the authors of
  Selective-Backprop ran it, and that of `Memory` after its own warm-up; both are charged.
- **Bar.** A configuration *paid*, or *did worse*, where the mean difference exceeds its own
  standard deviation over the seeds. That is a low bar: without any effect, {odds}
  would count as having paid.
- **Seconds** decide nothing here: other work shared the machines at times.

{table}
"""

_PAPERS = """\
## The papers' numbers beside ours

The main ones; the report has all. The papers trained larger networks
for far longer on GPUs, so a number that differs says what was seen at this size, and nothing about
theirs. Speed-ups are medians over the seeds; a dash is a target that a seed did not reach.

{table}
"""


def write_page(results: Path, page: Path) -> Sequence[Comparison]:
    """Writes the page.

    What cannot be read is named at the end of the page, and the rest is made.

    Args:
        results: Holds comparisons at any depth; ``benchmarks/*.json``; under ``recipes/`` the runs
            of the papers' recipes, and under ``tuning/`` comparisons that settings were chosen by,
            those of learning rates in a folder of their own.
        page: The Markdown file to write; its links are relative to its folder.

    Returns:
        The comparisons that it was made of.

    Raises:
        ConfigError: If there is no such folder.
    """
    if not results.is_dir():
        raise ConfigError(f"{results} is not a folder: give one that holds comparisons")
    comparisons, problems = comparisons_of(results)
    link = f"{quote(Path(os.path.relpath(results, page.parent)).as_posix())}/"
    apart = {id(one) for one in (*on_curves(comparisons), *with_wrong_labels(comparisons))}
    others = [one for one in comparisons if id(one) not in apart]  # these have tables of their own
    judged = [one for one in verdicts(others) if one.outcome != "undecided"]
    parts = [_HEAD.format(name=results.name, link=link), *_ratios(comparisons)]
    parts += [*_wrong(comparisons), *_paid(judged)]
    if judged:
        parts.append(_rests(judged, others))
    if (results / RUNS).is_dir():
        parts.append(_PAPERS.format(table=markdown(short(results))))
    parts += _benchmarks(results / BENCHMARKS)
    parts += [*_rates(results / TUNING), *_tuning(results / TUNING)]
    if problems:
        parts.append("## Left out\n\n" + "\n".join(f"- {problem}" for problem in problems) + "\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(parts), encoding="utf-8")
    return comparisons


def comparisons_of(results: Path) -> tuple[list[Comparison], list[str]]:
    """The comparisons under a folder of results that were judged on a test set.

    Args:
        results: As for `write_page`.

    Returns:
        They, and what is damaged, a line each.
    """
    return _within(one for one in results.iterdir() if one.name not in (BENCHMARKS, TUNING))


def _within(folders: Iterable[Path]) -> tuple[list[Comparison], list[str]]:
    """The comparisons in folders, of which some may hold none, and what is damaged."""
    holding = [folder for folder in sorted(folders) if any(folder.rglob(SUMMARY))]
    return read(holding) if holding else ([], [])


def benchmarks_of(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """What the benchmarks wrote, in the order of their files' names.

    Args:
        folder: Holds a JSON file for each.

    Returns:
        Each one's ``title``, ``environment`` and ``rows``, whether the page has all of them,
        ``tabled``, and what is damaged, a line each.
    """
    found, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            one = json.loads(path.read_text(encoding="utf-8"))
            rows = [
                {key: row[key] for key in ("setting", "what", "measured", "goal", "met")}
                for row in one["rows"]
            ]
            found.append(
                {
                    "title": str(one["title"]),
                    "environment": dict(one.get("environment") or {}),
                    "rows": rows,
                    "tabled": bool(one.get("tabled")),
                }
            )
        except UNREADABLE as error:
            problems.append(f"{path.name} is damaged, and left out ({type(error).__name__})")
    return found, problems


def _ratios(comparisons: Sequence[Comparison]) -> list[str]:
    """What each method's error is worth in budgets."""
    made = ratios(comparisons)
    if isinstance(made, Missing):
        return []
    sentences = "\n".join(f"- {sentence}" for sentence in made.sentences)
    return [_RATIOS.format(sentences=sentences, table=markdown(_by_budget(made)))]


def _by_budget(made: Grid) -> list[dict[str, str]]:
    """Budget ratios with their intervals: a row for each method, a column for each budget."""
    found = format_rows(made)
    budgets = sorted({one["budget"] for one in found}, key=float)
    several: dict[tuple[str, str], list[dict[str, str]]] = {}
    for one in found:
        several.setdefault((one["data and model"], one["method"]), []).append(one)
    rows = []
    for (data, method), each in several.items():
        row = {"data and model": data, "method": method, "seeds": listed(_of("seeds", each))}
        row |= {f"{budget} epochs": "" for budget in budgets}
        for one in each:
            row[f"{one['budget']} epochs"] = f"{one['budget ratio']} ({one['95 % interval']})"
        spent = sorted(_of("epochs over budget", each), key=float)
        rows.append(row | {"epochs over budget": " to ".join(dict.fromkeys([spent[0], spent[-1]]))})
    return rows


def _of(column: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))


def _wrong(comparisons: Sequence[Comparison]) -> list[str]:
    """What wrong labels cost: a row for each share of them, a column for each method."""
    made = ends(comparisons)
    if isinstance(made, Missing):
        return []
    methods = dict.fromkeys(str(row[2]) for row in made.rows)
    guarded = {row[2] for row in made.rows if any(row[-2:])}
    names = ("data and model", "wrong labels", "seeds", "Traditional")
    rows: dict[tuple[Cell, Cell], dict[str, str]] = {}
    for data, wrong, method, seeds, plain, mean, several, *found in made.rows:
        head = dict(zip(names, map(str, (data, wrong, seeds, plain)), strict=True))
        own = rows.setdefault((data, wrong), head | dict.fromkeys(methods, ""))
        own[str(method)] = f"{mean} ({several})" if several else str(mean)
        if method in guarded:
            own[f"precision / recall of {method}"] = " / ".join(map(str, filter(None, found)))
    return [_WRONG.format(table=markdown(list(rows.values())))]


def _paid(judged: Sequence[Verdict]) -> list[str]:
    if not judged:
        return []
    by_data: dict[str, list[Verdict]] = {}
    for one in judged:
        by_data.setdefault(one.data, []).append(one)
    units = {one.metric: f"{one.metric.plural} of final test {one.metric.noun}" for one in judged}
    tables = [markdown(_rows(judged, metric)) for metric in units]
    lines = "\n".join(f"- {_data_set(data, found)}" for data, found in by_data.items())
    return [
        _PAID.format(
            headline=headline(judged),
            by_data=lines,
            unit=" or ".join(units.values()),
            tables="\n\n".join(tables),
        )
    ]


def _rows(judged: Sequence[Verdict], metric: Metric) -> list[dict[str, str]]:
    """The main verdicts by one metric: a row for each strategy, a column for each data set."""
    found = [one for one in main_verdicts(judged) if one.difference and one.metric is metric]
    sets = dict.fromkeys(one.data for one in found)
    rows: dict[str, dict[str, str]] = {}
    for one in found:
        row = rows.setdefault(one.strategy, {"strategy": one.strategy} | dict.fromkeys(sets, ""))
        row[one.data] = f"{difference_of(one)}, {_BRIEF[one.outcome]}"
    return list(rows.values())


def main_verdicts(judged: Sequence[Verdict]) -> list[Verdict]:
    """One verdict for each strategy on each data set, in the order given.

    That is of its longest training: the comparison of the largest budget. Of several shares kept
    there, it is the one nearest one half.

    Args:
        judged: Verdicts with a baseline.
    """
    longest: dict[str, float] = {}
    for one in judged:
        if one.budget:
            longest[one.comparison] = max(one.budget.cost, longest.get(one.comparison, 0.0))

    def rank(one: Verdict) -> tuple[float, float]:
        return longest.get(one.comparison, 0.0), -abs(one.keep - 0.5)

    best: dict[tuple[str, str], Verdict] = {}
    for one in judged:
        key = one.data, one.strategy
        if key not in best or rank(one) > rank(best[key]):
            best[key] = one
    return [one for one in judged if best[one.data, one.strategy] is one]


def _counts(found: Iterable[Verdict], strategy: str | None = None) -> tuple[int, int, int]:
    """How many paid, stayed within the spread, and did worse."""
    seen = Counter(one.outcome for one in found if strategy in (None, one.strategy))
    return seen["paid"], seen["level"], seen["lost"]


def _data_set(data: str, found: Sequence[Verdict]) -> str:
    """The sentence on one data set."""
    paid, level, worse = _counts(found)
    comparisons = counted(len({one.comparison for one in found}), "comparison")
    text = f"**{data}**: of {counted(len(found), 'configuration')} in {comparisons} {paid} paid, "
    text += f"{level} stayed within the spread, and {worse} did worse."
    first = found[0]
    if first.outcome == "paid":
        text += f" Clearest: {first.label} in {first.comparison}, with a test "
        text += f"{first.metric.noun} {first.brief}."
    return text


def _rests(judged: Sequence[Verdict], comparisons: Sequence[Comparison]) -> str:
    seeds = sorted({one.seeds for one in judged})
    odds = " and ".join(f"{probability_of_paying(n):.0%} with {n} seeds" for n in seeds)
    found = Counter(one.comparison for one in judged)
    rows = [
        {
            "comparison": name,
            "what was trained": task(one),
            "verdicts": str(found[name]),
            "runs": str(len(one.runs)),
            "seeds": listed(sorted(run.seed for run in one.runs)),
            "machine": listed(one.machine(label) for label in one.by_label()),
            "recorded": str(one.environment.get("date", ""))[:10],
            "commit": str(one.environment.get("commit", ""))[:7],
        }
        for name, one in named(comparisons)
        if found[name]
    ]
    return _RESTS.format(odds=odds, table=markdown(rows))


def _benchmarks(folder: Path) -> list[str]:
    found, problems = benchmarks_of(folder)
    if not found and not problems:
        return []
    lines = [f"- {_benchmark(one)}" for one in found if not one["tabled"]]
    lines += [f"- **{one}.**" for one in problems]
    tables = [f"### {one['title']}\n\n{_by_setting(one)}\n" for one in found if one["tabled"]]
    said = ["\n".join(lines) + "\n"] if lines else []
    return ["\n".join(["## What the benchmarks say\n", *said, *tables])]


def _by_setting(one: Mapping[str, Any]) -> str:
    """A benchmark's numbers in full: a row for each setting, a column for what is measured."""
    columns = dict.fromkeys(row["what"] for row in one["rows"])
    rows: dict[str, dict[str, str]] = {}
    for row in one["rows"]:
        own = rows.setdefault(row["setting"], {"": row["setting"]} | dict.fromkeys(columns, ""))
        value = row["measured"]  # a count is an integer
        own[row["what"]] = f"{value:.2f}" if isinstance(value, float) else str(value)
    return markdown(list(rows.values()))


def _benchmark(one: Mapping[str, Any]) -> str:
    """A benchmark in a line: what is asked of it, and how often that was met."""
    title, rows = f"**{one['title']}**", one["rows"]
    by_goal: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["goal"]:
            by_goal.setdefault((row["what"], row["goal"]), []).append(row)
    if not by_goal:
        return f"{title}: {counted(len(rows), 'number')} without a goal, in the report."
    if len(by_goal) > 4:  # too many to name each
        together: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for (_, goal), of in by_goal.items():
            together.setdefault(("the ratios", goal), []).extend(of)
        by_goal = together
    return f"{title}: {'; '.join(_goal(*key, of) for key, of in by_goal.items())}."


def _goal(what: str, goal: str, rows: Sequence[Mapping[str, Any]]) -> str:
    measured = [row["measured"] for row in rows]
    met = sum(bool(row["met"]) for row in rows)
    ends = dict.fromkeys(
        f"{end:,.0f}" if end >= 100 else f"{end:.2g}" for end in (min(measured), max(measured))
    )
    return f"{what} {' to '.join(ends)}, {goal} in {met} of {len(rows)}"


def _rates(folder: Path) -> list[str]:
    """Each method's errors or losses on held-out examples at several learning rates."""
    comparisons, problems = _within(
        one for one in folder.glob("*") if not (one / SUMMARY).is_file()
    )
    made = by_rate(comparisons)
    table = [] if isinstance(made, Missing) else [_RATES.format(table=export_markdown(made))]
    return [*table, *(f"**{problem}.**\n" for problem in problems)]


def _tuning(folder: Path) -> list[str]:
    """What settings were chosen by: each configuration's error or loss on held-out examples."""
    comparisons, problems = [], []
    for summary in sorted(folder.glob(f"*/{SUMMARY}")):
        try:
            one = Comparison.read(summary.parent)
            series([one], "")
            comparisons.append(one)
        except UNREADABLE as error:
            name = f"{folder.name}/{summary.parent.name}"
            problems.append(f"**{name} is damaged, and left out ({type(error).__name__}).**\n")
    if not comparisons:
        return problems
    errors = all(one.metric.name == "error" for one in comparisons)
    judged = "error on held-out examples, %" if errors else "error, %, or loss, held-out examples"
    shared, rows = series(comparisons, judged)
    for row in rows:
        row["settings"] = row["settings"] or NOT_REACHED
    asked = facts_line({name: shared[name] for name in _SHARED if name in shared})
    title = "## Settings, chosen on held-out training examples"
    return [f"{title}\n\nAll with {asked}.\n\n{markdown(rows)}\n", *problems]
