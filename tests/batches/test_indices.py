"""Examples that know their index, orders that leave some out, and indices that cannot be right."""

from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from remembering import Numbered, Streamed, epoch_of, indexed, plain, selective, spread
from siftback import (
    Epochs,
    Indexed,
    Memory,
    Pool,
    SelectiveLoader,
    SelectiveSampler,
    Stale,
)
from siftback.batches.indices import fingerprint
from siftback.epochs.epoch_draw import EpochDraw
from siftback.errors import BatchError, ConfigError
from siftback.rules.rule import EpochRule
from toys import AT_ONCE, dataset

# Also where the tests are kept to a single core.
in_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_a_map_style_data_set_gives_each_example_with_its_index():
    data = Indexed(dataset(20))
    assert len(data) == 20
    index, (inputs, target) = data[7]
    assert index == 7
    assert torch.equal(inputs, dataset(20)[7][0])
    assert target == dataset(20)[7][1]


class RowGroups(Dataset):
    """Batches of eight numbers, as files of rows are read."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.arange(8 * index, 8 * index + 8)


def test_items_that_are_whole_batches_have_as_many_examples_as_come():
    wrapped = Indexed(DataLoader(RowGroups(), batch_size=None, shuffle=True), index_of=lambda x: x)
    loader = SelectiveLoader(wrapped, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)
    sizes = []
    for _ in range(3):
        numbers = []
        for batch in loader:
            loader.loss(batch + 1.0)
            numbers += batch.tolist()
        sizes.append((len(numbers), len({*numbers})))
    (first, *later), whole = sizes, (40, 40)
    assert first == whole
    assert all(count == 40 and distinct < 40 for count, distinct in later)


def test_shards_of_a_table_are_told_apart_without_reading_an_example():
    datasets = pytest.importorskip("datasets")
    split = pytest.importorskip("datasets.distributed").split_dataset_by_node
    rows = datasets.Dataset.from_dict({"x": list(range(20))})
    table = rows.with_transform(pytest.fail)
    shards = [Indexed(split(table, rank, 2)) for rank in range(2)]
    assert not torch.equal(*[fingerprint(shard)[0] for shard in shards])
    assert torch.equal(fingerprint(table), fingerprint(Indexed(table))[0])
    assert fingerprint(split(rows.to_iterable_dataset(), 0, 2)) is None


class InOneGo(Numbered):
    def __init__(self, losses):
        super().__init__(losses)
        self.batches = []

    def __getitems__(self, indices):
        self.batches.append(indices)
        return [super(InOneGo, self).__getitem__(index) for index in indices]


def test_a_data_set_that_fetches_a_batch_in_one_go_still_does():
    data = InOneGo(spread(20))
    for indices, batch in indexed(data):
        assert torch.equal(indices, batch["number"])
        assert data.batches[-1] == indices.tolist()
    assert len(data.batches) == 3
    one_by_one = Indexed(Numbered(spread(20)))
    assert [index for index, _ in one_by_one.__getitems__([3, 1])] == [3, 1]


@in_workers
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Numbered, Streamed])
def test_indices_are_those_of_the_examples_whoever_reads_them(workers, kind):
    data = kind(spread(21))
    loader = DataLoader(Indexed(data), 4, num_workers=workers)
    found = [pair for indices, batch in loader for pair in zip(indices, batch["number"])]  # noqa: B905
    assert sorted(int(index) for index, _ in found) == list(range(21))
    assert all(index == number for index, number in found)


@in_workers
@pytest.mark.parametrize("workers", [0, 1])
def test_two_iterators_of_a_loader_side_by_side_are_refused(workers):
    """Which batch is whose would not be known, as both are asked for by one order."""
    wrapped = DataLoader(Numbered(spread(20)), 4, num_workers=workers)
    loader = Indexed(wrapped)
    for _ in range(2):  # one after another is right
        assert all(torch.equal(indices, batch["number"]) for indices, batch in loader)
    with pytest.raises(BatchError, match=r"iterated again: take the batches of one iter\(loader\)"):
        next(zip(loader, loader, strict=True))
    apart = Indexed(wrapped, index_of=lambda batch: batch["number"])
    for first, second in zip(apart, apart, strict=True):  # whose batches say it themselves
        assert torch.equal(first[0], second[0])


def test_what_is_no_data_set_is_refused():
    with pytest.raises(ConfigError, match="a int has neither __getitem__ nor __iter__: give a"):
        Indexed(3)


class Chosen(EpochRule):
    """Draws what it is given."""

    left: list

    def draw(self, epoch, generator):
        weights = torch.zeros(self.examples)
        weights[self.left] = 1.0
        return weights


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_the_sampler_leaves_in_keeps_its_order(shuffle):
    rule = Chosen()
    whole, part = (
        SelectiveSampler(range(50), given, shuffle=shuffle, seed=3, shorter_epochs=True)
        for given in (None, rule)
    )
    for left in ([4, 49, 0, 17], [7], list(range(50))):
        rule.left = left
        order = list(whole)
        assert sorted(order) == list(range(50))
        assert (order == sorted(order)) is not shuffle
        indices = iter(part)
        assert [next(indices) for _ in left] == [index for index in order if index in left]
        assert (next(indices, None) is None, part.draw.current.drawn, part.examples) == (
            True, len(left), 50
        )  # fmt: skip


def test_the_order_is_a_function_of_the_seed_and_the_epoch():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (SelectiveSampler(range(30), seed=seed) for seed in (1, 1, 2))
    orders = [list(first) for _ in range(3)]
    assert [list(again) for _ in range(3)] == orders
    assert len({tuple(order) for order in (*orders, list(other))}) == 4
    for epoch in (2, 0, 1):
        again.set_epoch(epoch)
        assert list(again) == orders[epoch]
    assert torch.equal(torch.get_rng_state(), before)


def test_losses_are_of_the_epoch_that_was_begun_last():
    class Noted(Chosen):
        left: ClassVar = list(range(6))
        epochs: ClassVar = []

        def update(self, indices, losses, epoch, *, correct=None, confidence=None):
            self.epochs.append((epoch, indices.tolist()))

    sampler = SelectiveSampler(range(6), Noted(), shuffle=False)
    for epoch in range(3):
        for indices, _ in DataLoader(Indexed(range(6)), 4, sampler=sampler):
            sampler.update(indices, torch.tensor([1.0, torch.nan, 2.0, 3.0])[: len(indices)])
        assert Noted.epochs[-2:] == [(epoch, [0, 2, 3]), (epoch, [4])]
    with pytest.raises(BatchError, match=r"has 2 examples, and its indices are .* shape \[3\]"):
        sampler.update(torch.arange(3), torch.zeros(2))
    with pytest.raises(ConfigError, match="no rule to update"):
        SelectiveSampler(range(6)).update(torch.arange(2), torch.zeros(2))


def test_of_an_index_that_comes_twice_the_last_loss_counts():
    memory = Memory(keep=0.5)
    memory.grow(4)
    losses = torch.tensor([1.0, 2.0, torch.nan, 3.0, torch.inf])
    EpochDraw(memory, epochs=2).losses.update(torch.tensor([2, 2, 0, 1, 2]), losses, [(0, 5)])
    assert memory.values[:, 0].nan_to_num(-1).tolist() == [-1, 3, 2, -1]


def with_indices(*batches, known=100):
    """A loader over batches that say these indices, by a rule that needs them."""
    rows = [{"place": torch.full((4,), place)} for place in range(len(batches))]
    loader = type("Given", (list,), {"examples": known})(rows)
    indices = Indexed(loader, index_of=lambda batch: batches[int(batch["place"][0])])
    return SelectiveLoader(indices, memory=Chosen(warmup=Epochs(9)), shorter_epochs=True)


WRONG = {
    "missing": (None, r"indices of batch 1 of epoch 0 are a NoneType that is not a tensor: g"),
    "words": (["a", "b", "c", "d"], r"indices of batch 1 of epoch 0 are a list that is not"),
    "one missing": (
        torch.arange(3), r"batch 1 of epoch 0 has 4 examples, .* shape \[3\]: .* int64\[4\]"
    ),
    "float": (torch.arange(4.0), r"its indices are torch.float32 .*: give one integer for each"),
    "true or false": (torch.ones(4, dtype=torch.bool), r"its indices are torch.bool of shape"),
    "negative": (
        torch.tensor([9, 8, -3, 7]), r"indices of batch 1 of epoch 0 range from -3 to 9, outside of"
    ),
    "too large": (
        torch.tensor([9, 8, 100, 7]), r"range from 7 to 100, outside of \[0, 100\): give"
    ),
    "twice in a batch": (
        torch.tensor([9, 8, 7, 8]), r"index 8 came before batch 1 of epoch 0 .*, or twice in it"
    ),
    "twice in an epoch": (
        torch.tensor([9, 8, 7, 2]), r"index 2 came before batch 1 of epoch 0 in this epoch"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("indices", "message"), WRONG.values(), ids=WRONG)
def test_an_index_that_cannot_be_right_is_named(indices, message):
    with pytest.raises(BatchError, match=message):
        list(with_indices(torch.arange(4), indices))


@pytest.mark.parametrize("kind", [list, torch.IntTensor, torch.LongTensor, torch.ByteTensor])
def test_integers_of_any_kind_are_indices(kind):
    loader = with_indices(kind([5, 3, 0, 99]))
    for _ in range(2):  # in the next epoch they may come again
        for _ in loader:
            assert loader.indices.tolist() == [5, 3, 0, 99]
            assert loader.indices.dtype == torch.int64


def test_an_epoch_that_was_broken_off_does_not_count():
    loader = with_indices(torch.arange(4), torch.arange(4, 8))
    next(iter(loader))
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)  # within the first epoch
    assert len(list(loader)) == 1
    next(iter(loader))
    assert len(list(loader)) == 2


def test_an_empty_batch_is_named():
    data = {"number": torch.empty(0, dtype=torch.int64), "loss": torch.empty(0)}
    loader = selective(
        Indexed([data], lambda batch: batch["number"]), memory=Stale(keep=0.5, warmup=Epochs(0))
    )
    with pytest.raises(BatchError, match="batch 0 of epoch 0 is empty"):
        list(loader)


def test_a_loader_without_indices_says_so():
    loader = selective(list(DataLoader(Numbered(spread(8)), 4)), keep=1)
    next(iter(loader))
    with pytest.raises(ConfigError, match=r"loader.indices needs the index of each example"):
        _ = loader.indices


class Keys(list):
    """Examples by name."""

    def __getitem__(self, key):
        return super().__getitem__(int(key[1:]))


class Fixed(list):
    """A batch sampler of the user's own."""


