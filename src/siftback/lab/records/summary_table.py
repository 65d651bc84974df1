"""A comparison as a table, on a terminal and in Markdown, from the same rows."""
# ruff: noqa: RUF001 - × and – are meant.

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import (
    NOT_REACHED,
    facts_line,
    listed,
    readable,
    readable_seconds,
    with_spread,
)
from siftback.lab.records.measures import (
    MATCHED,
    TRADITIONAL,
    mean_and_spread,
    ordered_labels,
    speedups,
)
from siftback.lab.records.metric import METRICS, bits_per_character
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.records.tables import markdown, terminal

WIDEST = 12  # columns of a benchmark's table

# The columns that 80 characters hold, and what they are called there.
_TERMINAL = {
    "strategy": "strategy",
    "final error %": "error %",
    "final loss": "loss",
    "kept": "kept",
    "examples backpropagated": "backpropagated",
    "seconds of training": "seconds",
    "cost in forwards": "cost",
}


def rows(comparison: Comparison) -> list[dict[str, str]]:
    """One row per configuration, by column name, every number written as it is shown.

    Errors are in percent and losses in nats, mean ± sample standard deviation over the seeds; the
    other numbers are means. The columns of median speed-ups
    (:func:`siftback.lab.records.measures.speedups`, in seconds) are left out where there is no
    Traditional run to measure them by.
    """
    groups = comparison.by_label()
    faster = speedups(comparison) if TRADITIONAL in groups else {}
    table = []
    for label in ordered_labels(comparison):
        row = {"strategy": label} | _numbers(groups[label])
        for factor, speedup in faster.get(label, {}).items():
            row[f"speed-up to ×{factor:g}"] = (
                NOT_REACHED if speedup is None else f"{speedup.median:.2f}"
            )
        table.append(row)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """The table that ``siftback compare`` prints; whole from 80 columns on.

    It has the main columns of `rows`; ``siftback report`` has all.
    """
    body = [
        {short: row[name] for name, short in _TERMINAL.items() if name in row}
        for row in rows(comparison)
    ]
    return terminal(
        body or [{"No run has finished": ""}],
        title=_title(comparison),
        caption=_caption(comparison),
        wrapped=["strategy"],
    )


