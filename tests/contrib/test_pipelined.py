"""Scores from a replica that works ahead: the same examples, and no process left behind."""

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from resuming import ARGUMENTS, EPOCHS, SOURCES, run
from siftback import (
    ConfigError,
    Fresh,
    LossError,
    Percentile,
    Pipelined,
    ReplicaError,
    Schedule,
    SelectiveLoader,
    Selector,
    per_example,
)
from siftback.loss_functions import pair_losses
from toys import assert_same, dataset, network, numbered, shuffled, train


def trained(scorer, **arguments):
    """Batches, weights and the loader of a training with a scorer."""
    model = network()
    torch.manual_seed(1)
    loader = SelectiveLoader(
        shuffled(), model, F.cross_entropy, keep=0.5, scorer=scorer, **arguments
    )
    return train(loader, model), model.state_dict(), loader


# What is the same


@pytest.mark.parametrize(
    ("engine", "mode"), [("process", "eval"), ("cpu", "eval"), ("cpu", "train")]
)
def test_without_working_ahead_it_is_plain_selective_backprop_bit_for_bit(engine, mode):
    batches, weights, _ = trained(Fresh(mode))
    scorer = Pipelined(engine, depth=0, scorer=Fresh(mode))
    same_batches, same_weights, _ = trained(scorer)
    assert_same(same_batches, batches)
    assert_same(same_weights, weights)
    assert scorer.max_lag == 0
    assert scorer.seconds_sync > 0
    scorer.close()


def test_a_process_gives_what_taking_turns_gives():
    how = {"depth": 3, "sync_every": 2}
    process, here = Pipelined("process", **how), Pipelined("cpu", **how)
    given, weights, loader = trained(process)
    expected, expected_weights, same = trained(here)
    assert_same(given, expected)
    assert_same(weights, expected_weights)
    assert process.lags == here.lags
    assert process.syncs == here.syncs
    assert loader.stats.scored == same.stats.scored
    assert process.max_lag > 0


class Recording(Selector):
    """Keeps all, and the scores that it was given."""

    needs_scores, reweights, keep = True, False, 1.0

    def __init__(self):
        self.seen = []

    def select(self, scores, generator):
        self.seen.append(scores.clone())
        return Percentile(keep=1).select(scores, generator)


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


@pytest.mark.parametrize("engine", ["process", "cpu"])
def test_scores_are_those_of_the_weights_that_the_lag_says(engine):
    batches, depth, sync_every = 12, 2, 3
    model, selector = Steps(), Recording()
    scorer = Pipelined(engine, depth=depth, sync_every=sync_every)
    source = numbered(torch.arange(4.0 * batches), 4)
    loader = SelectiveLoader(source, model, losses=steps_made, selector=selector, scorer=scorer)
    turns = []
    for turn, _ in enumerate(loader):
        turns.append(turn)
        model.add_one()
    scorer.close()

    # By hand: batch t is submitted when the turn of batch t - depth comes, after so many steps.
    weights, expected = 0, []
    for number in range(batches):
        submitted = max(0, number - depth)
        if submitted - weights >= sync_every:
            weights = submitted
        expected.append(weights)
    assert_same(
        torch.stack(selector.seen),
        torch.arange(4.0 * batches).view(batches, 4) * 100 + torch.tensor(expected)[:, None],
    )
    lags = [turn - step for turn, step in zip(turns, expected, strict=True)]
    assert list(scorer.lags) == lags
    assert scorer.max_lag == max(lags) == depth + sync_every - 1
    assert scorer.mean_lag == sum(lags) / len(lags)
    assert scorer.syncs == len(set(expected))


@pytest.mark.parametrize("engine", ["process", "cpu"])
def test_a_broken_off_epoch_leaves_nothing_to_the_next(engine):
    loaders = []
    for scorer in (Pipelined(engine, depth=2), Fresh()):
        model = network()
        loader = SelectiveLoader(
            numbered(torch.arange(40.0), 4), model, losses=stated, keep=0.5, scorer=scorer
        )
        next(iter(loader))
        loaders.append(loader)
    # Of the same history and generator, as the first batch has been selected from in both.
    assert_same(list(loaders[0]), list(loaders[1]))
    assert loaders[0].stats.seen == loaders[1].stats.seen
    loaders[0].scorer.close()


def stated(model, batch):
    return batch["loss"]


# Going on


PIPELINED = {
    "released": ("shuffled", {"keep": 0.5}),
    **{f"source: {name}": (name, {"keep": 0.6}) for name in SOURCES},
    "smaller batches": ("stateful", ARGUMENTS["smaller batches"]),
    "larger batches": ("stateful", ARGUMENTS["larger batches"]),
    "warm-up": ("stateful", {"keep": 0.5, "schedule": Schedule(warmup=1)}),
    "warm-up in shares": ("shuffled", ARGUMENTS["warm-up"]),
    "share of the candidates": ("stateful", {"keep": 0.7, "score_share": 0.75}),
}


def pipelined(arguments, engine="cpu", **options):
    return arguments | {"scorer": Pipelined(engine, **{"depth": 2, "sync_every": 3} | options)}


@pytest.mark.parametrize(("source", "arguments"), PIPELINED.values(), ids=PIPELINED)
def test_stopping_anywhere_equals_never_stopping(source, arguments):
    source, arguments = SOURCES[source], pipelined(arguments)
    batches, checkpoints, end = run(source, arguments)
    for done, checkpoint in checkpoints:
        rest, _, same_end = run(source, arguments, checkpoint)
        assert_same(rest, batches[done:])
        assert_same(same_end, end)


