"""Epochs in loops as they are: data sets that change, loops that stop early, lengths asked for."""

import gc
import itertools
import math
import warnings
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset, WeightedRandomSampler

from remembering import CLASSES, RULES, Numbered, plain, spread
from siftback import (
    RS2,
    Annealing,
    Epochs,
    Indexed,
    InfoBatch,
    Memory,
    NoiseGuard,
    Percentile,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Stale,
    Threshold,
    Uniform,
)
from siftback.errors import ConfigError
from toys import AT_ONCE, given_losses, seeded

COUNT, EPOCHS = 60, 4
in_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")
left_early = pytest.mark.filterwarnings("ignore:epoch . was left after:UserWarning")


class Growing(Numbered):
    """Examples whose number changes."""

    def __init__(self, count=COUNT, most=4 * COUNT):
        super().__init__(spread(most))
        self.count = count

    def __len__(self):
        return self.count


def memory(keep=0.5):
    return Memory(keep=keep, warmup=Epochs(1))


def by_rule(wrapped, rule=None, **arguments):
    """Of epochs that are passes."""
    return SelectiveLoader(
        wrapped,
        memory=memory() if rule is None else rule,
        **({"epochs": EPOCHS, "shorter_epochs": True} | arguments),
    )


def by_batch(wrapped, **arguments):
    arguments = {"schedule": AT_ONCE, "epochs": EPOCHS} | arguments
    if not {"keep", "selector"} & arguments.keys():
        arguments["keep"] = 0.5
    return SelectiveLoader(wrapped, nn.Identity(), losses=given_losses, **arguments)


def train(loader, steps=None):
    """An epoch, or a few batches of it; the examples of each batch."""
    batches = []
    for batch in itertools.islice(loader, steps):
        record(loader, batch)
        batches.append(batch["number"].tolist())
    return batches


def record(loader, batch):
    if loader.memory is not None:
        right = batch["number"] % 2 == 0
        loader.loss(batch["loss"], correct=right, confidence=right.float())


# Data sets that grow or shrink

OVER_CHANGING = {
    "shuffled": lambda data: DataLoader(data, 8, shuffle=True),
    "in order": lambda data: DataLoader(data, 8),
    "indexed": lambda data: DataLoader(Indexed(data), 8, shuffle=True),
    "a sampler": lambda data: DataLoader(data, 8, sampler=SelectiveSampler(data)),
    "a batch sampler": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(SelectiveSampler(data), 8, False)
    ),
    "weighted": lambda data: DataLoader(
        data, 8, sampler=WeightedRandomSampler(torch.ones(COUNT), COUNT, generator=seeded())
    ),
    "an indexed loader": lambda data: Indexed(
        DataLoader(data, 8, shuffle=True), lambda batch: batch["number"]
    ),
    "persistent workers": lambda data: DataLoader(
        data, 8, shuffle=True, num_workers=1, persistent_workers=True
    ),
}


