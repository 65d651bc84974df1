"""Epochs of as many batches as the wrapped loader has, whatever a rule leaves out of each pass."""

import itertools
import warnings
from functools import partial

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from remembering import (
    REFRESHED,
    RULES,
    Numbered,
    by_rule,
    epoch_of,
    plain,
    spread,
    steps_of,
)
from remembering import ruled as ruled_by_pass
from resuming import check_resumes
from siftback import Epochs, Indexed, Memory, SelectiveLoader, SelectiveSampler, Share
from siftback.batches.pool import Pool
from siftback.errors import BatchError
from siftback.rules import memory
from siftback.rules.infobatch import InfoBatch
from siftback.rules.kakurenbo import Kakurenbo
from siftback.rules.rs2 import RS2
from toys import seeded

COUNT, SIZE, EPOCHS = 44, 8, 5
# Of the seven places of an epoch to stop at, all are among those of a few epochs.
OFTEN = 3
# One masters all, and one is left with examples that a sampler with replacement may not give.
DRAWING = {
    name: rule for name, rule in RULES.items() if name not in ("ies", "ratio memory, guarded")
}
every_rule = pytest.mark.parametrize("rule", DRAWING.values(), ids=DRAWING)


ruled = partial(ruled_by_pass, shorter_epochs=False)


def own_batches(data):
    """A DataLoader with a batch sampler of the user's own, whose batches differ in size."""

    class Uneven(BatchSampler):
        def __iter__(self):
            for batch in super().__iter__():
                yield from (batch[:5], batch[5:]) if len(batch) > 5 else (batch,)

        def __len__(self):
            return len(list(iter(BatchSampler(range(len(self.sampler)), SIZE, False)))) * 2 - 1

    return DataLoader(data, batch_sampler=Uneven(SelectiveSampler(data), SIZE, False))


LOADERS = {
    "shuffled": plain,
    "in order": lambda data: plain(data, shuffle=False),
    "drop_last": lambda data: plain(data, drop_last=True),
    "workers": lambda data: plain(data, num_workers=2),
    "a last row": lambda data: plain(Subset(data, range(SIZE * 5 + 1))),
    "one batch": lambda data: plain(data, COUNT + 5),
    "a subset sampler": lambda data: DataLoader(
        data, SIZE, sampler=SubsetRandomSampler(range(3, COUNT, 2), generator=seeded(1))
    ),
    "a weighted sampler": lambda data: DataLoader(
        data, SIZE, sampler=WeightedRandomSampler(torch.ones(COUNT), 43, generator=seeded(1))
    ),
    "a batch sampler of one's own": own_batches,
}


def every_rule_and(sources):
    """Each rule with each source; with workers, which start in each epoch, a few rules."""
    cases = {
        f"{source}-{name}": (rule, source)
        for source in sources
        for name, rule in DRAWING.items()
        if source != "workers" or name in ("rs2", "seta", "memory")
    }
    return pytest.mark.parametrize(("rule", "source"), cases.values(), ids=cases)


def sizes_of(loader):
    return [len(batch["number"]) for batch in loader]


