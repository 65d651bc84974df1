"""Ewma: averages against a loop, and what both predictors have in common."""

import pytest
import torch

from remembering import (
    Numbered,
    Read,
    epoch_of,
    observed,
    plain,
    ruled,
    seeded,
    spread,
)
from siftback import Epochs
from siftback.contrib.ewma import Ewma
from siftback.contrib.gaussian_process import GaussianProcess
from siftback.errors import ConfigError
from siftback.rules.memory import Memory
from siftback.rules.stale import Stale
from siftback.tables.score_table import ScoreTable
from toys import assert_same

PREDICTORS = {"ewma": Ewma, "process": GaussianProcess}


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_the_average_is_a_loops(decay):
    ewma, averages = Ewma(0.5, decay=decay, warmup=Epochs(0)), {}
    for index, _, loss in observed(ewma, 60, 4):
        averages[index] = (
            decay * averages[index] + (1 - decay) * loss if index in averages else loss
        )
    expected = torch.tensor([averages.get(index, torch.nan) for index in range(60)])
    torch.testing.assert_close(ewma.predicted(5), expected, equal_nan=True)


def test_the_probability_is_the_average_of_crossings():
    ewma, averages, recent = (
        Ewma(0.5, decay=0.6, predict="probability", threshold_share=0.25, warmup=Epochs(0)),
        {},
        [],
    )
    ewma.grow(3000)
    generator = torch.Generator().manual_seed(5)
    for epoch in range(3):
        for is_pass, see in ((True, ewma.rescore), (False, ewma.update)):
            for indices in torch.randperm(3000, generator=generator).split(300):
                losses = torch.rand(300, generator=generator) * (3 if is_pass else 1) / (epoch + 1)
                see(indices, losses, epoch)
                if is_pass:
                    recent = [*recent, *losses.tolist()][-1024:]
                threshold = torch.tensor(recent).quantile(0.75)
                assert ewma.threshold == float(threshold)
                for index, loss in zip(indices.tolist(), losses, strict=True):
                    crossed = float(loss > threshold)
                    before = averages.get(index, crossed)
                    averages[index] = 0.6 * before + 0.4 * crossed
    expected = torch.tensor([averages[index] for index in range(3000)])
    torch.testing.assert_close(ewma.predicted(3), expected)
    assert 0.05 < expected.mean() < 0.2


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_the_threshold_is_of_trainings_losses_until_there_was_a_pass(make):
    rule = make(0.5, predict="probability", threshold_share=0.5)
    rule.grow(5)
    assert torch.tensor(rule.threshold).isnan()
    rule.update(torch.arange(5), torch.tensor([1.0, 2, 3, 4, 5]), 0)
    assert rule.threshold == 3
    rule.rescore(torch.arange(4), torch.tensor([6.0, 6, 6, torch.inf]), 1)
    assert rule.threshold == 4.5
    rule.update(torch.arange(5), torch.full((5,), 100.0), 1)
    assert rule.threshold == 4.5


@pytest.mark.parametrize("predict", ["loss", "probability"])
@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_optimism_raises_those_that_are_old(make, predict):
    plain, hopeful = (make(0.5, predict=predict, optimism=c) for c in (0.0, 2.0))
    for rule in (plain, hopeful):
        rule.grow(301)
        losses = spread(300)
        for epoch in range(6):  # a third of the examples is last seen in each of 0, 3 and 5
            seen = torch.arange(0 if epoch == 0 else 100 if epoch <= 3 else 200, 300)
            rule.rescore(seen, losses[seen], epoch)
    raised = (hopeful.predicted(6) - plain.predicted(6))[:300].view(3, 100)
    assert raised[0].min() > raised[1].max()
    assert raised[1].min() > raised[2].max()
    assert raised[2].min() > 0
    assert hopeful.predicted(6)[300].isnan()


def test_ewmas_optimism_is_of_the_square_root_of_the_age():
    ewma = Ewma(0.5, decay=0.0, optimism=1.5, warmup=Epochs(0))
    ewma.grow(4)
    ewma.rescore(torch.tensor([0, 1]), torch.tensor([1.0, 3.0]), 0)
    ewma.rescore(torch.tensor([2]), torch.tensor([2.0]), 3)
    expected = torch.tensor([1 + 1.5 * 2, 3 + 1.5 * 2, 2 + 1.5, torch.nan])  # sd is 1
    torch.testing.assert_close(ewma.predicted(4), expected, equal_nan=True)


