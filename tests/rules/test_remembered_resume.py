"""Scorers that remember: stopping after any step and going on elsewhere equals never stopping."""

import io

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from remembering import Numbered, indexed, selective, spread
from siftback import (
    Ewma,
    GaussianProcess,
    Indexed,
    Memory,
    Percentile,
    ScoreTable,
    SelectiveLoader,
    Stale,
    StateError,
)
from toys import assert_same, dataset, network, optimizer_of

EPOCHS = 4

SCORERS = {
    "stale": lambda: Stale(3),
    "stale, refreshed": lambda: Stale(2, refresh_from_training=True),
    "memory": lambda: Memory(warmup=1, tail=0.25),
    "memory, averaged": lambda: Memory(warmup=0.25, decay=0.5, beta=2),
    "ewma": lambda: Ewma(),
    "ewma of passes": lambda: Ewma(0.8, 2, refresh_from_training=False),
    "ewma of chances": lambda: Ewma(predict="chance", optimism=0.5),
    "process": lambda: GaussianProcess(history=3),
    "process of chances": lambda: GaussianProcess(every=2, predict="chance", optimism=0.5),
}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(dataset())


SOURCES = {
    "in memory": lambda: indexed(dataset()),
    "last batch dropped": lambda: indexed(dataset(), drop_last=True),
    "stream": lambda: DataLoader(Indexed(Stream()), 8),
    "list": lambda: list(DataLoader(Indexed(dataset()), 8)),
}


def run(source, make_scorer, checkpoint=None, **arguments):
    """Trains, from a checkpoint on; gives batches, checkpoints of every step and the end state."""
    model = network()
    optimizer = optimizer_of(model)
    wrapped = source()
    if isinstance(wrapped, list):
        arguments["index_of"] = lambda batch: batch[0]
    arguments = {"keep": 0.5, "epochs": EPOCHS, "losses": losses_of} | arguments
    loader = SelectiveLoader(wrapped, model, scorer=make_scorer(), **arguments)
    torch.manual_seed(6)
    if checkpoint:
        state = torch.load(io.BytesIO(checkpoint), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["rng"])

    def save():
        file = io.BytesIO()
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "rng": torch.get_rng_state()}, file)
        checkpoints.append((len(batches), file.getvalue()))

    batches, checkpoints = [], []
    save()
    while loader.epoch < EPOCHS:
        for batch in loader:
            losses = losses_of(model, batch)
            loader.remember(losses)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            batches.append((batch, loader.indices, loader.weights))
            save()
        save()
    stats = loader.stats
    counts = (stats.seen, stats.unread, stats.kept, stats.scored, stats.released)
    return batches, checkpoints, (model.state_dict(), counts, loader.state_dict()["scorer"])


def losses_of(model, batch):
    inputs, targets = batch[1] if isinstance(batch[1], tuple | list) else batch
    return F.cross_entropy(model(inputs), targets, reduction="none")


VARIANTS = [("in memory", scorer, {}) for scorer in SCORERS]
VARIANTS += [(source, "stale", {}) for source in list(SOURCES)[1:]]
VARIANTS += [(source, "memory", {}) for source in list(SOURCES)[1:]]
VARIANTS += [
    ("in memory", "stale", {"batch_size": 3}),
    ("in memory", "process", {"batch_size": 20, "drop_last": "carry"}),
    ("in memory", "memory", {"batch_size": 5, "drop_last": "carry"}),
]


@pytest.mark.parametrize(("source", "scorer", "arguments"), VARIANTS)
def test_stopping_anywhere_equals_never_stopping(source, scorer, arguments):
    source, scorer = SOURCES[source], SCORERS[scorer]
    batches, checkpoints, end = run(source, scorer, **arguments)
    assert end[1][2] < end[1][0]  # something was left out
    for done, checkpoint in checkpoints:
        rest, _, same_end = run(source, scorer, checkpoint, **arguments)
        assert_same(rest, batches[done:])
        assert_same(same_end, end)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("scorer", ["stale", "memory"])
def test_with_workers_too(scorer):
    def source():
        # Workers' seeds come from a generator of their own, so that dropout's numbers are the same.
        generator = torch.Generator().manual_seed(1)
        options = {"num_workers": 2, "persistent_workers": True, "generator": generator}
        return indexed(dataset(), **options)

    batches, checkpoints, end = run(source, SCORERS[scorer])
    for done, checkpoint in checkpoints[2::9]:
        rest, _, same_end = run(source, SCORERS[scorer], checkpoint)
        assert_same(rest, batches[done:])
        assert_same(same_end, end)


@pytest.mark.parametrize("kind", [Stale, Memory, Ewma])
def test_a_table_in_a_file_goes_back_to_the_state(kind, tmp_path):
    def scorer():
        return kind(table=ScoreTable(path=tmp_path / "scores.table"))

    # Each run goes on with the file of the one before, as of its end.
    batches, checkpoints, end = run(SOURCES["in memory"], scorer)
    for done, checkpoint in checkpoints[::4]:
        rest, _, same_end = run(SOURCES["in memory"], scorer, checkpoint)
        assert_same(rest, batches[done:])
        assert_same(same_end, end)


def test_a_state_does_not_change_as_its_loader_goes_on():
    for name, make in SCORERS.items():
        loader = selective(
            indexed(Numbered(spread(40))), keep=0.5, scorer=make(), epochs=3, batch_size=4
        )
        for epoch in range(2):
            for place, batch in enumerate(loader):
                loader.remember(batch["loss"] * (place + epoch + 1))
                if (epoch, place) == (0, 3):
                    file, state = io.BytesIO(), loader.state_dict()
                    torch.save(state, file)
        before = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        assert_same(state["scorer"], before["scorer"])
        assert name


FEWER = {
    "stale": (Stale, r"table of 40 examples does not fit one of 41"),
    "process": (GaussianProcess, r"40 histories of 6 losses do not fit 41 of 6: resume with"),
}


@pytest.mark.parametrize(("make", "message"), FEWER.values(), ids=FEWER)
def test_a_state_of_fewer_examples_is_refused(make, message):
    few, more = (
        selective(indexed(Numbered(spread(count))), keep=0.5, scorer=make()) for count in (40, 41)
    )
    with pytest.raises(StateError, match=message):
        more.load_state_dict(few.state_dict())


def test_a_state_of_another_scorer_or_history_is_refused():
    def loader(scorer):
        wrapped = indexed(Numbered(spread(40)))
        return selective(wrapped, selector=Percentile(keep=0.5), scorer=scorer)

    with pytest.raises(StateError, match="scorer Stale, and this loader has a Ewma"):
        loader(Ewma()).load_state_dict(loader(Stale()).state_dict())
    with pytest.raises(StateError, match="40 histories of 6 losses do not fit 40 of 5"):
        loader(GaussianProcess(history=5)).load_state_dict(loader(GaussianProcess()).state_dict())
