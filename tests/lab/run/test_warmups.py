"""When the strategies of the laboratory begin to select, and what moves their learning rate."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Memory, SelectiveLoader, Share
from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings

EPOCH = 640 // 32 * 32
SELECTING = ("in-batch", "random", "topk", "sb-single-pass")


def runs(folder, strategies, **changes):
    given = {"data": "digits", "model": "mlp", "width": 2, "train_limit": 640, "batch_size": 32}
    asked = Settings(**(given | {"device": "cpu", "evaluations": 1} | changes))
    plan = Plan(asked, strategies, [0.5], [0], matched=False)
    return {run.strategy: run for run in compare(plan, folder, Reporter()).runs}


def test_an_epoch_of_everything_comes_first_and_memory_has_its_own_share(tmp_path):
    found = runs(tmp_path, ["sb", *SELECTING, "sb-memory", "rs2"], epochs=4.0)
    for name in SELECTING:
        assert found[name].examples_backpropped == pytest.approx(2.5 * EPOCH, rel=0.12), name
    assert found["sb"].examples_forwarded == found["sb"].examples_backpropped + 3 * EPOCH
    # 15 % of four epochs end within the first, so that it is whole.
    assert found["sb-memory"].examples_backpropped == pytest.approx(2.5 * EPOCH, rel=0.05)
    assert found["rs2"].examples_backpropped == pytest.approx(2 * EPOCH, rel=0.05)


@pytest.mark.parametrize(
    ("warmup", "epochs"), [(Epochs(0), 0), (Epochs(2), 2), (Share(0.5), 2), (Share(0.0), 0)]
)
def test_it_can_be_chosen_for_all(tmp_path, warmup, epochs):
    found = runs(tmp_path, ["topk", "random"], epochs=4.0, warmup=warmup)
    for name, run in found.items():
        trained = (epochs + (4 - epochs) / 2) * EPOCH
        assert run.examples_backpropped == pytest.approx(trained, rel=0.15), name


def test_a_budget_pays_for_it(tmp_path):
    found = runs(tmp_path, ["topk", "random"], budget=4.0)
    for name, run in found.items():
        assert run.cost_forward_units == pytest.approx(4 * 3 * EPOCH, rel=0.03), name
    # Of the cost of four epochs, one is for the first; an epoch of random then costs a half.
    assert found["random"].epochs == pytest.approx(1 + 3 / 0.5, rel=0.05)
    assert found["topk"].epochs == pytest.approx(1 + 3 * 3 / 2.5, rel=0.05)


@pytest.mark.parametrize("budget", [2, 3, 4, 8])
def test_a_budget_is_spread_as_the_library_does(tmp_path, budget):
    data = DataLoader(TensorDataset(torch.arange(EPOCH)), 32, shuffle=True)
    loader = SelectiveLoader(data, memory=Memory(keep=0.5), epochs=budget)
    for (rows,) in (batch for _ in range(budget) for batch in loader):
        loader.record(1.0 + rows)
    assert loader.stats.released == budget * EPOCH
    run = runs(tmp_path, ["sb-memory"], budget=float(budget))["sb-memory"]
    assert run.examples_backpropped == budget * EPOCH
    assert run.epochs == pytest.approx(loader.stats.seen / EPOCH, rel=0.02)


def test_the_draws_of_the_default_end_with_an_epoch(tmp_path):
    """Epochs that begin after 0.15 and before 0.55 of eight: the third, fourth and fifth."""
    found = runs(tmp_path, ["sb-memory-default"], budget=8.0, width=16)["sb-memory-default"]
    share = found.keep_measured
    assert share < 0.9
    assert share * (found.epochs - 8) / (1 - share) == pytest.approx(3, abs=0.25)


def test_a_training_in_which_nothing_is_selected_is_refused():
    asked = Settings("digits", epochs=1.0)
    with pytest.raises(
        ConfigError, match=r"SelectiveLoader\(\.\.\., keep=0.5\): warmup=1e and tail=0% leave no"
    ):
        Plan(asked, ["traditional", "sb"], [0.5], [0])
    Plan(asked, ["traditional", "sb-memory", "infobatch"], [0.5], [0])
    with pytest.raises(ConfigError, match=r"warmup=3e and tail=0% "):
        Settings("digits", budget=2.0, warmup=Epochs(3))


def test_rates_move_by_what_was_trained_on(tmp_path):
    """A rate that falls after half of all examples stays where a half is kept."""
    rate = "steps:50%:x0.000001"

    def loss(folder, **changes):
        asked = {"epochs": 4.0, "rate": rate, "evaluations": 4, "warmup": Epochs(0)} | changes
        (run,) = runs(tmp_path / folder, ["random"], **asked).values()
        return run

    seen, trained = loss("seen"), loss("trained", rate_by="trained")
    assert seen.steps == trained.steps
    # Of four epochs it trains on two: by what it saw the second half of that changes nothing.
    whole = loss("constant", rate="constant")
    assert trained.test_loss_final == whole.test_loss_final
    assert seen.test_loss_final != whole.test_loss_final


def test_rates_by_what_is_trained_on_need_a_length_in_examples():
    with pytest.raises(ConfigError, match="rate_by 'trained' in a training by time"):
        Settings("digits", time_budget=9.0, rate_by="trained")
    with pytest.raises(ConfigError, match="rate_by 'kept': give one of seen, trained"):
        Settings("digits", epochs=1.0, rate_by="kept")
