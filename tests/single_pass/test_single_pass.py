"""The single pass against plain autograd of the same kept losses, model by model."""

import copy
import functools
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from host_waits import HostWaits
from resuming import check_resumes
from siftback import Percentile, Selection, SinglePass, Uniform
from siftback.errors import GradientError, StateError
from siftback.schedule import StepSchedule
from siftback.selectors.sampling import choose
from single_pass_models import CASES, CLASSES, SIDE, Case, Mlp, N, images, make
from toys import All

KEEP = 1 / 3
Gradients = dict[str, Tensor]


class Reweighted(Uniform):
    """Keeps at random, with weights that differ."""

    def select(self, scores, generator, count=None) -> Selection:
        indices, weights = choose(torch.ones_like(scores), generator, count)
        return Selection(indices, weights + torch.arange(len(indices)))


@functools.cache
def traced(name: str) -> tuple[nn.Module, SinglePass]:
    """A case's model and its single pass, compiled once for all tests."""
    model, _ = make(CASES[name])
    return model, SinglePass(model, losses=CASES[name].losses, keep=KEEP, check=False)


def gradients(model: nn.Module, step: Callable[[], Any]) -> Gradients:
    """The addition of a step to each parameter's gradient; the random state starts again."""
    model.zero_grad()
    torch.manual_seed(1)
    step()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def kept_mean(case: Case, model: nn.Module, batch: Any, selection: Selection) -> Tensor:
    """The same loss by plain autograd."""
    return (case.losses(model, batch)[selection.positions] * selection.weights).mean()


