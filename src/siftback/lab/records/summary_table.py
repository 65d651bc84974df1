"""A comparison as a table, on a terminal and in Markdown, from the same rows."""
# ruff: noqa: RUF001 - × and – are meant.

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from siftback.lab.records.comparison_record import Comparison, RunSummary
from siftback.lab.records.measures import (
    TABLE_1_FACTORS,
    TRADITIONAL,
    MeanAndSpread,
    mean_and_spread,
    ordered_labels,
    speedups,
)

NOT_REACHED = "–"
WIDEST = 12  # columns of a benchmark's table

# Terminal headers by column: twelve columns fit 80 characters only under short ones. A column
# that is not named here goes by its own name.
_SHORT = {
    "final error %": "final\nerror\n%",
    "best error %": "best\nerror\n%",
    "examples forwarded": "for-\nwarded",
    "examples backpropagated": "back-\nprop.",
    "seconds of training": "sec-\nonds",
    "cost in forwards": "cost",
} | {f"speed-up to ×{factor:g}": f"×{factor:g}" for factor in TABLE_1_FACTORS}


def rows(comparison: Comparison) -> list[dict[str, str]]:
    """One row a configuration, by column name, every number written as it is shown.

    Errors are in percent, mean ± sample standard deviation over the seeds; the other numbers are
    means. The columns of speed-ups (:func:`siftback.lab.records.measures.speedups`, in seconds)
    are left out where there is no Traditional run to measure them by.
    """
    groups = comparison.by_label()
    faster = speedups(comparison) if TRADITIONAL in groups else {}
    table = []
    for label in ordered_labels(comparison):
        row = {"strategy": label} | _numbers(groups[label])
        for factor, speedup in faster.get(label, {}).items():
            row[f"speed-up to ×{factor:g}"] = NOT_REACHED if speedup is None else f"{speedup:.2f}"
        table.append(row)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """The table that ``siftback compare`` prints; whole from 80 columns on."""
    table = Table(
        title=_title(comparison),
        caption=_caption(comparison),
        title_justify="left",
        caption_justify="left",
        box=box.HORIZONTALS,
        show_edge=False,
        padding=0,
    )
    body = rows(comparison)
    for name in body[0] if body else ("No run has finished",):
        # Only the errors may wrap, "±spread" going below the mean: no number is ever cut.
        table.add_column(
            _SHORT.get(name, name),
            justify="left" if name == "strategy" else "right",
            no_wrap="error" not in name,
        )
    for row in body:
        label = textwrap.fill(row["strategy"], len(TRADITIONAL), break_long_words=False)
        table.add_row(label, *(cell.replace("± ", "±") for cell in list(row.values())[1:]))
    return table


def phase_rows(comparison: Comparison) -> list[dict[str, str]]:
    """A row a configuration: seconds by phase, and what is known of the scores it selects by.

    Means over the seeds. Agreement is told at the first, the middle and the last evaluation.
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
            row[f"{phase}, s"] = _seconds(
                mean_and_spread(run.seconds_by_phase[phase] for run in runs).mean
            )
        made = [[e.agreement for e in comparison.evaluations(run)] for run in runs]
        known = [[found for found in each if found is not None] for each in made]
        if all(known):
            row["a score's price, in forwards"] = (
                f"{mean_and_spread(run.score_cost for run in runs).mean:.2f}"
            )
            places = ((each[0], each[len(each) // 2], each[-1]) for each in known)
            row["agreement with the losses, first, middle, last"] = ", ".join(
                f"{mean_and_spread(seeds).mean:.2f}" for seeds in zip(*places, strict=True)
            )
        table.append(row)
    return table


def suspected(runs: Sequence[RunSummary]) -> dict[str, str]:
    """What a noise guard held back in the end, in the mean over the runs of one configuration.

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
                "settings": told_facts(own),
                error: with_spread(mean_and_spread(run.test_error_final for run in runs)),
                "cost in forwards": f"{cost:,.0f}",
                "seeds": listed(sorted(run.seed for run in runs)),
            }
            table.append(row | suspected(runs))
    return shared, table


def markdown_table(comparison: Comparison) -> str:
    """The same rows as a Markdown table, columns under their full names."""
    return markdown(rows(comparison))


