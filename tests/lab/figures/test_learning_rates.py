"""The table of learning rates, against its definition."""

import pytest

from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.figure import Grid, Missing
from written_records import add, comparison

# By rate the errors of two seeds.
PLAIN = {0.05: (9.0, 8.0), 0.1: (7.0, 8.0), 0.2: (7.5, 8.5)}
MEMORY = {0.05: (8.5, 8.5), 0.1: (7.5, 7.5), 0.2: (6.0, 7.0)}


def recorded(folder, rate, **arguments):
    one = comparison(folder, lr=rate, **{"budget": 4.0, "validation": 100} | arguments)
    for seed in (0, 1):
        add(one, "traditional", [(1.0, 10, 100.0, PLAIN[rate][seed])], seed=seed)
        add(one, "sb-memory", [(1.0, 10, 100.0, MEMORY[rate][seed])], seed=seed, keep=0.5)
    return one


@pytest.fixture
def comparisons(tmp_path):
    return [recorded(tmp_path / f"{rate:g}", rate) for rate in (0.2, 0.05, 0.1)]


def test_each_method_has_its_rates_in_order_and_its_own_lowest(comparisons):
    made = ANALYSES["rates"](comparisons)
    assert isinstance(made, Grid)
    plain, memory = made.rows
    rates = "0.05: 8.50 ± 0.71; 0.1: 7.50 ± 0.71; 0.2: 8.00 ± 0.71"
    assert plain == ["cnn-8 on digits, 4 epochs", "plain training", "2", rates, "0.1"]
    assert memory[1:] == ["Memory(keep=0.5)", "2", "0.05: 8.50 ± 0.00; 0.1: 7.50 ± 0.00; "
                          "0.2: 6.50 ± 0.71", "0.2"]  # fmt: skip
    assert made.sentence == (
        "cnn-8 on digits, 4 epochs, each at its own best rate: Memory(keep=0.5) at 0.2 ends at "
        "6.50 %, plain training at 7.50 %."
    )


def test_rates_are_compared_over_the_seeds_that_all_have(comparisons):
    one = comparisons[0]
    one.runs[:] = [run for run in one.runs if (run.strategy, run.seed) != ("traditional", 0)]
    plain, memory = ANALYSES["rates"](comparisons).rows
    assert plain[2:] == ["1", "0.05: 8.00; 0.1: 8.00; 0.2: 8.50", "0.05"]
    assert memory[2] == "2"


def test_what_differs_in_more_than_the_rate_stays_apart(comparisons, tmp_path):
    longer = [recorded(tmp_path / f"long-{rate:g}", rate, budget=8.0) for rate in (0.05, 0.1)]
    tested = [recorded(tmp_path / f"test-{rate:g}", rate, validation=None) for rate in PLAIN]
    alone = recorded(tmp_path / "alone", 0.1, batch_size=64)
    made = ANALYSES["rates"]([*comparisons, *longer, *tested, alone])
    titles = ["cnn-8 on digits, 4 epochs", "cnn-8 on digits, 8 epochs"]
    assert sorted({row[0] for row in made.rows}) == titles
    assert len(made.rows) == 4


def test_without_held_out_examples_it_says_how_to_get_some(tmp_path):
    tested = [recorded(tmp_path / f"{rate:g}", rate, validation=None) for rate in PLAIN]
    made = ANALYSES["rates"](tested)
    assert isinstance(made, Missing)
    assert "siftback run rates" in made.why
