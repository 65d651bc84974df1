"""The report says what the records say, carries all that it needs, and is fit for every reader."""

import base64
import csv
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest

from siftback import cli
from siftback.errors import ConfigError
from siftback.lab.figures.analyses import analyse
from siftback.lab.figures.figure import Figure, Gallery, Grid, Missing, Panel, Picture, Series
from siftback.lab.figures.reading import read
from siftback.lab.papers import CLAIMS
from siftback.lab.recipes.recipe import comparisons_for
from siftback.lab.report.page import render_page, write_report

ROOT = Path(__file__).parents[3]
FOUND = ["cnn on digits: an epoch of sb takes 0.50 of plain training's."]
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Page(HTMLParser):
    """The contents of a page: its elements, its text, and the scripts' data."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.texts = []
        self.data = []
        self._open = []
        self.feed(text)
        assert self._open == [], "an element was not closed"
        if self.data:
            *self.data, pool = self.data
            for panel in chain.from_iterable(chain(*map(dict.values, self.data))):
                panel["series"] = [whole(places, pool) for places in panel["series"]]

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), tuple(self._open)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            if self.elements[-1][1].get("type") == "application/json":
                self.data.append(json.loads(data))
        elif self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attributes for name, attributes, _ in self.elements if name == tag]


def whole(places, pool):
    """A series, from its places in the pool."""
    look, *columns = (pool[place] for place in places)
    return look | dict(zip(("x", "y", "low", "high"), columns, strict=True))


@pytest.fixture
def filled(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(10, 1, 100, 40), (20, 2, 200, 10 + seed)])
        add_run("sb", seed, [(6, 1, 50, 30), (12, 2, 100, 12 + seed)], keep=0.5)
        add_run(
            "matched", seed, [(5, 1, 50, 35), (10, 1, 100, 13 + 1.1 * seed)], 0.5, matched_to="sb"
        )
    return comparison


@pytest.fixture
def page(comparison):
    """The page of the comparison's folder as it is now, without the files beside it."""

    def made(only=("table1", "budget", "fig7", "fig1")):
        comparisons, problems = read([comparison.folder])
        analyses = list(analyse(comparisons, only).values())
        return Page(render_page(comparisons, problems, analyses, {}))

    return made


def change(comparison, strategy, **fields):
    comparison.runs[:] = [
        replace(run, **fields) if run.strategy == strategy else run for run in comparison.runs
    ]
    comparison.write()


def test_the_verdict_comes_first_with_its_numbers(filled, page):
    text = page().text
    # 12 - 13 and 13 - 14.1 against matched.
    assert "Of 1 selective configuration beside plain training at the same budget: 1 paid." in text
    assert "abacus (cnn on digits): SelectiveLoader(..., keep=0.5) paid: test error 1.05 ± " in text
    assert "1.05 ± 0.07 points lower than plain training's at the same cost, " in text
    assert "over 2 seeds (95% interval -1.69 to -0.41)" in text
    order = ["Did it pay?", "Speed-up to near", "Test error over training time", "Settings,"]
    places = [text.rindex(each) for each in order]
    assert places == sorted(places)


def test_facts_of_the_run_are_told(filled, page):
    text = page().text
    for fact in ("Abacus 9", "c0ffee", "2.13.0", "precision", "fp32", "6 runs, seeds 0, 1"):
        assert fact in text


def test_the_settings_have_strategies_as_calls_of_the_library(filled, page):
    names = ["traditional", "sb-memory-default", "sb-memory@0.25", "stale-sb-3"]
    filled.environment["arguments"]["strategies"] = names
    filled.write()
    text = page().text
    assert "plain training, Memory(), Memory(keep=0.25), Stale(keep=s, every=3)" in text


