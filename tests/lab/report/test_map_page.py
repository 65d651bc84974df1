"""The map's page has what is recorded, and is what the records give."""

from pathlib import Path

from siftback.lab.figures.pays import experiments, method_ratios
from siftback.lab.figures.reading import read
from siftback.lab.recipes.recipe import Scale, find_recipe
from siftback.lab.report.pages import PICTURE, write_map

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"


def test_the_page_in_the_repository_is_what_its_records_give(recorded, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").symlink_to(RESULTS)
    page, picture = write_map(tmp_path / "results", tmp_path / "docs" / "map.md", recorded.ratios)
    for path in (page, picture):
        written = (ROOT / "docs" / path.name).read_text(encoding="utf-8")
        assert path.read_text(encoding="utf-8") == written, "make results writes it again"
    assert picture.name == PICTURE


def test_each_run_of_the_recipe_is_recorded():
    comparisons, damaged = read([RESULTS / "map"])
    recorded = {item.folder.name: {run.record for run in item.runs} for item in comparisons}
    planned = {
        name: {run.record for run in plan.runs()}
        for name, plan in find_recipe("map").plans(Scale.FULL).items()
    }
    assert damaged == []
    assert planned.keys() <= recorded.keys()
    assert [name for name, runs in planned.items() if not runs <= recorded[name]] == []


def test_without_budget_ratios_it_says_what_is_missing(tmp_path):
    (tmp_path / "results").mkdir()
    (page,) = write_map(tmp_path / "results", tmp_path / "map.md", [])
    text = page.read_text(encoding="utf-8")
    assert "|" not in text
    assert "## What was not measured" in text


def test_of_the_records_of_pays_alone_there_is_a_map_too(tmp_path):
    (tmp_path / "results").mkdir()
    ratios = method_ratios(experiments(read([RESULTS / "pays"])[0]))
    page, picture = write_map(tmp_path / "results", tmp_path / "map.md", ratios)
    text = page.read_text(encoding="utf-8")
    assert "cnn-8 on mnist" in text
    assert "One set in many forms" not in text
    assert picture.read_bytes().startswith(b"<?xml")
