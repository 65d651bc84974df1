"""A comparison as a table, on a terminal and in Markdown, from the same rows."""
# ruff: noqa: RUF001 - × and – are meant.

from collections.abc import Collection, Iterable
from typing import Any

import pandas as pd
from rich.table import Table

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import NOT_REACHED, listed, readable, readable_seconds
from siftback.lab.records.frame import mean_and_spread, read_evaluations, read_runs, speedups
from siftback.lab.records.run_summary import (
    MATCHED,
    METRICS,
    TRADITIONAL,
    bits_per_character,
    peak_signal_to_noise,
)
from siftback.lab.records.tables import pivot, terminal
from siftback.lab.strategies.table import library_name

WIDEST = 12  # columns of a benchmark's table

# The columns that 80 characters hold, and what they are called there.
_TERMINAL = {
    "strategy": "strategy",
    "final error %": "error %",
    "final loss": "loss",
    "final RMSE %": "RMSE %",
    "PSNR, dB": "PSNR, dB",
    "worst class, error %": "worst class",
    "kept": "kept",
    "seconds of training": "seconds",
    "cost in forwards": "cost",
}


def rows(comparison: Comparison) -> list[dict[str, str]]:
    """One row per configuration, by column name, every number written as it is shown.

    Errors are in percent and losses in nats, mean ± sample standard deviation over the seeds; the
    other numbers are means. The columns of median speed-ups
    (:func:`siftback.lab.records.frame.speedups`, in seconds) are left out where there is no
    plain training run to measure them by.

    Args:
        comparison: The comparison.
    """
    by_label = number_rows(comparison)
    faster = speedups(comparison) if TRADITIONAL in by_label else {}
    return [
        row
        | {
            f"speed-up to ×{factor:g}": f"{speedup.median:.2f}" if speedup else NOT_REACHED
            for factor, speedup in faster.get(label, {}).items()
        }
        for label, row in by_label.items()
    ]


def number_rows(comparison: Comparison) -> dict[str, dict[str, str]]:
    """Returns what `rows` does, without the speed-ups, by configuration."""
    groups = read_runs(comparison).groupby("label", sort=False)
    return {label: {"strategy": library_name(label)} | _numbers(group) for label, group in groups}


def comparison_table(comparison: Comparison) -> Table:
    """The table that ``siftback compare`` prints; whole from 80 columns on.

    It has the main columns of `rows`; ``siftback report`` has all.

    Args:
        comparison: The comparison.
    """
    if not comparison.runs:
        return terminal([{"No run has finished": ""}])
    metric = comparison.metric
    unit = "" if metric.name == "error" else f", in {metric.plural}"
    example = "one window" if metric.name == "loss" else "one example"
    caption = (
        f"Final test {metric.noun}{unit}: mean ± standard deviation over the seeds. Cost: "
        f"forwards of {example}, a backward counted as two."
    )
    rows_shown = terminal_rows(comparison)
    if any("worst class" in row for row in rows_shown):
        caption += " Worst class: the highest error of a class, in percent."
    if any(run.strategy == MATCHED for run in comparison.runs):
        caption += " Matched: plain training, shortened to the same cost."
    title = f"{comparison.setup}, seeds {listed(sorted(run.seed for run in comparison.runs))}"
    return terminal(rows_shown, title=title, caption=caption, wrapped=["strategy"])


def terminal_rows(comparison: Comparison, leave_out: Collection[str] = ()) -> list[dict[str, str]]:
    """Returns the main columns of `rows` by short names, all of which 80 characters hold.

    Args:
        comparison: The comparison.
        leave_out: Short names of columns to leave out.
    """
    return [
        {short: row[n] for n, short in _TERMINAL.items() if n in row and short not in leave_out}
        for row in rows(comparison)
    ]


def phase_rows(comparison: Comparison) -> list[dict[str, str]]:
    """One row per configuration: seconds by phase, and what is known of the scores it selects by.

    Means over the seeds. Agreement is given at the first, the middle and the last evaluation.
    Configurations whose records hold no phases are left out.

    Args:
        comparison: The comparison.
    """
    table = []
    agreements = read_evaluations(comparison).dropna(subset="agreement")
    for label, group in read_runs(comparison).groupby("label", sort=False):
        phases = pd.DataFrame([phases for phases in group.seconds_by_phase if phases])
        if phases.empty:
            continue
        row = {"strategy": library_name(label)}
        row |= {f"{phase}, s": readable_seconds(phases[phase].mean()) for phase in phases}
        known = agreements[agreements.label == label].groupby("record").agreement.agg(list)
        if len(known) == len(group):
            row["a score's price, in forwards"] = f"{group.score_cost.mean():.2f}"
            if price := comparison.prices.get(group.strategy.iloc[0]):
                row["a score's price, in forwards"] += f" ({price.low:.2f} to {price.high:.2f})"
            ends = ((values[0], values[len(values) // 2], values[-1]) for values in known)
            row["agreement with the losses, first, middle, last"] = ", ".join(
                f"{mean_and_spread(seeds).mean:.2f}" for seeds in zip(*ends, strict=True)
            )
        table.append(row)
    return table


def measured(ratios: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Lays out a benchmark's ratios: one row per setting, one column per ratio with its goal.

    Where the ratios are more than fit side by side, `WIDEST`, and more than the settings, they are
    the rows.

    Args:
        ratios: Each with ``setting``, ``what``, ``measured``, ``goal`` and ``met``.

    >>> ratio = {"setting": "fp32", "what": "over ideal", "measured": 0.9, "met": False}
    >>> measured([ratio | {"goal": "at least 0.95"}])
    [{'setting': 'fp32', 'over ideal (at least 0.95)': '0.9 (missed)'}]
    """
    cells = []
    for ratio in ratios:
        name = f"{ratio['what']} ({ratio['goal']})" if ratio["goal"] else ratio["what"]
        text = f"{ratio['measured']:.4g}" + (" (missed)" if ratio["met"] is False else "")
        cells.append((ratio["setting"], name, text))
    names, settings = {name for _, name, _ in cells}, {setting for setting, _, _ in cells}
    if len(names) <= max(WIDEST, len(settings)):
        return pivot(({"setting": setting}, name, text) for setting, name, text in cells)
    return pivot(({"ratio": name}, setting, text) for setting, name, text in cells)


def _numbers(runs: pd.DataFrame) -> dict[str, str]:
    metric, means = METRICS[runs.metric.iloc[0]], runs.mean(numeric_only=True)
    unit = " %" if metric.unit == "%" else ""
    cells = {
        f"{end} {metric.noun}{unit}": f"{mean_and_spread(runs[end]):.{metric.digits}f}"
        for end in ("final", "best")
    }
    if runs.test_error_worst.notna().all():
        cells["worst class, error %"] = f"{mean_and_spread(runs.test_error_worst):.2f}"
    if metric.name == "loss":
        bits = list(map(bits_per_character, runs.final, runs.tokens_per_character.fillna(1.0)))
        cells["bits per character"] = f"{mean_and_spread(bits):.{metric.digits}f}"
    if metric.name == "rmse":
        cells["PSNR, dB"] = f"{mean_and_spread(map(peak_signal_to_noise, runs.final)):.2f}"
    return cells | {
        "kept": f"{means.keep_measured:.3f}",
        "examples forwarded": readable(means.examples_forwarded),
        "examples backpropagated": readable(means.examples_backpropped),
        "steps": f"{means.steps:.0f}",
        "seconds of training": readable_seconds(means.seconds_train),
        "cost in forwards": readable(means.cost_forward_units),
    }
