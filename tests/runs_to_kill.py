"""Comparisons in processes that are killed, and a comparison of two folders."""

import json
import math
from pathlib import Path
from typing import Any

import torch

from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.experiments.summary_table import rows
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.run.checkpoints import CheckpointPolicy
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Run, Settings

# Names that hold seconds, and such as are measured: a price of scores, and costs counted with it.
SECONDS = {"seconds", "phases", "seconds_train", "seconds_selection", "seconds_by_phase",
           "seconds_scoring", "date"}  # fmt: skip
PRICES = {"cost", "cost_forward_units", "score_cost"}
OF_SECONDS = ("seconds of training", "speed-up")


def settings(**changes: object) -> Settings:
    quick = {"data": "digits", "width": 4, "epochs": 4.0, "device": "cpu", "batch_size": 32}
    return Settings(**(quick | {"train_limit": 320, "evaluations": 8, "lr": 0.05} | changes))


def compare_and_keep(
    folder: Path, asked: Settings, strategies: list[str], every: float, reporter: Reporter
) -> None:
    """Runs them, or goes on; the weights of each are kept in the folder."""

    def keep(run: Run, model: torch.nn.Module) -> None:
        torch.save(model.state_dict(), folder / f"{run.name}.pt")

    plan = Plan(asked, strategies, [0.5], [0], matched=False)
    compare(plan, folder, reporter, "resume", keep, CheckpointPolicy(every, math.inf))


def go(folder: Path, strategies: list[str], epochs: float, every: float) -> None:
    """Runs in the process to be killed."""
    torch.set_num_threads(1)
    asked = settings(epochs=epochs)
    compare_and_keep(folder, asked, strategies, every, Reporter())


def told(folder: Path) -> dict[str, Any]:
    """All that runs left, apart from seconds: records, summary, table and weights."""
    comparison = Comparison.read(folder)
    records: dict[str, Any] = {}
    for run in comparison.runs:
        priced = SECONDS if run.score_cost == 1 else SECONDS | PRICES
        lines = (folder / run.record).read_text().splitlines()
        weights = torch.load(folder / f"{Path(run.record).stem}.pt", weights_only=True)
        records[run.record] = {
            "lines": [without(json.loads(line), priced) for line in lines],
            "summary": without(vars(run), priced),
            "weights": {name: tensor.tolist() for name, tensor in weights.items()},
        }
    table = [
        {k: v for k, v in row.items() if not k.startswith(OF_SECONDS)} for row in rows(comparison)
    ]
    if any(run.score_cost != 1 for run in comparison.runs):
        for row in table:
            del row["cost in forwards"]
    return {"records": records, "table": table}


def without(entry: Any, names: set[str]) -> Any:
    if isinstance(entry, dict):
        return {k: without(v, names) for k, v in entry.items() if k not in names}
    return entry