def test_every_changed_record_changes_the_page(filled, page):
    before = page()
    change(filled, "sb", test_error_final=17.0)
    worse = page()
    assert "at the same budget: 1 likely worse." in worse.text
    change(filled, "matched", test_error_final=17.0)
    assert "at the same budget: 1 undecided." in page().text
    filled.environment["cpu"] = "Slide rule"
    filled.write()
    assert "Slide rule" in page().text
    assert "Slide rule" not in before.text


def test_a_changed_evaluation_changes_the_figure_and_the_table(filled, page):
    before = page()
    for run in filled.by_label()["sb 0.5"]:
        record = filled.folder / run.record
        text = record.read_text(encoding="utf-8")
        record.write_text(text.replace('"test_error": 30', '"test_error": 11'), encoding="utf-8")
    after = page()
    assert drawn(before, "SelectiveLoader(..., keep=0.5)") == ([6, 12], [30, 12.5])
    assert drawn(after, "SelectiveLoader(..., keep=0.5)") == ([6, 12], [11, 12.5])
    assert after.text != before.text


def drawn(page, label):
    """The line of a configuration over time."""
    for figure in page.data:
        for panel in figure.get("time", []):
            for series in panel["series"]:
                if series["label"] == label:
                    return series["x"], series["y"]
    raise AssertionError(f"no {label} on the page")


def test_the_page_needs_no_other_file(filled, tmp_path, monkeypatch, capsys):
    path = tmp_path / "report" / "index.html"
    asked = ["siftback", "report", str(filled.folder), "--out", str(path.parent)]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert capsys.readouterr() == (f"{path}\n", "")
    assert path.stat().st_size < 10_000_000
    made = Page(path.read_text(encoding="utf-8"))
    for tag, attributes, _ in made.elements:
        if tag != "a":
            assert not any(name in attributes for name in ("srcset", "data", "action")), tag
        address = attributes.get("src") or attributes.get("href") or "data:"
        if address.startswith("figures/"):
            assert tag == "a"
            assert (path.parent / address).stat().st_size > 100
        else:
            assert address.startswith(("data:", "#"))
    styles = re.findall(r"<style>.*?</style>", path.read_text(encoding="utf-8"), re.DOTALL)
    assert not any("url(" in style or "@import" in style for style in styles)
    names = {each.name for each in (path.parent / "figures").iterdir()}
    carried = {link["download"]: link["href"] for link in made.all("a") if "download" in link}
    for beside in (path.parent / "data").iterdir():
        assert content(carried[f"{beside.name}.gz"]) == beside.read_bytes()
    assert {"fig7.svg", "fig7.png", "fig7.csv", "fig7-cost.svg", "table1.csv"} <= names


def content(link):
    """The compressed contents of an address."""
    return gzip.decompress(base64.b64decode(link.removeprefix("data:application/gzip;base64,")))


def test_raw_numbers_are_carried(filled, page):
    links = {link["download"]: link["href"] for link in page().all("a") if "download" in link}
    carried = content(links["abacus-evaluations.csv.gz"]).decode()
    lines = list(csv.DictReader(io.StringIO(carried)))
    assert len(lines) == 12
    sb = [line for line in lines if line["configuration"] == "sb 0.5" and line["seed"] == "1"]
    assert [float(line["test_error"]) for line in sb] == [30, 13]
    summary = json.loads(content(links["abacus-summary.json.gz"]))
    assert summary == json.loads((filled.folder / "summary.json").read_text())


def test_what_is_too_large_to_carry_is_linked(filled):
    comparisons, problems = read([filled.folder])
    analyses = list(analyse(comparisons, ["fig7"]).values())

    def links(**most):
        made = Page(render_page(comparisons, problems, analyses, {}, **most))
        return {link["href"]: link["download"] for link in made.all("a") if "download" in link}

    carried = sorted(links(), key=len)
    left = links(carried_most=len(carried[-1]) - 1)
    assert set(carried) - set(left) == {carried[-1]}
    (beside,) = set(left) - set(carried)
    assert beside == f"data/{left[beside]}"
    assert f"{left[beside]}.gz" == links()[carried[-1]]


