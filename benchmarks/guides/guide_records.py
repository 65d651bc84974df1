"""Records of the trainings that the guides quote: the best rates, their tables, and the file."""

import argparse
import json
from statistics import fmean
from typing import Any

from siftback.lab.records.environment import environment

Run = dict[str, Any]


def runs_at_best_rate(runs: list[Run]) -> list[Run]:
    """Returns the runs at the rate of the lowest validation loss, the mean over the seeds."""
    losses = {
        rate: fmean(run["validation"]["loss"] for run in runs if run["rate"] == rate)
        for rate in dict.fromkeys(run["rate"] for run in runs)
    }
    best = min(losses, key=losses.__getitem__)
    return [run for run in runs if run["rate"] == best]


def spread(values: list[float], digits: int) -> str:
    """Returns the mean over the seeds, and their range, as a cell of a table."""
    mean, low, high = (f"{value:.{digits}f}" for value in (fmean(values), min(values), max(values)))
    return f"{mean} ({low} to {high})"


def write_record(asked: argparse.Namespace, title: str, rows: list[Run], runs: list[Run]) -> None:
    """Writes the record to the file of ``--json``, if there is one."""
    if asked.json:
        record = {"title": title, "environment": environment(vars(asked))}
        record |= {"rows": rows, "runs": runs}
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
