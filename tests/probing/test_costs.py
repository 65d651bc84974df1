"""Speed-ups against counting seconds batch by batch; break-evens against trying every share."""

from dataclasses import replace

import pytest

from siftback import Epochs, Memory, Schedule
from siftback.probing.costs import Seconds, break_even, cost_rows, strategy_costs

PARTS = Seconds(
    loading=0.7,
    forward=2.0,
    backward=3.5,
    optimizer=0.4,
    choosing=0.3,
    choosing_uniformly=0.1,
    drawing=0.05,
    recording=0.2,
    scores={"sb": 1.8, "sb-half": 0.9},
    refreshes={"sb-half": 0.2},
    single_pass={1 / 2: 4.0, 1 / 4: 3.2},
)
BATCHES = 1200


def counted(strategy, keep, parts):
    """Seconds of an epoch, one batch after the other, an epoch in three for stale-sb."""
    loading = computing = 0.0
    training = parts.forward + parts.backward + parts.optimizer
    for batch in range(BATCHES):
        kept, name = keep, strategy
        if strategy == "stale-sb":  # batches here stand for epochs
            name = "sb" if batch % 3 == 0 else "sb-memory"
        chosen_unread = name == "sb-memory" and parts.reads_chosen_only
        loading += parts.loading * (kept if chosen_unread else 1)
        if name == "traditional":
            kept = 1
        if name in parts.scores:
            computing += parts.scores[name] + parts.choosing
            computing += kept * parts.refreshes.get(name, 0.0)
            if strategy == "stale-sb":
                computing += parts.recording
        if name == "random":
            computing += parts.choosing_uniformly
        if name == "sb-memory":
            computing += parts.drawing + kept * parts.recording
        if name == "sb-single-pass":
            computing += parts.single_pass[keep] + kept * parts.optimizer
        else:
            computing += kept * training
    return loading, computing


STRATEGIES = ["traditional", "sb", "sb-half", "stale-sb", "sb-memory", "random", "sb-single-pass"]


@pytest.mark.parametrize("keep", [1 / 2, 1 / 4])
@pytest.mark.parametrize("reads_chosen_only", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_seconds_and_speed_ups_are_those_of_counting(strategy, reads_chosen_only, keep):
    parts = replace(PARTS, reads_chosen_only=reads_chosen_only)
    found = {(row.strategy, row.keep): row for row in cost_rows(parts, [1 / 2, 1 / 4])}
    row = found[strategy, 1.0 if strategy == "traditional" else keep]
    took = sum(counted(strategy, keep, parts))
    assert row.seconds == pytest.approx(took / BATCHES)
    assert row.measured == pytest.approx(sum(counted("traditional", 1, parts)) / took)


@pytest.mark.parametrize("epochs", [1, 4, 20])
def test_a_training_has_the_epochs_on_everything_that_it_begins_with(epochs):
    schedules = {
        "sb-memory": Memory(1 / 2).schedule,
        "traditional": Schedule(warmup=Epochs(epochs)),
    }
    for row in cost_rows(PARTS, [1 / 2], epochs):
        schedule = schedules.get(row.strategy, Schedule(warmup=Epochs(1)))
        on = [schedule.is_on(epoch, epochs) for epoch in range(epochs)]
        plain = sum(counted("traditional", 1, PARTS))
        took = sum(sum(counted(row.strategy, row.keep, PARTS)) if each else plain for each in on)
        assert row.training == pytest.approx(epochs * plain / took)


@pytest.mark.parametrize("strategy", ["traditional", "sb", "random", "sb-memory", "sb-single-pass"])
@pytest.mark.parametrize("loading", [0.7, 3.0, 30.0])
def test_loading_ahead_hides_the_shorter_of_loading_and_computing(strategy, loading):
    parts = replace(PARTS, loading=loading, loads_ahead=True)
    row = next(row for row in cost_rows(parts, [1 / 2]) if row.strategy == strategy)
    assert row.seconds == pytest.approx(max(counted(strategy, 1 / 2, parts)) / BATCHES)


def test_where_loading_bounds_all_only_what_is_not_read_saves():
    table = cost_rows(replace(PARTS, loading=30.0, loads_ahead=True), [1 / 2])
    found = {row.strategy: row for row in table}
    assert found["sb"].measured == found["random"].measured == 1
    assert found["sb"].break_even is None
    assert found["sb-memory"].measured == pytest.approx(2)
    assert found["stale-sb"].measured == pytest.approx(1.5)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_it_pays_below_the_break_even_share_and_not_above(strategy):
    (cost, _), base = strategy_costs(PARTS)[strategy], PARTS.loading + PARTS.training
    even = next(row.break_even for row in cost_rows(PARTS, [0.5]) if row.strategy == strategy)
    shares = [share / 1000 for share in range(1, 1001) if abs(share / 1000 - even) > 1e-4]
    assert all((cost(share) < base) == (share < even) for share in shares)


def test_a_forward_as_expensive_as_a_step_never_pays():
    assert break_even(lambda keep: 5.0 + keep, 5.0) is None


def test_the_ideal_is_the_papers_where_a_backward_costs_two_forwards():
    parts = Seconds(0.7, 1.0, 2.0, 0.4, 0.3, 0.1, 0.1, 0.1, {"sb": 0.9}, {}, {1 / 3: 2.0})
    ideal = {row.strategy: row.ideal for row in cost_rows(parts, [1 / 3])}
    assert ideal["sb"] == pytest.approx(3 / (1 + 3 / 3))
    assert ideal["stale-sb"] == pytest.approx(3 / (1 / 3 + 3 / 3))
    assert ideal["sb-memory"] == ideal["random"] == pytest.approx(3)
    assert ideal["sb-single-pass"] == pytest.approx(3 / (1 + 2 / 3))


def test_a_cheap_scorers_ideal_counts_its_measured_price():
    ideal = {row.strategy: row.ideal for row in cost_rows(PARTS, [1 / 2])}
    assert ideal["sb-half"] == pytest.approx(1 / (PARTS.forward_share / 2 + 1 / 2))


def test_one_measured_single_pass_is_continued_by_the_backwards_seconds():
    parts = replace(PARTS, single_pass={1 / 2: 4.0})
    cost, _ = strategy_costs(parts)["sb-single-pass"]
    assert cost(1 / 4) == pytest.approx(0.7 + 4.0 - 3.5 / 4 + 0.4 / 4)
