"""The chunked loss of a head against PyTorch's own, in value and gradient."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from siftback.errors import BatchError, ConfigError, LossError
from siftback.language import chunked_cross_entropy, chunked_token_losses
from toys import seeded

TOKENS, WIDTH, CLASSES = (3, 11), 8, 23


class Scaled(nn.Linear):
    """A head that does more than its weight and bias say, as one with an adapter does."""

    def forward(self, inputs):
        return 2 * super().forward(inputs)


def hooked():
    """Returns a head whose weight a hook makes anew at each forward."""
    return prune.random_unstructured(nn.Linear(WIDTH, CLASSES), "weight", 0.5)


def patched():
    """Returns a head whose own forward was replaced, as by frameworks that offload weights."""
    head = nn.Linear(WIDTH, CLASSES)
    head.forward = Scaled(WIDTH, CLASSES).forward
    return head


def problem(dtype=torch.float64, bias=True, dropped=0.4, seed=0):
    generator = seeded(seed)
    hidden = torch.randn(*TOKENS, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    head = nn.Linear(WIDTH, CLASSES, bias=bias, dtype=dtype)
    with torch.no_grad():
        for part in head.parameters():
            part.copy_(torch.randn(part.shape, generator=generator))
    labels = torch.randint(0, CLASSES, TOKENS, generator=generator)
    labels[torch.rand(TOKENS, generator=generator) < dropped] = -100
    return hidden, head, labels


def plain(hidden, head, labels, weights=None):
    losses = F.cross_entropy(head(hidden).flatten(0, 1), labels.flatten(), reduction="none")
    weights = torch.ones_like(losses) if weights is None else weights.flatten()
    return (losses * weights).sum() / (labels != -100).sum()


def gradients(loss, hidden, head):
    return torch.autograd.grad(loss, [hidden, *head.parameters()])


@pytest.mark.parametrize(
    ("bias", "rows", "weighed"),
    list(itertools.product([True, False], [1, 4, 33, None], [True, False])),
)
def test_value_and_gradient_are_those_of_the_plain_loss(bias, rows, weighed):
    hidden, head, labels = problem(bias=bias)
    weights = torch.rand(TOKENS, generator=seeded(7)) if weighed else None
    loss = chunked_cross_entropy(hidden, head, labels, weights=weights, rows=rows)
    expected = plain(hidden, head, labels, weights)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    found = gradients(3 * loss, hidden, head)
    for own, right in zip(found, gradients(3 * expected, hidden, head), strict=True):
        torch.testing.assert_close(own, right, rtol=1e-5, atol=1e-7)
    assert not found[0][labels == -100].any()


def test_a_tied_embedding_gets_the_gradients_of_both_of_its_uses():
    hidden, _, labels = problem(bias=False)
    weight = torch.randn(CLASSES, WIDTH, generator=seeded(4), dtype=torch.float64)
    embedding = nn.Embedding(CLASSES, WIDTH, _weight=weight)
    inputs = torch.randint(0, CLASSES, TOKENS, generator=seeded(5))
    found = []
    for loss_of in (chunked_cross_entropy, lambda own, head, y: plain(own, head_of(head), y)):
        loss = loss_of(embedding(inputs) + hidden, embedding.weight, labels)
        found.append(torch.autograd.grad(loss, embedding.weight)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


def head_of(weight):
    return lambda hidden: hidden @ weight.T


@pytest.mark.parametrize("frozen", ["hidden", "head"])
def test_what_needs_no_gradient_gets_none(frozen):
    hidden, head, labels = problem()
    if frozen == "hidden":
        hidden = hidden.detach()
    else:
        head.requires_grad_(False)
    chunked_cross_entropy(hidden, head, labels).backward()
    assert (hidden.grad is None) == (frozen == "hidden")
    assert all((part.grad is None) == (frozen == "head") for part in head.parameters())
    with torch.no_grad():
        assert not chunked_cross_entropy(hidden, head, labels).requires_grad


@pytest.mark.parametrize(
    ("dtype", "is_half", "factor"),
    [
        (torch.bfloat16, False, 1.0),
        (torch.float16, False, 2.0**16),
        (torch.float16, True, 2.0**16),
    ],
)
def test_under_autocast_it_is_as_near_to_the_exact_loss_as_the_plain_one(dtype, is_half, factor):
    head, generator = nn.Linear(WIDTH, 4000), seeded(3)
    with torch.no_grad():
        for part in head.parameters():
            part.copy_(0.1 * torch.randn(part.shape, generator=generator))
    hidden = torch.randn(2, 300, WIDTH, generator=generator, requires_grad=True)
    labels = torch.randint(4000, (2, 300), generator=generator)
    exact = plain(hidden, head, labels)
    right = gradients(exact, hidden, head)
    with torch.autocast("cpu", dtype):
        inputs = hidden.to(dtype) if is_half else hidden
        loss = chunked_cross_entropy(inputs, head, labels, rows=270)
        usual = F.cross_entropy(head(inputs).float().flatten(0, 1), labels.flatten())
    assert loss.dtype == torch.float32
    assert (loss - exact).abs() <= 2 * (usual - exact).abs() + 1e-5
    for own, other, best in zip(
        gradients(factor * loss, hidden, head),  # as a GradScaler multiplies it
        gradients(factor * usual, hidden, head),
        right,
        strict=True,
    ):
        assert own.dtype == best.dtype
        assert (own / factor - best).norm() <= 1.5 * (other / factor - best).norm() + 1e-8


def test_losses_to_select_by_are_those_of_each_token_and_carry_no_gradient():
    hidden, head, labels = problem(torch.float32)
    losses, mask = chunked_token_losses(hidden, head, labels, rows=4)
    assert mask.equal(labels != -100)
    assert not losses.requires_grad
    usual = F.cross_entropy(head(hidden).flatten(0, 1), labels.flatten(), reduction="none")
    torch.testing.assert_close(losses, usual.detach().view(TOKENS))
    empty = torch.full(TOKENS, -100)
    assert not chunked_token_losses(hidden, head, empty)[0].any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": torch.full(TOKENS, -100)}, BatchError, "all -100: there is no token"),
        ({"labels": torch.full(TOKENS, CLASSES)}, LossError, r"23 to 23, outside of \[0, 23\)"),
        ({"labels": torch.full(TOKENS, -1)}, LossError, "from -1 to -1"),
        (
            {"labels": torch.zeros(3, 10, dtype=torch.int64)},
            LossError,
            r"labels of shape \[3, 10\]",
        ),
        ({"head": nn.Linear(4, CLASSES)}, LossError, r"a head of shape \[23, 4\]"),
        ({"head": nn.Sequential()}, ConfigError, r"head=Sequential\(\): give a torch.nn.Linear"),
        ({"head": Scaled(WIDTH, CLASSES)}, ConfigError, "head=Scaled.*a forward of its own"),
        ({"head": hooked()}, ConfigError, "head=Linear.*without hooks"),
        ({"head": patched()}, ConfigError, "head=Linear.*a forward of its own"),
        ({"head": torch.zeros(3)}, ConfigError, r"head=float32\[3\]"),
        ({"rows": 0}, ConfigError, "rows=0"),
        ({"weights": torch.ones(3)}, LossError, r"weights of shape \[3\] for labels of shape"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, message):
    hidden, head, labels = problem()
    with pytest.raises(error, match=message):
        chunked_cross_entropy(**{"hidden": hidden, "head": head, "labels": labels} | change)


def test_a_head_with_a_parametrized_weight_is_taken_as_it_is():
    hidden, head, labels = problem()
    nn.utils.parametrizations.weight_norm(head)
    loss, expected = chunked_cross_entropy(hidden, head, labels), plain(hidden, head, labels)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    found = gradients(loss, hidden, head)
    for own, right in zip(found, gradients(expected, hidden, head), strict=True):
        torch.testing.assert_close(own, right, rtol=1e-5, atol=1e-7)


def test_a_head_that_does_more_than_its_weight_says_scores_no_tokens():
    hidden, _, labels = problem()
    with pytest.raises(ConfigError, match="head=Scaled"):
        chunked_token_losses(hidden, Scaled(WIDTH, CLASSES), labels)
