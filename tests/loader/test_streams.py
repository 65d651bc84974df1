"""Streams, of which nobody knows the length or the numbering: what each moment of choice can do."""

import importlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from resuming import check_resumes
from siftback import (
    RCAP,
    RS2,
    AlignPrune,
    Epochs,
    Indexed,
    Memory,
    NoiseGuard,
    Pool,
    SelectiveLoader,
)
from siftback.errors import BatchError, ConfigError, StateError
from toys import AT_ONCE, optimizer_of, seeded

X = torch.randn(48, 4, generator=seeded(0))
Y = torch.randint(3, (48,), generator=seeded(1))
KEYS = torch.arange(48) * 7 + 1000  # as those of a database

WORKERS = pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")


def network():
    torch.manual_seed(2)
    return nn.Linear(4, 3)


def losses_of(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def table():
    import datasets  # which takes long, as torchdata does

    columns = {"x": X.numpy(), "y": Y.numpy(), "key": KEYS.numpy()}
    return datasets.Dataset.from_dict(columns).with_format("torch")


def nodes():
    from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper

    return Loader(Mapper(Batcher(IterableWrapper(range(48)), 8), batch_of))


def batch_of(rows):
    return {"x": X[rows], "y": Y[rows], "key": KEYS[rows]}


def shards():
    """Batches from tar files, as WebDataset reads them: an iterable without a length."""

    class Shards:
        batch_size = 8

        def __iter__(self):
            return (batch_of(list(range(start, start + 8))) for start in range(0, 48, 8))

    return Shards()


STREAMS = {
    "datasets": lambda: DataLoader(table().to_iterable_dataset(num_shards=4), 8),
    "torchdata's nodes": nodes,
    "shards": shards,
}


@pytest.fixture(params=STREAMS.values(), ids=STREAMS)
def stream(request):
    return request.param


def trained(loader, epochs):
    """The keys of each epoch."""
    model, found = network(), []
    for _ in range(epochs):
        found.append([])
        for batch in loader:
            loader.loss(losses_of(model, batch)).backward()
            found[-1] += batch["key"].tolist()
    return found


@WORKERS
def test_selection_after_reading_needs_no_more(stream):
    loader = SelectiveLoader(
        stream(), network(), losses=losses_of, keep=0.5, pool=Pool(8), schedule=AT_ONCE
    )
    epochs = trained(loader, 3)
    assert loader.stats.seen == loader.stats.scored == 3 * 48
    assert 0.3 < loader.stats.kept_share < 0.7
    assert all(len(set(keys)) == len(keys) for keys in epochs)


@WORKERS
def test_memory_needs_the_index_of_each_example_and_then_leaves_out_what_it_read(stream):
    with pytest.raises(ConfigError, match="Memory needs the index of each example"):
        SelectiveLoader(stream(), memory=Memory(), epochs=5)
    memory = Memory(0.5, warmup=Epochs(1))
    indexed = Indexed(stream(), index_of=lambda batch: batch["key"])
    loader = SelectiveLoader(indexed, memory=memory, epochs=5, pool=Pool(8))
    first, *epochs = trained(loader, 5)
    assert sorted(first) == KEYS.tolist()
    for keys in epochs:
        assert len(set(keys)) == len(keys) == 24
    assert memory.examples == 48  # and none for the keys between theirs
    left_out = set(loader.left_out.tolist())
    assert left_out == set(KEYS.tolist()) - set(epochs[-1])
    assert loader.stats.unread == 0


def with_state(workers):
    """A table of `datasets` in torchdata's loader, which has a state of its place in it."""

    def make():
        from torchdata.stateful_dataloader import StatefulDataLoader

        stream = table().to_iterable_dataset(num_shards=4)
        return StatefulDataLoader(stream, 8, num_workers=workers, persistent_workers=workers > 0)

    return make


RESUMED = {
    "datasets": STREAMS["datasets"],
    "shards": shards,
    "stateful": with_state(0),
    "stateful, workers": with_state(2),
}


@WORKERS
@pytest.mark.parametrize("stream", RESUMED.values(), ids=RESUMED)
def test_a_memory_of_a_stream_is_resumed(stream):
    def make():
        model = network()
        optimizer = optimizer_of(model)
        indexed = Indexed(stream(), index_of=lambda batch: batch["key"])
        memory = Memory(0.5, warmup=Epochs(1))
        loader = SelectiveLoader(indexed, memory=memory, epochs=3, pool=Pool(8))

        def steps():
            while loader.epoch < 3:
                for batch in loader:
                    loader.loss(losses_of(model, batch)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    yield batch
                yield None

        return {"model": model, "optimizer": optimizer, "loader": loader}, steps, model.state_dict

    check_resumes(make, every=3)


@WORKERS
def test_nodes_of_torchdata_are_resumed_between_epochs_alone():
    def loader_of():
        indexed = Indexed(nodes(), index_of=lambda batch: batch["key"])
        return SelectiveLoader(indexed, memory=Memory(warmup=Epochs(0)), epochs=3, pool=Pool(8))

    loader, again = loader_of(), loader_of()
    trained(loader, 1)
    again.load_state_dict(loader.state_dict())
    assert trained(again, 2) == trained(loader, 2)
    loader = loader_of()
    next(iter(loader))
    with pytest.raises(StateError, match="save the state between epochs, or wrap a Stateful"):
        loader.state_dict()


def test_a_table_of_datasets_is_a_map_style_data_set():
    loader = DataLoader(table(), 8, shuffle=True)
    loader = SelectiveLoader(
        loader, memory=Memory(0.5, warmup=Epochs(1)), epochs=4, shorter_epochs=True
    )
    epochs = trained(loader, 4)
    assert [len(keys) for keys in epochs] == [48, 24, 24, 24]
    assert loader.stats.unread == 3 * 24


def test_processes_with_a_share_each_of_a_stream_read_their_own():
    from datasets.distributed import split_dataset_by_node

    found = []
    for rank in range(2):
        share = split_dataset_by_node(table().to_iterable_dataset(num_shards=4), rank, 2)
        indexed = Indexed(DataLoader(share, 8), index_of=lambda batch: batch["key"])
        memory = Memory(0.5, warmup=Epochs(1))
        found.append(trained(SelectiveLoader(indexed, memory=memory, epochs=3), 3))
    for one, other in zip(*found, strict=True):
        assert not set(one) & set(other)
    assert [len(keys) for keys in found[0]] == [len(keys) for keys in found[1]] == [24, 12, 12]


class Numbers(IterableDataset):
    """Each worker process every n-th example."""

    def __iter__(self):
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(range(first, 48, stride))


def by_position(workers):
    stream = DataLoader(Indexed(Numbers()), 4, num_workers=workers)
    return SelectiveLoader(stream, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)


class Counted(Numbers):
    def __len__(self):
        return 48


def test_a_stream_that_says_its_length_keeps_it_by_position():
    loader = DataLoader(Indexed(Counted()), 4)
    loader = SelectiveLoader(loader, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)
    assert (len(loader), loader.total_steps) == (12, 36)
    for _ in range(3):
        assert sum(len(batch) for batch in loader if loader.loss(batch + 1.0)) == 48
    with pytest.raises(TypeError):
        len(Indexed(Numbers()))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_positions_in_a_stream_are_those_of_as_many_workers():
    loader = by_position(2)
    for batch in loader:
        loader.loss(batch + 1.0)
    state = loader.state_dict()
    for workers in (0, 3):
        with pytest.raises(
            StateError, match=rf"num_workers=2, .* num_workers={workers or '.nothing'}"
        ):
            by_position(workers).load_state_dict(state)
    again = by_position(2)
    again.load_state_dict(state)
    for batch in again:
        again.loss(batch + 1.0)
    rows = {index: row for row, index in enumerate(state["draw"]["rows"]["indices"].tolist())}
    assert len(rows) == 48
    assert again.memory.values[:, 0].sort().values.tolist() == list(range(1, 49))
    loader = by_position(1)
    list(map(loader.loss, (batch + 1.0 for batch in loader)))
    by_position(0).load_state_dict(loader.state_dict())


@WORKERS
@pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:Neither dataset nor")
@pytest.mark.parametrize("memory", [True, False], ids=["memory", "keep"])
@pytest.mark.parametrize("stateful", [False, True], ids=["plain", "stateful"])
def test_a_place_in_a_stream_is_one_of_as_many_workers(stateful, memory):
    """Between epochs only a state of the loader's own is of its workers."""
    kind = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    kind = kind if stateful else DataLoader

    def loader_of(workers):
        stream = kind(Numbers(), 4, num_workers=workers)
        if memory:
            stream, rule = Indexed(stream, index_of=lambda batch: batch), Memory(0.5)
            return SelectiveLoader(stream, memory=rule, epochs=4)
        losses = lambda model, batch: batch.float()  # noqa: E731
        return SelectiveLoader(stream, network(), losses=losses, keep=0.5, schedule=AT_ONCE)

    def train(loader):
        given = []
        for batch in loader:
            loader.loss(batch + 1.0)
            given += batch.tolist()
        return given

    for workers, others in ((0, (0, 2)), (2, (0, 2, 3))):
        whole = loader_of(workers)
        expected = train(whole)
        between, follows = whole.state_dict(), train(whole)
        begun, given = loader_of(workers), []
        for batch in begun:
            begun.loss(batch + 1.0)
            given += batch.tolist()
            if len(given) >= 12:
                within = begun.state_dict()
                break
        for other in others:
            again = loader_of(other)
            if workers == other:
                again.load_state_dict(within)
                assert given + train(again) == expected
            else:
                with pytest.raises(StateError, match="build it with the same num_workers"):
                    again.load_state_dict(within)
            again = loader_of(other)
            if stateful and workers != other:
                with pytest.raises(StateError, match="build it with the same num_workers"):
                    again.load_state_dict(between)
            else:
                again.load_state_dict(between)
                assert len(train(again)) == len(follows)


def test_a_table_of_several_shards_has_no_positions_once_its_epoch_is_set():
    """Which reads its shards in another order, shuffled or not."""

    def train(shards, sets_epoch):
        stream = table().to_iterable_dataset(num_shards=shards)
        loader = DataLoader(Indexed(stream), 8)
        loader = SelectiveLoader(loader, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)
        for epoch in range(3):
            if sets_epoch:
                stream.set_epoch(epoch)
            for batch in loader:
                assert torch.equal(batch["key"], KEYS[loader.indices])
                loader.loss(batch["key"].float())

    train(4, False)
    train(1, True)
    with pytest.raises(BatchError, match=r"set_epoch\(1\) reorders the table's 4 shards: leave it"):
        train(4, True)


def test_a_rule_that_remembers_a_stream_needs_the_state_of_its_loader():
    def by_key(memory):
        stream = Indexed(shards(), index_of=lambda batch: batch["key"])
        return SelectiveLoader(stream, memory=memory, epochs=3)

    loader = by_key(Memory(0.5, warmup=Epochs(1)))
    for batch in loader:
        loader.loss(batch["key"].float())
    again = by_key(loader.memory)
    with pytest.raises(ConfigError, match=r"remembers examples of a stream.*or load a state of"):
        next(iter(again))
    again.load_state_dict(loader.state_dict())
    next(iter(again))


def test_losses_of_examples_that_never_came_are_refused():
    indexed = Indexed(shards(), index_of=lambda batch: batch["key"])
    loader = SelectiveLoader(indexed, memory=Memory(), epochs=5)
    next(iter(loader))
    with pytest.raises(BatchError, match="no example of index 3 came so far"):
        loader.record(torch.ones(1), indices=torch.tensor([3]))


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda **when: Memory(keep=0.5, balance=Y, **when),
        lambda **when: RS2(0.5, replacement=True, weights=torch.rand(48) + 1, **when),
        lambda **when: RCAP(Y, **when),
        lambda **when: AlignPrune(reference=[1, 2], **when),
    ],
    ids=["balance", "weights", "labels", "reference"],
)
def test_what_is_of_each_example_needs_their_number(make, at_once):
    loader = Indexed(shards(), index_of=lambda batch: batch["key"])
    with pytest.raises(ConfigError, match=r"length (has to be|is) known"):
        SelectiveLoader(loader, memory=make(warmup=Epochs(0 if at_once else 1)), epochs=4)


class Backwards(Numbers):
    def __iter__(self):
        return iter(range(47, -1, -1))


def test_a_guard_names_the_examples_of_a_stream_by_their_indices():
    wrong = [2, 5, 7]
    guard = NoiseGuard(4, visits=2)
    memory = Memory(warmup=Epochs(3), guard=guard)
    stream = Indexed(DataLoader(Backwards(), 8), index_of=lambda batch: batch + 1000)
    loader = SelectiveLoader(stream, memory=memory, epochs=6)
    for batch in (batch for _ in range(3) for batch in loader):
        loader.loss(torch.isin(batch, torch.tensor(wrong)) * 6.0 + 0.1)
    loader.state_dict()
    for listed in (guard.suspects, guard.held, guard.label_issues):
        assert listed.tolist() == [1000 + index for index in wrong]
