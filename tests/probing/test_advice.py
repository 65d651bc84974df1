"""What is recommended, from seconds that are given."""

from dataclasses import replace

import pytest

from siftback.probing.advice import CAVEAT, advise
from siftback.probing.agreement import Agreement
from siftback.probing.costs import Seconds, rows

KEEPS = [1 / 2, 1 / 3, 1 / 4]
PARTS = Seconds(
    loading=0.2,
    forward=1.0,
    backward=2.0,
    optimizer=0.1,
    choosing=0.02,
    drawing=0.01,
    scores={"sb": 0.9},
    refreshes={},
    single_pass={},
)


def advice(parts, agreement=None):
    return advise(parts, rows(parts, KEEPS), agreement or {}, KEEPS)


@pytest.mark.parametrize(
    ("bound_by", "changes", "reason"),
    [
        ("loading", {"loading": 4.0}, "loading takes 4e+03 ms a batch"),
        ("optimizer", {"optimizer": 4.0}, "the optimizer takes 57% of a training step"),
        ("overhead", {"choosing": 1.0}, "choosing alone takes 1e+03 ms"),
    ],
)
def test_selection_is_refused_where_something_else_bounds_training(bound_by, changes, reason):
    found = advice(replace(PARTS, **changes))
    assert (found.strategy, found.bound_by) == (None, bound_by)
    assert found.text.startswith("Do not use selection here: ")
    assert reason in found.text


def test_a_loading_bound_model_is_told_what_would_save_loading():
    parts = replace(PARTS, loading=4.0)
    memory = next(r for r in rows(parts, KEEPS) if (r.strategy, r.keep) == ("sb-memory", 1 / 3))
    assert f"an epoch {memory.measured:.2f} (sb-memory)" in advice(parts).text


def test_a_forward_too_dear_rules_out_selection_passes():
    found = advice(replace(PARTS, scores={"sb": 2.4}))
    assert (found.strategy, found.bound_by) == ("sb-memory", "forward")
    assert found.text.startswith("Do not use a selection pass here: the forward is too dear.")
    assert "it pays below keep 0.22" in found.text  # (3.1 - 2.4 - 0.02) / 3.1


def test_a_forward_dearer_than_a_step_pays_at_no_keep():
    assert "it pays at no keep" in advice(replace(PARTS, scores={"sb": 3.2})).text


def test_scores_that_are_free_come_first_and_the_fastest_others_after():
    found = advice(PARTS)
    assert (found.strategy, found.keep, found.bound_by) == ("sb-memory", 1 / 3, None)
    assert "Where examples have no index, sb is the fastest" in found.text
    single = advice(replace(PARTS, single_pass={1 / 2: 2.0, 1 / 3: 1.7, 1 / 4: 1.5}))
    assert "no index, sb-single-pass is the fastest" in single.text


@pytest.mark.parametrize(("correlation", "best"), [(0.95, "sb-cheap"), (0.5, "sb"), (None, "sb")])
def test_cheap_scores_count_only_where_they_agree_with_the_exact_ones(correlation, best):
    parts = replace(PARTS, scores={"sb": 0.9, "sb-cheap": 0.1})
    found = advice(parts, {"sb-cheap": Agreement(100, correlation, ())})
    assert f"no index, {best} is the fastest" in found.text


def test_each_says_that_speed_per_epoch_is_not_accuracy_per_second():
    for parts in (PARTS, replace(PARTS, loading=9.0), replace(PARTS, scores={"sb": 3.0})):
        assert advice(parts).text.endswith(CAVEAT)
