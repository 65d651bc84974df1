"""Selection by losses begins after one epoch, wherever the length of one is known."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import siftback
from siftback import (
    Epochs,
    InBatch,
    InBatchRank,
    Percentile,
    Schedule,
    SelectiveLoader,
    SoftTopK,
    Stale,
    TopK,
    Uniform,
)
from siftback.contrib import Ewma
from siftback.errors import ConfigError
from toys import given_losses, network, numbered, shuffled

BATCHES, SIZE = 6, 8
BY_LOSSES = {
    "percentile": lambda: Percentile(keep=0.5), "top": lambda: TopK(keep=0.5),
    "soft": lambda: SoftTopK(keep=0.5), "rank": lambda: InBatchRank(keep=0.5),
}  # fmt: skip


def loader_of(**arguments):
    losses = torch.rand(BATCHES * SIZE, generator=torch.Generator().manual_seed(1))
    return SelectiveLoader(
        numbered(losses, SIZE), nn.Identity(), losses=given_losses, **{"epochs": 3} | arguments
    )


def trained_in_epochs(loader, epochs=3):
    """Examples scored and given to training in each epoch."""
    found = []
    for _ in range(epochs):
        before = loader.stats.scored, loader.stats.released
        for _ in loader:
            pass
        after = loader.stats.scored, loader.stats.released
        found.append(tuple(now - then for now, then in zip(after, before, strict=True)))
    return found


@pytest.mark.parametrize("make", BY_LOSSES.values(), ids=BY_LOSSES)
def test_a_loader_trains_on_everything_for_an_epoch_without_scoring(make):
    first, *others = trained_in_epochs(loader_of(selector=make()))
    assert first == (0, BATCHES * SIZE)
    assert all(scored == BATCHES * SIZE for scored, _ in others)
    assert sum(released for _, released in others) < 1.8 * BATCHES * SIZE


def test_it_is_as_a_loader_that_is_told_so_and_zero_turns_it_off():
    found = [
        trained_in_epochs(loader_of(selector=TopK(keep=0.5), **given))
        for given in ({}, {"schedule": Schedule()}, {"schedule": Schedule(warmup=Epochs(0))})
    ]
    assert found[0] == found[1] == [(0, 48), (48, 24), (48, 24)]
    assert found[2] == [(48, 24)] * 3


def test_random_selection_needs_no_warm_up():
    assert trained_in_epochs(loader_of(selector=Uniform(keep=0.5), exact=True)) == [(0, 24)] * 3


def test_counts_and_progress_have_it():
    given = {"keep": 0.5, "exact": True, "epochs": 3}
    loader = SelectiveLoader(shuffled(48, SIZE), network(), F.cross_entropy, **given)
    assert [loader.steps(epoch) for epoch in range(3)] == [6, 3, 3]
    assert loader.total_steps == 12
    steps = 0
    for _ in range(3):
        steps += sum(1 for _ in loader)
    assert (steps, loader.progress) == (12, 1.0)


@pytest.mark.parametrize("rule", [Stale, Ewma])
def test_the_first_scoring_pass_is_after_it(rule):
    model = network()
    loader = SelectiveLoader(
        shuffled(48, 8),
        model,
        F.cross_entropy,
        memory=rule(0.5, every=2),
        epochs=5,
        exact=True,
        shorter_epochs=True,
    )
    passes = []
    for _ in range(5):
        before = loader.stats.scored
        for x, y in loader:
            loader.loss(F.cross_entropy(model(x), y, reduction="none"))
        passes.append(loader.stats.scored - before)
    assert passes == [0, 48, 0, 48, 0]
    assert loader.stats.released == 48 + 4 * 24


def test_a_step_of_one_s_own_counts_the_calls_of_an_epoch():
    in_batch = InBatch(keep=0.5, steps_per_epoch=3)
    losses = torch.rand(8)
    assert [len(in_batch.select(losses).positions) for _ in range(5)] == [8, 8, 8, 4, 4]
    with pytest.warns(UserWarning, match="give steps_per_epoch=len"):
        at_once = InBatch(keep=0.5)  # the length of an epoch is not known
    assert len(at_once.select(losses).positions) == 4
    never = InBatch(keep=0.5, steps_per_epoch=3, schedule=Schedule(warmup=Epochs(0)))
    assert len(never.select(losses).positions) == 4
    resumed = InBatch(keep=0.5, steps_per_epoch=3)
    resumed.load_state_dict(in_batch.state_dict())
    assert not InBatch(keep=0.5, steps_per_epoch=3).is_on
    assert resumed.is_on
    with pytest.raises(ConfigError, match="without steps_per_epoch: give the number of calls"):
        InBatch(keep=0.5, schedule=Schedule())


def test_no_warning_where_it_is_no_accident():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        InBatch(keep=0.5, steps_per_epoch=3)
        InBatch(keep=0.5, schedule=Schedule(warmup=Epochs(0)))
        InBatch(selector=Uniform(keep=0.5))  # which no weights mislead


def test_a_single_pass_has_the_gradient_of_all_rows_until_then():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    sift = siftback.SinglePass(model, F.cross_entropy, selector=TopK(keep=0.5), steps_per_epoch=2)

    def gradient(loss):
        return torch.autograd.grad(loss, list(model.parameters()))

    whole = gradient(F.cross_entropy(model(x), y))
    for _ in range(2):
        with torch.no_grad():
            sift(x, y)  # which is no step of training
        assert sift.steps < 2
        for one, other in zip(gradient(sift(x, y)), whole, strict=True):
            torch.testing.assert_close(one, other)
    resumed = siftback.SinglePass(
        model, F.cross_entropy, selector=TopK(keep=0.5), steps_per_epoch=2
    )
    resumed.set_extra_state(sift.get_extra_state())
    losses = F.cross_entropy(model(x), y, reduction="none")
    half = gradient(losses.topk(4).values.mean())
    for single in (sift, resumed):
        for one, other in zip(gradient(single(x, y)), half, strict=True):
            torch.testing.assert_close(one, other)
    assert (sift.stats.seen, sift.stats.considered, sift.stats.kept) == (24, 8, 4)
    assert sift.stats.backwards == 20
    assert sift.stats.kept_share == 0.5
