"""Peers: each method spends its budget, and the page is its records'."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "peers"


@pytest.fixture(scope="module")
def peers():
    """Its modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import compare
        import train
        import work

        yield compare, train, work
        for name in ("compare", "train", "work"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def digits(peers, tmp_path_factory):
    path = tmp_path_factory.mktemp("peers") / "digits.pt"
    peers[0].export("digits", None, path)
    return path


@pytest.mark.parametrize(
    "method",
    [
        "plain",
        "plain-faster",
        "airbench-filter",
        *(
            f"siftback-{name}"
            for name in ("memory", "memory-default", "infobatch", "rs2", "kakurenbo", "rcap", "sb")
        ),
    ],
)
@pytest.mark.parametrize("batch", [64, 128])
@pytest.mark.sampled(3)
def test_a_method_spends_its_budget_and_learns(peers, digits, method, batch):
    _, train, work = peers
    data, test = work.read(digits)
    one = work.Work(data, seed=0, budget=3, batch=batch)
    code = train.METHODS[method](one)
    assert 3 <= one.progress * 3 <= 3 + 3 * batch / len(data)
    assert one.test(test)[0] < 50  # 90 by chance
    assert code.startswith(("PyTorch", "Siftback"))


def test_the_scores_of_a_pruned_set_are_charged(peers, digits):
    _, train, work = peers
    data, _ = work.read(digits)
    one = work.Work(data, seed=0, budget=3)
    train.METHODS["siftback-el2n"](one)
    trained = 3 - 4 / 3  # an epoch and a forward on everything, in epochs of plain training
    assert one.steps == pytest.approx(trained * len(data) / 128, abs=3)


def test_the_chosen_rate_has_the_lowest_held_out_error(peers):
    runs = [
        {"peak": peak, "test_error": error, "test_loss": loss}
        for peak, error, loss in (
            (0.1, 1.0, 0.3), (0.05, 1.5, 0.2), (0.2, 1.5, 0.1),
            (0.1, 2.5, 0.3), (0.05, 1.5, 0.2), (0.2, 1.5, 0.1),
        )
    ]  # fmt: skip
    assert peers[0].best_peak(runs) == 0.2


def test_a_held_out_fifth_is_of_the_training_examples(peers, digits, tmp_path):
    compare, _, work = peers
    compare.export("digits", None, tmp_path / "digits.pt", held_out=True)
    (train, held_out), (whole, _) = work.read(tmp_path / "digits.pt"), work.read(digits)
    assert (len(train), len(held_out)) == (len(whole) - len(whole) // 5, len(whole) // 5)


def test_a_training_at_a_rate_no_longer_chosen_is_refused(peers, tmp_path):
    compare = peers[0]
    compare.append(
        tmp_path / "digits.jsonl", {"method": "plain", "peak": 0.1, "seed": 0, "test_error": 1.0}
    )
    with pytest.raises(SystemExit, match=r"plain was trained at peak 0\.1.* at 0\.4"):
        compare.compare("digits", None, 1.0, 1, {"plain": {"peak": 0.4}}, tmp_path)


def test_seconds_without_those_of_plain_training_are_refused(peers, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare.py", "--seconds", "--methods", "siftback-sb"])
    with pytest.raises(SystemExit):
        peers[0].main()
    assert "add plain to --methods" in capsys.readouterr().err


def test_training_is_the_same_for_the_same_seed(peers, digits):
    _, train, work = peers
    data, _ = work.read(digits)
    weights = []
    for _ in range(2):
        one = work.Work(data, seed=5, budget=0.5)
        train.plain(one)
        weights.append(torch.nn.utils.parameters_to_vector(one.model.parameters()))
    assert torch.equal(*weights)


def test_the_page_is_what_the_records_say(peers):
    compare = peers[0]
    page = compare.PAGE.read_text(encoding="utf-8")
    assert compare.with_table(page) == page


def test_every_recorded_training_spent_its_budget(peers):
    compare = peers[0]
    for path in compare.RECORDS.rglob("*.jsonl"):
        for one in compare.recorded(path):
            assert one["spent"] == pytest.approx(one["budget"], rel=0.02), one
