"""Examples that know their index, orders that leave some out, and indices that cannot be right."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from remembering import Numbered, Streamed, indexed, selective, spread
from siftback import Indexed, Memory, SelectiveLoader, SelectiveSampler, Stale, Uniform
from siftback.errors import BatchError, ConfigError
from toys import dataset

# Also where the tests are kept to a single core.
in_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_a_map_style_data_set_gives_each_example_with_its_index():
    data = Indexed(dataset(20))
    assert len(data) == 20
    index, (inputs, target) = data[7]
    assert index == 7
    assert torch.equal(inputs, dataset(20)[7][0])
    assert target == dataset(20)[7][1]


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
    assert not hasattr(Indexed(Numbered(spread(20))), "__getitems__")


@in_workers
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Numbered, Streamed])
def test_indices_are_those_of_the_examples_whoever_reads_them(workers, kind):
    data = kind(spread(21))
    loader = DataLoader(Indexed(data), 4, num_workers=workers)
    found = [pair for indices, batch in loader for pair in zip(indices, batch["number"])]  # noqa: B905
    assert sorted(int(index) for index, _ in found) == list(range(21))
    assert all(index == number for index, number in found)


def test_what_is_no_data_set_is_refused():
    with pytest.raises(ConfigError, match="a int has neither __getitem__ nor __iter__: give a"):
        Indexed(3)


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_the_sampler_leaves_in_keeps_its_order(shuffle):
    whole, part = (SelectiveSampler(range(50), shuffle=shuffle, seed=3) for _ in range(2))
    for left in ([4, 49, 0, 17], [], list(range(50))):
        part.only(torch.tensor(left, dtype=torch.int64))
        order = list(whole)
        assert sorted(order) == list(range(50))
        assert (order == sorted(order)) is not shuffle
        assert list(part) == [index for index in order if index in left]
        assert (len(part), part.examples) == (len(left), 50)
    part.only(None)
    assert list(part) == list(whole)


def test_the_sampler_has_a_generator_of_its_own():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (list(SelectiveSampler(range(30), seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


def with_indices(*batches, known=100, keep=0.5):
    """A loader over batches that say these indices."""
    rows = [{"place": torch.full((4,), place)} for place in range(len(batches))]
    loader = type("Given", (list,), {"examples": known})(rows)
    return SelectiveLoader(
        loader, nn.Identity(), selector=Uniform(keep=keep),
        index_of=lambda batch: batches[int(batch["place"][0])],
    )  # fmt: skip


WRONG = {
    "missing": (None, r"indices of batch 1 of epoch 0 are a NoneType that is no tensor: give one"),
    "words": (["a", "b", "c", "d"], r"indices of batch 1 of epoch 0 are a list that is no tensor"),
    "one missing": (
        torch.arange(3), r"batch 1 of epoch 0 has 4 examples, .* shape \[3\]: .* int64\[4\]"
    ),
    "float": (torch.arange(4.0), r"its indices are torch.float32 .*: give one whole number each"),
    "true or false": (torch.ones(4, dtype=torch.bool), r"its indices are torch.bool of shape"),
    "negative": (
        torch.tensor([9, 8, -3, 7]), r"batch 1 of epoch 0 has the index -3: give .* from 0 on"
    ),
    "too large": (
        torch.tensor([9, 8, 100, 7]), r"has the index 100, and the data set has 100 .* 0 to 99"
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
def test_whole_numbers_of_any_kind_are_indices(kind):
    loader = with_indices(kind([5, 3, 0, 99]))
    for _ in range(2):  # in the next epoch they may come again
        for _ in loader:
            assert set(loader.indices.tolist()) <= {5, 3, 0, 99}
            assert loader.indices.dtype == torch.int64


def test_an_epoch_that_was_broken_off_does_not_count():
    loader = with_indices(torch.arange(4), torch.arange(4, 8), keep=1)
    next(iter(loader))
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)  # within the first epoch
    assert len(list(loader)) == 1
    next(iter(loader))
    assert len(list(loader)) == 2


def test_an_empty_batch_is_told_as_one():
    data = {"number": torch.empty(0, dtype=torch.int64), "loss": torch.empty(0)}
    loader = selective([data], scorer=Stale(), keep=0.5, index_of=lambda batch: batch["number"])
    with pytest.raises(BatchError, match="batch 0 of epoch 0 is empty"):
        list(loader)


def test_a_loader_without_indices_says_so():
    loader = selective(DataLoader(Numbered(spread(8)), 4), keep=0.5)
    next(iter(loader))
    with pytest.raises(ConfigError, match="the loader knows no indices: wrap the data set"):
        _ = loader.indices


REFUSED = {
    "no index": (
        lambda data: DataLoader(data, 4, sampler=SelectiveSampler(data)),
        "Stale needs each example's index: wrap the data set",
    ),
    "an order that leaves none out": (
        lambda data: DataLoader(Indexed(data), 4, shuffle=True),
        "which a RandomSampler cannot: give the DataLoader sampler=SelectiveSampler",
    ),
    "no index in a list": (lambda data: [data], "Stale needs each example's index"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_a_loader_that_memory_cannot_work_with_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        selective(make(Numbered(spread(8))), scorer=Stale(), keep=0.5)


def test_indices_follow_their_examples_into_batches():
    data = TensorDataset(torch.arange(50))
    loader = SelectiveLoader(
        indexed(data, 7), nn.Identity(), losses=lambda model, batch: batch[0].float(), keep=0.4,
        batch_size=5,
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
            indexed(Numbered(spread(60)), **options), scorer=Memory(warmup=1), losses=None
        )
        batches.append([])
        for _ in range(4):
            for batch in loader:
                loader.remember(batch["loss"])
                batches[-1].append(batch["number"].tolist())
        assert loader.stats.unread > 0
    assert batches[0] == batches[1]
