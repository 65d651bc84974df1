"""A guard judges labels by losses, and arguments are refused by name."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import siftback
from siftback import (
    Epochs,
    Fresh,
    InBatch,
    Irreducible,
    Kakurenbo,
    Memory,
    NoiseGuard,
    Pool,
    ScoreTable,
    SelectiveLoader,
    SelectiveSampler,
    SinglePass,
    irreducible_losses,
    probe,
)
from siftback.errors import BatchError, ConfigError, LossError, SiftbackError
from siftback.pruning import AUM, Forgetting, el2n, entropy, grand, margin, prune
from siftback.rules.noise_guard import check_cross_entropy

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
WEIGHT = torch.tensor([1.0, 9.0])
NETWORK = nn.Linear(3, 2)


def network():
    torch.manual_seed(1)
    return nn.Linear(3, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SelectiveLoader(plain(), memory=Memory(), epochs=4),
        lambda: SelectiveLoader(plain(), NETWORK, F.cross_entropy, keep=0.5),
        lambda: SelectiveSampler(range(8)),
        lambda: InBatch(keep=0.5),
        lambda: SinglePass(NETWORK, F.cross_entropy, keep=0.5),
        lambda: prune(X[:, 0], 0.5),
    ],
    ids=["a rule", "a scoring pass", "a sampler", "in a batch", "a single pass", "pruning"],
)
def test_a_default_device_other_than_the_cpu_is_refused_at_once(make):
    make()
    with torch.device("meta"), pytest.raises(ConfigError, match=r"made on meta, and .* model.to\("):
        make()


def plain(count=8):
    return DataLoader(TensorDataset(X[:count], Y[:count]), 4)


def rare_class():
    """470 examples of a class and 30 of another, most of which are told apart."""
    generator = torch.Generator().manual_seed(2)
    labels = (torch.arange(500) < 30).long()
    inputs = torch.randn(500, 3, generator=generator) + 1.5 * labels[:, None]
    return TensorDataset(inputs, labels)


def trained(step, epochs=8):
    """A guard, after epochs of a step that records losses and gives the one to train on."""
    guard = NoiseGuard(classes=2)
    rule = Memory(keep=0.5, guard=guard, warmup=Epochs(2))
    data = rare_class()
    loader = SelectiveLoader(DataLoader(data, 50, shuffle=True), memory=rule, epochs=epochs)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(epochs):
        for x, y in loader:
            step(loader, model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return guard, data.tensors[1]


def weighed(outputs, y):
    return F.cross_entropy(outputs, y, WEIGHT, reduction="none")


WEIGHTED_LOSSES = {
    "class weights": weighed,
    "weights of the loop": lambda o, y: F.cross_entropy(o, y, reduction="none") * WEIGHT[y],
    "its own cross-entropy": lambda o, y: (
        -o.log_softmax(1).gather(1, y[:, None]).squeeze(1) * WEIGHT[y]
    ),
    "smoothing": lambda o, y: F.cross_entropy(o, y, reduction="none", label_smoothing=0.3),
    "focal": lambda o, y: (
        (1 - o.softmax(1).gather(1, y[:, None]).squeeze(1)) ** 2
        * F.cross_entropy(o, y, reduction="none")
    ),
    "binary": lambda o, y: F.binary_cross_entropy_with_logits(
        o[:, 0], y.float(), pos_weight=torch.tensor(9.0), reduction="none"
    ),
    "binary, of the loop": lambda o, y: (
        F.binary_cross_entropy_with_logits(o[:, 0], y.float(), reduction="none") * WEIGHT[y]
    ),
}


@pytest.mark.parametrize("losses_of", WEIGHTED_LOSSES.values(), ids=WEIGHTED_LOSSES)
@pytest.mark.parametrize("name", ["loss", "record"])
def test_losses_that_are_no_probabilities_are_refused_in_the_first_step(losses_of, name):
    loader = SelectiveLoader(plain(), memory=Memory(guard=NoiseGuard(2)), epochs=2)
    x, y = next(iter(loader))
    with pytest.raises(ConfigError, match=r"NoiseGuard judges labels by exp\(-loss\).*record"):
        getattr(loader, name)(losses_of(network()(x), y))


PLAIN_LOSSES = {
    "function": lambda o, y: F.cross_entropy(o, y, reduction="none"),
    "equal weights of the batch": lambda o, y: F.nll_loss(o.log_softmax(1), y, reduction="none"),
    "gathered": lambda o, y: -o.log_softmax(1).gather(1, y[:, None]).squeeze(1),
    "ignored": lambda o, y: F.cross_entropy(o, y, reduction="none", ignore_index=1),
    "half": lambda o, y: F.cross_entropy(o.half(), y, reduction="none"),
    "binary": lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.float(), reduction="none"),
    "column": lambda o, y: F.binary_cross_entropy(
        o[:, :1].sigmoid(), y[:, None].float(), reduction="none"
    ).mean(1),
    "tokens": lambda o, y: (
        F.cross_entropy(o[:, :, None].expand(-1, -1, 3), y[:, None].expand(-1, 3), reduction="none")
    ).mean(1),
    "detached": lambda o, y: F.cross_entropy(o, y, reduction="none").detach(),
}


@pytest.mark.parametrize("losses_of", PLAIN_LOSSES.values(), ids=PLAIN_LOSSES)
def test_plain_cross_entropy_is_taken_however_it_is_computed(losses_of):
    check_cross_entropy(losses_of(network()(X), Y))


def test_a_guard_holds_back_no_rare_class_where_that_advice_is_followed():
    def step(loader, outputs, y):
        loader.record(F.cross_entropy(outputs, y, reduction="none"))
        return (weighed(outputs, y) * loader.weights).mean()

    guard, labels = trained(step)
    assert int(labels[guard.held].sum()) <= 5
    with pytest.raises(ConfigError, match="cross-entropy with weights"):
        trained(lambda loader, outputs, y: loader.loss(weighed(outputs, y)))


def loader_in_training(memory=None, **options):
    loader = SelectiveLoader(plain(), memory=memory or Memory(), epochs=2, **options)
    next(iter(loader))
    return loader


ROWS, LOSSES = torch.tensor([0, 1, 2, 3]), torch.tensor([0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, 1.0, 1.0, 1.0], r"weights=\[1.0, .* float\[4\], one for each example"),
        (2.0, r"weights=2.0: give .* float\[4\]"),
        (torch.ones(3), r"weights=float32\[3\]: give float\[4\]"),
        (torch.ones(4, 1), r"weights=float32\[4, 1\]: give float\[4\]"),
        (torch.ones(4, dtype=torch.int64), r"weights=int64\[4\]: give float\[4\]"),
        (torch.tensor([1.0, math.nan, 1.0, 1.0]), r"weights\[1\] is nan: give finite weights"),
        (torch.tensor([1.0, 1.0, math.inf, 1.0]), r"weights\[2\] is inf: give finite weights"),
        (torch.tensor([1.0, 1.0, 1.0, -1.0]), r"weights\[3\] is -1.0: give .* at least 0"),
    ],
)
def test_weights_of_losses(weights, said):
    with pytest.raises(LossError, match=said):
        loader_in_training().loss(LOSSES, indices=ROWS, weights=weights)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"correct": torch.ones(4)}, r"correct=float32\[4\]"),
        ({"correct": [True] * 4}, "correct="),
        ({"correct": torch.ones(3, dtype=torch.bool)}, r"correct=bool\[3\]"),
        ({"confidence": torch.ones(4, dtype=torch.int64)}, r"confidence=int64"),
        ({"confidence": torch.tensor([0.5, math.nan, 0.5, 0.5])}, r"confidence\[1\] is nan"),
        ({"confidence": torch.tensor([0.5, 0.5, 2.0, 0.5])}, r"confidence\[2\] is 2.0"),
        ({"confidence": torch.tensor([-0.5, 0.5, 1.0, 0.5])}, r"confidence\[0\] is -0.5"),
    ],
)
@pytest.mark.parametrize("rule", [Memory, Kakurenbo])
@pytest.mark.parametrize("name", ["loss", "record"])
def test_what_a_loop_found_of_predictions(found, said, rule, name):
    right = {"correct": torch.ones(4, dtype=torch.bool), "confidence": torch.ones(4)}
    with pytest.raises(LossError, match=said):
        getattr(loader_in_training(rule()), name)(LOSSES, **(right | found))


@pytest.mark.parametrize("reduced", ["x", 1, None, 0.0])
@pytest.mark.parametrize("name", ["loss", "record"])
def test_reduced_is_a_flag(name, reduced):
    with pytest.raises(ConfigError, match=r"reduced=.*give True or False"):
        getattr(loader_in_training(), name)(LOSSES, reduced=reduced)


@pytest.mark.parametrize("epoch", [-1, "a", 1.0, None, True])
def test_an_epoch_whose_steps_are_asked_for(epoch):
    with pytest.raises(ConfigError, match=r"epoch=.*give an integer, at least 0"):
        loader_in_training().steps(epoch)


@pytest.mark.parametrize("drop_last", [1, 0, 1.0, None, "all", torch.tensor(True)])
def test_a_pools_drop_last(drop_last):
    with pytest.raises(ConfigError, match=r'drop_last=.*give False, True or "carry"'):
        Pool(8, drop_last)


@pytest.mark.parametrize(
    ("indices", "scores", "said"),
    [
        ([0, 1], torch.ones(2), r"indices=\[0, 1\]"),
        (torch.tensor([0.0, 1.0]), torch.ones(2), r"indices=float32\[2\]"),
        (torch.tensor([True, False]), torch.ones(2), r"indices=bool\[2\]"),
        (torch.tensor(1), torch.ones(1), r"indices=int64\[\]"),
        (torch.tensor([-1]), torch.ones(1), r"range from -1 to -1, outside of \[0, 4\)"),
        (torch.tensor([4]), torch.ones(1), r"range from 4 to 4, outside of \[0, 4\)"),
        (torch.tensor([0, 1]), [1.0, 1.0], r"scores=\[1.0, 1.0\]"),
        (torch.tensor([0, 1]), torch.ones(3), r"scores=float32\[3\]"),
        (torch.tensor([0, 1]), torch.ones(2, 2), r"scores=float32\[2, 2\]"),
        (torch.tensor([0, 1]), torch.tensor([True, False]), r"scores=bool\[2\]"),
        (torch.tensor([0, 1]), torch.ones(2, dtype=torch.complex64), r"scores=complex64\[2\]"),
    ],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_what_a_table_records(indices, scores, said, mapped, tmp_path):
    table = ScoreTable(4, path=tmp_path / "scores" if mapped else None)
    with pytest.raises(BatchError, match=said):
        table.record(indices, scores)
    assert table.scores().isnan().all()


def test_a_column_of_a_table():
    with pytest.raises(ConfigError, match="column=2 of 2 columns"):
        ScoreTable(4, columns=2).record(ROWS, LOSSES, column=2)


class Frozen(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.requires_grad_(False)


class NotANumber(nn.Linear):
    def forward(self, x):
        return super().forward(x) * math.nan


DATA = TensorDataset(X, Y)
probing = functools.partial(probe, network(), plain(), F.cross_entropy, seconds=0.01)

REFUSED = {
    "frozen": (
        lambda: siftback.SinglePass(Frozen(), F.cross_entropy, keep=0.5)(X, Y),
        r"Frozen depends on requires a gradient",
    ),
    "frozen without a check": (
        lambda: siftback.SinglePass(Frozen(), F.cross_entropy, keep=0.5, check=False)(X, Y),
        r"Frozen depends on requires a gradient",
    ),
    "single pass of outputs": (
        lambda: siftback.SinglePass(network(), F.cross_entropy, keep=0.5, outputs="yes"),
        "outputs='yes'",
    ),
    "single pass of check": (
        lambda: siftback.SinglePass(network(), F.cross_entropy, keep=0.5, check=1),
        "check=1",
    ),
    "irreducible list": (lambda: Irreducible([1.0, 2.0]), "losses="),
    "irreducible integers": (lambda: Irreducible(torch.ones(2).long()), "int64"),
    "irreducible scorer": (lambda: Irreducible(torch.ones(2), "Fresh"), "scorer='Fresh'"),
    "irreducible class": (lambda: Irreducible(torch.ones(2), Fresh), "scorer=Fresh"),
    "irreducible model": (
        lambda: irreducible_losses(None, plain(), F.cross_entropy),
        "model=None",
    ),
    "el2n": (lambda: el2n(network(), DATA, batch_size=0), "batch_size=0"),
    "margin": (lambda: margin(network(), DATA, batch_size=True), "batch_size=True"),
    "entropy": (lambda: entropy(network(), DATA, batch_size=2.5), "batch_size=2.5"),
    "grand": (lambda: grand(network(), DATA, batch_size=-1), "batch_size=-1"),
    "grand chunks": (lambda: grand(network(), DATA, chunk_size=0), "chunk_size=0"),
    "scores of no model": (lambda: el2n(None, DATA), "models=None"),
    "scores of a name": (lambda: el2n("resnet", DATA), "models='resnet'"),
    "scores of names": (lambda: el2n(["resnet"], DATA), r"models=\['resnet'\]"),
    "forgetting": (lambda: Forgetting(2).update([0, 1], Y[:2] > 0), r"indices=\[0, 1\]"),
    "forgetting list": (lambda: Forgetting(2).update(Y[:2], [True, False]), "correct="),
    "aum logits": (lambda: AUM(2).update(Y[:2], [[1.0, 2.0]], Y[:2]), "logits="),
    "aum labels": (lambda: AUM(2).update(Y[:2], X[:2], [0, 1]), "labels="),
    "window": (lambda: prune(X[:, 0], window=0.5), "window=0.5"),
    "window of words": (lambda: prune(X[:, 0], window=("a", "b")), "window="),
    "window of nan": (lambda: prune(X[:, 0], window=(0.1, math.nan)), "window="),
    "pruning bools": (lambda: prune(Y > 0, drop=0.5), "scores=bool"),
    "probe of no model": (lambda: probe(None, plain(), F.cross_entropy), "model=None"),
    "probe share": (lambda: probing(keep=0.5), "keep=0.5"),
    "probe word": (lambda: probing(keep="half"), "keep='half'"),
    "probe flag": (lambda: probing(single_pass="no"), "single_pass='no'"),
    "probe scorers": (lambda: probing(scorers=[Fresh()]), "scorers="),
    "probe optimizer": (lambda: probing(optimizer="sgd"), "optimizer='sgd'"),
    "probe autocast": (lambda: probing(autocast="bfloat16"), "autocast='bfloat16'"),
    "probe seed": (lambda: probing(seed="a"), "seed='a'"),
    "probe of nan": (
        lambda: probe(NotANumber(3, 2), plain(), F.cross_entropy, single_pass=False, seconds=0.01),
        "loss of example 0 of a batch is not finite",
    ),
    "in a batch": (lambda: InBatch(keep=0.5).select([0.1, 0.2]), "losses="),
    "mask": (lambda: InBatch(keep=0.5).select(LOSSES, [True] * 4), "mask="),
}


@pytest.mark.parametrize(("attempt", "said"), REFUSED.values(), ids=REFUSED)
def test_arguments_are_refused_by_name(attempt, said):
    with pytest.raises(SiftbackError, match=said):
        attempt()


def test_a_frozen_model_is_evaluated_and_trains_once_it_is_not():
    model = Frozen()
    sift = siftback.SinglePass(model, F.cross_entropy, keep=0.5)
    with torch.no_grad():
        assert sift(X, Y).isfinite()
    model.requires_grad_(True)
    sift(X, Y).backward()
    assert model.weight.grad.abs().sum() > 0
