"""Samplers that do not give every example: what a rule leaves of them, counted and simulated."""

import copy
import importlib
import itertools
import math
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from remembering import (
    REFRESHED,
    RULES,
    Numbered,
    by_pass,
    by_rule,
    ruled,
    spread,
    steps_of,
    weights_of,
)
from resuming import check_resumes
from selections import check_deviations
from siftback import (
    RS2,
    UCB,
    Annealing,
    EpochRule,
    Epochs,
    Indexed,
    InfoBatch,
    Kakurenbo,
    Memory,
    NoiseGuard,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Stale,
    Uniform,
)
from siftback.draws.percentile_draw import draw_probabilities
from siftback.draws.ratio_draw import ratio_probabilities
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.loader_order import FilteredSampler
from siftback.errors import BatchError, ConfigError, StateError
from toys import given_losses, seeded

COUNT, EPOCHS, BATCH = 60, 5, 8


class Parts(Sampler[int]):
    """Another part of the data in each epoch, each of its examples once, in a new order."""

    def __init__(self, parts, generator):
        self.parts, self.generator, self.epoch = parts, generator, 0

    def __iter__(self):
        part = self.parts[self.epoch % len(self.parts)]
        self.epoch += 1
        return iter([part[i] for i in torch.randperm(len(part), generator=self.generator)])

    def __len__(self):
        return len(self.parts[0])


class Repeating(Sampler[int]):
    """A few examples twice, without saying so."""

    def __init__(self, indices, generator):
        self.indices, self.generator = [*indices, *indices], generator

    def __iter__(self):
        order = torch.randperm(len(self.indices), generator=self.generator)
        return iter([self.indices[i] for i in order])

    def __len__(self):
        return len(self.indices)


class Unsized(Sampler[int]):
    """Each example with a probability of its own, so that nobody knows how many there are."""

    def __init__(self, probabilities, generator):
        self.probabilities, self.generator = probabilities, generator

    def __iter__(self):
        drawn = torch.rand(len(self.probabilities), generator=self.generator) < self.probabilities
        yield from drawn.nonzero().squeeze(1).tolist()


def overlapping():
    """Five parts of 40 of 60 examples."""
    return [[(start * 12 + row) % COUNT for row in range(40)] for start in range(5)]


STEADY = {
    "subset": (lambda: SubsetRandomSampler(range(10, 50), seeded(1)), 40),
    "four in five": (lambda: RandomSampler(range(COUNT), num_samples=48, generator=seeded(1)), 48),
    "a part of the data": (lambda: RandomSampler(range(20), generator=seeded(1)), 20),
    "the first ones": (lambda: SequentialSampler(range(21)), 21),
    "a list": (lambda: list(range(0, COUNT, 2)), 30),
}
"""Samplers that give as many examples in each epoch, each once; and how many."""
CHANGING = {"parts": (lambda: Parts(overlapping(), seeded(1)), 40)}
COUNTED = {
    "memory": (lambda: Memory(0.5, warmup=Epochs(1)), lambda count: max(1, round(0.5 * count))),
    "memory, guarded": (
        lambda: Memory(0.5, warmup=Epochs(1), guard=NoiseGuard(3, visits=1)),
        lambda count: round(0.5 * count),
    ),
    "rs2": (lambda: RS2(0.3, warmup=Epochs(1)), lambda count: math.ceil(0.3 * count - 1e-9)),
    "rs2, replaced": (
        lambda: RS2(0.3, replacement=True, warmup=Epochs(1)),
        lambda count: math.ceil(0.3 * count - 1e-9),
    ),
    "stale": (lambda: Stale(0.5, every=9, warmup=Epochs(0)), lambda count: round(0.5 * count)),
}
"""Rules that draw a number known beforehand, after one epoch of another kind; and how many."""


def loader_over(sampler, rule, count=COUNT, **options):
    options = {"epochs": EPOCHS} | options
    source = DataLoader(Numbered(spread(count)), BATCH, sampler=sampler)
    return by_pass(source, nn.Identity(), losses=given_losses, memory=rule, **options)


def epochs_of(loader, epochs=EPOCHS):
    """The numbers trained on in each epoch."""
    return [[*weights_of(loader, epoch)] for epoch in range(epochs)]


