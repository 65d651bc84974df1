"""The table of wrong labels, against its definition."""

import pytest

from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.figure import Grid, Missing
from written_records import add, comparison

GUARDED = "sb-memory-guarded"


@pytest.fixture
def comparisons(tmp_path):
    """Two seeds at no, and at a fifth of wrong labels; and another set with none at all."""
    made = []
    for flip, plain, guarded in ((0.2, (8.0, 9.0), (6.0, 6.8)), (0.0, (4.0, 5.0), (4.5, 4.9))):
        one = comparison(tmp_path / f"{flip:g}", flip=flip, budget=4.0)
        for seed in (0, 1):
            add(one, "traditional", [(1.0, 10, 100.0, plain[seed])], seed=seed)
            suspects = {"suspects": 50, "suspects_wrong": 40 + 4 * seed, "labels_wrong": 100}
            if not flip:
                suspects |= {"suspects_wrong": 0, "labels_wrong": 0}
            ends = [(1.0, 10, 100.0, guarded[seed])]
            add(one, GUARDED, ends, seed=seed, keep=0.5, **suspects)
        made.append(one)
    other = comparison(tmp_path / "other", flip=0.0, train_limit=100)
    add(other, "traditional", [(1.0, 10, 100.0, 3.0)])
    return [*made, other]


def test_each_share_has_its_differences_seed_by_seed(comparisons):
    made = ANALYSES["noise"](comparisons)
    assert isinstance(made, Grid)
    rows = {(row[1], row[2]): row[3:] for row in made.rows}
    guarded = "Memory(keep=0.5, guard=NoiseGuard(classes))"
    assert list(rows) == [("0%", guarded), ("20%", guarded)]
    # Differences -2.0 and -2.2: a mean of -2.1 ± 12.706 * 0.1414 / sqrt(2).
    expected = ["2", "8.50 %", "-2.10", "-3.37 to -0.83", "0.84", "0.42"]
    assert rows["20%", guarded] == expected
    assert rows["0%", guarded][:3] == ["2", "4.50 %", "+0.20"]
    assert rows["0%", guarded][-1] is None, "no label is wrong to be found"


def test_what_the_guard_did_is_said(comparisons):
    said = ANALYSES["noise"](comparisons).sentence
    assert (
        "20% of the labels wrong: Memory(keep=0.5, guard=NoiseGuard(classes)) ends at -2.10 points "
        "(95 % interval -3.37 to -0.83) beside plain training of the same budget." in said
    )
    clean = "Memory(keep=0.5, guard=NoiseGuard(classes)) ends at +0.20 points"
    assert f" 0% of the labels wrong: {clean}" in said


def test_without_wrong_labels_it_says_how_to_get_some(comparisons):
    made = ANALYSES["noise"](comparisons[2:])
    assert isinstance(made, Missing)
    assert "siftback run noise" in made.why
