"""Ratios that a benchmark measures, with their goals: as a table, and as a record."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from siftback.lab.records.environment import environment


class Goal(NamedTuple):
    """A ratio that is measured, and what it should be."""

    setting: str
    what: str
    measured: float
    goal: str = ""
    met: bool | None = None


def median_seconds(fn: Callable[[], object], repeats: int) -> float:
    """The median time that a call takes."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        fn()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def options(description: str, quick: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    parser.add_argument("--json", type=Path, help="file to write the ratios to")
    parser.add_argument("--check", action="store_true", help="fail where a goal is missed")
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the options, and sets the threads."""
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    return asked


def report(title: str, goals: list[Goal], asked: argparse.Namespace) -> None:
    """Prints the table, one line per ratio, and writes the record that the page is made from.

    Args:
        title: What is measured.
        goals: The ratios.
        asked: The options.
    """
    table = Table("setting", "ratio", "measured", "goal", title=title)
    before = None
    for goal in goals:
        if goal.setting != before:
            table.add_section()
        missed = " (missed)" if goal.met is False else ""
        shown = goal.setting if goal.setting != before else ""
        table.add_row(shown, goal.what, f"{goal.measured:.4g}{missed}", goal.goal)
        before = goal.setting
    Console().print(table)
    if asked.json:
        record = {
            "title": title,
            "environment": environment(vars(asked)),
            "rows": [goal._asdict() for goal in goals],
        }
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record, separators=(",", ":")).replace("},{", "},\n{")  # a row a line
        asked.json.write_text(text + "\n", encoding="utf-8")
    missed = [f"{goal.setting}, {goal.what}" for goal in goals if goal.met is False]
    if asked.check and missed:
        raise SystemExit(f"goals missed: {'; '.join(missed)}")
