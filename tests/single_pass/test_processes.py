"""Two real processes: gradients of kept rows, averaged."""

import re

import pytest
import torch
from single_pass_ranks import RATE, STEPS, batch_of, network
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from siftback.errors import ConfigError
from siftback.single_pass.single_pass import check_parameters

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def ranks(found_in):
    """The notes of both processes, by rank."""
    return found_in("single_pass_ranks", processes=2)


@pytest.mark.parametrize("wrapping", ["plain", "wrapped"])
def test_gradients_are_the_mean_over_the_processes(ranks, wrapping):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(STEPS):
        for rank in range(2):
            inputs, targets = batch_of(step, rank)
            kept = ranks[rank][wrapping]["kept"][step]
            assert len(kept) == 4
            (F.cross_entropy(model(inputs[kept]), targets[kept]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for rank in ranks:
        torch.testing.assert_close(rank[wrapping]["weights"], model.state_dict())
        assert rank[wrapping]["check"] < 1e-5


def test_processes_have_the_same_weights_bit_for_bit(ranks):
    one, other = (rank["plain"]["weights"] for rank in ranks)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_each_goes_on_bit_for_bit(ranks):
    for rank in ranks:
        whole, again = rank["plain"], rank["resumed"]
        assert torch.stack(whole["kept"][STEPS // 2 :]).equal(torch.stack(again["kept"]))
        torch.testing.assert_close(whole["weights"], again["weights"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unaveraged", "2 processes train, and SinglePass is not called by DistributedData"),
        ("inner", r"wrap the other way round, DistributedDataParallel(SinglePass(model, ...))"),
        ("beside", "2 processes train, and SinglePass is not called by DistributedData"),
        ("loss_beside", "the losses depend on a parameter [3] that is not the model's"),
        ("loss_in_a_function", "the losses depend on a parameter [3] that is not the model's"),
        ("sharded", "FSDP (fully_shard) keeps only a shard"),
        ("sharded_later", "FSDP (fully_shard) keeps only a shard"),
    ],
)
def test_what_would_let_processes_diverge_is_refused(ranks, name, message):
    for rank in ranks:
        assert message in rank[name]


def test_each_process_measures_by_itself(ranks):
    assert [rank["probed"] for rank in ranks] == [({}, {}, 8), ({}, {}, 8)]  # of 16 examples


def test_parameters_are_found_behind_inputs_that_many_paths_lead_to(monkeypatch):
    known = nn.Linear(2, 2)
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", known)
    for parameter, refused in ((known.bias, False), (nn.Parameter(torch.ones(2)), True)):
        losses = parameter
        for _ in range(60):  # of which each doubles the paths
            losses = losses + losses.sin()
        if refused:
            with pytest.raises(ConfigError, match=re.escape("depend on a parameter [2]")):
                check_parameters(losses)
        else:
            check_parameters(losses)


@pytest.mark.parametrize("name", ["by_hand", "evaluation", "loss_within"])
def test_one_may_average_gradients_oneself_evaluate_and_train_a_loss_within_the_model(ranks, name):
    assert [rank[name] for rank in ranks] == [None, None]
