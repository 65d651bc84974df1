"""Selection in two processes of Lightning, and in `Fabric`."""

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

import torch
from lightning.fabric import Fabric
from lightning_parts import EXPECTED_WARNINGS, LAST, STEPS, examples_by_epoch, of_cross_entropy
from lightning_ranks import BATCH, COUNT, EPOCHS, RATE, Net, Single, data, plain
from torch.nn import functional as F

from siftback import Fresh, InBatch
from siftback.errors import StateError
from siftback.frameworks.lightning import SelectiveCallback
from torchrun import found_of_framework
from toys import AT_ONCE

pytestmark = EXPECTED_WARNINGS


@pytest.fixture(scope="module")
def ranks(filled_once):
    """The folder of the checkpoints, and the notes of both processes, by rank."""
    pytest.importorskip("torchdata")
    return found_of_framework(filled_once, "lightning")


def assert_shared(one, other, sizes):
    """Disjoint examples in each pass, of a size for each epoch, and equal weights in the end."""
    assert torch.equal(one["weights"], other["weights"])
    first, second = examples_by_epoch(one), examples_by_epoch(other)
    assert first.keys() == second.keys()
    for epoch, rows in first.items():
        assert len(rows) == len(second[epoch])
        share = sizes[epoch] // 2  # of a pass, in each process
        for start in range(0, len(rows), share):
            both = [*rows[start : start + share], *second[epoch][start : start + share]]
            assert len(set(both)) == len(both) <= sizes[epoch]


@pytest.mark.distributed
def test_two_processes_train_a_module_around_a_single_pass_as_one(ranks):
    _, (one, other) = ranks
    one, other = one["single pass"], other["single pass"]
    assert_shared(one, other, [COUNT // 2] * EPOCHS)
    assert all(len(rows) == BATCH // 2 for found in (one, other) for _, rows in found["steps"])
    # The same rows, one batch of both processes at a time.
    model = Single()
    optimizer = model.configure_optimizers()
    inputs, targets = data().tensors
    scaled = inputs * torch.tensor([0.02, 1, 1, 1, 1, 1])
    for (_, mine), (_, others) in zip(one["steps"], other["steps"], strict=True):
        rows = torch.tensor(mine + others)
        F.cross_entropy(model.net(scaled[rows]), targets[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(one["weights"], model.net.weight.detach())
    assert one["difference"] < 1e-5


@pytest.mark.distributed
@pytest.mark.parametrize("form", ["selecting", "remembering"])
def test_two_processes_share_the_data_and_end_with_equal_weights(ranks, form):
    _, (one, other) = ranks
    one, other = one[form, "whole"], other[form, "whole"]
    half, each = COUNT // 2, EPOCHS * COUNT // 2
    assert_shared(one, other, [half] * 3 if form == "selecting" else [COUNT, half, half])
    for found in (one, other):
        steps, total, validations = found["counts"]
        assert steps == total == len(found["rates"]) == 9
        assert validations == 1 + EPOCHS
        assert found["rates"][-1] == pytest.approx(LAST)
        seen, _, backwards = found["stats"]
        # Passes that keep half see two examples for each that is trained on.
        assert seen == (each if form == "selecting" else half + 2 * (each - half))
        assert backwards == sum(len(rows) for _, rows in found["steps"])


@pytest.mark.distributed
@pytest.mark.parametrize("form", ["selecting", "remembering"])
def test_two_processes_resume_within_an_epoch_bit_for_bit(ranks, form):
    for found in ranks[1]:
        whole, resumed = found[form, "whole"], found[form, "resumed"]
        assert resumed["steps"] == whole["steps"][4:]
        assert torch.equal(resumed["weights"], whole["weights"])
        assert resumed["stats"] == whole["stats"]


@pytest.mark.distributed
def test_each_process_has_random_numbers_and_a_state_of_its_own(ranks):
    out, _ = ranks
    callbacks = torch.load(out / "selecting" / "step=4.ckpt")["callbacks"]
    (state,) = (state for name, state in callbacks.items() if "Selective" in name)
    one, other = (rank["in_batch"]["generator"] for rank in state["ranks"])
    assert not torch.equal(one, other)
    saved = torch.load(out / "remembering" / "step=4.ckpt")["SelectiveDataModule"]["ranks"]
    assert [state["loader"]["settings"]["rank"] for state in saved] == [0, 1]
    callback = SelectiveCallback(keep=0.5, schedule=AT_ONCE)
    with pytest.raises(StateError, match="saved by 2 processes, and there are 1"):
        callback.load_state_dict(state)


# Fabric.


@pytest.mark.distributed
def test_fabric_s_processes_share_a_memory_s_data(ranks):
    _, (one, other) = ranks
    assert_shared(one["fabric"], other["fabric"], [COUNT, COUNT // 2])


@pytest.mark.distributed
def test_fabric_loaders_that_would_be_shared_wrongly_are_refused(ranks):
    for rank, found in enumerate(ranks[1]):
        early, handed, wrapped, *states = found["fabric"]["refused"]
        assert early.startswith("ConfigError: the sampler was made when")
        assert handed.startswith("TypeError: Only PyTorch DataLoader")
        assert wrapped.startswith("ConfigError: Memory needs the index of each example")
        assert [state.startswith("StateError") for state in states] == [True] * rank


def test_fabric_selects_in_a_loop_under_its_precision():
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    net, seen, rows_of = Net(), [], []
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), RATE))
    net.net.register_forward_hook(lambda part, _, out: seen.append((part.training, out.dtype)))
    loader, in_batch = fabric.setup_dataloaders(plain()), InBatch(keep=1 / 2)
    for batch in loader:
        with fabric.autocast():
            rows, _ = in_batch.select(Fresh().score(of_cross_entropy, model, batch, None))
            loss = of_cross_entropy(model, [part[rows] for part in batch]).mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        rows_of.append(len(rows))
    assert rows_of == [BATCH // 2] * STEPS
    assert seen == [(False, torch.bfloat16), (True, torch.bfloat16)] * STEPS
