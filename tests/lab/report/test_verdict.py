"""Whether selection paid, in words: every number from the runs."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.records.comparison_record import Comparison, named
from siftback.lab.records.frame import OUTCOMES, interval, judge, p_value
from siftback.lab.records.run_summary import METRICS
from siftback.lab.report.numbers import numbers
from siftback.lab.report.page import render_page
from siftback.lab.report.pages import write_page
from siftback.lab.report.verdict import FALSE_DISCOVERIES, headline, remaining, verdicts
from siftback.lab.strategies.table import library_name


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
    assert (sb.outcome, by_chance.outcome) == ("paid", "undecided")  # -1, +1 and +3
    assert by_chance.differences == [-1.0, 1.0, 3.0]


def test_a_verdict_has_seeds_and_interval(filled):
    sb = verdicts([filled])[0]
    # -1.5, and 4.303 * 0.5 / sqrt(3) to either side, by the table of Student's t.
    low, high = sb.interval
    assert (low, high) == pytest.approx((-1.5 - 1.2421, -1.5 + 1.2421), abs=1e-3)
    assert sb.certainty == "3 seeds (95% interval -2.74 to -0.26)"
    assert sb.seconds == pytest.approx(1.2)


@pytest.mark.parametrize(("metric", "points"), [("error", ""), ("rmse", ""), ("loss", " nats")])
def test_a_difference_in_points_has_no_unit(filled, metric, points):
    """As "-1.2 %" of an RMSE in percent would be read as a share of it."""
    verdict = replace(verdicts([filled])[0], metric=METRICS[metric])
    assert verdict.points == f"{verdict.difference:+.{verdict.metric.digits}f}{points}"


def test_a_loss_that_is_not_finite_is_named(filled):
    filled.runs[:] = [
        replace(run, test_loss_final=math.nan if run.label == "traditional" else math.inf)
        if run.seed == 1 and run.label in ("traditional", "random 0.25")
        else replace(run, test_loss_final=None)
        for run in filled.runs
    ]
    sb, by_chance = verdicts([filled])
    assert "Diverged, to a loss that is not finite: plain training. Beside" in sb.sentence
    assert sb.outcome == "paid"
    assert "not finite: plain training, Uniform(keep=0.25). Beside" in by_chance.sentence


def test_a_terminal_gets_the_verdict_in_a_sentence_or_two(filled, add_run):
    sb, by_chance = verdicts([filled])
    assert sb.sentence == (
        "SelectiveLoader(..., keep=0.5) paid: test error 1.50 ± 0.50 points lower than plain "
        "training's at the same cost, over 3 seeds (95% interval -2.74 to -0.26). Beside plain "
        "training in full it is 1.50 ± 0.50 points higher (worse), at 0.50 of its cost."
    )
    assert by_chance.sentence.startswith(
        "Uniform(keep=0.25) is undecided: test error 1.00 ± 2.00 points higher than plain "
        "training's at the same cost, over 3 seeds (95% interval -3.97 to +5.97, which takes in "
        "zero). "
    )
    for seed, error in enumerate((10.5, 10.0, 12.5)):  # plain training's: 10, 11 and 12
        add_run("rs2", seed, [(12, 2, 120, error)], keep=0.6)
    (rs2,) = [one for one in verdicts([filled]) if one.strategy == "rs2"]
    assert rs2.sentence == (
        "RS2(keep=0.6) is undecided, as there is no run of the same budget. Beside plain training "
        "in full it is 0.00 ± 0.87 points lower or higher (undecided), at 0.60 of its cost."
    )


def test_a_strategy_that_left_nothing_out_is_said_to(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(20, 2, 200, 10)])
        add_run("sb", seed, [(20, 2, 200, 10)], keep=0.5)
        add_run("linupper", seed, [(20, 2, 200, 10)])  # which leaves nothing out by design
    comparison.runs[:] = [replace(run, keep_measured=1.0) for run in comparison.runs]
    told = {v.label: "it left nothing out in so short a training" in v.sentence
            for v in verdicts([comparison])}  # fmt: skip
    assert told == {"sb 0.5": True, "linupper": False}


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
    verdict = verdicts([filled])[0]
    assert first["sentence"] == verdict.sentence


def test_an_interval_around_zero_is_said(filled):
    assert "which takes in zero" in verdicts([filled])[1].certainty


def test_the_headline_counts(filled):
    told = headline(verdicts([filled]))
    assert told.startswith(
        "Of 2 selective configurations beside plain training at the same budget: 1 paid, 1 "
        "undecided. Clearest, in abacus: SelectiveLoader(..., keep=0.5) paid: test error 1.50 ± "
        "0.50 points lower than plain training's"
    )
    assert told.endswith(
        "With the false-discovery rate held at 5% (Benjamini and Hochberg 1995), 0 of those that "
        "paid and 0 of those that are worse remain, of 2 intervals."
    )
    assert headline([]) == "No selective strategy was run, so there is nothing to judge."


def test_seeds_that_happen_to_be_alike_give_no_interval(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(20, 2, 200, 10 + seed)])
        add_run("sb", seed, [(20, 2, 200, 9 + seed)], keep=0.5)
    (sb,) = verdicts([comparison])
    assert (sb.outcome, sb.interval) == ("undecided", None)
    assert "over 2 seeds that happen to be alike, which gives no interval" in f"over {sb.certainty}"
    assert headline([sb]).endswith("same budget: 1 undecided.")


def test_one_seed_and_no_baseline_are_undecided(comparison, add_run):
    add_run("sb", 0, [(12, 2, 100, 12)], keep=0.5)
    add_run("random", 0, [(12, 2, 100, 12)], keep=0.5)
    add_run("matched", 0, [(12, 2, 100, 13)], keep=0.5, matched_to="random")
    found = verdicts([comparison])
    assert [one.outcome for one in found] == ["undecided"] * 2
    assert [one.interval for one in found] == [None] * 2
    told = "Undecided, without a run of the same budget or a second seed: 2."
    assert headline(found) == told


def test_seconds_of_two_machines_are_not_compared(filled):
    record = filled.folder / filled.by_label()["sb 0.5"][0].record
    header, _, rest = record.read_text().partition("\n")
    elsewhere = json.loads(header) | {"environment": {"cpu": "Slide rule"}}
    record.write_text(f"{json.dumps(elsewhere)}\n{rest}")
    sb = verdicts([filled])[0]
    assert sb.seconds is None


DIFFERENCES = {
    "paid": [-1.0, -1.1, -0.9],
    "likely better": [-1.0, -2.0, -3.0],
    "undecided": [-1.0, 1.0, 0.5],
    "likely worse": [1.0, 2.0, 3.0],
    "worse": [1.0, 1.1, 0.9],
}


def test_every_page_shows_the_word_of_the_same_rule(comparison, add_run, tmp_path):
    names = dict(zip(DIFFERENCES, ("sb", "rs2", "random", "ucb", "seta"), strict=True))
    for seed in range(3):
        add_run("traditional", seed, [(20, 2, 200, 10 + seed)])
        for outcome, name in names.items():
            end = 10 + seed + DIFFERENCES[outcome][seed]
            add_run(name, seed, [(20, 2, 200, end)], keep=0.5)
    found = verdicts([comparison])
    assert tuple(verdict.outcome for verdict in found) == OUTCOMES == tuple(DIFFERENCES)
    assert {verdict.outcome: verdict.strategy for verdict in found} == names
    write_page(comparison.folder.parent, tmp_path / "results.md")
    results = (tmp_path / "results.md").read_text(encoding="utf-8").replace("**", "")
    figure = ANALYSES["budget"]([comparison])
    report = render_page([comparison], [], [figure], {})
    counts = "1 paid, 1 likely better, 1 undecided, 1 likely worse, 1 worse"
    for text in (headline(found), results, report, figure.sentence):
        assert counts in text
    for verdict, number in zip(found, numbers(comparison)["verdicts"], strict=True):
        assert number["outcome"] == verdict.outcome
        call = library_name(verdict.label)
        listed = f"- {verdict.outcome}: `{call}` {verdict.difference:+.2f}\n"
        assert listed in results
        assert f'<span class="verdict {verdict.outcome}">{verdict.outcome}</span>' in report
        assert verdict.sentence.startswith(
            f"{call} {'' if verdict.outcome == 'paid' else 'is '}{verdict.outcome}: "
        )


def test_of_the_records_only_what_is_clear_of_zero_paid_or_is_worse(recorded):
    found = verdicts(recorded.comparisons)
    assert {verdict.outcome for verdict in found} == set(OUTCOMES)
    for verdict in found:
        low, high = verdict.interval or (-1.0, 1.0)
        assert (verdict.outcome == "paid") == (high < 0)
        assert (verdict.outcome == "worse") == (low > 0)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_without_any_effect_as_many_are_called_each_as_the_intervals_say(seeds):
    draw = np.random.default_rng(seeds)
    times = 4000
    outcomes = [judge(list(draw.normal(size=seeds))) for _ in range(times)]
    chances = {"paid": 0.025, "worse": 0.025, "likely better": 0.075, "likely worse": 0.075}
    for outcome, chance in chances.items():
        spread = (chance * (1 - chance) / times) ** 0.5
        assert outcomes.count(outcome) / times == pytest.approx(chance, abs=4 * spread)


def test_a_p_value_is_where_an_interval_ends_at_zero():
    for differences in DIFFERENCES.values():
        chance = p_value(differences)
        mean, low, high = interval(differences, 1 - chance)
        assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-9 * abs(mean))


def slow_remaining(values, rate):
    """Benjamini and Hochberg 1995, one value at a time: which are rejected."""
    ranked = sorted(values)
    bound = -1.0
    for k in range(1, len(ranked) + 1):
        if ranked[k - 1] <= rate * k / len(ranked):
            bound = ranked[k - 1]
    return [value <= bound for value in values]


def test_what_remains_is_what_the_paper_s_procedure_rejects(filled):
    chance = random.Random(0)
    (pattern, *_) = verdicts([filled])
    for count in (1, 4, 40):
        drawn = [[chance.gauss(row % 2, 0.4) for _ in range(5)] for row in range(count)]
        found = [replace(pattern, differences=differences) for differences in drawn]
        expected = slow_remaining([p_value(each) for each in drawn], FALSE_DISCOVERIES)
        held = remaining([*found, replace(pattern, differences=[-1.0])])  # that is no test
        assert held == [each for each, is_held in zip(found, expected, strict=True) if is_held]
    assert 0 < sum(expected) < 40
    assert remaining([replace(pattern, differences=[-1.0, -1.0])]) == []


def test_folders_of_one_name_are_told_apart(tmp_path):
    folders = [tmp_path / name for name in ("a/mnist", "b/mnist", "c", "d/runs/x", "e/runs/x")]
    names = [name for name, _ in named([Comparison(folder, {}, []) for folder in folders])]
    assert names == ["a/mnist", "b/mnist", "c", "d/runs/x", "e/runs/x"]
