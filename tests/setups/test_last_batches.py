"""No batch of a single row is made of larger ones, whatever selects; batch normalisation runs."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from pools import add, release_full, release_last
from remembering import RULES, Numbered, by_pass, plain, spread, steps_of
from resuming import check_resumes
from siftback import (
    Epochs,
    Indexed,
    InfoBatch,
    Memory,
    Percentile,
    Pool,
    SelectiveSampler,
    Stale,
    Threshold,
    Uniform,
)
from siftback.batches.order import SelectiveBatches, count_batches
from siftback.rules.rule import EpochRule
from toys import AT_ONCE, given_losses

EPOCHS = 4


class First(EpochRule):
    """Draws the first n examples."""

    def __init__(self, number):
        super().__init__(warmup=Epochs(1))
        self.number = number

    def draw(self, epoch, generator):
        return (torch.arange(self.examples) < self.number).float()


def sizes_of(loader, epochs=EPOCHS):
    """The sizes of each epoch's batches; checks all counts on the way."""
    sizes, rows = [], []
    for epoch in range(epochs):
        batches = []
        for batch in loader:
            if loader.memory is not None:
                right = batch["number"] % 2 == 0
                losses = batch["loss"] * (1 + (batch["number"] + epoch) % 3)
                loader.loss(losses, correct=right, confidence=right.float())
            batches.append(len(batch["loss"]))
            rows += batch["number"].tolist()
        sizes.append(batches)
    waiting = loader.stats.seen - loader.stats.unread - loader.stats.dropped - len(rows)
    return sizes, waiting


# The shares of the last two batches

DRAWN = {
    (9, 4): [4, 3, 2], (5, 4): [3, 2], (7, 3): [3, 2, 2], (4, 3): [2, 2], (5, 2): [2, 3],
    (3, 2): [3], (1, 4): [1], (1, 2): [1], (8, 4): [4, 4], (10, 4): [4, 4, 2], (3, 1): [1, 1, 1],
}  # fmt: skip


