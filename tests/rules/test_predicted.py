"""Predicted losses: against loops and scikit-learn's regressor, one example at a time."""

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from remembering import Numbered, Read, epoch_of, indexed, selective, spread
from siftback import ConfigError, Ewma, GaussianProcess, ScoreTable, Stale
from siftback.rules.predicted import posterior
from toys import assert_same

PREDICTORS = {"ewma": Ewma, "process": GaussianProcess}


def regressed(epochs, losses, epoch, length_scale, noise, mean, variance):
    """Mean and standard deviation of a new observation, by scikit-learn."""
    kernel = ConstantKernel(variance) * RBF(length_scale) + WhiteKernel(noise * variance)
    process = GaussianProcessRegressor(kernel, alpha=0, optimizer=None)
    process.fit([[e] for e in epochs], [loss - mean for loss in losses])
    predicted, sd = process.predict([[epoch]], return_std=True)
    return mean + float(predicted[0]), float(sd[0])


def histories(examples, history, epochs, seed=0):
    """Random observations: some examples have none, some full histories, few of equal epochs."""
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(examples, history, generator=generator) * 4
    when = torch.stack(
        [torch.randperm(epochs, generator=generator)[:history] for _ in range(examples)]
    )
    when = when.sort(1).values.to(torch.int16)
    counts = torch.randint(history + 1, (examples,), generator=generator)
    when[torch.arange(history) < history - counts[:, None]] = -1
    return losses, when


@pytest.mark.parametrize("history", [1, 3, 4, 8])
@pytest.mark.parametrize(("length_scale", "noise"), [(0.5, 1.0), (4.0, 0.1), (30.0, 0.01)])
def test_the_posterior_is_scikit_learns(history, length_scale, noise):
    losses, when = histories(60, history, 12)
    kernel = {"length_scale": length_scale, "noise": noise, "mean": 1.7, "variance": 2.5}
    means, sds = posterior(losses, when, 13, **kernel)
    for row in range(60):
        there = when[row] >= 0
        if not there.any():
            assert means[row].isnan()
            assert sds[row].isnan()
            continue
        observed = when[row][there].tolist(), losses[row][there].tolist()
        mean, sd = regressed(*observed, 13, **kernel)
        assert abs(float(means[row]) - mean) < 1e-5
        assert abs(float(sds[row]) - sd) < 1e-5


def test_the_posterior_does_not_depend_on_the_company():
    losses, when = histories(70_000, 4, 6)  # more than are predicted at a time
    kernel = {"length_scale": 2.0, "noise": 0.2, "mean": 1.0, "variance": 1.0}
    whole = posterior(losses, when, 7, **kernel)
    order = torch.randperm(70_000, generator=torch.Generator().manual_seed(1))
    shuffled = posterior(losses[order], when[order], 7, **kernel)
    for one, other in zip(whole, shuffled, strict=True):
        torch.testing.assert_close(one[order], other, rtol=1e-6, atol=1e-6, equal_nan=True)
    none = posterior(losses[:0], when[:0], 7, **kernel)
    assert [len(part) for part in none] == [0, 0]


