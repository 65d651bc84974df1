"""The variance reduction of importance sampling, its start, and what unbiased weights cost."""

import math

import pytest
import torch

from siftback import Kath18, Percentile, Pool, SelectiveLoader, Unbiased
from siftback.selectors.importance import (
    break_even_tau,
    importance_distribution,
    variance_reduction,
)
from siftback.state import seal
from toys import AT_ONCE, given_losses, numbered

SCORES = [[1.0, 1.0, 1.0], [4.0, 1.0, 0.5, 0.0, 2.5], [7.0], [0.0, 0.0, 1.0], [1e-30, 3e38]]


@pytest.mark.parametrize("scores", SCORES)
def test_tau_is_that_of_the_paper(scores):
    g = [score / sum(scores) for score in scores]
    u = 1 / len(g)
    distance = sum((x - u) ** 2 for x in g)
    tau = 1 / math.sqrt(1 - distance / sum(x**2 for x in g))
    found = importance_distribution(torch.tensor(scores))
    assert found.tolist() == pytest.approx(g, abs=1e-6)
    assert float(variance_reduction(found)) == pytest.approx(tau, rel=1e-5)


def test_tau_is_how_much_less_the_variance_of_a_draw_is():
    """Of values that are the scores themselves, a draw by importance has none that counts."""
    scores = torch.rand(50, generator=torch.Generator().manual_seed(0)).double()
    g = importance_distribution(scores)
    second_uniform = scores.square().mean()
    second_importance = ((scores / (50 * g)) ** 2 * g).sum()
    expected = math.sqrt(second_uniform / second_importance)
    assert float(variance_reduction(g)) == pytest.approx(expected, rel=1e-5)


def test_it_starts_once_the_moving_average_passes_the_threshold():
    """Algorithm 1 of the paper, a batch at a time."""
    selector, generator = Kath18(keep=0.25, momentum=0.5), torch.Generator().manual_seed(0)
    threshold, average, started = break_even_tau(40, 10), 0.0, []
    spread = torch.rand(40, generator=generator)
    for step in range(12):
        scores = spread.pow(3 * step)  # more and more different
        g = (scores / scores.sum()).double()
        selected = selector.select(scores, generator)
        on = average > threshold
        assert on == (not selected.weights.eq(1).all())
        if not on:
            assert len(selected.positions) == 10
        started.append(on)
        average = 0.5 * average + 0.5 * float((40 * g.square().sum()).sqrt())
        assert selector.tau == pytest.approx(average, rel=1e-4)
    assert (started[0], started[-1]) == (False, True)


def test_a_fixed_number_of_rows_is_the_same_estimate():
    scores = torch.rand(30, generator=torch.Generator().manual_seed(1))
    sums = []
    for count in (None, 15):
        selector = Kath18(keep=0.5, threshold=0)
        selector.load_state_dict(seal(selector.state_dict() | {"tau": torch.tensor(2.0)}))
        positions, weights = selector.select(scores, torch.Generator().manual_seed(2), count)
        sums.append(float((weights * scores[positions]).mean()))
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)
    # Drawn in proportion to what is summed, every draw gives the same: their mean.
    assert sums[0] == pytest.approx(float(scores.mean()), rel=1e-5)


@pytest.mark.parametrize("count", [None, 60])
@pytest.mark.parametrize("normalised", [False, True])
def test_bias_and_variance_of_unbiased_weights(count, normalised):
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(200, generator=generator).pow(3)
    values = scores + 0.2 * torch.rand(200, generator=generator)
    selector = Unbiased(Percentile(keep=0.2, history=1), floor=0.1, self_normalised=normalised)
    q = selector.probabilities(scores)
    trials, found = 600, []
    for _ in range(trials):
        positions, weights = selector.select(scores, generator, count)
        total = float((weights * values[positions]).sum())
        found.append(total / (len(positions) if normalised else count or 200 * selector.keep))
    variance = float((values.square() * (1 - q) / q).sum()) / 200**2
    estimates = torch.tensor(found)
    # A ratio's bias is of the order of its variance over the mean; the tolerance is far wider.
    bias = float(estimates.mean() - values.mean())
    assert abs(bias) <= 5 * math.sqrt(variance / trials)
    if count is None and not normalised:
        assert float(estimates.var()) == pytest.approx(variance, rel=0.35)
    else:
        assert float(estimates.var()) < 1.35 * variance
    assert weights.max() <= 1 / 0.1


def test_a_loader_trains_on_draws_of_a_larger_batch():
    losses = torch.rand(120, generator=torch.Generator().manual_seed(4))
    selector = Kath18(keep=0.25, replace=False, threshold=0)
    loader = SelectiveLoader(
        numbered(losses, 40), torch.nn.Identity(), losses=given_losses, selector=selector,
        pool=Pool(10), schedule=AT_ONCE,
    )  # fmt: skip
    sizes, weights = [], []
    for batch in loader:
        sizes.append(len(batch["number"]))
        weights.append(loader.weights)
    assert sizes == [10, 10, 10]
    assert weights[0].eq(1).all()
    assert not weights[1].eq(1).all()
