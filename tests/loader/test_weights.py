"""Weights of a reweighting selector travel with their examples."""

import pytest
import torch
from torch import nn

from siftback import Epochs, Pool, Schedule, SelectiveLoader
from siftback.errors import ConfigError
from toys import EveryOther, at_once, given_losses, numbered


def reweighted(losses, selection_batch=8, **arguments):
    return SelectiveLoader(
        numbered(losses, selection_batch), nn.Identity(), losses=given_losses,
        selector=EveryOther(), **at_once(arguments),
    )  # fmt: skip


@pytest.mark.parametrize("selection_batch", [1, 7, 8, 50])
@pytest.mark.parametrize("batch_size", [1, 3, 8, 20])
@pytest.mark.parametrize("drop_last", [False, True, "carry"])
def test_weights_travel_with_their_examples(selection_batch, batch_size, drop_last):
    losses = torch.rand(50, generator=torch.Generator().manual_seed(1))
    loader = reweighted(losses, selection_batch, pool=Pool(batch_size, drop_last))
    for _ in range(2):
        for batch in loader:
            assert loader.weights.equal(batch["loss"])


def test_weights_are_one_while_selection_is_off():
    loader = reweighted(torch.full((32,), 3.0), pool=Pool(8), schedule=Schedule(start=Epochs(1)))
    weights = [[loader.weights.unique().item() for _ in loader] for _ in range(2)]
    assert weights == [[1.0] * 4, [3.0] * 2]


def test_non_finite_losses_that_are_kept_weigh_one():
    losses = torch.tensor([2.0, torch.nan, 3.0, 4.0])
    loader = reweighted(losses, 4, on_nonfinite="keep")
    (batch,) = loader
    assert batch["number"].tolist() == [0, 1, 3]
    assert loader.weights.tolist() == [2.0, 1.0, 4.0]


def test_weights_that_were_never_read_are_an_error_at_the_end_of_the_epoch():
    with pytest.raises(ConfigError, match=r"weights of 6 .* never used: run .* loader.weights"):
        list(reweighted(torch.rand(96)))
    few = reweighted(torch.rand(32))
    list(few)  # that a loop may have read ahead
    with pytest.raises(ConfigError, match=r"weights of 2 batches were never used"):
        list(few)


def test_weights_go_on_with_a_resumed_loader():
    losses = torch.rand(40)
    stopped, resumed = reweighted(losses, pool=Pool(3)), reweighted(losses, pool=Pool(3))
    next(iter(stopped))
    resumed.load_state_dict(stopped.state_dict())
    for batch in resumed:
        assert resumed.weights.equal(batch["loss"])
