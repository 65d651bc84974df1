"""The user's own reduction: value and gradient are PyTorch's own, of the kept rows."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import siftback
from siftback import (
    Epochs,
    InfoBatch,
    Memory,
    NoiseGuard,
    Percentile,
    SelectiveLoader,
    TopK,
    Unbiased,
    per_example,
)
from siftback.errors import ConfigError, LossError
from siftback.rules.rule import EpochRule

N, CLASSES, FEATURES = 8, 4, 6
WEIGHT = torch.tensor([0.5, 1.0, 3.0, 9.0])
LABELS = torch.tensor([0, 1, 2, 3, 0, 3, 1, 2])
SOME = torch.tensor([0, -100, 2, 3, -100, 3, 1, 2])  # two are ignored
TOKENS = torch.randint(CLASSES, (N, 5), generator=torch.Generator().manual_seed(1))
PADDED = TOKENS.masked_fill(
    torch.arange(5) >= torch.tensor([5, 1, 3, 2, 5, 4, 0, 1])[:, None], -100
)
PIXELS = TOKENS[:, :4].reshape(N, 2, 2)
REAL = torch.rand(N, CLASSES, generator=torch.Generator().manual_seed(2))
BINARY = (REAL > 0.5).float()
SIGNS = BINARY * 2 - 1


def single_pass(*arguments: Any, **options: Any) -> nn.Module:
    """A single pass; naming it here would import PyTorch's compiler as tests are collected."""
    return siftback.SinglePass(*arguments, **options)


