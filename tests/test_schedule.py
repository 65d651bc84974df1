"""When selection is on."""

import pytest

from siftback import ConfigError, Schedule

# Moments of four epochs at which a schedule is on.
QUARTERS = [quarter / 4 for quarter in range(17)]
ON = {
    "always": ({}, 0, 4.25),
    "warm-up of an epoch": ({"warmup": 1}, 1, 4.25),
    "warm-up of a share": ({"warmup": 0.25}, 1, 4.25),
    "the whole of training, not an epoch": ({"warmup": 1.0}, 4, 4.25),
    "start": ({"start": 2}, 2, 4.25),
    "the later one of warm-up and start": ({"warmup": 0.125, "start": 2}, 2, 4.25),
    "end": ({"end": 3}, 0, 3),
    "between": ({"start": 0.25, "end": 0.75}, 1, 3),
    "epochs and shares": ({"start": 1, "end": 0.75}, 1, 3),
    "never": ({"start": 9}, 9, 9),
}


@pytest.mark.parametrize(("moments", "begin", "end"), ON.values(), ids=ON)
def test_it_is_on_from_its_beginning_until_its_end(moments, begin, end):
    schedule = Schedule(**moments)
    on = [moment for moment in QUARTERS if schedule.is_on(moment, epochs=4)]
    assert on == [moment for moment in QUARTERS if begin <= moment < end]


@pytest.mark.parametrize("moments", [{"warmup": 0.5}, {"start": 0.1}, {"end": 1.0}])
def test_shares_need_the_length_of_training(moments):
    with pytest.raises(ConfigError, match=r"Schedule\(.*\) counts in shares.* with epochs="):
        Schedule(**moments).is_on(0)


@pytest.mark.parametrize("moments", [{}, {"warmup": 1}, {"start": 1, "end": 2}, {"start": 0.0}])
def test_epochs_do_not(moments):
    assert not Schedule(**moments).needs_epochs
    Schedule(**moments).is_on(0)


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        ({"warmup": -1}, r"warmup=-1: give a number of epochs .* or a share of training"),
        ({"start": 1.5}, r"start=1.5"),
        ({"end": float("nan")}, r"end=nan"),
        ({"warmup": True}, r"warmup=True"),
        ({"start": "1"}, r"start='1'"),
        ({"warmup": None}, r"warmup=None"),
        ({"start": 3, "end": 3}, r"end=3 is not after start=3: give a later end"),
        ({"warmup": 0.5, "end": 0.25}, r"end=0.25 is not after warmup=0.5"),
        ({"end": 0}, r"end=0 is not after"),
    ],
)
def test_bad_moments_are_refused(moments, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(**moments)
