"""Counts of steps are known before training, and learning-rate schedules end where they should."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from remembering import Numbered, spread
from selector_table import FAMILY
from siftback import (
    RS2,
    Annealing,
    Epochs,
    Memory,
    Percentile,
    Pool,
    Schedule,
    SelectiveLoader,
    Share,
    Stale,
    Uniform,
)
from siftback.contrib import Ewma
from siftback.errors import ConfigError
from siftback.selectors.in_batch import takes_count
from toys import AT_ONCE, at_once, given_losses

EPOCHS = 5


def loader_of(count=60, batch_size=8, drop_last=False, *, remember=True, **arguments):
    wrapped = DataLoader(Numbered(spread(count)), batch_size, shuffle=True, drop_last=drop_last)
    if "memory" not in arguments or not remember:
        arguments = {"model": nn.Identity(), "losses": given_losses} | arguments
    return SelectiveLoader(
        wrapped, **at_once({"epochs": EPOCHS} | arguments) | {"shorter_epochs": False}
    )


def check_counts(loader):
    """All counts, before training and in each epoch of it, against what comes."""
    steps = [loader.steps(epoch) for epoch in range(EPOCHS)]
    total = loader.total_steps
    assert total == sum(steps)
    given = []
    for epoch in range(EPOCHS):
        assert len(loader) == steps[epoch]
        given.append(0)
        for batch in loader:
            assert loader.total_steps == total
            assert 0 < len(batch["loss"]) <= loader.batch_size
            if epoch < loader.epoch or given[-1] < 2:  # also while the epoch is going on
                assert [loader.steps(epoch) for epoch in range(EPOCHS)] == steps
            loader.loss(batch["loss"])
            given[-1] += 1
    assert given == steps
    assert loader.progress == 1.0


POOLS = {
    "as it is": {},
    "dropped by the source": {"drop_last": True},
    "dropped": {"pool": Pool(7, drop_last=True)},
    "carried": {"pool": Pool(7, drop_last="carry")},
    "smaller": {"pool": Pool(3)},
    "smaller, dropped by the source": {"pool": Pool(3), "drop_last": True},
    "larger": {"pool": Pool(25)},
    "larger source": {"batch_size": 50, "pool": Pool(6)},
}
MEMORIES = {
    "memory": lambda: {"memory": Memory(0.55)},
    "half": lambda: {"memory": Memory(keep=0.5, warmup=Epochs(1))},
    "no warm-up": lambda: {"memory": Memory(keep=0.23, warmup=Epochs(0))},
    "tail": lambda: {"memory": Memory(keep=0.3, warmup=Share(0.2), tail=Share(0.4))},
    "annealed": lambda: {
        "memory": Memory(keep=0.3),
        "schedule": Schedule(
            warmup=Epochs(1), anneal=Annealing("cosine", first=0.9, until=Epochs(4))
        ),
    },
    "random sets": lambda: {"memory": RS2(0.3)},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_a_rule_of_a_fixed_count_has_known_steps(make, pool):
    pool = {name: Pool(value.batch_size, value.drop_last) if name == "pool" else value
            for name, value in pool.items()}  # fmt: skip
    check_counts(loader_of(**make(), **pool))


@pytest.mark.parametrize("count", [1, 2, 7, 59, 61, 64])
def test_of_any_number_of_examples(count):
    check_counts(loader_of(count, memory=Memory(keep=0.3, warmup=Epochs(1))))


SCHEDULES = {
    "always": None,
    "warm-up": Schedule(warmup=Epochs(1.5)),
    "interrupts": Schedule(interrupt=3, warmup=Epochs(0)),
    "from, to and tail": Schedule(start=Share(0.2), end=Share(0.9), tail=Epochs(1)),
    "annealed": Schedule(warmup=Epochs(1), anneal=Annealing("step", first=0.9, until=Epochs(3.5))),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_exact_selection_has_known_steps(schedule, pool):
    pool = {name: Pool(value.batch_size, value.drop_last) if name == "pool" else value
            for name, value in pool.items()}  # fmt: skip
    check_counts(loader_of(keep=0.37, exact=True, schedule=schedule, **pool))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("row", FAMILY.values(), ids=FAMILY)
@pytest.mark.parametrize("schedule", [None, SCHEDULES["annealed"], SCHEDULES["interrupts"]])
def test_whatever_the_selector(row, schedule):
    selector = row.make(0.4)
    if not takes_count(selector):
        with pytest.raises(ConfigError, match=r"Threshold\(above=.* does not say how many rows"):
            loader_of(selector=selector, exact=True)
        return
    if schedule is not None and schedule.anneal and not can_anneal(selector):
        return
    check_counts(loader_of(selector=selector, exact=True, schedule=schedule, batch_size=20,
                           pool=Pool(7)))  # fmt: skip


def can_anneal(selector):
    try:
        Schedule(anneal=Annealing(first=0.9), warmup=Epochs(0)).check_selector(selector)
    except ConfigError:
        return False
    return True


REFRESHED = {
    "stale": lambda: Stale(keep=0.4, every=2, warmup=Epochs(0)),
    "stale, every third": lambda: Stale(keep=0.4, every=3, warmup=Epochs(0)),
    "every epoch": lambda: Stale(keep=0.4, every=1, warmup=Epochs(0)),
    "ewma": lambda: Ewma(keep=0.4, every=3, warmup=Epochs(0)),
}


@pytest.mark.parametrize("make", REFRESHED.values(), ids=REFRESHED)
@pytest.mark.parametrize("schedule", [None, Schedule(warmup=Epochs(1), tail=Epochs(1))])
def test_rules_with_scoring_passes_have_known_steps(make, schedule):
    loader = loader_of(memory=make(), remember=False, exact=True, schedule=schedule)
    check_counts(loader)
    check_counts(loader_of(memory=make(), remember=False, schedule=schedule, exact=False))


@pytest.mark.filterwarnings("ignore:Schedule.* never selects:UserWarning")
def test_keeping_all_has_known_steps():
    check_counts(loader_of(selector=Uniform(keep=1.0)))
    check_counts(loader_of(keep=0.3, schedule=Schedule(start=Epochs(EPOCHS))))


UNKNOWN = {
    "losses that are not finite": (
        lambda: loader_of(keep=1.0, on_nonfinite="drop"),
        "Percentile keeps is left to losses that are not finite: give ex",
    ),
    "percentiles": (
        lambda: loader_of(keep=0.5, exact=False),
        "Percentile keeps is left to randomness: give ex",
    ),
    "annealing": (
        lambda: loader_of(
            keep=1, schedule=Schedule(anneal=Annealing(last=0.5), warmup=Epochs(0)), exact=False
        ),
        "Percentile keeps is left to randomness",
    ),
    "a list": (
        lambda: SelectiveLoader([torch.ones(4)], selector=Uniform(keep=0.5), pool=Pool(2)),
        "how many examples each batch of a list has is not known before it is read",
    ),
    "no batch size": (
        lambda: SelectiveLoader([torch.ones(4)], selector=Uniform(keep=0.5)),
        r"as a list has no batch_size: give pool=Pool\(batch_size\)",
    ),
}


@pytest.mark.parametrize(("make", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_known_says_what_to_use(make, message):
    with pytest.raises(TypeError, match=message):
        len(make())


def test_the_whole_training_needs_a_length():
    loader = loader_of(memory=Memory(0.55, warmup=Epochs(1)), epochs=None)
    assert len(loader) == 8
    with pytest.raises(ConfigError, match=r"total_steps needs .*give epochs="):
        _ = loader.total_steps


def test_counts_change_nothing():
    def drawn(ask):
        memory = Memory(keep=0.3)
        annealing = Annealing(first=0.9, until=Epochs(4))
        loader, found = (
            loader_of(memory=memory, schedule=Schedule(anneal=annealing, warmup=Epochs(0))),
            [],
        )
        for _ in range(EPOCHS):
            for batch in loader:
                if ask:
                    assert loader.total_steps
                    len(loader)
                loader.loss(batch["loss"])
                found.append(batch["number"].tolist())
        return found

    assert drawn(ask=False) == drawn(ask=True)


SCHEDULERS = {
    "OneCycleLR": (
        lambda optimizer, total: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=total),
        1 / 25e4, 0,
    ),
    "CosineAnnealingLR": (
        lambda optimizer, total: lr_scheduler.CosineAnnealingLR(optimizer, T_max=total), 0.0, 1,
    ),
    "LinearLR": (
        lambda optimizer, total: lr_scheduler.LinearLR(
            optimizer, start_factor=1.0, end_factor=0.01, total_iters=total
        ),
        0.01, 1,
    ),
    "PolynomialLR": (
        lambda optimizer, total: lr_scheduler.PolynomialLR(optimizer, total_iters=total), 0.0, 1,
    ),
    "ConstantLR": (
        lambda optimizer, total: lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=total), 1.0, 1,
    ),
    "LambdaLR": (
        lambda optimizer, total: lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total),
        0.0, 1,
    ),
    "CosineAnnealingWarmRestarts": (
        lambda optimizer, total: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=total),
        1.0, 1,
    ),
    "CyclicLR": (
        lambda optimizer, total: lr_scheduler.CyclicLR(
            optimizer, 0.1, 1.0, step_size_up=total, cycle_momentum=False
        ),
        1.0, 1,
    ),
    "SequentialLR": (
        lambda optimizer, total: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=total),
             lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - 5)],
            milestones=[5],
        ),
        0.0, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "last", "more"), SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize(
    "arguments",
    [lambda: {"memory": Memory(keep=0.4, warmup=Epochs(1))}, lambda: {"keep": 0.4, "exact": True}],
    ids=["memory", "exact"],
)
def test_every_schedule_of_torch_ends_with_the_training(make, last, more, arguments):
    loader = loader_of(**arguments())
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = make(optimizer, loader.total_steps), []
    for _ in range(EPOCHS):
        for batch in loader:
            loader.loss(batch["loss"])
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
            if more or len(rates) < loader.total_steps:
                schedule.step()
    assert len(rates) == loader.total_steps
    assert optimizer.param_groups[0]["lr"] == pytest.approx(last, abs=1e-6)
    if make is SCHEDULERS["OneCycleLR"][0]:
        with pytest.raises(ValueError, match="Tried to step"):
            schedule.step(), schedule.step()


@pytest.mark.parametrize("exact", [False, True])
def test_progress_is_spread_over_the_batches_given(exact):
    loader = SelectiveLoader(
        DataLoader(Numbered(spread(2048)), 512, shuffle=True), nn.Identity(), losses=given_losses,
        keep=0.5, exact=exact, epochs=1, pool=Pool(32, drop_last=True), schedule=AT_ONCE,
    )  # fmt: skip
    progress = [loader.progress for _ in loader]
    assert progress[0] == 0
    steps = torch.tensor([*progress, loader.progress]).diff()
    assert loader.progress == 1.0
    assert max(progress) < 1 - 0.5 / len(progress)  # before the last
    if exact:
        torch.testing.assert_close(steps, torch.full((32,), 1 / 32))
        rates = [math.cos(math.pi / 2 * done) for done in progress]
        assert min(rates) > 0
    assert (steps > 0).all()


def test_progress_by_memory():
    loader = loader_of(memory=Memory(keep=0.5, warmup=Epochs(1)))
    progress = []
    for _ in range(EPOCHS):
        for batch in loader:
            progress.append(loader.progress)
            loader.loss(batch["loss"])
    expected = torch.arange(8 * EPOCHS) / (8 * EPOCHS)
    torch.testing.assert_close(torch.tensor(progress), expected)
    assert loader.progress == 1.0
    assert Percentile(keep=0.5).keep == 0.5
