"""The metric of records: older ones name none, and are of classifiers."""

import json

import pytest

from siftback.errors import StateError
from siftback.lab.experiments.summary_table import rows
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import SUMMARY
from siftback.lab.records.frame import paired_differences, read_evaluations, read_runs, speedups
from siftback.lab.records.run_summary import bits_per_character

POINTS = [(10.0, 10, 100.0, 40.0), (20.0, 20, 200.0, 20.0)]


def rewritten(comparison, **changes):
    """The comparison as it is read with other fields; those of None are left out."""
    path = comparison.folder / SUMMARY
    summary = json.loads(path.read_text())
    for run in summary["runs"]:
        run |= changes
        for name in [name for name, value in changes.items() if value is None]:
            del run[name]
    path.write_text(json.dumps(summary))
    return Comparison.read(comparison.folder)


def test_records_without_a_metric_are_errors_in_percent(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, POINTS)
    unknown = dict.fromkeys(("metric", "test_loss_final", "test_loss_best", "tokens_per_character"))
    found = rewritten(comparison, **unknown)
    assert found.metric.name == "error"
    assert [run.final for run in found.runs] == [20.0, 20.0]
    assert rows(found)[0]["final error %"] == "20.00 ± 0.00"
    assert speedups(found)["traditional"][1.1] == (1.0, 1.0, 1.0)


def test_a_loss_is_the_target_where_it_is_the_metric(comparison, add_run):
    add_run("traditional", 0, POINTS)  # with losses of 1.2 and 0.6
    add_run("sb", 0, POINTS[:1], keep=0.5)
    judged = {"metric": "loss", "test_loss_final": 0.6, "test_loss_best": 0.6}
    found = rewritten(comparison, **judged, tokens_per_character=0.25)
    assert list(read_evaluations(found).judged) == pytest.approx([1.2, 0.6, 1.2])
    assert speedups(found, (1.0, 2.0), "cost")["sb 0.5"] == {1.0: None, 2.0: (1.0, 1.0, 1.0)}
    assert paired_differences(read_runs(found), "sb 0.5", "traditional") == [0.0]
    cells = rows(found)[0]
    assert (cells["final loss"], cells["best loss"]) == ("0.600", "0.600")
    assert cells["bits per character"] == f"{bits_per_character(0.6, 0.25):.3f}"


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "accuracy"},
        {"metric": "loss", "test_loss_final": None},
        {"metric": "loss", "test_loss_final": "low", "test_loss_best": 1.0},
        {"metric": 3},
    ],
)
def test_a_metric_that_is_none_is_damage(comparison, add_run, changes):
    add_run("traditional", 0, POINTS)
    with pytest.raises(StateError, match="is damaged"):
        rewritten(comparison, **changes)
