"""Whether selection pays, from seconds that are given; and in one run in which it cannot."""

import time
import warnings

import pytest
import torch
from torch.nn import functional as F

import siftback
from siftback import Fresh, SelectionCostWarning, SelectiveLoader
from siftback.guard import Guard
from toys import network, optimizer_of, shuffled, step


def guard_after(selections, steps, **options):
    """Told of selections ``(seconds, considered, kept)`` and steps ``(seconds, examples)``."""
    guard = Guard(**options)
    for selection in selections:
        guard.select(*selection)
    for each in steps:
        guard.train(*each)
    return guard


def test_it_warns_where_selection_costs_more_and_says_the_numbers():
    # 10 ms an example: leaving 40 out saves 0.4 s, for 0.5 s.
    guard = guard_after([(0.25, 30, 10)] * 2, [(0.1, 10)] * 2, warmup=0, measured=2)
    said = guard.complaint()
    assert "over 2 batches it took 0.5 s, 71% of the time" in said
    assert "left out 40 of 60 examples" in said
    assert "at 10 ms to train on one saved 0.4 s" in said


@pytest.mark.parametrize("seconds", [0.19, 0.2])
def test_it_says_nothing_where_selection_costs_no_more(seconds):
    guard = guard_after([(seconds, 30, 10)], [(0.1, 10)], warmup=0, measured=1)
    assert guard.is_done
    assert guard.complaint() is None


def test_keeping_all_saves_nothing():
    guard = guard_after([(1e-6, 30, 30)], [(5.0, 10)], warmup=0, measured=1)
    assert "saved 0 s" in guard.complaint()


def test_what_comes_before_the_end_of_the_warm_up_does_not_count():
    guard = Guard(warmup=2, measured=1)
    guard.train(1e-9, 10)  # cheap steps would make selection look dear
    guard.select(99.0, 30, 10)
    guard.train(1e-9, 10)
    guard.select(99.0, 30, 10)
    assert guard.complaint() is None
    assert not guard.is_done
    guard.train(0.1, 10)
    guard.select(0.19, 30, 10)
    assert guard.is_done
    assert guard.complaint() is None


def test_a_step_with_an_evaluation_in_it_does_not_hide_the_others():
    steps = [(0.1, 10)] * 4 + [(60.0, 10)]
    guard = guard_after([(0.25, 30, 10)], steps, warmup=0, measured=1)
    assert "at 10 ms" in guard.complaint()


def test_steps_of_unlike_sizes_count_by_example():
    guard = guard_after([(0.21, 30, 10)], [(0.1, 10), (0.04, 4)], warmup=0, measured=1)
    assert "at 10 ms" in guard.complaint()


def test_what_a_scorer_does_after_a_step_is_part_of_the_cost():
    guard = Guard(warmup=0, measured=1)
    guard.select(0.15, 30, 10)
    guard.train(0.1, 10, refreshing=0.04)
    assert guard.complaint() is None
    guard.train(0.1, 10, refreshing=0.04)
    assert "it took 0.23 s" in guard.complaint()


def test_nothing_is_said_before_there_was_a_step():
    guard = guard_after([(1.0, 30, 10)] * 3, [], warmup=0, measured=1)
    assert not guard.is_done
    assert guard.complaint() is None


class Slow(Fresh):
    """Takes longer for a batch than training on it ever could here."""

    def score(self, losses, model, batch):
        time.sleep(0.03)
        return super().score(losses, model, batch)


def train_linear(**options):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    loader = SelectiveLoader(shuffled(88), model, F.cross_entropy, keep=0.9, **options)
    optimizer = optimizer_of(model)
    for _ in range(5):  # 11 selection batches each
        for batch in loader:
            step(model, optimizer, batch)
    return loader


def test_a_run_that_cannot_pay_warns_once_and_at_the_loop():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train_linear(scorer=Slow(), guard=True)
    assert [each.category for each in caught] == [SelectionCostWarning]
    assert "over 20 batches it took" in str(caught[0].message)
    assert "left out" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_run_that_certainly_pays_is_left_alone():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    loader = SelectiveLoader(shuffled(88), model, F.cross_entropy, beta=3, guard=True)
    for _ in range(4):
        for _ in loader:  # a warning would be an error here
            time.sleep(0.05)
    assert loader.stats.considered == 4 * 88  # of which the guard measured its twenty batches


def test_without_the_guard_nothing_is_said():
    train_linear(scorer=Slow())  # a warning would be an error here


def test_the_guard_changes_no_example():
    def kept(**options):
        model = network()
        loader = SelectiveLoader(shuffled(), model, F.cross_entropy, keep=0.5, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", siftback.SelectionCostWarning)
            return [x for _ in range(12) for x, _ in loader]

    for one, other in zip(kept(guard=True), kept(), strict=True):
        assert torch.equal(one, other)