def test_a_page_that_would_be_too_large_carries_no_raw_numbers(filled, tmp_path, monkeypatch):
    monkeypatch.setattr("siftback.lab.report.page.ANALYSES", ["table1"])  # no picture to draw
    whole, problems = write_report([filled.folder], tmp_path / "whole")
    assert problems == []
    size = whole.stat().st_size
    monkeypatch.setattr("siftback.lab.report.page.PAGE_MOST", size - 1)
    smaller, problems = write_report([filled.folder], tmp_path / "smaller")
    assert problems == []
    assert smaller.stat().st_size < size
    assert '"data/abacus-summary.json"' in smaller.read_text(encoding="utf-8")
    monkeypatch.setattr("siftback.lab.report.page.PAGE_MOST", 1000)
    page, problems = write_report([filled.folder], tmp_path / "larger")
    assert page.stat().st_size == smaller.stat().st_size
    (problem,) = problems
    assert problem.startswith(f"index.html has {page.stat().st_size / 1e6:.1f} MB: ")


def test_the_papers_and_the_benchmarks_are_in_full(filled, tmp_path):
    results = filled.folder.parent
    recipes, benchmarks = results / "recipes", results / "benchmarks"
    shutil.copytree(filled.folder, recipes / "table1-small" / "mnist")
    benchmarks.mkdir()
    row = {"setting": "fp32", "what": "speed", "measured": 2.5, "goal": "at least 2", "met": True}
    one = {"title": "Speed of beads", "environment": {"cpu": "Abacus 9"}, "rows": [row]}
    (benchmarks / "beads.json").write_text(json.dumps(one))
    (benchmarks / "torn.json").write_text("{")
    page, problems = write_report([recipes, benchmarks], tmp_path / "page.html")
    assert problems == ["torn.json is damaged, and left out (JSONDecodeError)"]
    text = Page(page.read_text(encoding="utf-8")).text
    papers = text.rpartition("The papers' numbers beside ours")[2]
    assert "final error of plain training 1.72 % 10.50 ± 0.71 % Wide ResNet, SVHN cnn on" in papers
    assert papers.count(" not run ") > len(CLAIMS) / 2
    assert "Speed of beads. Measured on: cpu Abacus 9" in text
    assert "speed (at least 2) fp32 2.5" in text
    without, _ = write_report([filled.folder], tmp_path / "without.html")
    assert "The papers' numbers" not in without.read_text(encoding="utf-8")


def test_a_page_alone_carries_all(filled, tmp_path, monkeypatch):
    monkeypatch.setattr("siftback.lab.report.page.CARRIED_MOST", 0)
    page, problems = write_report([filled.folder], tmp_path / "docs" / "page.html")
    assert (page, problems) == (tmp_path / "docs" / "page.html", [])
    assert list(page.parent.iterdir()) == [page]
    made = Page(page.read_text(encoding="utf-8"))
    links = [link["href"] for link in made.all("a")]
    assert all(link.startswith(("#", "data:application/gzip;")) for link in links)
    summary = (filled.folder / "summary.json").read_bytes()
    assert summary in [content(link) for link in links if link.startswith("data:")]


