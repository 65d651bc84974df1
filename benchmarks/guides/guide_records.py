"""Trainings that the guides quote, and their records: the best rates, the tables and the file."""

import argparse
import json
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from siftback import EpochRule, SelectiveLoader
from siftback.lab.records.environment import environment

Run = dict[str, Any]
NUMBERS = {"loss": "losses", "error": "errors"}  # a test result, and those of several runs


def runs_at_best_rate(runs: list[Run]) -> list[Run]:
    """Returns the runs at the rate of the lowest validation loss, the mean over the seeds."""
    losses = {
        rate: fmean(run["validation"]["loss"] for run in runs if run["rate"] == rate)
        for rate in dict.fromkeys(run["rate"] for run in runs)
    }
    best = min(losses, key=losses.__getitem__)
    return [run for run in runs if run["rate"] == best]


def beside_plain(runs: Sequence[Run], group: str, number: str) -> Iterator[tuple[Run, list[Run]]]:
    """Yields each method at its best rate, beside plain training at its own.

    Args:
        runs: With a "method", one of which is "plain", a "rate", a "seed", and results.
        group: The entry of a run by which methods are compared with each other, such as "task".
        number: The test result to compare.

    Yields:
        An entry of the record, with the differences from plain training, seed by seed, and the
        runs of plain training.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run[group], run["method"]), []).append(run)
    for (name, method), of_method in groups.items():
        best, plain = map(runs_at_best_rate, (of_method, groups[name, "plain"]))
        values, others = ([run["test"][number] for run in each] for each in (best, plain))
        differences = [value - other for value, other in zip(values, others, strict=True)]
        row = {group: name, "method": method, "rate": best[0]["rate"]}
        yield row | {NUMBERS[number]: values, "differences": differences}, plain


def start_training(
    model: nn.Module,
    data: Dataset[Any],
    rule: EpochRule | None,
    *,
    batch_size: int,
    epochs: int,
    rate: float,
    seed: int,
) -> tuple[Any, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Returns the batches by a rule, or plain ones without, with Adam and its one-cycle rate."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    plain = DataLoader(data, batch_size, shuffle=True, generator=generator, drop_last=True)
    steps = epochs * len(plain)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    loader = SelectiveLoader(plain, memory=rule, epochs=epochs, seed=seed) if rule else plain
    return loader, optimizer, schedule


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