class Scale(nn.Module):
    """Multiplies the outputs of a linear layer into the shape of a loss's outputs."""

    def __init__(self, *shape: int, final: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(FEATURES, torch.Size(shape).numel() if shape else 1)
        self.shape, self.final = shape, final

    def forward(self, x: Tensor) -> Tensor:
        return self.final(self.linear(x).reshape(len(x), *self.shape))


class Focal(nn.Module):
    """A loss of the user's, which reduces as PyTorch's do."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, targets, reduction="none")
        each = (1 - (-each).exp()) ** 2 * each
        if self.reduction == "none":
            return each
        return each.mean() if self.reduction == "mean" else each.sum()


def logarithm(x: Tensor) -> Tensor:
    return x.log_softmax(1)


def functional(fn: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    return functools.partial(fn, **options)


class Case(NamedTuple):
    loss_fn: Callable[..., Tensor]
    targets: Tensor
    shape: tuple[int, ...] = (CLASSES,)
    final: Callable[[Tensor], Tensor] = torch.nn.Identity()

    @property
    def model(self) -> nn.Module:
        return Scale(*self.shape, final=self.final)


def cross_entropies() -> dict[str, Case]:
    cases = {}
    for reduction in ("mean", "sum"):
        for name, weight in (("plain", None), ("weighted", WEIGHT)):
            for smoothing in (0.0, 0.1):
                options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
                what = f"{name}, {reduction}, smoothing {smoothing}"
                loss_fn = nn.CrossEntropyLoss(**options)
                cases[f"labels, {what}"] = Case(loss_fn, LABELS)
                cases[f"ignored, {what}"] = Case(loss_fn, SOME)
                cases[f"tokens, {what}"] = Case(loss_fn, PADDED, (CLASSES, 5))
                cases[f"probabilities, {what}"] = Case(loss_fn, REAL / REAL.sum(1, keepdim=True))
            options = {"weight": weight, "reduction": reduction}
            nll = nn.NLLLoss(**options)
            cases[f"nll, {name}, {reduction}"] = Case(nll, SOME, final=logarithm)
            cases[f"pixels, {name}, {reduction}"] = Case(
                nn.CrossEntropyLoss(**options, ignore_index=1), PIXELS, (CLASSES, 2, 2)
            )
            cases[f"function, {name}, {reduction}"] = Case(
                functional(F.cross_entropy, **options, ignore_index=2), LABELS
            )
    return cases


def elementwise() -> dict[str, Case]:
    row = torch.rand(CLASSES, generator=torch.Generator().manual_seed(4))
    cases = {}
    for reduction in ("mean", "sum"):
        given = {"reduction": reduction}
        for name, (loss_fn, targets, final) in {
            "mse": (nn.MSELoss(**given), REAL, nn.Identity()),
            "l1": (nn.L1Loss(**given), REAL, nn.Identity()),
            "smooth l1": (nn.SmoothL1Loss(beta=0.3, **given), REAL, nn.Identity()),
            "huber": (nn.HuberLoss(delta=0.3, **given), REAL, nn.Identity()),
            "poisson": (nn.PoissonNLLLoss(**given), REAL, nn.Identity()),
            "soft margin": (nn.SoftMarginLoss(**given), SIGNS, nn.Identity()),
            "hinge": (nn.HingeEmbeddingLoss(**given), SIGNS, nn.Identity()),
            "bce": (nn.BCELoss(row, **given), BINARY, torch.sigmoid),
            "logits": (
                nn.BCEWithLogitsLoss(row, pos_weight=WEIGHT, **given),
                BINARY,
                nn.Identity(),
            ),
            "kl": (nn.KLDivLoss(**given), REAL, logarithm),
            "multi margin": (nn.MultiMarginLoss(weight=WEIGHT, **given), LABELS, nn.Identity()),
            "multi label": (nn.MultiLabelMarginLoss(**given), BINARY.long(), nn.Identity()),
            "multi soft": (nn.MultiLabelSoftMarginLoss(row, **given), BINARY, nn.Identity()),
            "focal": (Focal(**given), LABELS, nn.Identity()),
            "function": (functional(F.mse_loss, **given), REAL, nn.Identity()),
        }.items():
            cases[f"{name}, {reduction}"] = Case(loss_fn, targets, (CLASSES,), final)
        deep = REAL[:, :, None].expand(N, CLASSES, 3)
        cases[f"deep, {reduction}"] = Case(nn.MSELoss(**given), deep, (CLASSES, 3))
        cases[f"flat, {reduction}"] = Case(nn.L1Loss(**given), REAL[:, 0], ())
    cases["batchmean"] = Case(nn.KLDivLoss(reduction="batchmean"), REAL, (CLASSES,), logarithm)
    cases["batchmean function"] = Case(
        functional(F.kl_div, reduction="batchmean"), REAL, (CLASSES,), logarithm
    )
    return cases


CASES = cross_entropies() | elementwise()
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
INPUTS = torch.randn(N, FEATURES, generator=torch.Generator().manual_seed(5))


@pytest.fixture(autouse=True)
def _kl_says_that_its_mean_is_odd():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="reduction: 'mean' divides")
        yield


def gradient(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def loader_of(targets: Tensor, rule: EpochRule | None = None, **options: Any) -> SelectiveLoader:
    data = TensorDataset(INPUTS, targets)
    plain = DataLoader(data, N)
    return SelectiveLoader(plain, memory=rule or Memory(), epochs=2, **options)


def keeping(targets: Tensor) -> SelectiveLoader:
    """A loader that goes on where an example has no valid target, and so no loss to remember."""
    return loader_of(targets, on_nonfinite="keep")


@every
def test_a_watched_loss_is_the_loss_itself_bit_for_bit(case):
    model, loader = case.model, keeping(case.targets)
    watched = loader.watch(case.loss_fn)
    ((x, y),) = loader
    expected = case.loss_fn(model(x), y)
    loss = watched(model(x), y)
    assert loss.equal(expected)
    for found, wanted in zip(gradient(model, loss), gradient(model, expected), strict=True):
        assert found.equal(wanted)
    remembered = loader.memory.values[:, 0]
    torch.testing.assert_close(
        remembered, per_example(case.loss_fn)(model(x), y).detach(), equal_nan=True
    )
    with torch.no_grad():
        assert watched(model(x), y).equal(expected)


class Weighing(EpochRule):
    """A rule with weights that stay what they are."""

    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 1.5, 2.5, 0.25])

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        return self.weights

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Learns nothing, and so requires losses."""


def by_rows(case: Case, model: nn.Module, weights: Tensor) -> Tensor:
    """The weighted loss, slowly: of each row the loss less the loss without it."""
    outputs = model(INPUTS)
    value, total = case.loss_fn(outputs, case.targets), 0.0
    for row in range(N):
        rest = torch.arange(N) != row
        others = case.loss_fn(outputs[rest], case.targets[rest])
        share = divisor(case, rest) / divisor(case, torch.ones(N, dtype=torch.bool))
        term = value - torch.nan_to_num(others) * share
        total = total + weights[row] * term
    return total


def divisor(case: Case, rows: Tensor) -> float:
    """The divisor of PyTorch for the sum of the losses of some rows, from its documentation."""
    loss_fn, targets = case.loss_fn, case.targets[rows]
    options = getattr(loss_fn, "keywords", None) or vars(loss_fn)
    if options["reduction"] == "sum":
        return 1.0
    ignored = options.get("ignore_index", -100)
    of_classes = isinstance(loss_fn, nn.CrossEntropyLoss | nn.NLLLoss)
    of_classes = of_classes or getattr(loss_fn, "func", None) is F.cross_entropy
    if not of_classes or targets.is_floating_point():
        return float(len(targets))  # times a size that is the same for every row
    weight = options.get("weight")
    if weight is None:
        weight = getattr(loss_fn, "weight", None)
    weight = torch.ones(CLASSES) if weight is None else weight
    return float(weight[targets[targets != ignored]].sum())


@every
def test_weights_multiply_the_terms_of_a_watched_loss(case):
    model = case.model
    loader = loader_of(case.targets, Weighing(), on_nonfinite="keep")
    ((x, y),) = loader
    loss = loader.watch(case.loss_fn)(model(x), y)
    expected = by_rows(case, model, Weighing.weights)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(model, loss), gradient(model, expected))


