"""The picture of a comparison."""

import pytest
from matplotlib import image

from siftback.lab.figures.curves import mean_curves
from siftback.lab.figures.error_plots import draw_errors, error_figure, error_over_cost
from siftback.lab.figures.styles import assign_styles
from siftback.lab.records.frame import read_evaluations

SB = "SelectiveLoader(..., keep=0.5)"


@pytest.fixture
def filled(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(10, 1, 100, 30), (20 + seed, 2, 200, 10 + 2 * seed)])
        add_run("sb", seed, [(5, 1, 50, 40), (10, 2, 100, 12)], keep=0.5)
        add_run("matched", seed, [(10, 1, 100, 20)], keep=0.5, matched_to="sb")
    return comparison


def test_draws_png_and_svg(filled, tmp_path):
    png, svg = draw_errors(filled, tmp_path / "new" / "folder")
    assert [png.name, svg.name] == ["error.png", "error.svg"]
    pixels = image.imread(png)
    assert pixels.shape[1] > pixels.shape[0] > 500
    assert pixels.std() > 0.05
    assert svg.read_text(encoding="utf-8").startswith("<?xml")


def test_drawn_again_the_bytes_are_the_same(filled, tmp_path):
    first = [path.read_bytes() for path in draw_errors(filled, tmp_path)]
    assert [path.read_bytes() for path in draw_errors(filled, tmp_path)] == first


def test_a_record_changes_the_picture(filled, add_run, tmp_path):
    before = draw_errors(filled, tmp_path)[1].read_bytes()
    add_run("random", 0, [(10, 1, 100, 50)], keep=0.5)
    assert draw_errors(filled, tmp_path)[1].read_bytes() != before


def styles_of(comparison):
    """The styles of a picture's lines, by the configuration that each begins with."""
    styles = assign_styles(error_figure(comparison).keys)
    return {label.partition(":")[0]: style for (_, label), style in styles.items()}


def test_matched_is_dashed_in_the_colour_of_its_partner(filled):
    found = styles_of(filled)
    sb, matched = found[SB], found[f"matched to {SB}"]
    assert matched.colour == sb.colour != found["plain training"].colour == "#000000"
    assert (sb.dash, matched.dash) == ("solid", "dash")


def test_many_configurations_stay_apart(comparison, add_run):
    for percent in range(10, 90, 5):
        add_run("sb", 0, [(1, 1, 1, 1)], keep=percent / 100)
    found = styles_of(comparison).values()
    assert len({(style.colour, style.marker) for style in found}) == 16


def test_a_curve_is_the_mean_of_the_seeds_between_their_ends(filled):
    tests = read_evaluations(filled)
    (line, *_) = mean_curves(tests, "seconds")
    assert (line.label, line.x, line.y) == ("plain training", [10, 20.5], [30, 11])
    assert (line.low, line.high) == ([30, 10], [30, 12])
    # A seed that was stopped early shortens the mean, and does not bend it.
    stopped = (tests.label == "traditional") & (tests.seed == 1) & (tests.number > 0)
    (short, *_) = mean_curves(tests[~stopped], "cost")
    assert (short.x, short.y) == ([100], [30])
    assert mean_curves(tests[:0], "cost") == []


def test_traditional_s_end_is_a_line_across(filled):
    for panel in error_figure(filled).views["all"]:
        end = panel.series[-1]
        assert (end.y, end.x[0]) == ([11, 11], 0)


def test_traditional_s_cost_is_a_line_upwards_over_cost_alone(filled):
    over_time, over_steps, over_cost = error_figure(filled).views["all"]
    (line,) = [one for one in over_cost.series if one.label == "budget of plain training"]
    assert list(line.x) == [200, 200]
    assert line.y == [10, 40]  # from the least of all, bands too, to the most
    labels = [one.label for panel in (over_time, over_steps) for one in panel.series]
    assert "budget of plain training" not in labels


def test_curves_of_a_loop_of_one_s_own_are_drawn_up_to_the_budget():
    curves = {
        "traditional": [[(30, 20.0), (60, 8.0)], [(30, 24.0), (60, 10.0)]],
        "memory": [[(20, 22.0), (40, 12.0), (58, 6.0)], [(20, 22.0), (40, 10.0), (58, 8.0)]],
    }
    (panel,) = error_over_cost("a net on digits", curves, budget=60).views["cost"]
    plain, memory, line = panel.series
    assert (plain.label, plain.group) == ("plain training", "traditional")
    assert (plain.x, plain.y) == ([30, 60], [22, 9])
    assert (memory.y, memory.low, memory.high) == ([22, 11, 7], [22, 10, 6], [22, 12, 8])
    assert (line.label, list(line.x), line.y) == ("budget", [60, 60], [6, 24])
    assert panel.log_y
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        error_over_cost("uneven", {"memory": [[(1, 2.0), (2, 1.0)], [(1, 2.0)]]}, budget=2)


def test_a_perfect_test_is_drawn_too(comparison, add_run, tmp_path):
    add_run("sb", 0, [(1, 1, 1, 5), (2, 2, 2, 0)], keep=0.5)
    assert len(draw_errors(comparison, tmp_path)) == 2


def test_nothing_to_draw(comparison, tmp_path):
    assert draw_errors(comparison, tmp_path / "none") == []
