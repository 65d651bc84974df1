"""Scoring a uniform part of each selection batch, and selection batches larger than training's."""

import math
from contextlib import suppress

import pytest
import torch
from scipy.stats import chisquare
from torch import nn

from siftback import ConfigError, LossError, Percentile, SelectiveLoader
from toys import assert_same, given_losses, numbered


def loader_of(losses, size=20, **arguments):
    return SelectiveLoader(numbered(losses, size), nn.Identity(), losses=given_losses, **arguments)


def numbers(batches):
    return torch.cat([batch["number"] for batch in batches]) if batches else torch.empty(0).long()


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8, 1])
def test_that_share_of_every_batch_is_scored(share):
    scored = []

    def losses(model, batch):
        scored.append(batch["number"])
        return batch["loss"]

    loader = SelectiveLoader(
        numbered(torch.rand(190), 20), nn.Identity(), losses=losses, keep=0.5, score_share=share
    )
    list(loader)
    sizes = [20] * 9 + [10]
    assert [len(rows) for rows in scored] == [round(share * size) for size in sizes]
    for place, rows in enumerate(scored):
        assert len(rows.unique()) == len(rows)  # without repeats, and of its own batch
        assert ((rows >= 20 * place) & (rows < 20 * place + 20)).all()
    assert loader.stats.scored == sum(len(rows) for rows in scored)
    assert loader.stats.seen == loader.stats.considered == 190


def test_at_least_one_example_is_scored():
    loader = loader_of(torch.rand(10), 2, keep=1, score_share=0.01)
    assert len(numbers(list(loader))) == loader.stats.scored == 5


@pytest.mark.parametrize(("share", "keep"), [(0.5, 0.5), (0.25, 1 / 3), (0.75, 1)])
def test_the_share_kept_is_that_of_both(share, keep):
    count = 40_000
    losses = torch.rand(count, generator=torch.Generator().manual_seed(0))
    loader = loader_of(losses, 100, keep=keep, score_share=share, history=count)
    kept = len(numbers(list(loader)))
    chance = share * keep
    # Four standard deviations of independent draws; drawing without repeats varies less.
    assert abs(kept / count - chance) < 4 * math.sqrt(chance * (1 - chance) / count) + 1e-9
    assert loader.stats.kept == kept
    assert loader.stats.scored == share * count


def test_every_place_of_a_batch_is_as_likely_to_be_scored():
    loader = loader_of(torch.zeros(20_000), 20, keep=1, score_share=0.3)
    places = torch.bincount(numbers(list(loader)) % 20, minlength=20)
    assert places.sum() == 6000
    assert chisquare(places.numpy()).pvalue > 0.001


def test_what_is_kept_of_the_scored_are_those_that_selection_keeps():
    losses = torch.rand(200, generator=torch.Generator().manual_seed(0))
    scored = []

    class Remembering(Percentile):
        def select(self, scores, generator):
            selection = super().select(scores, generator)
            scored.append(scores[selection.indices])
            return selection

    loader = loader_of(losses, selector=Remembering(keep=0.5), score_share=0.5)
    batches = list(loader)
    assert_same(losses[numbers(batches)], torch.cat(scored))
    assert_same(torch.cat([batch["loss"] for batch in batches]), torch.cat(scored))


def test_an_error_names_the_examples_place_in_the_whole_batch():
    losses = torch.zeros(64)
    losses[5] = torch.nan
    told = 0
    for seed in range(20):
        loader = loader_of(losses, 64, keep=0.5, score_share=0.25, seed=seed)
        with suppress(LossError):
            list(loader)
        if loader.stats.nonfinite:
            with pytest.raises(LossError, match="the loss of example 5 in batch 0"):
                list(loader_of(losses, 64, keep=0.5, score_share=0.25, seed=seed))
            told += 1
    assert 0 < told < 20  # where it was scored, and only there


def test_scoring_all_draws_nothing_more_than_without_the_argument():
    losses = torch.rand(100)
    assert_same(
        list(loader_of(losses, keep=0.5, score_share=1.0)), list(loader_of(losses, keep=0.5))
    )


def test_going_on_from_any_batch_equals_never_stopping():
    losses = torch.rand(200, generator=torch.Generator().manual_seed(0))
    arguments = {"keep": 0.5, "score_share": 0.5, "batch_size": 7}

    def run(state=None):
        loader, batches, states = loader_of(losses, **arguments), [], []
        if state is not None:
            loader.load_state_dict(state)
        while loader.epoch < 2:
            for batch in loader:
                batches.append(batch)
                states.append(loader.state_dict())
        return batches, states, loader.stats.scored

    batches, states, scored = run()
    assert scored == 200
    for done, state in enumerate(states, start=1):
        rest, _, same_scored = run(state)
        assert_same(rest, batches[done:])
        assert same_scored == scored


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan"), True, "half"])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(ConfigError, match=r"score_share=.*: give a share in \(0, 1\]"):
        loader_of(torch.zeros(4), keep=0.5, score_share=share)


@pytest.mark.parametrize("times", [1, 2, 4, 8])
def test_larger_selection_batches_make_fewer_passes_and_the_same_training_batches(times):
    passes = []

    def losses(model, batch):
        passes.append(len(batch["number"]))
        return batch["loss"]

    loader = SelectiveLoader(
        numbered(torch.rand(800), 10 * times), nn.Identity(), losses=losses,
        keep=0.5, batch_size=10, drop_last=True,
    )  # fmt: skip
    sizes = {len(batch["number"]) for batch in loader}
    assert passes == [10 * times] * (80 // times)
    assert sizes == {10}
    assert loader.stats.scored == 800
