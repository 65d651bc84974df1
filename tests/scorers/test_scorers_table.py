"""Every public scorer through one table: what a batch's scores are, whoever makes them."""

import inspect

import pytest
import torch

import siftback
from pictures import CROSS_ENTROPY, batch, network, proxy_network
from siftback import Ema, Fresh, GradientBound, Irreducible, Reduced, Scorer, contrib
from siftback.contrib import Downsampled, Int8, Proxy

COUNT = 24
IRREDUCIBLE = torch.linspace(0, 1, COUNT)

SCORERS = {
    "fresh": Fresh,
    "reduced": lambda: Reduced("bf16"),
    "downsampled": lambda: Downsampled(2),
    "ema": lambda: Ema(0.9),
    "proxy": lambda: Proxy(proxy_network()),
    "gradient bound": GradientBound,
    "irreducible": lambda: Irreducible(IRREDUCIBLE),
    "int8": Int8,
}
every = pytest.mark.parametrize("name", SCORERS)


def one_at_a_time(name, model, images, targets):
    """Each example's own score, by the formula of those that score by the model's exact losses."""
    model.eval()
    logits = model(images).detach()
    probabilities = logits.softmax(1)
    if name == "gradient bound":
        probabilities[torch.arange(len(targets)), targets] -= 1
        return probabilities.norm(dim=1)
    losses = -probabilities[torch.arange(len(targets)), targets].log()
    return losses - IRREDUCIBLE if name == "irreducible" else losses


def scored(name, model, examples, rows=None, scorer=None):
    scorer = scorer or SCORERS[name]()
    rows = torch.arange(COUNT) if rows is None else rows
    part = tuple(each[rows] for each in examples)
    return scorer.score(CROSS_ENTROPY, model, part, rows)


def test_every_public_scorer_has_a_row():
    public = {getattr(room, name) for room in (siftback, contrib) for name in room.__all__}
    scorers = {c for c in public if inspect.isclass(c) and issubclass(c, Scorer)} - {Scorer}
    assert scorers == {type(make()) for make in SCORERS.values()}


@every
def test_scores_are_one_number_per_example_and_change_nothing_else(name):
    model, before = network(), torch.get_rng_state()
    scores = scored(name, model, batch(1))
    assert scores.shape == (COUNT,)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    assert not scores.requires_grad
    assert scores.std() > 0
    assert model.training
    if name != "proxy":  # which this test makes from a seed of its own
        assert torch.get_rng_state().equal(before)


@every
def test_scores_are_those_of_the_formula(name):
    model, examples = network(), batch(1)
    found = scored(name, model, examples)
    if name in (
        "reduced",
        "int8",
        "downsampled",
        "proxy",
    ):  # not exact; held to references of their own
        return
    torch.testing.assert_close(found, one_at_a_time(name, model, *examples), rtol=1e-4, atol=1e-5)


@every
def test_scores_follow_their_examples(name):
    model, examples = network(), batch(2)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    whole = scored(name, model, examples)
    tolerance = {"reduced": 0.05, "int8": 0.2}.get(name, 1e-5)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(scored(name, model, examples, order), whole[order], **close)
    torch.testing.assert_close(scored(name, model, examples, order[:1]), whole[order[:1]], **close)


@every
def test_a_state_gives_the_same_scores(name):
    model, examples = network(), batch(3)
    one, other = SCORERS[name](), SCORERS[name]()
    scored(name, model, examples, scorer=one)
    other.load_state_dict(one.state_dict())
    found = [scored(name, model, examples, scorer=scorer) for scorer in (one, other)]
    assert found[0].equal(found[1])