# Each of these is traced, which takes about a second: those of other reductions are marked slow.
FEW = (
    "labels, weighted, mean, smoothing 0.1",
    "ignored, weighted, mean, smoothing 0.0",
    "tokens, weighted, mean, smoothing 0.1",
    "tokens, plain, sum, smoothing 0.0",
    "probabilities, weighted, mean, smoothing 0.1",
    "pixels, plain, mean",
    "function, weighted, mean",
    "logits, mean",
    "focal, sum",
    "deep, sum",
    "batchmean",
)


@pytest.mark.parametrize("keep", [1.0, 0.5])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in FEW else pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
@pytest.mark.sampled(15)
def test_a_single_pass_gives_the_loss_of_the_kept_rows_alone(case, keep):
    model = case.model
    sift = siftback.SinglePass(model, case.loss_fn, selector=TopK(keep=keep))
    loss = sift(INPUTS, case.targets)
    rows = sift.selection.positions
    assert len(rows) == keep * N
    expected = case.loss_fn(model(INPUTS)[rows], case.targets[rows])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(model, loss), gradient(model, expected))
    torch.testing.assert_close(
        sift.losses, per_example(case.loss_fn)(model(INPUTS), case.targets).detach(), equal_nan=True
    )


@pytest.mark.parametrize("name", ["labels, weighted, mean, smoothing 0.0", "mse, sum", "batchmean"])
def test_batches_of_other_sizes_and_one_kept_row_too(name):
    case = CASES[name]
    model = case.model
    sift = siftback.SinglePass(model, case.loss_fn, selector=TopK(keep=0.3))
    sift(INPUTS, case.targets)
    for batch in (1, 2, 5):
        loss = sift(INPUTS[:batch], case.targets[:batch])
        rows = sift.selection.positions
        expected = case.loss_fn(model(INPUTS)[rows], case.targets[rows])
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradient(model, loss), gradient(model, expected))


def test_keeping_all_is_ordinary_training_bit_for_bit_with_class_weights():
    model, plain = Scale(CLASSES), Scale(CLASSES)
    loss_fn = nn.CrossEntropyLoss(WEIGHT)
    sift = siftback.SinglePass(model, loss_fn, keep=1.0)
    for network, step in ((model, sift), (plain, lambda x, y: loss_fn(plain(x), y))):
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        for _ in range(5):
            step(INPUTS, LABELS).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_a_selectors_weights_multiply_the_terms_over_the_divisor_of_the_kept_rows():
    model, loss_fn = Scale(CLASSES), nn.CrossEntropyLoss(WEIGHT)
    sift = siftback.SinglePass(model, loss_fn, selector=Unbiased(Percentile(keep=0.5)))
    loss = sift(INPUTS, LABELS)
    rows, weights = sift.selection
    assert weights.ne(1).any()
    each = F.cross_entropy(model(INPUTS), LABELS, WEIGHT, reduction="none")[rows]
    torch.testing.assert_close(loss, (each * weights).sum() / WEIGHT[LABELS[rows]].sum())


