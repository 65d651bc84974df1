"""The loader against the plain loop and against Algorithm 1."""

import copy
from collections import deque
from dataclasses import asdict
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from reference import algorithm_1, batch_first, one_at_a_time, shared_probability
from siftback import (
    RS2,
    Epochs,
    Fresh,
    Percentile,
    Pool,
    Schedule,
    Scorer,
    Selection,
    SelectiveLoader,
    Selector,
    Share,
    Uniform,
)
from siftback.errors import ConfigError, LossError
from toys import (
    AT_ONCE,
    All,
    assert_same,
    at_once,
    dataset,
    given_losses,
    network,
    numbered,
    shuffled,
    train,
)

KEEP_ALL = {
    "keep": {"keep": 1},
    "beta": {"selector": Percentile(beta=0)},
    "exact": {"keep": 1, "exact": True},
    "scored in train mode": {"keep": 1, "scorer": Fresh(mode="train")},
    "scored in bfloat16": {"keep": 1, "scorer": Fresh(autocast=torch.bfloat16)},
    "selector": {"selector": All()},
    "schedule off": {"keep": 0.1, "schedule": Schedule(start=Epochs(3))},
    "schedule off in shares": {"keep": 0.1, "schedule": Schedule(warmup=Share(1.0)), "epochs": 3},
}


@pytest.mark.filterwarnings("ignore:Schedule.* never selects:UserWarning")
@pytest.mark.parametrize("arguments", KEEP_ALL.values(), ids=KEEP_ALL)
@pytest.mark.parametrize("drop_last", [False, True])
def test_keeping_all_is_the_plain_loop_bit_for_bit(arguments, drop_last):
    plain, selective = network(), network()
    torch.manual_seed(1)
    batches = train(shuffled(drop_last=drop_last), plain)
    torch.manual_seed(1)
    arguments = copy.deepcopy(at_once(arguments))  # a selector is of one training
    loader = SelectiveLoader(
        shuffled(drop_last=drop_last), selective, nn.CrossEntropyLoss(), **arguments
    )
    assert_same(train(loader, selective), batches)
    assert_same(selective.state_dict(), plain.state_dict())


@settings(max_examples=20)
@given(
    count=st.integers(12, 40),
    batch_size=st.integers(1, 12),
    keep=st.sampled_from([1.0, 0.5]),
    drop_last=st.booleans(),
    mode=st.sampled_from(["eval", "train"]),
)
def test_selection_shows_in_nothing_but_the_batches(count, batch_size, keep, drop_last, mode):
    # Weights are those of a plain loop over the batches that the loader gave, and for keep=1
    # these are the batches of the wrapped loader.
    source = partial(shuffled, count, batch_size, drop_last=drop_last)
    selective, plain = network(), network()
    torch.manual_seed(1)
    loader = SelectiveLoader(
        source(), selective, F.cross_entropy, keep=keep, scorer=Fresh(mode), schedule=AT_ONCE
    )
    given = train(loader, selective, epochs=2)
    batches = given
    if keep == 1:
        wrapped = source()
        batches = [*wrapped, *wrapped]
        assert_same(given, batches)
    torch.manual_seed(1)
    iter(source()), iter(source())  # draws a seed from the global generator, as each epoch does
    train(batches, plain, epochs=1)
    assert_same(selective.state_dict(), plain.state_dict())


ALGORITHM_1 = {
    "one at a time": (1, 8, 0.4, 20),
    "batch of its own size": (8, 8, 1 / 3, 1024),
    "short history": (8, 8, 0.5, 5),
    "larger selection batch": (32, 8, 0.5, 40),
    "smaller selection batch": (3, 8, 0.5, 40),
    "sizes without a common measure": (7, 5, 0.9, 16),
    "selective": (16, 4, 0.05, 64),
}