def told(scorer, examples, epochs, seed=3):
    """Lets a scorer see random losses; gives them as (example, epoch, loss), in their order."""
    scorer.grow(examples)
    generator, seen = torch.Generator().manual_seed(seed), []
    for epoch in range(epochs):
        for see in (scorer.scored, scorer.trained):
            indices = torch.randperm(examples, generator=generator)[: examples // 2]
            losses = torch.rand(len(indices), generator=generator) * 3
            see(indices, losses, epoch)
            seen += zip(indices.tolist(), [epoch] * len(indices), losses.tolist(), strict=True)
    return seen


@pytest.mark.parametrize("history", [1, 4, 20])
def test_the_process_sees_each_examples_last_losses_one_an_epoch(history):
    process = GaussianProcess(3.0, 0.2, history=history)
    seen = {}
    for index, epoch, loss in told(process, 40, 9):
        seen.setdefault(index, {})[epoch] = loss
    latest = torch.tensor([list(losses.values())[-1] for losses in seen.values()]).double()
    prior = {"mean": float(latest.mean()), "variance": float(latest.var(correction=0))}
    means, sds = process.posterior(10)
    for index, losses in seen.items():
        last = dict(list(losses.items())[-history:])
        mean, sd = regressed(list(last), list(last.values()), 10, 3.0, 0.2, **prior)
        assert abs(float(means[index]) - mean) < 1e-5
        assert abs(float(sds[index]) - sd) < 1e-5
    assert means.isnan().sum() == 40 - len(seen)


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_the_average_is_a_loops(decay):
    ewma, averages = Ewma(decay), {}
    for index, _, loss in told(ewma, 60, 4):
        averages[index] = (
            decay * averages[index] + (1 - decay) * loss if index in averages else loss
        )
    expected = torch.tensor([averages.get(index, torch.nan) for index in range(60)])
    torch.testing.assert_close(ewma.predicted(5), expected, equal_nan=True)


def test_the_chance_of_the_average_is_the_average_of_crossings():
    ewma, averages, recent = Ewma(0.6, predict="chance", threshold_share=0.25), {}, []
    ewma.grow(3000)
    generator = torch.Generator().manual_seed(5)
    for epoch in range(3):
        for passes, see in ((True, ewma.scored), (False, ewma.trained)):
            for indices in torch.randperm(3000, generator=generator).split(300):
                losses = torch.rand(300, generator=generator) * (3 if passes else 1) / (epoch + 1)
                see(indices, losses, epoch)
                if passes:
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


def test_the_chance_of_the_process_is_the_normal_distributions():
    process = GaussianProcess(predict="chance", threshold_share=0.4)
    told(process, 50, 5)
    mean, sd = process.posterior(6)
    chance = 1 - torch.distributions.Normal(mean.nan_to_num(), sd.nan_to_num(1)).cdf(
        torch.tensor(process.threshold)
    )
    chance[mean.isnan()] = torch.nan
    torch.testing.assert_close(process.predicted(6), chance, equal_nan=True)


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_the_threshold_is_of_trainings_losses_until_there_was_a_pass(make):
    scorer = make(predict="chance", threshold_share=0.5)
    scorer.grow(5)
    assert torch.tensor(scorer.threshold).isnan()
    scorer.trained(torch.arange(5), torch.tensor([1.0, 2, 3, 4, 5]), 0)
    assert scorer.threshold == 3
    scorer.scored(torch.arange(4), torch.tensor([6.0, 6, 6, torch.inf]), 1)
    assert scorer.threshold == 4.5
    scorer.trained(torch.arange(5), torch.full((5,), 100.0), 1)
    assert scorer.threshold == 4.5


@pytest.mark.parametrize("predict", ["loss", "chance"])
@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_optimism_raises_those_that_are_old(make, predict):
    plain, hopeful = (make(predict=predict, optimism=c) for c in (0.0, 2.0))
    for scorer in (plain, hopeful):
        scorer.grow(301)
        losses = spread(300)
        for epoch in range(6):  # a third of the examples is last seen in each of 0, 3 and 5
            seen = torch.arange(0 if epoch == 0 else 100 if epoch <= 3 else 200, 300)
            scorer.scored(seen, losses[seen], epoch)
    raised = (hopeful.predicted(6) - plain.predicted(6))[:300].view(3, 100)
    assert raised[0].min() > raised[1].max()
    assert raised[1].min() > raised[2].max()
    assert raised[2].min() > 0
    assert hopeful.predicted(6)[300].isnan()


def test_ewmas_optimism_is_of_the_square_root_of_the_age():
    ewma = Ewma(0.0, optimism=1.5)
    ewma.grow(4)
    ewma.scored(torch.tensor([0, 1]), torch.tensor([1.0, 3.0]), 0)
    ewma.scored(torch.tensor([2]), torch.tensor([2.0]), 3)
    expected = torch.tensor([1 + 1.5 * 2, 3 + 1.5 * 2, 2 + 1.5, torch.nan])  # sd is 1
    torch.testing.assert_close(ewma.predicted(4), expected, equal_nan=True)


def test_the_processs_optimism_is_of_its_standard_deviation():
    processes = [GaussianProcess(optimism=c) for c in (0.0, 1.5)]
    for process in processes:
        told(process, 30, 4)
    plain, raised = (process.predicted(8) for process in processes)
    sd = processes[0].posterior(8).sd
    torch.testing.assert_close(raised, plain + 1.5 * sd, equal_nan=True)


def test_what_was_long_ago_is_as_unsure_as_what_was_never():
    process = GaussianProcess(2.0, 0.5)
    process.grow(4)
    process.scored(torch.arange(4), torch.tensor([0.0, 1.0, 2.0, 5.0]), 0)
    mean, sd = process.posterior(1000)
    torch.testing.assert_close(mean, torch.full((4,), 2.0))
    torch.testing.assert_close(sd, torch.full((4,), (3.5 * 1.5) ** 0.5))


@pytest.mark.parametrize("predict", ["loss", "chance"])
@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_losses_that_are_not_finite_do_no_lasting_harm(make, predict):
    scorer = make(predict=predict)
    scorer.grow(6)
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0, 2.0])
    scorer.scored(torch.arange(5), bad, 0)
    scorer.scored(torch.arange(5), torch.arange(1.0, 6), 1)
    predicted = scorer.predicted(2)
    assert predicted[:5].isfinite().all()
    assert predicted[5].isnan()


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_equal_losses_and_a_single_one_are_predicted(make):
    for predict in ("loss", "chance"):
        for count in (1, 5):
            scorer = make(predict=predict, optimism=1)
            scorer.grow(6)
            scorer.scored(torch.arange(count), torch.full((count,), 0.7), 0)
            predicted = scorer.predicted(2)
            assert predicted[:count].isfinite().all()
            assert (predicted[:count] == predicted[0]).all()
            assert predicted[count:].isnan().all()


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_nothing_seen_is_nothing_predicted(make):
    scorer = make(optimism=1)
    scorer.grow(3)
    assert scorer.predicted(0).isnan().all()


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_whose_loss_it_is_does_not_depend_on_the_order(make):
    losses = spread(200)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(2))
    predicted = []
    for data in (losses, losses[order]):
        scorer = make(refresh_from_training=False)
        loader = selective(indexed(Numbered(data)), keep=0.5, scorer=scorer)
        for _ in range(4):  # two passes
            epoch_of(loader)
        predicted.append(scorer.predicted(4))
    torch.testing.assert_close(predicted[1], predicted[0][order])
    assert_same(predicted[0].argsort(), losses.argsort())