def test_an_example_without_a_valid_target_is_selected_last():
    model = Scale(CLASSES)
    sift = siftback.SinglePass(model, nn.CrossEntropyLoss(), selector=TopK(keep=0.75))
    loss = sift(INPUTS, SOME)
    assert loss.isfinite()
    assert sift.selection.positions.tolist() == SOME.ne(-100).nonzero().flatten().tolist()


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_rows_without_a_valid_target_have_a_loss_of_0(weight):
    rare = torch.full((N,), -100).index_fill_(0, torch.tensor([6]), 1)
    model = Scale(CLASSES)
    sift = siftback.SinglePass(
        model, nn.CrossEntropyLoss(weight), selector=siftback.Uniform(keep=0.25)
    )
    found = set()
    for _ in range(12):
        loss = sift(INPUTS, rare)
        is_kept = 6 in sift.selection.positions
        found.add(is_kept)
        each = nn.CrossEntropyLoss(weight)(model(INPUTS[6:7]), rare[6:7])
        torch.testing.assert_close(loss, each if is_kept else torch.zeros(()))
        assert all(part.isfinite().all() for part in gradient(model, loss))
    assert found == {True, False}


# Losses of three and four arguments.


def several() -> dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], tuple[Any, ...]]]]:
    positive, negative, var = REAL + 0.1, REAL - 0.3, REAL + 0.5
    lengths = torch.tensor([2, 1, 2, 2, 1, 2, 1, 1])
    sequences = torch.randint(1, CLASSES, (N, 2), generator=torch.Generator().manual_seed(6))

    def probabilities(x: Tensor) -> Tensor:
        return x[None].expand(5, N, CLASSES).log_softmax(2)

    cases: dict[str, Any] = {}
    for reduction in ("mean", "sum"):
        given = {"reduction": reduction}
        cases |= {
            f"gaussian, {reduction}": (
                nn.GaussianNLLLoss(**given),
                lambda x: (x, REAL, var),
            ),
            f"triplet, {reduction}": (
                nn.TripletMarginLoss(**given),
                lambda x: (x, positive, negative),
            ),
            f"triplet of a distance, {reduction}": (
                nn.TripletMarginWithDistanceLoss(**given),
                lambda x: (x, positive, negative),
            ),
            f"cosine, {reduction}": (
                nn.CosineEmbeddingLoss(**given),
                lambda x: (x, positive, SIGNS[:, 0]),
            ),
            f"ranking, {reduction}": (
                nn.MarginRankingLoss(**given),
                lambda x: (x[:, 0], x[:, 1], SIGNS[:, 0]),
            ),
            f"ctc, {reduction}": (
                nn.CTCLoss(**given),
                lambda x: (probabilities(x), sequences, torch.full((N,), 5), lengths),
            ),
            f"ctc function, {reduction}": (
                functools.partial(F.ctc_loss, **given),
                lambda x: (probabilities(x), sequences, (5,) * N, tuple(lengths.tolist())),
            ),
        }
    return cases


SEVERAL = several()


@pytest.mark.parametrize(("loss_fn", "arguments"), SEVERAL.values(), ids=SEVERAL)
def test_losses_of_more_than_two_arguments_are_watched(loss_fn, arguments):
    model, loader = Scale(CLASSES), loader_of(LABELS)
    ((x, _),) = loader
    loss, expected = loader.watch(loss_fn)(*arguments(model(x))), loss_fn(*arguments(model(x)))
    assert loss.equal(expected)
    assert all(map(torch.equal, gradient(model, loss), gradient(model, expected)))

    loader = loader_of(LABELS, Weighing())
    ((x, _),) = loader
    loss = loader.watch(loss_fn)(*arguments(model(x)))
    each = per_example(loss_fn)(*arguments(model(x)))
    total = (each * Weighing.weights).sum()
    reduction = getattr(loss_fn, "reduction", None) or loss_fn.keywords["reduction"]
    expected = total if reduction == "sum" else total / N
    torch.testing.assert_close(loss, expected)
    plain = each.sum() if reduction == "sum" else each.mean()
    torch.testing.assert_close(plain, loss_fn(*arguments(model(x))))


