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

from siftback.lab.environment import environment
from siftback.lab.table import measured


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
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the options, and sets the threads."""
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    return asked


def report(title: str, goals: list[Goal], asked: argparse.Namespace) -> None:
    """Prints the table, and writes the record that the results page is made from."""
    rows = measured(goal._asdict() for goal in goals)
    table = Table(title=title)
    for name in dict.fromkeys(name for row in rows for name in row):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(row.get(str(column.header), "") for column in table.columns))
    Console().print(table)
    if asked.json:
        record = {
            "title": title,
            "environment": environment(vars(asked)),
            "rows": [goal._asdict() for goal in goals],
        }
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
