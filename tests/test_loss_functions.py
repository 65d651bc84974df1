"""One loss per example, from the losses that users have."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from siftback import per_example
from siftback.errors import ConfigError, LossError
from siftback.loss_functions import check, resolve

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
        (torch.tensor(1.0), r'reduced to one number; .*shape \[3\]: use reduction="none"'),
        (torch.zeros(2), r"shape \[2\]; expected one loss per example"),
        (torch.zeros(3, 1), r"shape \[3, 1\]; .* average over the other dimensions"),
        (torch.zeros(3, dtype=torch.int64), r"of torch.int64; .* compute them as float32"),
        (torch.zeros(3, dtype=torch.complex64), r"of torch.complex64"),
        ([0.1, 0.2, 0.3], r"the losses are a list; expected .* a floating-point tensor"),
        (None, r"the losses are a NoneType"),
    ],
)
def test_anything_but_a_loss_per_example_is_refused(losses, message):
    with pytest.raises(LossError, match=message):
        check(losses, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_are_float32_and_without_a_graph(dtype):
    losses = check(torch.ones(3, dtype=dtype, requires_grad=True), 3)
    assert losses.dtype == torch.float32
    assert not losses.requires_grad


@pytest.mark.parametrize(
    ("given", "said"), [((None, None), "neither"), ((F.mse_loss, lambda m, b: b), "both")]
)
def test_exactly_one_form_is_given(given, said):
    with pytest.raises(ConfigError, match=f"{said} of loss_fn and losses given: give"):
        resolve(*given)
