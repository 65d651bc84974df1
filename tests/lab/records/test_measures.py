"""Answers worked out by hand.

Seed 0: Traditional ends at 10 %, so the targets are 11, 12 and 14 %. Seed 1: at 20 %, so 22, 24
and 28 %.
"""

import statistics

import pytest

from siftback.lab.records.measures import (
    MeanAndSpread,
    first_reaching,
    mean_and_spread,
    mean_ratio,
    ordered_labels,
    paired_difference,
    same_budget,
    speedups,
)


@pytest.fixture
def filled(comparison, add_run):
    add_run("traditional", 0, [(10, 1, 100, 30), (20, 2, 200, 12), (30, 3, 300, 10)])
    add_run("traditional", 1, [(10, 1, 100, 28), (20, 2, 200, 23), (30, 3, 300, 20)])
    add_run("sb", 0, [(4, 1, 50, 14), (8, 2, 100, 12), (16, 3, 150, 11.5)], keep=0.5)
    add_run("sb", 1, [(5, 1, 50, 28), (10, 2, 100, 24), (15, 3, 150, 21)], keep=0.5)
    add_run("random", 0, [(2, 1, 25, 60), (4, 2, 50, 50)], keep=0.5)
    add_run("matched", 0, [(10, 1, 100, 20), (16, 2, 150, 12.5)], keep=0.5, matched_to="sb")
    add_run("matched", 1, [(10, 1, 100, 20), (15, 2, 150, 20)], keep=0.5, matched_to="sb")
    return comparison


def test_mean_and_spread():
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert mean_and_spread(iter([7.5])) == (7.5, None)
    with pytest.raises(statistics.StatisticsError):
        mean_and_spread([])


def test_first_reaching_counts_what_was_spent_at_the_first_evaluation_there(filled):
    evaluations = filled.evaluations(filled.runs[0])
    assert first_reaching(evaluations, 12) == 20
    assert first_reaching(evaluations, 11.9, "cost") == 300
    assert first_reaching(evaluations, 100, "steps") == 1
    assert first_reaching(evaluations, 9.9) is None
    assert first_reaching([], 50) is None


def test_speedups_in_seconds(filled):
    found = speedups(filled)
    # x1.1: seed 0 needs 11 %, and sb ends at 11.5 %.
    # x1.2: 12 % after 20 s against 8 s; 24 % after 20 s against 10 s.
    # x1.4: 14 % after 20 s against 4 s; 28 % after 10 s against 5 s.
    assert found["sb 0.5"] == {1.1: None, 1.2: (2.5 + 2.0) / 2, 1.4: (5.0 + 2.0) / 2}
    assert found["traditional"] == {1.1: 1, 1.2: 1, 1.4: 1}
    assert found["random 0.5"] == {1.1: None, 1.2: None, 1.4: None}


def test_speedups_in_cost_and_for_other_factors(filled):
    assert speedups(filled, (1.2,), "cost")["sb 0.5"] == {1.2: 2.0}
    assert speedups(filled, (3.0,), "steps")["sb 0.5"] == {3.0: 1.0}


def test_no_speedup_without_traditional_of_the_same_seed(comparison, add_run):
    add_run("sb", 0, [(4, 1, 50, 14)], keep=0.5)
    assert speedups(comparison, (1.4,)) == {"sb 0.5": {1.4: None}}
    add_run("traditional", 1, [(4, 1, 50, 90)])
    assert speedups(comparison, (1.4,))["sb 0.5"] == {1.4: None}


def test_paired_difference_takes_seeds_that_both_ran(filled):
    # 11.5 - 12.5 and 21 - 20
    both = paired_difference(filled, "sb 0.5", "matched to sb 0.5")
    assert both == (0.0, pytest.approx(2**0.5))
    assert paired_difference(filled, "random 0.5", "traditional") == MeanAndSpread(40, None)
    assert paired_difference(filled, "random 0.5", "nowhere") is None


def test_mean_ratio(filled):
    assert mean_ratio(filled, "sb 0.5", "traditional", "cost_forward_units") == 0.5
    # 16 / 30 and 15 / 30
    ratio = mean_ratio(filled, "sb 0.5", "traditional", "seconds_train")
    assert ratio == pytest.approx(15.5 / 30)
    assert mean_ratio(filled, "sb 0.5", "nowhere", "seconds_train") is None


def test_labels_put_traditional_first_and_matched_after_its_partner(filled):
    filled.runs.reverse()  # Now each matched run comes before its partner, and random before both.
    assert ordered_labels(filled) == ["traditional", "random 0.5", "sb 0.5", "matched to sb 0.5"]
    filled.runs[:] = [run for run in filled.runs if run.strategy in ("matched", "random")]
    assert ordered_labels(filled) == ["matched to sb 0.5", "random 0.5"]


def test_same_budget_is_matched_or_traditional_of_equal_cost(filled, add_run):
    assert same_budget(filled, "sb 0.5") == "matched to sb 0.5"
    assert same_budget(filled, "random 0.5") is None
    add_run("random", 0, [(30, 9, 301, 12)], keep=0.25)
    assert same_budget(filled, "random 0.25") == "traditional"
