"""`siftback pack`: the records of comparisons that ended, in one file each."""

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import PACKED
from written_records import add, comparison

POINTS = [(1.0, 10, 300.0, 50.0), (2.0, 20, 600.0, 25.0)]


def test_comparisons_at_any_depth_are_packed_and_gone_on_with(call, tmp_path):
    for name in ("one", "more/two"):
        made = comparison(tmp_path / name)
        for seed in (0, 1):
            add(made, "traditional", POINTS, seed)
    status, printed, _ = call("pack", tmp_path)
    assert (status, printed) == (0, "6 files packed, of 2 comparisons\n")
    assert (tmp_path / "more" / "two" / PACKED).exists()
    assert call("pack", tmp_path)[1] == "0 files packed, of 0 comparisons\n"


def test_a_packed_comparison_is_resumed_with_another_seed(call, tmp_path):
    asked = ("compare", "--data", "digits", "--strategies", "traditional")
    more = ("--epochs", "1", "--train-limit", "256", "--threads", "1", "--out", tmp_path / "c")
    assert call(*asked, *more, "--seed", "0")[0] == 0
    before = Comparison.read(tmp_path / "c").runs
    call("pack", tmp_path)
    assert call(*asked, *more, "--seed", "0,1", "--resume")[0] == 0
    after = Comparison.read(tmp_path / "c")
    assert (after.runs[:1], len(after.runs)) == (before, 2)
    assert all(after.evaluations(run) for run in after.runs)
    assert call("pack", tmp_path)[1] == "2 files packed, of 1 comparison\n"
    assert Comparison.read(tmp_path / "c") == after


def test_a_summary_that_stays_is_told(call, tmp_path):
    made = comparison(tmp_path)
    add(made, "traditional", POINTS)
    (tmp_path / "summary.json").write_text("{")
    status, printed, err = call("pack", tmp_path)
    assert (status, printed) == (0, "1 file packed, of 1 comparison\n")
    assert "summary.json stays" in err


def test_a_folder_without_comparisons_is_refused(call, tmp_path):
    status, _, err = call("pack", tmp_path)
    assert status == 2
    assert "holds no summary.json: give folders that siftback compare wrote" in err
