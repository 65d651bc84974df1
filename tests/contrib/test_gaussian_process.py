"""The Gaussian process: against scikit-learn's regressor, one example at a time."""

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from remembering import observed
from siftback import Epochs
from siftback.contrib.gaussian_process import GaussianProcess, posterior
from siftback.errors import ConfigError


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


@pytest.mark.parametrize("history", [1, 4, 20])
def test_the_process_sees_each_examples_last_losses_one_per_epoch(history):
    process = GaussianProcess(0.5, length_scale=3.0, noise=0.2, history=history, warmup=Epochs(0))
    seen = {}
    for index, epoch, loss in observed(process, 40, 9):
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


def test_the_probability_of_the_process_is_the_normal_distributions():
    process = GaussianProcess(0.5, predict="probability", threshold_share=0.4, warmup=Epochs(0))
    observed(process, 50, 5)
    mean, sd = process.posterior(6)
    probability = 1 - torch.distributions.Normal(mean.nan_to_num(), sd.nan_to_num(1)).cdf(
        torch.tensor(process.threshold)
    )
    probability[mean.isnan()] = torch.nan
    torch.testing.assert_close(process.predicted(6), probability, equal_nan=True)


def test_the_processs_optimism_is_of_its_standard_deviation():
    processes = [GaussianProcess(0.5, optimism=c, warmup=Epochs(0)) for c in (0.0, 1.5)]
    for process in processes:
        observed(process, 30, 4)
    plain, raised = (process.predicted(8) for process in processes)
    sd = processes[0].posterior(8).sd
    torch.testing.assert_close(raised, plain + 1.5 * sd, equal_nan=True)


def test_what_was_long_ago_is_as_uncertain_as_what_was_never():
    process = GaussianProcess(0.5, length_scale=2.0, noise=0.5, warmup=Epochs(0))
    process.grow(4)
    process.rescore(torch.arange(4), torch.tensor([0.0, 1.0, 2.0, 5.0]), 0)
    mean, sd = process.posterior(1000)
    torch.testing.assert_close(mean, torch.full((4,), 2.0))
    torch.testing.assert_close(sd, torch.full((4,), (3.5 * 1.5) ** 0.5))


def test_growing_keeps_the_histories():
    process = GaussianProcess(0.5, warmup=Epochs(0))
    observed(process, 30, 4)
    before = process.predicted(4)
    process.grow(50)
    process.grow(20)
    after = process.predicted(4)
    torch.testing.assert_close(after[:30], before, equal_nan=True)
    assert after[30:].isnan().all()
    assert len(after) == 50


def test_late_epochs_are_as_the_last_that_can_be_written_down():
    process = GaussianProcess(0.5, warmup=Epochs(0))
    process.grow(2)
    process.rescore(torch.tensor([0]), torch.tensor([1.0]), 40_000)
    process.rescore(torch.tensor([1]), torch.tensor([2.0]), 50_000)
    assert process.predicted(60_000).isfinite().all()


REFUSED = {
    "length": (
        lambda: GaussianProcess(0.5, length_scale=0, warmup=Epochs(0)),
        "length_scale=0: give a finite number",
    ),
    "noise": (
        lambda: GaussianProcess(0.5, noise=0.0, warmup=Epochs(0)),
        "noise=0.0: give a finite number above 0",
    ),
    "history": (
        lambda: GaussianProcess(0.5, history=0, warmup=Epochs(0)),
        "history=0: give an integer, at least 1",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
