"""Runs with a noise guard, and ``siftback suspects`` on what they leave."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from cleanlab.filter import find_label_issues
from pyarrow import parquet

from command_line import Call
from siftback.errors import ConfigError
from siftback.lab.data.load import load
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.experiments.suspects_report import precision_recall
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from siftback.lab.strategies.table import find_strategy

QUICK = Settings("digits", width=4, epochs=4, flip=0.2, batch_size=64, device="cpu")
NAME = "sb-memory-guarded-keep0.5-seed0"


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison under wrong labels."""
    folder = tmp_path_factory.mktemp("runs") / "noise"
    plan = Plan(QUICK, ["sb", "sb-memory-guarded"], [0.5], [0], matched=False)
    compare(plan, folder, Reporter())
    return folder


def test_a_guard_knows_the_number_of_classes() -> None:
    strategy = find_strategy("sb-memory-guarded")
    kinds = [strategy.choice(0.5, QUICK, classes) for classes in (2, 10)]
    guards = [rule.guard for rule in kinds if rule.guard]
    assert [guard.settings() for guard in guards if guard is not None] == [
        {"classes": 2, "cap": 0.05, "visits": 2},
        {"classes": 10, "cap": 0.05, "visits": 3},
    ]


def test_a_run_tells_how_many_suspects_it_held_back(noise: Path) -> None:
    sb, guarded = Comparison.read(noise).runs
    assert sb.suspects is None
    table = parquet.read_table(noise / "records" / f"{NAME}.suspects.parquet").to_pydict()
    data = load("digits", flipped=0.2)
    assert data.true_labels is not None
    assert table["index"] == list(range(1437))
    assert table["label"] == data.train_labels.tolist()
    wrong = [one != other for one, other in zip(table["label"], table["true_label"], strict=True)]
    held = [suspect for suspect, lie in zip(table["suspect"], wrong, strict=True) if lie]
    assert guarded.labels_wrong == sum(wrong) == 287
    assert guarded.suspects == sum(table["suspect"]) > 50
    assert guarded.suspects_wrong == sum(held)
    assert sum(held) / guarded.suspects > 0.8
    scores = zip(table["score"], table["suspect"], strict=True)
    assert min(score for score, held in scores if held) > -math.log(1 / 4)  # t (1 - t) at most
    p = np.exp(-np.array(table["score"]))
    nearer = p < np.sqrt(p.mean() * (1 - p.mean()) / 9)
    assert table["label_issue"] == nearer.tolist()
    assert sum(table["label_issue"]) > guarded.suspects
    probabilities = np.array([table[f"p_{number}"] for number in range(10)])
    np.testing.assert_allclose(probabilities.sum(0), 1, rtol=1e-5)
    assert table["guess"] == probabilities.argmax(0).tolist()


def test_suspects_lists_both_and_says_how_right_they_are(
    call: Call, noise: Path, tmp_path: Path
) -> None:
    out = tmp_path / "suspects.parquet"
    status, printed, err = call("suspects", "--run", noise, "--out", out, "--most", "3")
    assert status == 0, err
    left = parquet.read_table(noise / "records" / f"{NAME}.suspects.parquet").to_pydict()
    labels = np.array(left["label"])
    p = np.stack([left[f"p_{number}"] for number in range(10)], 1)
    own = find_label_issues(labels, p.astype(np.float32))
    listed = parquet.read_table(out).to_pydict()
    by_cleanlab = {i for i, by in zip(listed["index"], listed["cleanlab"], strict=True) if by}
    by_guard = {i for i, by in zip(listed["index"], listed["guard"], strict=True) if by}
    assert by_cleanlab == set(own.nonzero()[0].tolist())
    assert by_guard == {i for i, held in enumerate(left["label_issue"]) if held}
    assert listed["score"] == sorted(listed["score"], reverse=True)
    lies = {i for i, true in enumerate(left["true_label"]) if true != labels[i]}
    rows = [line.split() for line in printed.splitlines()]
    for by, found in (("guard", by_guard), ("cleanlab", by_cleanlab)):
        precision, recall = len(found & lies) / len(found), len(found & lies) / len(lies)
        assert [NAME, by, str(len(found)), f"{precision:.3f}", f"{recall:.3f}"] in rows
    assert [int(row[0]) for row in rows if len(row) == 7 and row[0].isdigit()] == listed["index"][
        :3
    ]


def test_suspects_says_what_it_cannot_find(call: Call, noise: Path, tmp_path: Path) -> None:
    status, _, err = call("suspects", "--run", tmp_path)
    assert (status, "holds no run with a noise guard" in err) == (2, True)
    status, _, err = call("suspects", "--run", noise, "--name", "sb-keep0.5-seed0")
    assert status == 2
    assert f"no run 'sb-keep0.5-seed0' with a noise guard in {noise}: {NAME}" in err
    status, _, err = call("suspects", "--run", noise, "--most=-3")
    assert (status, "most=-3: give an integer, at least 0" in err) == (2, True)


def test_precision_and_recall_of_nothing_are_no_numbers() -> None:
    none, some = torch.zeros(2, dtype=torch.bool), torch.tensor([True, False])
    assert str(precision_recall(none, some)) == "(nan, 0.0)"
    assert str(precision_recall(some, none)) == "(0.0, nan)"


def test_the_option_guards_memory_and_is_refused_where_it_cannot(
    call: Call, tmp_path: Path
) -> None:
    options = ("--data", "digits", "--model", "mlp", "--epochs", "2", "--no-matched", "--seed", "0")
    options += ("--flip", "0.2", "--device", "cpu", "--out", tmp_path / "runs", "--noise-guard")
    names = "traditional,sb-memory,sb-memory-guarded"
    status, _, err = call("compare", *options, "--strategies", names, "--keep", "0.5")
    assert status == 0, err
    runs = Comparison.read(tmp_path / "runs").runs
    assert [run.suspects is not None for run in runs] == [False, True, True]
    assert runs[1].test_error_final == runs[2].test_error_final, "the option makes it guarded"
    assert "forwards, 0 suspects" in err
    left = sorted(path.name for path in (tmp_path / "runs" / "records").glob("*.suspects.parquet"))
    assert len(left) == 2
    names = ["sb-memory", "sb", "random", "topk", "diet-sb", "stale-sb"]
    with pytest.raises(
        ConfigError, match=r"SelectiveLoader\(\.\.\., keep=0.5\) cannot have a noise guard"
    ):
        Plan(Settings("digits", epochs=2, noise_guard=True), names, [0.5], [0])
    overwriting = ("--strategies", "traditional", "--overwrite")
    assert call("compare", *options[:-1], *overwriting)[0] == 0
    assert not list((tmp_path / "runs" / "records").glob("*.suspects.parquet"))