def test_without_memory_of_older_losses_the_average_is_stale():
    drawn = []
    for scorer in (Stale(3), Ewma(0.0, 3, refresh_from_training=False)):
        loader = selective(indexed(Numbered(spread(300))), keep=0.4, scorer=scorer)
        drawn.append([epoch_of(loader) for _ in range(6)])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("predict", ["loss", "chance"])
@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_between_passes_examples_are_drawn_by_the_prediction_before_they_are_read(make, predict):
    losses = spread(600)
    data = Read(Numbered(losses))
    loader = selective(indexed(data), beta=3, scorer=make(every=3, predict=predict))
    history = {}
    for epoch in range(6):
        numbers = epoch_of(loader)
        reads = data.take_reads()
        if epoch % 3 == 0:
            assert sorted(reads) == list(range(600))
            history = loader.selector.state_dict()
        else:
            assert reads == numbers
            assert_same(loader.selector.state_dict(), history)
            assert abs(len(numbers) - 150) < 4 * (600 * 0.25 * 0.75) ** 0.5
            assert losses[numbers].mean() > losses.mean() + 0.1
    assert loader.stats.scored == 1200


def test_what_was_never_seen_is_always_kept():
    for make in PREDICTORS.values():
        scorer = make()
        loader = selective(indexed(Numbered(spread(300))), keep=0.3, scorer=scorer, score_share=0.5)
        epoch_of(loader)
        unseen = scorer.predicted(1).isnan().nonzero().squeeze(1).tolist()
        assert len(unseen) > 100
        assert set(unseen) <= set(epoch_of(loader))


def test_growing_keeps_the_histories():
    process = GaussianProcess()
    told(process, 30, 4)
    before = process.predicted(4)
    process.grow(50)
    process.grow(20)
    after = process.predicted(4)
    torch.testing.assert_close(after[:30], before, equal_nan=True)
    assert after[30:].isnan().all()
    assert len(after) == 50


def test_late_epochs_are_as_the_last_that_can_be_written_down():
    process = GaussianProcess()
    process.grow(2)
    process.scored(torch.tensor([0]), torch.tensor([1.0]), 40_000)
    process.scored(torch.tensor([1]), torch.tensor([2.0]), 50_000)
    assert process.predicted(60_000).isfinite().all()


REFUSED = {
    "decay": (lambda: Ewma(1.0), r"decay=1.0: give a number in \[0, 1\)"),
    "every": (lambda: Ewma(every=0), "every=0: give a whole number of epochs"),
    "predict": (lambda: Ewma(predict="rank"), "predict='rank': give \"loss\" or \"chance\""),
    "share": (lambda: Ewma(threshold_share=1), r"threshold_share=1: give a share in \(0, 1\)"),
    "optimism": (lambda: Ewma(optimism=-1), "optimism=-1: give a number, at least 0"),
    "length": (lambda: GaussianProcess(0), "length_scale=0: give a number above 0"),
    "noise": (lambda: GaussianProcess(noise=0.0), "noise=0.0: give a number above 0"),
    "history": (lambda: GaussianProcess(history=0), "history=0: give a whole number of losses"),
    "nested": (lambda: GaussianProcess(scorer=Ewma()), "Ewma remembers scores itself: give Gauss"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_average_may_be_in_a_file(tmp_path):
    path = tmp_path / "averages.table"
    seen = [told(Ewma(table=table), 40, 3) for table in (ScoreTable(path=path), None)]
    assert seen[0] == seen[1]
    in_memory = Ewma()
    told(in_memory, 40, 3)
    assert_same(ScoreTable(path=path).state_dict(), in_memory.table.state_dict())