@pytest.mark.parametrize(
    ("make", "counts"),
    [
        (lambda: SubsetRandomSampler(range(50)), [50, 25, 25, 25]),
        (lambda: RandomSampler(range(100), num_samples=80), [80, 40, 40, 40]),
        (lambda: SubsetRandomSampler([7]), [1, 1, 1, 1]),
    ],
    ids=["the first half", "four in five", "a single example"],
)
def test_a_share_is_of_what_the_sampler_gives(make, counts):
    loader = loader_over(make(), Memory(keep=0.5, warmup=Epochs(1)), count=100, epochs=4)
    assert [len(epoch) for epoch in epochs_of(loader, 4)] == counts


@pytest.mark.parametrize("rule", COUNTED)
@pytest.mark.parametrize("sampler", STEADY | CHANGING)
def test_counts_are_exact_in_each_epoch(sampler, rule):
    (make, given), (make_rule, count) = (STEADY | CHANGING)[sampler], COUNTED[rule]
    loader = loader_over(make(), make_rule())
    with pytest.raises(TypeError, match="is not known before it begins where it is one pass"):
        loader.steps(1)
    for epoch in range(EPOCHS):
        before = copy.copy(loader.stats)
        numbers = [number for batch, _ in steps_of(loader, epoch) for number in batch]
        assert len(set(numbers)) == len(numbers)
        if epoch:
            assert len(numbers) == count(given)
            assert loader.stats.unread - before.unread == given - len(numbers)
        assert loader.stats.seen - before.seen == given
        assert loader.epochs_done == epoch + 1


@pytest.mark.parametrize("drop_last", [False, True, "carry"])
def test_steps_are_those_of_the_pool(drop_last):
    loader = loader_over(
        SubsetRandomSampler(range(45)), Memory(0.5, warmup=Epochs(1)), pool=Pool(7, drop_last)
    )
    for epoch in range(EPOCHS):
        steps = [len(loader) for _ in steps_of(loader, epoch)]
        assert steps == [len(steps)] * len(steps)


@pytest.mark.parametrize("name", [name for name in RULES if name[:3] != "rs2" and name != "repb"])
def test_a_subset_by_a_sampler_is_drawn_from_as_one_by_a_data_set(name):
    """Which has another order, and other batches, by which repb compares."""
    data, indices = Numbered(spread(COUNT)), [*range(3, COUNT, 2)]
    sampled = ruled(
        RULES[name](),
        wrapped=DataLoader(data, BATCH, sampler=SubsetRandomSampler(indices)),
        shorter_epochs=True,
    )
    whole = ruled(
        RULES[name](),
        wrapped=DataLoader(Subset(data, indices), BATCH, shuffle=True),
        shorter_epochs=True,
    )
    left_out = 0
    for epoch in range(8):
        assert weights_of(sampled, epoch) == subset_weights(whole, epoch)
        rows = whole.left_out.tolist()
        assert sampled.left_out.tolist() == [indices[row] for row in rows]
        assert sampled.lr_scale == whole.lr_scale
        left_out += len(rows)
    assert left_out


def subset_weights(loader, epoch):
    """As `weights_of`, of a subset, whose batches have the numbers of the whole data set."""
    return {
        number: weight
        for numbers, weights in steps_of(loader, epoch)
        for number, weight in zip(numbers, weights, strict=True)
    }


@pytest.mark.parametrize("name", RULES | REFRESHED)
def test_every_rule_leaves_something_of_parts_that_change(name):
    loader = loader_over(Parts(overlapping(), seeded(1)), (RULES | REFRESHED)[name](), epochs=8)
    seen = set()
    for epoch in range(8):
        part = set(overlapping()[epoch % 5])
        numbers = set(weights_of(loader, epoch))
        assert numbers
        assert numbers <= part
        assert set(loader.left_out.tolist()) <= part
        if loader.stats.scored == 0 and not name.startswith(("rs2", "memory")):
            assert part - seen <= numbers  # of those that are new, none is left out
        seen |= numbers
    assert loader.stats.kept < loader.stats.considered


def test_a_choice_of_several_epochs_is_made_of_whatever_comes():
    rule = UCB(0.5, every=3, warmup=Epochs(2))
    loader = loader_over(Parts([[*range(40)], [*range(20, 60)]], seeded(1)), rule, epochs=8)
    counts = [len(epoch) for epoch in epochs_of(loader, 8)]
    assert counts[:3] == [40, 40, 20]
    # Of 20 that were chosen among in the epoch before, and of 20 others, 10 by themselves.
    pruned = 40 - counts[3]
    assert pruned >= 10
    assert counts[4] == 20


