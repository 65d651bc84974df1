"""Collate functions that reorder, leave out or repeat examples: seen, and right by the guide."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

from siftback import (
    Epochs,
    Indexed,
    Irreducible,
    Memory,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    TopK,
)
from siftback.batches.collating import Reordered, are_reordered, row_keys, with_test
from siftback.errors import BatchError, ConfigError
from toys import assert_same

COUNT = 44
in_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Texts(Dataset):
    """Sequences of unlike lengths, each with its number; every seventh is of no use."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        ids = torch.full((1 + index * 5 % 11,), index)
        return {"ids": ids, "number": torch.tensor(index), "bad": index % 7 == 0}


def padded(examples):
    return {
        "ids": pad_sequence([example["ids"] for example in examples], batch_first=True),
        "number": torch.stack([example["number"] for example in examples]),
    }


def sorting(examples):
    return padded(sorted(examples, key=lambda example: len(example["ids"]), reverse=True))


def sorting_in_place(examples):
    examples.sort(key=lambda example: -len(example.pop("ids")))
    return {"number": torch.stack([example["number"] for example in examples])}


def shuffling(examples):
    return padded(random.sample(examples, len(examples)))


def shuffling_by_numpy(examples):
    return padded([examples[row] for row in np.random.permutation(len(examples))])


def reversing(examples):
    return padded(examples[::-1])


def turning(examples):
    return padded([*examples[1:], examples[0]])


def sorted_dicts(examples):
    return sorted(examples, key=lambda example: len(example["ids"]))


class Text:
    def __init__(self, example):
        vars(self).update(example)


def sorted_objects(examples):
    return [*map(Text, sorted_dicts(examples))]


class Sorting:
    """With a state of its own."""

    def __init__(self):
        self.calls, self.generator = [], torch.Generator().manual_seed(1)

    def __call__(self, examples):
        self.calls.append(len(examples))
        rows = torch.randperm(len(examples), generator=self.generator).tolist()
        return padded([examples[row] for row in rows])


def beside_a_number(examples):
    """Sorts, and says something of the whole batch."""
    batch = sorting(examples)
    return {**batch, "longest": batch["ids"].shape[1], "mean": batch["ids"].float().mean()}


def by_time(examples):
    """Sorts, with a row for each place in the texts, not for each text."""
    batch = sorting(examples)
    return {**batch, "ids": batch["ids"].T.clone()}


def packing(examples):
    examples = sorted(examples, key=lambda example: len(example["ids"]), reverse=True)
    return pack_sequence([example["ids"] for example in examples])


class Padded:
    def __init__(self, examples):
        vars(self).update(beside_a_number(examples))


def leaving_out(examples):
    return padded([example for example in examples if not example["bad"]])


def repeating(examples):
    return padded([example for example in examples for _ in range(2)])


def mixed(examples):
    """Sorts, leaves out and repeats."""
    return sorting([*examples[::2], *(example for example in examples if not example["bad"])])


REORDERING = {
    "sorts by length": sorting,
    "sorts in place": sorting_in_place,
    "shuffles": shuffling,
    "shuffles by NumPy": shuffling_by_numpy,
    "reverses": reversing,
    "turns": turning,
    "sorts into a list": sorted_dicts,
    "sorts into a list of objects": sorted_objects,
    "sorts beside a number": beside_a_number,
    "sorts by time": by_time,
    "sorts and packs": packing,
    "sorts into an object": Padded,
    "an object with a state": Sorting(),
}
CHANGING = {**REORDERING, "leaves out": leaving_out, "repeats": repeating, "all": mixed}


def memory():
    return Memory(0.5, warmup=Epochs(1))


def loader_of(collate, data=None, **options):
    return DataLoader(
        Texts() if data is None else data, 8, shuffle=True, collate_fn=collate, **options
    )


def numbers_of(batch):
    if isinstance(batch, list):
        examples = [vars(each) if isinstance(each, Text) else each for each in batch]
        return torch.stack([example["number"] for example in examples])
    if isinstance(batch, PackedSequence):  # each text has its number at each place
        return batch.data[: int(batch.batch_sizes[0])]
    return batch.number if isinstance(batch, Padded) else batch["number"]


