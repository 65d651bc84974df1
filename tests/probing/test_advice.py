"""Recommendations follow from given seconds."""

from dataclasses import replace

import pytest

from siftback.probing.advice import CAVEAT, Advice, Bound, advice_details, advice_line, advise
from siftback.probing.agreement import Agreement
from siftback.probing.costs import Seconds, cost_rows

MEMORY_CALL = "Write SelectiveLoader(loader, memory=Memory(keep=0.33))"
SB_CALL = "SelectiveLoader(loader, model, loss_fn, keep=0.33)"
SINGLE_PASS_CALL = "SinglePass(model, loss_fn, keep=0.33, steps_per_epoch=len(loader))"
KEEPS = [1 / 2, 1 / 3, 1 / 4]
PARTS = Seconds(
    loading=0.2,
    forward=1.0,
    backward=2.0,
    optimizer=0.1,
    choosing=0.02,
    choosing_uniformly=0.01,
    drawing=0.01,
    recording=0.02,
    scores={"sb": 0.9},
    refreshes={},
    single_pass={},
)


class Found:
    """The advice from some seconds, and what it says."""

    def __init__(self, parts, agreement=None):
        table = cost_rows(parts, KEEPS)
        self.advice = advise(parts, table, agreement or {}, KEEPS)
        self.line = advice_line(self.advice, parts, table)
        self.text = " ".join(advice_details(self.advice, parts, table, seconds_compiling=4.25))
        self.memory = next(r for r in table if (r.strategy, r.keep) == ("sb-memory", 1 / 3))


@pytest.mark.parametrize(
    ("bound_by", "changes", "reason"),
    [
        ("optimizer", {"optimizer": 4.0}, "the optimizer takes 57% of a training step"),
        ("overhead", {"choosing": 1.0, "recording": 8.0}, "choosing alone takes 1e+03 ms"),
        (
            "loading",
            {"loading": 4.0, "reads_chosen_only": False},
            "loading takes 4e+03 ms per batch",
        ),
        (
            "forward",
            {"scores": {"sb": 2.4}, "reads_chosen_only": False},
            "the forward is too expensive",
        ),
    ],
)
def test_selection_is_refused_where_something_else_bounds_training(bound_by, changes, reason):
    found = Found(replace(PARTS, **changes))
    assert found.advice == Advice(None, 1 / 3, Bound(bound_by), None)
    assert found.line.startswith("Selection does not pay here: ")
    assert found.text.startswith("Do not use selection here: ")
    assert reason in found.text


def test_where_loading_bounds_training_choosing_before_reading_comes_first():
    found = Found(replace(PARTS, loading=4.0))
    assert found.advice == Advice("sb-memory", 1 / 3, Bound.LOADING, None)
    saved = 1 - 1 / found.memory.measured
    assert found.line == (
        f"{MEMORY_CALL}: a pass takes {saved:.0%} less time. Ask for fewer epochs, and compare."
    )
    assert found.text.startswith("It chooses before reading")
    assert "Do not use a scoring pass here: loading takes 4e+03 ms per batch" in found.text


def test_a_forward_too_expensive_rules_out_scoring_passes():
    found = Found(replace(PARTS, scores={"sb": 2.4}))
    assert found.advice == Advice("sb-memory", 1 / 3, Bound.FORWARD, None)
    assert found.line.startswith(MEMORY_CALL)
    assert "Do not use a scoring pass here: the forward is too expensive." in found.text
    assert "it pays below keep 0.22" in found.text  # (3.1 - 2.4 - 0.02) / 3.1


def test_a_selection_by_scores_that_takes_long_rules_out_scoring_passes_alone():
    found = Found(replace(PARTS, choosing=1.0))
    assert found.advice == Advice("sb-memory", 1 / 3, Bound.OVERHEAD, None)
    assert found.line.startswith(MEMORY_CALL)
    assert "Do not use a scoring pass here: the model is so small" in found.text


def test_a_forward_more_expensive_than_a_step_pays_at_no_keep():
    assert "it pays at no keep" in Found(replace(PARTS, scores={"sb": 3.2})).text


def test_choosing_before_reading_comes_first_and_the_fastest_scores_after():
    found = Found(PARTS)
    assert found.advice == Advice("sb-memory", 1 / 3, None, "sb")
    assert found.line.startswith(MEMORY_CALL)
    assert f"To score every batch, use {SB_CALL}, the fastest" in found.text
    single = Found(replace(PARTS, single_pass={1 / 2: 2.0, 1 / 3: 1.7, 1 / 4: 1.5}))
    assert single.advice.alternative == "sb-single-pass"
    assert f"To score every batch, use {SINGLE_PASS_CALL}, the fastest" in single.text
    assert "A single pass traces the model once, which took 4.2 s." in single.text
    assert "traces" not in found.text


def test_where_everything_is_read_scores_come_first_and_the_text_says_what_would_save_reading():
    found = Found(replace(PARTS, reads_chosen_only=False))
    assert found.advice == Advice("sb", 1 / 3, None, "sb")
    assert found.line.startswith(f"Write {SB_CALL}: it")
    assert found.text.startswith(f"Try {SB_CALL}, the fastest")
    assert "Over a map-style data set, Memory() would choose before reading" in found.text


@pytest.mark.parametrize(("correlation", "best"), [(0.95, "sb-cheap"), (0.5, "sb"), (None, "sb")])
def test_cheap_scores_count_only_where_they_agree_with_the_exact_ones(correlation, best):
    parts = replace(PARTS, scores={"sb": 0.9, "sb-cheap": 0.1})
    found = Found(parts, {"sb-cheap": Agreement(100, correlation, ())})
    assert found.advice.alternative == best


def test_each_says_that_speed_per_epoch_is_not_accuracy_per_second():
    for parts in (
        PARTS,
        replace(PARTS, loading=9.0),
        replace(PARTS, loading=9.0, reads_chosen_only=False),
        replace(PARTS, scores={"sb": 3.0}),
    ):
        assert Found(parts).text.endswith(CAVEAT)


def test_the_line_names_the_call_of_each_strategy():
    single = Found(
        replace(PARTS, single_pass={1 / 2: 2.0, 1 / 3: 1.7, 1 / 4: 1.5}, reads_chosen_only=False)
    )
    assert single.line.startswith(f"Write {SINGLE_PASS_CALL}: it saves ")
    cheap = replace(PARTS, scores={"sb": 0.9, "sb-cheap": 0.1}, reads_chosen_only=False)
    by_scorer = Found(cheap, {"sb-cheap": Agreement(100, 0.95, ())})
    assert "keep=0.33, scorer=cheap): it saves " in by_scorer.line
