"""The single pass refuses models, arguments and batches that do not fit, by name."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from siftback import Selection, SinglePass, Threshold
from siftback.batches import tree
from siftback.errors import BatchError, ConfigError, GradientError, LossError, TraceError
from siftback.single_pass.row_layout import Unknown, find_layouts
from single_pass_models import CASES, CLASSES, SIDE, Mlp, images
from toys import All

KEEP = 1 / 3


class Layer(nn.Module):
    """A layer given by a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 0:
            return x
        return -x


class NumberBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if float(x.mean()) % 2:
            return x
        return -x


class Fixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(12, 4, -1).flatten(1)


class Filter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x[x[:, 0] > 0].square().sum()


class Similarity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.T).softmax(1) @ x


class Flattened(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 4)[torch.arange(4 * len(x)) // 4 * 4].reshape(len(x), -1)


def with_layer(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    flat = 3 * SIDE**2
    return nn.Sequential(nn.Flatten(), nn.Linear(flat, 16), layer, nn.Linear(16, CLASSES))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (Branch(), "Data-dependent branching"),
        (NumberBranch(), "data-dependent expression"),
        (Fixed(), "fixed at 12"),
        (Filter(), "depends on the data"),
        (Similarity(), "more than one dimension"),
        (Flattened(), "an index counts the tokens of all"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # as it is untraced
def test_a_model_that_cannot_be_traced(layer, why):
    sift = SinglePass(with_layer(layer), F.cross_entropy, keep=KEEP)
    line = type(layer).forward.__code__.co_firstlineno + 1
    with pytest.raises(
        TraceError,
        match=rf"module '2', line {line} of .*{why}.*train this model with SelectiveLoader",
    ):
        sift(*images())


@pytest.mark.parametrize(
    "function",
    [lambda x: x - x.mean(0), lambda x: x + x.roll(1, 0), lambda x: x * x.norm()],
    ids=["mean", "roll", "norm"],
)
def test_a_layer_that_couples_examples_is_named(function):
    sift = SinglePass(with_layer(Layer(function)), F.cross_entropy, keep=KEEP)
    for _ in range(2):  # as where the cell of a notebook is run again
        named = r"depends on the others: 2 \(Layer\).*SelectiveLoader"
        with pytest.raises(GradientError, match=named):
            sift(*images())


class Later(nn.Module):
    couples = False

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.couples else x


def test_a_coupling_that_begins_in_training_is_refused_a_step_later():
    layer = Later()
    sift = SinglePass(with_layer(layer), F.cross_entropy, keep=KEEP, steps_per_epoch=1)
    for layer.couples in (False, False, True):
        sift(*images())
    with pytest.raises(GradientError, match=r"depends on the others: 2 \(Later\)"):
        sift(*images())


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(9, 8, mode=mode)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.bags(words))


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.sampled(3)
def test_bags_of_embeddings_are_refused_where_they_are_trained(mode, is_trained):
    model = Bags(mode)
    model.bags.requires_grad_(is_trained)
    sift = SinglePass(model, F.cross_entropy, keep=KEEP, check=not is_trained)
    words, targets = torch.randint(9, (12, 5)), torch.randint(CLASSES, (12,))
    if is_trained:  # their gradient would read beyond its memory
        with pytest.raises(TraceError, match=r"module itself, line .*bags .* the whole batch"):
            sift(words, targets)
    else:
        sift(words, targets).backward()


class Checkpointed(nn.Sequential):
    """Layers whose forward is run again in the backward, dropout included."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_that_is_drawn_again_in_the_backward_is_refused(dropout):
    layers = Checkpointed(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES))
    sift = SinglePass(nn.Sequential(layers), F.cross_entropy, keep=KEEP, check=not dropout)
    batch = torch.randn(12, 8), torch.randint(CLASSES, (12,))
    if dropout:
        with pytest.raises(TraceError, match=r"module '0', line .*checkpoint has dropout"):
            sift(*batch)
    else:
        sift(*batch).backward()  # after the check of its gradient


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_attention_in_a_checkpoint_is_named():
    layers = Checkpointed(nn.Linear(8, 8), nn.Unflatten(1, (1, 2, 4)), Attention())
    model = nn.Sequential(layers, nn.Flatten(), nn.Linear(8, CLASSES))
    batch = torch.randn(12, 8), torch.randint(CLASSES, (12,))
    with pytest.raises(TraceError, match="checkpoint has dropout, or attention"):
        SinglePass(model, F.cross_entropy, keep=KEEP)(*batch)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["cudnn", "efficient", "flash"])
def test_fused_attention_of_gpus_is_refused_where_it_drops_out(name, dropout):
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")
    masked = () if name == "flash" else (None, True)

    def attend(heads):
        return operator(heads, heads, heads, *masked, dropout)[1]  # what is saved for the backward

    # Such an operator needs no GPU to be traced.
    traced = make_fx(attend, tracing_mode="symbolic")(torch.empty(6, 2, 5, 8, device="meta"))
    *_, saved = find_layouts(traced.graph).by_name.values()
    assert isinstance(saved, Unknown) == (dropout > 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "keep=None and beta=None"),
        ({"keep": 1.5}, "keep=1.5"),
        ({"keep": 0.5, "selector": All()}, "both a selector and keep"),
        ({"keep": 0.5, "losses": CASES["mlp"].losses}, "loss_fn=.* and losses=.*: give one"),
        ({"keep": 0.5, "backend": "fast"}, "backend='fast'"),
    ],
)
def test_arguments_that_make_no_sense(arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        SinglePass(Mlp(), F.cross_entropy, **arguments)


class Independent(All):
    def select(self, scores, generator) -> Selection:
        return super().select(scores, generator)


def test_a_selector_must_keep_as_many_as_it_is_asked_to():
    with pytest.raises(ConfigError, match=r"Independent\.select .* third parameter, count"):
        SinglePass(Mlp(), F.cross_entropy, selector=Independent())
    with pytest.raises(ConfigError, match=r"Threshold\(above=0.5\) does not say how many"):
        SinglePass(Mlp(), F.cross_entropy, selector=Threshold(above=0.5))


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ((torch.zeros(3, 2),), "not an .inputs, targets. pair"),
        ((torch.zeros(3, 2), torch.zeros(2)), "mismatched sizes"),
        (tree.take(images(), torch.arange(0)), "empty batch"),
    ],
)
def test_batches_that_do_not_fit(batch, problem):
    with pytest.raises(BatchError, match=problem):
        SinglePass(Mlp(), F.cross_entropy, keep=KEEP)(*batch)


def test_a_reduced_loss_is_refused():
    sift = SinglePass(Mlp(), lambda outputs, targets: F.cross_entropy(outputs, targets), keep=KEEP)
    with pytest.raises(LossError, match="reduced to one number"):
        sift(*images())
