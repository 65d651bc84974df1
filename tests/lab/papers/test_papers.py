"""The papers' numbers stand beside ours, and ours come from the records."""
# ruff: noqa: RUF001 - – is meant.

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from siftback.lab.papers import CLAIMS, OVERHEAD, RUNS, beside, by_recipe
from siftback.lab.recipes.recipe import find_recipe, recipe_names, recipe_plans
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import comparison_folders
from siftback.lab.records.observations import SHARES
from siftback.lab.report.front import write_parts
from siftback.lab.report.pages import write_page
from written_records import add, add_look, comparison

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def made(results):
    """Makes a recipe's comparison, or one beside them, to add runs to."""

    def make(folder, beside=False, **arguments):
        return comparison((results if beside else results / RUNS) / folder, **arguments)

    return make


def row(results, what, there=""):
    """The first row of a number, by how it begins and what the paper measured it on."""
    return next(
        row
        for row in beside(results)
        if row["what"].startswith(what) and row["measured there on"].endswith(there)
    )


def test_every_claim_is_of_runs_that_there_are():
    paths = [folder.split("/") for claim in CLAIMS for folder in claim.folders]
    folders = {
        folder.as_posix()
        for recipe, _, scale in {path[1].rpartition("-") for path in paths if path[0] == RUNS}
        for folder in recipe_plans(find_recipe(recipe), scale, Path())
    }
    recorded = {path.relative_to(RESULTS).as_posix() for path in comparison_folders(RESULTS)}
    for claim in CLAIMS:
        for folder in claim.folders:
            of_recipe = folder.startswith(f"{RUNS}/")
            assert folder.removeprefix(f"{RUNS}/") in (folders if of_recipe else recorded)


def test_what_was_not_run_says_so(results):
    rows = list(beside(results))
    assert {row["ours"] for row in rows[:-1]} == {"not run"}
    assert rows[-1]["ours"] == "not recorded: benchmarks/overhead.py was not run"
    assert all(row["the paper's"] for row in rows)


def test_speed_ups_are_medians_over_the_seeds(results, made):
    mnist = made("table1-small/mnist", train_limit=500)
    for seed, (sb, kath) in enumerate([(5, 8), (4, 16)]):
        # Plain training ends at 10 %: the target is 11 % at 1.1 times that.
        add(mnist, "traditional", [(10, 1, 100, 50), (20, 2, 200, 10)], seed)
        add(mnist, "sb", [(sb, 1, 50, 10)], seed, keep=0.25, keep_measured=0.3)
        add(mnist, "stale-sb-3", [(sb / 2, 1, 25, 12)], seed, keep=0.25)
        add(mnist, "kath18", [(kath, 1, 100, 13.9)], seed, keep=0.25)
    found = row(results, "SB: speed-up", "SVHN")
    # Plain training crosses 11, 12 and 14 at 19.75, 19.5 and 19 seconds.
    middle = [(at / 5 + at / 4) / 2 for at in (19.75, 19.5, 19)]
    in_cost = [at / 50 for at in (197.5, 195, 190)]
    assert found["the paper's"] == "3.4, 3.4, 3.5"
    assert found["ours"] == (
        ", ".join(f"{each:.2f}" for each in middle)
        + " in time; "
        + ", ".join(f"{each:.2f}" for each in in_cost)
        + " in cost"
    )
    assert found["and here on"] == "cnn-8 on digits (500 images), 2 epochs, 2 seeds"
    assert row(results, "Kath18: speed-up", "SVHN")["ours"].startswith("–, –, 1.78 in time")
    assert row(results, "backward passes that SB")["ours"] == "70%"
    final = row(results, "final error of plain training", "SVHN")
    assert (final["the paper's"], final["ours"]) == ("1.72 %", "10.00 ± 0.00 %")
    # What is told of all three data sets is not told of one.
    assert row(results, "speed-up of SB over Kath18")["ours"] == "not run"


