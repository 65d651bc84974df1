"""Two real processes that differ in one setting: all refuse it in the first step, by name."""

import fnmatch

import numpy as np
import pytest
import torch
from unlike_ranks import CASES, COUNT

from siftback.processes.barrier import describe_settings

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def ranks(found_in):
    """The notes of each process, by rank."""
    return found_in("unlike_ranks", processes=2)


@pytest.mark.parametrize("case", CASES)
def test_a_setting_that_differs_is_named_with_its_values_in_all_processes(ranks, case):
    _, (setting, *values) = CASES[case]
    for rank, found in enumerate(ranks):
        other = 1 - rank
        message = found[case].replace("[", "(").replace("]", ")")
        expected = (
            f"ConfigError: {setting}={values[rank]} in the process of rank {rank}, and "
            f"{values[other]} in that of rank {other}: give all processes the same {setting}, *"
        )
        assert fnmatch.fnmatchcase(message, expected), message


@pytest.mark.parametrize(
    ("case", "places"),
    [
        ("resumed", ("the beginning of epoch 0", "the rest of epoch 0")),
        ("changed", ("the beginning of epoch 1", "the beginning of epoch 2")),
    ],
)
def test_processes_at_different_places_are_told_at_once(ranks, case, places):
    for rank, found in enumerate(ranks):
        other = 1 - rank
        expected = f"rank {rank} is at {places[rank]}, and rank {other} at {places[other]}: all"
        assert found[case].startswith(f"ProcessError: {expected}")


def test_processes_that_agree_train_on_different_examples_after_all_that(ranks):
    first, second = (set(found["remembering"].tolist()) for found in ranks)
    assert len(first) == len(second) == COUNT // 2
    assert not first & second
    first, second = (set(found["shorter"].tolist()) for found in ranks)
    assert len(first) == len(second) == COUNT // 2
    assert not first & second
    first, second = (set(found["scoring"].tolist()) for found in ranks)
    assert len(first) == len(second) == COUNT // 4
    assert not first & second


def test_shares_that_processes_draw_alone_are_a_warning_where_steps_follow_from_them(ranks):
    for found in ranks:
        (warning,) = found["warned", None]
        assert warning.startswith(
            "each process leaves out what Memory says of its own part, so that"
        )
        assert "with model.join()" in warning
        assert found["warned", 0.5] == found["warned", "epochs as long"] == []


def test_labels_of_the_examples_that_each_process_has_may_differ(ranks):
    for found in ranks:
        for given in found["own labels"]:
            assert len(given) == COUNT - 8


def test_losses_are_not_exchanged_within_an_epoch_by_a_thread_that_does_not_train(ranks):
    for found in ranks:
        for error in found["thread"]:
            assert error.startswith("ConfigError: batches are read in another thread than the one")
        for name in ("shards", "shorter"):  # where nothing is exchanged within an epoch
            assert found["thread", name] == "nothing was refused"


class Threshold:
    """Of the user's own, with settings of any kind."""

    def __init__(self, **settings):
        self._settings = settings

    def settings(self):
        return self._settings


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (3, 3.0, True),
        (True, 1, False),
        (0.5, np.float32(0.5), True),
        (0.1, 0.3 - 0.2, False),
        ((1, "a"), [1.0, "a"], True),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        (Threshold(above=1), Threshold(above=1.0), True),
        (Threshold(above=1), Threshold(above=2), False),
        (Threshold(by=Threshold(above=1)), Threshold(by=Threshold(above=2)), False),
        (object(), object(), True),  # of whose addresses processes cannot have the same
        (len, min, False),
        (float("nan"), float("nan"), True),
        (10**400, 10**400 + 1, False),
    ],
)
def test_settings_are_compared_by_their_values(one, other, alike):
    assert (describe_settings({"setting": one}) == describe_settings({"setting": other})) == alike


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_tensors_are_compared_by_their_contents(dtype):
    values = torch.arange(6).view(2, 3).to(getattr(torch, dtype))
    texts = [
        describe_settings({"setting": found}) for found in (values, values.clone(), values.flip(1))
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0]["setting"].startswith(f"{dtype}[2, 3] of digest ")
