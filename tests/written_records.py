"""Comparisons written by hand, for analyses whose answer is known."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from siftback.lab.records.comparison_record import Comparison, RecordWriter
from siftback.lab.records.observations import folder_of
from siftback.lab.records.run_summary import Evaluation, RunSummary


def comparison(folder: Path, **arguments) -> Comparison:
    """An empty one, on one machine."""
    machine = {"cpu": "Abacus 9", "device": "cpu"}
    asked = {"data": "digits", "model": "cnn", "rate": "onecycle", "flip": 0.0}
    return Comparison(folder, machine | {"arguments": asked | arguments}, [])


def add(
    to: Comparison, strategy, points, seed=0, keep=1.0, matched_to=None, each=None, **fields
) -> RunSummary:
    """Adds a run of evaluations ``(seconds, steps, cost, error)``, record and all.

    ``each`` has more of every evaluation's fields; ``fields`` those of the summary.
    """
    seconds, steps, cost, error = points[-1]
    run = RunSummary(
        strategy=strategy,
        matched_to=matched_to,
        seed=seed,
        data="digits",
        model="cnn-8",
        keep_asked=keep,
        keep_measured=keep,
        epochs=len(points),
        steps=steps,
        examples_forwarded=3000,
        examples_backpropped=1000,
        seconds_train=seconds,
        seconds_selection=0.0,
        cost_forward_units=cost,
        test_error_final=error,
        test_error_best=min(point[-1] for point in points),
        record=f"records/{strategy.replace('/', '_')}-{matched_to}-{keep:.2f}-{seed}.jsonl",
    )
    run = replace(run, **fields)
    writer = RecordWriter(to.folder / run.record, {"strategy": strategy})
    for number, (seconds, steps, cost, error) in enumerate(points):
        more = each[number] if each else {}
        made = Evaluation(number + 1, 500, steps, seconds, cost, 1.0, 1.0, error)
        writer.evaluation(replace(made, **more))
    writer.end(run)
    writer.close()
    to.runs.append(run)
    to.write()
    return run


def add_look(to: Comparison, run: RunSummary, kind: str, epoch: float, **columns) -> Path:
    """Adds what was seen of a run at an evaluation."""
    folder = folder_of(to.folder, run.record)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{round(epoch * 100):09d}.parquet"
    count = len(next(iter(columns.values())))
    parquet.write_table(pa.table({"epoch": [float(epoch)] * count, **columns}), path)
    return path