@pytest.mark.parametrize("make", [single_pass, functools.partial(SelectiveLoader, [])])
@pytest.mark.parametrize("loss_fn", [nn.GaussianNLLLoss(), nn.TripletMarginLoss(), F.ctc_loss])
def test_they_are_refused_where_outputs_and_targets_are_all_there_is(make, loss_fn):
    with pytest.raises(ConfigError, match=r"takes \(.*\).*give losses=fn\(model, batch\)"):
        make(Scale(CLASSES), loss_fn, keep=0.5)


def test_and_following_that_advice_trains():
    each = per_example(nn.TripletMarginLoss())

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return each(model(x), y, y + 1)

    assert siftback.SinglePass(Scale(CLASSES), losses=losses, keep=0.5)(INPUTS, REAL).isfinite()


# Losses of the user's own, and what is refused.


class OfOther(nn.Module):
    """A loss whose mean is not that of its losses."""

    reduction = "mean"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, targets, reduction="none")
        return each if self.reduction == "none" else each.mean() / 7


def test_another_reduction_is_refused_in_the_first_step_where_it_matters():
    with pytest.raises(LossError, match=r"OfOther gives .*one loss per example"):
        siftback.SinglePass(Scale(CLASSES), OfOther(), keep=0.5)(INPUTS, LABELS)
    loader, model = loader_of(LABELS), Scale(CLASSES)
    ((x, y),) = loader
    assert loader.watch(OfOther())(model(x), y).equal(OfOther()(model(x), y))
    loader = loader_of(LABELS, Weighing())
    ((x, y),) = loader
    with pytest.raises(LossError, match=r"OfOther gives .*one loss per example"):
        loader.watch(OfOther())(model(x), y)


def test_a_weighted_square_is_refused_by_a_single_pass():  # PyTorch divides by its weights' sum
    loss_fn = functools.partial(F.mse_loss, weight=REAL)
    with pytest.raises(LossError, match="mse_loss gives"):
        siftback.SinglePass(Scale(CLASSES), loss_fn, keep=0.5)(INPUTS, REAL)


@pytest.mark.parametrize("make", [single_pass, functools.partial(SelectiveLoader, [])])
def test_the_arguments_of_long_ago_are_refused(make):
    with pytest.raises(ConfigError, match=r"size_average=False.*give reduction="):
        make(Scale(), functools.partial(F.cross_entropy, size_average=False), keep=0.5)


def test_targets_may_be_bytes():
    labels = torch.tensor([156, 3, 0, 156, 2, 1, 156, 155], dtype=torch.uint8)  # 156 is -100 too
    loss_fn, model = nn.CrossEntropyLoss(torch.arange(1.0, 158)), Scale(157)
    loader = loader_of(labels, Weighing())
    ((x, y),) = loader
    terms, weights = F.cross_entropy(model(x), y, loss_fn.weight, reduction="none"), loader.weights
    expected = (terms * weights).sum() / (labels + 1.0).sum()
    torch.testing.assert_close(loader.watch(loss_fn)(model(x), y), expected)
    torch.testing.assert_close(per_example(loss_fn)(model(x), y), terms)


class AtCalls(nn.Module):
    """A loss whose reduction is an argument of each call."""

    def forward(self, outputs: Tensor, targets: Tensor, reduction: str = "sum") -> Tensor:
        return F.cross_entropy(outputs, targets, WEIGHT, reduction=reduction)


def test_a_reduction_that_a_module_takes_at_calls_is_its_own():
    model, loader = Scale(CLASSES), loader_of(LABELS)
    ((x, y),) = loader
    assert loader.watch(AtCalls())(model(x), y).equal(AtCalls()(model(x), y))
    sift = siftback.SinglePass(model, AtCalls(), selector=TopK(keep=0.5))
    loss, rows = sift(INPUTS, LABELS), sift.selection.positions
    torch.testing.assert_close(loss, AtCalls()(model(INPUTS[rows]), LABELS[rows]))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_single_pass_says_what_is_wrong_with_outputs_and_targets():
    with pytest.raises(LossError, match=r"\[8, 1\] .* \[8\] were broadcast .*\[:, None\]"):
        siftback.SinglePass(Scale(1), nn.MSELoss(), keep=0.5)(INPUTS, REAL[:, 0])