def test_a_permutation_gives_each_example_of_a_subset_before_any_again():
    loader = loader_over(SubsetRandomSampler(range(10, 50)), RS2(0.25), epochs=8)
    epochs = epochs_of(loader, 8)
    for four in (epochs[:4], epochs[4:]):
        assert sorted(number for epoch in four for number in epoch) == [*range(10, 50)]


LOSSES = spread(COUNT, seed=5) ** 2
DRAWS = 150
WEIGHTS = torch.linspace(0.1, 1, COUNT)
SAMPLERS = {
    "with replacement": lambda: WeightedRandomSampler(WEIGHTS, 50, generator=seeded(2)),
    "without replacement": lambda: WeightedRandomSampler(
        WEIGHTS, 25, replacement=False, generator=seeded(2)
    ),
    "uniform, with replacement": lambda: RandomSampler(
        range(COUNT), replacement=True, num_samples=50, generator=seeded(2)
    ),
    "repeating": lambda: Repeating(range(0, COUNT, 3), seeded(2)),
    "without a length": lambda: Unsized(WEIGHTS / 2, seeded(2)),
}
PROBABILITIES = {
    "memory": (
        lambda: Memory(0.55, warmup=Epochs(0)), lambda losses: draw_probabilities(losses, 1.0, 0.1)
    ),
    "ratio memory": (
        lambda: Memory(warmup=Epochs(0), tail=Epochs(0)),
        lambda losses: ratio_probabilities(losses, 0.1),
    ),
    "infobatch": (
        lambda: InfoBatch(0.6, 1.0),
        lambda losses: torch.where(losses < losses.mean(), 0.4, 1.0).double(),
    ),
    "rs2": (lambda: RS2(0.5), lambda losses: torch.full((len(losses),), 0.5).double()),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", PROBABILITIES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_two_probabilities_multiply(sampler, rule):
    """Of an example that the sampler gave n times, about n p are left, and nothing else decides."""
    make, probabilities = PROBABILITIES[rule]
    draw = EpochDraw(make(), shorter=True)
    draw.rule.grow(COUNT + 20)  # of which 20 never come
    everything = torch.arange(COUNT)
    draw.rule.update(everything, LOSSES, 0)
    expected = probabilities(LOSSES)
    filtered, reference = FilteredSampler(SAMPLERS[sampler](), draw), SAMPLERS[sampler]()
    given, left = torch.zeros(COUNT), torch.zeros(COUNT)
    joint = torch.zeros(COUNT)  # times an example came in an epoch, squared
    for epoch in range(1, DRAWS + 1):
        draw.begin(epoch)
        for counts, order in ((given, reference), (left, filtered)):
            times = torch.tensor(list(order)).bincount(minlength=COUNT)
            counts += times
            joint += times.double().square().float() if counts is given else 0
    assert len(expected) == COUNT
    # As one draw decides about all times that an example comes in an epoch.
    check_deviations(left - given * expected, expected * (1 - expected) * joint)
    assert given.count_nonzero() == (20 if sampler == "repeating" else COUNT)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_was_never_seen_is_trained_on_and_takes_no_place(sampler):
    rule = Memory(0.5, warmup=Epochs(0))
    draw = EpochDraw(rule, shorter=True)
    rule.grow(COUNT)
    rule.update(torch.arange(20, 50), LOSSES[20:50], 0)
    filtered, reference = FilteredSampler(SAMPLERS[sampler](), draw), SAMPLERS[sampler]()
    for epoch in range(20):
        draw.begin(epoch)
        left, given = list(filtered), list(reference)
        assert draw.current.weights[20:50].sum() == 15
        assert set(draw.left_out.tolist()) <= set(range(20, 50))
        assert left == [index for index in given if draw.current.weights[index]]
        assert [i for i in left if not 20 <= i < 50] == [i for i in given if not 20 <= i < 50]


class Endless(Sampler[int]):
    """One order after the other, as for loops that count steps alone."""

    def __init__(self, dataset):
        self.generator = seeded(2)

    def __iter__(self):
        while True:
            yield from torch.randperm(COUNT, generator=self.generator).tolist()


class EndlessOfALength(Endless):
    def __len__(self):
        return COUNT


class EndlessOfBillions(EndlessOfALength):
    """As RandomSampler(data, replacement=True, num_samples=int(1e10)) of a loop of steps."""

    def __len__(self):
        return 10**10


class EndlessBatches(BatchSampler):
    def __iter__(self):
        while True:
            yield from super().__iter__()


ENDLESS = {
    "without a length": lambda data: DataLoader(data, 10, sampler=Endless(data)),
    "with a length": lambda data: DataLoader(data, 10, sampler=EndlessOfALength(data)),
    "of 10 billion": lambda data: DataLoader(data, 10, sampler=EndlessOfBillions(data)),
    "batches": lambda data: DataLoader(
        data, batch_sampler=EndlessBatches(SequentialSampler(data), 10, drop_last=False)
    ),
}


@pytest.mark.parametrize(
    ("endless", "choice"),
    [
        ("without a length", {"memory": Memory(0.5, warmup=Epochs(1))}),
        ("with a length", {"memory": Memory(0.5, warmup=Epochs(1))}),
        ("of 10 billion", {"memory": Memory(0.5, warmup=Epochs(1))}),
        ("with a length", {"selector": Uniform(keep=1)}),
        ("of 10 billion", {"selector": Uniform(keep=1)}),
        ("batches", {"selector": Uniform(keep=1)}),
    ],
)
def test_an_order_that_never_ends_warns_after_its_examples_and_has_no_state(endless, choice):
    loader = SelectiveLoader(ENDLESS[endless](Numbered(spread(COUNT))), **choice, epochs=EPOCHS)
    batches, numbers = iter(loader), []
    for step in range(12):
        is_beyond = step == COUNT // 10
        with pytest.warns(match="an epoch goes on after all") if is_beyond else nullcontext():
            batch = next(batches)
        loader.record(batch["loss"])
        numbers += batch["number"].tolist()
        if step in (1, 10):
            with pytest.raises(StateError, match="Give a sampler that ends and has a length"):
                loader.state_dict()
    assert sorted(numbers[:COUNT]) == list(range(COUNT))  # nothing was lost by asking for a state


def test_epochs_cut_out_of_an_endless_order_are_drawn():
    plain = ENDLESS["with a length"](Numbered(spread(COUNT)))
    loader = SelectiveLoader(plain, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)
    for _ in range(3):
        for batch in itertools.islice(loader, len(loader)):
            loader.record(batch["loss"])
    assert loader.stats.unread == 2 * COUNT


class WithExamples(Sampler[int]):
    """An attribute that may be anything in a sampler of a user's own."""

    def __init__(self, examples):
        self.examples = examples

    def __iter__(self):
        return iter(range(COUNT))

    def __len__(self):
        return COUNT


@pytest.mark.parametrize("examples", [["a", "b"], 7, torch.arange(3), None])
def test_a_sampler_may_have_any_attribute_examples(examples):
    plain = DataLoader(Numbered(spread(COUNT)), BATCH, sampler=WithExamples(examples))
    loader = SelectiveLoader(plain, memory=Memory(0.5, warmup=Epochs(1)), epochs=2)
    for batch in loader:
        loader.record(batch["loss"])
    assert loader.memory.examples == COUNT
    assert loader.memory.values[:, 0].equal(spread(COUNT))


class OfTensors(WithExamples):
    def __iter__(self):
        return iter(torch.randperm(COUNT))


def test_a_sampler_may_give_tensors():
    plain = DataLoader(Numbered(spread(COUNT)), BATCH, sampler=OfTensors(None))
    for wrapped in (plain, Indexed(plain, index_of=lambda batch: batch["number"])):
        loader = SelectiveLoader(wrapped, memory=Memory(0.5, warmup=Epochs(1)), epochs=2)
        for batch in loader:
            loader.record(batch["loss"])
        assert loader.memory.values[:, 0].equal(spread(COUNT))


def test_a_rate_follows_the_share_of_what_was_given():
    loader = loader_over(WeightedRandomSampler(WEIGHTS, 40, generator=seeded(2)), Kakurenbo(0.5))
    for epoch in range(EPOCHS):
        before = copy.copy(loader.stats)
        scale = [loader.lr_scale for _ in steps_of(loader, epoch)]
        count = loader.stats.released - before.released
        assert scale == [pytest.approx(40 / count)] * len(scale)
    assert scale[0] > 1


class Chosen(EpochRule):
    """Draws the examples that it is told to, whatever the candidates are."""

    def __init__(self, examples):
        super().__init__()
        self.chosen = torch.tensor(examples, dtype=torch.int64)

    def draw(self, epoch, generator):
        weights = torch.zeros(COUNT).index_fill_(0, self.chosen, 1.0)
        return weights if self.candidates is None else weights[self.candidates]


class Ordered(EpochRule):
    """The first half, by a number per example of the user's own, but for a fault."""

    def draw(self, epoch, generator):
        return (torch.arange(COUNT) < COUNT // 2).float()


class Odd(EpochRule):
    """Every second example, as it is written in the documentation of rules."""

    def draw(self, epoch, generator):
        return (torch.arange(self.examples) % 2).float()


def test_a_rule_of_one_s_own_draws_among_candidates():
    loader = loader_over(SubsetRandomSampler(range(10, 50)), Odd())
    assert [sorted(epoch) for epoch in epochs_of(loader)] == [[*range(11, 50, 2)]] * EPOCHS
    loader = loader_over(SubsetRandomSampler(range(10, 50)), Chosen([3, 12, 44]))
    assert sorted(epochs_of(loader)[0]) == [12, 44]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_rule_that_draws_another_number_of_weights_is_refused(workers):
    source = DataLoader(
        Numbered(spread(COUNT)), BATCH, sampler=SubsetRandomSampler(range(40)), num_workers=workers
    )
    loader = by_pass(source, memory=Ordered(), epochs=2)
    with pytest.raises(ConfigError, match=r"Ordered.draw gave float32\[60\] .* 40 candidates"):
        next(iter(loader))
    with pytest.raises(ConfigError, match=r"Ordered.draw gave float32\[60\] .* 70 examples"):
        next(iter(SelectiveSampler(range(70), Ordered())))


def of_nothing(kind):
    """Loaders and samplers of whose epoch nothing is left."""
    data = Numbered(spread(COUNT))
    if kind == "nothing of a subset":
        return loader_over(SubsetRandomSampler(range(40)), Chosen([50]))
    if kind == "nothing of a list":
        return loader_over([*range(40)], Chosen([50]))
    if kind == "nothing without a length":
        return loader_over(Unsized(torch.ones(COUNT), seeded()), Chosen([]))
    if kind == "nothing with weights":
        return loader_over(WeightedRandomSampler(torch.ones(COUNT), 30), Chosen([]))
    if kind == "nothing of all":
        return loader_over(RandomSampler(range(COUNT)), Chosen([]))
    if kind == "nothing by a sampler alone":
        return SelectiveSampler(data, Chosen([]))
    if kind == "less than a batch":
        source = DataLoader(data, 48, shuffle=True, drop_last=True)
        return by_pass(source, memory=RS2(0.5), epochs=2)
    if kind == "less than a batch of a subset":
        source = DataLoader(data, 25, sampler=SubsetRandomSampler(range(40)), drop_last=True)
        return by_pass(source, memory=RS2(0.5), epochs=2)
    source = DataLoader(data, 8, shuffle=True)
    return by_pass(source, memory=RS2(0.5), epochs=2, pool=Pool(48, drop_last=True))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nothing of a subset", "a SubsetRandomSampler gave 40 examples in this epoch, and Chosen"),
        ("nothing of a list", "a list gave 40 examples in this epoch, and Chosen left all of them"),
        ("nothing without a length", "a Unsized gave 60 examples in this epoch, and Chosen left"),
        ("nothing with weights", "a WeightedRandomSampler gave 30 .* have Chosen keep more, or"),
        ("nothing of all", "Chosen draws 0 of 60 examples in epoch 0, fewer than .* keep more"),
        ("nothing by a sampler alone", "Chosen draws 0 of 60 examples in epoch 0, fewer than"),
        ("less than a batch", "gave no batch: .* without drop_last=True"),
        ("less than a batch of a subset", "gave no batch: .* without drop_last=True"),
        ("less than a batch of a pool", "make no batch of 48 with drop_last=True: give smaller"),
    ],
)
def test_an_epoch_of_nothing_is_an_error(kind, message):
    with pytest.raises(BatchError, match=message):
        list(of_nothing(kind))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a", "b"], "a list gives str, and Memory remembers examples by integers: have it give"),
        ([0.0, 1], "a list gives float, int, and Memory remembers"),
        ([1, 60], r"indices of a list range from 1 to 60, outside of \[0, 60\): have it give"),
        ([1, -1], r"indices of a list range from -1 to 1, outside of \[0, 60\): have it give"),
    ],
)
def test_what_is_no_index_is_refused(keys, message):
    loader = loader_over(keys, Memory(0.9, warmup=Epochs(0)))
    with pytest.raises(BatchError, match=message):
        list(loader)


