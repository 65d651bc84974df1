"""Memory over plain loaders: which samplers are replaced, which are filtered, which are refused."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from remembering import Numbered, Read, spread
from siftback import Epochs, InfoBatch, Memory, Pool, SelectiveLoader, SelectiveSampler
from siftback.errors import ConfigError, LossError
from toys import assert_same, at_once, seeded

in_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")
COUNT, EPOCHS = 60, 4


def remembering(loader, **arguments):
    arguments = {"memory": Memory(keep=0.5, warmup=Epochs(1)), "epochs": EPOCHS} | arguments
    return SelectiveLoader(loader, **at_once(arguments))


def epochs_of(loader, losses_of=lambda batch: batch["loss"]):
    """The loop of the documentation; the numbers trained on in each epoch."""
    epochs = []
    for _ in range(EPOCHS):
        epochs.append([])
        for batch in loader:
            losses = losses_of(batch).clone().requires_grad_()
            loader.loss(losses).backward()
            assert losses.grad.tolist() == pytest.approx([1 / len(losses)] * len(losses))
            epochs[-1] += loader.indices.tolist()
    return epochs


class Pairs(Numbered):
    def __getitem__(self, index):
        return torch.tensor(index), self.losses[index]


class Boxes(Numbered):
    """Images of any size, as for detection."""

    def __getitem__(self, index):
        return torch.full((1, 2 + index % 3), float(index)), self.losses[index]


def in_lists(examples):
    return [image for image, _ in examples], {"loss": [loss for _, loss in examples]}


DATA = {
    "dicts": (Numbered, None, lambda batch: batch["loss"]),
    "tuples": (Pairs, None, lambda batch: batch[1]),
    "a collate function": (
        Pairs, lambda rows: {"loss": torch.stack([loss for _, loss in rows])},
        lambda batch: batch["loss"],
    ),
    "batches of another structure": (Boxes, in_lists, lambda batch: torch.stack(batch[1]["loss"])),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "collate", "losses_of"), DATA.values(), ids=DATA)
def test_a_plain_loader_over_any_map_style_data_is_enough(kind, collate, losses_of):
    data = Read(kind(spread(COUNT)))
    memory = Memory(keep=0.5, warmup=Epochs(1))
    loader = remembering(DataLoader(data, 8, shuffle=True, collate_fn=collate), memory=memory)
    epochs = epochs_of(loader, losses_of)
    assert sorted(epochs[0]) == list(range(COUNT))
    assert epochs[0] != sorted(epochs[0])
    assert [len(set(epoch)) for epoch in epochs[1:]] == [30] * 3
    assert data.take_reads() == [number for epoch in epochs for number in epoch]
    assert_same(memory.values[:, 0], spread(COUNT))
    assert (loader.stats.scored, loader.stats.unread, loader.progress) == (0, 90, 1.0)


OPTIONS = {
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
    "pinned": {"num_workers": 2, "pin_memory": True},
    "one's own generator": {"generator": seeded(4)},
    "ready in any order, without workers": {"in_order": False},
}


@in_workers
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_draws_the_same_however_examples_are_read(options):
    if options.get("pin_memory") and not torch.cuda.is_available():
        pytest.skip("nothing to pin memory for")
    data = Numbered(spread(COUNT))
    expected = epochs_of(remembering(DataLoader(data, 8, shuffle=True)))
    assert epochs_of(remembering(DataLoader(data, 8, shuffle=True, **options))) == expected


def test_without_shuffling_the_order_stays():
    data = Numbered(spread(COUNT))
    for epoch in epochs_of(remembering(DataLoader(data, 8))):
        assert epoch == sorted(epoch)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_of_torch_is_as_good_as_its_sampler(drop_last):
    data = Numbered(spread(COUNT))
    batches = BatchSampler(RandomSampler(data), 8, drop_last)
    loader = remembering(DataLoader(data, batch_sampler=batches))
    assert isinstance(loader.sampler, SelectiveSampler)
    plain = remembering(DataLoader(data, 8, shuffle=True, drop_last=drop_last))
    assert epochs_of(loader) == epochs_of(plain)


WEIGHTS = torch.linspace(0, 1, COUNT)
FILTERED = {
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 90, generator=seeded(1)),
    "weighted, each once": lambda: WeightedRandomSampler(
        WEIGHTS, 30, replacement=False, generator=seeded(1)
    ),
    "with replacement": lambda: RandomSampler(
        range(COUNT), replacement=True, num_samples=80, generator=seeded(1)
    ),
    "twice": lambda: RandomSampler(range(COUNT), num_samples=120, generator=seeded(1)),
    "subset": lambda: SubsetRandomSampler(range(0, COUNT, 3), seeded(1)),
    "subset by a tensor": lambda: SubsetRandomSampler(torch.arange(0, COUNT, 3), seeded(1)),
    "a part of the data": lambda: RandomSampler(range(20), generator=seeded(1)),
    "the first ones": lambda: SequentialSampler(range(20)),
    "a list": lambda: list(range(0, COUNT, 2)),
}


OF_KNOWN = {"weighted", "weighted, each once", "with replacement", "twice"}
"""Samplers under which a rule draws among all examples that it knows."""


@pytest.mark.parametrize("kind", FILTERED)
def test_samplers_of_ones_own_are_filtered(kind):
    make, known = FILTERED[kind], set()
    loader = remembering(DataLoader(Numbered(spread(COUNT)), 8, sampler=make()))
    reference = make()
    for epoch in range(EPOCHS):
        seen, unread = loader.stats.seen, loader.stats.unread
        whole = [int(index) for index in reference]
        found, progress = [], [loader.progress]
        for batch in loader:
            loader.loss(batch["loss"])
            found += batch["number"].tolist()
            progress.append(loader.progress)
            assert loader.stats.seen - seen <= len(whole)
        if epoch == 0:
            assert found == whole
        else:
            left_out = set(loader.left_out.tolist())
            among = known if kind in OF_KNOWN else set(whole)
            assert left_out <= among
            assert len(left_out) == len(among) - round(len(among) / 2)
            assert found == [index for index in whole if index not in left_out]
        known |= set(found)
        assert loader.stats.seen - seen == len(whole)
        assert loader.stats.unread - unread == len(whole) - len(found)
        steps = torch.tensor(progress[1:]).diff()
        assert_same(steps.gt(0), torch.ones_like(steps, dtype=torch.bool))
        assert loader.progress == (epoch + 1) / EPOCHS


def test_a_distributed_sampler_gives_its_rank():
    data = Numbered(spread(COUNT))
    sampler = DistributedSampler(data, 1, 0, seed=5)
    for options in ({"sampler": sampler}, {"batch_sampler": BatchSampler(sampler, 8, False)}):
        size = {"batch_size": 8} if "sampler" in options else {}
        loader = remembering(DataLoader(data, **size, **options))
        assert isinstance(loader.sampler, SelectiveSampler)
        assert (loader.sampler.seed, loader.sampler.world) == (5, 1)
        assert sorted(epochs_of(loader)[0]) == list(range(COUNT))
    shared = DistributedSampler(data, 2, 1)
    for options in ({"sampler": shared}, {"batch_sampler": BatchSampler(shared, 8, False)}):
        with pytest.raises(
            ConfigError, match=r"rank=1, world=2 shares .* has rank=0, world=1: call init_"
        ):
            remembering(DataLoader(data, **options))


class Sorted(BatchSampler):
    """Batches of neighbours."""

    def __iter__(self):
        for batch in super().__iter__():
            yield sorted(batch)


def test_a_batch_sampler_over_a_selective_sampler_keeps_its_batches():
    data = Numbered(spread(COUNT))
    batches = Sorted(SelectiveSampler(data, seed=1), 8, False)
    loader = remembering(DataLoader(data, batch_sampler=batches), pool=Pool(8))
    assert loader.batch_sampler is batches
    for epoch in range(EPOCHS):
        found = []
        for batch in loader:
            assert batch["number"].tolist() == sorted(batch["number"].tolist())
            loader.loss(batch["loss"])
            found += batch["number"].tolist()
        assert len(set(found)) == len(found) == (30 if epoch else COUNT)


def test_the_rule_of_a_selective_sampler_is_that_of_the_loader():
    data, memory = Numbered(spread(COUNT)), Memory(keep=0.5, warmup=Epochs(1))
    sampler = SelectiveSampler(data, memory, seed=2, epochs=EPOCHS, shorter_epochs=True)
    loader = SelectiveLoader(DataLoader(data, 8, sampler=sampler), epochs=EPOCHS)
    assert loader.memory is memory
    whole = epochs_of(loader)
    assert [len(epoch) for epoch in whole] == [60, 30, 30, 30]
    rule = Memory(keep=0.5, warmup=Epochs(1))
    alone = SelectiveSampler(data, rule, seed=2, epochs=EPOCHS, shorter_epochs=True)
    for epoch in whole:
        assert list(alone) == epoch
        alone.update(torch.tensor(epoch), spread(COUNT)[epoch])


def test_watching_a_loss_function_records_and_weighs():
    class Inputs(Dataset):
        def __len__(self):
            return COUNT

        def __getitem__(self, index):
            return torch.full((3,), float(index)) / COUNT, index % 2

    for criterion in (F.cross_entropy, nn.CrossEntropyLoss()):
        model, memory = nn.Linear(3, 2), Memory(keep=0.5, warmup=Epochs(1))
        loader = remembering(DataLoader(Inputs(), 8, shuffle=True), memory=memory)
        watched = loader.watch(criterion)
        for _ in range(2):
            for inputs, targets in loader:
                loss = watched(model(inputs), targets)
                assert loss.item() == pytest.approx(criterion(model(inputs), targets).item())
                loss.backward()
                each = F.cross_entropy(model(inputs), targets, reduction="none")
                assert_same(memory.values[loader.indices, 0], each.detach())
                with torch.no_grad():  # as in validation
                    assert watched(model(inputs), targets).ndim == 0
        assert loader.stats.unread == 30


def test_one_loss_of_a_whole_batch_is_averaged_over_the_visits_of_its_examples():
    memory = Memory(keep=0.5, warmup=Epochs(3))
    loader = remembering(DataLoader(Numbered(spread(20)), 4, shuffle=True), memory=memory)
    losses = {index: [] for index in range(20)}
    for _ in range(3):
        for batch in loader:
            mean = batch["loss"].mean().requires_grad_()
            assert loader.loss(mean, reduced=True) is not None
            for index in batch["number"].tolist():
                losses[index].append(mean.item())
    means = [sum(found) / len(found) for found in losses.values()]
    torch.testing.assert_close(memory.values[:, 0], torch.tensor(means))
    state = loader.state_dict()
    for batch in loader:
        loader.loss(batch["loss"].mean() + 1, reduced=True)
    loader.load_state_dict(state)
    torch.testing.assert_close(memory.values[:, 0], torch.tensor(means))
    next(iter(loader))
    with pytest.raises(LossError, match=r"losses=float32\[4\]: .* or leave reduced= out"):
        loader.loss(torch.zeros(4), reduced=True)
    weighted = remembering(DataLoader(Numbered(spread(20)), 4), memory=InfoBatch(0.9, 1.0))
    for _ in range(2):
        for batch in weighted:
            if weighted.weights.ne(1).any():
                with pytest.raises(ConfigError, match="cannot be applied to a loss of the whole"):
                    weighted.loss(batch["loss"].mean(), reduced=True)
                return
            weighted.loss(batch["loss"])


def test_repeats_of_an_example_count_once():
    data, memory = Numbered(spread(10)), Memory(keep=0.5, warmup=Epochs(1))
    sampler = WeightedRandomSampler([1.0] * 10, 40, generator=seeded(1))
    loader = remembering(DataLoader(data, 8, sampler=sampler), memory=memory)
    epochs = epochs_of(loader)
    assert max(Counter(epochs[0]).values()) > 1
    known = torch.tensor(sorted(set(epochs[0])))
    assert_same(memory.values[known, 0], spread(10)[known])