def test_a_reduction_of_another_name_is_refused():
    loss_fn = Focal("weighted_mean")
    with pytest.raises(ConfigError, match=r"reduction='weighted_mean' of Focal"):
        siftback.SinglePass(Scale(CLASSES), loss_fn, keep=0.5)
    with pytest.raises(ConfigError, match=r"reduction='weighted_mean' of Focal"):
        loader_of(LABELS).watch(loss_fn)


def test_a_loss_of_the_users_own_gives_the_plain_mean():
    def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().sum(1)

    model, loader = Scale(CLASSES), loader_of(REAL)
    ((x, y),) = loader
    expected = absolute(model(x), y).mean()
    assert loader.watch(absolute)(model(x), y).equal(expected)
    torch.testing.assert_close(siftback.SinglePass(model, absolute, keep=1.0)(x, y), expected)
    unreduced = nn.MSELoss(reduction="none")
    loader = loader_of(REAL)
    list(loader)
    torch.testing.assert_close(loader.watch(unreduced)(model(x), y), F.mse_loss(model(x), y))


@pytest.mark.parametrize("loss_fn", [lambda o, t: F.cross_entropy(o, t), F.cross_entropy])
def test_one_number_is_refused_with_a_way_out(loss_fn):
    loader, model = loader_of(LABELS), Scale(CLASSES)
    ((x, y),) = loader
    outputs, targets = (model(x)[0], y[0]) if loss_fn is F.cross_entropy else (model(x), y)
    with pytest.raises(LossError, match=r"gives one number.*the loss function of PyTorch"):
        loader.watch(loss_fn)(outputs, targets)


def test_a_linear_layer_within_the_loss_is_watched():
    newest = [kind for kind in (getattr(nn, "LinearCrossEntropyLoss", None),) if kind]
    for kind in newest:
        torch.manual_seed(7)
        loss_fn = kind(FEATURES, CLASSES)
        loader = loader_of(SOME, Weighing(), on_nonfinite="keep")
        ((x, y),) = loader
        each = per_example(loss_fn)(x, y).nan_to_num()
        torch.testing.assert_close(each.sum() / y.ne(-100).sum(), loss_fn(x, y))
        expected = (each * Weighing.weights).sum() / y.ne(-100).sum()
        torch.testing.assert_close(loader.watch(loss_fn)(x, y), expected)


def test_a_single_pass_has_no_state_of_its_loss_function():
    model = Scale(CLASSES)
    sift = siftback.SinglePass(model, nn.CrossEntropyLoss(WEIGHT), keep=0.5)
    names = {f"model.{name}" for name in model.state_dict()} | {"_extra_state"}
    assert set(sift.state_dict()) == names
    assert not [module for module in sift.modules() if isinstance(module, nn.CrossEntropyLoss)]


def test_a_loss_that_is_not_finite_leaves_the_divisor_too():
    model, loss_fn = Scale(CLASSES), nn.CrossEntropyLoss(WEIGHT)
    loader = loader_of(LABELS, on_nonfinite="drop")
    ((x, y),) = loader
    outputs = model(x).detach()
    outputs[3] = torch.nan
    loss = loader.watch(loss_fn)(outputs.requires_grad_(), y)
    rest = torch.arange(N) != 3
    torch.testing.assert_close(loss, loss_fn(outputs[rest], y[rest]))


AT_CALLS = {
    "ignored": (F.cross_entropy, TOKENS, (CLASSES, 5), {"ignore_index": 2}),
    "weights": (F.cross_entropy, LABELS, (CLASSES,), {"weight": WEIGHT}),
    "both": (F.cross_entropy, TOKENS, (CLASSES, 5), {"weight": WEIGHT, "ignore_index": 1}),
    "smoothed": (F.cross_entropy, LABELS, (CLASSES,), {"label_smoothing": 0.1, "weight": WEIGHT}),
    "sum": (F.cross_entropy, PADDED, (CLASSES, 5), {"reduction": "sum"}),
    "nll": (F.nll_loss, SOME, (CLASSES,), {"weight": WEIGHT}),
    "elements": (F.binary_cross_entropy_with_logits, BINARY, (CLASSES,), {"weight": REAL}),
}


