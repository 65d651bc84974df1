"""Strategies whose scores come from elsewhere: each is charged what it really does."""

import multiprocessing
from pathlib import Path

import pytest

from siftback import Epochs
from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Existing, Plan, compare
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from siftback.lab.strategies.table import find_strategy
from started import replicas_forked

EPOCH, BATCH, EPOCHS = 640, 128, 2
CHEAP = ("sb-bf16", "sb-int8", "sb-small", "sb-proxy", "sb-pipelined")
PREDICTED = ("sb-ewma", "sb-gp", "stale-sb-2")


def settings(epochs: float = 1.0) -> Settings:
    asked = {"width": 4, "train_limit": EPOCH, "device": "cpu", "warmup": Epochs(0)}
    return Settings("digits", epochs=epochs, **asked)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("scorers")
    plan = Plan(settings(epochs=float(EPOCHS)), [*CHEAP, *PREDICTED], [0.5], [0], matched=False)
    with replicas_forked():
        compare(plan, folder, Reporter())
    return Comparison.read(folder)


def run(comparison: Comparison, strategy: str) -> RunSummary:
    return next(run for run in comparison.runs if run.strategy == strategy)


@pytest.mark.parametrize("strategy", CHEAP)
def test_a_pass_is_charged_at_its_price(compared: Comparison, strategy: str) -> None:
    summary = run(compared, strategy)
    trained, price = summary.examples_backpropped, summary.score_cost
    assert summary.examples_forwarded == EPOCHS * EPOCH + trained
    cost = price * EPOCHS * EPOCH + 3 * trained
    if strategy == "sb-proxy":  # trained on all batches but the last, which nothing follows
        cost += 3 * price * (trained - BATCH)
    assert price > 0
    assert price != 1
    assert summary.cost_forward_units == pytest.approx(cost, abs=3 * price * BATCH + 1)


@pytest.mark.parametrize("strategy", CHEAP)
def test_a_price_is_recorded_with_its_spread(compared: Comparison, strategy: str) -> None:
    price = compared.prices[strategy]
    assert run(compared, strategy).score_cost == price.median
    assert 0 < price.low <= price.median <= price.high
    assert price.rounds > 5


def test_a_price_is_measured_once_for_all_runs_and_for_what_is_resumed(tmp_path: Path) -> None:
    def compared_with(seeds: list[int], existing: Existing) -> Comparison:
        plan = Plan(settings(), ["sb-proxy", "sb-int8"], [0.5], seeds)
        compare(plan, tmp_path, Reporter(), existing)
        return Comparison.read(tmp_path)

    first = compared_with([0, 1], "refuse")
    later = compared_with([0, 1, 2], "resume")
    assert first.prices == later.prices
    for name, price in later.prices.items():
        runs = [one for one in later.runs if one.strategy == name]
        assert [one.score_cost for one in runs] == [price.median] * 3
        costs = [one.cost_forward_units - 3 * one.examples_backpropped for one in runs]
        if name == "sb-int8":  # what remains are the scores, of as many examples each time
            assert max(costs) - min(costs) <= price.median * 2 * 128


def test_scores_that_are_fresh_forwards_have_no_price_to_measure(compared: Comparison) -> None:
    assert set(compared.prices) == set(CHEAP)


@pytest.mark.parametrize("strategy", PREDICTED)
def test_a_pass_every_n_epochs_costs_forwards(compared: Comparison, strategy: str) -> None:
    summary = run(compared, strategy)
    assert summary.score_cost == 1
    assert summary.examples_forwarded == EPOCH + summary.examples_backpropped
    assert summary.cost_forward_units == EPOCH + 3 * summary.examples_backpropped


@pytest.mark.parametrize("strategy", [*CHEAP, *PREDICTED])
def test_scores_agree_with_the_losses_more_or_less(compared: Comparison, strategy: str) -> None:
    summary = run(compared, strategy)
    made = [evaluation.agreement for evaluation in compared.evaluations(summary)]
    assert len(made) == EPOCHS
    assert all(found is not None and -1 <= found <= 1 for found in made)
    if strategy in ("sb-bf16", "sb-int8"):
        assert min(made) > 0.95


@pytest.mark.parametrize("strategy", ["sb-bf16", "sb-int8", "sb-proxy", "sb-pipelined"])
def test_refreshing_is_a_phase_of_its_own(compared: Comparison, strategy: str) -> None:
    phases = run(compared, strategy).seconds_by_phase
    assert phases["syncing"] > 0
    assert phases["selection"] > 0
    assert min(phases.values()) >= 0


def test_no_replica_is_left_behind(compared: Comparison) -> None:
    assert compared.runs
    assert not multiprocessing.active_children()


def test_the_interval_may_be_part_of_the_name() -> None:
    assert str(find_strategy("stale-sb-10").cost) == "1/10 + 3s"
    for name in ("stale-sb-0", "stale-sb-x", "stale-sb-"):
        with pytest.raises(ConfigError, match=f"no strategy '{name}'"):
            find_strategy(name)


def test_a_proxy_takes_no_random_numbers_from_the_run(tmp_path: Path) -> None:
    errors = []
    for name in ("sb-ewma", "sb-proxy"):  # with all kept, both train on the same batches
        plan = Plan(settings(), [name], [1.0], [0], matched=False)
        (summary,) = compare(plan, tmp_path / name, Reporter()).runs
        errors.append(summary.test_error_final)
    assert errors[0] == errors[1]