@pytest.mark.parametrize(
    "wrapped", [list, lambda objects: [{"of": each} for each in objects]], ids=["alone", "within"]
)
def test_an_address_says_nothing_as_another_object_may_have_had_it(wrapped):
    objects = [object(), object()]
    rows, expected = (row_keys(wrapped(some), 2) for some in (objects, objects[::-1]))
    assert rows
    assert not are_reordered(rows, expected)


UNUSUAL = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.ones(3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
}


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # of prototypes
@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
def test_objects_may_have_any_kind_of_tensor(make):
    plain = loader_of(lambda rows: [Text({**row, "unusual": make()}) for row in rows])
    loader = SelectiveLoader(plain, memory=memory(), epochs=2)
    for batch in loader:
        loader.loss(numbers_of(batch).float())
    assert loader.memory.values[:, 0].tolist() == list(range(COUNT))


@pytest.mark.sampled(3)
@in_workers
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", CHANGING.values(), ids=CHANGING)
def test_it_is_refused_at_the_first_batch_and_the_advice_works(collate, workers):
    loader = SelectiveLoader(loader_of(collate, num_workers=workers), memory=memory(), epochs=4)
    advice = r"batch 0 of epoch 0: Memory needs .* carry its index .* Indexed\(loader, index_of=fn"
    with pytest.raises(BatchError, match=advice):
        next(iter(loader))

    rule = memory()
    plain = loader_of(collate, num_workers=workers)
    loader = SelectiveLoader(Indexed(plain, index_of=numbers_of), memory=rule, epochs=4)
    assert [loader.steps(epoch) for epoch in range(4)] == [6] * 4
    for _ in range(4):
        seen = []
        for batch in loader:
            numbers = numbers_of(batch)
            assert loader.indices.equal(numbers)
            assert loader.loss(numbers.float()) == numbers.float().mean()
            seen.append(set(numbers.tolist()))
        assert len(seen) == 6
    known = rule.values[:, 0].isfinite()
    assert rule.values[known, 0].tolist() == torch.arange(COUNT)[known].tolist()
    left_out = {index for index in range(COUNT) if index % 7 == 0} if collate is leaving_out else ()
    assert set((~known).nonzero().flatten().tolist()) <= {*left_out, *range(0, COUNT, 7)}
    assert loader.stats.unread > COUNT


@pytest.mark.parametrize("collate", [sorting, leaving_out, mixed])
def test_indices_that_ride_along_resume_within_an_epoch(collate):
    def make():
        return SelectiveLoader(
            Indexed(loader_of(collate), index_of=numbers_of), memory=memory(), epochs=3, seed=2
        )

    one, other = make(), make()
    found = []
    for epoch in range(3):
        for step, batch in enumerate(one):
            one.loss(numbers_of(batch).float())
            found.append(batch)
            if (epoch, step) == (1, 0):
                state, done = one.state_dict(), len(found)
    other.load_state_dict(state)
    again = []
    while other.epoch < 3:
        for batch in other:
            other.loss(numbers_of(batch).float())
            again.append(batch)
    assert_same(again, found[done:])


@pytest.mark.parametrize("collate", REORDERING.values(), ids=REORDERING)
def test_a_loader_that_is_indexed_by_its_order_is_refused_too(collate):
    with pytest.raises(BatchError, match="the collate function gives examples in another order"):
        next(iter(Indexed(loader_of(collate))))


def place_alone(order):
    return lambda examples: torch.tensor([examples[place] for place in order])


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_order_by_place_alone_is_seen_and_no_other(size):
    """Whatever the examples: a shuffle whose draws are repeated is one of these."""
    for order in itertools.permutations(range(size)):
        batch = with_test(place_alone(order))([10 + place for place in range(size)])
        assert isinstance(batch, Reordered) == (order != (*range(size),)), order


@pytest.mark.parametrize("size", [2, 3, 8])
def test_what_is_drawn_by_chance_says_nothing_of_the_order(size):
    def noised(examples):
        noise = torch.rand(len(examples), 2)
        return {"noised": torch.tensor(examples)[:, None] + noise, "noise": noise}

    for _ in range(20):
        assert not isinstance(with_test(noised)([*range(size)]), Reordered)