RESUMED = {
    "subset": lambda: SubsetRandomSampler(range(10, 50), seeded(1)),
    "parts": lambda: Parts([[*range(40)]], seeded(1)),
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 30, replacement=False, generator=seeded(1)),
    "without a length": lambda: Unsized(WEIGHTS, seeded(1)),
    "by the global generator": lambda: RandomSampler(range(COUNT), num_samples=40),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", ["memory", "ucb", "rs2", "kakurenbo", "seta"])
@pytest.mark.parametrize("sampler", RESUMED)
def test_a_training_is_gone_on_with_bit_for_bit(sampler, rule):
    def source():
        return DataLoader(Numbered(spread(COUNT)), BATCH, sampler=RESUMED[sampler]())

    check_resumes(by_rule(RULES[rule], source, epochs=4), every=5)


class Mixed(BatchSampler):
    """Batches whose examples are of any pass of an epoch."""

    def __iter__(self):
        order = [*self.sampler]
        order = [order[place] for place in torch.randperm(len(order), generator=seeded(3))]
        return (order[start : start + BATCH] for start in range(0, len(order), BATCH))


@pytest.mark.parametrize("rule", ["memory", "ucb", "rs2"])
def test_passes_may_be_mixed_where_nothing_has_a_weight(rule):
    """Pooled, too: a batch is then chosen from, though all of it was drawn."""
    numbers = []
    for options in ({}, {"pool": Pool(BATCH - 2)}):
        data = Numbered(spread(COUNT))
        wrapped = DataLoader(data, batch_sampler=Mixed(SelectiveSampler(data), BATCH, False))
        loader = SelectiveLoader(wrapped, memory=RULES[rule](), epochs=EPOCHS, **options)
        numbers.append([])
        for batch in (batch for _ in range(EPOCHS) for batch in loader):
            loader.loss(torch.ones(len(batch["number"])))  # the same to learn from
            numbers[-1] += batch["number"].tolist()
    assert len(numbers[0]) == EPOCHS * COUNT
    assert numbers[0] == numbers[1]


