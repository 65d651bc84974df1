"""Scores from a copy of the model in fewer bits."""

import copy

import pytest
import scipy
import torch
from torch import nn

from pictures import CLASSES, CROSS_ENTROPY, batch, change, network, trained
from siftback import Ema, Fresh, Reduced
from siftback.contrib import Int8
from siftback.scorers.snapshot import tensors_of
from toys import assert_same
from traces import assert_untouched, traces

compiling = pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["cnn", "resnet18"])
@pytest.mark.parametrize(
    ("scorer", "least"),
    [
        (Reduced("bf16"), 0.99),
        (Reduced("fp16"), 0.998),  # 0.9982 on processors without 16-bit kernels
        (Int8(), 0.9),
        (Int8(activations="static"), 0.9),
    ],
)
def test_scores_rank_as_exact_losses_do(name, scorer, least):
    model, examples = trained(network(name)), batch(100, 200)
    exact = Fresh().score(CROSS_ENTROPY, model, examples, None)
    reduced = copy.deepcopy(scorer).score(CROSS_ENTROPY, model, examples, None)
    assert scipy.stats.spearmanr(exact, reduced).statistic > least
    assert not reduced.equal(exact)


def cast_by_hand(model, dtype):
    """A copy whose matrices and kernels went through a type and back."""
    twin = copy.deepcopy(model).eval()
    for parameter in twin.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.to(dtype).float()
    return twin


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_copy_gives_what_autocast_gives(dtype):
    model, examples = trained(network()), batch(100)
    precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    expected = Fresh(autocast=dtype).score(CROSS_ENTROPY, model, examples, None)
    assert_same(Reduced(precision).score(CROSS_ENTROPY, model, examples, None), expected)
    in_float = Fresh().score(CROSS_ENTROPY, cast_by_hand(model, dtype), examples, None)
    torch.testing.assert_close(expected, in_float, rtol=0.1, atol=0.1)


def scores_over_steps(scorer, steps=7):
    """Scores of one batch before each step of training, and the models of those moments."""
    model, scores, models = trained(network(), 5), [], []
    torch.manual_seed(0)
    for _ in range(steps):
        models.append(copy.deepcopy(model))
        scores.append(scorer.score(CROSS_ENTROPY, model, batch(100), None))
        change(model)
        scorer.after_step(CROSS_ENTROPY, model, batch(0))
    return scores, models


@pytest.mark.parametrize("make", [Reduced, Int8])
@pytest.mark.parametrize("every", [1, 3])
def test_the_copy_is_of_every_mth_step(make, every):
    scorer = make(refresh=every)
    scores, models = scores_over_steps(scorer)
    for done, scored in enumerate(scores):
        of_then = models[done - done % every]
        assert_same(scored, make().score(CROSS_ENTROPY, of_then, batch(100), None))
    assert scorer.refreshes == len(range(0, len(scores), every))
    assert scorer.seconds_refresh > 0


def test_buffers_of_a_copy_are_of_its_moment():
    model, scorer = network(), Reduced("bf16", 2)
    before = scorer.score(CROSS_ENTROPY, model, batch(0), None)
    model(batch(1)[0])  # moves BatchNorm's statistics
    scorer.after_step(CROSS_ENTROPY, model, batch(1))
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0), None), before)
    scorer.after_step(CROSS_ENTROPY, model, batch(1))
    assert not scorer.score(CROSS_ENTROPY, model, batch(0), None).equal(before)


def addresses(model):
    return {t.data_ptr() for t in tensors_of(model).values()}


def test_a_refresh_takes_no_new_memory_and_shares_what_it_can():
    model, scorer = network(), Reduced("bf16")
    scorer.score(CROSS_ENTROPY, model, batch(0), None)
    twin = scorer.copy.model
    before = addresses(twin)
    matrices = {p.data_ptr() for p in model.parameters() if p.ndim > 1}
    assert before & addresses(model) == addresses(model) - matrices
    assert all(p.dtype == torch.bfloat16 for p in twin.parameters() if p.ndim > 1)
    assert all(t.dtype != torch.bfloat16 for t in tensors_of(twin).values() if t.ndim < 2)
    change(model)
    scorer.after_step(CROSS_ENTROPY, model, batch(0))
    scorer.score(CROSS_ENTROPY, model, batch(0), None)
    assert addresses(scorer.copy.model) == before


def test_a_model_whose_tensors_were_replaced_is_copied_again():
    model, scorer = network(), Reduced("bf16")
    scorer.score(CROSS_ENTROPY, model, batch(0), None)
    other = trained(network())
    model.load_state_dict(other.state_dict(), assign=True)
    scorer.after_step(CROSS_ENTROPY, model, batch(0))
    expected = Reduced("bf16").score(CROSS_ENTROPY, other, batch(0), None)
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0), None), expected)


def test_train_mode_scores_with_the_batchs_own_statistics_as_the_model_would():
    model = network()
    model[0][1].eval()
    scorer = Reduced("bf16", mode="train")
    expected = Fresh("train", torch.bfloat16).score(CROSS_ENTROPY, model, batch(0), None)
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0), None), expected)
    model[0][1].train()  # and follows it
    expected = Fresh("train", torch.bfloat16).score(CROSS_ENTROPY, model, batch(0), None)
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0), None), expected)


@pytest.mark.sampled(2)
@compiling
@pytest.mark.parametrize("scorer", [Fresh(compile=True), Reduced("bf16", compile=True)])
def test_compiled_scores_are_those_that_are_not(scorer):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    torch.compiler.reset()
    plain = Fresh() if isinstance(scorer, Fresh) else Reduced("bf16")
    before = traces(model)
    for _ in range(2):
        expected = plain.score(CROSS_ENTROPY, model, batch(0), None)
        scores = scorer.score(CROSS_ENTROPY, model, batch(0), None)
        torch.testing.assert_close(scores, expected, rtol=0.02, atol=0.02)
        assert_untouched(model, before)
        change(model)
        before = traces(model)
        for each in (plain, scorer):
            each.after_step(CROSS_ENTROPY, model, batch(0))


@compiling
@pytest.mark.parametrize("scorer", [Reduced("bf16"), Int8(), Ema(0.5)])
def test_a_compiled_model_is_scored_as_the_one_within(scorer):
    model = trained(network(), 3)
    expected = copy.deepcopy(scorer).score(CROSS_ENTROPY, model, batch(0), None)
    assert_same(scorer.score(CROSS_ENTROPY, torch.compile(model), batch(0), None), expected)
