"""Batches scored by a replica that works ahead."""

import itertools
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from resuming import (
    EPOCHS,
    ORDERED,
    SELECTIVE,
    UNORDERED,
    Stateful,
    check_resumes,
    training,
)
from siftback import Epochs, Fresh, Indexed, Pool, Reduced, Schedule, SelectiveLoader, per_example
from siftback.contrib import Pipelined, ReplicaError
from siftback.errors import ConfigError, LossError
from siftback.losses.per_example import pair_losses
from toys import AT_ONCE, assert_same, at_once, dataset, network, numbered, shuffled, train


def trained(wrap=lambda loader, model: loader, **arguments):
    """Batches, weights, the loader and what it wraps, of a training."""
    model = network()
    torch.manual_seed(1)
    source = wrap(shuffled(), model)
    loader = SelectiveLoader(source, model, F.cross_entropy, keep=0.5, **at_once(arguments))
    return train(loader, model), model.state_dict(), loader, source


def pipelined(place="cpu", **options):
    """Wraps a loader of pairs, for a model."""
    options = {"depth": 2, "sync_every": 3} | options
    return lambda loader, model: Pipelined(loader, model, F.cross_entropy, place=place, **options)


SOURCES = UNORDERED | ORDERED
# torchdata's own
vital = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


# What is the same


@pytest.mark.usefixtures("forked_replicas")
@pytest.mark.parametrize(
    ("place", "mode"), [("process", "eval"), ("cpu", "eval"), ("cpu", "train")]
)
def test_without_working_ahead_it_is_plain_selective_backprop_bit_for_bit(place, mode):
    batches, weights, _, _ = trained(scorer=Fresh(mode))
    how = {"depth": 0, "sync_every": 1, "scorer": Fresh(mode)}
    same_batches, same_weights, _, scored = trained(pipelined(place, **how))
    assert_same(same_batches, batches)
    assert_same(same_weights, weights)
    assert max(scored.lags) == 0
    assert scored.seconds_sync > 0
    scored.close()


@pytest.mark.usefixtures("forked_replicas")
def test_a_process_gives_what_taking_turns_gives():
    how = {"depth": 3, "sync_every": 2}
    given, weights, loader, process = trained(pipelined("process", **how))
    expected, expected_weights, same, here = trained(pipelined("cpu", **how))
    process.close()
    assert_same(given, expected)
    assert_same(weights, expected_weights)
    assert process.lags == here.lags
    assert process.syncs == here.syncs
    assert loader.stats.scored == same.stats.scored
    assert max(process.lags) > 0


