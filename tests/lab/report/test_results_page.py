"""The page says what the records say, and goes on where some of them are damaged."""

import json
from dataclasses import replace

import pytest

from siftback.lab.analyses.error_plots import draw
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.report.results_page import write_page


@pytest.fixture
def filled(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(20, 2, 200, 10 + seed)])
        add_run("sb", seed, [(12, 2, 100, 12 + seed)], keep=0.5)
        add_run("matched", seed, [(10, 1, 100, 13 + 1.5 * seed)], keep=0.5, matched_to="sb")
    return comparison


@pytest.fixture
def page(comparison, tmp_path):
    def write():
        path = tmp_path / "docs" / "results.md"
        write_page(comparison.folder.parent, path)
        return path.read_text(encoding="utf-8")

    return write


def change(comparison, strategy, **fields):
    comparison.runs[:] = [
        replace(run, **fields) if run.strategy == strategy else run for run in comparison.runs
    ]
    comparison.write()


def test_says_what_was_run_and_where(filled, page):
    text = page()
    for fact in (
        "## abacus",
        "Data: digits",
        "Seeds: 0, 1",
        "precision fp32",
        "Abacus 9",
        "c0ffee",
    ):
        assert fact in text
    assert "| sb 0.5 | 12.50 ± 0.71 |" in text


def test_verdict_is_computed_from_the_runs(filled, page):
    # 12 - 13 and 13 - 14.5 against matched; 2 and 2 against Traditional.
    text = page()
    assert "**sb 0.5 paid.** Against matched to sb 0.5" in text
    assert "by -1.25 ± 0.35 points, in 1.20 times the seconds." in text
    assert "by +2.00 ± 0.00 points" in text
    assert "should take 0.50 of the time, and it took 0.60 of it (+20% on the ideal)" in text
    assert "| abacus | sb 0.5 | paid | -1.25 ± 0.35 |" in text


def test_a_changed_record_changes_the_page(filled, page):
    before = page()
    change(filled, "sb", test_error_final=16.0)
    after = page()
    assert "**sb 0.5 did not pay.**" in after
    assert after != before
    change(filled, "matched", test_error_final=16.0)
    assert "**sb 0.5 made no difference within the seeds' spread.**" in page()


def test_an_evaluation_that_changes_changes_the_speedup(filled, page):
    before = page()
    record = filled.folder / filled.runs[1].record
    for run in filled.by_label()["sb 0.5"]:
        record = filled.folder / run.record
        text = record.read_text(encoding="utf-8")
        record.write_text(text.replace('"test_error": 1', '"test_error": 0.1'), encoding="utf-8")
    assert "| 1.67 | 1.67 | 1.67 |" not in before
    assert "| 1.67 | 1.67 | 1.67 |" in page()


def test_undecided_where_there_is_one_seed_or_no_baseline(comparison, add_run, page):
    add_run("sb", 0, [(12, 2, 100, 12)], keep=0.5)
    text = page()
    assert "**sb 0.5 is undecided, as there is no run of the same budget.**" in text
    assert "Where it paid" not in text, "a table of those that have a baseline"
    add_run("traditional", 0, [(12, 2, 100, 13)])
    text = page()
    assert "**sb 0.5 is undecided, as one seed has no spread.** Against traditional" in text
    assert "Where it paid" in text
    assert "the whole of Traditional" not in text


def test_the_plot_is_linked_from_where_the_page_lies(filled, page, tmp_path):
    assert "![" not in page()
    draw(filled, filled.folder)
    assert "(../results/abacus/error.png)](../results/abacus/error.svg)" in page()
    assert (tmp_path / "docs" / "../results/abacus/error.png").exists()
    assert str(tmp_path) not in page()


@pytest.mark.parametrize(
    "summary", [None, "{", "[]", "{}", '{"runs": [{}], "environment": {}}', "\udcff"]
)
def test_a_damaged_folder_is_named_and_the_rest_is_made(filled, page, tmp_path, summary):
    broken = filled.folder.parent / "broken"
    broken.mkdir()
    if summary is not None:
        content = summary.encode("utf-8", "surrogateescape")
        (broken / "summary.json").write_bytes(content)
    text = page()
    assert "## broken\n\n**Unreadable**" in text
    assert "**sb 0.5 paid.**" in text
    assert str(tmp_path) not in text


def test_a_missing_record_makes_the_folder_unreadable(filled, page):
    (filled.folder / filled.runs[0].record).unlink()
    text = page()
    assert "## abacus\n\n**Unreadable**" in text
    assert ".jsonl: No such file" in text
    assert "| abacus |" not in text


