"""Bad input: what was given, what was expected and what to do, before any training."""

import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import siftback
from siftback import (
    Annealing,
    Epochs,
    Fresh,
    InBatch,
    Memory,
    Percentile,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Share,
    Stale,
    Threshold,
    TopK,
    Uniform,
    per_example,
)
from siftback.errors import BatchError, ConfigError, LossError
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
)

PAIR = {"loss_fn": F.cross_entropy}

ARGUMENTS = {
    "keep above 1": (lambda: {"keep": 1.5}, r"keep=1.5: give a share in"),
    "keep of 0": (lambda: {"keep": 0}, r"keep=0: give a share in \(0, 1\]"),
    "beta below 0": (
        lambda: {"selector": Percentile(beta=-0.5)}, r"beta=-0.5: give a finite number, at least 0",
    ),
    "both": (
        lambda: {"selector": Percentile(keep=0.5, beta=1)}, r"keep=0.5 and beta=1: give one of them"
    ),
    "neither": (lambda: {}, r"nothing says what to keep: give memory=Memory\(\), .* keep= or sel"),
    "selector too": (
        lambda: {"keep": 0.5, "selector": Uniform(keep=0.5)}, r"both a selector and keep",
    ),
    "history": (
        lambda: {"selector": Percentile(keep=0.5, history=0)},
        r"history size=0: give an integer, at least 1",
    ),
    "no loss": (
        lambda: {"keep": 0.5, "loss_fn": None}, r"loss_fn=None and losses=None: give one",
    ),
    "two losses": (
        lambda: {"keep": 0.5, "losses": given_losses}, r"loss_fn=.* and losses=.*: give one of",
    ),
    "no model": (
        lambda: {"keep": 0.5, "model": None}, r"keep=0.5 selects by losses, and no model was giv",
    ),
    "batch size": (lambda: {"keep": 0.5, "pool": Pool(0)}, r"batch_size=0: give an integer"),
    "drop_last": (
        lambda: {"keep": 0.5, "pool": Pool(8, drop_last="no")}, r"drop_last='no': give False, True",
    ),
    "mode": (
        lambda: {"keep": 0.5, "scorer": Fresh("test")}, r"mode='test': give \"eval\" or \"train\"",
    ),
    "autocast": (
        lambda: {"keep": 0.5, "scorer": Fresh(autocast="bf16")},
        r"autocast='bf16': give a floating-point",
    ),
    "on_nonfinite": (lambda: {"keep": 0.5, "on_nonfinite": "skip"}, r"on_nonfinite='skip': give"),
    "on_nonfinite of a rule": (
        lambda: {"memory": Memory(), "epochs": 2, "on_nonfinite": "skip"},
        r"on_nonfinite='skip': give",
    ),
    "epochs": (lambda: {"keep": 0.5, "epochs": 0}, r"epochs=0: give a finite number above 0"),
    "epochs in words": (lambda: {"keep": 0.5, "epochs": "2"}, r"epochs='2': give a finite number"),
    "seed": (lambda: {"keep": 0.5, "seed": -1}, r"seed=-1: give an integer, at least 0"),
    "no epochs": (
        lambda: {"keep": 0.5, "schedule": Schedule(warmup=Share(0.1))},
        r"epochs= is missing: .* counts in shares of the training",
    ),
    "memory without epochs": (
        lambda: {"memory": Memory()}, r"epochs= is missing: .* give the number of its epochs, such",
    ),
    "a class for a rule": (
        lambda: {"memory": Memory}, r"is not an EpochRule: give an instance, such as memory=Mem",
    ),
    "memory and keep": (
        lambda: {"memory": Memory(), "epochs": 2, "keep": 0.5},
        r"both memory=Memory\(...\) and keep= given: the rule chooses",
    ),
    "memory and scorer": (
        lambda: {"memory": Memory(), "epochs": 2, "scorer": Fresh()}, r"and scorer= given",
    ),
    "memory and interrupts": (
        lambda: {"memory": Memory(), "epochs": 2, "schedule": Schedule(interrupt=3)},
        r"interrupt=3 passes whole batches, and Memory leaves examples out before",
    ),
    "annealing what has no share": (
        lambda: {"selector": All(), "epochs": 2, "schedule": Schedule(anneal=Annealing())},
        r"All has no share that a schedule could anneal",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_bad_arguments_are_refused_as_the_loader_is_made(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SelectiveLoader(shuffled(), **at_once({"model": network()} | PAIR | arguments()))


def test_two_rules_are_refused():
    sampler = SelectiveSampler(dataset(), Memory(), epochs=2)
    loader = DataLoader(dataset(), 8, sampler=sampler)
    with pytest.raises(ConfigError, match=r"both memory=Memory\(...\) and a SelectiveSampler"):
        SelectiveLoader(loader, memory=Memory(), epochs=2)


def test_an_empty_data_set_is_refused():
    with pytest.raises(ConfigError, match="a data set of 0 examples: give one that is not empty"):
        SelectiveLoader(DataLoader(INPUTS[:0], 4), memory=Memory(0.5), epochs=2)


def only(batch):
    return {"loader": [batch]}


INPUTS, TARGETS = dataset(8).tensors
LOSSES = {"loss_fn": None, "losses": given_losses}
BATCHES = {
    "scalar loss": (
        {"loss_fn": lambda outputs, targets: F.cross_entropy(outputs, targets)},
        LossError, r'reduced to one number: .* float\[8\], by reduction="none"',
    ),
    "wrong length": (
        {"loss_fn": lambda outputs, targets: outputs[:5, 0]}, LossError, r"losses=float32\[5\]",
    ),
    "wrong type": (
        {"loss_fn": lambda outputs, targets: outputs.argmax(1)}, LossError, r"losses=int64",
    ),
    "no tensor": (
        {"loss_fn": lambda outputs, targets: [0.0] * 8}, LossError, r"losses=\[0.0, .* dense",
    ),
    "not a number": (
        {**LOSSES, **only({"loss": torch.tensor([0.5, torch.nan, torch.inf])})},
        LossError, r'example 1 in batch 0 of epoch 0 is nan: .* on_nonfinite="keep" or "drop"',
    ),
    "infinite": (
        {**LOSSES, **only({"loss": torch.tensor([0.5, 0.1, torch.inf])})},
        LossError, r"example 2 in batch 0 of epoch 0 is inf",
    ),
    "infinite as float32": (
        {**LOSSES, **only({"loss": torch.tensor([1e300], dtype=torch.float64)})},
        LossError, r"example 0 in batch 0 of epoch 0 is inf",
    ),
    "empty batch": (only((INPUTS[:0], TARGETS[:0])), BatchError, r"batch 0 of epoch 0 is empty"),
    "empty loader": ({"loader": []}, BatchError, r"wrapped list gave no batch: give one that is"),
    "mismatched sizes": (
        only((INPUTS, TARGETS[:7])), BatchError,
        r"mismatched sizes \(batch\[0\]: 8, batch\[1\]: 7\)",
    ),
    "triple": (
        only((INPUTS, TARGETS, TARGETS)),
        BatchError, r"a tuple of 3 parts is not an \(inputs, targets\) pair; .* losses=fn",
    ),
    "dict for a pair": (
        only({"x": INPUTS}), BatchError, r"a dict of 1 parts is not an .* losses=fn",
    ),
    "no rows": (only((INPUTS, 3)), BatchError, r"batch\[1\] is a int, which has no rows: give a"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), BATCHES.values(), ids=BATCHES)
def test_bad_batches_are_refused_before_any_training(arguments, error, message):
    defaults = {"loader": [(INPUTS, TARGETS)], "model": network(), "keep": 0.5} | PAIR
    loader = SelectiveLoader(**at_once(defaults | arguments))
    with pytest.raises(error, match=message):
        next(iter(loader))
    assert loader.stats.released == 0


def test_a_loader_that_can_be_iterated_only_once_is_named_in_the_second_epoch():
    loader = SelectiveLoader(
        iter(shuffled()), network(), F.cross_entropy, keep=1, pool=Pool(8), schedule=AT_ONCE
    )
    assert list(loader)
    with pytest.raises(BatchError, match=r"gave no batch: .* can be iterated once an epoch"):
        list(loader)


def test_progress_of_an_empty_loader_is_none_made():
    loader = SelectiveLoader([], network(), F.cross_entropy, keep=0.5, epochs=2, schedule=AT_ONCE)
    assert loader.progress == 0


@pytest.mark.parametrize(("policy", "numbers"), [("keep", [0, 1, 2, 3, 5]), ("drop", [0, 2, 5])])
def test_non_finite_losses_are_kept_or_dropped_and_counted(policy, numbers):
    nan, inf = torch.nan, torch.inf
    losses = torch.tensor([4.0, nan, 3.0, inf, -inf, 2.0]).nan_to_num(
        neginf=1.0, nan=nan, posinf=inf
    )

    def arguments():
        percentile = Percentile(beta=1)
        own = {"losses": given_losses, "pool": Pool(6), "seed": 3, "selector": percentile}
        return own | {"exact": False}

    loader = SelectiveLoader(
        numbered(losses, 6), nn.Identity(), on_nonfinite=policy, **at_once(arguments())
    )
    kept = torch.cat([batch["number"] for batch in loader]).tolist()
    finite = numbered(losses, 6)[0]["number"][losses.isfinite()]
    alone = SelectiveLoader(
        [{"number": finite, "loss": losses[finite]}], nn.Identity(), **at_once(arguments())
    )
    chosen = torch.cat([batch["number"] for batch in alone]).tolist()
    assert kept == sorted(
        chosen + ([1, 3] if policy == "keep" else [])
    )  # as if they were not there
    assert loader.stats.nonfinite == 2
    assert (loader.stats.considered, loader.stats.scored) == (6, 6)
    assert_same(loader.state_dict()["selector"], alone.state_dict()["selector"])


@pytest.mark.filterwarnings("ignore:nothing was kept of epoch 0:UserWarning")
@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_a_batch_without_any_finite_loss_passes(policy):
    source = numbered(torch.full((6,), torch.nan), 3)
    loader = SelectiveLoader(
        source, nn.Identity(), losses=given_losses, keep=0.5, on_nonfinite=policy, schedule=AT_ONCE
    )
    assert sum(len(batch["number"]) for batch in loader) == (6 if policy == "keep" else 0)


def test_a_loss_that_raises_leaves_the_model_in_its_mode():
    model = network()

    def failing(model, batch):
        raise KeyError("label")

    with pytest.raises(KeyError):
        next(iter(SelectiveLoader(shuffled(), model, losses=failing, keep=0.5, schedule=AT_ONCE)))
    assert all(module.training for module in model.modules())


# Classes in place of instances, and strings in place of objects.
KINDS = {
    "memory": (lambda: loader_of(memory=Memory), r"memory=<class .*Memory'> is not an EpochRule"),
    "guard": (lambda: Memory(guard="yes"), r"guard='yes': give a NoiseGuard\(classes\), or None"),
    "table": (lambda: Memory(table="x.bin"), r"table='x.bin': give a ScoreTable"),
    "selector class": (lambda: loader_of(selector=TopK), r"selector=TopK: give .*not the class"),
    "selector without a share": (
        lambda: loader_of(
            selector=types.SimpleNamespace(
                **dict.fromkeys(["select", "state_dict", "load_state_dict"], dict),
                **dict.fromkeys(["needs_scores", "reweights"], True),
            )
        ),
        "selector=.*, without keep: give TopK",
    ),
    "selector name": (lambda: loader_of(selector="topk"), r"selector='topk': give TopK"),
    "selector in batch": (lambda: InBatch(selector=TopK), r"selector=TopK: give .*not the class"),
    "scorer class": (lambda: loader_of(keep=0.5, scorer=Fresh), r"scorer=Fresh: give Fresh\(\),"),
    "scorer name": (lambda: loader_of(keep=0.5, scorer="fresh"), r"scorer='fresh': give Fresh"),
    "scorer of a rule": (lambda: Stale(0.5, scorer=Fresh), r"scorer=Fresh: give Fresh\(\),"),
    "schedule": (lambda: loader_of(keep=0.5, schedule="x"), r"schedule='x': give a Schedule"),
    "pool": (lambda: loader_of(keep=0.5, pool=32), r"pool=32: give a Pool"),
    "model class": (lambda: loader_of(nn.Linear, keep=0.5), r"model=<class .*: give a torch.nn.M"),
    "model function": (lambda: loader_of(len, keep=0.5), r"model=.*: give a torch.nn.Module"),
    "model of one pass": (
        lambda: siftback.SinglePass("m", F.cross_entropy, keep=0.5), r"model='m': give"
    ),
    "loss name": (lambda: loader_of(keep=0.5, loss_fn="ce"), r"loss_fn='ce': give a loss function"),
    "loss class": (
        lambda: loader_of(keep=0.5, loss_fn=nn.CrossEntropyLoss),
        r"loss_fn=CrossEntropyLoss: give .*not the class",
    ),
    "losses": (
        lambda: loader_of(keep=0.5, loss_fn=None, losses="ce"), r"losses='ce': give a function",
    ),
    "exact": (lambda: loader_of(keep=0.5, exact="yes"), r"exact='yes': give True or False"),
    "attach": (lambda: loader_of(keep=0.5, attach=1), r"attach=1: give True or False"),
    "seed": (lambda: loader_of(keep=0.5, seed="x"), r"seed='x': give an integer, at least 0"),
    "large seed": (lambda: loader_of(keep=0.5, seed=2**64), r"give an integer in \[0, 2\*\*63\)"),
    "seed in batch": (lambda: InBatch(keep=0.5, seed=None), r"seed=None: give an integer"),
    "seed of one pass": (
        lambda: siftback.SinglePass(nn.Linear(1, 1), F.mse_loss, keep=0.5, seed=0.5),
        r"seed=0.5: give",
    ),
    "epoch": (lambda: loader_of(keep=0.5).set_epoch(-1), r"epoch=-1: give an integer, at least 0"),
    "no loader": (
        lambda: SelectiveLoader(None, network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE),
        r"loader=None: give a DataLoader",
    ),
    "data set": (
        lambda: SelectiveLoader(dataset(), network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE),
        r"a TensorDataset is a data set: give DataLoader\(dataset, batch_size=...\)",
    ),
    "sampler's data": (lambda: SelectiveSampler(5), r"dataset=5 has no length"),
    "sampler's rule": (lambda: SelectiveSampler(range(5), Memory), r"rule=<class .* instance"),
}  # fmt: skip


def loader_of(model=None, **arguments):
    model = network() if model is None else model
    if "memory" in arguments:
        return SelectiveLoader(shuffled(), epochs=2, **at_once(arguments))
    return SelectiveLoader(shuffled(), model, **at_once({"loss_fn": F.cross_entropy, **arguments}))


@pytest.mark.parametrize(("make", "message"), KINDS.values(), ids=KINDS)
def test_another_kind_of_object_is_refused_as_it_is_given(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_numpy_s_numbers_are_numbers():
    loader = loader_of(
        keep=np.float32(0.5), pool=Pool(np.int64(4)), epochs=np.int64(2), seed=np.int32(1)
    )
    assert len(next(iter(loader))[0]) == 4


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_losses_of_pairs_of_examples_are_refused():
    outputs, targets = torch.zeros(4, 1), torch.zeros(4)
    with pytest.raises(LossError, match=r"\[4, 1\] and targets .* \[4\] were broadcast"):
        per_example(F.mse_loss)(outputs, targets)
    assert per_example(F.mse_loss)(outputs, targets[:, None]).shape == (4,)


def test_a_tuple_of_numbers_is_not_one_per_example():
    batch = (torch.zeros(2, 3), (32, 64))  # two images, and the size of both
    loader = SelectiveLoader(
        [batch], nn.Identity(), losses=lambda m, b: b[0].sum(1), keep=0.5, schedule=AT_ONCE
    )
    with pytest.raises(BatchError, match=r"batch\[1\]\[0\] is a int, which has no rows"):
        list(loader)


def test_a_loader_that_fills_one_buffer_again_loses_nothing():
    buffer = torch.empty(3)

    class Refilling:
        def __iter__(self):
            for start in range(0, 12, 3):
                buffer.copy_(torch.arange(start, start + 3.0))
                yield buffer

    loader = SelectiveLoader(Refilling(), selector=All(), pool=Pool(4))
    given = [batch.clone() for batch in loader]
    assert torch.cat(given).tolist() == list(range(12))


def test_a_schedule_that_never_selects_says_so():
    with pytest.warns(UserWarning, match=r"warmup=Epochs\(5\).* never selects .* epochs=2"):
        loader_of(keep=0.5, epochs=2, schedule=Schedule(warmup=Epochs(5)))


def test_an_epoch_of_which_nothing_is_kept_says_so():
    loader = loader_of(selector=Threshold(above=1e9))
    with pytest.warns(UserWarning, match="nothing was kept of epoch 0"):
        assert list(loader) == []
