"""The schedules: within bounds everywhere, and where their papers put them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siftback.errors import ConfigError
from siftback.lab.rates import RATES, constant, cosine, find_rate, onecycle, step


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


def test_steps_fall_at_their_epochs_whatever_the_length():
    for epochs in (100, 150, 200):
        rate = find_rate("steps:48e,96e,128e:x0.2", epochs)
        for epoch in range(epochs + 1):
            passed = (epoch >= 48) + (epoch >= 96) + (epoch >= 128)
            assert rate(epoch / epochs) == pytest.approx(0.2**passed)


def test_steps_in_percent_are_shares_of_any_training():
    for epochs in (2, 200):
        rate = find_rate("steps:30%,60%,80%:x0.2", epochs)
        assert [rate(n / 1000) for n in range(1001)] == pytest.approx(
            [step(n / 1000) for n in range(1001)]
        )


def test_a_training_that_ends_before_its_steps_keeps_the_peak():
    assert find_rate("steps:60e:x0.1", epochs=10)(1.0) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stairs", "no schedule 'stairs'"),
        ("steps:", "such as steps:60e,120e,160e:x0.2"),
        ("steps:60e,120e", "such as steps:60e,120e,160e:x0.2"),
        ("steps:-60e:x0.1", "such as steps:60e,120e,160e:x0.2"),
        ("steps:120e,60e:x0.1", "ascending"),
        ("steps:60e,60e:x0.1", "ascending"),
        ("steps:0%:x0.1", "ascending"),
        ("steps:50%,60e:x0.1", "all of them shares"),
        ("steps:50%,100%:x0.1", "all of them shares"),
        ("steps:60,120:x0.1", "such as steps:60e,120e,160e:x0.2 in epochs or steps:50%,75%:x0.1"),
        ("steps:60e,120ex0.2", "such as steps:60e,120e,160e:x0.2"),
        ("steps:60e:x5", "a factor between 0 and 1"),
        ("steps:60e:x0", "a factor between 0 and 1"),
    ],
)
def test_a_schedule_that_is_none_is_told(name, said):
    with pytest.raises(ConfigError, match=said):
        find_rate(name, epochs=200)


def test_steps_at_epochs_need_a_length_in_epochs():
    with pytest.raises(ConfigError, match="give its steps as shares"):
        find_rate("steps:60e:x0.1", epochs=None)
    assert find_rate("steps:50%:x0.1", epochs=None)(0.5) == 0.1
