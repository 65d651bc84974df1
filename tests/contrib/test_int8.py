"""Scores from a copy of the model in 8-bit integers."""

import copy

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from pictures import CLASSES, CROSS_ENTROPY, batch, change, network, trained
from siftback import Fresh
from siftback.contrib import Int8
from siftback.contrib.int8 import HAS_VNNI, Int8Layer, has_kernel
from siftback.errors import ConfigError


def rounded_by_hand(x, weight):
    """The inputs and weights that an 8-bit layer multiplies, as floats."""
    step = (max(float(x.max()), 0) - min(float(x.min()), 0)) / 255
    zero = round(-min(float(x.min()), 0) / step)
    most = 255
    if not HAS_VNNI:
        step, zero, most = 2 * step, zero // 2, 127
    inputs = ((x / step + zero).round().clamp(0, most) - zero) * step
    steps = [kernel.abs().max() / 127 for kernel in weight]
    return inputs, torch.stack([(w / s).round() * s for w, s in zip(weight, steps, strict=True)])


LAYERS = {
    "linear": (nn.Linear(6, 5), (7, 6)),
    "linear over tokens": (nn.Linear(6, 5, bias=False), (7, 3, 6)),
    "convolution": (nn.Conv2d(3, 5, 3, padding=1), (7, 3, 8, 8)),
    "strided, dilated": (
        nn.Conv2d(4, 6, 3, 2, padding=(1, 2), dilation=2, bias=False),
        (7, 4, 8, 8),
    ),
    "grouped": (nn.Conv2d(4, 8, 3, groups=4), (7, 4, 8, 8)),
}


@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("shift", [0, 3, -3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_layer_in_8_bits_multiplies_rounded_numbers(layer, shape, shift, channels_last):
    torch.manual_seed(0)
    x = torch.randn(shape) + shift
    rounded, weight = rounded_by_hand(x, layer.weight.detach())
    if channels_last and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    quantised = Int8Layer(layer, static=False)
    twin = copy.deepcopy(layer)
    twin.weight.data = weight
    torch.testing.assert_close(quantised(x), twin(rounded), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(quantised.weight, weight)


def test_what_is_not_finite_spoils_its_own_example_alone():
    model, (images, targets) = trained(network()), batch(100)
    images[3, 0, 0, 0] = torch.nan
    scores = Int8().score(CROSS_ENTROPY, model, (images, targets), None)
    exact = Fresh().score(CROSS_ENTROPY, model, (images, targets), None)
    assert scores.isfinite().logical_not().nonzero().flatten().tolist() == [3]
    others = exact.isfinite()
    assert spearmanr(exact[others], scores[others]).statistic > 0.9


@pytest.mark.parametrize("x", [torch.zeros(3, 6), torch.full((3, 6), 1e-20), torch.zeros(0, 6)])
def test_inputs_without_a_span_are_taken(x):
    layer = nn.Linear(6, 5)
    torch.testing.assert_close(Int8Layer(layer, static=False)(x), layer(x))


def test_inputs_of_half_precision_are_not_rounded_twice():
    torch.manual_seed(0)
    layer, x = Int8Layer(nn.Linear(6, 5), static=False), torch.randn(9, 6).bfloat16()
    torch.testing.assert_close(layer(x), layer(x.float()), rtol=0, atol=0)


def test_a_static_range_is_that_of_the_first_batch_after_a_refresh():
    layer = Int8Layer(nn.Linear(2, 3), static=True)
    layer(torch.tensor([[0.0, 1.0]]))
    cut_off = layer(torch.tensor([[0.0, 5.0]]))
    torch.testing.assert_close(cut_off, layer(torch.tensor([[0.0, 1.0]])))
    layer.copy_(torch.randn(3, 2))
    assert not layer(torch.tensor([[0.0, 5.0]])).equal(layer(torch.tensor([[0.0, 1.0]])))


class Tied(nn.Module):
    """An embedding as the last layer, and a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.middle = nn.Sequential(*[nn.Linear(6, 6)] * 2)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.middle(self.embedding(tokens)))


@pytest.mark.parametrize("every", [1, 2])
def test_tied_weights_and_repeated_layers_are_followed(every):
    torch.manual_seed(0)
    model, scorer = Tied(), Int8(every)
    examples = torch.arange(7), torch.arange(7)
    for _ in range(4):
        exact = Fresh().score(CROSS_ENTROPY, model, examples, None)
        torch.testing.assert_close(
            scorer.score(CROSS_ENTROPY, model, examples, None), exact, rtol=0.1, atol=0.1
        )
        for _ in range(every):
            change(model, 0.3)
            scorer.after_step(CROSS_ENTROPY, model, examples)


def test_layers_that_are_not_what_they_seem_stay_as_they_are():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    assert not has_kernel(Doubled(2, 2))
    assert not has_kernel(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"))
    assert not has_kernel(nn.Conv2d(1, 1, 3, padding="same"))
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model = nn.Sequential(attention, nn.Flatten(), nn.Linear(24, CLASSES))
    examples = torch.randn(20, 3, 8), torch.randint(CLASSES, (20,))
    exact = Fresh().score(CROSS_ENTROPY, model, examples, None)
    scores = Int8().score(CROSS_ENTROPY, model, examples, None)
    torch.testing.assert_close(scores, exact, rtol=0.1, atol=0.1)


def test_a_layer_may_be_the_whole_model():
    model, examples = nn.Linear(3, CLASSES), (torch.randn(9, 3), torch.arange(9) % CLASSES)
    exact = Fresh().score(CROSS_ENTROPY, model, examples, None)
    torch.testing.assert_close(
        Int8().score(CROSS_ENTROPY, model, examples, None), exact, rtol=0.1, atol=0.05
    )


def test_int8_is_refused_where_it_has_no_kernels():
    meta = tuple(part.to("meta") for part in batch(0))
    with pytest.raises(ConfigError, match="kernels are for the CPU"):
        Int8().score(CROSS_ENTROPY, network().to("meta"), meta, None)
    with pytest.raises(ConfigError, match=r"no nn.Linear and no nn.Conv2d in the Flatten"):
        Int8().score(CROSS_ENTROPY, nn.Flatten(), batch(0), None)
