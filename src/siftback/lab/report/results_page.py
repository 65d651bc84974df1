"""The results page: every comparison under ``results/``, and in plain words whether it paid.

Nothing on the page is typed in. It is written from the summaries, the records and the benchmarks'
outputs that lie in the repository, and written again it says what they then say.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from siftback.errors import ConfigError
from siftback.lab.analyses.error_plots import PLOT
from siftback.lab.papers import RUNS
from siftback.lab.papers.chapter import chapter, notes
from siftback.lab.records.comparison_record import RECORDS, SUMMARY, Comparison
from siftback.lab.records.formatting import facts_line, listed, with_spread
from siftback.lab.records.measures import (
    TRADITIONAL,
    MeanAndSpread,
    mean_ratio,
    ordered_labels,
    paired_difference,
    same_budget,
    selective_labels,
)
from siftback.lab.records.summary_table import markdown_table, measured, phase_rows, series
from siftback.lab.records.tables import markdown

# A damaged file can fail in as many ways as there are steps in reading it.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)

BENCHMARKS = "benchmarks"
TUNING = "tuning"

_HEAD = """\
# Results

Written from the records under `{results}` by `siftback results`; edit nothing here, as the next
run of the command replaces it.

**How to read it.** A selective strategy *paid* where its final test error is lower than that of
Traditional given the same budget: the `matched` run, which has the same cost in forwards (a
backward counted as two) and a learning-rate schedule that ends with it. In a comparison by budget
every run has the same cost, and Traditional itself is that baseline. The mean difference over
the seeds has to exceed its own sample standard deviation to count. That is a low bar: if nothing
but chance were at work, two seeds would clear it in about 39 % of the cases and three in about
23 %. Differences are in percentage points, negative where the selective run is better.
"""

_PHASES = """\
Where the seconds of training went (syncing: refreshing copies of the model, training a proxy);
and of strategies whose scores are not those of a fresh forward pass, what a score costs and the
rank correlation of the scores with the losses of such a pass.\
"""


def write_page(results_folder: Path, page_path: Path) -> None:
    """Writes the page from every comparison and benchmark under a folder.

    A folder or file that cannot be read is named as such, and the rest of the page is made.

    Args:
        results_folder: Holds a folder a comparison, which may have ``notes.md`` on what its
            numbers mean, or a folder of several comparisons, whose settings differ, for one
            table; ``benchmarks/*.json``, under ``recipes/`` the runs of the papers' recipes, and
            under ``tuning/`` comparisons that settings were chosen by.
        page_path: The Markdown file to write; its links are relative to where it lies.

    Raises:
        ConfigError: Where there is no such folder.
    """
    if not results_folder.is_dir():
        raise ConfigError(f"{results_folder} is no folder: give one that holds comparisons")
    folders = sorted(
        entry
        for entry in results_folder.iterdir()
        if entry.is_dir()
        and entry.name not in (BENCHMARKS, RUNS, TUNING)
        and not entry.name.startswith(".")
    )
    sources = [*folders, *sorted((results_folder / BENCHMARKS).glob("*.json"))]
    verdicts: list[dict[str, str]] = []
    sections = [_section(source, page_path, verdicts) for source in sources]
    for summary in sorted((results_folder / RUNS).rglob(SUMMARY)):
        with suppress(*_UNREADABLE, OSError):  # which the recipe's own section tells
            name = summary.parent.relative_to(results_folder).as_posix()
            verdicts += _verdicts(Comparison.read(summary.parent), name)
    head = _HEAD.format(results=f"{results_folder.name}/")
    overview = (
        [f"## Where it paid, at the same budget\n\n{markdown(verdicts)}\n"] if verdicts else []
    )
    page_path.parent.mkdir(parents=True, exist_ok=True)
    tuning = _tuning(results_folder / TUNING)
    papers = chapter(results_folder, page_path)
    text = "\n".join([head, *overview, *papers, *sections, *tuning])
    page_path.write_text(text, encoding="utf-8")


def judgement(difference: MeanAndSpread | None) -> str:
    """What a difference in error, selective minus same budget, says in words.

    >>> judgement(MeanAndSpread(-0.5, 0.1)), judgement(MeanAndSpread(0.5, 0.1))
    ('paid', 'did not pay')
    >>> judgement(MeanAndSpread(-0.5, 0.6))
    "made no difference within the seeds' spread"
    """
    if difference is None:
        return "is undecided, as there is no run of the same budget"
    if difference.spread is None:
        return "is undecided, as one seed has no spread"
    if abs(difference.mean) <= difference.spread:
        return "made no difference within the seeds' spread"
    return "paid" if difference.mean < 0 else "did not pay"


def _section(source: Path, page_path: Path, verdicts: list[dict[str, str]]) -> str:
    try:
        if source.suffix == ".json":
            return _benchmark(source)
        if not (source / SUMMARY).exists() and any(source.glob(f"*/{SUMMARY}")):
            return "\n".join(_series(source, source.name, "final error, %"))
        comparison = Comparison.read(source)
        text = _comparison(comparison, page_path)
        verdicts += _verdicts(comparison, comparison.folder.name)
    except OSError as error:
        reason = f"{Path(str(error.filename)).name}: {error.strerror}"
    except _UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        return text
    return f"## {source.name}\n\n**Unreadable**, and left out ({reason}).\n"


