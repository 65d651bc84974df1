"""Scores from a copy of the model in fewer bits."""

import copy

import pytest
import torch
from scipy.stats import spearmanr
from test_scoring import assert_untouched, traces
from torch import nn

from pictures import CLASSES, CROSS_ENTROPY, batch, change, network, trained
from siftback import ConfigError, Ema, Fresh, Reduced
from siftback.scorers.int8 import Int8Layer, has_kernel
from siftback.scorers.snapshot import tensors_of
from toys import assert_same

compiling = pytest.mark.filterwarnings("ignore:`torch.jit.script_method:DeprecationWarning")


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
@pytest.mark.parametrize(
    ("scorer", "least"),
    [
        (Reduced("bf16"), 0.99),
        (Reduced("fp16"), 0.999),
        (Reduced("int8"), 0.9),
        (Reduced("int8", activations="static"), 0.9),
    ],
)
def test_scores_rank_as_exact_losses_do(name, scorer, least):
    model, examples = trained(network(name)), batch(100, 200)
    exact = Fresh().score(CROSS_ENTROPY, model, examples)
    reduced = copy.deepcopy(scorer).score(CROSS_ENTROPY, model, examples)
    assert spearmanr(exact, reduced).statistic > least
    assert not reduced.equal(exact)


def cast_by_hand(model, dtype):
    """A copy whose matrices and kernels went through a type and back."""
    twin = copy.deepcopy(model).eval()
    for parameter in twin.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.to(dtype).float()
    return twin


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_copy_gives_what_autocast_gives(dtype):
    model, examples = trained(network()), batch(100)
    precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    expected = Fresh(autocast=dtype).score(CROSS_ENTROPY, model, examples)
    assert_same(Reduced(precision).score(CROSS_ENTROPY, model, examples), expected)
    in_float = Fresh().score(CROSS_ENTROPY, cast_by_hand(model, dtype), examples)
    torch.testing.assert_close(expected, in_float, rtol=0.1, atol=0.1)


def scores_over_steps(scorer, steps=7):
    """Scores of one batch before each step of training, and the models of those moments."""
    model, scores, models = trained(network(), 5), [], []
    torch.manual_seed(0)
    for _ in range(steps):
        models.append(copy.deepcopy(model))
        scores.append(scorer.score(CROSS_ENTROPY, model, batch(100)))
        change(model)
        scorer.after_step(CROSS_ENTROPY, model, batch(0))
    return scores, models


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("every", [1, 3])
def test_the_copy_is_of_every_mth_step(precision, every):
    scorer = Reduced(precision, every)
    scores, models = scores_over_steps(scorer)
    for done, scored in enumerate(scores):
        of_then = models[done - done % every]
        assert_same(scored, Reduced(precision).score(CROSS_ENTROPY, of_then, batch(100)))
    assert scorer.refreshes == len(range(0, len(scores), every))
    assert scorer.seconds_refresh > 0


def test_buffers_of_a_copy_are_of_its_moment():
    model, scorer = network(), Reduced("bf16", 2)
    before = scorer.score(CROSS_ENTROPY, model, batch(0))
    model(batch(1)[0])  # moves BatchNorm's statistics
    scorer.after_step(CROSS_ENTROPY, model, batch(1))
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0)), before)
    scorer.after_step(CROSS_ENTROPY, model, batch(1))
    assert not scorer.score(CROSS_ENTROPY, model, batch(0)).equal(before)


def addresses(model):
    return {t.data_ptr() for t in tensors_of(model).values()}


def test_a_refresh_takes_no_new_memory_and_shares_what_it_can():
    model, scorer = network(), Reduced("bf16")
    scorer.score(CROSS_ENTROPY, model, batch(0))
    twin = scorer._snapshot.model
    before = addresses(twin)
    matrices = {p.data_ptr() for p in model.parameters() if p.ndim > 1}
    assert before & addresses(model) == addresses(model) - matrices
    assert all(p.dtype == torch.bfloat16 for p in twin.parameters() if p.ndim > 1)
    assert all(t.dtype != torch.bfloat16 for t in tensors_of(twin).values() if t.ndim < 2)
    change(model)
    scorer.after_step(CROSS_ENTROPY, model, batch(0))
    scorer.score(CROSS_ENTROPY, model, batch(0))
    assert addresses(scorer._snapshot.model) == before