def assert_same(ours: Gradients, theirs: Gradients, tolerance: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    floor = max(float(g.abs().max()) for g in theirs.values()) / 100
    for name, expected in theirs.items():
        scale = max(float(expected.abs().max()), floor)
        assert float((ours[name] - expected).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize("selector", [Percentile, Reweighted, All])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_gradient_is_that_of_the_kept_losses(name, selector, monkeypatch):
    case = CASES[name]
    model, sift = traced(name)
    selector = selector() if selector is All else selector(keep=KEEP)
    monkeypatch.setattr(sift, "selector", selector)
    monkeypatch.setattr(sift, "_schedule", StepSchedule(selector, None, None, None))
    batch = case.batch()
    ours = gradients(model, lambda: sift(batch).backward())
    assert len(sift.selection.positions) == round(selector.keep * N)
    theirs = gradients(model, lambda: kept_mean(case, model, batch, sift.selection).backward())
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["wide_resnet", "gpt"])
def test_gradients_accumulate_in_any_order(name):
    case = CASES[name]
    model, sift = traced(name)
    sift.selector = Percentile(keep=KEEP)
    batches, losses, selections = [case.batch(), case.batch(N // 2), case.batch()], [], []

    def step() -> None:
        for batch in batches:
            losses.append(sift(batch))
            selections.append(sift.selection)
        losses[2].backward()
        (losses[0] + 2 * losses[1]).backward()

    def expected() -> None:
        pairs = zip(batches, selections, strict=True)
        first, second, third = (kept_mean(case, model, *pair) for pair in pairs)
        (first + 2 * second + third).backward()

    ours = gradients(model, step)
    assert_same(ours, gradients(model, expected))


@pytest.mark.parametrize("name", CASES)
def test_a_step_never_waits_for_the_device(name):
    model, sift = traced(name)
    _, batch = make(CASES[name])
    sift(batch).backward()
    compilations = sift.stats.compilations
    with HostWaits(methods=False) as waits:
        sift(batch).backward()
    model.zero_grad()
    assert waits.seen == []
    assert sift.stats.compilations == compilations


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (2, 1), (4, 1), (5, 2), (3 * N, N)])
def test_every_batch_size_needs_one_compilation(count, kept):
    case = CASES["vit"]
    model, sift = traced("vit")
    sift.selector = Percentile(keep=KEEP)
    batch = case.batch(count)
    ours = gradients(model, lambda: sift(batch).backward())
    assert len(sift.selection.positions) == kept
    assert_same(
        ours, gradients(model, lambda: kept_mean(case, model, batch, sift.selection).backward())
    )
    assert sift.stats.compilations <= 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_autocast(name):
    case = CASES[name]
    model, batch = make(case)
    sift = SinglePass(model, losses=case.losses, keep=KEEP)
    with torch.autocast("cpu", torch.bfloat16):
        ours = gradients(model, lambda: sift(batch).backward())
        theirs = gradients(model, lambda: kept_mean(case, model, batch, sift.selection).backward())
    assert sift.losses.dtype == torch.float32
    assert_same(ours, theirs, tolerance=0.05)


def test_a_gradient_scaler_scales():
    case = CASES["mlp"]
    model, batch = make(case)
    sift = SinglePass(model, losses=case.losses, keep=KEEP)
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step() -> None:
        with torch.autocast("cpu", torch.float16):
            loss = sift(batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)

    ours = gradients(model, step)
    theirs = gradients(model, lambda: kept_mean(case, model, batch, sift.selection).backward())
    assert_same(ours, theirs, tolerance=0.05)


@pytest.mark.parametrize("name", ["resnet", "wide_resnet", "mobilenet"])
@pytest.mark.sampled(3)
def test_channels_last(name):
    case = CASES[name]
    model, (inputs, targets) = make(case)
    model.to(memory_format=torch.channels_last)
    batch = inputs.to(memory_format=torch.channels_last), targets
    sift = SinglePass(model, losses=case.losses, keep=KEEP)
    ours = gradients(model, lambda: sift(*batch).backward())
    theirs = gradients(model, lambda: kept_mean(case, model, batch, sift.selection).backward())
    assert_same(ours, theirs)


def test_frozen_parameters_get_no_gradient():
    case = CASES["vit"]
    model, batch = make(case)
    model.patches.requires_grad_(False)
    model.block.requires_grad_(False)
    sift = SinglePass(model, losses=case.losses, keep=KEEP)
    ours = gradients(model, lambda: sift(batch).backward())
    assert not [name for name in ours if name.startswith(("patches", "block"))]
    theirs = gradients(model, lambda: kept_mean(case, model, batch, sift.selection).backward())
    assert_same(ours, theirs)


def test_gradients_reach_inputs():
    case = CASES["mlp"]
    model, (inputs, targets) = make(case)
    inputs.requires_grad_()
    sift = SinglePass(model, losses=case.losses, keep=KEEP)
    wanted = [inputs, *model.parameters()]
    loss = sift(inputs, targets)
    expected = torch.autograd.grad(
        kept_mean(case, model, (inputs, targets), sift.selection), wanted
    )
    for ours, theirs in zip(torch.autograd.grad(loss, wanted), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["wide_resnet", "gpt", "batch_norm"])
def test_keeping_all_is_ordinary_training_bit_for_bit(name):
    case = BATCH_NORM if name == "batch_norm" else CASES[name]
    model, _ = make(case)
    twin = copy.deepcopy(model)
    sift = SinglePass(model, losses=case.losses, keep=1.0, check=name == "gpt")
    train(model, lambda batch: sift(batch), case)
    train(twin, lambda batch: case.losses(twin, batch).mean(), case)
    for ours, theirs in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def train(model: nn.Module, loss_of: Callable[[Any], Tensor], case: Case) -> None:
    """Four steps, with clipping; each batch and its dropout from a seed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for seed in range(4):
        torch.manual_seed(seed)
        loss_of(case.batch()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def test_the_check_leaves_no_trace():
    steps = []
    for check in (True, False):
        model, batch = make(BATCH_NORM)
        sift = SinglePass(model, losses=BATCH_NORM.losses, keep=KEEP, check=check)
        ours = gradients(model, lambda: sift(batch).backward())  # noqa: B023
        assert (sift.gradient_check is not None) == check
        steps.append((ours, dict(model.named_buffers()), sift.selection, torch.get_rng_state()))
    (ours, buffers, selection, state), (others, others_buffers, other, other_state) = steps
    assert torch.equal(state, other_state)
    assert torch.equal(selection.positions, other.positions)
    for one, two in ((ours, others), (buffers, others_buffers)):
        assert all(torch.equal(one[name], two[name]) for name in one | two)


class BatchNorm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(4 * (SIDE - 4) ** 2, CLASSES),
        )


BATCH_NORM = CASES["mlp"]._replace(make=BatchNorm)


class MeansOverKept(torch.autograd.Function):
    """BatchNorm as docs/single_pass.md has it: its backward's means are over kept rows."""

    kept = torch.empty(0, dtype=torch.int64)

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        ctx.std = (var + eps).sqrt()
        ctx.normal = (x - mean) / ctx.std
        ctx.save_for_backward(weight)
        return ctx.normal * weight.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx, gradient):
        (weight,), kept = ctx.saved_tensors, MeansOverKept.kept
        g, normal = gradient[kept], ctx.normal[kept]
        means = g.mean((0, 2, 3), keepdim=True)
        along = (g * normal).mean((0, 2, 3), keepdim=True)
        inputs = torch.zeros_like(gradient)
        inputs[kept] = weight.view(1, -1, 1, 1) / ctx.std * (g - means - normal * along)
        return inputs, (g * normal).sum((0, 2, 3)), g.sum((0, 2, 3)), None


