"""Exactly k of N: the probabilities asked for, always k, and never one twice."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from selections import check_shares
from siftback import Percentile, Uniform
from siftback.selectors.sampling import choose_exactly, inclusion_probabilities
from toys import All

probabilities = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40)


@given(probabilities, st.data())
def test_probabilities_sum_to_k_in_the_order_of_the_probabilities(values, data):
    count = data.draw(st.integers(1, len(values)))
    probabilities = torch.tensor(values)
    scaled = inclusion_probabilities(probabilities, count)
    assert math.isclose(float(scaled.sum()), count, rel_tol=1e-4)
    assert float(scaled.min()) >= 0
    assert float(scaled.max()) <= 1
    order = probabilities.argsort()
    assert (scaled[order].diff() >= -1e-6).all()


@given(st.lists(st.floats(0.001, 1) | st.just(0.5), min_size=1, max_size=40), st.data())
def test_the_highest_are_certain_and_the_others_scaled(values, data):
    count = data.draw(st.integers(1, len(values)))
    scaled = inclusion_probabilities(torch.tensor(values, dtype=torch.float64), count)
    assert scaled.tolist() == pytest.approx(reference.inclusion_probabilities(values, count))


@given(probabilities, st.data())
def test_exactly_k_are_kept_and_none_twice(values, data):
    count = data.draw(st.integers(1, len(values)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    kept = choose_exactly(torch.tensor(values), count, generator)
    assert kept.dtype == torch.int64
    assert len(kept) == count
    assert (kept.diff() > 0).all()


@pytest.mark.parametrize(
    ("probabilities", "count"),
    [
        (torch.linspace(0.01, 1, 30) ** 2, 10),
        (torch.tensor([1.0, 1.0, 1.0, 0.1, 0.1, 0.1]), 4),
        (torch.full((9,), 0.3), 3),
        (torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0]), 2),
    ],
)
def test_inclusion_probabilities_are_those_asked_for(probabilities, count):
    generator = torch.Generator().manual_seed(0)
    kept = torch.zeros(1000, len(probabilities))
    for row in kept:
        row[choose_exactly(probabilities, count, generator)] = 1
    check_shares(kept, inclusion_probabilities(probabilities, count))


@pytest.mark.parametrize("count", [1, 300_000, 1_199_999])
def test_exactly_k_of_more_than_a_million_in_float64(count):
    size = 1_200_000
    probabilities = torch.rand(
        size, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    probabilities = probabilities.pow(2)
    expected = inclusion_probabilities(probabilities, count)
    assert expected.dtype == torch.float64
    assert float(expected.sum()) == pytest.approx(count, abs=1e-5)
    kept = choose_exactly(probabilities, count, torch.Generator().manual_seed(3))
    assert len(kept) == count
    assert (kept.diff() > 0).all()
    # Of each hundredth by probability as many as expected: five standard deviations at most.
    hundredths = probabilities.argsort().view(100, -1)
    found = torch.zeros(size).index_fill_(0, kept, 1)[hundredths].sum(1)
    deviation = (expected * (1 - expected))[hundredths].sum(1).sqrt()
    assert ((found - expected[hundredths].sum(1)).abs() <= 5 * deviation + 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_probabilities_keep_their_dtype_and_a_seed_its_choice(dtype):
    probabilities = torch.linspace(0.1, 0.9, 40)
    kept = choose_exactly(probabilities.to(dtype), 10, torch.Generator().manual_seed(4))
    assert inclusion_probabilities(probabilities.to(dtype), 10).dtype == dtype
    assert len(kept.unique()) == 10


def test_no_pair_is_kept_always_together_or_never():
    generator = torch.Generator().manual_seed(0)
    kept = torch.zeros(2000, 8)
    for row in kept:
        row[choose_exactly(torch.ones(8), 4, generator)] = 1
    together = (kept.T @ kept / len(kept))[~torch.eye(8, dtype=torch.bool)]
    assert 0.1 < together.min() <= together.max() < 0.4  # 3/14 without replacement


@pytest.mark.parametrize("selector", [Percentile(keep=0.25), Uniform(keep=0.25), All()])
def test_selectors_keep_as_many_as_they_are_asked_to(selector):
    losses = torch.rand(64)
    selection = selector.select(losses, torch.Generator().manual_seed(0), 16)
    assert selection.positions.shape == selection.weights.shape == (16,)
    assert (selection.weights == 1).all()


@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize(("keep", "count", "ties"), [(0.25, 8, 1), (0.3, 12, 1), (0.3, 12, 4)])
def test_percentile_keeps_k_as_its_docstring_states(keep, count, ties, floor):
    """min(1, c P), with P = floor + (1 - floor) CDF^beta of eq. 1 and c such that they sum to k."""
    size = 32
    generator = torch.Generator().manual_seed(0)
    losses = (torch.arange(size) // ties).float()
    selector = Percentile(keep=keep, history=size, floor=floor)
    kept = torch.zeros(1000, size)
    for row in kept:  # of a history that is the batch itself, each time
        row[selector.select(losses, generator, count).positions] = 1
    rows = range(size)
    edges = [(ties * (row // ties) / size, ties * (row // ties + 1) / size) for row in rows]
    power = selector.beta + 1
    means = [(b**power - a**power) / (power * (b - a)) for a, b in edges]
    stated = torch.tensor([floor + (1 - floor) * mean for mean in means])
    scale = next(
        c for c in torch.linspace(0.9, 3, 20001) if float((c * stated).clamp(max=1).sum()) >= count
    )
    check_shares(kept, (scale * stated).clamp(max=1))