class First:
    """Batches of which the first has a single example."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        first, *others = self.sampler
        return iter([[first], *(others[at : at + 8] for at in range(0, len(others), 8))])


def test_a_first_batch_of_a_single_example_says_nothing_of_the_order():
    plain = DataLoader(Texts(), batch_sampler=First(SelectiveSampler(Texts())), collate_fn=sorting)
    batches = iter(SelectiveLoader(plain, memory=memory(), epochs=2))
    next(batches)
    with pytest.raises(BatchError, match=r"batch 1 of epoch 0: Memory needs .* in another order"):
        next(batches)


def by_key(batch):
    return batch["number"] + 1000


def test_indices_of_other_examples_than_were_asked_for_are_refused():
    loader = SelectiveLoader(Indexed(loader_of(sorting), by_key), memory=memory(), epochs=2)
    with pytest.raises(BatchError, match=r"index_of found .* 10\d\d in batch 0 of epoch 0"):
        next(iter(loader))
    with pytest.raises(ConfigError, match="index_of='number': give index_of=fn"):
        Indexed(loader_of(sorting), index_of="number")


def test_losses_may_name_their_examples():
    rule = memory()
    indexed = Indexed(loader_of(sorting), index_of=numbers_of)
    loader = SelectiveLoader(indexed, memory=rule, epochs=2)
    for batch in loader:
        rows = torch.randperm(len(batch["number"]))
        loader.loss(batch["number"][rows].float(), indices=batch["number"][rows])
    assert rule.values[:, 0].tolist() == list(range(COUNT))


class Streamed(IterableDataset):
    def __iter__(self):
        return map(Texts().__getitem__, range(COUNT))


STREAMS = {
    "sorts": (sorting, r"the collate function gives examples in another order: have each"),
    "leaves out": (
        leaving_out,
        r"has 6 examples, and its indices .* leaves out or .* carry its index",
    ),
    "repeats": (repeating, r"has 16 examples, and its indices are .* shape \[8\]: .* carry its"),
}


@pytest.mark.parametrize(("collate", "message"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("data", [Streamed, Texts])
def test_indices_that_are_given_beside_a_batch_do_not_fit_it(collate, message, data):
    plain = DataLoader(Indexed(data()), 8, collate_fn=collate)
    with pytest.raises(BatchError, match=message):
        list(SelectiveLoader(plain, memory=memory(), epochs=2))
    if data is Streamed and collate is not repeating:
        rule = memory()
        indexed = Indexed(DataLoader(Streamed(), 8, collate_fn=collate), index_of=numbers_of)
        pool = Pool(8, pad={"ids": 0})
        loader = SelectiveLoader(indexed, memory=rule, epochs=2, pool=pool)
        for _ in range(2):
            for batch in loader:
                assert loader.indices.equal(batch["number"])
                loader.loss(batch["number"].float())
        assert rule.table.values[: len(rule.values)].isfinite().all()


def keeping(examples):
    return padded(examples)


def masking(examples):
    """As for masked language modelling."""
    batch = padded(examples)
    hidden = torch.rand(batch["ids"].shape) < 0.5
    return {**batch, "ids": batch["ids"].masked_fill(hidden, -1), "noise": np.random.rand(8)[:3]}


def counting(examples):
    """With the row of each example."""
    return {**padded(examples), "row": torch.arange(len(examples))}


def packing_in_order(examples):
    return {"packed": pack_sequence([example["ids"] for example in examples], False), "size": 8,
            "number": torch.stack([example["number"] for example in examples])}  # fmt: skip


def consuming(examples):
    return {"number": torch.stack([example.pop("number") for example in examples])}


class Keeping:
    def __init__(self):
        self.calls, self.random = [], random.Random(3)

    def __call__(self, examples):
        self.calls.append(self.random.random())
        return {**padded(examples), "noise": self.calls[-1:] * len(examples)}


ORDERED = {
    "pads": lambda: keeping,
    "masks by chance": lambda: masking,
    "counts rows": lambda: counting,
    "takes examples apart": lambda: consuming,
    "packs": lambda: packing_in_order,
    "an object with a state": Keeping,
}


@pytest.mark.parametrize("make", ORDERED.values(), ids=ORDERED)
def test_one_that_keeps_the_order_is_called_as_if_it_were_never_tested(make):
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    collate = make()
    plain = DataLoader(Texts(), 8, collate_fn=collate)
    expected = [batch["number"].tolist() for batch in plain]
    reference = getattr(collate, "calls", None)
    states = torch.get_rng_state(), np.random.rand(), random.random()

    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    collate = make()
    loader = SelectiveLoader(DataLoader(Texts(), 8, collate_fn=collate), memory=memory(), epochs=2)
    found = []
    for batch in loader:
        assert loader.indices.equal(batch["number"])
        loader.loss(batch["number"].float())
        found.append(batch["number"].tolist())
    assert found == expected
    assert getattr(collate, "calls", None) == reference
    assert loader.collate_fn is collate
    assert_same(torch.get_rng_state(), states[0])
    assert (np.random.rand(), random.random()) == states[1:]


class Noting:
    """Writes a line to a file at each call, from whichever process."""

    def __init__(self, path):
        self.path = path

    def __call__(self, examples):
        with self.path.open("a") as file:
            file.write("call\n")
        return padded(examples)


@in_workers
def test_it_is_tested_in_the_first_epoch_alone(tmp_path):
    collate = Noting(tmp_path / "calls")
    rule = Memory(1.0, warmup=Epochs(1))
    loader = SelectiveLoader(loader_of(collate, num_workers=2), memory=rule, epochs=3)
    calls = []
    for _ in range(3):
        for batch in loader:
            loader.loss(batch["number"].float())
        calls.append(len(collate.path.read_text().splitlines()))
    assert calls == [12, 18, 24]  # six more in the first: three in each worker


def test_selection_after_reading_needs_no_order():
    loader = SelectiveLoader(
        loader_of(sorting), nn.Identity(), losses=lambda model, batch: batch["number"].float(),
        selector=TopK(keep=0.5), schedule=Schedule(warmup=Epochs(0)), pool=Pool(8, pad={"ids": 0}),
    )  # fmt: skip
    for batch in loader:
        assert all(number in row for row, number in zip(batch["ids"], batch["number"], strict=True))
        loader.loss(batch["number"].float())
    next(iter(loader))
    with pytest.raises(ConfigError, match=r"loader.indices needs .* in another order"):
        _ = loader.indices


def test_scores_by_index_need_it():
    scorer = Irreducible(torch.zeros(COUNT))
    arguments = {"losses": lambda model, batch: batch["number"].float(), "scorer": scorer,
                 "selector": TopK(keep=0.5), "pool": Pool(8, pad={"ids": 0})}  # fmt: skip
    loader = SelectiveLoader(loader_of(sorting), nn.Identity(), **arguments)
    with pytest.raises(ConfigError, match="Irreducible needs each example's index"):
        next(iter(loader))
    indexed = Indexed(loader_of(sorting), index_of=numbers_of)
    loader = SelectiveLoader(indexed, nn.Identity(), **arguments)
    for _ in range(2):
        for batch in loader:
            assert loader.indices.equal(batch["number"])


class Keys(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, key):
        return float(key[1:])


def test_keys_that_are_not_integers_have_advice_of_their_own():
    keys = [f"k{index}" for index in range(8)]
    loader = SelectiveLoader(DataLoader(Keys(), 4, sampler=keys), memory=memory(), epochs=2)
    with pytest.raises(BatchError, match="a list gives keys that are not integers"):
        next(iter(loader))


def test_a_sampler_that_repeats_rides_along_too():
    sampler = WeightedRandomSampler(torch.ones(COUNT), 60, generator=torch.Generator())
    plain = DataLoader(Texts(), 8, sampler=sampler, collate_fn=sorting)
    rule = memory()
    loader = SelectiveLoader(Indexed(plain, index_of=numbers_of), memory=rule, epochs=3)
    for _ in range(3):
        for batch in loader:
            loader.loss(batch["number"].float())
    known = rule.values[:, 0].isfinite()
    assert rule.values[known, 0].tolist() == torch.arange(COUNT)[known].tolist()