def test_what_is_left_out_is_of_the_pass_in_training_whatever_other_passes_read():
    data = Numbered(spread(COUNT))
    loader = ruled(RS2(keep=0.5), wrapped=plain(data, COUNT // 4), epochs=EPOCHS)
    for epoch in range(2):
        read = set()
        for step, (numbers, _) in enumerate(steps_of(loader, epoch)):
            read = {*numbers} if step % 2 == 0 else read | {*numbers}  # two batches are a pass
            if step % 2:
                assert set(loader.left_out.tolist()) == set(range(COUNT)) - read
        assert len(loader.left_out) == COUNT // 2  # of the last pass; the epoch read every example


@every_rule_and(LOADERS)
@pytest.mark.sampled(2)
def test_epochs_have_the_batches_of_the_wrapped_loader(rule, source):
    data, wrap = Numbered(spread(COUNT)), LOADERS[source]
    expected = sizes_of(wrap(data))
    loader = ruled(rule(), wrapped=wrap(data), epochs=EPOCHS)
    lengths = {len(loader), loader.steps(0), loader.steps(EPOCHS - 1)}
    for epoch in range(EPOCHS):
        sizes = []
        for numbers, _ in steps_of(loader, epoch):
            lengths.add(len(loader))
            sizes.append(len(numbers))
        assert sizes == expected
        lengths.add(len(loader))
    assert lengths == {len(expected)}
    assert loader.total_steps == EPOCHS * len(expected)
    assert loader.progress == 1.0


@every_rule
def test_a_look_at_a_batch_changes_no_order_where_a_loop_sets_the_epoch(rule):
    data = Numbered(spread(COUNT))

    def orders(looks):
        loader, found = ruled(rule(), wrapped=plain(data), epochs=EPOCHS), []
        for epoch in range(EPOCHS):
            for _ in range(looks):
                loader.set_epoch(epoch)
                next(iter(loader))
            loader.set_epoch(epoch)
            found += [numbers for numbers, _ in steps_of(loader, epoch)]
        return found

    assert orders(looks=2) == orders(looks=0)


@every_rule
@pytest.mark.parametrize("size", [3, 11])
def test_a_pool_makes_as_many_batches_as_of_whole_epochs(rule, size):
    data, expected = Numbered(spread(COUNT)), -(-COUNT // size)
    loader = ruled(rule(), wrapped=plain(data), epochs=EPOCHS, pool=Pool(size))
    assert loader.total_steps == EPOCHS * expected
    for epoch in range(EPOCHS):
        assert len([*steps_of(loader, epoch)]) == len(loader) == expected


@every_rule
@pytest.mark.parametrize("size", [5, 8])
def test_no_batch_has_an_example_twice(rule, size):
    loader = ruled(rule(), wrapped=plain(Numbered(spread(COUNT)), size), epochs=EPOCHS)
    passes = set()
    for epoch in range(EPOCHS):
        for numbers, _ in steps_of(loader, epoch):
            current = loader._pipeline.draw.current
            assert len(set(numbers)) == len(numbers) or current.size < 2 * size
            passes.add(current.number)
    assert len(passes) >= EPOCHS


def test_passes_follow_each_other_within_epochs_and_over_their_ends():
    rule = RS2(0.3, warmup=Epochs(0))  # 13 of 43, from one permutation after the other
    loader = ruled(rule, wrapped=plain(Numbered(spread(43)), 4), epochs=6)
    numbers = list(itertools.chain.from_iterable(epoch_of(loader) for _ in range(6)))
    assert len(numbers) == 6 * 43
    size = rule.count(0)
    for start in range(0, len(numbers) - size, size):
        drawn = numbers[start : start + size]
        assert len(set(drawn)) == size  # one pass
    assert set(numbers[: 4 * size]) == set(range(43))  # by RS2's permutation


def test_a_pass_is_drawn_by_all_losses_recorded_until_its_first_example():
    seen = []

    class Noting(Memory):
        def draw(self, epoch, generator):
            seen.append((epoch, self.values[:, 0].clone()))
            return super().draw(epoch, generator)

    rule = Noting(0.25, floor=0.0, warmup=Epochs(1))
    loader = ruled(rule, wrapped=plain(Numbered(spread(40)), 10), epochs=3)
    remembered = torch.full((40,), torch.nan)
    draws = 0
    for epoch in range(3):
        for step, batch in enumerate(loader):
            if len(seen) > draws:  # with the first example of this batch
                assert torch.equal(seen[-1][1].nan_to_num(-1), remembered.nan_to_num(-1))
                draws = len(seen)
            losses = batch["loss"] * (1 + epoch * 4 + step)
            loader.record(losses)
            remembered[batch["number"]] = losses
    assert [number for number, _ in seen] == [*range(1, 9)]  # four passes in each of two epochs


def test_orders_are_a_function_of_seed_and_pass():
    def numbers(seed):
        rule = RS2(0.4, warmup=Epochs(1))
        loader = SelectiveLoader(plain(Numbered(spread(30))), memory=rule, epochs=4, seed=seed)
        return [batch["number"].tolist() for _ in range(4) for batch in loader]

    assert numbers(1) == numbers(1) != numbers(2)
    sampler = SelectiveSampler(range(30), seed=1)
    whole = [index for batch in numbers(1)[:4] for index in batch]
    assert whole == list(sampler)  # the warm-up, in the order of a plain sampler


def test_the_tail_is_one_pass_over_everything():
    rule = Memory(0.3, warmup=Epochs(1), tail=Epochs(1))
    loader = ruled(rule, wrapped=plain(Numbered(spread(COUNT))), epochs=5)
    epochs = [epoch_of(loader) for _ in range(5)]
    assert sorted(epochs[0]) == sorted(epochs[4]) == list(range(COUNT))
    assert all(len(set(numbers)) < COUNT for numbers in epochs[1:4])


def test_an_epoch_that_was_left_ends_its_pass():
    loader = ruled(RS2(0.9, warmup=Epochs(0)), wrapped=plain(Numbered(spread(40)), 10), epochs=9)
    for batch in loader:
        loader.record(batch["loss"])
        break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = next(iter(loader))["number"]
    draw = loader._pipeline.draw
    assert draw.current.number == 1
    assert draw.current.start == 0
    assert len(first) == 10


@pytest.mark.parametrize("left_after", [1, 20, 39])
def test_an_epoch_of_a_sampler_alone_that_was_left_ends_its_pass(left_after):
    sampler = SelectiveSampler(range(40), RS2(0.8, warmup=Epochs(0)), epochs=9)
    whole = list(sampler)  # a pass of 32, and 8 of the next one
    assert list(itertools.islice(sampler, left_after)) != whole[:left_after]
    assert sampler.draw.passes[0].start == -8
    list(sampler)
    assert sampler.draw.passes[0].start == 0
    assert sampler.draw.passes[0].number == 2 + (left_after > 24)


def test_statistics_count_what_passes_left_out():
    rule = RS2(0.25, warmup=Epochs(0))
    loader = ruled(rule, wrapped=plain(Numbered(spread(40)), 10), epochs=3)
    for epoch in range(3):
        epoch_of(loader)
        stats = loader.stats
        read = 40 * (epoch + 1)
        assert (stats.seen, stats.unread, stats.released) == (4 * read, 3 * read, read)
    assert loader.share == 0.25


def test_lr_scale_is_of_epochs_that_are_passes():
    def scales(**options):
        rule = Kakurenbo(0.5, warmup=Epochs(1))
        loader = ruled(rule, wrapped=plain(Numbered(spread(40))), epochs=4, **options)
        for epoch in range(4):
            for _ in steps_of(loader, epoch):
                yield loader.lr_scale

    assert set(scales()) == {1.0}
    assert max(scales(shorter_epochs=True)) > 1.0


@pytest.mark.parametrize("workers", [0, 2])
def test_weights_are_those_of_the_pass_that_an_example_is_of(workers):
    rule = InfoBatch(0.5, 1.0)
    draws = []
    draw = rule.draw

    def noted(epoch, generator):
        draws.append(draw(epoch, generator))
        return draws[-1]

    rule.draw = noted
    loader = ruled(rule, wrapped=plain(Numbered(spread(40)), 12, num_workers=workers), epochs=8)
    position, mixed = 0, 0
    for epoch in range(8):
        for numbers, weights in steps_of(loader, epoch):
            for number, weight in zip(numbers, weights, strict=True):
                ends = torch.tensor([int((drawn != 0).sum()) for drawn in draws]).cumsum(0)
                drawn = draws[int((ends <= position).sum())]
                assert weight == pytest.approx(float(drawn[number]))
                position += 1
            mixed += bool(((ends > position - len(numbers)) & (ends < position)).any())
    assert mixed > 1  # batches in which a pass ends
    assert len(draws) > 7


EVERYTHING = {
    "plain": plain,
    "workers": lambda data: plain(data, num_workers=2),
    "drop_last": lambda data: plain(data, drop_last=True),
    "subset": LOADERS["a subset sampler"],
    "weighted": LOADERS["a weighted sampler"],
    "own batches": own_batches,
}


@every_rule_and(EVERYTHING)
@pytest.mark.sampled(4)
def test_a_resume_at_every_step_changes_nothing(rule, source):
    def make_source():
        return EVERYTHING[source](Numbered(spread(COUNT)))

    every = 9 if source == "workers" else OFTEN if source == "plain" else 4
    check_resumes(by_rule(rule, make_source, epochs=4, shorter_epochs=False), every)


class OwnLoader:
    """A loader of one's own, which has a length, and reads everything."""

    indexed, batch_size, num_workers = True, SIZE, 0

    def __init__(self, data):
        self.loader = DataLoader(Indexed(data), SIZE)

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)


CHAINED = {
    **{f"refreshed: {name}": (rule, plain) for name, rule in REFRESHED.items()},
    **{f"own loader: {name}": (rule, OwnLoader) for name, rule in DRAWING.items()},
    "workers": (REFRESHED["stale"], lambda data: plain(data, num_workers=2)),
    "drop_last": (REFRESHED["stale"], lambda data: plain(data, drop_last=True)),
    "subset": (REFRESHED["stale"], LOADERS["a subset sampler"]),
}
every_chain = pytest.mark.parametrize(("rule", "wrap"), CHAINED.values(), ids=CHAINED)


@every_chain
def test_passes_that_are_read_whole_make_as_many_batches(rule, wrap):
    data = Numbered(spread(COUNT))
    loader, expected = ruled(rule(), wrapped=wrap(data), epochs=EPOCHS), len(wrap(data))
    assert loader.total_steps == EPOCHS * expected
    for epoch in range(EPOCHS):
        assert len([*steps_of(loader, epoch)]) == expected == len(loader)
    assert loader.progress == 1.0
    assert loader.stats.kept < loader.stats.considered


# Labels are of a known number of examples, and a loader of one's own tells its own as it is read.
RESUMED = {name: chain for name, chain in CHAINED.items() if name != "own loader: rcap"}


@pytest.mark.parametrize(("rule", "wrap"), RESUMED.values(), ids=RESUMED)
@pytest.mark.sampled(4)
def test_a_resume_at_every_step_of_such_passes_changes_nothing(rule, wrap):
    every = 9 if wrap(Numbered(spread(COUNT))).num_workers else OFTEN
    check_resumes(
        by_rule(rule, lambda: wrap(Numbered(spread(COUNT))), epochs=4, shorter_epochs=False), every
    )


@pytest.mark.parametrize("wrap", [plain, OwnLoader])
@pytest.mark.parametrize("after", [0, 4, 5])
def test_a_resume_where_a_tail_is_left_out_or_begins_late_changes_nothing(monkeypatch, after, wrap):
    monkeypatch.setattr(memory, "TAIL_AFTER", Epochs(after))
    make = by_rule(
        lambda: Memory(warmup=Epochs(1)),
        lambda: wrap(Numbered(spread(COUNT))), epochs=5, shorter_epochs=False,
    )  # fmt: skip
    check_resumes(make, OFTEN)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_have_equal_shares_of_each_pass(rank):
    """Without processes: a rule that learns nothing draws the same in each."""

    class Fixed(RS2):
        pass

    def orders(rank):
        sampler = SelectiveSampler(range(41), rank=rank, world=2, seed=3)
        return [list(sampler) for _ in range(2)]

    mine, other = orders(rank), orders(1 - rank)
    assert [len(order) for order in mine] == [20, 20]
    assert not set(mine[0]) & set(other[0])


def test_nothing_drawn_is_an_error():
    class Nothing(Memory):
        def draw(self, epoch, generator):
            return torch.zeros(self.examples)

    loader = ruled(Nothing(0.5, warmup=Epochs(1)), wrapped=plain(Numbered(spread(40))), epochs=3)
    epoch_of(loader)
    with pytest.raises(BatchError, match="Nothing draws 0 of 40"):
        epoch_of(loader)


def test_annealing_follows_progress_within_an_epoch():
    from siftback import Annealing, Schedule

    schedule = Schedule(
        warmup=Epochs(0), anneal=Annealing("linear", first=0.5, last=0.25, until=Epochs(2))
    )
    rule = Memory(0.5, floor=0.0)
    loader = ruled(rule, wrapped=plain(Numbered(spread(40)), 10), epochs=3, schedule=schedule)
    sizes = []
    for _ in range(3):
        for batch in loader:
            loader.record(batch["loss"])
            sizes.append(loader._pipeline.draw.current.size)
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (20, 10)
    assert len(set(sizes)) > 3


def test_a_share_of_warmup_needs_epochs_as_before():
    rule = Memory(0.5, warmup=Share(0.5))
    loader = ruled(rule, wrapped=plain(Numbered(spread(40))), epochs=4)
    epochs = [epoch_of(loader) for _ in range(4)]
    assert [len(set(numbers)) == 40 for numbers in epochs] == [True, True, False, False]


class Noting(Memory):
    """Notes of which pass the losses of each example are said to be."""

    def __init__(self):
        super().__init__(0.5, warmup=Epochs(1), tail=Epochs(0))
        self.noted = []

    def update(self, indices, losses, epoch, **predictions):
        self.noted += [(epoch, index) for index in indices.tolist()]
        super().update(indices, losses, epoch, **predictions)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_losses_of_a_batch_in_which_a_pass_ends_are_of_both(workers):
    """A rule may go by the number of the pass, as EVOS by whether it had all examples."""
    rule, given = Noting(), []
    wrapped = DataLoader(Numbered(spread(100)), 16, shuffle=True, num_workers=workers)
    loader = SelectiveLoader(wrapped, memory=rule, epochs=4)
    for batch in (batch for _ in range(4) for batch in loader):
        given += batch["number"].tolist()
        loader.loss(batch["loss"])
    loader.state_dict()  # by which all that waited are taken
    passes = [0] * 100 + [1 + place // 50 for place in range(300)]
    assert rule.noted == list(zip(passes, given, strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_losses_that_a_sampler_is_given_are_of_the_passes_of_their_batch(workers):
    """Also those of batches that workers read before a pass is drawn."""
    rule, given = Noting(), []
    sampler = SelectiveSampler(range(100), rule, epochs=4)
    batches = sampler.batches(16)
    loader = DataLoader(Numbered(spread(100)), batch_sampler=batches, num_workers=workers)
    for batch in (batch for _ in range(4) for batch in loader):
        given += batch["number"].tolist()
        sampler.update(batch["number"], batch["loss"])
    sampler.state_dict()  # by which all that waited are taken
    passes = [0] * 100 + [1 + place // 50 for place in range(300)]
    assert rule.noted == list(zip(passes, given, strict=True))
