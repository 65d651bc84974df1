"""Bad input: what was given, what was expected and what to do, before any training."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from siftback import (
    Annealing,
    Fresh,
    Memory,
    Percentile,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Share,
    Uniform,
)
from siftback.errors import BatchError, ConfigError, LossError
from siftback.selectors.uniform import All
from toys import assert_same, dataset, given_losses, network, numbered, shuffled

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
        lambda: {"keep": 0.5, "loss_fn": None}, r"neither of loss_fn and losses given: give",
    ),
    "two losses": (
        lambda: {"keep": 0.5, "losses": given_losses}, r"both of loss_fn and losses given",
    ),
    "no model": (
        lambda: {"keep": 0.5, "model": None}, r"Percentile selects by losses, and no model was giv",
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
        r"counts in shares of training: pass its length as epochs=",
    ),
    "memory without epochs": (lambda: {"memory": Memory()}, r"pass its length as epochs="),
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
        SelectiveLoader(shuffled(), **({"model": network()} | PAIR | arguments()))


def test_two_rules_are_refused():
    sampler = SelectiveSampler(dataset(), Memory(), epochs=2)
    loader = DataLoader(dataset(), 8, sampler=sampler)
    with pytest.raises(ConfigError, match=r"both memory=Memory\(...\) and a SelectiveSampler with"):
        SelectiveLoader(loader, memory=Memory(), epochs=2)


def only(batch):
    return {"loader": [batch]}


INPUTS, TARGETS = dataset(8).tensors
LOSSES = {"loss_fn": None, "losses": given_losses}
BATCHES = {
    "scalar loss": (
        {"loss_fn": lambda outputs, targets: F.cross_entropy(outputs, targets)},
        LossError, r'reduced to one number; .* shape \[8\]: use reduction="none"',
    ),
    "wrong length": (
        {"loss_fn": lambda outputs, targets: outputs[:5, 0]}, LossError, r"shape \[5\]; .*\[8\]",
    ),
    "wrong type": (
        {"loss_fn": lambda outputs, targets: outputs.argmax(1)}, LossError, r"of torch.int64; exp",
    ),
    "no tensor": (
        {"loss_fn": lambda outputs, targets: [0.0] * 8}, LossError, r"the losses are a list; exp",
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
    "no rows": (only((INPUTS, 3)), BatchError, r"batch\[1\] is a int, which has no rows; give a"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), BATCHES.values(), ids=BATCHES)
def test_bad_batches_are_refused_before_any_training(arguments, error, message):
    defaults = {"loader": [(INPUTS, TARGETS)], "model": network(), "keep": 0.5} | PAIR
    loader = SelectiveLoader(**(defaults | arguments))
    with pytest.raises(error, match=message):
        next(iter(loader))
    assert loader.stats.released == 0


def test_a_loader_that_can_be_iterated_only_once_is_named_in_the_second_epoch():
    loader = SelectiveLoader(iter(shuffled()), network(), F.cross_entropy, keep=1, pool=Pool(8))
    assert list(loader)
    with pytest.raises(BatchError, match=r"gave no batch: .* can be iterated once an epoch"):
        list(loader)


def test_progress_of_an_empty_loader_is_none_made():
    loader = SelectiveLoader([], network(), F.cross_entropy, keep=0.5, epochs=2)
    assert loader.progress == 0


@pytest.mark.parametrize(("policy", "numbers"), [("keep", [0, 1, 2, 3, 5]), ("drop", [0, 2, 5])])
def test_non_finite_losses_are_kept_or_dropped_and_counted(policy, numbers):
    nan, inf = torch.nan, torch.inf
    losses = torch.tensor([4.0, nan, 3.0, inf, -inf, 2.0]).nan_to_num(
        neginf=1.0, nan=nan, posinf=inf
    )

    def arguments():
        percentile = Percentile(beta=1)
        return {"losses": given_losses, "pool": Pool(6), "seed": 3, "selector": percentile}

    loader = SelectiveLoader(numbered(losses, 6), nn.Identity(), on_nonfinite=policy, **arguments())
    kept = torch.cat([batch["number"] for batch in loader]).tolist()
    finite = numbered(losses, 6)[0]["number"][losses.isfinite()]
    alone = SelectiveLoader(
        [{"number": finite, "loss": losses[finite]}], nn.Identity(), **arguments()
    )
    chosen = torch.cat([batch["number"] for batch in alone]).tolist()
    assert kept == sorted(
        chosen + ([1, 3] if policy == "keep" else [])
    )  # as if they were not there
    assert loader.stats.nonfinite == 2
    assert (loader.stats.considered, loader.stats.scored) == (6, 6)
    assert_same(loader.state_dict()["selector"], alone.state_dict()["selector"])


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_a_batch_without_any_finite_loss_passes(policy):
    source = numbered(torch.full((6,), torch.nan), 3)
    loader = SelectiveLoader(
        source, nn.Identity(), losses=given_losses, keep=0.5, on_nonfinite=policy
    )
    assert sum(len(batch["number"]) for batch in loader) == (6 if policy == "keep" else 0)


def test_a_loss_that_raises_leaves_the_model_in_its_mode():
    model = network()

    def failing(model, batch):
        raise KeyError("label")

    with pytest.raises(KeyError):
        next(iter(SelectiveLoader(shuffled(), model, losses=failing, keep=0.5)))
    assert all(module.training for module in model.modules())
