"""Ctrl-C in the library's own work: what is saved then goes on as if nothing had been."""

import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, Subset

from siftback import Epochs, Memory, Pool, SelectiveLoader, SelectiveSampler
from siftback.batches import tree
from toys import dataset, network, seeded

COUNT, SIZE, EPOCHS = 44, 8, 4


def remembering(**options):
    wrapped = DataLoader(dataset(COUNT), SIZE, shuffle=True)
    rule = Memory(keep=0.5, warmup=Epochs(1))
    return SelectiveLoader(wrapped, memory=rule, epochs=EPOCHS, **options)


LOADERS = {
    "passes in equal epochs": remembering,
    "an epoch for each pass": lambda: remembering(shorter_epochs=True),
    "other batches": lambda: remembering(pool=Pool(5)),
}


class InterruptedOnce:
    """Calls a function, and raises at a call of a number in place of it."""

    def __init__(self, function, call):
        self.function, self.left = function, call

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.function(*args, **kwargs)


def train(loader, batches):
    """Adds each batch's examples to a list, to the end of the training."""
    while loader.epoch < EPOCHS:
        for _ in loader:
            indices = loader.indices
            loader.record((indices * 7 % 11 + loader.epoch).float())
            batches.append((loader.epoch, indices.tolist()))


def check_interrupted(monkeypatch, make, owner, name, call, *, same_loader=False):
    """Interrupts a call of a function, and goes on from the state of then."""
    expected, batches, loader = [], [], make()
    train(make(), expected)
    function = InterruptedOnce(getattr(owner, name), call)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, lambda *args, **kwargs: function(*args, **kwargs))
        with pytest.raises(KeyboardInterrupt):
            train(loader, batches)
    if not same_loader:
        state, loader = loader.state_dict(), make()
        loader.load_state_dict(state)
    train(loader, batches)
    assert batches == expected


@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_draw_that_is_interrupted_is_made_again(monkeypatch, make, call):
    if make is LOADERS["an epoch for each pass"] and call == 4:
        return  # of three draws
    check_interrupted(monkeypatch, make, Memory, "draw", call)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_the_same_loader_begins_an_epoch_whose_draw_was_interrupted(monkeypatch, call):
    make = LOADERS["an epoch for each pass"]
    check_interrupted(monkeypatch, make, Memory, "draw", call, same_loader=True)


def test_a_sampler_alone_begins_an_epoch_whose_draw_was_interrupted(monkeypatch):
    def epochs_of(sampler, interrupted=0):
        rule = Memory.draw
        for epoch in range(EPOCHS):
            if epoch == interrupted > 0:
                monkeypatch.setattr(Memory, "draw", InterruptedOnce(rule, 1))
                with pytest.raises(KeyboardInterrupt):
                    next(iter(sampler))
                monkeypatch.undo()
            indices = torch.tensor(list(sampler))
            sampler.update(indices, (indices * 7 % 11).float())
            yield indices.tolist()

    def make():
        rule = Memory(keep=0.5, warmup=Epochs(1))
        return SelectiveSampler(range(COUNT), rule, epochs=EPOCHS, shorter_epochs=True)

    assert [*epochs_of(make(), interrupted=2)] == [*epochs_of(make())]


@pytest.mark.parametrize("call", [1, 3, 8])
def test_rows_that_were_being_joined_are_released_again(monkeypatch, call):
    check_interrupted(monkeypatch, LOADERS["other batches"], tree, "concatenate", call)


def test_the_last_rows_of_an_epoch_stay_where_their_release_was_interrupted(monkeypatch):
    def make():
        model, wrapped = network(), DataLoader(Subset(dataset(), range(22)), 6)
        return SelectiveLoader(wrapped, model, F.cross_entropy, keep=1 / 2, epochs=3)

    loader, release = make(), InterruptedOnce(Pool.release_last, 1)
    assert len([*loader]) == 4  # the warm-up
    with monkeypatch.context() as patched:
        patched.setattr(Pool, "release_last", lambda *args, **kwargs: release(*args, **kwargs))
        with pytest.raises(KeyboardInterrupt):
            next(itertools.islice(loader, 9, None))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert sum(len(x) for x, _ in resumed) == 11 + 5


class Interrupted(RandomSampler):
    """An order that is interrupted once as it is drawn."""

    is_interrupted = False

    def __iter__(self):
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        yield from super().__iter__()


def test_an_order_that_was_interrupted_as_it_was_drawn_is_drawn_again():
    def make():
        sampler = Interrupted(dataset(COUNT), generator=seeded(2))
        wrapped = DataLoader(dataset(COUNT), SIZE, sampler=sampler)
        return SelectiveLoader(wrapped, network(), F.cross_entropy, keep=1 / 2), sampler

    loader, sampler = make()
    sampler.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    resumed, _ = make()
    resumed.load_state_dict(loader.state_dict())
    assert sum(len(x) for x, _ in resumed) == COUNT