class Permuted(Sampler):
    """All examples, in an order by a generator of NumPy or of Python."""

    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return COUNT

    def __iter__(self):
        order = [*range(COUNT)]
        self.generator.shuffle(order)
        return iter(order)


GENERATORS = {
    "default_rng": np.random.default_rng,
    "RandomState": np.random.RandomState,
    "MT19937": lambda seed: np.random.Generator(np.random.MT19937(seed)),
    "Philox": lambda seed: np.random.Generator(np.random.Philox(seed)),
    "random.Random": random.Random,
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_an_order_by_any_generator_is_gone_on_with_bit_for_bit(make):
    def source():
        return DataLoader(Numbered(spread(COUNT)), BATCH, sampler=Permuted(make(1)))

    check_resumes(by_rule(RULES["memory"], source, epochs=3), every=7)


@pytest.mark.parametrize("rule", ["memory", "infobatch"])
@pytest.mark.parametrize("evaluates", ["between", "within"])
def test_the_wrapped_loader_gives_all_examples_as_before(rule, evaluates):
    """As an evaluation on it, or `torch.optim.swa_utils.update_bn`, expects."""

    def train(evaluates):
        data = Numbered(spread(COUNT))
        wrapped = DataLoader(data, BATCH, sampler=SelectiveSampler(data))
        loader = SelectiveLoader(wrapped, memory=RULES[rule](), epochs=EPOCHS)
        given, seen = [], []
        for _ in range(EPOCHS):
            for step, batch in enumerate(loader):
                given.append(batch["number"].tolist())
                loader.loss(batch["loss"])
                if evaluates == "within" and step == 2:
                    seen.append(torch.cat([part["number"] for part in wrapped]))
            if evaluates == "between":
                seen.append(torch.cat([part["number"] for part in wrapped]))
        return given, seen, loader.stats.released

    (expected, _, released), (given, seen, same) = train(None), train(evaluates)
    assert [numbers.sort().values.tolist() for numbers in seen] == [[*range(COUNT)]] * EPOCHS
    assert (given, same) == (expected, released)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        lambda: SubsetRandomSampler(range(30)),
        lambda: WeightedRandomSampler(torch.ones(COUNT), 40),
        lambda: RandomSampler(range(COUNT)),
    ],
    ids=["fewer", "weighted", "all"],
)
def test_a_state_of_another_sampler_is_refused(other, within):
    loader = loader_over(SubsetRandomSampler(range(40)), Memory(0.5, warmup=Epochs(1)))
    epochs_of(loader, 2)
    if within:
        next(iter(loader))
    other = loader_over(other(), Memory(0.5, warmup=Epochs(1)))
    with pytest.raises(StateError, match=r"sampler|generators"):
        other.load_state_dict(loader.state_dict())


