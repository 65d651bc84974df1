"""Where the host waits for an accelerator, which is one in name alone: selectors and scorers."""

import functools

import pytest

from remote_device import SCORERS, find_waits
from selector_table import FAMILY
from started import started

EXACT = [name for name, row in FAMILY.items() if row.exact or name == "all"]


@functools.cache
def waits():
    """In a process of its own, as PyTorch registers a device for good."""
    with started(find_waits) as (_, done):
        return done.recv()


@pytest.mark.parametrize("name", FAMILY)
def test_a_count_is_chosen_without_a_wait(name):
    assert waits()["counted"][name] == []


@pytest.mark.parametrize("name", FAMILY)
def test_a_number_by_chance_is_waited_for_once(name):
    seen = waits()["drawn"][name]
    if name in EXACT and not name.startswith("kath18 before"):
        assert seen == []
    else:  # for the number alone: the positions that are not 0
        assert [line.split()[0] for line in seen] == ["aten.nonzero.default"]


def test_rows_of_the_host_are_kept_without_a_wait():
    assert waits()["kept"]["rows of the host"] == []


def test_rows_and_weights_that_come_to_the_host_are_waited_for():
    waited = waits()["kept"]["rows of the device"]
    assert [line.split()[0] for line in waited] == ["aten._to_copy.default"] * 2


@pytest.mark.parametrize("name", SCORERS)
def test_a_batch_is_scored_without_a_wait(name):
    assert waits()["scored"][name] == []
