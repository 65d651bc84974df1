"""Answers worked out by hand.

Seed 0: Traditional ends at 10 %, so the targets are 11, 12 and 14 %. Seed 1: at 20 %, so 22, 24
and 28 %.
"""

import json
import math
import statistics

import pytest
from siftback.lab.records.measures import (
    MeanAndSpread,
    SpeedUp,
    crossing,
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


def test_a_crossing_lies_between_two_evaluations(filled):
    evaluations = filled.evaluations(filled.runs[0])
    assert crossing(evaluations, 12) == 20
    assert crossing(evaluations, 21) == 15  # half way from 30 % after 10 s to 12 % after 20 s
    assert crossing(evaluations, 11, "cost") == 250
    assert crossing(evaluations, 100, "steps") == 1  # the first evaluation: there is no line
    assert crossing(evaluations, 9.9) is None
    assert crossing([], 50) is None


@pytest.mark.parametrize("before", [math.inf, math.nan])
def test_a_run_that_diverged_at_first_gives_no_line(comparison, add_run, before):
    add_run("traditional", 0, [(10, 1, 100, before), (20, 2, 200, 12)])
    assert crossing(comparison.evaluations(comparison.runs[0]), 13) == 20


def test_speedups_in_seconds(filled):
    found = speedups(filled)
    # x1.1: seed 0 needs 11 %, and sb ends at 11.5 %.
    # x1.2: 12 % after 20 s against 8 s; 24 % after 10 + 10 * 4/5 s against 10 s.
    assert found["sb 0.5"][1.1] is None
    assert found["sb 0.5"][1.2] == SpeedUp(pytest.approx((2.5 + 1.8) / 2), pytest.approx(1.8), 2.5)
    # x1.4: 14 % after 10 + 10 * 16/18 s against 4 s; 28 % after 10 s against 5 s.
    first = (10 + 160 / 18) / 4
    assert found["sb 0.5"][1.4] == pytest.approx(((first + 2) / 2, 2, first))
    assert found["traditional"] == dict.fromkeys((1.1, 1.2, 1.4), (1, 1, 1))
    assert found["random 0.5"] == {1.1: None, 1.2: None, 1.4: None}


def test_the_median_is_taken_of_ratios_and_no_seed_is_left_out(filled, add_run):
    add_run("traditional", 2, [(10, 1, 100, 10)])
    add_run("sb", 2, [(1, 1, 10, 10)], keep=0.5)
    assert speedups(filled)["sb 0.5"][1.2] == pytest.approx((2.5, 1.8, 10))
    add_run("traditional", 3, [(10, 1, 100, 10)])
    add_run("sb", 3, [(1, 1, 10, 90)], keep=0.5)  # never there
    assert speedups(filled)["sb 0.5"][1.2] is None


def test_speedups_in_cost_and_for_other_factors(filled):
    assert speedups(filled, (1.2,), "cost")["sb 0.5"][1.2] == pytest.approx((1.9, 1.8, 2.0))
    assert speedups(filled, (3.0,), "steps")["sb 0.5"] == {3.0: (1, 1, 1)}


def test_seconds_of_different_machines_are_not_compared(filled):
    path = filled.folder / filled.by_label()["sb 0.5"][0].record
    header, *lines = path.read_text().splitlines()
    header = json.dumps(json.loads(header) | {"environment": {"cpu": "Abacus 10"}})
    path.write_text("\n".join([header, *lines, ""]))
    assert speedups(filled, (1.2,))["sb 0.5"] == {1.2: None}
    assert speedups(filled, (1.2,), "cost")["sb 0.5"][1.2] == pytest.approx((1.9, 1.8, 2.0))


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