REFUSED = {
    "a list": (lambda data: [data], r"a list does not say it: .* Indexed\(loader, index_of=fn\)"),
    "a stream": (
        lambda data: DataLoader(Streamed(spread(8)), 4),
        r"the Streamed is an IterableDataset: .* give the DataLoader Indexed\(dataset\)",
    ),
    "no batches": (
        lambda data: DataLoader(data, batch_size=None), r"batch_size=None does not say .* give it",
    ),
    "another order": (
        lambda data: DataLoader(data, 4, num_workers=2, in_order=False),
        "in_order=False gives batches in another order",
    ),
    "a batch sampler of one's own": (
        lambda data: DataLoader(data, batch_sampler=Fixed([[0, 1], [2, 3]])),
        r"which a Fixed cannot: have it make batches from .* sampler=SelectiveSampler\(data\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "rule", [Memory, lambda: Stale(keep=0.5, warmup=Epochs(0))], ids=["memory", "stale"]
)
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_a_loader_that_memory_cannot_work_with_is_refused(make, message, rule):
    with pytest.raises(ConfigError, match=message):
        selective(make(Numbered(spread(8))), memory=rule(), epochs=3)


UNKNOWN = {
    "keys that are not integers": lambda: DataLoader(Keys("abcd"), 2, sampler=["k0", "k1", "k2"]),
    "a collate function that leaves some out": lambda: DataLoader(
        torch.arange(4.0), 2, collate_fn=lambda rows: torch.stack(rows[:1])
    ),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_batches_whose_examples_are_not_known_are_refused(make):
    with pytest.raises(BatchError, match=r"batch 0 of epoch 0: Memory needs the index of each"):
        list(SelectiveLoader(make(), memory=Memory(), epochs=3))


def test_indexed_works_under_a_collate_function_of_ones_own():
    def collate(examples):
        return {"numbers": torch.tensor([one["number"] for one in examples]), "more": "text"}

    data = Numbered(spread(20))
    options = {"batch_size": 6, "collate_fn": collate}
    for indices, batch in Indexed(DataLoader(data, sampler=SelectiveSampler(data), **options)):
        assert indices.equal(batch["numbers"])
    loader = selective(
        DataLoader(Indexed(Streamed(spread(20))), 6, collate_fn=collate_numbers),
        memory=Memory(warmup=Epochs(1), tail=Epochs(0)), epochs=3,
    )  # fmt: skip
    for _ in range(3):
        for batch in loader:
            assert loader.indices.equal(batch["numbers"])
            loader.record(batch["numbers"].float())
    with pytest.raises(ConfigError, match=r"Indexed\(dataset\), or give Indexed\(loader"):
        Indexed(DataLoader(Streamed(spread(20)), 6))


def collate_numbers(examples):
    return {"numbers": torch.tensor([one["number"] for one in examples])}


def test_indices_follow_their_examples_into_batches():
    data = TensorDataset(torch.arange(50))
    loader = SelectiveLoader(
        indexed(data, 7), nn.Identity(), losses=lambda model, batch: batch[0].float(), keep=0.4,
        pool=Pool(5), schedule=AT_ONCE,
    )  # fmt: skip
    seen = Counter()
    for _ in range(3):
        for (numbers,) in loader:
            assert torch.equal(numbers, loader.indices)
            seen.update(numbers.tolist())
    assert seen
    assert max(seen.values()) <= 3


@in_workers
def test_persistent_workers_read_what_was_drawn():
    batches = []
    for options in ({}, {"num_workers": 2, "persistent_workers": True}):
        loader = selective(
            plain(Numbered(spread(60)), **options),
            memory=Memory(warmup=Epochs(1), tail=Epochs(0)),
            model=None,
        )
        batches.append([epoch_of(loader) for _ in range(4)])
        assert loader.stats.unread > 0
    assert batches[0] == batches[1]


class Filtering:
    """A loader of one's own that leaves out by itself what was not drawn."""

    indexed, examples, batch_size = True, 50, 8

    def __init__(self):
        self.left, self.reads = None, 0

    def only(self, indices):
        self.left = range(50) if indices is None else indices.tolist()

    def __iter__(self):
        for indices in torch.tensor(self.left).split(8):
            self.reads += len(indices)
            yield indices, {"number": indices, "loss": spread(50)[indices]}


def test_a_loader_of_ones_own_may_leave_out_what_was_not_drawn():
    own = Filtering()
    loader = selective(own, memory=Memory(keep=0.4, warmup=Epochs(1)), model=None, epochs=3)
    for epoch in range(3):
        assert len(epoch_of(loader)) == (20 if epoch else 50)
        assert loader.stats.seen == 50 * (epoch + 1)
    assert (own.reads, loader.stats.unread) == (90, 60)


def test_a_list_of_batches_is_filtered_after_it_is_read():
    source = list(DataLoader(Numbered(spread(50)), 8))
    loader = selective(
        Indexed(source, lambda batch: batch["number"]), model=None, epochs=3, pool=Pool(8),
        memory=Memory(keep=0.4, warmup=Epochs(1)),
    )  # fmt: skip
    with pytest.raises(TypeError, match="how long an epoch is is not known"):
        len(loader)
    for epoch in range(3):
        batches = iter(loader)
        for batch in batches:
            loader.record(batch["loss"])
            assert loader.stats.seen <= 50 * (epoch + 1)
    assert (loader.stats.seen, loader.stats.unread, loader.stats.released) == (150, 0, 90)
