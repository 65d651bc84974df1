"""The page of results: what paid, what that rests on, the papers' numbers and the benchmarks.

All of its numbers come from the summaries, the records and the benchmarks' outputs in the
repository. It is for a person to read: the report (:mod:`siftback.lab.report.page`) has the rest.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from siftback.errors import ConfigError
from siftback.lab.figures.configurations import task
from siftback.lab.figures.figure import Missing
from siftback.lab.figures.learning_rates import by_rate
from siftback.lab.figures.noise import noisy_ends, with_wrong_labels
from siftback.lab.figures.pays import MethodRatio, experiments, method_ratios, on_curves, ratios
from siftback.lab.figures.reading import read
from siftback.lab.figures.writing import export_markdown
from siftback.lab.papers import RUNS, short
from siftback.lab.records.comparison_record import SUMMARY, UNREADABLE, Comparison
from siftback.lab.records.formatting import NOT_REACHED, counted, facts_line, listed
from siftback.lab.records.run_summary import Metric
from siftback.lab.records.summary_table import series
from siftback.lab.records.tables import markdown
from siftback.lab.report.verdict import (
    Verdict,
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
    separate = {
        id(comparison) for comparison in (*on_curves(comparisons), *with_wrong_labels(comparisons))
    }
    others = [
        comparison for comparison in comparisons if id(comparison) not in separate
    ]  # these have tables of their own
    judged = [verdict for verdict in verdicts(others) if verdict.outcome != "undecided"]
    sections = [_HEAD.format(name=results.name, link=link), *_ratios(comparisons)]
    sections += [*_wrong(comparisons), *_paid(judged)]
    if judged:
        sections.append(_rests(judged, others))
    if (results / RUNS).is_dir():
        sections.append(_PAPERS.format(table=markdown(short(results))))
    sections += _benchmarks(results / BENCHMARKS)
    sections += [*_rates(results / TUNING), *_tuning(results / TUNING)]
    if problems:
        sections.append(
            "## Left out\n\n" + "\n".join(f"- {problem}" for problem in problems) + "\n"
        )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(sections), encoding="utf-8")
    return comparisons


def comparisons_of(results: Path) -> tuple[list[Comparison], list[str]]:
    """The comparisons under a folder of results that were judged on a test set.

    Args:
        results: As for `write_page`.

    Returns:
        They, and what is damaged, a line each.
    """
    return _within(
        folder for folder in results.iterdir() if folder.name not in (BENCHMARKS, TUNING)
    )


def _within(folders: Iterable[Path]) -> tuple[list[Comparison], list[str]]:
    """The comparisons in folders, of which some may hold none, and what is damaged."""
    holding = [folder for folder in sorted(folders) if any(folder.rglob(SUMMARY))]
    return read(holding) if holding else ([], [])


def benchmarks_of(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the records of the benchmarks, in the order of their files' names.

    Args:
        folder: Holds a JSON file for each.

    Returns:
        Each one's ``title``, ``environment`` and ``rows``, whether the page has all of them,
        ``tabled``, and what is damaged, a line each.
    """
    benchmarks, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            rows = [
                {key: row[key] for key in ("setting", "what", "measured", "goal", "met")}
                for row in record["rows"]
            ]
            benchmarks.append(
                {
                    "title": str(record["title"]),
                    "environment": dict(record.get("environment") or {}),
                    "rows": rows,
                    "tabled": bool(record.get("tabled")),
                }
            )
        except UNREADABLE as error:
            problems.append(f"{path.name} is damaged, and left out ({type(error).__name__})")
    return benchmarks, problems


def _ratios(comparisons: Sequence[Comparison]) -> list[str]:
    """Returns the section of budget ratios."""
    table = ratios(comparisons)
    if isinstance(table, Missing):
        return []
    sentences = "\n".join(f"- {sentence}" for sentence in table.sentences)
    return [_RATIOS.format(sentences=sentences, table=markdown(_by_budget(comparisons)))]


