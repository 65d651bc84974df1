"""One loss per example, from the losses that users have."""

import functools
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import siftback
from siftback import (
    Epochs,
    InBatch,
    Indexed,
    Memory,
    Percentile,
    SelectiveLoader,
    TopK,
    per_example,
    sequence_losses,
)
from siftback.errors import ConfigError, LossError
from siftback.losses.per_example import check_losses, resolve_losses
from toys import at_once

torch.manual_seed(0)
LOGITS, CLASSES = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
PIXELS, LABELS = torch.randn(6, 4, 5, 5), torch.randint(4, (6, 5, 5))
REAL, TARGET = torch.randn(6, 3), torch.rand(6, 3)
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0])

# The user's loss, its arguments, and the losses per example in PyTorch's own words.
FUNCTIONS = {
    "functional": (F.cross_entropy, LOGITS, CLASSES),
    "module": (nn.CrossEntropyLoss(), LOGITS, CLASSES),
    "module that sums": (nn.CrossEntropyLoss(reduction="sum"), LOGITS, CLASSES),
    "weights and smoothing": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1), LOGITS, CLASSES),
    "partial": (functools.partial(F.cross_entropy, label_smoothing=0.1), LOGITS, CLASSES),
    "partial that reduces": (functools.partial(F.nll_loss, reduction="sum"), LOGITS, CLASSES),
    "one per pixel": (F.cross_entropy, PIXELS, LABELS),
    "one per output": (nn.MSELoss(), REAL, TARGET),
    "binary": (F.binary_cross_entropy_with_logits, REAL, TARGET),
    "column": (F.l1_loss, REAL[:, :1], TARGET[:, :1]),
    "own function": (lambda outputs, targets: (outputs - targets).abs().sum(1), REAL, TARGET),
}


class Focal(nn.Module):
    """A focal loss of a user's own, whose gamma a loop may change."""

    def __init__(self):
        super().__init__()
        self.gamma, self.reduction = 0.0, "mean"

    def forward(self, outputs, targets):
        losses = F.cross_entropy(outputs, targets, reduction="none")
        losses = (1 - torch.exp(-losses)) ** self.gamma * losses
        return losses.mean() if self.reduction == "mean" else losses


CHANGED = {
    "smoothing": (nn.CrossEntropyLoss, {"label_smoothing": 0.5}),
    "weight": (nn.CrossEntropyLoss, {"weight": WEIGHTS}),
    "own": (Focal, {"gamma": 2.0}),
}


@pytest.mark.parametrize(("kind", "settings"), CHANGED.values(), ids=CHANGED)
def test_settings_of_a_loss_that_change_in_training_are_followed(kind, settings):
    """As where a loop lowers the smoothing from epoch to epoch."""
    loss_fn, expected = kind(), kind()
    losses_of, memory = per_example(loss_fn), Memory()
    data = torch.utils.data.TensorDataset(LOGITS, CLASSES)
    loader = torch.utils.data.DataLoader(data, batch_size=len(data))
    loader = SelectiveLoader(loader, memory=memory, epochs=2)
    criterion, before = loader.watch(loss_fn), losses_of(LOGITS, CLASSES)
    for name, value in settings.items():
        setattr(loss_fn, name, value)
        setattr(expected, name, value)
    expected.reduction = "none"
    losses = expected(LOGITS, CLASSES)
    assert not losses.allclose(before)
    assert losses_of(LOGITS, CLASSES).equal(losses)
    for outputs, targets in loader:
        criterion(outputs.requires_grad_(), targets)
    assert memory.table.values[:, 0].equal(losses)
    assert loss_fn.reduction == "mean"


# Sequences of 5, 2, 1 and no valid positions, and the losses that ignore the rest.
IGNORING = {
    "functional": (F.cross_entropy, -100),
    "partial": (functools.partial(F.nll_loss, ignore_index=3), 3),
    "module": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=0, label_smoothing=0.1), 0),
}


@pytest.mark.parametrize(("loss_fn", "ignored"), IGNORING.values(), ids=IGNORING)
@pytest.mark.parametrize("trailing", [(5,), (5, 2)], ids=["sequences", "images"])
def test_ignored_positions_are_no_part_of_a_loss(loss_fn, ignored, trailing):
    outputs = torch.randn(4, 4, *trailing)
    classes = torch.tensor([index for index in range(4) if index != ignored])
    targets = classes[torch.randint(len(classes), (4, *trailing))]
    for row, valid in enumerate([5, 2, 1, 0]):
        targets[row, valid:] = ignored
    found = per_example(loss_fn)(outputs, targets)
    for row in range(4):
        kept = (targets[row] != ignored).nonzero().tolist()
        each = [
            per_example(loss_fn)(
                outputs[(row, slice(None), *place)][None], targets[(row, *place)][None]
            )
            for place in kept
        ]
        expected = torch.stack(each).mean() if each else torch.tensor(torch.nan)
        torch.testing.assert_close(found[row], expected, equal_nan=True)