def markdown(table: Sequence[dict[str, str]]) -> str:
    r"""Writes rows as a Markdown table: a column a key, words aligned left and numbers right.

    >>> print(markdown([{"strategy": "sb 0.33", "steps": "12"}, {"strategy": "a|b"}]))
    | strategy | steps |
    |:---|---:|
    | sb 0.33 | 12 |
    | a\|b |  |
    """
    columns = list(dict.fromkeys(name for row in table for name in row))
    lines = [columns, *([row.get(name, "") for name in columns] for row in table)]
    # A bar would end its cell, and a line's end the table.
    head, *body = (
        "| " + " | ".join(" ".join(cell.replace("|", r"\|").split()) for cell in line) + " |"
        for line in lines
    )
    sides = [":---" if left else "---:" for left in worded(lines[1:])] or ["---:"] * len(columns)
    rule = "|" + "|".join([":---", *sides[1:]]) + "|"
    return "\n".join([head, rule, *body])


def worded(cells: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column is of words, which stand at the left, and numbers at the right.

    >>> worded([["1.5", "2 seeds", "sb"], ["-", "", "random"]])
    [False, False, True]
    """
    return [any(cell[:1].isalpha() for cell in column) for column in zip(*cells, strict=True)]


def measured(ratios: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Lays out a benchmark's ratios: a row a setting, a column a ratio with its goal.

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


def with_spread(value: MeanAndSpread, sign: bool = False) -> str:
    """Writes a mean and, where several seeds give one, its spread.

    >>> with_spread(MeanAndSpread(4.217, 0.104)), with_spread(MeanAndSpread(0.5, None), sign=True)
    ('4.22 ± 0.10', '+0.50')
    """
    mean = f"{value.mean:+.2f}" if sign else f"{value.mean:.2f}"
    return mean if value.spread is None else f"{mean} ± {value.spread:.2f}"


def readable(amount: float) -> str:
    """Writes a large number in three digits and a unit.

    >>> [readable(amount) for amount in (128, 999.7, 60_000, 1_234_567, 2.5e9)]
    ['128', '1 k', '60 k', '1.23 M', '2.5 G']
    """
    units = ["", " k", " M", " G", " T"]
    while abs(amount) >= 999.5 and units[1:]:
        amount /= 1000
        del units[0]
    return f"{amount:.3g}{units[0]}"


def listed(values: Iterable[object]) -> str:
    """Writes values once each, in order, with commas between.

    >>> listed([0, 1, 0])
    '0, 1'
    """
    return ", ".join(dict.fromkeys(str(value) for value in values))


def fact(value: object) -> str:
    """Writes a setting or a measured value in plain words.

    >>> fact(True), fact(0.123456), fact([1, 2]), fact("onecycle")
    ('yes', '0.1235', '1, 2', 'onecycle')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(fact, value)) if isinstance(value, list) else str(value)


def told_facts(values: Mapping[str, Any]) -> str:
    """Writes settings or an environment as one line; its arguments have a line of their own.

    >>> told_facts({"data": "digits", "train_limit": None, "arguments": {}, "epochs": 2.0})
    'data digits; epochs 2'
    """
    told = {name: value for name, value in values.items() if name != "arguments"}
    facts = {name: fact(value) for name, value in told.items() if value not in (None, [], "")}
    return "; ".join(f"{name.replace('_', ' ')} {said}" for name, said in facts.items())


def _numbers(runs: list[RunSummary]) -> dict[str, str]:
    def mean(name: str) -> float:
        return mean_and_spread(getattr(run, name) for run in runs).mean

    return {
        "final error %": with_spread(mean_and_spread(run.test_error_final for run in runs)),
        "best error %": with_spread(mean_and_spread(run.test_error_best for run in runs)),
        "kept": f"{mean('keep_measured'):.3f}",
        "examples forwarded": readable(mean("examples_forwarded")),
        "examples backpropagated": readable(mean("examples_backpropped")),
        "steps": f"{mean('steps'):.0f}",
        "seconds of training": _seconds(mean("seconds_train")),
        "cost in forwards": readable(mean("cost_forward_units")),
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 1000 else f"{seconds:.0f}"


def _title(comparison: Comparison) -> str | None:
    runs = comparison.runs
    if not runs:
        return None
    models, data = listed(run.model for run in runs), listed(run.data for run in runs)
    return f"{models} on {data}, seeds {listed(sorted(run.seed for run in runs))}"


def _caption(comparison: Comparison) -> str | None:
    if not comparison.runs:
        return None
    caption = (
        "Test error: mean ± standard deviation over the seeds. Cost: forwards of one example, "
        "a backward counted as two."
    )
    if TRADITIONAL not in comparison.by_label():
        return caption
    return caption + (
        " ×1.1, ×1.2, ×1.4: how many times sooner than Traditional, in seconds, the run was at "
        f"this multiple of Traditional's final error ({NOT_REACHED}: not in every seed)."
    )