def test_a_model_whose_tensors_were_replaced_is_copied_anew():
    model, scorer = network(), Reduced("bf16")
    scorer.score(CROSS_ENTROPY, model, batch(0))
    other = trained(network())
    model.load_state_dict(other.state_dict(), assign=True)
    scorer.after_step(CROSS_ENTROPY, model, batch(0))
    expected = Reduced("bf16").score(CROSS_ENTROPY, other, batch(0))
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0)), expected)


def test_train_mode_scores_with_the_batchs_own_statistics_as_the_model_would():
    model = network()
    model[0][1].eval()
    scorer = Reduced("bf16", mode="train")
    expected = Fresh("train", torch.bfloat16).score(CROSS_ENTROPY, model, batch(0))
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0)), expected)
    model[0][1].train()  # and follows it
    expected = Fresh("train", torch.bfloat16).score(CROSS_ENTROPY, model, batch(0))
    assert_same(scorer.score(CROSS_ENTROPY, model, batch(0)), expected)


def rounded_by_hand(x, weight):
    """The inputs and weights that an 8-bit layer multiplies, as floats."""
    step = (max(float(x.max()), 0) - min(float(x.min()), 0)) / 255
    zero = round(-min(float(x.min()), 0) / step)
    inputs = ((x / step + zero).round().clamp(0, 255) - zero) * step
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
    x, weight = rounded_by_hand(x, layer.weight.detach())
    if channels_last and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    quantised = Int8Layer(layer, static=False)
    twin = copy.deepcopy(layer)
    twin.weight.data = weight
    torch.testing.assert_close(quantised(x), twin(x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(quantised.weight, weight)


def test_what_is_not_finite_spoils_its_own_example_alone():
    model, (images, targets) = trained(network()), batch(100)
    images[3, 0, 0, 0] = torch.nan
    scores = Reduced("int8").score(CROSS_ENTROPY, model, (images, targets))
    exact = Fresh().score(CROSS_ENTROPY, model, (images, targets))
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
    model, scorer = Tied(), Reduced("int8", every)
    examples = torch.arange(7), torch.arange(7)
    for _ in range(4):
        exact = Fresh().score(CROSS_ENTROPY, model, examples)
        torch.testing.assert_close(
            scorer.score(CROSS_ENTROPY, model, examples), exact, rtol=0.1, atol=0.1
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
    exact = Fresh().score(CROSS_ENTROPY, model, examples)
    scores = Reduced("int8").score(CROSS_ENTROPY, model, examples)
    torch.testing.assert_close(scores, exact, rtol=0.1, atol=0.1)


def test_a_layer_may_be_the_whole_model():
    model, examples = nn.Linear(3, CLASSES), (torch.randn(9, 3), torch.arange(9) % CLASSES)
    exact = Fresh().score(CROSS_ENTROPY, model, examples)
    torch.testing.assert_close(
        Reduced("int8").score(CROSS_ENTROPY, model, examples), exact, rtol=0.1, atol=0.05
    )


@compiling
@pytest.mark.parametrize("scorer", [Fresh(compile=True), Reduced("bf16", compile=True)])
def test_compiled_scores_are_those_that_are_not(scorer):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    torch.compiler.reset()
    plain = Fresh() if isinstance(scorer, Fresh) else Reduced("bf16")
    before = traces(model)
    for _ in range(2):
        expected = plain.score(CROSS_ENTROPY, model, batch(0))
        scores = scorer.score(CROSS_ENTROPY, model, batch(0))
        torch.testing.assert_close(scores, expected, rtol=0.02, atol=0.02)
        assert_untouched(model, before)
        change(model)
        before = traces(model)
        for told in (plain, scorer):
            told.after_step(CROSS_ENTROPY, model, batch(0))


@compiling
@pytest.mark.parametrize("scorer", [Reduced("bf16"), Reduced("int8"), Ema(0.5)])
def test_a_compiled_model_is_scored_as_the_one_within(scorer):
    model = trained(network(), 3)
    expected = copy.deepcopy(scorer).score(CROSS_ENTROPY, model, batch(0))
    assert_same(scorer.score(CROSS_ENTROPY, torch.compile(model), batch(0)), expected)


def test_int8_is_refused_where_it_has_no_kernels():
    meta = tuple(part.to("meta") for part in batch(0))
    with pytest.raises(ConfigError, match="kernels are the CPU's"):
        Reduced("int8").score(CROSS_ENTROPY, network().to("meta"), meta)
    with pytest.raises(ConfigError, match=r"no nn.Linear and no nn.Conv2d in the Flatten"):
        Reduced("int8").score(CROSS_ENTROPY, nn.Flatten(), batch(0))