class Outputs(NamedTuple):
    logits: torch.Tensor


class Tagger(nn.Embedding):
    """A model of tokens as those of Hugging Face, whose logits are looked up."""

    def forward(self, input_ids):
        return Outputs(super().forward(input_ids))


@pytest.mark.parametrize("wrap", [Outputs, lambda x: {"logits": x}, lambda x: (x, None)])
def test_outputs_that_are_no_tensor_are_refused_with_what_to_give(wrap):
    class Wrapped(nn.Linear):
        def forward(self, x):
            return wrap(super().forward(x))

    model, inputs, targets = Wrapped(4, 4), torch.randn(8, 4), torch.arange(8) % 4
    name = type(wrap(inputs)).__name__
    message = f"cross_entropy was given a {name} in place of a tensor: give losses=fn"
    loader = [(inputs, targets)]
    calls = (
        lambda: per_example(F.cross_entropy)(model(inputs), targets),
        lambda: siftback.SinglePass(model, F.cross_entropy, keep=1 / 2)(inputs, targets),
        lambda: next(iter(SelectiveLoader(loader, model, F.cross_entropy, keep=1 / 2, epochs=3))),
    )
    for call in calls:
        with pytest.raises(LossError, match=message):
            call()


def of_pair(model, batch):
    logits = model(batch["ids"]).logits
    return per_example(F.cross_entropy)(logits.movedim(-1, 1), batch["labels"])


def of_first(model, batch):  # one target per example
    return per_example(F.cross_entropy)(model(batch["ids"][:, 0]).logits, batch["labels"][:, 0])


def of_sequences(model, batch):
    outputs = model(batch["ids"])
    return sequence_losses(outputs, {"labels": batch["labels"]}, shift=False)


def of_next_tokens(model, batch):
    outputs = model(batch["ids"])
    return sequence_losses(outputs, {"labels": batch["labels"]}, shift=True)


def of_classes(model, batch):
    return sequence_losses(model(batch["ids"][:, 0]), {"labels": batch["labels"][:, 0]})


UNKNOWN, SIZE = [1, 4], 8  # the examples without any valid target, in a batch of so many


