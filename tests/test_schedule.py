"""When selection is on, and how much it keeps."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from siftback import (
    Annealing,
    Epochs,
    Memory,
    Percentile,
    Schedule,
    SelectiveLoader,
    Share,
    Threshold,
    TopK,
)
from siftback.errors import ConfigError
from toys import All, dataset, given_losses, numbered

# Moments of four epochs at which a schedule is on.
QUARTERS = [quarter / 4 for quarter in range(17)]
ON = {
    "always": ({}, 0, 4.25),
    "warm-up of an epoch": ({"warmup": Epochs(1)}, 1, 4.25),
    "warm-up of half an epoch": ({"warmup": Epochs(0.5)}, 0.5, 4.25),
    "warm-up of a share": ({"warmup": Share(0.25)}, 1, 4.25),
    "the whole of training, not an epoch": ({"warmup": Share(1)}, 4, 4.25),
    "start": ({"start": Epochs(2)}, 2, 4.25),
    "the later one of warm-up and start": ({"warmup": Share(0.125), "start": Epochs(2)}, 2, 4.25),
    "end": ({"end": Epochs(3)}, 0, 3),
    "between": ({"start": Share(0.25), "end": Share(0.75)}, 1, 3),
    "epochs and shares": ({"start": Epochs(1), "end": Share(0.75)}, 1, 3),
    "never": ({"start": Epochs(9)}, 9, 9),
    "tail of an epoch": ({"tail": Epochs(1)}, 0, 3),
    "tail of a share": ({"warmup": Epochs(1), "tail": Share(0.125)}, 1, 3.5),
    "a tail that begins later": ({"tail": Share(0.5), "tail_after": Epochs(3)}, 0, 3),
    "a tail that begins late enough": ({"tail": Share(0.5), "tail_after": Epochs(1)}, 0, 2),
    "no tail of a short training": ({"tail": Share(0.5), "tail_after": Epochs(4)}, 0, 4),
    "the earlier one of end and tail": ({"end": Epochs(2), "tail": Share(0.25)}, 0, 2),
    "the tail before the end": ({"end": Share(0.9), "tail": Epochs(2)}, 0, 2),
}


@pytest.mark.parametrize(("moments", "begin", "end"), ON.values(), ids=ON)
def test_it_is_on_from_its_beginning_until_its_end(moments, begin, end):
    schedule = Schedule(**({"warmup": Epochs(0)} | moments))
    on = [moment for moment in QUARTERS if schedule.is_on(moment, epochs=4)]
    assert on == [moment for moment in QUARTERS if begin <= moment < end]


@pytest.mark.parametrize(
    "moments",
    [
        {"warmup": Share(0.5)},
        {"start": Share(0.1)},
        {"end": Share(1.0)},
        {"tail": Epochs(1)},
        {"tail": Share(0.1)},
        {"anneal": Annealing()},
    ],
)
def test_shares_need_the_length_of_training(moments):
    with pytest.raises(ConfigError, match=r"epochs= is missing: Schedule\(.*\) counts in shares"):
        Schedule(**moments).is_on(0)


@pytest.mark.parametrize(
    "moments",
    [
        {},
        {"warmup": Epochs(1)},
        {"start": Epochs(1), "end": Epochs(2)},
        {"start": Share(0.0)},
        {"tail": Share(0.0)},
    ],
)
def test_epochs_do_not(moments):
    assert not Schedule(**moments).needs_epochs
    Schedule(**moments).is_on(0)


BARE = {
    "epochs": (1, r"=1: give Epochs\(1\) or Share\(\.\.\.\) of training"),
    "a share": (0.5, r"=0.5: give Epochs\(0.5\) or Share\(0.5\) of training"),
    "more than a share": (1.5, r"=1.5: give Epochs\(1.5\) or Share\(\.\.\.\)"),
    "negative": (-1, r"=-1: give Epochs\(\.\.\.\) or Share\(\.\.\.\)"),
    "not a number": (float("nan"), r"=nan: give Epochs\(\.\.\.\) or Share\(\.\.\.\)"),
    "a truth value": (True, r"=True: give Epochs\(\.\.\.\) or Share\(\.\.\.\)"),
    "text": ("1", r"='1': give Epochs\(\.\.\.\) or Share\(\.\.\.\)"),
}


@pytest.mark.parametrize(("given", "message"), BARE.values(), ids=BARE)
def test_a_bare_number_is_refused_and_both_forms_are_shown(given, message):
    for name in ("warmup", "start", "end", "tail", "tail_after"):
        with pytest.raises(ConfigError, match=name + message):
            Schedule(**{name: given})
    with pytest.raises(ConfigError, match="until" + message):
        Annealing(until=given)
    with pytest.raises(ConfigError, match="warmup" + message):
        Memory(warmup=given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Epochs(-1), r"Epochs\(-1\): give a number of epochs, at least 0"),
        (lambda: Epochs(math.inf), r"Epochs\(inf\)"),
        (lambda: Epochs(True), r"Epochs\(True\)"),
        (lambda: Share(1.5), r"Share\(1.5\): give a share of training, in \[0, 1\]"),
        (lambda: Share(math.nan), r"Share\(nan\)"),
        (lambda: Share("1"), r"Share\('1'\)"),
    ],
)
def test_a_moment_out_of_range_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_moments_are_equal_by_kind_and_value_and_take_numpys_numbers():
    assert Epochs(np.int64(2)) == Epochs(2.0) == Epochs(2)
    assert Share(np.float32(0.5)) == Share(0.5)
    assert Epochs(1) != Share(1)
    assert repr((Epochs(np.float64(0.5)), Share(1))) == "(Epochs(0.5), Share(1.0))"


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        ({"warmup": None}, r"warmup=None: give Epochs"),
        (
            {"start": Epochs(3), "end": Epochs(3)},
            r"end=Epochs\(3\) is not after start=Epochs\(3\): give a later",
        ),
        (
            {"warmup": Share(0.5), "end": Share(0.25)},
            r"end=Share\(0.25\) is not after warmup=Share\(0.5\)",
        ),
        ({"end": Epochs(0)}, r"end=Epochs\(0\) is not after"),
        ({"interrupt": 1}, r"interrupt=1: give n, at least 2"),
        ({"interrupt": -1}, r"interrupt=-1: give an integer, at least 0"),
        ({"interrupt": 2.0}, r"interrupt=2.0: give an integer"),
        ({"anneal": "linear"}, r"anneal='linear': give an Annealing"),
        (
            {"warmup": Epochs(2), "anneal": Annealing(until=Epochs(2))},
            r"until=Epochs\(2\) is not after warmup=Epochs\(2\)",
        ),
    ],
)
def test_bad_moments_are_refused(moments, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(**moments)


@pytest.mark.parametrize("share", [1 / 6, 1 / 3, 2 / 3, 5 / 6])
@pytest.mark.parametrize("kind", [Share, Epochs])
def test_a_moment_within_an_epoch_is_the_batch_that_it_means(share, kind):
    begins = Schedule(warmup=Epochs(0), start=kind(share))
    ends = Schedule(warmup=Epochs(0), end=kind(share))
    on = [begins.is_on(batch / 12, 1) for batch in range(12)]
    assert on == [batch >= round(12 * share) for batch in range(12)]
    assert on == [not ends.is_on(batch / 12, 1) for batch in range(12)]


def test_shares_of_training_are_whole_epochs_where_they_mean_to_be():
    for hundredths in range(1, 100):
        schedule = Schedule(warmup=Epochs(0), end=Share(hundredths / 100))
        on = [schedule.is_on(epoch, 100) for epoch in range(100)]
        assert on == [epoch < hundredths for epoch in range(100)]
        schedule = Schedule(warmup=Epochs(0), tail=Share(1 - hundredths / 100))
        assert on == [schedule.is_on(epoch, 100) for epoch in range(100)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": "exponential"}, r"shape='exponential': give \"linear\""),
        ({"first": 0}, r"first=0: give a share"),
        ({"last": 1.5}, r"last=1.5: give a share"),
        ({"steps": 0}, r"steps=0: give an integer, at least 1"),
    ],
)
def test_a_bad_annealing_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Annealing(**arguments)


def test_every_nth_batch_of_an_epoch_passes_whole_as_in_composer():
    schedule = Schedule(interrupt=3, start=Epochs(1))
    on = [schedule.is_on(1, batch=batch) for batch in range(9)]
    assert on == [(batch + 1) % 3 != 0 for batch in range(9)]
    assert not schedule.is_on(0.5, batch=0)


@pytest.mark.parametrize("shape", ["linear", "cosine", "step"])
@pytest.mark.parametrize("last", [None, 0.3])
def test_the_share_goes_from_the_first_to_the_last(shape, last):
    anneal = Annealing(shape, first=0.9, last=last, until=Share(0.75), steps=3)
    schedule = Schedule(warmup=Epochs(1), anneal=anneal)
    end = 0.5 if last is None else last
    for quarter in range(33):
        moment = quarter / 8
        t = min(max((moment - 1) / 2, 0), 1)
        way = {"linear": t, "cosine": (1 - math.cos(math.pi * t)) / 2, "step": int(3 * t) / 3}
        expected = 0.9 + (end - 0.9) * way[shape]
        assert schedule.keep(moment, epochs=4, own=0.5) == pytest.approx(expected)
    assert Schedule().keep(2, own=0.5) == 0.5


def loader_of(schedule, selector, **arguments):
    losses = torch.rand(80, generator=torch.Generator().manual_seed(1))
    return SelectiveLoader(
        numbered(losses, 10), nn.Identity(), losses=given_losses, selector=selector,
        schedule=schedule, **arguments,
    )  # fmt: skip


def kept_in_epochs(loader, epochs):
    kept = []
    for _ in range(epochs):
        before = loader.stats.released
        for _ in loader:
            pass
        kept.append(loader.stats.released - before)
    return kept


def test_a_loader_keeps_the_annealed_share_and_goes_on_from_a_state():
    schedule = Schedule(
        warmup=Epochs(1), anneal=Annealing("step", first=1.0, until=Epochs(5), steps=4)
    )
    loader = loader_of(schedule, TopK(keep=0.2))
    assert kept_in_epochs(loader, 3) == [80, 80, 64]
    resumed = loader_of(schedule, TopK(keep=0.2))
    resumed.load_state_dict(loader.state_dict())
    assert kept_in_epochs(resumed, 4) == [48, 32, 16, 16]


def test_a_loader_lets_every_nth_batch_pass_and_the_tail():
    loader = loader_of(
        Schedule(warmup=Epochs(0), interrupt=4, tail=Epochs(1)), TopK(keep=0.5), epochs=3
    )
    assert kept_in_epochs(loader, 3) == [50, 50, 80]  # 6 halves and 2 whole ones, of 8


def test_shares_are_annealed_also_of_epochs_that_are_drawn_from_memory():
    source = DataLoader(dataset(40), 10, shuffle=True)
    schedule = Schedule(warmup=Epochs(1), anneal=Annealing("linear", until=Epochs(3)))
    loader = SelectiveLoader(
        source, memory=Memory(keep=0.5), schedule=schedule, epochs=4, shorter_epochs=True
    )
    kept, steps = [], []
    for _ in range(4):
        before = loader.stats.released
        for step, (_, targets) in enumerate(loader):
            steps += [len(loader)] * (step == 0)
            loader.record(targets + torch.rand(len(targets)))
        kept.append(loader.stats.released - before)
    assert kept == [40, 40, 30, 20]
    assert steps == [4, 4, 3, 2]


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (All(), "All has no share that a schedule could anneal"),
        (Threshold(above=1.0), "the threshold is fixed at 1.0"),
        (Percentile(keep=0.5, floor=0.4), r"keep=0.3 is not above floor=0.4"),
    ],
)
def test_a_selector_that_cannot_keep_the_annealed_share_is_refused(selector, message):
    with pytest.raises(ConfigError, match=message):
        loader_of(Schedule(warmup=Epochs(0), anneal=Annealing(last=0.3, until=Epochs(2))), selector)


def test_interrupts_are_refused_where_examples_are_left_out_unread():
    source = DataLoader(dataset(40), 10, shuffle=True)
    with pytest.raises(ConfigError, match="interrupt=2 passes whole batches, and Memory"):
        SelectiveLoader(source, memory=Memory(), epochs=4, schedule=Schedule(interrupt=2))
