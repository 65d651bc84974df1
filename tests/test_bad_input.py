"""Bad input: what was given, what was expected and what to do, before any training."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from siftback import Schedule, SelectiveLoader, Uniform
from siftback.errors import BatchError, ConfigError, LossError
from toys import assert_same, dataset, given_losses, network, numbered, shuffled

PAIR = {"loss_fn": F.cross_entropy}

ARGUMENTS = {
    "keep above 1": ({"keep": 1.5}, r"keep=1.5: give a share in"),
    "keep of 0": ({"keep": 0}, r"keep=0 is not"),
    "beta below 0": ({"beta": -0.5}, r"beta=-0.5: give a finite number, at least 0"),
    "both": ({"keep": 0.5, "beta": 1}, r"keep=0.5 and beta=1: give one of them"),
    "neither": ({}, r"keep=None and beta=None: give one of them"),
    "selector too": ({"keep": 0.5, "selector": Uniform(keep=0.5)}, r"both a selector and keep"),
    "history": ({"keep": 0.5, "history": 0}, r"history size=0: give an integer, at least 1"),
    "no loss": ({"keep": 0.5, "loss_fn": None}, r"neither of loss_fn and losses given: give"),
    "two losses": ({"keep": 0.5, "losses": given_losses}, r"both of loss_fn and losses given"),
    "batch size": ({"keep": 0.5, "batch_size": 0}, r"batch_size=0: give a whole number"),
    "drop_last": ({"keep": 0.5, "drop_last": "no"}, r"drop_last='no': give False, True or"),
    "mode": ({"keep": 0.5, "mode": "test"}, r"mode='test': give \"eval\" or \"train\""),
    "autocast": ({"keep": 0.5, "autocast": "bf16"}, r"autocast='bf16': give a floating-point"),
    "on_nonfinite": ({"keep": 0.5, "on_nonfinite": "skip"}, r"on_nonfinite='skip': give"),
    "epochs": ({"keep": 0.5, "epochs": 0}, r"epochs=0: give"),
    "no epochs": ({"keep": 0.5, "schedule": Schedule(warmup=0.1)}, r"say how long .* epochs="),
}


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_bad_arguments_are_refused_as_the_loader_is_made(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SelectiveLoader(shuffled(), network(), **(PAIR | arguments))


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
    "unlike sizes": (
        only((INPUTS, TARGETS[:7])), BatchError, r"unlike sizes \(batch\[0\]: 8, batch\[1\]: 7\)",
    ),
    "other device": (
        {"model": network().to("meta")},
        BatchError, r'batch is on cpu and the model on meta: give the loader device="meta"',
    ),
    "triple": (
        only((INPUTS, TARGETS, TARGETS)),
        BatchError, r"a tuple of 3 parts is no \(inputs, targets\) pair; .* losses=fn",
    ),
    "dict for a pair": (only({"x": INPUTS}), BatchError, r"a dict of 1 parts is no .* losses=fn"),
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
    loader = SelectiveLoader(iter(shuffled()), network(), F.cross_entropy, keep=1, batch_size=8)
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
    arguments = {"losses": given_losses, "batch_size": 6, "seed": 3, "beta": 1}
    loader = SelectiveLoader(numbered(losses, 6), nn.Identity(), on_nonfinite=policy, **arguments)
    kept = torch.cat([batch["number"] for batch in loader]).tolist()
    finite = numbered(losses, 6)[0]["number"][losses.isfinite()]
    alone = SelectiveLoader(
        [{"number": finite, "loss": losses[finite]}], nn.Identity(), **arguments
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