def partly_labelled():
    """A model, and a batch with some examples that have no target."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, (SIZE, 3), generator=generator)
    labels = torch.randint(4, (SIZE, 3), generator=generator)
    labels[UNKNOWN] = -100
    labels[0, 1:] = -100
    labels[0, 1] = 2
    return Tagger(5, 4), {"ids": ids, "labels": labels, "number": torch.arange(SIZE)}


EACH_LOSS = (of_pair, of_first, of_sequences, of_next_tokens, of_classes)


@pytest.mark.parametrize("losses", EACH_LOSS)
def test_an_example_without_a_valid_target_is_unknown_and_trains_nothing(losses):
    model, batch = partly_labelled()
    known = [row for row in range(SIZE) if row not in UNKNOWN]
    alone = {key: part[known] for key, part in batch.items()}
    expected = losses(model, alone).mean()
    (gradient,) = torch.autograd.grad(expected, model.weight)

    found = losses(model, batch)
    assert found.isnan().nonzero().flatten().tolist() == UNKNOWN
    (whole,) = torch.autograd.grad(found.sum() / len(known), model.weight, retain_graph=True)
    torch.testing.assert_close(whole, gradient)  # though the sum itself is NaN

    rule = Memory(keep=0.5, warmup=Epochs(1))
    data = Indexed([batch], index_of=lambda given: given["number"])
    loader = SelectiveLoader(data, memory=rule, epochs=2, on_nonfinite="drop")
    given = next(iter(loader))
    loss = loader.loss(losses(model, given))
    (dropped,) = torch.autograd.grad(loss, model.weight)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(dropped, gradient)
    assert rule.values[:, 0].isnan().nonzero().flatten().tolist() == UNKNOWN


@pytest.mark.parametrize("losses", EACH_LOSS)
def test_an_example_without_a_valid_target_is_no_easy_one(losses):
    model, batch = partly_labelled()
    for kind in (TopK, Percentile):
        given = {"losses": losses, "exact": True}
        selector = kind(keep=6 / 8)
        with pytest.raises(LossError, match=r"example 1 in .* is nan: .*on_nonfinite"):
            list(SelectiveLoader([batch], model, selector=selector, **at_once(given)))
        given |= {"selector": kind(keep=6 / 8), "on_nonfinite": "drop"}
        (kept,) = SelectiveLoader([batch], model, **at_once(given))
        assert kept["number"].tolist() == [0, 2, 3, 5, 6, 7]
        scores = losses(model, batch)
        in_batch = InBatch(selector=kind(keep=6 / 8))
        with pytest.raises(LossError, match=r"row 1 is nan: .*mask it out"):
            in_batch.select(scores)
        chosen = in_batch.select(scores, ~scores.isnan())
        assert not set(chosen.positions.tolist()) & set(UNKNOWN)


def test_a_single_pass_shows_an_example_without_a_valid_target_and_learns_nothing_of_it():
    model, batch = partly_labelled()
    sift = siftback.SinglePass(model, losses=of_sequences, selector=TopK(keep=1 / 2))
    loss = sift(batch)
    assert loss.isnan()
    rows = [row for row in sift.selection.positions.tolist() if row not in UNKNOWN]
    assert len(rows) == 2
    (found,) = torch.autograd.grad(loss, model.weight)
    (expected,) = torch.autograd.grad(of_sequences(model, batch)[rows].sum() / 4, model.weight)
    torch.testing.assert_close(found, expected)


def test_without_ignored_positions_nothing_changes():
    values = F.cross_entropy(PIXELS, LABELS, reduction="none").flatten(1).mean(1)
    torch.testing.assert_close(per_example(F.cross_entropy)(PIXELS, LABELS), values)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_large_image_in_half_precision_has_the_mean_of_its_pixels(reduction):
    outputs = torch.randn(2, 3, 260, 260).half().requires_grad_()
    targets = torch.randint(3, (2, 260, 260))
    targets[0, :2] = -100
    losses = per_example(nn.CrossEntropyLoss(reduction=reduction))(outputs, targets)
    exact = outputs.detach().float().requires_grad_()
    expected = per_example(F.cross_entropy)(exact, targets)
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=0)
    (found,) = torch.autograd.grad(losses.sum() * 2**12, outputs)
    (right,) = torch.autograd.grad(expected.sum() * 2**12, exact)
    torch.testing.assert_close(found.float(), right, rtol=0.01, atol=1e-4)


def test_targets_that_are_probabilities_ignore_no_position():
    targets = torch.rand(6, 4, 5, 5)
    expected = F.cross_entropy(PIXELS, targets, reduction="none").flatten(1).mean(1)
    torch.testing.assert_close(per_example(F.cross_entropy)(PIXELS, targets), expected)


def test_an_ignored_index_of_targets_of_another_shape_is_refused():
    def per_step(outputs, targets, reduction="mean", ignore_index=-1):
        return outputs.mean(2)

    with pytest.raises(LossError, match=r"\[6, 4\] for targets .*\[6\].*ignore_index=-1"):
        per_example(per_step)(PIXELS.flatten(2), CLASSES)


@pytest.mark.parametrize(("loss_fn", "outputs", "targets"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_loss_is_that_of_the_example_alone(loss_fn, outputs, targets):
    losses = per_example(loss_fn)
    together = losses(outputs, targets)
    alone = [losses(outputs[row : row + 1], targets[row : row + 1]) for row in range(6)]
    assert together.shape == (6,)
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("name", ["functional", "module", "one per pixel", "one per output"])
def test_their_mean_is_the_loss_as_it_was_given(name):
    loss_fn, outputs, targets = FUNCTIONS[name]
    torch.testing.assert_close(
        per_example(loss_fn)(outputs, targets).mean(), loss_fn(outputs, targets)
    )


def test_the_loss_given_is_left_as_it_was():
    loss_fn = nn.CrossEntropyLoss()
    per_example(loss_fn)(LOGITS, CLASSES)
    assert loss_fn.reduction == "mean"
    assert loss_fn(LOGITS, CLASSES).ndim == 0


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (torch.tensor(1.0), r'reduced to one number: .* float\[3\], by reduction="none"'),
        (torch.zeros(2), r"losses=float32\[2\]: give .*float\[3\], one for each example"),
        (torch.zeros(3, 1), r"losses=float32\[3, 1\]: .* averaged over other dimensions"),
        (torch.zeros(3, dtype=torch.int64), r"losses=int64\[3\]: give .*float\[3\]"),
        (torch.zeros(3, dtype=torch.complex64), r"losses=complex64\[3\]: give .*float\[3\]"),
        ([0.1, 0.2, 0.3], r"losses=\[0.1, .*: give a dense tensor, float\[3\]"),
        (None, r"losses=None: give a dense tensor"),
    ],
)
def test_anything_but_a_loss_per_example_is_refused(losses, message):
    with pytest.raises(LossError, match=message):
        check_losses(losses, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_are_float32_and_without_a_graph(dtype):
    losses = check_losses(torch.ones(3, dtype=dtype, requires_grad=True), 3)
    assert losses.dtype == torch.float32
    assert not losses.requires_grad


@pytest.mark.parametrize("given", [(None, None), (F.mse_loss, lambda m, b: b)])
def test_exactly_one_form_is_given(given):
    with pytest.raises(ConfigError, match=r"loss_fn=.* and losses=.*: give one of them, loss_fn\("):
        resolve_losses(*given)
