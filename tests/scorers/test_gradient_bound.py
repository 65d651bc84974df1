"""The norm of the loss's gradient at the outputs: its formulas, its promises, and no trace."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from siftback import GradientBound, SelectiveLoader, TopK, sequence_losses
from siftback.errors import LossError
from siftback.losses.per_example import pair_losses
from toys import AT_ONCE, assert_same, dataset, network, shuffled


def batch_of(count=9):
    return tuple(part[:count] for part in dataset().tensors)


def outputs_of(model, inputs):
    model.eval()
    outputs = model(inputs).detach()
    model.train()
    return outputs


def one_at_a_time(model, batch, loss_fn):
    """By autograd, one example after the other."""
    norms = []
    for output, target in zip(outputs_of(model, batch[0]), batch[1], strict=True):
        leaf = output[None].clone().requires_grad_()
        loss_fn(leaf, target[None]).backward()
        norms.append(float(leaf.grad.norm()))
    return torch.tensor(norms)


def test_of_cross_entropy_it_is_the_norm_of_softmax_minus_target():
    model, batch = network(), batch_of()
    scores = GradientBound().score(pair_losses(F.cross_entropy), model, batch, None)
    outputs = outputs_of(model, batch[0])
    expected = (outputs.softmax(1) - F.one_hot(batch[1], outputs.shape[1])).norm(dim=1)
    torch.testing.assert_close(scores, expected)


def test_of_squared_error_it_is_its_own():
    inputs, targets = torch.randn(7, 4), torch.randn(7, 4)
    scores = GradientBound().score(pair_losses(F.mse_loss), nn.Identity(), (inputs, targets), None)
    torch.testing.assert_close(scores, 2 / 4 * (inputs - targets).norm(dim=1))


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        F.multi_margin_loss,
        lambda outputs, targets: outputs.gather(1, targets[:, None])[:, 0].exp(),
    ],
    ids=["smoothed", "weighted", "margin", "a user's own"],
)
def test_of_any_loss_it_is_that_of_autograd_one_at_a_time(loss_fn):
    model, batch = network(), batch_of()
    if isinstance(loss_fn, nn.CrossEntropyLoss) and loss_fn.weight is not None:
        # Reduced over one example, torch divides by the weight; a loss per example does not.
        each = pair_losses(loss_fn)
        weights = loss_fn.weight[batch[1]]
        expected = one_at_a_time(model, batch, loss_fn) * weights
        torch.testing.assert_close(GradientBound().score(each, model, batch, None), expected)
        return
    scores = GradientBound().score(pair_losses(loss_fn), model, batch, None)
    torch.testing.assert_close(scores, one_at_a_time(model, batch, loss_fn))


def test_it_bounds_the_gradient_of_the_last_layer_in_proportion():
    """With inputs of one norm to the last layer, the bound is that gradient up to a factor."""
    model = nn.Linear(5, 3, bias=False)
    inputs = F.normalize(torch.randn(8, 5, generator=torch.Generator().manual_seed(0)))
    targets = torch.arange(8) % 3
    norms = []
    for x, y in zip(inputs, targets, strict=True):
        model.zero_grad()
        F.cross_entropy(model(x[None]), y[None]).backward()
        norms.append(float(model.weight.grad.norm()))
    model.zero_grad()
    scores = GradientBound().score(pair_losses(F.cross_entropy), model, (inputs, targets), None)
    torch.testing.assert_close(scores, torch.tensor(norms))


@dataclass
class Outputs:
    one: torch.Tensor
    two: torch.Tensor
    places: torch.Tensor


@pytest.mark.parametrize("kind", [dict, Outputs])
def test_outputs_in_parts_count_together(kind):
    def losses(model, batch):
        outputs = model(batch)
        parts = outputs if kind is dict else vars(outputs)
        return parts["one"].square().sum(1) + 3 * parts["two"][:, 0]

    class TwoHeads(nn.Module):
        def forward(self, inputs):
            return kind(one=inputs, two=inputs + 1, places=torch.arange(len(inputs)))

    inputs = torch.randn(6, 2)
    scores = GradientBound().score(losses, TwoHeads(), inputs, None)
    torch.testing.assert_close(scores, (4 * inputs.square().sum(1) + 9).sqrt())


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_it_leaves_no_trace(mode):
    model, batch = network(), batch_of()
    model[2].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    scores = GradientBound(mode).score(pair_losses(F.cross_entropy), model, batch, None)
    assert not scores.requires_grad
    assert_same(dict(model.state_dict()), state)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.get_rng_state().equal(random)
    assert not model._forward_hooks
    assert torch.is_grad_enabled()


def test_losses_that_do_not_come_from_the_outputs_are_an_error():
    def constant(model, batch):
        model(batch[0])
        return torch.ones(9)

    def inner(model, batch):
        *_, last = model.children()
        return last(torch.zeros(9, last.in_features)).sum(1)

    for losses in (constant, inner):
        with pytest.raises(LossError, match="do not depend on the outputs of the model"):
            GradientBound().score(losses, network(), batch_of(), None)


def test_outputs_without_a_row_per_example_are_an_error():
    class Folded(nn.Module):
        def forward(self, inputs):
            return inputs[:2]

    def losses(model, batch):
        return model(batch).sum().expand(4)

    with pytest.raises(LossError, match=r"shape \[2, 3\] and the batch 4 examples"):
        GradientBound().score(losses, Folded(), torch.ones(4, 3), None)


@dataclass
class Logits:
    logits: torch.Tensor


class TinyForSequenceClassification(nn.EmbeddingBag):
    def forward(self, input_ids):
        return Logits(super().forward(input_ids))


def test_losses_may_ask_what_kind_of_model_it_is():
    model, ids = TinyForSequenceClassification(9, 3), torch.arange(8).view(4, 2)
    batch = {"input_ids": ids, "labels": torch.tensor([0, 2, 1, 1])}
    scores = GradientBound().score(sequence_losses, model, batch, None)
    errors = model(ids).logits.softmax(1) - F.one_hot(batch["labels"], 3)
    torch.testing.assert_close(scores, errors.norm(dim=1).detach())


def test_a_loader_selects_by_it():
    model = network()
    loader = SelectiveLoader(
        shuffled(),
        model,
        F.cross_entropy,
        selector=TopK(keep=0.5),
        scorer=GradientBound(),
        schedule=AT_ONCE,
    )
    for inputs, targets in loader:
        assert len(inputs) == len(targets)
    assert (loader.stats.seen, loader.stats.kept) == (44, 22)
