"""Comparisons are told apart by what they differ in, and only those alike are put together."""

from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.titles import group_by_settings, titled
from written_records import add, comparison


def titles(tmp_path, *asked):
    """Those of comparisons in folders of these names, asked this."""
    made = []
    for place, arguments in asked:
        one = comparison(tmp_path / place, **arguments)
        add(one, "traditional", [(1, 1, 1, 9)])
        made.append(one)
    return [title for title, _ in titled(made)]


def test_a_single_one_has_model_data_and_noise(tmp_path):
    alone = [("a", {"flip": 0.1, "train_limit": 500, "batch_size": 32})]
    assert titles(tmp_path, *alone) == ["cnn-8 on digits, 10% of the labels wrong"]


def test_images_come_before_rates_and_batches(tmp_path):
    found = titles(
        tmp_path,
        ("a", {"train_limit": 500, "rate": "step", "batch_size": 32}),
        ("b", {"train_limit": 500, "rate": "step", "batch_size": 64}),
        ("c", {"train_limit": 500, "rate": "constant"}),
        ("d", {"rate": "step"}),
        ("e", {"train_limit": 1500, "rate": "step"}),
    )
    assert found == [
        "cnn-8 on digits (500 images), step rates, batches of 32",
        "cnn-8 on digits (500 images), step rates, batches of 64",
        "cnn-8 on digits (500 images), constant rates",
        "cnn-8 on digits",
        "cnn-8 on digits (1,500 images)",
    ]


def test_what_is_asked_alike_is_told_by_its_folder(tmp_path):
    found = titles(tmp_path, ("a/x", {}), ("a/y", {}), ("b/x", {}), ("c/d/z", {}), ("e/d/z", {}))
    assert found == [
        "cnn-8 on digits (x) in a",
        "cnn-8 on digits (y)",
        "cnn-8 on digits (x) in b",
        "cnn-8 on digits (z) in c/d",
        "cnn-8 on digits (z) in e/d",
    ]


def test_a_frontier_is_of_one_set_of_images(tmp_path):
    made = []
    for place, limit in (("a", 500), ("b", 500), ("c", 1500)):
        one = comparison(tmp_path / place, train_limit=limit)
        add(one, "traditional", [(10, 1, 100, 9)])
        add(one, "sb", [(4, 1, 50, 12)], keep=0.25)
        made.append(one)
    panels = ANALYSES["fig14"](made).views["cost"]
    assert [panel.title for panel in panels] == [
        "cnn-8 on digits (500 images)",
        "cnn-8 on digits (1,500 images)",
    ]
    assert [sum(len(one.y) for one in panel.series) for panel in panels] == [4, 2]


def test_data_sets_of_one_name_are_not_put_together(tmp_path):
    made = []
    for place, examples in (("a", "8 and 2 of crc32 0"), ("b", "8 and 2 of crc32 1"), ("c", None)):
        one = comparison(tmp_path / place / "runs" / "x", examples=examples, budget=2.0)
        add(one, "traditional", [(10, 1, 100, 9)])
        add(one, "sb", [(4, 1, 50, 12)], keep=0.25)
        made.append(one)
    assert group_by_settings(made, "budget") == [[made[0], made[2]], [made[1]]]
    assert group_by_settings(made, "budget", "examples") == [made]
    panels = ANALYSES["fig14"](made).views["cost"]
    assert [panel.title for panel in panels] == ["cnn-8 on digits", "cnn-8 on digits (2)"]
    assert [sum(len(one.y) for one in panel.series) for panel in panels] == [4, 2]


def test_a_machine_that_ran_no_traditional_is_none_to_tell_apart(tmp_path):
    whole, other = comparison(tmp_path / "a"), comparison(tmp_path / "b")
    phases = {"forward": 1.0, "backward": 2.0}
    add(whole, "traditional", [(9, 100, 3, 1)], seconds_by_phase=phases)
    add(other, "sb", [(9, 100, 3, 1)], keep=0.5, seconds_by_phase=phases)
    other.environment["cpu"] = "Slide rule"
    (panel,) = ANALYSES["fig18"]([whole, other]).views["time"]
    assert panel.series[0].x == ["cnn-8 on digits (a)"]


def test_a_record_of_before_a_setting_is_of_its_default(tmp_path):
    asked = ({}, {"rare": 1}, {"rare": 30}, {"budget": 2.0}, {"rare": 1, "budget": 4.0})
    made = [comparison(tmp_path / f"{number}", **some) for number, some in enumerate(asked)]
    groups = [[made.index(one) for one in group] for group in group_by_settings(made, "budget")]
    assert groups == [[0, 1, 3, 4], [2]]


def test_a_record_of_before_examples_were_described_belongs_to_those_after_it(tmp_path):
    asked = ({}, {"examples": "9 and 3 of crc32 00000000"})
    made = [comparison(tmp_path / f"{number}", **some) for number, some in enumerate(asked)]
    assert group_by_settings(made) == [made]