def test_a_share_that_is_annealed_is_counted_of_what_is_given():
    schedule = Schedule(warmup=Epochs(1), anneal=Annealing("linear", first=1.0, last=0.2))
    loader = loader_over(SubsetRandomSampler(range(40)), Memory(0.5), schedule=schedule)
    counts = [sum(len(batch) for batch, _ in steps_of(loader, epoch)) for epoch in range(EPOCHS)]
    assert counts == [40, 40, 32, 24, 16]


def vectors(count=COUNT):
    """Examples whose first number is their index."""
    inputs = torch.randn(count, 4, generator=seeded(3))
    inputs[:, 0] = torch.arange(count)
    return TensorDataset(inputs, torch.arange(count) % 3)


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate", reason="needs siftback[accelerate]")
    state = pytest.importorskip("accelerate.state")

    def reset():
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()

    reset()
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=100)
    reset()


@pytest.mark.parametrize(
    ("sampler", "count"),
    [
        (lambda: SubsetRandomSampler(range(40)), 40),
        (lambda: RandomSampler(range(COUNT), num_samples=48), 48),
        (lambda: Parts(overlapping(), seeded(1)), 40),
        (lambda: WeightedRandomSampler(WEIGHTS, 40, generator=seeded(1)), 40),
    ],
    ids=["subset", "four in five", "parts", "weighted"],
)
def test_accelerate_has_equal_epochs_and_knows_each_last_batch(accelerator, sampler, count):
    prepare = importlib.import_module("siftback.frameworks.accelerate").prepare
    source = DataLoader(vectors(), BATCH, sampler=sampler())
    loader = prepare(accelerator, source, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)
    found = []
    for _ in range(3):
        sizes, ends = [], []
        for inputs, _ in loader:
            loader.record(inputs[:, 0] / COUNT)
            sizes.append(len(inputs))
            ends.append(loader.end_of_dataloader)
        assert ends == [False] * (len(ends) - 1) + [True]
        found.append(sum(sizes))
    assert found == [count] * 3
    assert loader.stats.unread > 0


