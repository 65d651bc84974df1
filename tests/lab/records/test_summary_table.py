"""The table in the terminal and in Markdown."""
# ruff: noqa: RUF001 - × and – are meant.

from dataclasses import replace

import pytest
from rich.console import Console

from siftback.lab.experiments.summary_table import comparison_table, measured, rows
from siftback.lab.records.formatting import readable
from siftback.lab.records.tables import markdown


@pytest.fixture
def filled(comparison, add_run):
    for seed in (0, 1):
        add_run("traditional", seed, [(900.5, 30_000, 1.5e8, 12), (1800, 39_060, 1.5e8, 10 + seed)])
        add_run("sb", seed, [(600, 7000, 4e7, 11), (1200, 13_020, 1e8, 12)], keep=1 / 3)
        add_run("matched", seed, [(1200, 26_040, 1e8, 12.25)], keep=1 / 3, matched_to="sb")
    return comparison


def printed(comparison, width):
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(comparison_table(comparison))
    return capture.get()


def test_a_row_a_configuration_with_seeds_together(filled):
    traditional, sb, matched = rows(filled)
    assert traditional["final error %"] == "10.50 ± 0.71"
    assert matched["strategy"] == "matched to SelectiveLoader(..., keep=0.33)"
    assert sb == {
        "strategy": "SelectiveLoader(..., keep=0.33)",
        "final error %": "12.00 ± 0.00",
        "best error %": "11.00 ± 0.00",
        "kept": "0.333",
        "examples forwarded": "1.5 k",
        "examples backpropagated": "500",
        "steps": "13020",
        "seconds of training": "1200",
        "cost in forwards": "100 M",
        # x1.1: seed 0 at 11 % half way from 900.5 to 1800 s, seed 1 after 900.5 s, sb after 600 s.
        "speed-up to ×1.1": "1.88",
        "speed-up to ×1.2": "1.50",  # both at 12 % after 900.5 s against 600 s
        "speed-up to ×1.4": "1.50",
    }


def test_speedups_are_shown_or_left_out(filled):
    assert rows(filled)[2]["speed-up to ×1.1"] == "–"
    filled.runs[:] = [run for run in filled.runs if run.strategy != "traditional"]
    assert not any("speed-up" in name for name in rows(filled)[0])


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_number_is_cut(filled, width):
    text = printed(filled, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "worst class" not in text  # which older records do not have
    table = rows(filled)
    for row, line in zip(table, text.splitlines()[3:], strict=False):  # none takes two lines
        shown = ("strategy", "final error %", "kept", "seconds of training", "cost in forwards")
        assert line.split() == " ".join(row[name] for name in shown).split()


def test_the_error_of_the_worst_class_is_a_column_where_it_is_recorded(filled):
    filled.runs[:] = [replace(run, test_error_worst=20.0 + run.seed) for run in filled.runs]
    assert rows(filled)[0]["worst class, error %"] == "20.50 ± 0.71"
    assert "20.50 ± 0.71" in printed(filled, 80)
    assert "highest error of a class" in " ".join(printed(filled, 80).split())


def test_long_names_go_to_a_second_line_and_numbers_never(comparison, add_run):
    add_run("sb", 0, [(600, 7000, 4e7, 11)], keep=1 / 3)
    guarded = "sb-memory-guarded"
    add_run("matched", 0, [(1200, 26_040, 1e8, 12.25)], keep=1 / 3, matched_to=guarded)
    text = printed(comparison, 68)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 68
    numbers = ["12.25", "0.333", "1200", "100", "M"]
    assert any(line.split()[-5:] == numbers for line in text.splitlines())


def test_plain_text_outside_of_a_terminal(filled):
    assert "\x1b" not in printed(filled, 80)


def test_no_run_yet(comparison):
    assert "No run has finished" in printed(comparison, 80)
    assert rows(comparison) == []


def test_markdown_has_the_same_rows(filled):
    head, rule, *body = markdown(rows(filled)).splitlines()
    assert head.startswith("| strategy | final error % |")
    assert rule.count("-:") == 11
    assert [line.split(" | ")[1] for line in body] == [row["final error %"] for row in rows(filled)]


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (999.4, "999"), (999.5, "1 k"), (1e15, "1e+03 T"), (150e6, "150 M")],
)
def test_readable(amount, text):
    assert readable(amount) == text


def test_ratios_that_do_not_fit_side_by_side_are_rows():
    ratio = {"goal": "at most 1", "met": True}
    many = [
        ratio | {"setting": setting, "what": f"method {number}", "measured": number / 4}
        for setting in ("fp32", "bf16")
        for number in range(20)
        if (setting, number) != ("bf16", 19)
    ]
    table = measured(many)
    assert len(table) == 20
    assert table[3] == {"ratio": "method 3 (at most 1)", "fp32": "0.75", "bf16": "0.75"}
    assert table[19] == {"ratio": "method 19 (at most 1)", "fp32": "4.75", "bf16": ""}


def test_ratios_stay_side_by_side_where_the_settings_are_more_still():
    ratio = {"what": "over plain", "goal": None, "met": None, "measured": 1.5}
    many = [
        ratio | {"setting": f"setting {place}", "what": f"method {number}"}
        for place in range(20)
        for number in range(20)
    ]
    table = measured(many)
    assert len(table) == 20
    assert table[3]["setting"] == "setting 3"