def _by_budget(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
    """Budget ratios with their intervals: a row for each method, a column for each budget."""
    ratios_of_methods = method_ratios(experiments(comparisons))
    budgets = sorted({method.budget for method in ratios_of_methods})
    methods: dict[tuple[str, str], list[MethodRatio]] = {}
    for method in ratios_of_methods:
        methods.setdefault((method.experiment.title, method.label), []).append(method)
    rows = []
    for (data, label), group in methods.items():
        by_budget = {end.budget: f"{end.ratio.ratio} ({end.interval})" for end in group}
        spent = sorted(end.epochs for end in group)
        rows.append(
            {"data and model": data, "method": label}
            | {"seeds": listed(end.ratio.seeds for end in group)}
            | {f"{budget:g} epochs": by_budget.get(budget, "") for budget in budgets}
            | {
                "epochs over budget": " to ".join(
                    dict.fromkeys(f"{end:.2f}" for end in (spent[0], spent[-1]))
                )
            }
        )
    return rows


def _wrong(comparisons: Sequence[Comparison]) -> list[str]:
    """Returns the section of wrong labels: a row per share of them, a column per method."""
    noisy = noisy_ends(comparisons)
    if not noisy:
        return []
    methods = dict.fromkeys(end.label for end in noisy)
    rows: dict[tuple[str, float], dict[str, str]] = {}
    for end in noisy:
        row = rows.setdefault(
            (end.task, end.wrong),
            {
                "data and model": end.task,
                "wrong labels": f"{end.wrong:.0%}",
                "seeds": str(end.seeds),
                "Traditional": end.metric.written(end.baseline),
            }
            | dict.fromkeys(methods, ""),
        )
        interval = end.interval and f" ({end.interval})"
        row[end.label] = f"{end.difference:+.2f}{interval}"
        rates = [f"{rate:.2f}" for rate in (end.precision, end.recall) if not math.isnan(rate)]
        if end.guarded:
            row[f"precision / recall of {end.label}"] = " / ".join(rates)
    return [_WRONG.format(table=markdown(list(rows.values())))]


def _paid(judged: Sequence[Verdict]) -> list[str]:
    if not judged:
        return []
    by_data: dict[str, list[Verdict]] = {}
    for verdict in judged:
        by_data.setdefault(verdict.data, []).append(verdict)
    units = {
        verdict.metric: f"{verdict.metric.plural} of final test {verdict.metric.noun}"
        for verdict in judged
    }
    tables = [markdown(_rows(judged, metric)) for metric in units]
    lines = "\n".join(f"- {_data_set(data, group)}" for data, group in by_data.items())
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
    shown_verdicts = [
        verdict
        for verdict in main_verdicts(judged)
        if verdict.difference and verdict.metric is metric
    ]
    sets = dict.fromkeys(verdict.data for verdict in shown_verdicts)
    rows: dict[str, dict[str, str]] = {}
    for verdict in shown_verdicts:
        row = rows.setdefault(
            verdict.strategy, {"strategy": verdict.strategy} | dict.fromkeys(sets, "")
        )
        row[verdict.data] = f"{difference_of(verdict)}, {_BRIEF[verdict.outcome]}"
    return list(rows.values())


def main_verdicts(judged: Sequence[Verdict]) -> list[Verdict]:
    """One verdict for each strategy on each data set, in the order given.

    That is of its longest training: the comparison of the largest budget. Of several shares kept
    there, it is the one nearest one half.

    Args:
        judged: Verdicts with a baseline.
    """
    longest: dict[str, float] = {}
    for verdict in judged:
        if verdict.budget:
            longest[verdict.comparison] = max(
                verdict.budget.cost, longest.get(verdict.comparison, 0.0)
            )

    def rank(verdict: Verdict) -> tuple[float, float]:
        return longest.get(verdict.comparison, 0.0), -abs(verdict.keep - 0.5)

    best: dict[tuple[str, str], Verdict] = {}
    for verdict in judged:
        key = verdict.data, verdict.strategy
        if key not in best or rank(verdict) > rank(best[key]):
            best[key] = verdict
    return [verdict for verdict in judged if best[verdict.data, verdict.strategy] is verdict]


def _counts(verdict_list: Iterable[Verdict], strategy: str | None = None) -> tuple[int, int, int]:
    """Counts the verdicts: paid, within the spread, and worse."""
    seen = Counter(
        verdict.outcome for verdict in verdict_list if strategy in (None, verdict.strategy)
    )
    return seen["paid"], seen["level"], seen["lost"]


def _data_set(data: str, group: Sequence[Verdict]) -> str:
    """The sentence on one data set."""
    paid, level, worse = _counts(group)
    comparisons = counted(len({verdict.comparison for verdict in group}), "comparison")
    text = f"**{data}**: of {counted(len(group), 'configuration')} in {comparisons} {paid} paid, "
    text += f"{level} stayed within the spread, and {worse} did worse."
    first = group[0]
    if first.outcome == "paid":
        text += f" Clearest: {first.label} in {first.comparison}, with a test "
        text += f"{first.metric.noun} {first.brief}."
    return text


def _rests(judged: Sequence[Verdict], comparisons: Sequence[Comparison]) -> str:
    seeds = sorted({verdict.seeds for verdict in judged})
    odds = " and ".join(f"{probability_of_paying(n):.0%} with {n} seeds" for n in seeds)
    verdict_counts = Counter(verdict.comparison for verdict in judged)
    rows = [
        {
            "comparison": name,
            "what was trained": task(comparison),
            "verdicts": str(verdict_counts[name]),
            "runs": str(len(comparison.runs)),
            "seeds": listed(sorted(run.seed for run in comparison.runs)),
            "machine": listed(comparison.machine(label) for label in comparison.by_label()),
            "recorded": str(comparison.environment.get("date", ""))[:10],
            "commit": str(comparison.environment.get("commit", ""))[:7],
        }
        for name, comparison in named(comparisons)
        if verdict_counts[name]
    ]
    return _RESTS.format(odds=odds, table=markdown(rows))


def _benchmarks(folder: Path) -> list[str]:
    benchmarks, problems = benchmarks_of(folder)
    if not benchmarks and not problems:
        return []
    lines = [f"- {_benchmark(benchmark)}" for benchmark in benchmarks if not benchmark["tabled"]]
    lines += [f"- **{problem}.**" for problem in problems]
    tables = [
        f"### {benchmark['title']}\n\n{_by_setting(benchmark)}\n"
        for benchmark in benchmarks
        if benchmark["tabled"]
    ]
    listing = ["\n".join(lines) + "\n"] if lines else []
    return ["\n".join(["## What the benchmarks say\n", *listing, *tables])]


def _by_setting(benchmark: Mapping[str, Any]) -> str:
    """A benchmark's numbers in full: a row for each setting, a column for what is measured."""
    columns = dict.fromkeys(row["what"] for row in benchmark["rows"])
    rows: dict[str, dict[str, str]] = {}
    for row in benchmark["rows"]:
        cells = rows.setdefault(row["setting"], {"": row["setting"]} | dict.fromkeys(columns, ""))
        value = row["measured"]  # a count is an integer
        cells[row["what"]] = f"{value:.2f}" if isinstance(value, float) else str(value)
    return markdown(list(rows.values()))


def _benchmark(benchmark: Mapping[str, Any]) -> str:
    """A benchmark in a line: what is asked of it, and how often that was met."""
    title, rows = f"**{benchmark['title']}**", benchmark["rows"]
    by_goal: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["goal"]:
            by_goal.setdefault((row["what"], row["goal"]), []).append(row)
    if not by_goal:
        return f"{title}: {counted(len(rows), 'number')} without a goal, in the report."
    if len(by_goal) > 4:  # too many to name each
        together: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for (_, goal), goals in by_goal.items():
            together.setdefault(("the ratios", goal), []).extend(goals)
        by_goal = together
    return f"{title}: {'; '.join(_goal(*key, goals) for key, goals in by_goal.items())}."


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
        path for path in folder.glob("*") if not (path / SUMMARY).is_file()
    )
    table_of_rates = by_rate(comparisons)
    table = (
        []
        if isinstance(table_of_rates, Missing)
        else [_RATES.format(table=export_markdown(table_of_rates))]
    )
    return [*table, *(f"**{problem}.**\n" for problem in problems)]


def _tuning(folder: Path) -> list[str]:
    """Returns the section of tuning: errors or losses on held-out examples."""
    comparisons, problems = [], []
    for summary in sorted(folder.glob(f"*/{SUMMARY}")):
        try:
            comparison = Comparison.read(summary.parent)
            series([comparison], "")
            comparisons.append(comparison)
        except UNREADABLE as error:
            name = f"{folder.name}/{summary.parent.name}"
            problems.append(f"**{name} is damaged, and left out ({type(error).__name__}).**\n")
    if not comparisons:
        return problems
    errors = all(comparison.metric.name == "error" for comparison in comparisons)
    judged = "error on held-out examples, %" if errors else "error, %, or loss, held-out examples"
    shared, rows = series(comparisons, judged)
    for row in rows:
        row["settings"] = row["settings"] or NOT_REACHED
    settings = facts_line({name: shared[name] for name in _SHARED if name in shared})
    title = "## Settings, chosen on held-out training examples"
    return [f"{title}\n\nAll with {settings}.\n\n{markdown(rows)}\n", *problems]
