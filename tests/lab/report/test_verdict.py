"""Whether selection paid, in words: every number from the runs."""

import json
import math

import numpy as np
import pytest

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.report.numbers import numbers
from siftback.lab.report.verdict import headline, named, probability_of_paying, verdicts


@pytest.fixture
def filled(comparison, add_run):
    for seed in (0, 1, 2):
        add_run("traditional", seed, [(20, 2, 200, 10 + seed)])
        add_run("sb", seed, [(12, 2, 100, 12 + 0.5 * seed)], keep=0.5)
        add_run("matched", seed, [(10, 1, 100, 13 + seed)], keep=0.5, matched_to="sb")
        add_run("random", seed, [(12, 2, 100, 12 + seed)], keep=0.25)
        add_run("matched", seed, [(10, 1, 100, 13 - seed)], keep=0.25, matched_to="random")
    return comparison


def test_differences_are_those_of_equal_seeds(filled):
    sb, by_chance = verdicts([filled])
    assert (sb.label, sb.baseline, sb.seeds) == ("sb 0.5", "matched to sb 0.5", 3)
    assert sb.differences == [-1.0, -1.5, -2.0]
    assert (sb.outcome, by_chance.outcome) == ("paid", "level")  # -1, +1 and +3
    assert by_chance.differences == [-1.0, 1.0, 3.0]


def test_the_sentence_has_baseline_seeds_interval_and_time(filled):
    sb = verdicts([filled])[0]
    # -1.5, and 4.303 * 0.5 / sqrt(3) to either side, by the table of Student's t.
    low, high = sb.interval
    assert (low, high) == pytest.approx((-1.5 - 1.2421, -1.5 + 1.2421), abs=1e-3)
    assert sb.evidence == (
        "Its final test error is 1.50 ± 0.50 points lower than that of Traditional shortened to "
        "the same cost (matched to sb 0.5), over 3 seeds (95% interval -2.74 to -0.26), in 1.20 "
        "times the seconds. It is 1.50 ± 0.50 points higher than that of the whole of "
        "Traditional, in 0.60 of its time."
    )


def test_a_terminal_gets_the_verdict_in_a_sentence_or_two(filled, add_run):
    sb, by_chance = verdicts([filled])
    assert sb.sentence == (
        "sb 0.5 paid: test error 1.50 ± 0.50 points lower than Traditional's at the same cost. "
        "Beside Traditional's full training it is 1.50 ± 0.50 points higher, at 0.50 of its cost."
    )
    assert by_chance.sentence.startswith(
        "random 0.25 made no difference within the seeds' spread: test error 1.00 ± 2.00 points "
        "higher than Traditional's at the same cost."
    )
    for seed, error in enumerate((10.5, 10.0, 12.5)):  # Traditional's: 10, 11 and 12
        add_run("rs2", seed, [(12, 2, 120, error)], keep=0.6)
    (rs2,) = [one for one in verdicts([filled]) if one.strategy == "rs2"]
    assert rs2.sentence == (
        "rs2 0.6 is undecided, as there is no run of the same budget. It has the error of "
        "Traditional's full training (0.00 ± 0.87 points higher) at 0.60 of its cost."
    )


def test_numbers_for_a_script_are_those_of_the_verdict(filled):
    made = numbers(filled)
    assert made["metric"] == "error"
    found = {one["label"]: one for one in made["configurations"]}
    assert found["traditional"]["final"] == {"mean": 11, "spread": 1}
    assert found["matched to sb 0.5"]["matched_to"] == "sb"
    assert found["sb 0.5"]["seeds"] == [0, 1, 2]
    first = made["verdicts"][0]
    assert first["difference"] == {"mean": -1.5, "spread": 0.5}
    assert (first["outcome"], first["cost_over_full_training"]) == ("paid", 0.5)
    assert first["sentence"] == verdicts([filled])[0].sentence


def test_an_interval_around_zero_is_said(filled):
    assert "which takes in zero" in verdicts([filled])[1].evidence


def test_the_headline_counts(filled):
    told = headline(verdicts([filled]))
    assert told.startswith(
        "1 of 2 selective configurations paid at the same budget, 1 made no difference within the "
        "seeds' spread, 0 did worse, and 0 are undecided. Clearest is sb 0.5 in abacus: a test "
        "error 1.50 ± 0.50 points lower than that of Traditional"
    )
    assert told.endswith("about 11% would count as paid by chance alone.")
    assert "0.2 of" not in told
    many = headline(verdicts([filled]) * 5)
    assert many.endswith(
        "about 1.1 of the 10 that are decided would count as paid by chance alone."
    )
    assert headline([]) == "No selective strategy was run, so there is nothing to judge."


def test_seeds_that_happen_to_be_alike_give_no_interval(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(20, 2, 200, 10 + seed)])
        add_run("sb", seed, [(20, 2, 200, 9 + seed)], keep=0.5)
    (sb,) = verdicts([comparison])
    assert (sb.outcome, sb.interval) == ("paid", None)
    assert "over 2 seeds that happen to be alike, which gives no interval" in sb.evidence
    assert "no 95% interval lies wholly below zero" in headline([sb])


def test_one_seed_and_no_baseline_are_undecided(comparison, add_run):
    add_run("sb", 0, [(12, 2, 100, 12)], keep=0.5)
    add_run("random", 0, [(12, 2, 100, 12)], keep=0.5)
    add_run("matched", 0, [(12, 2, 100, 13)], keep=0.5, matched_to="random")
    found = verdicts([comparison])
    assert [one.outcome for one in found] == ["undecided"] * 2
    assert [one.interval for one in found] == [None] * 2
    assert "0 of 2" in headline(found)


def test_seconds_of_two_machines_are_not_compared(filled):
    record = filled.folder / filled.by_label()["sb 0.5"][0].record
    header, _, rest = record.read_text().partition("\n")
    elsewhere = json.loads(header) | {"environment": {"cpu": "Slide rule"}}
    record.write_text(f"{json.dumps(elsewhere)}\n{rest}")
    sb = verdicts([filled])[0]
    assert sb.seconds is None
    assert "times the seconds" not in sb.evidence


def test_probability_of_paying_is_that_of_drawn_differences():
    draw = np.random.default_rng(0)
    times = 100_000
    for seeds in (2, 3, 4):
        differences = draw.normal(size=(times, seeds))
        share = (differences.mean(1) < -differences.std(1, ddof=1)).mean()
        assert probability_of_paying(seeds) == pytest.approx(share, abs=4 * math.sqrt(0.25 / times))


def test_folders_of_one_name_are_told_apart(tmp_path):
    folders = [tmp_path / "a" / "mnist", tmp_path / "b" / "mnist", tmp_path / "c"]
    names = [name for name, _ in named([Comparison(folder, {}, []) for folder in folders])]
    assert names == ["a/mnist", "b/mnist", "c"]