def phase_rows(comparison: Comparison) -> list[dict[str, str]]:
    """One row per configuration: seconds by phase, and what is known of the scores it selects by.

    Means over the seeds. Agreement is given at the first, the middle and the last evaluation.
    Configurations whose records hold no phases are left out.
    """
    table = []
    groups = comparison.by_label()
    for label in ordered_labels(comparison):
        runs = [run for run in groups[label] if run.seconds_by_phase]
        if not runs:
            continue
        row = {"strategy": label}
        for phase in runs[0].seconds_by_phase:
            row[f"{phase}, s"] = readable_seconds(
                mean_and_spread(run.seconds_by_phase[phase] for run in runs).mean
            )
        made = [[e.agreement for e in comparison.evaluations(run)] for run in runs]
        known = [[found for found in each if found is not None] for each in made]
        if all(known):
            price = f"{mean_and_spread(run.score_cost for run in runs).mean:.2f}"
            if (measured := comparison.prices.get(runs[0].strategy)) is not None:
                price += f" ({measured.low:.2f} to {measured.high:.2f})"
            row["a score's price, in forwards"] = price
            places = ((each[0], each[len(each) // 2], each[-1]) for each in known)
            row["agreement with the losses, first, middle, last"] = ", ".join(
                f"{mean_and_spread(seeds).mean:.2f}" for seeds in zip(*places, strict=True)
            )
        table.append(row)
    return table


def suspected(runs: Sequence[RunSummary]) -> dict[str, str]:
    """What a noise guard suspects in the end, on average over the runs of one configuration.

    Empty where there was no guard; without precision and recall where no labels are known to be
    wrong.
    """
    guarded = [run for run in runs if run.suspects is not None]
    if not guarded:
        return {}
    found = sum(run.suspects or 0 for run in guarded)
    cells = {"suspects": f"{found / len(guarded):.0f}"}
    right = sum(run.suspects_wrong or 0 for run in guarded)
    wrong = sum(run.labels_wrong or 0 for run in guarded)
    if found and wrong:
        cells["of them wrong (precision)"] = f"{right / found:.3f}"
    if wrong:
        cells["of the wrong found (recall)"] = f"{right / wrong:.3f}"
    return cells


def series(
    comparisons: Sequence[Comparison], error: str
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Comparisons that differ in settings, as one table.

    Args:
        comparisons: One or more.
        error: What the column of final errors is called.

    Returns:
        The settings that all share, and a row for each configuration with those that are its own.
    """
    asked = [comparison.environment["arguments"] for comparison in comparisons]
    plan = ("strategies", "keeps", "seeds", "matched")
    shared = {
        name: value
        for name, value in asked[0].items()
        if name not in plan and all(one.get(name) == value for one in asked)
    }
    table = []
    for comparison, arguments in zip(comparisons, asked, strict=True):
        own = {k: v for k, v in arguments.items() if k not in shared and k not in plan}
        groups = comparison.by_label()
        for label in ordered_labels(comparison):
            runs = groups[label]
            cost = mean_and_spread(run.cost_forward_units for run in runs).mean
            row = {
                "comparison": comparison.folder.name,
                "strategy": label,
                "settings": facts_line(own),
                error: with_spread(
                    mean_and_spread(run.final for run in runs), digits=comparison.metric.digits
                ),
                "cost in forwards": f"{cost:,.0f}",
                "seeds": listed(sorted(run.seed for run in runs)),
            }
            table.append(row | suspected(runs))
    return shared, table


def markdown_table(comparison: Comparison) -> str:
    """The same rows as a Markdown table, columns under their full names."""
    return markdown(rows(comparison))


def measured(ratios: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Lays out a benchmark's ratios: one row per setting, one column per ratio with its goal.

    Where the ratios are more than fit side by side, `WIDEST`, they are the rows.

    Args:
        ratios: Each with ``setting``, ``what``, ``measured``, ``goal`` and ``met``.

    >>> ratio = {"setting": "fp32", "what": "over ideal", "measured": 0.9, "met": False}
    >>> measured([ratio | {"goal": "at least 0.95"}])
    [{'setting': 'fp32', 'over ideal (at least 0.95)': '0.9 (missed)'}]
    """
    table: dict[str, dict[str, str]] = {}
    for ratio in ratios:
        row = table.setdefault(ratio["setting"], {"setting": ratio["setting"]})
        column = f"{ratio['what']} ({ratio['goal']})" if ratio["goal"] else ratio["what"]
        row[column] = f"{ratio['measured']:.4g}" + (" (missed)" if ratio["met"] is False else "")
    columns = dict.fromkeys(name for row in table.values() for name in row if name != "setting")
    if len(columns) <= WIDEST:
        return list(table.values())
    return [
        {"ratio": name} | {setting: row.get(name, "") for setting, row in table.items()}
        for name in columns
    ]


def _numbers(runs: list[RunSummary]) -> dict[str, str]:
    def mean(name: str) -> float:
        return mean_and_spread(getattr(run, name) for run in runs).mean

    return _judged(runs) | {
        "kept": f"{mean('keep_measured'):.3f}",
        "examples forwarded": readable(mean("examples_forwarded")),
        "examples backpropagated": readable(mean("examples_backpropped")),
        "steps": f"{mean('steps'):.0f}",
        "seconds of training": readable_seconds(mean("seconds_train")),
        "cost in forwards": readable(mean("cost_forward_units")),
    }


def _judged(runs: list[RunSummary]) -> dict[str, str]:
    """What runs are judged by: errors in percent, or losses."""
    metric = METRICS[runs[0].metric]
    unit = " %" if metric.name == "error" else ""
    ends = {"final": [run.final for run in runs], "best": [run.best for run in runs]}
    cells = {
        f"{end} {metric.noun}{unit}": with_spread(mean_and_spread(found), digits=metric.digits)
        for end, found in ends.items()
    }
    if metric.name == "loss":
        bits = [bits_per_character(run.final, run.tokens_per_character or 1.0) for run in runs]
        cells["bits per character"] = with_spread(mean_and_spread(bits), digits=metric.digits)
    return cells


def _title(comparison: Comparison) -> str | None:
    runs = comparison.runs
    if not runs:
        return None
    models, data = listed(run.model for run in runs), listed(run.data for run in runs)
    return f"{models} on {data}, seeds {listed(sorted(run.seed for run in runs))}"


def _caption(comparison: Comparison) -> str | None:
    if not comparison.runs:
        return None
    metric = comparison.metric
    unit = "" if metric.name == "error" else ", in nats per token"
    example = "one example" if metric.name == "error" else "one window"
    caption = (
        f"Final test {metric.noun}{unit}: mean ± standard deviation over the seeds. Cost: "
        f"forwards of {example}, a backward counted as two."
    )
    if any(run.strategy == MATCHED for run in comparison.runs):
        caption += " Matched to a strategy: Traditional, shortened to the same cost."
    return caption