def test_a_recipe_s_runs_are_in_what_it_draws_alone(filled, tmp_path):
    runs = tmp_path / "runs"
    placed = ["fig13-small/digits", "table1-small/digits", "own"]
    for place in placed:
        shutil.copytree(filled.folder, runs / place)
    comparisons, _ = read([runs])
    drawn = {
        name: {
            one.folder.relative_to(runs).as_posix() for one in comparisons_for(name, comparisons)
        }
        for name in ("fig13", "fig7", "fig14", "choices", "fig12")
    }
    assert drawn == {
        "fig13": {"fig13-small/digits", "own"},
        "fig7": {"table1-small/digits", "own"},  # which recipe fig7 uses
        "fig14": {"fig13-small/digits", "table1-small/digits", "own"},
        "choices": set(placed),  # which no recipe draws
        "fig12": {"own"},
    }
    assert comparisons_for("fig12", comparisons[:2]) == comparisons[:2], "of one recipe"
    page, _ = write_report([runs], tmp_path / "report.html")
    made = Page(page.read_text(encoding="utf-8"))
    panels = {
        figure["data-figure"]: len(data[next(iter(data))])
        for figure, data in zip(made.all("figure"), made.data, strict=True)
    }
    assert panels["fig7"] == 2


def test_it_is_fit_for_a_reader_who_listens(filled, page):
    made = page()
    identities = [each["id"] for _, each, _ in made.elements if "id" in each]
    assert len(identities) == len(set(identities))
    targets = {link["href"][1:] for link in made.all("a") if link["href"].startswith("#")}
    assert targets <= set(identities)
    assert all(header.get("scope") in ("col", "row") for header in made.all("th"))
    assert made.all("th")
    assert all(each["alt"] for each in made.all("img"))
    panels = [each for each in made.all("div") if each.get("class") == "panels"]
    assert len(panels) == len(made.data) == 2
    assert all(each["role"] == "img" and len(each["aria-label"]) > 20 for each in panels)
    assert len(made.all("figcaption")) == 2
    assert made.all("html")[0]["lang"] == "en"
    headings = [int(tag[1]) for tag, _, _ in made.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(headings))


def test_names_in_records_are_text_and_no_markup(comparison, add_run, page):
    name = "</script><b>bold&"
    add_run("traditional", 0, [(10, 1, 100, 40)])
    add_run(name, 0, [(10, 1, 100, 40)], keep=0.5)
    made = page()
    assert f"{name} 0.5" in made.text
    assert drawn(made, f"{name} 0.5") == ([10], [40])
    assert "b" not in {tag for tag, _, _ in made.elements}


def test_figures_are_drawn_as_they_are():
    bars = Panel("p", "x", "y", "bars", [Series("a", ["u", "v"], [1.23456789, float("nan")])])
    line = Series("b", [1, 2], [3.0, 4.0], [2.5, 3.5], [3.5, float("inf")], "sb", faint=True)
    views = {"all": [bars], "other": [Panel("q", "x", "y", "line", [line], log_y=True)]}
    one = Figure("one", "One", FOUND, "Nobody", views)
    grid = Grid("two", "Two", FOUND, "Nobody", ["name", "value"], [["u", 1.5], ["v", None]])
    none = Missing("three", "Three", "Record something.")
    made = Page(render_page([], [], [one, grid, none], {"one": ["figures/one.svg"]}))
    (data,) = made.data
    drawn = data["all"][0]["series"][0]
    assert (drawn["x"], drawn["y"]) == (["u", "v"], [1.2346, None])
    drawn = data["other"][0]["series"][0]
    assert (drawn["low"], drawn["high"], drawn["faint"]) == ([2.5, 3.5], [3.5, None], True)
    assert (data["other"][0]["log_y"], data["other"][0]["kind"]) == (True, "line")
    assert "u 1.50" in made.text
    assert "Three Record something." in made.text
    assert "figures/one.svg" in [link["href"] for link in made.all("a")]
    choices = [each["value"] for each in made.all("input") if each["name"] == "view-one"]
    assert choices == ["all", "other"]


def test_pictures_have_label_loss_and_alt_text():
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    wide = np.zeros((50, 200, 3), np.uint8)
    gallery = Gallery("g", "G", FOUND, "Nobody", [
        Picture(grey, "7", "loss 2.5", "kept"), Picture(wide, "cat", "loss 9", "dropped"),
    ])  # fmt: skip
    made = Page(render_page([], [], [gallery], {}))
    first, second = made.all("img")
    assert first["alt"] == "Image of class 7, loss 2.5"
    assert size(first) == (8, 8)
    assert size(second) == (96, 24)
    assert "kept 7 loss 2.5 dropped cat loss 9" in made.text


