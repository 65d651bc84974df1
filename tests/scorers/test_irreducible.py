"""RHO-loss: whose irreducible loss is taken off, and what happens where there is none."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

from resuming import check_resumes, training
from siftback import (
    Fresh,
    Indexed,
    Irreducible,
    Pool,
    Scorer,
    SelectiveLoader,
    TopK,
    irreducible_losses,
)
from siftback.contrib import Downsampled
from siftback.errors import BatchError, ConfigError, StateError
from siftback.losses.per_example import pair_losses
from toys import (
    AT_ONCE,
    assert_same,
    at_once,
    dataset,
    given_losses,
    network,
    numbered,
    seeded,
    shuffled,
)

COUNT = 40


def losses_of(losses, selection_batch=10, **arguments):
    """A loader over examples that have their number and their loss with them."""
    source = Indexed(numbered(losses, selection_batch), index_of=lambda batch: batch["number"])
    return SelectiveLoader(source, nn.Identity(), losses=given_losses, **at_once(arguments))


def test_the_highest_differences_of_each_batch_are_kept():
    generator = torch.Generator().manual_seed(1)
    losses, irreducible = torch.rand(2, COUNT, generator=generator)
    scorer = Irreducible(irreducible)
    loader = losses_of(losses, selector=TopK(keep=0.3), scorer=scorer, pool=Pool(3))
    kept = [batch["number"].tolist() for batch in loader]
    for number, batch in enumerate(kept):
        rows = range(10 * number, 10 * number + 10)
        best = sorted(rows, key=lambda row: float(irreducible[row] - losses[row]))[:3]
        assert batch == sorted(best)
    assert len(kept) == 4


def test_a_plain_shuffled_loader_is_enough():
    data, model = dataset(), network()
    order = torch.Generator().manual_seed(5)
    plain = DataLoader(data, batch_size=11, shuffle=True, generator=order)
    holdout = irreducible_losses(model, plain, F.cross_entropy)
    holdout += torch.randn(len(data), generator=torch.Generator().manual_seed(7))
    loader = SelectiveLoader(
        plain, model, F.cross_entropy, selector=TopK(keep=0.5), scorer=Irreducible(holdout),
        attach=True, schedule=AT_ONCE,
    )  # fmt: skip
    # The model is that of the irreducible losses: what is left to learn is minus the noise.
    noise = holdout - irreducible_losses(model, plain, F.cross_entropy)
    kept = torch.cat([indices for _, _, indices, _ in loader])
    assert noise[kept].mean() < noise.mean() - 0.4


def test_it_continues_from_a_state():
    first, second = Irreducible(torch.tensor([1.0, 2.0, 3.0])), Irreducible(torch.zeros(3))
    second.load_state_dict(first.state_dict())
    batch = {"loss": torch.tensor([5.0, 5.0])}
    found = second.score(given_losses, nn.Identity(), batch, torch.tensor([2, 0]))
    assert found.tolist() == [2.0, 4.0]
    with pytest.raises(StateError, match="examples=3, and this Irreducible has examples=4"):
        Irreducible(torch.zeros(4)).load_state_dict(first.state_dict())


def test_stopping_anywhere_equals_never_stopping():
    scorer = Irreducible(torch.rand(44, generator=seeded()))
    check_resumes(training(shuffled, {"keep": 0.5, "scorer": scorer}))


class Iterable:
    """Batches without a word about whose they are."""

    def __iter__(self):
        return iter(DataLoader(dataset(), batch_size=5))


class Giving(Iterable):
    """Batches with indices, and no word about how many there are."""

    indexed = True

    def __init__(self, *order):
        self.order = order

    def __iter__(self):
        inputs, targets = dataset().tensors
        for indices in self.order:
            yield torch.tensor(indices), (inputs[indices], targets[indices])


def own_collate(examples):
    assert all(len(example) == 2 for example in examples)  # without the index
    return torch.utils.data.default_collate(examples)


@pytest.mark.parametrize(
    "loader",
    [
        lambda data: DataLoader(data, batch_size=7),
        lambda data: DataLoader(data, batch_size=7, shuffle=True),
        lambda data: DataLoader(Indexed(data), batch_size=5, shuffle=True),
        lambda data: DataLoader(Indexed(data), batch_size=5, collate_fn=own_collate),
        lambda data: Giving(*(part.tolist() for part in reversed(torch.arange(44).split(6)))),
    ],
    ids=["in order", "shuffled", "indexed", "indexed, collated by its user", "of another kind"],
)
def test_irreducible_losses_are_each_example_s_own_whatever_the_order(loader):
    model, data = network(), dataset()
    inputs, targets = data.tensors
    with torch.no_grad():
        expected = F.cross_entropy(model.eval()(inputs), targets, reduction="none")
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for how in ({"loss_fn": F.cross_entropy}, {"losses": pair_losses(F.cross_entropy)}):
        torch.testing.assert_close(irreducible_losses(model, loader(data), **how), expected)
    assert model.training
    assert_same(dict(model.state_dict()), state)


def test_examples_that_the_loader_does_not_give_have_none():
    dropping = DataLoader(dataset(), batch_size=10, drop_last=True)
    found = irreducible_losses(network(), dropping, F.cross_entropy)
    assert found.isnan().tolist() == [False] * 40 + [True] * 4
    found = irreducible_losses(network(), Giving([3, 1], [6]), F.cross_entropy)
    assert found.isnan().tolist() == [True, False, True, False, True, True, False]
    assert len(irreducible_losses(network(), Giving(), F.cross_entropy)) == 0


def test_losses_of_other_examples_than_the_data_set_s_are_an_error():
    with pytest.raises(BatchError, match="the index 3 came before batch 1"):
        irreducible_losses(network(), Giving([3, 1], [2, 3]), F.cross_entropy)
    with pytest.raises(BatchError, match=r"range from -1 to 3, outside of \[0, inf\)"):
        irreducible_losses(network(), Giving([3, -1]), F.cross_entropy)
    again = RandomSampler(dataset(), replacement=True)
    loader = DataLoader(dataset(), batch_size=11, sampler=again)
    with pytest.raises(BatchError, match="sample without replacement"):
        irreducible_losses(network(), loader, F.cross_entropy)


def test_without_indices_there_are_no_irreducible_losses():
    with pytest.raises(ConfigError, match=r"Iterable does not give the indices"):
        irreducible_losses(network(), Iterable(), F.cross_entropy)
    with pytest.raises(ConfigError, match=r"Irreducible needs each example's index"):
        Irreducible(torch.zeros(3)).score(
            given_losses, nn.Identity(), {"loss": torch.ones(3)}, None
        )
    loader = SelectiveLoader(
        Iterable(), network(), F.cross_entropy, selector=TopK(keep=0.5),
        scorer=Irreducible(torch.zeros(44)), schedule=AT_ONCE,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"Irreducible needs each example's index"):
        list(loader)


def test_within_another_scorer_it_gets_the_indices():
    images = torch.ones(2, 1, 4, 4), torch.zeros(2, 1, 2, 2)
    scorer = Downsampled(2, Irreducible(torch.tensor([0.25, 0.5, 0.75])))
    found = scorer.score(pair_losses(F.mse_loss), nn.Identity(), images, torch.tensor([2, 0]))
    assert found.tolist() == [0.25, 0.75]


def test_another_scorer_makes_the_losses():
    class Index(Scorer):
        def score(self, losses, model, batch, indices):
            return 10 * indices.float()

    scorer = Irreducible(torch.tensor([1.0, 2.0, 3.0]), Index())
    batch = {"loss": torch.zeros(2)}
    found = scorer.score(given_losses, nn.Identity(), batch, torch.tensor([2, 1]))
    assert found.tolist() == [17.0, 8.0]


def test_what_are_not_losses_is_refused():
    with pytest.raises(ConfigError, match=r"losses=int64\[3\]: give float\[examples\]"):
        Irreducible(torch.arange(3))
    with pytest.raises(ConfigError, match=r"losses=float32\[3, 1\]: give float\[examples\]"):
        Irreducible(torch.zeros(3, 1))
    assert isinstance(Irreducible(torch.zeros(3)).scorer, Fresh)


def test_an_example_without_one_is_an_error():
    losses, irreducible = torch.rand(20), torch.zeros(20)
    irreducible[13] = torch.nan
    with pytest.raises(ConfigError, match="example 13 has no finite irreducible loss"):
        list(losses_of(losses, selector=TopK(keep=0.5), scorer=Irreducible(irreducible)))
    with pytest.raises(ConfigError, match=r"to 1\d, outside of \[0, 15\): compute irreducible"):
        list(losses_of(losses, selector=TopK(keep=0.5), scorer=Irreducible(torch.zeros(15))))
    batch = {"loss": torch.ones(1)}
    with pytest.raises(ConfigError, match=r"from -1 to .*, outside of \[0, 3\)"):
        Irreducible(torch.zeros(3)).score(given_losses, nn.Identity(), batch, torch.tensor([-1]))


def test_losses_of_another_data_set_are_refused():
    data = TensorDataset(torch.randn(6, 2), torch.zeros(6, dtype=torch.int64))
    part = DataLoader(Subset(data, [1, 4, 5]), 2)
    with pytest.raises(
        ConfigError, match=r"knows 6 examples by index, .* has 3: .*losses\[subset.indic"
    ):
        SelectiveLoader(
            part, nn.Linear(2, 2), F.cross_entropy, keep=0.5, scorer=Irreducible(torch.zeros(6))
        )


def test_a_scorer_of_ones_own_may_have_an_attribute_examples():
    class Counting(Fresh):
        examples = 1  # scored so far, say

    data = TensorDataset(torch.randn(6, 2), torch.zeros(6, dtype=torch.int64))
    loader = SelectiveLoader(
        DataLoader(data, 2), nn.Linear(2, 2), F.cross_entropy, keep=0.5, scorer=Counting()
    )
    assert [len(list(loader)) for _ in range(2)] == [3, 1]  # all, and then a half
