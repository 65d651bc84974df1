"""Answers worked out by hand.

Seed 0: plain training ends at 10 %, so the targets are 11, 12 and 14 %. Seed 1: at 20 %, so 22, 24
and 28 %.
"""

import json
import math
import statistics

import pytest

from siftback.lab.records.frame import (
    Range,
    crossing,
    mean_and_spread,
    mean_ratio,
    paired_differences,
    read_evaluations,
    read_runs,
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
    assert mean_and_spread([1.0, math.inf]) == (math.inf, None)
    assert math.isnan(mean_and_spread([math.nan, math.nan]).mean)
    with pytest.raises(statistics.StatisticsError):
        mean_and_spread([])


def test_a_crossing_lies_between_two_evaluations():
    errors = [30.0, 12.0, 10.0]
    assert crossing(errors, 12) == 1
    assert crossing(errors, 21) == 0.5  # half way from 30 % to 12 %
    assert crossing(errors, 11) == 1.5
    assert crossing(errors, 100) == 0  # the first evaluation: there is no line
    assert math.isnan(crossing(errors, 9.9))
    assert math.isnan(crossing([], 50))


@pytest.mark.parametrize("before", [math.inf, math.nan])
def test_a_run_that_diverged_at_first_gives_no_line(before):
    assert crossing([before, 12.0], 13) == 1


def test_the_tables_have_a_row_per_run_and_per_evaluation(filled):
    runs, evaluations = read_runs(filled), read_evaluations(filled)
    assert list(zip(runs.label, runs.seed, strict=True)) == [
        *(("traditional", seed) for seed in (0, 1)),
        *(("sb 0.5", seed) for seed in (0, 1)),
        *(("matched to sb 0.5", seed) for seed in (0, 1)),
        ("random 0.5", 0),
    ]
    assert list(runs.selective) == [False, False, True, True, False, False, True]
    assert list(runs.final) == [10, 20, 11.5, 21, 12.5, 20, 50]
    first = evaluations[evaluations.record == runs.record[0]]
    assert list(first.number) == [0, 1, 2]
    assert list(first.judged) == [30, 12, 10]
    assert list(first.seconds) == [10, 20, 30]
    assert evaluations.agreement.isna().all()


def test_speedups_in_seconds(filled):
    found = speedups(filled)
    # x1.1: seed 0 needs 11 %, and sb ends at 11.5 %.
    # x1.2: 12 % after 20 s against 8 s; 24 % after 10 + 10 * 4/5 s against 10 s.
    assert found["sb 0.5"][1.1] is None
    assert found["sb 0.5"][1.2] == Range(pytest.approx((2.5 + 1.8) / 2), pytest.approx(1.8), 2.5)
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


def test_paired_differences_take_seeds_that_both_ran(filled):
    runs = read_runs(filled)
    # 11.5 - 12.5 and 21 - 20
    assert paired_differences(runs, "sb 0.5", "matched to sb 0.5") == [-1.0, 1.0]
    assert paired_differences(runs, "random 0.5", "traditional") == [40.0]
    assert paired_differences(runs, "random 0.5", "nowhere") == []


def test_mean_ratio(filled):
    runs = read_runs(filled)
    assert mean_ratio(runs, "sb 0.5", "traditional", "cost_forward_units") == 0.5
    # 16 / 30 and 15 / 30
    ratio = mean_ratio(runs, "sb 0.5", "traditional", "seconds_train")
    assert ratio == pytest.approx(15.5 / 30)
    assert mean_ratio(runs, "sb 0.5", "nowhere", "seconds_train") is None


def labels(comparison):
    return list(dict.fromkeys(read_runs(comparison).label))


def test_traditional_comes_first_and_a_matched_run_after_its_partner(filled):
    filled.runs.reverse()  # Now each matched run comes before its partner, and random before both.
    assert labels(filled) == ["traditional", "random 0.5", "sb 0.5", "matched to sb 0.5"]
    filled.runs[:] = [run for run in filled.runs if run.strategy in ("matched", "random")]
    assert labels(filled) == ["matched to sb 0.5", "random 0.5"]


def test_same_budget_is_matched_or_traditional_of_equal_cost(filled, add_run):
    assert same_budget(read_runs(filled), "sb 0.5") == "matched to sb 0.5"
    assert same_budget(read_runs(filled), "random 0.5") is None
    add_run("random", 0, [(30, 9, 301, 12)], keep=0.25)
    assert same_budget(read_runs(filled), "random 0.25") == "traditional"


def test_a_matched_run_that_ended_before_its_budget_is_no_baseline(filled, add_run):
    """As where it comes to the error of ``--stop-at`` sooner than the run that it is matched to."""
    for seed in (0, 1):
        add_run("random", seed, [(9, 3, 100, 9)], keep=0.25)
        add_run("matched", seed, [(3, 1, 40, 8)], keep=0.25, matched_to="random")
    assert same_budget(read_runs(filled), "random 0.25") is None
    add_run("random", 0, [(29, 9, 299, 12)], keep=0.2)
    add_run("matched", 0, [(3, 1, 40, 8)], keep=0.2, matched_to="random")
    assert same_budget(read_runs(filled), "random 0.2") == "traditional"


def test_a_baseline_has_the_cost_of_each_seed_and_not_of_their_mean_alone(comparison, add_run):
    """As where ``--stop-at`` ends plain training sooner of one seed, and later of another."""
    for seed, cost in ((0, 200), (1, 400)):
        add_run("random", seed, [(30, 9, 300, 12)], keep=0.25)
        add_run("traditional", seed, [(30, 9, cost, 10)])
    assert same_budget(read_runs(comparison), "random 0.25") is None