def test_a_process_can_be_stopped_and_gone_on_from_anywhere():
    # Its states hold all there is: taking turns goes on from them in the same way.
    arguments = {"keep": 0.5}
    how = {"depth": 1, "scorer": Fresh("train")}
    batches, checkpoints, end = run(shuffled, pipelined(arguments, "process", **how))
    for number, (done, checkpoint) in enumerate(checkpoints):
        engine = "process" if number == len(checkpoints) // 3 else "cpu"
        rest, _, same_end = run(shuffled, pipelined(arguments, engine, **how), checkpoint)
        assert_same(rest, batches[done:])
        assert_same(same_end, end)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own
def test_torchdatas_loader_goes_on_with_the_batches_read_ahead():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def examples(checkpoint=None):
        torch.manual_seed(5)
        model = network()
        loader = SelectiveLoader(
            stateful(dataset(), batch_size=8, shuffle=True), model, F.cross_entropy,
            keep=0.5, batch_size=5, scorer=Pipelined("cpu", depth=2),
        )  # fmt: skip
        if checkpoint:
            loader.load_state_dict(checkpoint)
        batches, checkpoints = [], []
        while loader.epoch < EPOCHS:
            for batch in loader:
                batches.append(batch)
                checkpoints.append(loader.state_dict())
        return batches, checkpoints

    batches, checkpoints = examples()
    for done, checkpoint in enumerate(checkpoints, start=1):
        assert_same(examples(checkpoint)[0], batches[done:])


def test_a_used_scorer_takes_up_a_state_from_before_anything_was():
    scorer = Pipelined("cpu", depth=2, sync_every=2)
    expected, weights, _ = trained(Pipelined("cpu", depth=2, sync_every=2))
    trained(scorer)
    scorer.close()
    scorer.load_state_dict(Pipelined("cpu").state_dict())
    given, same_weights, _ = trained(scorer)
    assert_same(given, expected)
    assert_same(same_weights, weights)


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
    loader = SelectiveLoader(
        numbered(torch.arange(8.0), 4), model(), losses=losses, keep=1, scorer=Pipelined("process")
    )
    with pytest.raises(ConfigError, match=f"{message} be pickled.*top of a module"):
        list(loader)
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
    scorer = Pipelined("cpu")
    batch = {"loss": torch.ones(2)}
    scorer.score(stated, model, batch)
    model.weight = nn.Parameter(torch.zeros(1, 3))
    scorer.after_step(stated, model, batch)
    with pytest.raises(ReplicaError, match=r"weight 0 .* shape \(1, 3\) .* replica \(1, 2\)"):
        scorer.score(stated, model, batch)


def test_one_scorer_serves_one_model():
    scorer = Pipelined("cpu")
    batch = {"loss": torch.ones(2)}
    scorer.score(stated, nn.Linear(1, 1), batch)
    with pytest.raises(ConfigError, match="a replica of one model"):
        scorer.score(stated, nn.Linear(1, 1), batch)


def test_a_loss_that_is_not_finite_is_placed_where_it_is_selected_from():
    losses = torch.arange(24.0)
    losses[9] = torch.nan
    loader = SelectiveLoader(
        numbered(losses, 4), nn.Linear(1, 1), losses=stated, keep=1,
        scorer=Pipelined("cpu", depth=3),
    )  # fmt: skip
    with pytest.raises(LossError, match="example 1 in batch 2 of epoch 0 is nan"):
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sync_every": 0}, "sync_every=0: give a whole number, at least 1"),
        ({"depth": -1}, "depth=-1: give a whole number, at least 0"),
        ({"depth": 1.5}, r"depth=1\.5"),
        ({"threads": 0}, "threads=0"),
        ({"engine": "cpu", "threads": 2}, "threads=2 are those of a process"),
        ({"timeout": 0}, "timeout=0: give seconds, more than 0"),
        ({"engine": "thread"}, "engine='thread' cannot be used"),
        ({"engine": "cuda:99"}, "engine='cuda:99' cannot be used"),
        ({"scorer": Pipelined("cpu")}, "none without a state of its own"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Pipelined(**arguments)


# Batches on their way


def squares(model, batch):
    """Sums over whatever lengths there are, of dictionaries with all kinds of parts."""
    assert batch["name"] == [f"example {n}" for n in batch["number"].tolist()]
    assert isinstance(batch["array"], np.ndarray)
    return batch["x"].double().square().flatten(1).sum(1).float() + torch.from_numpy(batch["array"])


def test_batches_of_all_kinds_and_lengths_are_scored_in_the_process():
    scorer = Pipelined("process", depth=2)
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
    for ahead in (batches[:3], batches[3:]):
        for batch in ahead:
            scorer.submit(squares, model, batch)
        for batch in ahead:
            assert scorer.collect().equal(squares(model, batch))
    scorer.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("depth", "sync_every"), [(0, 1), (2, 3)])
@pytest.mark.parametrize("engine", ["cuda", "process"])
def test_an_accelerator_selects_with_the_weights_it_should(engine, depth, sync_every):
    results = []
    for replica in (engine, "cpu"):
        model, selector = Steps().cuda(), Recording()
        scorer = Pipelined(replica, depth=depth, sync_every=sync_every)
        source = numbered(torch.arange(4000.0), 40)
        loader = SelectiveLoader(
            source, model, losses=steps_made, selector=selector, scorer=scorer, device="cuda"
        )
        for batch in loader:
            assert batch["loss"].is_cuda
            model.add_one()
        results.append((torch.stack(selector.seen).cpu(), list(scorer.lags)))
        assert scorer.seconds_sync > 0
        scorer.close()
    assert_same(*results)
