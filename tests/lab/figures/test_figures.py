"""Analyses as files."""

import csv
import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from matplotlib import image

from siftback import cli
from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.figure import (
    Figure,
    Gallery,
    Grid,
    Missing,
    Panel,
    Picture,
    Series,
)
from siftback.lab.figures.styles import assign_styles
from siftback.lab.figures.writing import export_csv, write_analysis
from siftback.lab.records.frame import Range
from written_records import add, comparison

FOUND = ["cnn on digits: an epoch of sb takes 0.50 of plain training's."]
LINES = [Series("a", [1, 2], [3, 4], [2, 3], [4, 5], "sb"), Series("b", [1, 2], [1, float("nan")])]
NAMED = [Series("a", ["x", "y"], [3, 4], group="sb"), Series("b", ["x"], [1.0], [0.5], [2.0])]


def figure(*panels, **views):
    return Figure("fig0", "A title", FOUND, "A paper", {"one": panels} | views)


def panel(kind, series, **more):
    return Panel("Of a panel", "x", "y", kind, series, **more)


@pytest.mark.parametrize(
    "drawn",
    [
        panel("line", LINES),
        panel("line", LINES, log_y=True),
        panel("points", LINES, log_x=True),
        panel("points", NAMED),
        panel("bars", NAMED),
        panel("stacked", NAMED),
    ],
    ids=lambda one: f"{one.kind}-{one.log_x}-{one.log_y}-{one.series is NAMED}",
)
def test_every_kind_of_panel_is_drawn_the_same_again(drawn, tmp_path):
    paths = write_analysis(figure(drawn), tmp_path)
    assert [path.name for path in paths] == ["fig0.png", "fig0.svg", "fig0.csv"]
    pixels = image.imread(paths[0])
    assert pixels.std() > 0.05
    before = paths[1].read_bytes()
    assert write_analysis(figure(drawn), tmp_path)[1].read_bytes() == before
    changed = panel(drawn.kind, drawn.series[:1], log_x=drawn.log_x, log_y=drawn.log_y)
    assert write_analysis(figure(changed), tmp_path)[1].read_bytes() != before


def test_each_view_is_a_picture(tmp_path):
    many = [panel("line", LINES)] * 4
    found = write_analysis(figure(panel("line", LINES), **{"10% of it": many}), tmp_path)
    names = {path.name for path in found}
    assert names == {"fig0.png", "fig0.svg", "fig0-10-of-it.png", "fig0-10-of-it.svg", "fig0.csv"}
    heights = [image.imread(tmp_path / f"fig0{view}.png").shape[0] for view in ("", "-10-of-it")]
    assert heights[1] > 1.5 * heights[0]  # two rows


def test_numbers_of_a_figure():
    lines = list(csv.DictReader(StringIO(export_csv(figure(panel("line", LINES))))))
    assert len(lines) == 4
    assert lines[0] == {
        "view": "one", "panel": "Of a panel", "group": "sb", "series": "a", "x": "1", "y": "3",
        "low": "2", "high": "4",
    }  # fmt: skip
    assert (lines[2]["low"], lines[3]["y"]) == ("", "nan")


def test_a_table_is_written_for_readers_and_for_programs(tmp_path):
    rows = [["sb", Range(1.5, 1.0, 2.0), None], ["random", None, 0.25]]
    grid = Grid("table0", "A title", FOUND, "A paper", ["strategy", "speed", "share"], rows)
    page, numbers = write_analysis(grid, tmp_path)
    assert "| sb | 1.50 (1.00 to 2.00) | – |" in page.read_text()  # noqa: RUF001
    assert "an epoch of sb takes 0.50" in page.read_text()
    assert numbers.read_text().splitlines() == [
        "strategy,speed,speed (least),speed (most),share",
        "sb,1.5,1.0,2.0,",
        "random,,,,0.25",
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_gallery(channels, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, channels), np.uint8)
    pictures = [
        Picture(one, str(place), f"loss {place}", "least" if place < 11 else "most")
        for place, one in enumerate(pixels)
    ]
    gallery = Gallery("fig0", "A title", FOUND, "A paper", pictures)
    png, svg, numbers = write_analysis(gallery, tmp_path)
    assert image.imread(png).std() > 0.05
    assert svg.read_text().startswith("<?xml")
    assert numbers.read_text().splitlines()[12] == "most,11,loss 11"


def test_what_is_missing_is_no_file(tmp_path):
    assert write_analysis(Missing("fig0", "A title", "Record it."), tmp_path / "new") == []
    assert not (tmp_path / "new").exists()


def test_what_is_made_of_a_comparison_can_be_written(tmp_path):
    made = comparison(tmp_path / "abacus")
    for seed in (0, 1):
        points = [(5, 1, 150, 30 + seed), (10, 2, 300, 10)]
        phases = {"forward": 3.0, "backward": 7.0}
        each = [{"phases": phases, "agreement": 0.5}] * 2
        add(made, "traditional", points, seed, each=each, seconds_by_phase=phases)
        for strategy, keep in (("sb", 0.5), ("sb", 0.25), ("stale-sb-2", 0.5), ("diet-sb", 0.5)):
            add(made, strategy, points, seed, keep=keep, each=each)
    found = {name: analysis([made]) for name, analysis in ANALYSES.items()}
    made_of = {name: one for name, one in found.items() if not isinstance(one, Missing)}
    assert len(made_of) >= 12
    assert all(export_csv(one).count("\n") > 1 for one in made_of.values())
    for name in ("fig1", "fig14"):  # of kinds that are not drawn above
        first = dict([next(iter(made_of[name].views.items()))])
        assert len(write_analysis(replace(made_of[name], views=first), tmp_path)) == 3


def test_the_command_tells_what_it_made_what_is_missing_and_what_is_damaged(
    tmp_path, monkeypatch, capsys
):
    made = comparison(tmp_path / "runs" / "abacus")
    add(made, "traditional", [(9, 1, 300, 10)])
    gone = add(made, "sb", [(9, 1, 300, 12)], keep=0.5)
    (made.folder / gone.record).unlink()
    out = tmp_path / "out"
    arguments = [str(tmp_path / "runs"), "--out", str(out), "--only", "fig9,diet-a,fig7"]
    monkeypatch.setattr(sys, "argv", ["siftback", "figures", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    printed, told = capsys.readouterr()
    assert told == f"abacus/{gone.record} is missing, and left out\n"
    missing, other, written = printed.splitlines()
    assert missing.startswith("fig9: missing. No confidence was observed. Record it: siftback")
    assert other.startswith("diet-a: missing. No run of random that is judged by")
    assert written.startswith("fig7: fig7.png, fig7.svg, fig7-steps.png, ")
    assert written.endswith("cnn-8 on digits: plain training ends at 10.00 %.")
    assert (out / "fig7.csv").exists()


def test_strategies_keep_their_colours():
    def colours(*names):
        return {
            name: style.colour
            for (name, _), style in assign_styles(zip(names, names, strict=True)).items()
        }

    some = colours("traditional", "sb", "topk")
    more = colours("sb", "infobatch", "traditional", "topk", "ucb")
    assert some["sb"] == more["sb"]
    assert some["traditional"] == more["traditional"] == "#000000"
    assert len(set(more.values())) == len(more)


def test_no_two_series_of_a_figure_look_alike():
    keys = [(f"group {number % 12}", f"label {number}") for number in range(24)]
    styles = assign_styles([("traditional", "traditional"), *keys])
    assert len({(style.colour, style.dash, style.marker) for style in styles.values()}) == 25
