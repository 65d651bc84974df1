"""Exactly k of N: the probabilities asked for, always k, and never one twice."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siftback import All, Percentile, Uniform
from siftback.selectors.sampling import choose_exactly, inclusion_probabilities

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
    trials = 4000
    generator = torch.Generator().manual_seed(0)
    expected = inclusion_probabilities(probabilities, count)
    kept = torch.zeros(len(probabilities))
    for _ in range(trials):
        kept[choose_exactly(probabilities, count, generator)] += 1
    deviation = (expected * (1 - expected) / trials).sqrt()
    # Five standard deviations: among 50 such frequencies, once in 30,000 runs.
    assert ((kept / trials - expected).abs() <= 5 * deviation + 1e-6).all()


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


def test_high_losses_are_kept_more_often_by_their_percentiles():
    """Once the history is full, probabilities are (rank / R)^beta, scaled to k in all."""
    size, count, trials = 32, 8, 3000
    generator = torch.Generator().manual_seed(0)
    losses = torch.arange(size).float()
    selector = Percentile(keep=count / size, history=size)
    kept = torch.zeros(size)
    for _ in range(trials):
        kept[selector.select(losses, generator, count).positions] += 1
    ranks = (torch.arange(size) + 0.5) / size
    expected = count * ranks**3 / (ranks**3).sum()
    torch.testing.assert_close(kept / trials, expected, rtol=0.15, atol=0.02)