def size(image):
    from PIL import Image

    content = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
    return Image.open(io.BytesIO(content)).size


def test_damage_is_told_and_the_rest_is_made(filled, page, add_run):
    torn, gone, cut = (filled.folder / run.record for run in filled.runs[:3])
    torn.write_text(torn.read_text()[:-40])
    gone.unlink()
    cut.write_text(cut.read_text().replace('"test_error": 35', '"test_error": "many"'))
    stopped = filled.folder / "records" / "random-seed0.jsonl"
    stopped.write_text('{"kind": "run"}\n{"kind": "evalu')
    made = page()
    for line in (
        f"abacus/{filled.runs[0].record} is damaged in line 4, and left out",
        f"abacus/{filled.runs[1].record} is missing, and left out",
        f"abacus/{filled.runs[2].record} is damaged (TypeError: test_error is 'many'), and left",
        "abacus/records/random-seed0.jsonl was broken off, and left out",
    ):
        assert line in made.text
    assert drawn(made, "plain training") == ([10, 20], [40, 11])
    assert "3 runs, seeds 1" in made.text


@pytest.mark.parametrize(
    ("summary", "told"),
    [
        ("{", "summary.json is damaged, and left out"),
        ("[]", "summary.json is damaged, and left out"),
        ('{"runs": 3, "environment": {}}', "summary.json is damaged, and left out"),
        ('{"runs": [{"strategy": "sb"}], "environment": {}}', "run 1 of 1 is damaged"),
    ],
)
def test_a_damaged_summary_is_told_beside_a_whole_one(filled, tmp_path, summary, told):
    broken = filled.folder.parent / "broken"
    broken.mkdir()
    (broken / "summary.json").write_text(summary)
    comparisons, problems = read([filled.folder.parent])
    made = Page(render_page(comparisons, problems, [], {}))
    assert f"broken/summary.json{':' if 'run' in told else ''}"[:20] in made.text
    assert told in made.text
    assert "SelectiveLoader(..., keep=0.5) paid" in made.text
    assert str(tmp_path) not in made.text


def test_what_is_no_comparison_is_told(filled, tmp_path):
    (filled.folder.parent / "scores.parquet").write_bytes(b"PAR1")
    (filled.folder.parent / "empty").mkdir()
    comparisons, problems = read(sorted(filled.folder.parent.iterdir()))
    assert len(comparisons) == 1
    assert problems == ["empty holds no summary.json, and is left out"], "scores are no run"
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        read([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=r"holds no summary\.json"):
        read([filled.folder.parent / "empty"])


def test_folders_given_twice_count_once(filled):
    comparisons, problems = read([filled.folder, filled.folder.parent])
    assert (len(comparisons), problems) == (1, [])


def test_raw_numbers_of_folders_of_one_name_are_beside_each_other(filled, tmp_path, monkeypatch):
    monkeypatch.setattr("siftback.lab.report.page.ANALYSES", ["table1"])  # no picture to draw
    folders = [tmp_path / name / "runs" / "compare" for name in ("first", "second")]
    for folder in folders:
        shutil.copytree(filled.folder, folder)
    write_report(folders, tmp_path / "report")
    made = sorted(path.name for path in (tmp_path / "report" / "data").iterdir())
    assert made == [
        f"{name}-runs-compare-{file}"
        for name in ("first", "second")
        for file in ("evaluations.csv", "summary.json")
    ]


def test_the_template_is_part_of_the_wheel(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*build, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    template = ROOT / "src/siftback/lab/report/template"
    shipped = {f"siftback/lab/report/template/{each.name}" for each in template.iterdir()}
    assert len(shipped) == 7
    assert shipped <= inside
