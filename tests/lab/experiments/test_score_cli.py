"""``siftback score`` and ``siftback prune``, as a user calls them."""

from pathlib import Path

import pytest
from PIL import Image
from pyarrow import parquet

from command_line import Call
from siftback.lab.records.comparison_record import Comparison

QUICK = ("--data", "digits", "--width", "4", "--train-limit", "200", "--batch-size", "50")
QUICK += ("--device", "cpu", "--model", "mlp")


def indices(path: Path) -> list[int]:
    found: list[int] = parquet.read_table(path)["index"].to_pylist()
    return found


def test_score_prune_and_train_on_what_is_kept(call: Call, tmp_path: Path) -> None:
    table, other, kept = (tmp_path / f"{name}.parquet" for name in ("el2n", "margin", "kept"))
    brief = (*QUICK, "--models", "1", "--epochs", "1")
    status, printed, err = call("score", *brief, "--score", "el2n", "--out", table)
    assert status == 0, err
    assert "el2n of 200 examples by 1 model," in printed
    columns = parquet.read_table(table)
    assert columns.column_names == ["index", "label", "score", "model_0"]
    assert columns["index"].to_pylist() == list(range(200))
    assert call("score", *brief, "--score", "margin", "--out", other)[0] == 0

    status, printed, _ = call("overlap", table, other, "--drop", "1/4,0.5")
    assert status == 0
    assert "dropped by both" in printed
    assert "(0.25)" in printed

    prune = ("prune", "--scores", table, "--out", kept)
    assert call(*prune, "--drop", "25%", "--easiest")[0] == 0
    easiest = indices(kept)
    assert call(*prune, "--window", "0.1,0.9", "--per-class")[0] == 0
    assert len(indices(kept)) == 160
    status, printed, _ = call(*prune, "--drop", "0.25")
    assert status == 0
    assert "150 of 200 examples kept by el2n" in printed
    hardest = indices(kept)
    score = columns["score"].to_pylist()
    assert min(score[i] for i in hardest) >= max(score[i] for i in set(range(200)) - set(hardest))
    assert len(easiest) == len(hardest) == 150
    assert easiest != hardest

    out = tmp_path / "run"
    train = ("train", *QUICK, "--epochs", "1", "--strategy", "traditional", "--out", out)
    status, _, err = call(*train, "--subset", kept)
    assert status == 0, err
    (run,) = Comparison.read(out).runs
    assert run.examples_forwarded == 150


def test_a_subset_of_rare_classes_is_scored_with_them(call: Call, tmp_path: Path) -> None:
    table, kept, out = (tmp_path / name for name in ("el2n.parquet", "kept.parquet", "run"))
    train = ("train", *QUICK, "--epochs", "1", "--strategy", "traditional", "--out", out)
    rare = ("--rare", "10", "--subset", kept)
    for options, is_same in (((), False), (("--rare", "10"), True)):
        brief = (*QUICK, "--models", "1", "--epochs", "0", *options)
        assert call("score", *brief, "--score", "el2n", "--out", table)[0] == 0
        assert call("prune", "--scores", table, "--out", kept, "--drop", "0.25")[0] == 0
        status, _, err = call(*train, *rare)
        if not is_same:
            assert "(200 examples, are 146, of other labels): give the same options as to" in err
        assert status == (0 if is_same else 2), err
    (run,) = Comparison.read(out).runs
    assert run.examples_forwarded == len(indices(kept)) // 50 * 50 == 100
    assert len(indices(kept)) == 109


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "--score", "luck"), "no score 'luck': give one of el2n, grand, margin"),
        (("score", "--models", "0"), "score_models=0: give an integer from 1"),
        (
            ("score", "--score", "aum", "--epochs", "0"),
            "aum of models that are trained for score_epochs=0",
        ),
        (
            ("score", "--data", "picture:a.png", "--model", "siren", "--batch-size", "16"),
            "has none: give one of loss, irreducible, sb-uses",
        ),
        (("prune", "--scores", "a"), "a does not exist: make it with siftback score"),
        (("prune", "--scores", "a", "--window", "x"), "give numbers separated by commas"),
        (("prune", "--scores", "a", "--window", "0.1"), "give two shares, such as 0.1,0.9"),
        (("prune", "--scores", "a", "--window", "0,1", "--easiest"), "give one of them"),
        (("train", *QUICK, "--subset", "a"), "a does not exist: make it with siftback prune"),
    ],
)
def test_bad_options_are_a_line(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((8, 8), 64).save("a.png")
    status, _, err = call(*arguments, "--out", tmp_path / "out")
    assert status == 2
    assert message in err
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