@pytest.mark.parametrize(
    ("selection_batch", "batch_size", "keep", "size"), ALGORITHM_1.values(), ids=ALGORITHM_1
)
@pytest.mark.parametrize("drop_last", [False, True, "carry"])
def test_selections_are_those_of_algorithm_1(selection_batch, batch_size, keep, size, drop_last):
    losses = torch.randn(100, generator=torch.Generator().manual_seed(2)).exp().round(decimals=1)
    source = numbered(losses, selection_batch)
    loader = SelectiveLoader(
        source, nn.Identity(), losses=given_losses,
        selector=Percentile(keep=keep, history=size), pool=Pool(batch_size, drop_last), seed=5,
        schedule=AT_ONCE, exact=False,
    )  # fmt: skip

    draws, history = torch.Generator().manual_seed(5), deque(maxlen=size)
    algorithm_2 = one_at_a_time if selection_batch == 1 else batch_first

    def probabilities(losses):
        drawn.extend(torch.rand(len(losses), generator=draws).tolist())
        return algorithm_2(losses, history, 1 / keep - 1, shared_probability)

    drawn, carried = deque(), []
    for _ in range(3):
        batches = [(batch["number"].tolist(), batch["loss"].tolist()) for batch in source]
        # What was carried over is as if it had been chosen for certain.
        trained, rest = algorithm_1(
            [(carried, [None] * len(carried)), *batches],
            lambda losses: [1.0] * len(losses) if None in losses else probabilities(losses),
            lambda prob: prob == 1.0 or drawn.popleft() < prob,
            batch_size,
        )
        # A single row is no batch, and waits too.
        carried = rest if drop_last == "carry" or (drop_last is False and len(rest) == 1) else []
        expected = [*trained, rest] if rest and not carried and drop_last is False else trained
        assert [batch["number"].tolist() for batch in loader] == expected
    assert loader.stats.kept == loader.stats.released + loader.stats.dropped + len(carried)


@settings(max_examples=10)
@given(keep=st.floats(0.02, 1.0), kind=st.sampled_from([Percentile, Uniform]), ties=st.booleans())
def test_kept_share_converges_to_keep(keep, kind, ties):
    losses = torch.rand(20_000, generator=torch.Generator().manual_seed(7))
    source = numbered(losses.round(decimals=1) if ties else losses, 128)
    loader = SelectiveLoader(
        source,
        nn.Identity(),
        losses=given_losses,
        selector=kind(keep=keep),
        pool=Pool(32),
        schedule=AT_ONCE,
    )
    released = sum(len(batch["number"]) for batch in loader)
    assert released == loader.stats.kept
    deviation = (keep * (1 - keep) / len(losses)) ** 0.5
    assert abs(loader.stats.kept_share - keep) <= 4 * deviation


@pytest.mark.parametrize("keep", [1 / 3, 1.0])
@pytest.mark.parametrize(
    ("source", "batch_size", "size"),
    [
        (shuffled(64, 16), None, 16),
        (shuffled(64, 16), 4, 4),
        (shuffled(64, 16), 40, 40),
        (list(shuffled(64, 16)), None, 16),
        (DataLoader(dataset(64), batch_sampler=[range(10), range(10, 64)]), None, 10),
    ],
    ids=["wrapped", "smaller", "larger", "first of a list", "first of a batch sampler"],
)
def test_batch_size_is_as_asked_or_that_of_the_wrapped_loader(source, batch_size, size, keep):
    pool = None if batch_size is None else Pool(batch_size)
    loader = SelectiveLoader(
        source, network(), F.cross_entropy, keep=keep, pool=pool, schedule=AT_ONCE
    )
    sizes = [len(inputs) for inputs, _ in loader]
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= size
    waiting = loader.stats.kept - sum(sizes)
    assert waiting <= (loader.stats.kept % size == 1)  # a single row is no batch


def test_what_was_done_is_counted():
    model = network()
    loader = SelectiveLoader(
        shuffled(44, 8), model, F.cross_entropy, keep=0.5, pool=Pool(6, drop_last=True),
        schedule=Schedule(warmup=Epochs(1)), epochs=3,
    )  # fmt: skip
    released = len(train(loader, model, epochs=3)) * 6
    stats = loader.stats
    assert stats.seconds_selection > 0
    assert asdict(stats) == {
        "seen": 3 * 44,
        "unread": 0,
        "considered": 2 * 44,
        "kept": 44 * 2 * stats.kept_share,
        "scored": 2 * 44,
        "released": released,
        "dropped": 44 + stats.kept - released,
        "nonfinite": 0,
        "seconds_selection": stats.seconds_selection,
    }
    assert (stats.forwards, stats.backwards) == (2 * 44 + released, released)