@in_workers
@pytest.mark.parametrize("count", [2 * COUNT, COUNT // 2])
@pytest.mark.parametrize("make", OVER_CHANGING.values(), ids=OVER_CHANGING)
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_data_set_of_another_length_is_refused_as_an_epoch_begins(make, count, epochs):
    data = Growing()
    loader = by_rule(make(data))
    for _ in range(epochs):
        train(loader)
    data.count = count
    advice = "a new SelectiveLoader, (with the same|and a new) rule"
    advice = (
        f"had {COUNT} examples when the SelectiveLoader was made, and has {count} now.*{advice}"
    )
    with pytest.raises(ConfigError, match=advice):
        next(iter(loader))
    data.count = COUNT
    assert sum(map(len, train(loader))) > 0  # nothing was lost by asking


def test_a_sampler_alone_refuses_another_length():
    data = Growing()
    sampler = SelectiveSampler(data, memory(), epochs=EPOCHS)
    sampler.update(torch.tensor(list(sampler)), torch.ones(COUNT))
    data.count += 1
    with pytest.raises(ConfigError, match="60 examples when the SelectiveSampler was made"):
        list(sampler)


def test_without_a_rule_a_loader_follows_its_data_as_torch_does():
    data = Growing()
    loader = by_batch(DataLoader(data, 8, shuffle=True))
    for count in (COUNT, 2 * COUNT, COUNT // 2):
        data.count = count
        length = len(loader)
        given = train(loader)
        assert len(given) == length
        assert sum(map(len, given)) == sum(
            max(1, round(0.5 * min(8, count - first))) for first in range(0, count, 8)
        )


def test_a_rule_goes_on_over_a_larger_data_set():
    data, rule = Growing(), memory()
    loader = by_rule(DataLoader(data, 8, shuffle=True), rule)
    for _ in range(2):
        train(loader)
    data.count = 2 * COUNT
    again = by_rule(DataLoader(data, 8, shuffle=True), rule)
    again.set_epoch(1)
    new = {number for batch in train(again) for number in batch}
    assert new == set(range(COUNT, 2 * COUNT))  # the unknown ones come first
    data.count = COUNT
    with pytest.raises(ConfigError, match=r"Memory remembers 120 examples.* are 60"):
        train(loader)


SMALLER = {
    "loader": lambda rule, data: by_rule(DataLoader(data, 8, shuffle=True), rule),
    "indexed": lambda rule, data: by_rule(DataLoader(Indexed(data), 8), rule),
    "subset": lambda rule, data: by_rule(
        DataLoader(Subset(Growing(), range(len(data))), 8, shuffle=True), rule
    ),
    "sampler": lambda rule, data: SelectiveSampler(data, rule, epochs=EPOCHS),
}


@pytest.mark.parametrize("make", SMALLER.values(), ids=SMALLER)
@pytest.mark.parametrize("rule", [memory, Memory, InfoBatch, partial(RS2, 0.5)])
def test_a_rule_that_has_seen_more_examples_is_refused(make, rule):
    rule = rule()
    rule.grow(COUNT)
    with pytest.raises(ConfigError, match=r"remembers 60 examples.* are 20"):
        make(rule, Growing(20))


@pytest.mark.parametrize("arguments", [{"memory": memory()}, {"selector": Uniform(keep=0.5)}, {}])
@pytest.mark.parametrize("length", [30, 90])
@pytest.mark.parametrize("in_batches", [False, True])
def test_a_sampler_of_another_length_is_refused(arguments, length, in_batches):
    own = {} if arguments else {"rule": memory()}
    sampler = SelectiveSampler(range(length), **own, epochs=EPOCHS)
    options = {"batch_sampler": BatchSampler(sampler, 8, False)} if in_batches else {
        "batch_size": 8, "sampler": sampler
    }  # fmt: skip
    with pytest.raises(ConfigError, match=f"orders {length} examples, and the data set .* has 60"):
        SelectiveLoader(DataLoader(Growing(), **options), epochs=EPOCHS, **arguments)


# Loops that leave an epoch early


def broken(loader, steps):
    for place, batch in enumerate(loader):
        record(loader, batch)
        if place == steps - 1:
            break


def counted(loader, steps):
    for _, batch in zip(range(steps), loader, strict=False):
        record(loader, batch)


def taken(loader, steps):
    batches = iter(loader)
    for _ in range(steps):
        record(loader, next(batches))


LOOPS = {"break": broken, "islice": train, "zip": counted, "next": taken}
KINDS = {
    "memory": by_rule,
    "a rule without losses": partial(by_rule, rule=RS2(0.5)),
    "a batch": by_batch,
    "by chance": partial(by_batch, exact=False),
}


@pytest.mark.parametrize("leave", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_an_epoch_left_early_has_ended_with_one_warning(make, leave):
    loader = make(plain(Numbered(spread(COUNT))))
    if leave is taken:
        leave(loader, 2)
    else:
        leave(loader, 2)
        assert loader.epoch == 1
    progress = [loader.progress]
    with pytest.warns(UserWarning, match="epoch 0 was left after . batches"):
        leave(loader, 2)
    progress.append(loader.progress)
    assert loader.stats.kept > 0  # selection has begun
    leave(loader, 2)
    progress.append(loader.progress)
    assert progress == sorted(progress)
    assert 0 < progress[0] < 1 / EPOCHS < progress[1] < 2 / EPOCHS < progress[2]
    train(loader)
    assert (loader.epoch, loader.progress) == (EPOCHS, 1.0)


def test_a_cap_on_steps_selects_as_the_epochs_go_on():
    loader = by_rule(plain(Numbered(spread(COUNT))))
    with pytest.warns(UserWarning, match="epoch 0 was left after 3 batches") as found:
        drawn = [sum(map(len, train(loader, 3))) for _ in range(EPOCHS)]
    assert [warning.filename for warning in found] == [__file__]
    assert drawn == [24] * EPOCHS
    known = loader.memory.values[:, 0].isfinite()
    assert known.sum() > 24


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("looks", [1, 3])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@in_workers
@pytest.mark.sampled(3)
def test_a_look_at_a_batch_changes_nothing(make, looks, workers):
    def trained(looks):
        torch.manual_seed(3)
        loader = make(plain(Numbered(spread(COUNT)), shuffle=False, num_workers=workers))
        for epoch in range(EPOCHS):
            for _ in range(looks):
                next(iter(loader))
                assert loader.epoch == epoch
            yield [sorted(batch) for batch in train(loader)]

    if make is KINDS["memory"] or make is KINDS["a rule without losses"]:
        found = list(trained(looks))
        assert found == list(trained(0))
        assert len(found) == EPOCHS
    else:  # whose generator has gone on
        assert len(list(trained(looks))) == EPOCHS


# Of IES, in the last epoch, nothing is left.
DRAWING = {name: make for name, make in RULES.items() if name != "ies"}


@pytest.mark.parametrize("shorter", [False, True])
@pytest.mark.parametrize("make", DRAWING.values(), ids=DRAWING)
def test_a_look_at_what_a_users_sampler_gives_is_no_draw_of_its_own(make, shorter):
    def trained(looks):
        wrapped = plain(Numbered(spread(COUNT)), shuffle=None, sampler=list(range(48)))
        loader = by_rule(wrapped, make(), shorter_epochs=shorter)
        for _ in range(EPOCHS):
            for _ in range(looks):
                next(iter(loader))
            yield train(loader)

    assert list(trained(2)) == list(trained(0))


@pytest.mark.parametrize("shorter", [False, True])
@pytest.mark.parametrize("make", DRAWING.values(), ids=DRAWING)
def test_a_loader_that_trained_on_goes_back_to_a_state(make, shorter):
    loader = by_rule(plain(Numbered(spread(COUNT))), make(), shorter_epochs=shorter)
    train(loader), train(loader)
    state, after = loader.state_dict(), []
    for _ in range(2):
        after.append([(train(loader), loader.memory.values.nan_to_num(-1)) for _ in range(2)])
        loader.load_state_dict(state)
    torch.testing.assert_close(*after, rtol=0, atol=0)


@pytest.mark.parametrize("count", [5, 8, 60])
def test_a_look_after_a_resume_goes_back_to_the_place_of_the_state(count):
    def loader():
        return by_rule(plain(Numbered(spread(count)), 3))

    one = loader()
    train(one, 1)
    state = one.state_dict()
    rest = []
    for _ in range(2):
        other = loader()
        other.load_state_dict(state)
        for _ in range(len(rest)):
            next(iter(other))
        rest.append((train(other), train(other), other.stats.seen, other.stats.unread))
    assert rest[0] == rest[1]
    assert sum(map(len, rest[0][0])) == count - 3


def test_a_look_at_a_data_set_of_one_batch():
    loader = by_rule(plain(Numbered(spread(5))))
    for epoch in range(EPOCHS):
        next(iter(loader))
        assert loader.epoch == epoch
        assert sum(map(len, train(loader))) == (2 if epoch else 5)
    assert loader.progress == 1.0


@left_early
def test_set_epoch_decides_after_an_epoch_that_was_left():
    loader = by_rule(plain(Numbered(spread(COUNT))))
    train(loader, 2)
    loader.set_epoch(0)
    assert loader.epoch == 0
    assert sorted(itertools.chain(*train(loader))) == list(range(COUNT))
    train(loader, 2)
    loader.set_epoch(3)
    assert sum(map(len, train(loader))) == COUNT // 2
    assert loader.progress == 1.0


def test_what_is_pooled_stays_for_the_next_epoch_only_where_it_is_carried():
    for drop_last, seen in ((False, 0), ("carry", 3)):
        loader = by_batch(
            plain(Numbered(spread(COUNT)), shuffle=False), selector=Uniform(keep=1.0),
            pool=Pool(5, drop_last),
        )  # fmt: skip
        train(loader, 2)  # 10 of 16 that were read, and 5 of the others wait
        with pytest.warns(UserWarning, match="epoch 0 was left"):
            first = train(loader)[0]
        assert [number >= 10 for number in first].count(True) == (5 if seen else 0)


def test_an_iterator_that_another_one_replaced_is_refused():
    loader = by_rule(plain(Numbered(spread(COUNT))))
    one = iter(loader)
    next(one)
    train(loader)
    with pytest.raises(ConfigError, match="the loader was iterated again"):
        next(one)


def test_an_iterator_goes_on_from_no_state_that_was_loaded_meanwhile():
    loader = by_rule(plain(Numbered(spread(COUNT))))
    state, batches = loader.state_dict(), iter(loader)
    next(batches)
    loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="or a state was loaded"):
        next(batches)


@pytest.mark.parametrize("make", [by_rule, by_batch])
def test_an_evaluation_on_what_training_selects_warns(make):
    loader = make(plain(Numbered(spread(COUNT))))
    with torch.no_grad():
        next(iter(loader))  # a look, such as for a model whose layers take their sizes from a batch
    train(loader)
    message = r"selects in epoch 1, .* evaluate on the DataLoader"
    with torch.no_grad(), pytest.warns(UserWarning, match=message):
        train(loader)
    with torch.inference_mode():
        train(loader)  # which warns once


@pytest.mark.parametrize("make", [by_rule, by_batch])
def test_a_loader_in_a_loader_is_refused(make):
    loader = make(plain(Numbered(spread(COUNT))))
    with pytest.raises(ConfigError, match=r"a SelectiveLoader already, .*: give it the DataLoader"):
        make(loader)


def test_a_sampler_alone_begins_an_epoch_again_of_which_no_loss_was_recorded():
    data = Numbered(spread(COUNT))
    sampler = SelectiveSampler(data, memory(), epochs=EPOCHS, shorter_epochs=True)
    loader = DataLoader(Indexed(data), batch_sampler=sampler.batches(8))
    for epoch in range(EPOCHS):
        next(iter(loader))
        drawn = []
        for indices, batch in loader:
            sampler.update(indices, batch["loss"])
            drawn += indices.tolist()
        assert len(drawn) == (COUNT // 2 if epoch else COUNT)
    sampler = SelectiveSampler(data, memory(), epochs=EPOCHS, shorter_epochs=True)
    for epoch in range(EPOCHS):  # which are left early
        order = iter(sampler)
        drawn = torch.tensor([next(order) for _ in range(20)])
        sampler.update(drawn, data.losses[drawn])
        assert (len(sampler) == COUNT // 2) == (epoch > 0)
    assert sampler.draw.left_out.numel() == COUNT // 2


@pytest.mark.parametrize("sets_epochs", [False, True])
def test_a_sampler_alone_asks_for_the_losses_of_an_epoch_that_it_gave(sets_epochs):
    data = Numbered(spread(COUNT))
    sampler = SelectiveSampler(data, memory(), epochs=EPOCHS)
    loader = DataLoader(Indexed(data), batch_sampler=sampler.batches(8))

    def train_without_losses():
        for epoch in range(2):
            if sets_epochs:
                sampler.set_epoch(epoch)
            list(loader)

    message = r"Memory learns from training, and no losses of epoch 0 .*call sampler.update"
    with pytest.raises(ConfigError, match=message):
        train_without_losses()
    list(SelectiveSampler(data, RS2(), epochs=2)) + list(SelectiveSampler(data, RS2(), epochs=2))


def test_a_sampler_alone_applies_no_weights():
    data = Numbered(spread(COUNT))
    sampler = SelectiveSampler(data, InfoBatch(), epochs=EPOCHS)
    indices, batch = next(iter(DataLoader(Indexed(data), batch_sampler=sampler.batches(8))))
    with pytest.raises(
        ConfigError, match=r"InfoBatch draws with loss weights.*give SelectiveLoader"
    ):
        sampler.update(indices, batch["loss"])


@pytest.mark.parametrize("epochs", [1.5, 2, 3])
@pytest.mark.parametrize("make", [by_rule, by_batch])
def test_epochs_beyond_the_last_one_warn_once(make, epochs):
    loader = make(plain(Numbered(spread(COUNT))), epochs=epochs)
    for _ in range(math.ceil(epochs)):
        train(loader)
    with pytest.warns(UserWarning, match=rf"is beyond epochs={epochs:g}: progress is 1, the tail"):
        train(loader)
    train(loader)
    sampler = SelectiveSampler(range(8), memory(), epochs=1)
    sampler.update(torch.tensor(list(sampler)), torch.ones(8))
    with pytest.warns(UserWarning, match="epoch 1, .* is beyond epochs=1"):
        sampler.update(torch.tensor(list(sampler)), torch.ones(8))
    list(sampler)


# Lengths

COUNTED = RULES | {
    "ratio memory, guarded": lambda: Memory(
        warmup=Epochs(1), guard=NoiseGuard(CLASSES, cap=0.9, visits=1)
    ),
    "ratio memory, from the first": lambda: Memory(warmup=Epochs(0)),
    "stale": lambda: Stale(0.5, every=2),
}
SOURCES = {
    "shuffled": lambda data: plain(data),
    "dropped": lambda data: plain(data, drop_last=True),
    "weighted": lambda data: plain(
        data, shuffle=False, sampler=WeightedRandomSampler([1.0] * COUNT, COUNT, generator=seeded())
    ),
    "a random sampler": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(RandomSampler(data), 8, False)
    ),
}
POOLS = {"own": None, "smaller": (3, False), "dropping": (7, True), "carrying": (7, "carry")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_within_an_epoch_its_length_is_known(make, source, pool):
    rule = make()
    model = {"model": nn.Identity(), "losses": given_losses} if rule.needs_passes else {}
    pool = {} if pool is None else {"pool": Pool(*pool)}
    loader = SelectiveLoader(
        source(Numbered(spread(COUNT))), memory=rule, epochs=EPOCHS, **model, **pool
    )
    for epoch in range(EPOCHS):
        lengths = []
        for batch in loader:
            lengths.append(len(loader))
            assert loader.steps(epoch) == lengths[-1]
            batch["loss"] = batch["loss"] * (1 + (batch["number"] + epoch) % 3)
            record(loader, batch)
        assert lengths == [len(lengths)] * len(lengths)
        assert loader  # whatever its length


@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("carry", [False, True])
def test_the_length_of_an_epoch_is_known_after_a_resume(stop, carry):
    def loader():
        pool = {"pool": Pool(7, drop_last="carry")} if carry else {}
        return by_rule(plain(Numbered(spread(COUNT))), Memory(warmup=Epochs(1)), **pool)

    one = loader()
    train(one)
    batches = iter(one)
    for _ in range(stop):
        record(one, next(batches))
    other = loader()
    other.load_state_dict(one.state_dict())
    assert len(other) == len(one)
    lengths = []
    for batch in other:
        record(other, batch)
        lengths.append(len(other))
    assert lengths == [stop + len(lengths)] * len(lengths)


UNKNOWN = {
    "passes": (lambda: by_rule(plain(Growing()), Memory()), "where it is one pass over the data"),
    "chance": (lambda: by_batch(plain(Growing()), exact=False), "left to randomness: give exact=T"),
    "chance, after an epoch": (
        lambda: by_batch(plain(Growing()), exact=False, schedule=None), "left to randomness: give"
    ),
    "chance, annealed": (
        lambda: by_batch(
            plain(Growing()), keep=1, exact=False,
            schedule=Schedule(warmup=Epochs(2), anneal=Annealing(last=0.5)),
        ),
        "left to randomness: give exact=True",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_length_that_is_not_known_before_every_epoch_is_not_known_before_the_first(make, message):
    loader = make()
    for _ in range(EPOCHS - 1):
        with pytest.raises(TypeError, match=message):
            len(loader)
        assert bool(loader)
        assert train(loader)


def test_exact_numbers_are_the_default_where_the_selector_can_keep_them():
    data = Numbered(spread(COUNT))
    for selector in (Percentile(keep=0.5), Uniform(keep=0.5), Threshold(keep=0.5)):
        loader = by_batch(plain(data), selector=selector)
        assert loader.total_steps == EPOCHS * len(loader)
        assert [len(train(loader)) for _ in range(EPOCHS)] == [4] * EPOCHS
    with pytest.raises(ConfigError, match=r"Threshold\(above=1.0\) does not say how many rows"):
        by_batch(plain(data), selector=Threshold(above=1.0), exact=True)
    above = by_batch(plain(data), selector=Threshold(above=1.0))
    assert all(data.losses[number] > 1 for batch in train(above) for number in batch)
    for policy in ("keep", "drop"):  # which may leave more or fewer
        with pytest.raises(TypeError, match="give exact=True"):
            len(by_batch(plain(data), on_nonfinite=policy))


def test_nothing_warns_in_a_plain_training():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in KINDS.values():
            loader = make(plain(Numbered(spread(COUNT))))
            for _ in range(EPOCHS):
                train(loader)


def test_a_loader_that_is_let_go_goes_at_once_with_its_workers():
    gc.disable()
    try:
        for make in KINDS.values():
            loader = make(plain(Numbered(spread(COUNT))))
            train(loader)
            gone = weakref.ref(loader)
            del loader
            assert gone() is None
    finally:
        gc.enable()