def test_accelerate_refuses_a_sampler_of_which_no_last_batch_is_known(accelerator):
    prepare = importlib.import_module("siftback.frameworks.accelerate").prepare
    source = DataLoader(vectors(), BATCH, sampler=Unsized(WEIGHTS, seeded(1)))
    loader = prepare(accelerator, source, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)
    with pytest.raises(ConfigError, match="which batch is its last one is not known"):
        next(iter(loader))


def fitted(sampler):
    """The numbers of examples that Lightning trained on in each epoch, and its steps."""
    lightning = pytest.importorskip("lightning.pytorch", reason="needs siftback[lightning]")
    module = importlib.import_module("siftback.frameworks.lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.counts = nn.Linear(4, 3), [0, 0, 0]

        def training_step(self, batch, batch_idx):
            self.counts[self.current_epoch] += len(batch[0])
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            self.expected = self.trainer.estimated_stepping_batches
            return torch.optim.SGD(self.parameters(), 0.01)

    net = Net()
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    source = DataLoader(vectors(), BATCH, sampler=sampler)
    trainer.fit(net, datamodule=module.SelectiveDataModule(source, Memory(0.5, warmup=Epochs(1))))
    assert trainer.global_step == net.expected
    return net.counts


@pytest.mark.filterwarnings("ignore:.*set_vital.*deprecated")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_lightning_has_equal_epochs_of_every_sampler():
    assert fitted(SubsetRandomSampler(range(40))) == [40, 40, 40]
    assert fitted(RandomSampler(range(COUNT), num_samples=48)) == [48, 48, 48]
    assert fitted(WeightedRandomSampler(WEIGHTS, 40)) == [40, 40, 40]
