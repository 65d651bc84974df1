"""The README's first numbers and its picture are those of the records."""

import json
from pathlib import Path

import pytest

from siftback.errors import ConfigError
from siftback.lab.report.front import (
    BUDGET,
    describe_demo,
    describe_saving,
    describe_step,
    draw_saving,
    find_saving,
    write_parts,
)

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"


def test_the_parts_of_the_readme_are_what_the_records_give(recorded, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = tmp_path / "README.md"
    page.write_text(readme, encoding="utf-8")
    names = write_parts(recorded.ratios, RESULTS, page)
    assert page.read_text(encoding="utf-8") == readme
    parts = {
        name: readme.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        for name in names
    }
    assert [*parts] == ["headline", "demo", "step cost", "budget ratios"]
    table = parts.pop("budget ratios")
    assert all("`Memory()`" in paragraph for paragraph in parts.values())
    assert "| cnn-8 on mnist | 4 | **2.07** | 1.33 to > 4.00 | " in table
    assert "| ngrams-32 on imdb, weight decay 1 | 4 | flat | " in table


def test_the_picture_in_the_readme_is_what_the_records_give(recorded, tmp_path):
    draw_saving(recorded.ratios, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (ROOT / "docs" / "saved.svg").read_bytes()


def test_the_headline_is_the_budget_of_plain_training_over_the_method_s(recorded):
    shown = find_saving(recorded.ratios)
    needed = shown.ratio.ratio.value * BUDGET
    plain = {
        budget: sum(ends.values()) / len(ends) for budget, ends in shown.experiment.curve.items()
    }
    assert plain[max(budget for budget in plain if budget < needed)] > shown.end
    assert plain[min(budget for budget in plain if budget > needed)] < shown.end
    text = describe_saving(recorded.ratios)
    assert (
        f"the test error is {shown.end:.2f} %, for which plain training needs {needed:.1f} " in text
    )
    with pytest.raises(ConfigError, match="siftback run pays"):
        find_saving([])


def test_the_demo_is_described_by_the_means_over_its_groups(tmp_path):
    path = tmp_path / "demo.json"
    rows = [
        ("traditional, %", 4.0), ("sb-memory-default, %", 2.0), ("interval, to", -1.0),
        ("traditional, %", 6.0), ("sb-memory-default, %", 3.0), ("interval, to", 0.5),
        ("intervals below 0", 1), ("processor seconds over plain training's", 1.25),
    ]  # fmt: skip
    rows = [{"what": what, "measured": measured} for what, measured in rows]
    path.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    text = describe_demo(path)
    assert "ends at 5.0 % test error and `Memory()` at 2.5 % after as many steps, in 1.25 " in text
    assert "below 0 in 1 of 2." in text
    path.write_text(json.dumps({"rows": rows[:-1]}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"python benchmarks/demo\.py"):
        describe_demo(path)


def test_what_a_step_costs_is_measured_alone_beside_workers_and_in_frameworks(tmp_path):
    path = tmp_path / "step.json"
    added = "Memory(), with its draws"
    rows = [
        ("batch 128, 0 workers", added, 0.111),
        ("batch 128, 0 workers", "RS2(0.5), with its draws", 9.0),
        ("batch 128, 2 workers", added, 0.222),
        ("A, linear model", "its own step", 9.0),
        ("A, linear model", added, 0.333),
        ("B, linear model", "its own step", 9.0),
        ("B, linear model", added, 0.444),
    ]
    names = ("setting", "what", "measured")
    rows = [dict(zip(names, row, strict=True)) for row in rows]
    path.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    gpu = tmp_path / "gpu.json"
    ratios = [
        ("a: plain", "over plain's", 1.0),
        ("a: Memory()", "over plain's", 1.5),
        ("a: Memory()", "waits a step", 0.0),
        ("b: Memory()", "over plain's", 1.25),
    ]
    ratios = [dict(zip(names, row, strict=True)) for row in ratios]
    record = {"environment": {"device": "ABACUS"}, "rows": ratios}
    gpu.write_text(json.dumps(record), encoding="utf-8")
    text = describe_step(path, gpu)
    assert "adds 0.11 ms to a step of 128 examples, 0.22 ms with two workers, and 0.33 to " in text
    assert "takes 1.25 to 1.50 times as long as a plain one on an ABACUS (2 trainings)." in text
    path.write_text(json.dumps({"rows": rows[1:]}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"python benchmarks/step\.py"):
        describe_step(path, gpu)


def test_a_page_without_marks_stays_and_a_picture_is_a_picture(recorded, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no marks", encoding="utf-8")
    assert write_parts(recorded.ratios, tmp_path, page) == []
    assert page.read_text(encoding="utf-8") == "no marks"
    with pytest.raises(ConfigError, match=r"ends in \.png or \.svg"):
        draw_saving(recorded.ratios, tmp_path / "saved.pdf")
