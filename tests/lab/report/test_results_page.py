"""The page says what the records say, is short, and goes on where some of them are damaged."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from siftback.lab.report.pages import benchmarks_of, main_verdicts, write_measurements, write_page
from siftback.lab.report.verdict import verdicts
from written_records import add
from written_records import comparison as empty

ROOT = Path(__file__).parents[3]
LINES = 150


@pytest.fixture
def filled(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(20, 2, 200, 10 + seed)])
        add_run("sb", seed, [(12, 2, 100, 12 + seed)], keep=0.5)
        add_run("matched", seed, [(10, 1, 100, 13 + 1.1 * seed)], keep=0.5, matched_to="sb")
    return comparison


@pytest.fixture
def page(comparison, tmp_path):
    def write():
        path = tmp_path / "docs" / "results.md"
        write_page(comparison.folder.parent, path)
        return path.read_text(encoding="utf-8")

    return write


@pytest.fixture
def measurements(comparison, tmp_path):
    def write():
        path = tmp_path / "docs" / "measurements.md"
        write_measurements(comparison.folder.parent, path)
        return path.read_text(encoding="utf-8")

    return write


def change(comparison, strategy, **fields):
    comparison.runs[:] = [
        replace(run, **fields) if run.strategy == strategy else run for run in comparison.runs
    ]
    comparison.write()


def with_link_of_the_repository(path):
    text = path.read_text(encoding="utf-8")
    return re.sub(r"\]\([^)]*results/\)", "](../results/)", text, count=1)


def test_the_page_in_the_repository_is_what_its_records_give(recorded):
    written = with_link_of_the_repository(recorded.page)
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == written


def test_the_measurements_in_the_repository_are_what_its_records_give(tmp_path):
    path = tmp_path / "docs" / "measurements.md"
    write_measurements(ROOT / "results", path)
    recorded = with_link_of_the_repository(path)
    assert (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8") == recorded
    assert re.findall(r"^## (.*)$", recorded, re.MULTILINE) == [
        "Rare classes",
        "What the benchmarks say",
        "Learning rates, compared on held-out training examples",
        "Settings, chosen on held-out training examples",
    ]


def test_the_page_in_the_repository_is_short_and_whole(recorded):
    text = recorded.page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "What selection pays, in budgets",
        "What wrong labels cost",
        "What paid",
        "What a verdict rests on",
    ]
    for data in ("mnist", "cifar10", "digits"):
        assert f"- **{data}**: of " in text
    assert "not recorded" not in text
    assert "unreadable" not in text


def test_no_note_beside_the_records_has_numbers_of_its_own():
    assert not list((ROOT / "results").rglob("*.md"))


def test_what_a_verdict_rests_on_is_given(filled, page):
    rests = page().partition("## What a verdict rests on")[2]
    assert "1 comparison of 6 runs: cnn on digits. The report has the settings, versions" in rests
    assert "- **Bar.** A configuration paid, or is worse, where the 95% interval" in rests


def test_verdict_is_computed_from_the_runs(filled, page):
    # 12 - 13 and 13 - 14.1 against matched.
    text = page()
    row = "\n  - **paid**: `SelectiveLoader(..., keep=0.5)` -1.05 ± 0.07\n"
    assert row in text
    assert "- **digits**: of 1 configuration in 1 comparison 1 paid. Clearest, in " in text
    assert (
        "Clearest, in abacus: SelectiveLoader(..., keep=0.5) paid: test error 1.05 ± 0.07 points "
        "lower" in text
    )
    assert text.index("## What paid") < text.index(row) < text.index("## What a verdict rests on")


def test_a_changed_record_changes_the_page(filled, page):
    before = page()
    change(filled, "sb", test_error_final=17.0)
    after = page()
    assert "  - likely worse: `SelectiveLoader(..., keep=0.5)` +3.45 ± 0.78\n" in after
    assert after != before
    change(filled, "matched", test_error_final=17.0)
    assert "  - undecided: `SelectiveLoader(..., keep=0.5)` +0.00 ± 0.00\n" in page()


def test_one_seed_or_no_baseline_has_no_row(comparison, add_run, page):
    add_run("sb", 0, [(12, 2, 100, 12)], keep=0.5)
    assert "## What paid" not in page()
    add_run("traditional", 0, [(12, 2, 100, 13)])
    assert "## What paid" not in page()


def test_a_strategy_has_its_longest_training_and_the_share_nearest_a_half(tmp_path):
    short, long = (empty(tmp_path / name) for name in ("short", "long"))
    for of, cost, keeps in ((short, 100, [0.5]), (long, 1000, [0.25, 0.4])):
        for seed in (0, 1):
            add(of, "traditional", [(10, 1, cost, 10 + seed)], seed)
            for keep in keeps:
                add(of, "sb", [(10, 1, cost, 9)], seed, keep=keep)
                add(of, "gone", [(10, 1, cost, 9)], seed, keep=keep)  # no strategy of the lab
    add(short, "random", [(10, 1, 100, 9)], 0, keep=0.1)
    add(short, "random", [(10, 1, 100, 9)], 1, keep=0.1)
    chosen = main_verdicts(verdicts([short, long]))
    assert {(one.strategy, one.comparison, one.keep) for one in chosen} == {
        ("sb", "long", 0.4),
        ("gone", "long", 0.4),
        ("random", "short", 0.1),
    }
    page = tmp_path / "page.md"
    write_page(tmp_path, page)
    assert "gone 0.4 -1.50 ± 0.71" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "summary", ["{", "[]", "{}", '{"runs": [{}], "environment": {}}', "\udcff"]
)
def test_a_damaged_folder_is_named_and_the_rest_is_made(filled, page, tmp_path, summary):
    broken = filled.folder.parent / "broken"
    broken.mkdir()
    (broken / "summary.json").write_bytes(summary.encode("utf-8", "surrogateescape"))
    text = page()
    assert "- broken/summary.json" in text.partition("## Left out")[2]
    assert "- **paid**: " in text
    assert str(tmp_path) not in text


def test_a_missing_record_leaves_its_run_out(filled, page):
    (filled.folder / filled.runs[0].record).unlink()
    text = page()
    assert "is missing, and left out" in text.partition("## Left out")[2]
    assert "1 comparison of 5 runs: cnn on digits." in text


def test_a_bare_environment(filled, page):
    filled.environment.clear()
    filled.write()
    assert "1 comparison of 6 runs: cnn on digits." in page()


def ratio(setting, what, measured, goal="", met=None):
    return {"setting": setting, "what": what, "measured": measured, "goal": goal, "met": met}


def test_a_benchmark_is_a_line_with_its_goals(filled, measurements):
    folder = filled.folder.parent / "benchmarks"
    folder.mkdir()

    def write(name, *rows):
        content = {"title": name, "environment": {"cpu": "Abacus 9"}, "rows": rows}
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")

    goal = "at most 0.005"
    write(
        "A",
        ratio("fp32", "share of a step", 0.00123456, goal, met=True),
        ratio("fp32", "a|b", 7.0),
        ratio("bf16", "share of a step", 0.0123456, goal, met=False),
    )
    write("B", ratio("fp32", "speed", 1234.5))  # in the report alone
    write("C", *(ratio("fp32", f"r{n}", 0.001, goal, met=True) for n in range(6)))
    write(
        "step", ratio("2 workers", "RS2", 0.1234, goal, met=False), ratio("2 workers", "plain", 2.0)
    )
    (folder / "torn.json").write_text('{"title": "T', encoding="utf-8")
    (folder / "bare.json").write_text('{"title": "T", "rows": [{}]}', encoding="utf-8")
    text = measurements()
    assert f"- **A**: share of a step 0.0012 to 0.012, {goal} in 1 of 2.\n" in text
    assert "**B**" not in text
    assert f"- **C**: the ratios 0.001, {goal} in 6 of 6.\n" in text
    assert "- **torn.json is damaged, and left out (JSONDecodeError).**" in text
    assert "- **bare.json is damaged, and left out (KeyError).**" in text
    assert "### step\n\nMeasured with cpu Abacus 9.\n\n| setting | RS2 | plain |" in text
    assert "| 2 workers | 0.123 | 2 |" in text
    assert [one["title"] for one in benchmarks_of(folder)[0]] == ["A", "B", "C", "step"]


def test_curves_and_wrong_labels_have_tables_of_their_own(tmp_path):
    for budget in (1.0, 2.0, 4.0, 8.0, 16.0):
        one = empty(tmp_path / f"curve-{budget:g}", budget=budget)
        for seed in (0, 1):
            add(one, "traditional", [(10, 1, 100, 20 - budget + seed)], seed)
            if budget == 4:
                add(one, "sb-memory", [(10, 1, 100, 12 + seed)], seed, keep=0.5)
            if budget in (2, 4):
                add(one, "rs2", [(10, 1, 100, 20 - budget + seed)], seed, keep=0.5)
    for flip in (0.0, 0.2):
        one = empty(tmp_path / f"flip-{flip:g}", budget=3.0, flip=flip)
        for seed in (0, 1):
            add(one, "traditional", [(10, 1, 100, 17 + seed)], seed)
            found = {"suspects": 10, "suspects_wrong": 8, "labels_wrong": 40} if flip else {}
            add(one, "sb-memory-guarded", [(10, 1, 100, 16 + seed)], seed, keep=0.5, **found)
    page = tmp_path / "page.md"
    write_page(tmp_path, page)
    text = page.read_text(encoding="utf-8")
    # Plain training ends at 20.5 - budget, so that its budget for 12.5 % is 8.
    assert (
        "| data and model | `Memory(keep=0.5)` | `Memory(keep=0.5, guard=NoiseGuard(classes))` |\n"
        in text
    )
    assert "| cnn-8 on digits, 4 epochs | 2.00 (2.00 to 2.00) |  |\n" in text
    guarded = "`Memory(keep=0.5, guard=NoiseGuard(classes))`"
    both = "1.00 (1.00 to 1.00) |  | 1.00 (1.00 to 1.00) | 0.25 to 0.50 |"
    assert f"| cnn-8 on digits | `RS2(keep=0.5)` | 2 | {both}" in text
    assert (
        f"| wrong labels | seeds | plain training | {guarded} | precision / recall of {guarded} |"
        in text
    )
    assert "| cnn-8 on digits | 20% | 2 | 17.50 % | -1.00 | 0.80 / 0.20 |" in text
    assert "## What paid" not in text


def test_no_results_at_all(comparison, page):
    comparison.folder.parent.mkdir()
    assert page().startswith("# Results")


def test_settings_are_chosen_by_a_table_of_their_own(comparison, add_run, page, measurements):
    add_run("traditional", 0, [(10.0, 100, 3000, 8.0)])
    results = comparison.folder.parent
    for name, floor in (("a", 0.1), ("b", 0.3)):
        chosen = empty(results / "tuning" / name, epochs=2, floor=floor)
        add(chosen, "traditional", [(10.0, 100, 3000, 8.0)])
    (results / "tuning" / "c").mkdir()
    (results / "tuning" / "c" / "summary.json").write_text('{"runs": 3}')
    text = measurements().partition("## Settings")[2]
    assert "**c/summary.json is damaged, and left out (" in text
    assert "| a | plain training | floor 0.1 | 8.00 | 3,000 | 0 |" in text
    assert "| b | plain training | floor 0.3 | 8.00 | 3,000 | 0 |" in text
    assert "All with data digits; model cnn; epochs 2." in text
    assert "tuning" not in page()


def test_learning_rates_have_a_table_of_their_own(comparison, add_run, measurements):
    add_run("traditional", 0, [(10.0, 100, 3000, 8.0)])
    rates = comparison.folder.parent / "tuning" / "rates-full"
    for rate, error in ((0.1, 7.0), (0.2, 6.5)):
        one = empty(rates / f"digits-{rate:g}", budget=4.0, validation=100, lr=rate)
        add(one, "traditional", [(1.0, 10, 100.0, error)])
    (rates / "torn").mkdir()
    (rates / "torn" / "summary.json").write_text('{"runs": 3}')
    text = measurements().partition("## Learning rates")[2]
    assert "| cnn-8 on digits, 4 epochs | 1 | 0.1: 7.00; 0.2: 6.50; lowest at 0.2 |" in text
    assert "**torn/summary.json is damaged, and left out (" in text
    assert "## Settings" not in text


def test_rare_classes_have_a_table_of_their_own(comparison, add_run, page, measurements):
    add_run("traditional", 0, [(10.0, 100, 3000, 8.0)])
    folder = comparison.folder.parent / "rare"
    one = empty(folder / "rare-small" / "digits", budget=4.0, rare=30)
    by_class = {"test_error_rare": 40.0, "test_error_common": 2.0}
    add(one, "traditional", [(1.0, 10, 100.0, 9.0)], **by_class)
    (folder / "torn").mkdir()
    (folder / "torn" / "summary.json").write_text('{"runs": 3}')
    text = measurements()
    assert "| cnn-8 on digits | 1 in 30 | plain training | 1 | 40.00 |" in text
    assert "torn/summary.json is damaged, and left out (" in text
    assert text.count("40.00") == 1
    assert "40.00" not in page()
