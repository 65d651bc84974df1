"""Comparisons made by formula, to hold the lab's arithmetic and pages against."""

from collections.abc import Callable
from pathlib import Path

import pytest

import written_records
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import RunSummary

# A point of a run: seconds of training, steps, cost in forwards, test error in percent.
Point = tuple[float, int, float, float]
AddRun = Callable[..., RunSummary]


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """An empty comparison, in a results folder of its own."""
    arguments = {"epochs": 2, "precision": "fp32"}
    machine = {"cpu": "Abacus 9", "cores": 2, "torch": "2.13.0", "commit": "c0ffee"}
    return Comparison(tmp_path / "results" / "abacus", machine | {"arguments": arguments}, [])


@pytest.fixture
def add_run(comparison: Comparison) -> AddRun:
    """Adds a run by its points to the comparison, record and all, and writes the summary."""

    def add(
        strategy: str,
        seed: int,
        points: list[Point],
        keep: float = 1.0,
        matched_to: str | None = None,
    ) -> RunSummary:
        each = [
            {"examples": 500 * epoch, "train_loss": 1 / epoch, "test_loss": 1.2 / epoch}
            for epoch in range(1, len(points) + 1)
        ]
        return written_records.add(
            comparison,
            strategy,
            points,
            seed,
            keep,
            matched_to,
            each,
            model="cnn",
            examples_forwarded=1500,
            examples_backpropped=500,
            seconds_selection=points[-1][0] / 4,
        )

    return add
