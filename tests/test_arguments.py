"""Numbers of Python and of NumPy are accepted, truth values and all else refused."""

import numpy as np
import pytest

from siftback import Percentile
from siftback.arguments import check_integer, check_number, check_share, is_number
from siftback.errors import ConfigError
from siftback.selectors.percentile import LossHistory


@pytest.mark.parametrize("value", [0, 2, 0.5, np.float64(0.5), np.float32(0.5), np.int64(3)])
def test_numbers_are_numbers(value):
    assert is_number(value)


@pytest.mark.parametrize(
    "value",
    [True, np.True_, float("nan"), float("inf"), np.float64("nan"), "2", None, [0.5], 1j],
    ids=repr,
)
def test_anything_else_is_not(value):
    assert not is_number(value)
    with pytest.raises(ConfigError, match=r"^c=.*: give a finite number$"):
        check_number("c", value)
    with pytest.raises(ConfigError, match=r"^c=.*: give a share in \[0, 1\)$"):
        check_share("c", value)
    with pytest.raises(ConfigError, match=r"^c=.*: give an integer, at least 1$"):
        check_integer("c", value, 1)


def test_what_is_checked_is_pythons_own():
    assert type(check_share("keep", np.float32(0.5))) is float
    assert type(check_number("c", np.int64(2))) is float
    assert type(check_integer("every", np.int64(3), 1)) is int


@pytest.mark.parametrize(
    ("ends", "allowed", "refused", "interval"),
    [
        ({}, (0, 0.5), (1, -0.1, 1.5), r"\[0, 1\)"),
        ({"least": False}, (0.5,), (0, 1), r"\(0, 1\)"),
        ({"most": True}, (0, 1), (-1, 2), r"\[0, 1\]"),
        ({"least": False, "most": True}, (1, 0.1), (0, 1.01), r"\(0, 1\]"),
    ],
)
def test_a_share_lies_within_its_ends(ends, allowed, refused, interval):
    for share in allowed:
        assert check_share("share", share, **ends) == share
    for share in refused:
        with pytest.raises(ConfigError, match=rf"share={share}: give a share in {interval}"):
            check_share("share", share, **ends)


def test_numbers_and_integers_have_bounds():
    assert check_number("c", 0, least=0) == 0
    with pytest.raises(ConfigError, match=r"c=-1: give a finite number, at least 0"):
        check_number("c", -1, least=0)
    with pytest.raises(ConfigError, match=r"c=0: give a finite number above 0"):
        check_number("c", 0, above=0)
    with pytest.raises(ConfigError, match=r"every=0: give an integer, at least 1"):
        check_integer("every", 0, 1)
    with pytest.raises(ConfigError, match=r"every=2.0: give an integer, at least 1"):
        check_integer("every", 2.0, 1)


def test_selectors_take_the_numbers_of_numpy():
    assert Percentile(keep=np.float64(0.25), history=np.int64(8)).beta == 3
    assert LossHistory(np.int32(8)).size == 8