class Steps(nn.Module):
    """Its weight and its buffer are the number of steps made."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("buffer", torch.zeros((), dtype=torch.int64))

    def add_one(self):
        with torch.no_grad():
            self.weight += 1
            self.buffer = self.buffer + 1  # replaces it, as modules may


def steps_made(model, batch):
    return 100 * batch["loss"] + 0.5 * model.weight + 0.5 * model.buffer


@pytest.mark.usefixtures("forked_replicas")
@pytest.mark.parametrize("place", ["process", "cpu"])
def test_scores_are_those_of_the_weights_that_the_lag_says(place):
    batches, depth, sync_every = 12, 2, 3
    model, source = Steps(), numbered(torch.arange(48.0), 4)
    scored = Pipelined(
        source, model, losses=steps_made, place=place, depth=depth, sync_every=sync_every
    )
    given = []
    for batch, scores in scored:
        given.append((batch, scores.clone()))
        model.add_one()
    scored.close()
    assert_same([batch for batch, _ in given], source)

    # By hand: batch t is scored when the turn of batch t - depth comes, after so many steps.
    weights, expected = 0, []
    for number in range(batches):
        asked = max(0, number - depth)
        if asked - weights >= sync_every:
            weights = asked
        expected.append(weights)
    assert_same(
        torch.stack([scores for _, scores in given]),
        torch.arange(48.0).view(batches, 4) * 100 + torch.tensor(expected)[:, None],
    )
    lags = [turn - step for turn, step in enumerate(expected)]
    assert list(scored.lags) == lags
    assert max(lags) == depth + sync_every - 1
    assert scored.syncs == len(set(expected))


@pytest.mark.parametrize("depth", [0, 1, 3, 50])
def test_reading_ahead_keeps_the_order_and_reads_no_further_than_asked(depth):
    read = []

    class Source:
        def __iter__(self):
            for batch in numbered(torch.arange(18.0), 2):
                read.append(batch)
                yield batch

    scored = Pipelined(Source(), nn.Identity(), losses=stated, place="cpu", depth=depth)
    for turn, (batch, scores) in enumerate(scored):
        assert batch["number"].tolist() == scores.tolist() == [2 * turn, 2 * turn + 1]
        assert len(read) == min(9, turn + 1 + depth)
    assert turn == 8


def test_indices_are_passed_on_and_given_to_the_replica_s_scorer():
    class ByIndex(Fresh):
        def score(self, losses, model, batch, indices):
            return indices.float()

    indexed = DataLoader(Indexed(dataset()), batch_size=8, shuffle=True)
    scored = Pipelined(indexed, network(), F.cross_entropy, place="cpu", scorer=ByIndex())
    assert scored.indexed
    for (indices, (inputs, _)), scores in scored:
        assert inputs.equal(dataset().tensors[0][indices])
        assert scores.tolist() == indices.tolist()
    assert not Pipelined(shuffled(), network(), F.cross_entropy, place="cpu").indexed


def test_what_a_loader_says_of_itself_is_passed_on():
    scored = Pipelined(shuffled(drop_last=True), network(), F.cross_entropy, place="cpu")
    assert (len(scored), scored.batch_size, scored.drop_last) == (5, 8, True)
    plain = Pipelined(iter([]), network(), F.cross_entropy, place="cpu")
    assert (plain.batch_size, plain.drop_last) == (None, False)
    with pytest.raises(TypeError):
        len(plain)
    by_epoch = SOURCES["shuffled by the epoch"]()
    scored = Pipelined(by_epoch, network(), F.cross_entropy, place="cpu")
    scored.set_epoch(3)
    assert (scored.epoch, by_epoch.sampler.epoch) == (3, 3)


@pytest.mark.usefixtures("forked_replicas")
@pytest.mark.parametrize("place", ["process", "cpu"])
def test_a_broken_off_epoch_leaves_nothing_to_the_next(place):
    loaders, model = [], network()
    scored = Pipelined(numbered(torch.arange(40.0), 4), model, losses=stated, place=place, depth=2)
    for source in (scored, numbered(torch.arange(40.0), 4)):
        loader = SelectiveLoader(source, model, losses=stated, keep=0.5, schedule=AT_ONCE)
        next(iter(loader))
        loaders.append(loader)
    # Of the same history and generator, as the first batch has been selected from in both.
    assert_same(list(loaders[0]), list(loaders[1]))
    assert loaders[0].stats.seen == loaders[1].stats.seen
    scored.close()


@pytest.mark.parametrize("turns", [1, 8, 10])
def test_the_epoch_after_one_broken_off_is_that_one_from_its_start(turns):
    source = numbered(torch.arange(40.0), 4)
    scored = Pipelined(source, nn.Identity(), losses=stated, place="cpu", depth=2)
    batches = iter(scored)
    for _ in range(turns):
        next(batches)
    assert scored.epoch == 0
    assert_same([batch for batch, _ in scored], source)
    assert scored.epoch == 1
    with pytest.raises(ReplicaError, match="this epoch was interrupted"):
        next(batches)


def stated(model, batch):
    return batch["loss"]


# Continuing


def scoring(source):
    """For `check_resumes`: a model that takes a step each turn."""

    def make():
        model = network()
        scored = pipelined()(source(), model)

        def steps():
            while scored.epoch < EPOCHS:
                scored.set_epoch(scored.epoch)
                for batch, scores in scored:
                    given = batch, scores.clone()
                    with torch.no_grad():
                        model[-1].weight.mul_(1.1)
                    yield given
                yield None

        def end():
            return list(scored.lags), scored.syncs

        return {"model": model, "scored": scored}, steps, end

    return make


@vital
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.sampled(3)
def test_batches_and_scores_continue_from_anywhere(source):
    check_resumes(scoring(source), every=3)
    scores = [float(given[1].sum()) for given in scoring(source)()[1]() if given is not None]
    assert len({round(score, 3) for score in scores}) > 8


PIPELINED = {
    "released": ("shuffled", {"keep": 0.5}),
    **{f"source: {name}": (name, {"keep": 0.6}) for name in SOURCES},
    "smaller batches": ("stateful", SELECTIVE["smaller batches"]),
    "larger batches": ("stateful", SELECTIVE["larger batches"]),
    "warm-up": ("stateful", {"keep": 0.5, "schedule": Schedule(warmup=Epochs(1))}),
    "warm-up in shares": ("shuffled", SELECTIVE["warm-up"]),
    "torchdata's, smaller batches": ("torchdata's", {"keep": 0.5, "pool": Pool(5)}),
}


@vital
@pytest.mark.parametrize(("source", "arguments"), PIPELINED.values(), ids=PIPELINED)
@pytest.mark.sampled(4)
def test_stopping_anywhere_equals_never_stopping(source, arguments):
    check_resumes(training(SOURCES[source], arguments, wrap=pipelined()), every=2)


@pytest.mark.usefixtures("forked_replicas")
def test_a_process_can_be_stopped_and_continued_from_anywhere():
    # Its states hold all there is: taking turns continues from them in the same way.
    places = itertools.chain(["process"], ["cpu"] * 4, ["process"], itertools.repeat("cpu"))

    def wrap(loader, model):
        how = {"depth": 1, "scorer": Fresh(mode="train")}
        return pipelined(next(places), **how)(loader, model)

    check_resumes(training(shuffled, {"keep": 0.5}, wrap=wrap))


def test_a_used_loader_takes_up_a_state_from_before_anything_was_read():
    def given(scored):
        return [(batch, scores.clone()) for batch, scores in scored]

    model = network()
    scored = pipelined()(Stateful(), model)
    state = scored.state_dict()
    expected = [given(scored), given(scored)]
    scored.close()
    scored.load_state_dict(state)
    assert_same([given(scored), given(scored)], expected)


# What cannot be


class Local:
    """Makes things that cannot be pickled."""

    @staticmethod
    def model():
        class Inner(nn.Linear):
            pass

        return Inner(1, 1)


UNFIT = {
    "losses": (lambda: nn.Linear(1, 1), lambda model, batch: batch["loss"], "the losses cannot"),
    "model": (Local.model, stated, "the model cannot"),
    "both": (Local.model, lambda model, batch: batch["loss"], "the model and the losses cannot"),
}


@pytest.mark.parametrize(("model", "losses", "message"), UNFIT.values(), ids=UNFIT)
def test_what_cannot_be_pickled_is_named(model, losses, message):
    scored = Pipelined(numbered(torch.arange(8.0), 4), model(), losses=losses)
    with pytest.raises(ConfigError, match=f"{message} be pickled.*top of a module"):
        list(scored)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss()])
def test_the_usual_losses_can_be_pickled(loss):
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    of_rows = pickle.loads(pickle.dumps(per_example(loss)))
    assert of_rows(outputs, targets).equal(per_example(loss)(outputs, targets))
    of_batch = pickle.loads(pickle.dumps(pair_losses(loss)))
    assert of_batch(nn.Identity(), (outputs, targets)).equal(of_rows(outputs, targets))


def test_a_model_whose_weights_change_their_shapes_is_refused():
    model = nn.Linear(2, 1)
    scored = Pipelined(numbered(torch.arange(8.0), 2), model, losses=stated, place="cpu")
    batches = iter(scored)
    next(batches)
    model.weight = nn.Parameter(torch.zeros(1, 3))
    with pytest.raises(ReplicaError, match=r"weight 0 .* shape \(1, 3\) .* replica \(1, 2\)"):
        next(batches)


def test_a_model_that_cannot_be_copied_is_refused():
    model = nn.Linear(1, 1)
    model.features = torch.ones(2, requires_grad=True) * 2  # of a graph, as no copy can be
    scored = Pipelined(numbered(torch.arange(8.0), 2), model, losses=stated, place="cpu")
    with pytest.raises(ConfigError, match="the Linear cannot be copied"):
        list(scored)


@pytest.mark.usefixtures("forked_replicas")
def test_closing_in_the_middle_of_an_epoch_ends_it_with_an_error():
    scored = Pipelined(numbered(torch.arange(24.0), 4), nn.Linear(1, 1), losses=stated, depth=2)
    batches = iter(scored)
    next(batches)
    scored.close()
    assert not multiprocessing.active_children()
    with pytest.raises(ReplicaError, match=r"interrupted by close\(\)"):
        next(batches)
    assert len(list(scored)) == 6
    scored.close()


def test_a_loss_that_is_not_finite_is_placed_where_it_is_selected_from():
    losses = torch.arange(24.0)
    losses[9] = torch.nan
    model = nn.Linear(1, 1)
    scored = Pipelined(numbered(losses, 4), model, losses=stated, place="cpu", depth=3)
    loader = SelectiveLoader(scored, model, losses=stated, keep=1, schedule=AT_ONCE)
    with pytest.raises(LossError, match="example 1 in batch 2 of epoch 0 is nan"):
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sync_every": 0}, "sync_every=0: give an integer, at least 1"),
        ({"depth": -1}, "depth=-1: give an integer, at least 0"),
        ({"depth": 1.5}, r"depth=1\.5"),
        ({"threads": 0}, "threads=0"),
        ({"place": "cpu", "threads": 2}, "threads=2 is for a process"),
        ({"timeout": 0}, "timeout=0: give a finite number above 0"),
        ({"place": "thread"}, "place='thread' cannot be used"),
        ({"place": "cuda:99"}, "place='cuda:99' cannot be used"),
        ({"scorer": Reduced()}, "give a scorer without a state"),
        ({"losses": stated}, "loss_fn=.* and losses=.*: give one of them"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Pipelined([], nn.Linear(1, 1), F.cross_entropy, **arguments)


# Batches on their way


def squares(model, batch):
    """Sums of dictionaries of any lengths and parts."""
    assert batch["name"] == [f"example {n}" for n in batch["number"].tolist()]
    assert isinstance(batch["array"], np.ndarray)
    return batch["x"].double().square().flatten(1).sum(1).float() + torch.from_numpy(batch["array"])


def test_batches_of_all_kinds_and_lengths_are_scored_in_the_process():
    model = nn.Linear(1, 1)
    lengths = [3, 50, 4000, 1, 90_000, 7]
    batches = [
        {
            "x": torch.randn(2, length, 3).transpose(1, 2),
            "number": torch.tensor([length, length + 1]),
            "name": [f"example {length}", f"example {length + 1}"],
            "array": np.array([0.5, length], dtype=np.float32),
            "none": None,
        }
        for length in lengths
    ]
    scored = Pipelined(batches, model, losses=squares, depth=2)
    for (batch, scores), original in zip(scored, batches, strict=True):
        assert batch["x"].equal(original["x"])
        assert scores.equal(squares(model, original))
    scored.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("depth", "sync_every"), [(0, 1), (2, 3)])
@pytest.mark.parametrize("place", ["cuda", "process"])
@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_an_accelerator_scores_with_the_weights_it_should(place, depth, sync_every, on):
    results = []
    for where in (place, "cpu"):
        model = Steps().cuda() if where == place else Steps()
        source = numbered(torch.arange(4000.0), 40)
        if where == place:
            source = [{name: part.to(on) for name, part in batch.items()} for batch in source]
        how = {"depth": depth, "sync_every": sync_every}
        scored = Pipelined(source, model, losses=steps_made, place=where, **how)
        found = []
        for _, scores in scored:
            found.append(scores.cpu())
            model.add_one()
        results.append((torch.stack(found), list(scored.lags)))
        assert scored.seconds_sync > 0
        scored.close()
    assert_same(*results)