def _comparison(comparison: Comparison, page_path: Path) -> str:
    folder = comparison.folder
    here = quote(Path(os.path.relpath(folder, page_path.parent)).as_posix())
    parts = [f"## {folder.name}", _what_was_run(comparison)]
    if comparison.runs:
        sentences = [f"- {_sentence(comparison, label)}" for label in selective_labels(comparison)]
        parts += ["\n".join(sentences) or "No selective strategy was run."]
        parts += [*notes(folder), markdown_table(comparison)]
        if phases := phase_rows(comparison):
            parts += [_PHASES, markdown(phases)]
    else:
        parts.append("No run has finished.")
    if (folder / f"{PLOT}.png").exists():
        parts.append(f"[![Test error of {folder.name}]({here}/{PLOT}.png)]({here}/{PLOT}.svg)")
    parts.append(f"From [{SUMMARY}]({here}/{SUMMARY}) and [{RECORDS}]({here}/{RECORDS}).")
    return "\n\n".join(parts) + "\n"


def _tuning(folder: Path) -> list[str]:
    """What settings were chosen by: each configuration's error on held-out training examples."""
    title = "Settings, chosen on held-out training examples"
    return _series(folder, title, "error on held-out examples, %")


def _series(folder: Path, title: str, error: str) -> list[str]:
    """Comparisons that differ in settings, a folder each, as one table.

    Args:
        folder: Holds theirs, and may hold ``notes.md``.
        title: Of the section.
        error: What the column of final errors is called.
    """
    comparisons, damaged = [], []
    for summary in sorted(folder.glob(f"*/{SUMMARY}")):
        try:
            comparison = Comparison.read(summary.parent)
            series([comparison], error)
            comparisons.append(comparison)
        except _UNREADABLE as problem:
            damaged.append(f"**{summary.parent.name} is unreadable**, and left out ({problem}).\n")
    if not comparisons:
        return damaged
    shared, rows = series(comparisons, error)
    told = "".join(f"\n{text}\n" for text in notes(folder))
    return [
        f"## {title}\n\n- Asked for: {facts_line(shared)}\n"
        f"- Measured on: {facts_line(comparisons[0].environment)}\n{told}\n{markdown(rows)}\n",
        *damaged,
    ]


def _difference(comparison: Comparison, label: str) -> MeanAndSpread | None:
    baseline = same_budget(comparison, label)
    return paired_difference(comparison, label, baseline) if baseline else None


def _verdicts(comparison: Comparison, name: str) -> list[dict[str, str]]:
    """A row for each of its configurations that has a run of the same budget."""
    rows = []
    for label in selective_labels(comparison):
        baseline, difference = same_budget(comparison, label), _difference(comparison, label)
        if baseline is None or difference is None:
            continue
        seconds = mean_ratio(comparison, label, baseline, "seconds_train")
        rows.append(
            {
                "comparison": name,
                "strategy": label,
                "verdict at equal cost": judgement(difference),
                "error difference, points": with_spread(difference, sign=True),
                "seconds taken, over its baseline's": f"{seconds:.2f}" if seconds else "",
            }
        )
    return rows


def _sentence(comparison: Comparison, label: str) -> str:
    baseline, difference = same_budget(comparison, label), _difference(comparison, label)
    text = f"**{label} {judgement(difference)}.**"
    if baseline and difference:
        text += (
            f" Against {baseline}, Traditional of the same budget, its final test error "
            f"differs by {with_spread(difference, sign=True)} points"
        )
        seconds = mean_ratio(comparison, label, baseline, "seconds_train")
        text += f", in {seconds:.2f} times the seconds." if seconds else "."
    return text if baseline == TRADITIONAL else text + _against_traditional(comparison, label)


def _against_traditional(comparison: Comparison, label: str) -> str:
    lost = paired_difference(comparison, label, TRADITIONAL)
    cost = mean_ratio(comparison, label, TRADITIONAL, "cost_forward_units")
    seconds = mean_ratio(comparison, label, TRADITIONAL, "seconds_train")
    if lost is None or not cost or not seconds:
        return ""
    whole = f" Against the whole of Traditional it differs by {with_spread(lost, sign=True)} points"
    if comparison.machine(label) != comparison.machine(TRADITIONAL):
        return whole + "."
    return (
        f"{whole}; by its count of forwards and backwards it should take {cost:.2f} of the time, "
        f"and it took {seconds:.2f} of it ({seconds / cost - 1:+.0%} on the ideal)."
    )


def _what_was_run(comparison: Comparison) -> str:
    runs, arguments = comparison.runs, comparison.environment.get("arguments") or {}
    facts = {
        "Data": listed(run.data for run in runs),
        "Model": listed(run.model for run in runs),
        "Strategies": listed(run.strategy for run in runs),
        "Epochs": f"up to {max((run.epochs for run in runs), default=0):g}",
        "Seeds": listed(sorted(run.seed for run in runs)),
        "Asked for": facts_line(arguments),
    }
    lines = [f"- {name}: {value}" for name, value in facts.items() if value]
    machines: dict[str, list[str]] = {}
    for label in ordered_labels(comparison):
        machines.setdefault(comparison.machine(label), []).append(label)
    if len(machines) > 1:
        where = "; ".join(f"{', '.join(labels)} on {name}" for name, labels in machines.items())
        lines.append(f"- On several machines, whose seconds do not compare: {where}")
    return "\n".join(
        [*lines, f"- Measured on: {facts_line(comparison.environment) or 'not recorded'}"]
    )


def _benchmark(path: Path) -> str:
    benchmark = json.loads(path.read_text(encoding="utf-8"))
    environment = f"Measured on: {facts_line(benchmark.get('environment') or {})}"
    return f"## {benchmark['title']}\n\n{environment}\n\n{markdown(measured(benchmark['rows']))}\n"