@pytest.mark.parametrize("selector", [All(), Uniform(keep=0.5)])
def test_a_selector_that_needs_no_scores_costs_no_forwards(selector):
    def never(model, batch):
        raise AssertionError("no selection pass was needed")

    loader = SelectiveLoader(
        numbered(torch.zeros(40), 8),
        nn.Identity(),
        losses=never,
        selector=selector,
        schedule=AT_ONCE,
    )
    assert sum(len(batch["number"]) for batch in loader) == loader.stats.forwards


@pytest.mark.parametrize("count", [7, 9])
def test_a_scorer_of_the_users_own_gives_one_score_for_each_example(count):
    class Wrong(Scorer):
        def score(self, losses, model, batch, indices):
            return torch.rand(count)

    loader = SelectiveLoader(
        numbered(torch.zeros(40), 8), nn.Identity(), losses=given_losses, keep=0.5, scorer=Wrong()
    )
    with pytest.raises(LossError, match=rf"scores=float32\[{count}\]: .*float\[8\]"):
        next(iter(loader))


class Chosen(Selector):
    """Chooses the same of each batch, whatever its scores."""

    keep, needs_scores, reweights = 0.5, False, True

    def __init__(self, positions, weights=None):
        self.selection = positions, torch.ones(len(positions)) if weights is None else weights

    def select(self, scores, generator, count=None):
        return Selection(*self.selection)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def by_chosen(*selection):
    return SelectiveLoader(
        numbered(torch.zeros(8), 4),
        nn.Identity(),
        losses=given_losses,
        selector=Chosen(*selection),
        schedule=AT_ONCE,
        exact=False,
    )


def test_a_selector_of_the_users_own_may_choose_in_any_order_and_one_twice():
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    loader = by_chosen(torch.tensor([3, 1, 1, 0]), weights)
    for batch, expected in zip(loader, ([3, 1, 1, 0], [7, 5, 5, 4]), strict=True):
        assert batch["number"].tolist() == expected
        assert loader.weights.tolist() == weights.tolist()


@pytest.mark.parametrize(
    "selection",
    [
        (torch.tensor([True, False, True, True]),),
        (torch.tensor([0, 2]), torch.ones(4)),
        (torch.tensor([[0, 2]]),),
        (torch.tensor([0.0, 2.0]),),
    ],
)
def test_what_is_no_selection_is_refused(selection):
    with pytest.raises(ConfigError, match=r"a selector chose positions=.*: give Selection\("):
        next(iter(by_chosen(*selection)))


def test_progress_counts_source_examples():
    loader = SelectiveLoader(shuffled(40, 8), network(), F.cross_entropy, selector=All(), epochs=2)
    assert loader.progress == 0
    progress = [loader.progress for _ in range(2) for _ in loader]
    assert progress == pytest.approx([step / 10 for step in range(10)])
    assert (loader.epoch, loader.epochs_done, loader.progress) == (2, 2.0, 1.0)
    with pytest.raises(ConfigError, match="give epochs= to the loader"):
        _ = SelectiveLoader(
            shuffled(), network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE
        ).progress


@pytest.mark.parametrize("arguments", [{"keep": 0.5}, {"memory": RS2(0.5), "pool": Pool(6)}])
def test_the_last_batch_of_an_epoch_is_of_that_epoch(arguments):
    """Also where the wrapped loader has ended, and the last rows come of a pool."""
    by_keep = {"model": network(), "loss_fn": F.cross_entropy, "schedule": AT_ONCE}
    arguments |= by_keep if "keep" in arguments else {"epochs": 3}
    loader = SelectiveLoader(shuffled(44, 8), **arguments)
    epochs = [(epoch, loader.epoch) for epoch in range(3) for _ in loader]
    assert [*dict.fromkeys(epochs)] == [(0, 0), (1, 1), (2, 2)]


def test_the_epoch_reaches_the_wrapped_sampler():
    data = dataset(20)
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    source = DataLoader(data, batch_size=20, sampler=sampler)
    loader = SelectiveLoader(source, network(), F.cross_entropy, keep=1, schedule=AT_ONCE)
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        orders += loader
    assert_same(orders[0], orders[2])
    assert not orders[0][0].equal(orders[1][0])


