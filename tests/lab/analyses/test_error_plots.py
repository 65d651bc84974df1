"""The picture of a comparison."""

import pytest
from matplotlib import image

from siftback.lab.analyses.error_plots import draw, mean_curve, styles


@pytest.fixture
def filled(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(10, 1, 100, 30), (20 + seed, 2, 200, 10 + 2 * seed)])
        add_run("sb", seed, [(5, 1, 50, 40), (10, 2, 100, 12)], keep=0.5)
        add_run("matched", seed, [(10, 1, 100, 20)], keep=0.5, matched_to="sb")
    return comparison


def test_draws_png_and_svg(filled, tmp_path):
    png, svg = draw(filled, tmp_path / "new" / "folder")
    assert [png.name, svg.name] == ["error.png", "error.svg"]
    pixels = image.imread(png)
    assert pixels.shape[1] > pixels.shape[0] > 500
    assert pixels.std() > 0.05
    assert svg.read_text(encoding="utf-8").startswith("<?xml")


def test_drawn_again_the_bytes_are_the_same(filled, tmp_path):
    first = [path.read_bytes() for path in draw(filled, tmp_path)]
    assert [path.read_bytes() for path in draw(filled, tmp_path)] == first


def test_a_record_changes_the_picture(filled, add_run, tmp_path):
    before = draw(filled, tmp_path)[1].read_bytes()
    add_run("random", 0, [(10, 1, 100, 50)], keep=0.5)
    assert draw(filled, tmp_path)[1].read_bytes() != before


def test_matched_is_dashed_in_the_colour_of_its_partner(filled):
    looks = styles(filled)
    sb, matched = looks["sb 0.5"], looks["matched to sb 0.5"]
    assert matched["color"] == sb["color"] != looks["traditional"]["color"]
    assert (sb["linestyle"], matched["linestyle"]) == ("solid", (0, (3, 1.5)))


def test_many_configurations_stay_apart(comparison, add_run):
    for percent in range(10, 90, 5):
        add_run("sb", 0, [(1, 1, 1, 1)], keep=percent / 100)
    looks = styles(comparison).values()
    assert len({(look["color"], look["marker"]) for look in looks}) == 16


def test_mean_curve(filled):
    seeds = [filled.evaluations(run) for run in filled.by_label()["traditional"]]
    assert mean_curve(seeds, "seconds") == ([10, 20.5], [30, 11])
    # A seed that was stopped early shortens the mean, and does not bend it.
    assert mean_curve([seeds[0], seeds[1][:1]], "cost") == ([100], [30])
    assert mean_curve([[], []], "cost") == ([], [])


def test_a_perfect_test_is_drawn_too(comparison, add_run, tmp_path):
    add_run("sb", 0, [(1, 1, 1, 5), (2, 2, 2, 0)], keep=0.5)
    assert len(draw(comparison, tmp_path)) == 2


def test_nothing_to_draw(comparison, tmp_path):
    assert draw(comparison, tmp_path / "none") == []