@pytest.mark.parametrize(
    ("function", "targets", "shape", "options"), AT_CALLS.values(), ids=AT_CALLS
)
def test_options_of_a_call_are_those_of_the_loss_function(function, targets, shape, options):
    outputs, bound = torch.randn(N, *shape), functools.partial(function, **options)
    expected = per_example(bound)(outputs, targets)
    found = per_example(function)(outputs, targets, **options)
    torch.testing.assert_close(found, expected, equal_nan=True)
    loaders = [loader_of(LABELS, Weighing(), on_nonfinite="keep") for _ in range(2)]
    for loader in loaders:
        next(iter(loader))
    expected = loaders[0].watch(bound)(outputs, targets)
    torch.testing.assert_close(loaders[1].watch(function)(outputs, targets, **options), expected)


def test_options_of_a_call_may_be_given_by_position():
    outputs = torch.randn(N, CLASSES, 5)
    expected = per_example(nn.CrossEntropyLoss(WEIGHT, ignore_index=2))(outputs, TOKENS)
    found = per_example(F.cross_entropy)(outputs, TOKENS, WEIGHT, None, 2)
    torch.testing.assert_close(found, expected, equal_nan=True)
    with pytest.raises(ConfigError, match="with reduce=False, which overrides its reduction"):
        per_example(F.cross_entropy)(outputs, TOKENS, reduce=False)


@pytest.mark.parametrize(("targets", "shape"), [(LABELS, (CLASSES,)), (TOKENS, (CLASSES, 5))])
def test_a_call_may_ask_for_losses_without_a_reduction(targets, shape):
    for rule, weights in ((Memory(), torch.ones(N)), (Weighing(), Weighing.weights)):
        loader, outputs = loader_of(LABELS, rule), torch.randn(N, *shape)
        next(iter(loader))
        losses = loader.watch(F.cross_entropy)(outputs, targets, reduction="none")
        expected = F.cross_entropy(outputs, targets, reduction="none")
        weights = weights if expected.ndim == 1 else weights[:, None]
        torch.testing.assert_close(losses, expected * weights)


@pytest.mark.parametrize(("targets", "shape"), [(LABELS, (CLASSES,)), (TOKENS, (CLASSES, 5))])
def test_a_call_without_a_reduction_keeps_its_shape_where_a_loss_is_dropped(targets, shape):
    for rule, weights in ((Memory(), torch.ones(N)), (Weighing(), Weighing.weights)):
        loader, outputs = loader_of(LABELS, rule, on_nonfinite="drop"), torch.randn(N, *shape)
        outputs[3] = torch.nan
        next(iter(loader))
        outputs.requires_grad_()
        losses = loader.watch(F.cross_entropy)(outputs, targets, reduction="none")
        expected = F.cross_entropy(outputs, targets, reduction="none")
        weights = weights if expected.ndim == 1 else weights[:, None]
        torch.testing.assert_close(losses, (expected * weights).index_fill(0, torch.tensor(3), 0))


def test_the_loss_given_is_left_as_it_was():
    loss_fn = torch.compile(nn.CrossEntropyLoss(), backend="eager")
    per_example(loss_fn)
    assert loss_fn.reduction == "mean"


def test_infobatch_weighs_the_terms_of_a_sum():
    data = TensorDataset(torch.randn(32, FEATURES), torch.randint(CLASSES, (32,)))
    loader = SelectiveLoader(
        DataLoader(data, 8, shuffle=True), memory=InfoBatch(warmup=Epochs(0)), epochs=4
    )
    model, weighed = Scale(CLASSES), 0
    watched = loader.watch(nn.CrossEntropyLoss(reduction="sum"))
    for _ in range(3):
        for x, y in loader:
            weights = loader.weights.clone()
            expected = (F.cross_entropy(model(x), y, reduction="none") * weights).sum()
            torch.testing.assert_close(watched(model(x), y), expected)
            weighed += int(weights.ne(1).sum())
    assert weighed


def test_a_guard_needs_plain_cross_entropy():
    loader = loader_of(LABELS, Memory(guard=NoiseGuard(CLASSES)))
    for loss_fn in (nn.CrossEntropyLoss(WEIGHT), nn.CrossEntropyLoss(label_smoothing=0.1)):
        with pytest.raises(ConfigError, match=r"CrossEntropyLoss with .*NoiseGuard"):
            loader.watch(loss_fn)
    with pytest.raises(ConfigError, match=r"MSELoss is not minus the log probability"):
        loader.watch(nn.MSELoss())
    loader.watch(nn.CrossEntropyLoss(reduction="sum", ignore_index=2))
