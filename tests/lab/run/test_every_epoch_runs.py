"""Strategies that draw every epoch by a rule: what they train on, and what that costs."""

from pathlib import Path

import pytest
import torch

from siftback.lab.data.load import load
from siftback.lab.data.stream import BatchStream
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from siftback.lab.strategies.before_reading import BeforeReading
from siftback.lab.strategies.table import STRATEGIES

EPOCH, EXAMPLES, BATCH = 1408, 1437, 128  # 11 batches out of the training digits
EPOCHS = 6
METHODS = [name for name, strategy in STRATEGIES.items() if strategy.moment is BeforeReading]
PASSES = ("stale-sb", "sb-ewma", "sb-gp")  # which have scoring passes


def settings(**length: float) -> Settings:
    return Settings("digits", "mlp", width=8, device="cpu", evaluations=1, **length)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("every_epoch")
    plan = Plan(settings(epochs=float(EPOCHS)), METHODS, [0.5], [0], matched=False)
    compare(plan, folder, Reporter())
    return Comparison.read(folder)


def run(comparison: Comparison, strategy: str) -> RunSummary:
    return next(run for run in comparison.runs if run.strategy == strategy)


def test_all_methods_are_there() -> None:
    assert [
        *("stale-sb", "sb-memory", "sb-memory-guarded"),
        *("sb-memory-weighted", "sb-memory-annealed", "sb-memory-ratio", "sb-memory-default"),
        *("sb-memory-ratio-guarded", "sb-memory-balanced", "sb-memory-balanced-weighted"),
        *("sb-memory-ratio-balanced", "sb-ewma", "sb-gp"),
        *("infobatch", "rs2", "rs2-balanced", "kakurenbo", "ucb", "seta", "ies"),
        *("evolved", "orderdp", "repb", "rcap", "alignprune", "evos"),
    ] == METHODS


@pytest.mark.parametrize("strategy", METHODS)
def test_what_was_trained_on_is_what_is_counted(compared: Comparison, strategy: str) -> None:
    summary = run(compared, strategy)
    trained, extra = summary.examples_backpropped, summary.examples_forwarded
    extra -= trained
    assert trained == BATCH * summary.steps
    if strategy in PASSES:
        assert extra == EPOCH * len(range(0, EPOCHS, 3)), "every third epoch is scored"
    else:
        assert (extra > 0) <= STRATEGIES[strategy].forwards_left_out
    assert summary.cost_forward_units == 3 * trained + extra
    assert summary.epochs == pytest.approx(EPOCHS, abs=0.3)
    assert trained <= summary.epochs * EPOCH
    assert summary.test_error_final < 80  # of ten classes


def test_rs2_keeps_exactly_its_share(compared: Comparison) -> None:
    summary = run(compared, "rs2")
    assert summary.keep_measured == pytest.approx(0.5, abs=0.02)
    assert summary.examples_backpropped == pytest.approx(EPOCHS * EXAMPLES / 2, rel=0.05)


def test_infobatch_keeps_more_than_its_ratio_leaves_and_all_in_the_tail(
    compared: Comparison,
) -> None:
    summary = run(compared, "infobatch")
    # The first epoch and the last, which begins after 7/8 of six, are of all examples; in the
    # others, half of those below the mean are pruned, and some are above it.
    assert 0.5 < summary.keep_measured < 1
    assert 2 * EPOCH + 3 * EXAMPLES / 2 < summary.examples_backpropped < EPOCHS * EPOCH


def test_ucb_keeps_its_share_after_the_first_epoch(compared: Comparison) -> None:
    summary = run(compared, "ucb")
    expected = EPOCH + (EPOCHS - 1) * EXAMPLES / 2
    assert summary.examples_backpropped == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("strategy", ["kakurenbo", "ies"])
def test_no_less_stays_than_was_asked_for(compared: Comparison, strategy: str) -> None:
    summary = run(compared, strategy)
    assert summary.keep_measured >= 0.5
    # What was left out was forwarded once each, in the epochs that were ended.
    unseen = summary.epochs * EPOCH - summary.examples_backpropped
    assert summary.examples_forwarded - summary.examples_backpropped <= unseen + BATCH


def test_a_budget_gives_as_many_steps_as_traditional(tmp_path: Path) -> None:
    plan = Plan(settings(budget=3.0), ["traditional", "infobatch", "rs2"], [0.5], [0])
    traditional, infobatch, rs2 = compare(plan, tmp_path, Reporter()).runs
    assert traditional.steps == infobatch.steps == rs2.steps == 33
    assert rs2.epochs == pytest.approx(6, abs=0.3)
    assert 3 < infobatch.epochs < 6


@pytest.mark.parametrize("budget", [10.2, 10.4])
def test_a_budget_may_end_while_what_was_left_out_is_forwarded(
    tmp_path: Path, budget: float
) -> None:
    plan = Plan(settings(budget=budget), ["kakurenbo"], [0.3], [0])
    (kakurenbo,) = compare(plan, tmp_path, Reporter()).runs
    spent = kakurenbo.cost_forward_units / (3 * EPOCH)
    assert budget <= spent <= budget + BATCH / EPOCH


def test_examples_by_index_are_as_they_are() -> None:
    data = load("digits")
    stream = BatchStream(data, BATCH, seed=1)
    images, labels = stream.batch_of(torch.tensor([300, 2]))
    whole, targets = (torch.cat(parts) for parts in zip(*stream.plain(400), strict=True))
    assert images.equal(whole[[300, 2]])
    assert labels.equal(targets[[300, 2]])
