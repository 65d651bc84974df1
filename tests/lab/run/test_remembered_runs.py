"""Strategies that remember: what they forward, what it costs, and where the seconds went."""

from pathlib import Path

import pytest
import torch

from siftback import Epochs
from siftback.errors import ConfigError
from siftback.lab.data.load import hold_out, load
from siftback.lab.data.stream import BatchStream
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.experiments.summary_table import phase_rows
from siftback.lab.length import PHASES
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings

EPOCH, EXAMPLES, BATCH = 1408, 1437, 128  # 11 batches out of the training digits
EPOCHS = 6


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("remembered")
    length = {"epochs": float(EPOCHS), "warmup": Epochs(0)}
    settings = Settings("digits", "mlp", width=4, device="cpu", **length)
    strategies = ["traditional", "sb", "stale-sb", "sb-memory"]
    compare(Plan(settings, strategies, [0.5], [0], matched=False), folder, Reporter())
    return Comparison.read(folder)


def run(comparison: Comparison, strategy: str) -> RunSummary:
    return next(run for run in comparison.runs if run.strategy == strategy)


def test_stale_forwards_all_examples_every_third_epoch_alone(compared: Comparison) -> None:
    stale = run(compared, "stale-sb")
    assert stale.examples_forwarded == 2 * EPOCH + stale.examples_backpropped
    # Two epochs of 11 batches and four of all examples, less what the last step did not need.
    assert 2 * EPOCH + 4 * EXAMPLES - BATCH <= stale.epochs * EPOCH <= 2 * EPOCH + 4 * EXAMPLES
    assert stale.keep_measured == pytest.approx(0.5, abs=0.06)
    assert stale.cost_forward_units < run(compared, "sb").cost_forward_units


def test_memory_forwards_only_what_it_trains_on(compared: Comparison) -> None:
    memory = run(compared, "sb-memory")
    assert memory.examples_forwarded == memory.examples_backpropped == BATCH * memory.steps
    assert memory.cost_forward_units == 3 * memory.examples_forwarded
    trained = EPOCHS * EXAMPLES / 2  # without a warm-up
    assert memory.examples_forwarded == pytest.approx(trained, rel=0.05)


def test_a_budget_gives_memory_as_many_steps_as_traditional(tmp_path: Path) -> None:
    settings = Settings("digits", "mlp", width=4, budget=4.0, tail=0.25, device="cpu")
    plan = Plan(settings, ["traditional", "sb-memory"], [0.5], [0])
    traditional, memory = compare(plan, tmp_path, Reporter()).runs
    assert memory.steps == traditional.steps
    assert memory.cost_forward_units == traditional.cost_forward_units
    assert memory.epochs > 1.3 * traditional.epochs


@pytest.mark.parametrize("strategy", ["traditional", "sb", "stale-sb", "sb-memory"])
def test_phases_sum_to_the_seconds_of_training(compared: Comparison, strategy: str) -> None:
    summary = run(compared, strategy)
    assert set(summary.seconds_by_phase) == set(PHASES)
    assert sum(summary.seconds_by_phase.values()) == pytest.approx(summary.seconds_train)
    assert all(seconds >= 0 for seconds in summary.seconds_by_phase.values())
    selection = summary.seconds_by_phase["selection"]
    assert selection == pytest.approx(summary.seconds_selection)
    assert (selection > 0) == (strategy != "traditional")
    assert min(summary.seconds_by_phase[phase] for phase in ("backward", "optimizer")) > 0
    for evaluation in compared.evaluations(summary):
        assert sum(evaluation.phases.values()) == pytest.approx(evaluation.seconds)


def test_agreement_is_that_of_scores_that_are_not_fresh(compared: Comparison) -> None:
    for summary in compared.runs:
        made = [evaluation.agreement for evaluation in compared.evaluations(summary)]
        if summary.strategy in ("stale-sb", "sb-memory"):
            assert all(found is not None and -1 <= found <= 1 for found in made)
        else:
            assert made == [None] * len(made)


def test_the_table_of_phases_says_what_the_records_say(compared: Comparison) -> None:
    table = {row["strategy"]: row for row in phase_rows(compared)}
    sb, stale_sb = "SelectiveLoader(..., keep=0.5)", "Stale(keep=0.5, every=n)"
    assert list(table) == ["plain training", sb, stale_sb, "Memory(keep=0.5)"]
    stale = run(compared, "stale-sb")
    assert table[stale_sb]["backward, s"] == f"{stale.seconds_by_phase['backward']:.1f}"
    assert table[stale_sb]["a score's price, in forwards"] == "1.00"
    made = [evaluation.agreement for evaluation in compared.evaluations(stale)]
    told = ", ".join(f"{made[place]:.2f}" for place in (0, EPOCHS // 2, -1))
    assert table[stale_sb]["agreement with the losses, first, middle, last"] == told
    assert "a score's price, in forwards" not in table[sb]


def test_a_stream_leaves_out_what_it_is_told_and_keeps_the_order() -> None:
    data = load("digits")
    stream = BatchStream(data, BATCH, seed=1, indexed=True)
    whole = torch.cat([indices for indices, _ in stream])
    assert len(stream) == 11
    assert len(whole) == EPOCH
    wanted = torch.arange(0, EXAMPLES, 3)
    stream.only(wanted)
    batches = list(stream)
    some = torch.cat([indices for indices, _ in batches])
    assert len(stream) == len(batches) == 4
    assert some.sort().values.equal(wanted)
    in_both = whole[torch.isin(whole, wanted)]
    assert some[torch.isin(some, in_both)].equal(in_both)
    for indices, (_, labels) in batches:
        assert labels.equal(data.train_labels[indices])
    stream.only(None)
    assert torch.cat([indices for indices, _ in stream]).equal(whole)


def test_plain_images_are_the_first_by_index() -> None:
    data = load("digits")
    batches = list(BatchStream(data, BATCH, seed=1).plain(300))
    assert [len(labels) for _, labels in batches] == [128, 128, 44]
    assert torch.cat([labels for _, labels in batches]).equal(data.train_labels[:300])


def test_what_is_held_out_is_trained_on_no_more() -> None:
    data = load("digits")
    held = hold_out(data, 200)
    both = torch.cat((held.train_inputs, held.test_inputs)).flatten(1)
    assert both.sort(0).values.equal(data.train_inputs.flatten(1).sort(0).values)
    assert len(held.test_labels) == 200
    with pytest.raises(ConfigError, match="validation=1437: give an integer from 1 to 1436"):
        hold_out(data, EXAMPLES)