@pytest.mark.parametrize(("case", "expected"), DRAWN.items(), ids=str)
def test_the_last_two_batches_share_their_rows(case, expected):
    drawn, size = case
    loader = by_pass(plain(Numbered(spread(13)), size), memory=First(drawn), epochs=EPOCHS)
    whole = [size] * (13 // size) + [13 % size] * (13 % size > 0)
    assert sizes_of(loader)[0] == [
        whole,
        *[expected] * 3,
    ]  # all examples as plain training has them
    assert count_batches(drawn, size) == len(expected)


POOLS = {
    "own": lambda size: {},
    "of another size": lambda size: {"pool": Pool(5)},
    "of two": lambda size: {"pool": Pool(2)},
    "larger": lambda size: {"pool": Pool(3 * size)},
}
LOADERS = {
    "shuffled": lambda data, size: plain(data, size),
    "in order": lambda data, size: plain(data, size, shuffle=False),
    "indexed": lambda data, size: plain(Indexed(data), size),
    "a selective sampler": lambda data, size: DataLoader(
        data, size, sampler=SelectiveSampler(data, seed=1)
    ),
    "a batch sampler of one's own": lambda data, size: DataLoader(
        data, batch_sampler=Sorted(SelectiveSampler(data), size, False)
    ),
    "another sampler": lambda data, size: plain(
        data, size, shuffle=False, sampler=SequentialSampler(range(len(data) - 1))
    ),
}


class Sorted(BatchSampler):
    def __iter__(self):
        yield from map(sorted, super().__iter__())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("drawn", [61, 13])
def test_whatever_the_loader_and_the_pool(make, pool, size, drawn):
    loader = by_pass(
        make(Numbered(spread(drawn + 3)), size), memory=First(drawn), epochs=EPOCHS,
        **({"pool": Pool(size)} if make is LOADERS["a batch sampler of one's own"] else {})
        | pool(size),
    )  # fmt: skip
    sizes, _ = sizes_of(loader)
    for batches in sizes[1:]:
        assert min(batches) > 1
        assert sum(batches) == drawn
        assert max(batches) <= max(loader.batch_size, 3)
        assert len(batches) == count_batches(drawn, loader.batch_size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", RULES.values(), ids=RULES)
@pytest.mark.parametrize("size", [2, 3, 7])
def test_whatever_the_rule(make, size):
    for count in (40, 43):
        loader = by_pass(plain(Numbered(spread(count)), size), memory=make(), epochs=5)
        for epoch in range(5):
            sizes = [len(numbers) for numbers, _ in steps_of(loader, epoch)]
            assert min(sizes) > 1 or sum(sizes) in (1, count)


SELECTIONS = {
    "exact": {"keep": 0.4},
    "uniform": {"selector": Uniform(keep=0.4)},
    "by chance": {"keep": 0.4, "exact": False},
    "a threshold": {"selector": Threshold(above=1.0)},
    "after an epoch": {"keep": 0.4, "schedule": None},
    "with passes": {"memory": Stale(0.4, every=2, warmup=Epochs(0))},
    "with passes by chance": {"memory": Stale(0.4, every=2, warmup=Epochs(0)), "exact": False},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arguments", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("pool", [2, 3, 5, 8, 20])
@pytest.mark.parametrize("source", [DataLoader, list])
def test_whatever_is_selected_in_a_batch(arguments, pool, source):
    if "memory" in arguments and source is list:
        return
    for count in (41, 46, 60):
        wrapped = plain(Numbered(spread(count)), 8)
        arguments = {"schedule": AT_ONCE} | arguments
        if "memory" in arguments:
            memory = arguments["memory"]
            rule = Stale(memory.keep, every=memory.every, warmup=Epochs(0))
            arguments = {**arguments, "memory": rule}
        loader = by_pass(
            wrapped if source is DataLoader else list(wrapped), nn.Identity(),
            losses=given_losses, pool=Pool(pool), epochs=EPOCHS, **arguments,
        )  # fmt: skip
        steps = None
        if source is DataLoader and arguments.keys() <= {"keep", "schedule"}:
            steps = [loader.steps(epoch) for epoch in range(EPOCHS)]
        sizes, waiting = sizes_of(loader)
        for batches in sizes:
            # The loader's own last batch of one row is given as it is, if its row is kept.
            is_own = pool == 8 and count % 8 == 1 and batches.count(1) == 1 == batches[-1]
            assert not batches or min(batches) > 1 or is_own
        if steps is not None:
            assert [len(batches) for batches in sizes] == steps
        if "memory" not in arguments:
            assert loader.stats.dropped == 0 <= waiting


def test_a_single_row_that_nobody_could_foresee_comes_first_in_the_next_epoch():
    loader = by_pass(
        [{"number": torch.arange(9), "loss": torch.rand(9)}], selector=Uniform(keep=1.0),
        pool=Pool(4),
    )  # fmt: skip
    sizes = [[batch["number"].tolist() for batch in loader] for _ in range(2)]
    assert sizes == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 0, 1, 2], [3, 4, 5, 6], [7, 8]]]


def test_a_batch_of_one_row_of_the_users_own_is_given():
    for arguments in ({"memory": Memory(0.55, warmup=Epochs(2))}, {"selector": Uniform(keep=1.0)}):
        loader = by_pass(plain(Numbered(spread(9)), 4), epochs=3, **arguments)
        assert sizes_of(loader, 1)[0] == [[4, 4, 1]]
    loader = by_pass(plain(Numbered(spread(9)), 1), memory=Memory(0.55), epochs=4)
    assert sizes_of(loader)[0] == [[1] * 9, *[[1] * 5] * 3]


class Boxes(Numbered):
    """Images of several sizes, in lists."""

    def __getitem__(self, index):
        return torch.full((1, 2 + index % 3), float(index)), self.losses[index]


def in_lists(examples):
    return [image for image, _ in examples], {"loss": [loss for _, loss in examples]}


