"""The table of rare classes, against its definition, and the errors of a run in it."""

import numpy as np
import pytest
import torch

from siftback.lab.data.load import load
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.figure import Grid, Missing
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from written_records import add, comparison

BALANCED = "sb-memory-balanced"


def written(folder):
    """Two seeds of two strategies, and another comparison without rare classes."""
    made = comparison(folder / "rare", rare=30, budget=4.0)
    for seed, errors in enumerate(((20.0, 2.0, 12.0, 2.5), (30.0, 4.0, 20.0, 4.7))):
        for name, rare, common in (("traditional", *errors[:2]), (BALANCED, *errors[2:])):
            by_class = {"test_error_rare": rare, "test_error_common": common}
            add(made, name, [(1.0, 10, 100.0, 9.0)], seed=seed, keep=0.5, **by_class)
    plain = comparison(folder / "plain", budget=4.0)
    add(plain, "traditional", [(1.0, 10, 100.0, 9.0)])
    return made, plain


def test_errors_of_rare_and_common_classes_stand_apart(tmp_path):
    made = ANALYSES["rare"](written(tmp_path))
    assert isinstance(made, Grid)
    plain, balanced = made.rows
    assert plain[1:] == ["1 in 30", "plain training", "2", "25.00", None, None, "3.00", None, None]
    assert balanced[2:6] == ["Memory(keep=0.5, balance=labels)", "2", "16.00", "-9.00"]
    assert balanced[7:9] == ["3.60", "+0.60"]
    assert "-9.00 points in rare classes (-21.71 to +3.71) and +0.60 points" in made.sentence


def test_without_rare_classes_it_says_how_to_get_some(tmp_path):
    made = ANALYSES["rare"](written(tmp_path)[1:])
    assert isinstance(made, Missing)
    assert "siftback run rare" in made.why


def test_a_run_has_the_errors_of_its_rare_and_common_classes(tmp_path):
    names = ["traditional", BALANCED, "sb-memory-balanced-weighted", "rs2-balanced"]
    asked = Settings(data="digits", width=4, epochs=3.0, device="cpu", evaluations=1, rare=8)
    compare(Plan(asked, names, [0.5], [0], matched=False), tmp_path, Reporter())
    runs = Comparison.read(tmp_path).runs
    shares = load("digits").test_labels.bincount() / 360
    for run in runs:
        assert run.test_error_rare > run.test_error_common
        mean = shares[:3].sum() * run.test_error_rare + shares[3:].sum() * run.test_error_common
        assert float(mean) == pytest.approx(run.test_error_final, abs=1.0)  # classes alike in size
    assert isinstance(ANALYSES["rare"]([Comparison.read(tmp_path)]), Grid)
    assert torch.tensor([run.steps for run in runs]).min() > 10


@pytest.mark.parametrize("tested", [(3, 9), (0, 2)])
def test_classes_that_are_not_tested_on_have_no_error(tested, tmp_path):
    first, last = tested
    images, labels = np.zeros((100, 8, 8), np.uint8), np.arange(100) % 10
    arrays = {"x_train": images, "y_train": labels, "x_test": images[:20]}
    np.savez(tmp_path / "a.npz", **arrays, y_test=np.repeat(np.array(tested), 10))
    asked = Settings(f"npz:{tmp_path / 'a.npz'}", "mlp", width=4, epochs=1.0, batch_size=10, rare=2)
    compare(Plan(asked, ["traditional"], [1.0], [0], matched=False), tmp_path, Reporter())
    (run,) = Comparison.read(tmp_path).runs
    assert (run.test_error_rare is None, run.test_error_common is None) == (first > 2, last < 3)
    texts = [path.read_text() for path in (tmp_path / "summary.json", tmp_path / run.record)]
    assert "NaN" not in "".join(texts)
    assert isinstance(ANALYSES["rare"]([Comparison.read(tmp_path)]), Missing)
