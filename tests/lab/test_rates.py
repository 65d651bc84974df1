"""The schedules: within bounds everywhere, and where their papers put them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siftback.lab.rates import RATES, constant, cosine, onecycle, step


@pytest.mark.parametrize("name", RATES)
@settings(deadline=None)
@given(share=st.floats(0, 1.5))
def test_factor_is_a_share_of_the_peak(name, share):
    assert 0 <= RATES[name](share) <= 1


@pytest.mark.parametrize("name", RATES)
@settings(deadline=None)
@given(share=st.floats(1, 2))
def test_overshooting_counts_as_the_end(name, share):
    assert RATES[name](share) == RATES[name](1.0)


@pytest.mark.parametrize("epoch", range(201))
def test_step_falls_at_the_papers_epochs(epoch):
    passed = (epoch >= 60) + (epoch >= 120) + (epoch >= 160)
    assert step(epoch / 200) == pytest.approx(1 / 5**passed)


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_cosine_and_step_never_rise(one, other):
    early, late = sorted((one, other))
    assert cosine(early) >= cosine(late)
    assert step(early) >= step(late)


def test_onecycle_rises_to_the_peak_and_falls_to_nothing():
    shares = [n / 100 for n in range(101)]
    factors = [onecycle(share) for share in shares]
    peak = factors.index(max(factors))
    assert (factors[0], factors[peak], factors[-1]) == (0, 1, 0)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_cosine_is_half_a_cosine():
    assert cosine(0.0) == 1
    assert cosine(1.0) == 0
    assert cosine(1 / 3) == pytest.approx((1 + math.cos(math.pi / 3)) / 2)


def test_constant_is_one():
    assert constant(0.0) == constant(1.0) == 1