def test_a_bare_environment_and_no_run(comparison, page):
    comparison.environment.clear()
    comparison.write()
    text = page()
    assert "Measured on: not recorded" in text
    assert "No run has finished." in text


def ratio(setting, what, measured, goal="", met=None):
    return {"setting": setting, "what": what, "measured": measured, "goal": goal, "met": met}


def test_benchmarks_are_tables(filled, page):
    folder = filled.folder.parent / "benchmarks"
    folder.mkdir()
    benchmark = {
        "title": "Overhead of selection",
        "environment": {"cpu": "Abacus 9"},
        "rows": [
            ratio("fp32", "share of a step", 0.00123456, "at most 0.005", met=True),
            ratio("fp32", "a|b", 7.0),
            ratio("bf16", "share of a step", 0.0123456, "at most 0.005", met=False),
        ],
    }
    (folder / "overhead.json").write_text(json.dumps(benchmark), encoding="utf-8")
    (folder / "torn.json").write_text('{"title": "T', encoding="utf-8")
    text = page()
    assert "## Overhead of selection\n\nMeasured on: cpu Abacus 9\n" in text
    assert r"| setting | share of a step (at most 0.005) | a\|b |" in text
    assert "| fp32 | 0.001235 | 7 |" in text
    assert "| bf16 | 0.01235 (missed) |  |" in text
    assert "## torn.json\n\n**Unreadable**" in text
    assert "## benchmarks" not in text


def test_no_results_at_all(comparison, page):
    comparison.folder.parent.mkdir()
    assert page().startswith("# Results")


def test_runs_of_several_machines_are_told_apart(comparison, add_run, page):
    add_run("traditional", 0, [(10.0, 100, 3000, 8.0)])
    moved = add_run("sb", 0, [(9.0, 90, 2700, 9.0)], keep=0.5)
    record = comparison.folder / moved.record
    header, _, rest = record.read_text().partition("\n")
    environment = {"environment": {"cpu": "Slide rule", "device": "cpu"}}
    record.write_text(json.dumps(json.loads(header) | environment) + "\n" + rest)
    text = page()
    assert "whose seconds do not compare: traditional on Abacus 9; sb 0.5 on Slide rule" in text
    assert "Against the whole of Traditional it differs by" in text
    assert "of the time" not in text


def test_settings_are_chosen_by_a_table_of_their_own(comparison, add_run, page):
    add_run("traditional", 0, [(10.0, 100, 3000, 8.0)])
    results = comparison.folder.parent
    (results / "tuning").mkdir()
    for name, floor in (("a", 0.1), ("b", 0.3)):
        chosen = Comparison(results / "tuning" / name, dict(comparison.environment), [])
        chosen.environment["arguments"] = {"epochs": 2, "floor": floor}
        chosen.runs.extend(comparison.runs)
        chosen.write()
    (results / "tuning" / "c").mkdir()
    (results / "tuning" / "c" / "summary.json").write_text('{"runs": 3}')
    text = page().partition("## Settings")[2]
    assert "**c is unreadable**, and left out" in text
    assert "| a | traditional | floor 0.1 | 8.00 | 3,000 | 0 |" in text
    assert "| b | traditional | floor 0.3 | 8.00 | 3,000 | 0 |" in text
    assert "Asked for: epochs 2" in text


def test_a_folder_of_comparisons_is_one_table_with_what_guards_held_back(comparison, add_run, page):
    add_run("gone", 0, [(10.0, 100, 3000, 8.0)], keep=0.5)  # a strategy that there is no more
    several = comparison.folder.parent / "abacus-noise"
    for flip, held, right in ((0.0, 5, None), (0.2, 40, 30)):
        part = Comparison(several / f"flip{flip:g}", dict(comparison.environment), [])
        part.environment["arguments"] = {"epochs": 2, "flip": flip}
        wrong = {"suspects_wrong": right, "labels_wrong": None if right is None else 60}
        part.runs.append(replace(comparison.runs[0], suspects=held, **wrong))
        part.write()
    (several / "notes.md").write_text("Beads of the wrong colour.\n")
    text = page().partition("## abacus-noise")[2]
    assert "\n\nBeads of the wrong colour.\n\n| comparison |" in text
    assert "| flip0 | gone 0.5 | flip 0 | 8.00 | 3,000 | 0 | 5 |  |  |" in text
    assert "| flip0.2 | gone 0.5 | flip 0.2 | 8.00 | 3,000 | 0 | 40 | 0.750 | 0.500 |" in text


def test_notes_of_a_comparison_are_part_of_its_section(filled, page):
    (filled.folder / "notes.md").write_text("Beads stick on damp days.\n")
    assert "\n\nBeads stick on damp days.\n\n| strategy |" in page()