@pytest.fixture
def table_1(made):
    """One seed each, whose targets are all reached at the first test."""
    cifar10, digits, mnist = (5, 4, 10), (4, 4, 2), (8, 2, 4)
    for one, (sb, stale, kath) in (
        (made("table1-small/cifar10"), cifar10),
        (made("table1-cifar10", beside=True), cifar10),
        (made("table1-small/digits"), digits),
        (made("table1-small/mnist"), mnist),
        (made("table1-mnist", beside=True), mnist),
    ):
        add(one, "traditional", [(10, 1, 100, 10)])
        add(one, "sb", [(sb, 1, 50, 9)], keep=0.25, seconds_selection=3.0)
        add(one, "stale-sb-3", [(stale, 1, 50, 9)], keep=0.25, seconds_selection=0.75)
        add(one, "kath18", [(kath, 1, 50, 9)], keep=0.25)


def test_strategies_are_held_against_each_other_over_all_targets(results, table_1):
    assert row(results, "speed-up of SB over Kath18")["ours"] == "0.50 to 2.00"
    assert row(results, "speed-up of Stale-SB over")["ours"] == "0.50 to 2.50"
    assert row(results, "time to a target that Stale-SB")["ours"] == "38% less on average"
    assert row(results, "time of selection passes")["ours"] == (
        "75% (cifar10), 75% (table1-cifar10), 75% (digits), 75% (mnist), 75% (table1-mnist)"
    )
    (best,) = [row for row in beside(results) if row["what"] == "speed-up of Stale-SB"]
    assert (best["the paper's"], best["ours"]) == ("up to 5", "up to 5.00")


def test_differences_in_error_are_paired(results, made):
    flipped = made("fig12-small/flip10", flip=0.1)
    for seed, error in enumerate((12, 15)):
        add(flipped, "traditional", [(10, 1, 100, 10 + seed)], seed)
        add(flipped, "sb", [(5, 1, 50, error)], seed, keep=0.33)
    less = "final error of SB less plain training's, 10 %"
    assert row(results, less)["ours"] == "+3.00 ± 1.41 points"


def test_pareto_shares_are_of_the_figure(results, made):
    for folder, rate in (("table1-small/mnist", "a"), ("fig17-small/mnist", "b")):
        one = made(folder, rate=rate)
        add(one, "traditional", [(10, 1, 100, 9), (20, 2, 200, 5)])
        add(one, "sb", [(4, 1, 50, 12), (12, 2, 90, 8)], keep=0.25)
    # Of 4, 10, 12 and 20 seconds, each of both comparisons alike.
    assert row(results, "share of the Pareto", "SVHN")["ours"] == (
        "SB and Stale-SB 50%, plain training 50%, Kath18 0%"
    )


def test_what_was_observed_is_told(results, made):
    of = made("fig5-small")
    run = add(of, "traditional", [(10, 1, 100, 10)])
    for epoch, high in ((1, 0.1), (2, 0.5), (3, 0.7)):
        alike = {"high": high, "low": 0.0, "random": 0.3}
        rows = [
            (subset, share, cosine if share == 0.1 else 0.9)
            for subset, cosine in alike.items()
            for share in SHARES
        ]
        subset, share, cosine = zip(*rows, strict=True)
        columns = {"subset": subset, "share": share, "cosine": cosine, "same_sign": cosine}
        add_look(of, run, "gradients", epoch, **columns)
    # Equal signs over all looks, cosines after the first epoch.
    assert row(results, "components of equal sign")["ours"] == "43 % on average"
    assert row(results, "cosine with")["ours"] == "highest losses 0.60, random 0.30"


def test_an_epoch_s_time_is_beside_the_baseline_s(results, made):
    diet = made("diet-table-small")
    add(diet, "traditional", [(4, 1, 100, 10), (8, 2, 200, 9)])
    add(diet, "random", [(1, 1, 50, 11), (2, 2, 100, 10)], keep=0.25)
    found = row(results, "time of an epoch of Random-Backprop, which leaves out 75 %")
    assert found["the paper's"] == "18.83 s, 0.41 of the baseline's"
    assert found["ours"] == "1.00 s, 0.25 of the baseline's"
    assert row(results, "error of Random-Backprop less")["ours"] == "+1.00 points"
    missing = row(results, "time of an epoch of EL2N")
    assert missing["ours"] == "not recorded: no run of el2n at 0.75"