def test_batch_norm_takes_its_means_over_the_kept_rows(monkeypatch):
    model, batch = make(BATCH_NORM)
    before = copy.deepcopy(model)
    sift = SinglePass(model, losses=BATCH_NORM.losses, keep=KEEP)
    ours = gradients(model, lambda: sift(batch).backward())
    assert sift.gradient_check.batch_norms == ("1", "4")
    assert 0.001 < sift.gradient_check.difference < 0.5
    assert sift.gradient_check.cosine > 0.9
    monkeypatch.setattr(MeansOverKept, "kept", sift.selection.positions)

    def formula(self, x):
        return MeansOverKept.apply(x, self.weight, self.bias, self.eps)

    with monkeypatch.context() as patched:
        patched.setattr(nn.BatchNorm2d, "forward", formula)
        loss = functools.partial(kept_mean, BATCH_NORM, before, batch, sift.selection)
        assert_same(ours, gradients(before, lambda: loss().backward()))
    torch.manual_seed(1)
    BATCH_NORM.losses(before, batch)  # moves the running statistics once, over all N rows
    for ours, theirs in zip(model.buffers(), before.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


class Attentive(nn.Module):
    """Keeps its attention for whoever wants to look at it, with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(3 * SIDE, 8), nn.Linear(3 * SIDE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(1, 2).flatten(2)
        queries = self.mix(rows)
        self.attention = (queries @ queries.transpose(1, 2)).softmax(-1)
        return self.head((self.attention @ rows).mean(1))


class Words(nn.Sequential):
    """Has sparse gradients, or rescales rows of its embedding."""

    def __init__(self, **options: Any) -> None:
        layers = nn.Embedding(11, 8, **options), nn.Flatten()
        super().__init__(*layers, nn.Linear(24, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)[:, :3].mul(4).long().remainder(11))


class Scaling(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5).mul_(2))


def indexed(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    return -model(inputs).log_softmax(1)[torch.arange(len(labels)), labels]


def selected(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    outputs, rows = model(inputs), torch.arange(len(labels))
    outputs = outputs.index_select(0, rows) + outputs.gather(0, rows[:, None].expand_as(outputs))
    return F.cross_entropy(outputs.square(), labels, reduction="none")


def popped(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch.pop("y"), reduction="none")


HABITS = {
    "a tensor that is kept": Case(Attentive, images, CASES["mlp"].losses),
    "sparse gradients": Case(lambda: Words(sparse=True), images, CASES["mlp"].losses),
    "weights that are rescaled": Case(lambda: Words(max_norm=1.0), images, CASES["mlp"].losses),
    "inputs that are written to": Case(Scaling, images, CASES["mlp"].losses),
    "numbers of rows": Case(Mlp, images, indexed),
    "rows that are selected": Case(Mlp, images, selected),
    "a dict that is emptied": Case(Mlp, lambda: dict(zip("xy", images(), strict=True)), popped),
}


@pytest.mark.parametrize("case", HABITS.values(), ids=HABITS)
@pytest.mark.sampled(2)
def test_what_models_and_losses_do_besides_changes_nothing(case):
    torch.manual_seed(0)
    model, batch = case.make(), case.batch()
    same, before = copy.deepcopy(batch), copy.deepcopy(model)
    sift = SinglePass(model, losses=case.losses, keep=KEEP)
    ours = gradients(model, lambda: sift(batch).backward())
    theirs = gradients(before, lambda: kept_mean(case, before, same, sift.selection).backward())
    dense = [{n: g.to_dense() for n, g in found.items()} for found in (ours, theirs)]
    assert_same(*dense)
    left = [parts.values() if isinstance(parts, dict) else parts for parts in (batch, same)]
    assert all(map(torch.equal, *left))


def test_a_term_of_a_tensor_that_a_model_keeps_is_refused():
    model = Attentive()
    sift = SinglePass(model, F.cross_entropy, keep=KEEP)
    loss = sift(*images()) + model.attention.square().mean()
    with pytest.raises(GradientError, match=r"other than through the loss.*losses=fn"):
        loss.backward()


def test_it_may_be_compiled_itself():
    (model, batch), (twin, _) = make(CASES["mlp"]), make(CASES["mlp"])
    sift = SinglePass(model, F.cross_entropy, selector=All())
    compiled = torch.compile(sift, backend="eager")
    ours = gradients(model, lambda: compiled(*batch).backward())
    theirs = gradients(twin, lambda: CASES["mlp"].losses(twin, batch).mean().backward())
    assert_same(ours, theirs)


def test_settings_of_a_loss_that_change_in_training_are_followed():
    model, loss_fn = nn.Linear(8, 4), nn.CrossEntropyLoss()
    single_pass = SinglePass(model, loss_fn, keep=1 / 2, check=False, steps_per_epoch=1)
    inputs, targets = torch.randn(16, 8), torch.arange(16) % 4
    smoothings = [("label_smoothing", smoothing) for smoothing in (0.0, 0.5, 0.1)]
    for name, value in (*smoothings, ("reduction", "sum"), ("ignore_index", 2)):
        setattr(loss_fn, name, value)
        loss = single_pass(inputs, targets)
        kept = single_pass.selection.positions
        torch.testing.assert_close(loss, loss_fn(model(inputs[kept]), targets[kept]))


def test_a_hook_that_is_registered_in_training_is_called():
    model = nn.Linear(8, 4)
    single_pass = SinglePass(model, F.cross_entropy, keep=1 / 2, check=False, steps_per_epoch=1)
    inputs, targets = torch.randn(16, 8), torch.arange(16) % 4
    single_pass(inputs, targets)
    for register, hook in (
        (model.register_forward_hook, lambda module, args, output: 3 * output),
        (model.register_forward_pre_hook, lambda module, args: (args[0] + 1,)),
    ):
        register(hook)
        loss = single_pass(inputs, targets)
        kept = single_pass.selection.positions
        torch.testing.assert_close(loss, F.cross_entropy(model(inputs[kept]), targets[kept]))


def test_losses_outputs_and_stats_are_at_hand():
    torch.manual_seed(0)
    model, (inputs, targets) = Mlp(), images()
    sift = SinglePass(model, F.cross_entropy, keep=KEEP, outputs=True)
    loss = sift(inputs, targets)
    expected = model(inputs)
    torch.testing.assert_close(sift.outputs, expected)
    assert not sift.outputs.requires_grad
    losses = F.cross_entropy(expected, targets, reduction="none")
    torch.testing.assert_close(sift.losses, losses)
    assert not sift.losses.requires_grad
    torch.testing.assert_close(loss, losses[sift.selection.positions].mean())
    stats = sift.stats
    assert (stats.seen, stats.kept, stats.compilations) == (N, N // 3, 1)
    assert stats.kept_share == pytest.approx(KEEP)
    assert stats.seconds_compiling > 0


@dataclass
class Outputs:
    logits: Tensor


def test_outputs_are_detached_of_a_dataclass_too():
    model, batch = Mlp(), images()

    def losses_of(model, batch):
        outputs = Outputs(model(batch[0]))
        return F.cross_entropy(outputs.logits, batch[1], reduction="none"), outputs

    sift = SinglePass(model, losses=losses_of, keep=KEEP, outputs=True, check=False)
    sift(batch)
    torch.testing.assert_close(sift.outputs.logits, model(batch[0]).detach())
    assert not sift.outputs.logits.requires_grad


def test_stopping_anywhere_equals_never_stopping():
    torch.manual_seed(0)
    batches = [images() for _ in range(4)]

    def built():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, CLASSES))
        sift = SinglePass(model, F.cross_entropy, keep=KEEP, check=False)

        def steps():
            for batch in batches[sift.stats.seen // N :]:
                loss = sift(*batch).detach()
                yield loss, *sift.selection

        return {"sift": sift}, steps, lambda: (sift.stats.seen, sift.stats.kept)

    check_resumes(built, every=2)


def test_a_state_of_another_version_is_refused():
    sift = SinglePass(Mlp(), F.cross_entropy, keep=KEEP)
    with pytest.raises(StateError, match="version 9"):
        sift.set_extra_state(sift.get_extra_state() | {"version": 9})


def test_it_is_a_module_around_the_model():
    model = Mlp()
    sift = SinglePass(model, F.cross_entropy, keep=KEEP)
    assert list(map(id, sift.parameters())) == list(map(id, model.parameters()))
    names = {f"model.{name}" for name in model.state_dict()} | {"_extra_state"}
    assert sift.state_dict().keys() == names
    sift.eval()
    assert not model.training


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda sift: pickle.loads(pickle.dumps(sift))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_has_the_losses_and_the_gradients_of_its_own_model(copied):
    sift, batch = SinglePass(Mlp(), F.cross_entropy, keep=KEEP), images()
    sift(*batch).backward()
    before = sift.model[4].bias.grad.clone()
    twin = copied(sift)  # as AveragedModel does
    assert twin.gradient_check == sift.gradient_check
    twin.zero_grad()
    for parameter in twin.parameters():
        parameter.data.zero_()
    loss = twin(*batch)
    assert float(loss.detach()) == pytest.approx(math.log(CLASSES))
    loss.backward()
    classes = batch[1][twin.selection.positions].bincount(minlength=CLASSES)
    expected = 1 / CLASSES - classes / classes.sum()
    torch.testing.assert_close(twin.model[4].bias.grad, expected)
    assert sift.model[4].bias.grad.equal(before)
    assert (sift.stats.seen, twin.stats.seen) == (N, 2 * N)


def test_a_model_put_in_place_of_another_is_the_one_that_is_trained():
    sift, batch = SinglePass(Mlp(), F.cross_entropy, keep=KEEP), images()
    sift(*batch).backward()
    sift.model = other = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, CLASSES))
    sift(*batch).backward()
    torch.testing.assert_close(
        sift.losses, F.cross_entropy(other(batch[0]), batch[1], reduction="none").detach()
    )
    assert other[1].weight.grad.any()


def test_the_first_batch_may_be_one_of_validation():
    sift = SinglePass(Mlp(), F.cross_entropy, keep=KEEP)
    with torch.no_grad():
        assert not sift(*images()).requires_grad
    assert sift.gradient_check is None
    sift(*images()).backward()
    assert sift.gradient_check.largest < 1e-5


def test_a_validation_is_the_loss_of_all_rows_and_training_does_not_notice_it():
    def trained(validates: bool) -> tuple[list[Tensor], Any]:
        torch.manual_seed(0)
        sift = SinglePass(nn.Linear(8, CLASSES), F.cross_entropy, keep=KEEP, steps_per_epoch=1)
        batches = [(torch.randn(N, 8), torch.randint(CLASSES, (N,))) for _ in range(6)]
        selected = []
        for inputs, targets in batches:
            sift(inputs, targets).backward()
            selected.append(sift.selection.positions)
            if validates:
                with torch.no_grad():
                    loss = sift(*batches[0])
                whole = F.cross_entropy(sift.model(batches[0][0]), batches[0][1])
                torch.testing.assert_close(loss, whole.detach())
                assert sift.selection.positions.tolist() == list(range(N))
        return selected, sift.get_extra_state() | {"stats": (sift.stats.seen, sift.stats.backwards)}

    (ours, state), (plain, expected) = trained(validates=True), trained(validates=False)
    assert all(map(torch.equal, ours, plain))
    assert state["stats"] == expected["stats"] == (6 * N, N + 5 * N // 3)
    assert state["selector"]["digest"] == expected["selector"]["digest"]
    assert state["generator"].equal(expected["generator"])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(2)
def test_gradients_that_cancel_out_are_compared_by_their_size_before_that(seed):
    torch.manual_seed(seed)
    model = nn.Linear(8, 2)  # untrained: of balanced classes nothing but rounding is left
    for parameter in model.parameters():
        parameter.data.mul_(1e-3)
    inputs, targets = 1 + 0.001 * torch.randn(8, 8), torch.tensor([0, 0, 1, 1] * 2)
    sift = SinglePass(model, F.cross_entropy, keep=1 / 2)
    sift(inputs, targets).backward()
    assert sift.gradient_check.largest < 1e-6


def test_a_model_goes_to_evaluation_and_back():
    model, sift = traced("wide_resnet")
    batch = CASES["wide_resnet"].batch()
    model.eval()
    sift(batch)
    plain = CASES["wide_resnet"].losses(model, batch)
    torch.testing.assert_close(sift.losses, plain.detach())
    model.train()


def test_frozen_batch_norm_couples_nothing():
    model, batch = make(BATCH_NORM)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    sift = SinglePass(model, losses=BATCH_NORM.losses, keep=KEEP)
    sift(batch)
    assert sift.gradient_check.largest < 1e-5
    assert sift.gradient_check.batch_norms == ()


def test_a_loss_that_is_not_a_number_is_kept_and_shows():
    torch.manual_seed(0)
    inputs, targets = images(120)
    inputs[5] = torch.nan
    sift = SinglePass(Mlp(), F.cross_entropy, keep=0.9, check=False, selector=None)
    assert sift(inputs, targets).isnan()
    assert 5 in sift.selection.positions


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_state_saved_after_a_loss_that_is_not_finite_goes_on(value):
    inputs, targets = images(120)
    inputs[5] = value
    sift, other = (SinglePass(Mlp(), F.cross_entropy, keep=0.9, check=False) for _ in range(2))
    sift(inputs, targets)
    other.load_state_dict(sift.state_dict())
    inputs, targets = images(120)
    sift(inputs, targets), other(inputs, targets)
    assert sift.selection.positions.equal(other.selection.positions)


@pytest.mark.slow
@pytest.mark.filterwarnings(  # importing Inductor defines modules with it
    "ignore:`torch.jit.script_method` is:DeprecationWarning"
)
def test_inductor():
    case = CASES["wide_resnet"]
    model, batch = make(case)
    sift = SinglePass(model, losses=case.losses, keep=KEEP, backend="inductor")
    ours = gradients(model, lambda: sift(batch).backward())
    theirs = gradients(model, lambda: kept_mean(case, model, batch, sift.selection).backward())
    assert_same(ours, theirs, tolerance=1e-3)
