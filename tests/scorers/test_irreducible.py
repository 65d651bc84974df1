"""RHO-loss: whose irreducible loss is taken off, and what happens where there is none."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from siftback import (
    BatchError,
    ConfigError,
    Downsampled,
    Fresh,
    Indexed,
    Irreducible,
    LossError,
    ScoreTable,
    SelectiveLoader,
    Stale,
    StateError,
    TopK,
    irreducible_losses,
)
from siftback.loss_functions import pair_losses
from toys import assert_same, dataset, given_losses, network, numbered

COUNT = 40


def losses_of(losses, selection_batch=10, **arguments):
    """A loader over examples that say their number and their loss."""
    return SelectiveLoader(
        numbered(losses, selection_batch), nn.Identity(), losses=given_losses,
        index_of=lambda batch: batch["number"], **arguments,
    )  # fmt: skip


def test_the_highest_differences_of_each_batch_are_kept():
    generator = torch.Generator().manual_seed(1)
    losses, floor = torch.rand(2, COUNT, generator=generator)
    loader = losses_of(losses, selector=TopK(keep=0.3), scorer=Irreducible(floor), batch_size=3)
    kept = [batch["number"].tolist() for batch in loader]
    for number, batch in enumerate(kept):
        rows = range(10 * number, 10 * number + 10)
        best = sorted(rows, key=lambda row: float(floor[row] - losses[row]))[:3]
        assert batch == sorted(best)


def test_a_share_of_the_batch_has_its_own_indices():
    losses = torch.zeros(COUNT)
    floor = torch.arange(COUNT).float()
    loader = losses_of(
        losses, selector=TopK(keep=0.5), scorer=Irreducible(floor), score_share=0.4, batch_size=2
    )
    for batch in loader:
        assert len(batch["number"]) == 2
    assert loader.stats.scored == 16


def test_it_takes_a_table_and_goes_on_from_a_state():
    table = ScoreTable(3)
    table.record(torch.arange(3), torch.tensor([1.0, 2.0, 3.0]), epoch=0)
    first, second = Irreducible(table), Irreducible(torch.zeros(3))
    second.load_state_dict(first.state_dict())
    batch = {"loss": torch.tensor([5.0, 5.0])}
    found = second.score_indexed(given_losses, nn.Identity(), batch, torch.tensor([2, 0]))
    assert found.tolist() == [2.0, 4.0]
    with pytest.raises(StateError, match="of 3 examples do not fit 4"):
        Irreducible(torch.zeros(4)).load_state_dict(first.state_dict())


def test_irreducible_losses_are_each_example_s_own_whatever_the_order():
    model, data = network(), dataset()
    inputs, targets = data.tensors
    with torch.no_grad():
        expected = F.cross_entropy(model.eval()(inputs), targets, reduction="none")
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    one = irreducible_losses(model, data, F.cross_entropy, batch_size=7)
    loader = DataLoader(
        Indexed(data), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    other = irreducible_losses(model, loader, losses=pair_losses(F.cross_entropy))
    torch.testing.assert_close(one, expected)
    torch.testing.assert_close(other, expected)
    assert model.training
    assert_same(dict(model.state_dict()), state)


def test_without_indices_there_are_no_irreducible_losses():
    with pytest.raises(ConfigError, match=r"a DataLoader does not tell whose losses"):
        irreducible_losses(network(), DataLoader(dataset()), F.cross_entropy)
    with pytest.raises(ConfigError, match=r"Irreducible needs each example's index: wrap"):
        SelectiveLoader(
            DataLoader(dataset()), network(), F.cross_entropy, selector=TopK(keep=0.5),
            scorer=Irreducible(torch.zeros(44)),
        )  # fmt: skip
    with pytest.raises(ConfigError, match=r"the loader's own scorer, and any other one to it"):
        Irreducible(torch.zeros(3)).score(given_losses, nn.Identity(), {"loss": torch.ones(3)})


@pytest.mark.parametrize("outer", [Stale, lambda scorer: Downsampled(2, scorer)])
def test_within_another_scorer_it_says_so(outer):
    scorer = outer(scorer=Irreducible(torch.zeros(COUNT)))
    batch = torch.ones(2, 1, 4, 4), torch.ones(2, 1, 2, 2)
    with pytest.raises(ConfigError, match="give it as the loader's own scorer"):
        scorer.score(pair_losses(F.mse_loss), nn.Identity(), batch)


def test_a_scorer_that_cannot_make_losses_within_it_is_refused():
    with pytest.raises(ConfigError, match="Irreducible cannot make the losses here"):
        Irreducible(torch.zeros(3), Irreducible(torch.zeros(3)))
    with pytest.raises(ConfigError, match=r"irreducible losses torch.int64 of shape \[3\]"):
        Irreducible(torch.arange(3))
    assert isinstance(Irreducible(torch.zeros(3)).scorer, Fresh)


def test_an_example_without_one_is_an_error():
    losses, floor = torch.rand(20), torch.zeros(20)
    floor[13] = torch.nan
    with pytest.raises(LossError, match="example 13 has no finite irreducible loss"):
        list(losses_of(losses, selector=TopK(keep=0.5), scorer=Irreducible(floor)))
    with pytest.raises(BatchError, match="has the index 19, and there are 15 irreducible"):
        list(losses_of(losses, selector=TopK(keep=0.5), scorer=Irreducible(torch.zeros(15))))
