"""Comparisons made by formula, to hold the lab's arithmetic and pages against."""

from collections.abc import Callable
from pathlib import Path

import pytest

from siftback.lab.records.comparison_record import Comparison, Evaluation, RecordWriter, RunSummary

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
        seconds, steps, cost, error = points[-1]
        summary = RunSummary(
            strategy=strategy,
            matched_to=matched_to,
            seed=seed,
            data="digits",
            model="cnn",
            keep_asked=keep,
            keep_measured=keep,
            epochs=len(points),
            steps=steps,
            examples_forwarded=1500,
            examples_backpropped=500,
            seconds_train=seconds,
            seconds_selection=seconds / 4,
            cost_forward_units=cost,
            test_error_final=error,
            test_error_best=min(point[-1] for point in points),
            record=f"records/{strategy}-{matched_to}-{keep:.2f}-{seed}.jsonl",
        )
        writer = RecordWriter(comparison.folder / summary.record, {"strategy": strategy})
        for epoch, (seconds, steps, cost, error) in enumerate(points, start=1):
            writer.evaluation(
                Evaluation(epoch, 500 * epoch, steps, seconds, cost, 1 / epoch, 1.2 / epoch, error)
            )
        writer.end(summary)
        writer.close()
        comparison.runs.append(summary)
        comparison.write()
        return summary

    return add