@pytest.mark.parametrize("predict", ["loss", "probability"])
@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_losses_that_are_not_finite_do_no_lasting_harm(make, predict):
    rule = make(0.5, predict=predict)
    rule.grow(6)
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0, 2.0])
    rule.rescore(torch.arange(5), bad, 0)
    rule.rescore(torch.arange(5), torch.arange(1.0, 6), 1)
    predicted = rule.predicted(2)
    assert predicted[:5].isfinite().all()
    assert predicted[5].isnan()


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_equal_losses_and_a_single_one_are_predicted(make):
    for predict in ("loss", "probability"):
        for count in (1, 5):
            rule = make(0.5, predict=predict, optimism=1)
            rule.grow(6)
            rule.rescore(torch.arange(count), torch.full((count,), 0.7), 0)
            predicted = rule.predicted(2)
            assert predicted[:count].isfinite().all()
            assert (predicted[:count] == predicted[0]).all()
            assert predicted[count:].isnan().all()


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_nothing_seen_is_nothing_predicted(make):
    rule = make(0.5, optimism=1)
    rule.grow(3)
    assert rule.predicted(0).isnan().all()


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_whose_loss_it_is_does_not_depend_on_the_order(make):
    losses = spread(200)
    order = torch.randperm(200, generator=seeded(2))
    predicted = []
    for data in (losses, losses[order]):
        rule = make(0.5, every=1)
        loader = ruled(rule, wrapped=plain(Numbered(data)))
        for _ in range(2):
            epoch_of(loader)
        predicted.append(rule.predicted(2))
    torch.testing.assert_close(predicted[1], predicted[0][order])
    assert_same(predicted[0].argsort(), losses.argsort())


def test_without_memory_of_older_losses_and_without_training_the_average_is_stale():
    losses, drawn = torch.rand(6, 300, generator=seeded(1)), []
    for rule in (Stale(0.4, warmup=Epochs(0)), Ewma(0.4, decay=0.0, warmup=Epochs(0))):
        rule.grow(300)
        drawn.append([])
        for epoch in range(6):
            if rule.is_pass(epoch):
                rule.rescore(torch.arange(300), losses[epoch], epoch)
            else:
                drawn[-1].append(rule.draw(epoch, seeded(epoch)))
    assert_same(*drawn)


@pytest.mark.parametrize("predict", ["loss", "probability"])
@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_between_passes_examples_are_drawn_by_the_prediction_before_they_are_read(make, predict):
    losses = spread(600)
    data = Read(Numbered(losses))
    rule = make(beta=3, every=3, predict=predict, warmup=Epochs(0))
    loader = ruled(rule, wrapped=plain(data))
    history = {}
    for epoch in range(6):
        numbers = epoch_of(loader)
        reads = data.take_reads()
        if epoch % 3 == 0:
            assert sorted(reads) == list(range(600))
            history = rule.selector.state_dict()
        else:
            assert reads == numbers
            assert_same(rule.selector.state_dict(), history)
            assert len(numbers) == 150
            assert losses[numbers].mean() > losses.mean() + 0.1
    assert loader.stats.scored == 1200


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_what_was_never_seen_is_always_kept(make):
    rule = make(0.5)
    rule.grow(300)
    rule.rescore(torch.arange(0, 300, 2), spread(150), 0)
    assert rule.draw(1, seeded(1))[1::2].tolist() == [1.0] * 150


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_a_score_that_is_unknown_leaves_what_was_known(make):
    rule = make(0.5)
    rule.grow(3)
    rule.rescore(torch.arange(2), torch.tensor([1.0, 2.0]), 0)
    before = rule.values.clone()
    rule.rescore(torch.arange(3), torch.full((3,), torch.nan), 1)
    torch.testing.assert_close(rule.values, before, equal_nan=True)


REFUSED = {
    "decay": (
        lambda: Ewma(0.5, decay=1.0, warmup=Epochs(0)),
        r"decay=1.0: give a share in \[0, 1\)",
    ),
    "every": (lambda: Ewma(0.5, every=0, warmup=Epochs(0)), "every=0: give an integer, at least 1"),
    "predict": (
        lambda: Ewma(0.5, predict="rank", warmup=Epochs(0)),
        'predict=\'rank\': give "loss" or "probability"',
    ),
    "share": (
        lambda: Ewma(0.5, threshold_share=1, warmup=Epochs(0)),
        r"threshold_share=1: give a share in \(0, 1\)",
    ),
    "optimism": (
        lambda: Ewma(0.5, optimism=-1, warmup=Epochs(0)),
        "optimism=-1: give a finite number, at least 0",
    ),
    "a rule": (
        lambda: Ewma(0.5, scorer=Memory(), warmup=Epochs(0)),
        "is a rule: give Ewma a scorer",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "columns"), [(Ewma, 2), (GaussianProcess, 12)], ids=["ewma", "process"]
)
def test_what_it_remembers_may_be_in_a_file(make, columns, tmp_path):
    table = ScoreTable(columns=columns, path=tmp_path / "losses.table")
    in_memory = make(0.5)
    assert observed(make(0.5, table=table), 40, 3) == observed(in_memory, 40, 3)
    table = ScoreTable(columns=columns, path=tmp_path / "losses.table")
    torch.testing.assert_close(table.values, in_memory.values, rtol=0, atol=0, equal_nan=True)