@pytest.mark.parametrize("drop_last", [False, "carry"])
def test_an_epoch_that_was_broken_off_begins_again(drop_last):
    source = numbered(torch.zeros(40), 8)
    loader = SelectiveLoader(
        source,
        nn.Identity(),
        losses=given_losses,
        keep=1,
        pool=Pool(5, drop_last),
        schedule=AT_ONCE,
    )
    for batch in loader:
        assert batch["number"].tolist() == [0, 1, 2, 3, 4]
        break
    carried = [5, 6, 7] if drop_last == "carry" else []
    numbers = torch.cat([batch["number"] for batch in loader]).tolist()
    whole = [*carried, *range(40)]
    assert numbers == whole[: len(numbers)]
    assert len(whole) - len(numbers) == (3 if carried else 0)
    assert loader.epoch == 1
    assert loader.stats.kept == loader.stats.released + loader.stats.dropped + len(carried)


def test_what_is_left_of_an_epoch_that_was_broken_off_is_not_given_in_another():
    loader = SelectiveLoader(
        numbered(torch.zeros(64), 32),
        nn.Identity(),
        losses=given_losses,
        keep=1,
        pool=Pool(8),
        schedule=AT_ONCE,
    )
    next(iter(loader))  # of a batch that three more come of
    loader.set_epoch(1)
    assert torch.cat([batch["number"] for batch in loader]).tolist() == list(range(64))
    assert (loader.epoch, loader.stats.dropped) == (2, 24)


@pytest.mark.parametrize("pool", [Pool(8), Pool(5), Pool(5, drop_last=True)])
def test_a_loop_that_asks_for_no_more_than_there_are_ends_the_epoch(pool):
    loader = SelectiveLoader(
        DataLoader(dataset(40), 8),
        network(),
        F.cross_entropy,
        keep=0.5,
        exact=True,
        pool=pool,
        schedule=AT_ONCE,
    )
    for epoch in range(3):
        batches = iter(loader)
        inputs = [next(batches)[0] for _ in range(loader.steps(epoch))]
        assert sum(map(len, inputs)) == 20
        assert loader.state_dict()["source"]["position"] in (0, 5)
    list(loader)
    assert (loader.epoch, loader.stats.seen, loader.stats.released) == (4, 160, 80)


def test_the_attributes_of_the_wrapped_loader_are_passed_through():
    source = shuffled(44, 8, drop_last=True)
    loader = SelectiveLoader(source, network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE)
    assert loader.dataset is source.dataset
    assert loader.sampler is source.sampler
    assert loader.batch_sampler is source.batch_sampler
    assert loader.collate_fn is source.collate_fn
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (8, True, 0)
    without = SelectiveLoader(list(source), network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE)
    assert not hasattr(without, "dataset")
    assert (without.sampler, without.batch_sampler, without.batch_size) == (None, None, None)
    with pytest.raises(AttributeError, match=r"SelectiveLoader.* no attribute 'nothing'"):
        _ = loader.nothing


@pytest.mark.parametrize("name", ["collate_fn", "dataset", "num_workers", "sampler", "batch_size"])
def test_what_the_wrapped_loader_reads_by_is_not_set_too_late(name):
    source = shuffled(44, 8)
    loader = SelectiveLoader(source, network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE)
    with pytest.raises(ConfigError, match=f"^{name} is set too late"):
        setattr(loader, name, None)


class EveryOtherBatch(Schedule):
    """On in batches of odd numbers alone."""

    def is_on(self, epochs_done, epochs=None, batch=None):
        return batch is None or batch % 2 == 1


def test_a_schedule_of_the_users_own_is_asked_for_each_batch():
    data = TensorDataset(torch.randn(64, 3), torch.arange(64) % 3)
    model, schedule = torch.nn.Linear(3, 3), EveryOtherBatch(warmup=Epochs(0))
    loader = SelectiveLoader(
        DataLoader(data, 16), model, F.cross_entropy, keep=0.5, exact=True, schedule=schedule
    )
    assert sum(len(x) for x, _ in loader) == 16 + 8 + 16 + 8