def test_a_changed_record_changes_its_row(results, table_1):
    of = Comparison.read(results / RUNS / "table1-small" / "cifar10")
    before = row(results, "final error of plain training", "CIFAR10")["ours"]
    of.runs[0] = replace(of.runs[0], test_error_final=77.0)
    of.write()
    assert before == "10.00 %"
    assert row(results, "final error of plain training", "CIFAR10")["ours"] == "77.00 %"


def test_damage_is_told_in_its_row_alone(results, table_1):
    (results / RUNS / "table1-small" / "digits" / "summary.json").write_text("{")
    final = "final error of plain training"
    assert row(results, final, "CIFAR100")["ours"].startswith("unreadable")
    assert row(results, final, "SVHN")["ours"] == "10.00 %"


def test_the_overhead_is_the_benchmark_s(results):
    path = results / "benchmarks" / "overhead.json"
    path.parent.mkdir(parents=True)
    what = "selection beyond its forward, over SB step"
    shares = [{"what": what, "measured": 0.004}, {"what": what, "measured": 0.012}]
    path.write_text(json.dumps({"rows": [*shares, {"what": "other", "measured": 0.5}]}))
    assert row(results, "time of selection, its forwards")["ours"] == "0.4% to 1.2% of an SB step"


def test_every_recipe_and_every_number_has_a_row(results, table_1):
    rows = list(by_recipe(results))
    assert {row["recipe"] for row in rows} == {
        *(f"[`{name}`](recipes.md#the-recipes)" for name in recipe_names()),
        "",
    }
    numbers = [row["ours"] for row in rows if "ours" in row]
    assert sorted(numbers) == sorted(row["ours"] for row in beside(results))
    assert rows[-1]["what"] == OVERHEAD.what
    (best,) = [row for row in rows if row["what"] == "speed-up of Stale-SB"]
    assert (best["recipe"], best["ours"]) == ("[`table1`](recipes.md#the-recipes)", "up to 5.00")


def test_the_page_of_papers_has_the_records_numbers(tmp_path):
    text = (RESULTS.parent / "docs" / "papers.md").read_text("utf-8")
    page = tmp_path / "papers.md"
    assert write_parts([], RESULTS, page) == []  # there is no page
    page.write_text(text, "utf-8")
    assert write_parts([], RESULTS, page) == ["the papers' numbers"]
    assert page.read_text("utf-8") == text
    assert not {"not run", "not recorded", "unreadable"} & set(re.findall(r"[a-z]+ ?[a-z]+", text))


def test_the_verdicts_have_the_recipes_runs_too(results, made, tmp_path):
    one = made("table1-small/mnist", train_limit=500)
    for seed in (0, 1):
        add(one, "sb", [(5, 1, 50, 8 + seed)], seed, keep=0.25)
        add(one, "matched", [(4, 1, 50, 9 + 2 * seed)], seed, keep=0.25, matched_to="sb")
    (results / RUNS / "torn-small").mkdir()
    (results / RUNS / "torn-small" / "summary.json").write_text("{")
    write_page(results, tmp_path / "results.md")
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    row = "  - undecided: `SelectiveLoader(..., keep=0.25)` -1.50 ± 0.71\n"
    assert row in text.partition("\n## What a verdict")[0]
    assert "torn-small/summary.json is damaged" in text.partition("## Left out")[2]


def test_a_run_that_was_broken_off_is_named(results, table_1, tmp_path):
    torn = results / RUNS / "table1-small" / "mnist" / "records" / "torn.jsonl"
    torn.write_text('{"kind": "run"}\n')
    page = tmp_path / "docs" / "results.md"
    write_page(results, page)
    assert "- mnist/records/torn.jsonl was broken off, and left out" in page.read_text("utf-8")