@pytest.mark.parametrize("make", [plain, LOADERS["a batch sampler of one's own"]])
def test_lists_of_examples_share_their_last_batch_too(make):
    loader = make(Boxes(spread(16)), 4)
    loader.collate_fn = in_lists
    loader = by_pass(loader, memory=First(13), epochs=2, pool=Pool(4))
    sizes = []
    for _ in range(2):
        for images, _ in loader:
            sizes.append(len(images))
            loader.loss(torch.ones(len(images)), indices=None)
    assert sizes[4:] == [4, 4, 3, 2]


RESUMED = {
    "drawn": lambda: {"memory": First(13)},
    "drawn, in batches of two": lambda: {"memory": First(13), "pool": Pool(2)},
    "drawn, in other batches": lambda: {"memory": First(16), "pool": Pool(5)},
    "selected": lambda: {"keep": 0.45, "pool": Pool(3), "schedule": AT_ONCE},
    "by chance": lambda: {"keep": 0.45, "pool": Pool(3), "schedule": AT_ONCE, "exact": False},
}


@pytest.mark.parametrize("arguments", RESUMED.values(), ids=RESUMED)
def test_it_resumes_at_any_step(arguments):
    def make():
        loader = by_pass(
            plain(Numbered(spread(20)), 4), nn.Identity(), losses=given_losses, epochs=3,
            **arguments(),
        )  # fmt: skip

        def steps():
            while loader.epoch < 3:
                for batch in loader:
                    if loader.memory is not None:
                        loader.record(batch["loss"])
                    yield batch["number"]
                yield None

        return {"loader": loader}, steps, lambda: loader.stats.released

    check_resumes(make)


def test_trainings_with_batch_normalisation_come_to_their_end():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(66, 4), torch.randint(3, (66,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for rule in (partial(Memory, floor=0.3), InfoBatch, partial(Memory, keep=33 / 66)):
        for seed in range(2):
            loader = by_pass(DataLoader(data, 8, shuffle=True), memory=rule(), epochs=20, seed=seed)
            for _ in range(20):
                for x, y in loader:
                    loader.loss(F.cross_entropy(model(x), y, reduction="none")).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            assert loader.progress == 1.0


# Samplers alone, and plans of frameworks


@pytest.mark.parametrize(("case", "expected"), DRAWN.items(), ids=str)
def test_a_sampler_alone_has_batches_too(case, expected):
    drawn, size = case
    sampler = SelectiveSampler(range(13), First(drawn), epochs=4, shorter_epochs=True)
    batches = sampler.batches(size)
    for _ in range(3):
        sizes = []
        for batch in batches:
            sizes.append(len(batch))
    assert sizes == expected
    assert list(map(len, sampler.batches(size, drop_last=True))) == [size] * (drawn // size)
    assert list(SelectiveBatches(range(3), 2, False)) == [[0, 1], [2]]


def test_a_pool_alone_keeps_a_single_row_or_shares():
    pool = Pool(4)
    add(pool, torch.arange(8))
    batches = release_full(pool, to_come=1)
    assert [(len(batch), pool.ready) for batch in batches] == [(4, 1), (3, 0)]
    add(pool, torch.tensor([8]))
    assert [batch.tolist() for batch in release_last(pool)] == [[7, 8]]
    add(pool, torch.tensor([9]))
    assert not list(release_last(pool))
    other = Pool(4)
    other.load_state_dict(pool.state_dict())
    for one in (pool, other):
        add(one, torch.tensor([10]))
        assert [batch.tolist() for batch in release_last(one)] == [[9, 10]]
    for drop_last, left in ((True, 0), ("carry", 1)):
        pool = Pool(4, drop_last)
        add(pool, torch.arange(8))
        assert [len(batch) for batch in release_full(pool, to_come=1)] == [4, 4]
        add(pool, torch.tensor([8]))
        assert not list(release_last(pool))
        assert len(pool) == left
    assert Percentile(keep=0.5).keep == 0.5
