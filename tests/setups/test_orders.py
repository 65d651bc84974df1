"""Orders and keys that users have: sorted batches, large keys, arrays of indices, copies."""

import copy
import itertools
import pickle
import queue
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from siftback import (
    RS2,
    Epochs,
    Indexed,
    InfoBatch,
    Memory,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Threshold,
    Uniform,
)
from siftback.batches.indices import fingerprint
from siftback.batches.order import subset_name
from siftback.errors import BatchError, StateError

EXAMPLES, BATCH = 50, 8


class Numbers(Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        return index


def by_remainder(examples):
    return torch.tensor(sorted(examples, key=lambda index: index * 7 % 11))


def without_some(examples):
    return torch.tensor([index for index in examples if index % 10 != 3] or examples)


def each_twice(examples):
    return torch.tensor([index for index in examples for _ in range(2)])


RULES = {
    "InfoBatch": lambda: InfoBatch(0.5),
    "Memory": lambda: Memory(keep=0.5, unbiased=True, warmup=Epochs(1)),
}


def weights_of_epochs(rule, collate_fn):
    """The weights of each batch by example, of a training whose losses depend on the example."""
    batches = DataLoader(Numbers(), BATCH, shuffle=True, collate_fn=collate_fn)
    batches.generator = torch.Generator().manual_seed(0)
    loader = SelectiveLoader(Indexed(batches, index_of=lambda batch: batch), memory=rule, epochs=5)
    weights = []
    for epoch in range(5):
        for batch in loader:
            pairs = zip(batch.tolist(), loader.weights.tolist(), strict=True)
            weights.append(sorted(pairs))
            loader.loss((batch % 7 + 1.0) * (1 + epoch))
    return weights


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_weights_are_those_of_the_examples_however_a_batch_is_ordered(rule):
    plain = weights_of_epochs(rule(), torch.tensor)
    assert weights_of_epochs(rule(), by_remainder) == plain
    assert len({weight for batch in plain for _, weight in batch}) > 1


@pytest.mark.parametrize("collate", [without_some, each_twice])
def test_examples_that_are_left_out_or_repeated_leave_the_weights_of_the_others(collate):
    batches = weights_of_epochs(InfoBatch(0.5), collate)
    assert len(batches) == 5 * -(-EXAMPLES // BATCH)
    weights = {weight for batch in batches for _, weight in batch}
    assert weights == {1.0, 2.0}  # and never that of an example that was not drawn


class Keyed(IterableDataset):
    def __init__(self, keys):
        self.keys = keys

    def __iter__(self):
        return ((torch.randn(4), key) for key in self.keys)


def test_keys_of_a_stream_may_be_as_large_as_integers_are():
    keys = [(number * 2654435761 + 1) << 24 for number in range(64)]
    batches = Indexed(DataLoader(Keyed(keys), 16), index_of=lambda batch: batch[1])
    loader = SelectiveLoader(batches, memory=Memory(), epochs=2)
    for _ in range(2):
        for inputs, _ in loader:
            loader.loss(inputs.square().mean(1))
    assert len(loader.memory.table) == len(keys)


class Arrays:
    """A batch sampler of NumPy arrays, in an order of another sampler."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return -(-len(self.sampler) // BATCH)

    def __iter__(self):
        return iter(np.array_split(np.array([*self.sampler]), len(self)))


def test_batches_of_indices_may_be_arrays():
    order = SelectiveSampler(Numbers())
    loader = SelectiveLoader(
        DataLoader(Numbers(), batch_sampler=Arrays(order)),
        memory=Memory(keep=0.5, warmup=Epochs(1)),
        epochs=2,
    )
    for _ in range(2):
        for batch in loader:
            assert loader.indices.equal(batch)
            loader.loss(batch + 1.0)
    assert loader.memory.values[:, 0].equal(torch.arange(EXAMPLES) + 1.0)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))])
@pytest.mark.parametrize(
    "order", [{"shuffle": True}, {"sampler": SubsetRandomSampler(range(EXAMPLES))}]
)
def test_a_loader_can_be_copied_between_epochs(again, order):
    loader = SelectiveLoader(DataLoader(Numbers(), BATCH, **order), memory=Memory(), epochs=3)
    for batch in loader:
        loader.loss(batch + 1.0)
    other = again(loader)
    assert other.memory.values.equal(loader.memory.values)
    assert sum(len(batch) for batch in other if other.loss(batch + 1.0) is not None) == EXAMPLES


@pytest.mark.parametrize("schedule", [None, Schedule(warmup=Epochs(0))], ids=["by default", "on"])
def test_what_a_threshold_keeps_is_not_known_before(schedule):
    data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
    loader = SelectiveLoader(
        DataLoader(data, BATCH),
        torch.nn.Linear(4, 3),
        F.cross_entropy,
        selector=Threshold(above=1.2),
        schedule=schedule,
        epochs=3,
    )
    counts = lambda: loader.total_steps, lambda: loader.steps(2), lambda: len(loader)
    message = "Threshold keeps is left to randomness: give a share and exact=True"
    for count in counts:
        with pytest.raises(TypeError, match=message):
            count()


@pytest.mark.parametrize("settings", [{}, {"keep": 0.5}], ids=["adaptive", "fixed"])
def test_balanced_draws_do_not_depend_on_the_default_type(settings):
    labels = torch.arange(EXAMPLES) % 3
    torch.set_default_dtype(torch.float64)
    try:
        rule = Memory(balance=labels, warmup=Epochs(1), tail=Epochs(0), **settings)
        loader = SelectiveLoader(DataLoader(Numbers(), BATCH, shuffle=True), memory=rule, epochs=3)
        for _ in range(3):
            for batch in loader:
                loader.loss(batch + 1.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert loader.stats.kept_share < 1


class Leaving(DataLoader):
    """Gives every second batch that it asked for."""

    def __iter__(self):
        yield from list(super().__iter__())[::2]


class Ahead(DataLoader):
    """Reads a batch ahead of the one it gives, as a copy to a device does."""

    def __iter__(self):
        before = None
        for batch in super().__iter__():
            if before is not None:
                yield before
            before = batch
        yield before


class Cut(DataLoader):
    """Ends after three batches."""

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == 3:
                return
            yield batch


class Grouped(DataLoader):
    """Reads four batches, and gives them one by one."""

    def __iter__(self):
        batches = super().__iter__()
        while group := list(itertools.islice(batches, 4)):
            yield from group


class InThread(DataLoader):
    """Reads in a thread of its own, as far ahead as it comes."""

    def __iter__(self):
        waiting = queue.Queue(2)

        def read():
            for number, batch in enumerate(super(InThread, self).__iter__()):
                time.sleep(0.001 * (number % 3))
                waiting.put(batch)
            waiting.put(None)

        threading.Thread(target=read, daemon=True).start()
        yield from iter(waiting.get, None)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Ahead, Cut, Grouped, InThread])
def test_a_loader_of_ones_own_that_reads_ahead_or_ends_early_keeps_its_indices(kind, workers):
    source = kind(Numbers(), BATCH, shuffle=True, num_workers=workers)
    loader = SelectiveLoader(source, memory=RULES["Memory"](), epochs=3)
    for _ in range(3):
        for batch in loader:
            assert torch.equal(batch, loader.indices)
            loader.loss(batch.float().requires_grad_())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_leaves_batches_out_is_refused(workers):
    source = Leaving(Numbers(), BATCH, shuffle=True, drop_last=True, num_workers=workers)
    loader = SelectiveLoader(source, memory=RULES["Memory"](), epochs=3)
    with pytest.raises(BatchError, match="loader asked its batch_sampler for 3 batches of this"):
        list(loader)
    with pytest.raises(BatchError, match="loader asked its batch_sampler for 3 batches of this"):
        list(Indexed(source))


class Damaged(Numbers):
    """One example cannot be read."""

    def __getitem__(self, index):
        if index == 29:
            raise OSError("a damaged file")
        return index


class Forgiving(DataLoader):
    """Goes on after an example that cannot be read."""

    def __iter__(self):
        batches = super().__iter__()
        while True:
            try:
                yield next(batches)
            except OSError:
                continue
            except StopIteration:
                return


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_goes_on_after_an_error_is_refused_at_the_next_batch(workers):
    source = Forgiving(Damaged(), 2, num_workers=workers)
    loader = SelectiveLoader(source, memory=RULES["Memory"](), epochs=3)
    trained = []

    def train():
        for batch in loader:
            trained.extend(batch.tolist())
            loader.loss(batch.float())

    with pytest.raises(BatchError, match="loader asked its batch_sampler for 1 batches of this"):
        train()
    assert trained == list(range(28))


class Apart(Numbers):
    """Reads a batch in one call."""

    def __init__(self, order):
        self.order = order

    def __getitems__(self, indices):
        return self.order(indices)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("within", [lambda data: data, lambda data: Subset(data, range(EXAMPLES))])
def test_a_data_set_that_gives_a_batch_in_another_order_is_refused(within, workers):
    source = DataLoader(within(Apart(sorted)), BATCH, shuffle=True, num_workers=workers)
    loader = SelectiveLoader(source, memory=RULES["Memory"](), epochs=3)
    with pytest.raises(
        BatchError, match=r"data set's __getitems__ gives .* in another order: have"
    ):
        next(iter(loader))
    source = DataLoader(within(Apart(list)), BATCH, shuffle=True, num_workers=workers)
    loader = SelectiveLoader(source, memory=RULES["Memory"](), epochs=3)
    for batch in loader:
        assert torch.equal(batch, loader.indices)
        loader.loss(batch.float())


class ByKey:
    """A batch sampler that sorts all examples of an epoch, or only those that it had at first."""

    def __init__(self, sampler, again):
        self.sampler, self.order = sampler, None if again else list(sampler)

    def __len__(self):
        return -(-len(self.sampler) // BATCH)

    def __iter__(self):
        order = sorted(self.order or self.sampler, key=lambda index: index * 7 % 11)
        return iter([order[at : at + BATCH] for at in range(0, len(order), BATCH)])


def by_key(rule, again, **options):
    batches = ByKey(SelectiveSampler(Numbers()), again)
    plain = DataLoader(Numbers(), batch_sampler=batches)
    return SelectiveLoader(plain, memory=rule, epochs=4, **options)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_weights_of_several_passes_in_an_order_of_ones_own_are_refused(rule):
    loader = by_key(rule(), again=True)

    def train(loader):
        weights = []
        for epoch in range(4):
            for batch in loader:
                weights += loader.weights.tolist()
                loader.loss((batch % 7 + 1.0) * (1 + epoch))
        return weights

    with pytest.raises(BatchError, match=r"epoch 1 has .* several passes .*of the ByKey.*shorter_"):
        train(loader)
    weights = train(by_key(rule(), again=True, shorter_epochs=True))
    assert min(weights) > 0
    assert len(set(weights)) > 1
    assert train(by_key(Memory(keep=0.5, warmup=Epochs(1)), again=True)) == [1.0] * 4 * EXAMPLES


def test_batches_of_an_order_of_before_are_refused():
    loader = by_key(Memory(), again=False)
    with pytest.raises(
        BatchError, match=r"a ByKey gives batches of an order from before .* have its __iter__"
    ):
        next(iter(loader))


def test_a_state_of_another_split_is_refused():
    def within(seed):
        train, _ = random_split(Numbers(), [0.8, 0.2], torch.Generator().manual_seed(seed))
        train = ConcatDataset([train, Numbers()])
        return SelectiveLoader(DataLoader(train, BATCH), memory=Memory(), epochs=3)

    loader, sampler = within(0), SelectiveSampler(Subset(Numbers(), [1, 2]))
    for batch in loader:
        loader.loss(batch.float())
    within(0).load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match=r"saved with subset='crc32 \w+ of 40', and this"):
        within(1).load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match=r"saved with subset='crc32 \w+ of 2', and this"):
        SelectiveSampler(Subset(Numbers(), [2, 1])).load_state_dict(sampler.state_dict())


def side_by_side(*loaders, epochs=2):
    for _ in range(epochs):
        for batches in zip(*loaders, strict=True):
            for loader, batch in zip(loaders, batches, strict=True):
                if loader.memory:
                    loader.record(batch + 1.0)
            yield batches


def by_memory(seed=0, **settings):
    data = DataLoader(Numbers(), BATCH, **({"shuffle": True} | settings))
    return SelectiveLoader(data, memory=Memory(keep=0.5, warmup=Epochs(1)), epochs=2, seed=seed)


def by_chance(seed=0):
    data = DataLoader(Numbers(), BATCH, sampler=SelectiveSampler(Numbers(), seed=seed))
    return SelectiveLoader(data, selector=Uniform(keep=1.0), schedule=Schedule(warmup=Epochs(0)))


@pytest.mark.parametrize("make", [by_memory, by_chance])
def test_two_loaders_that_give_the_same_examples_side_by_side_warn_once(make):
    with pytest.warns(UserWarning, match="shuffle them by seed=0, so that .* seed=1") as warned:
        first, *_ = list(side_by_side(make(), make()))
    assert torch.equal(*first)
    assert [Path(warning.filename).name for warning in warned] == ["test_orders.py"]
    different, *_ = list(side_by_side(make(), make(seed=1)))
    assert not torch.equal(*different)
    with pytest.warns(UserWarning, match="shuffle them by seed=0, so that .* seed=1"):
        list(side_by_side(make(), make(seed=1), make()))  # another one between them hides nothing


def test_loaders_one_after_the_other_or_in_order_do_not_warn():
    list(side_by_side(by_memory(shuffle=False), by_memory(shuffle=False)))
    for loader in by_memory(), by_memory():
        list(side_by_side(loader))
    left = by_memory()
    for _ in zip(range(2), side_by_side(left), strict=False):  # which is let go with its loop
        pass
    list(side_by_side(by_memory()))


def take_two(loader, iterators):
    batches = iter(loader)
    for _ in range(2):
        loader.record(next(batches) + 1.0)
    iterators.append(batches)


def test_trainings_in_threads_of_their_own_do_not_warn():
    iterators = []
    take_two(by_memory(), iterators)
    thread = threading.Thread(target=take_two, args=(by_memory(), iterators))
    thread.start()
    thread.join()
    assert len(iterators) == 2


class Renamed(Numbers):
    def __init__(self, rows):
        self.rows = rows


def table_split(seed):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": list(range(EXAMPLES))})
    return table.train_test_split(0.2, seed=seed)["train"]


SPLITS = {
    "of a StackDataset by name": lambda train: StackDataset(x=train(), y=train()),
    "within a data set": lambda train: Renamed(train()),
    "of a table": lambda train: table_split(train.args[0]),
    "of a table within a data set": lambda train: Renamed(table_split(train.args[0])),
}


@pytest.mark.parametrize("wrap", SPLITS.values(), ids=SPLITS)
def test_a_state_of_another_split_is_seen_wherever_it_is(wrap):
    def split(seed):
        return random_split(Numbers(), [0.8, 0.2], torch.Generator().manual_seed(seed))[0]

    first, same, other = (SelectiveSampler(wrap(partial(split, seed))) for seed in (0, 0, 1))
    same.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match=r"saved with subset='crc32 \w+ of \d+"):
        other.load_state_dict(first.state_dict())


@pytest.mark.parametrize("joined", ["partner", "dataset", "datasets"])
def test_data_sets_may_know_each_other(joined):
    first, second = Subset(Numbers(), range(32)), Numbers()
    vars(first)["partner"] = second
    vars(second)[joined] = [first] if joined == "datasets" else first
    saved = SelectiveSampler(second).state_dict()
    SelectiveSampler(second).load_state_dict(saved)
    assert fingerprint(second) is not None
    assert subset_name(second).startswith("crc32")


def test_a_data_set_may_have_any_attribute_datasets():
    class Named(Numbers):
        datasets = None

    trained, resumed = (
        SelectiveLoader(DataLoader(Named(), BATCH), memory=Memory(), epochs=3) for _ in range(2)
    )
    for batch in trained:
        trained.loss(batch.float())
    resumed.load_state_dict(trained.state_dict())
    assert torch.equal(resumed.memory.scores(1), trained.memory.scores(1))


def test_a_loader_of_ones_own_may_read_its_batch_sampler():
    class Counting(DataLoader):
        def __len__(self):
            return len(self.batch_sampler.sampler) // self.batch_sampler.batch_size

    source = Counting(Numbers(), BATCH, drop_last=True)
    loader = SelectiveLoader(source, selector=Uniform(keep=0.5), exact=True)
    assert sum(map(len, loader)) == 6 * 4


@pytest.mark.parametrize("rule", [Memory(), InfoBatch(0.5), Memory(keep=0.5)])
def test_a_rule_says_that_it_leaves_nothing_out_of_a_single_epoch(rule):
    loader = SelectiveLoader(DataLoader(Numbers(), BATCH, shuffle=True), memory=rule, epochs=1)
    with pytest.warns(UserWarning, match="leaves nothing out of 1 epoch,"):
        trained = [loader.loss(batch.float().requires_grad_()).item() for batch in loader]
    assert len(trained) == -(-EXAMPLES // BATCH)


def test_nothing_is_said_where_passes_leave_examples_out_from_the_first_one_on():
    loader = SelectiveLoader(DataLoader(Numbers(), BATCH, shuffle=True), memory=RS2(0.5), epochs=1)
    assert sum(map(len, loader)) == EXAMPLES
