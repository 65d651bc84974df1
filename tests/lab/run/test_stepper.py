"""Steps, averages, smoothed and mixed losses, each against what it is by definition."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from siftback import Epochs
from siftback.errors import ConfigError
from siftback.lab.data.augment import mix
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.forward import AUTOCAST_TYPES, Stepper, training_device
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Run, Settings, TrainingPrecision
from siftback.lab.strategies.strategy import learns
from siftback.lab.strategies.table import STRATEGIES

CPU = torch.device("cpu")


def settings(**changes: object) -> Settings:
    quick = {"data": "digits", "width": 4, "epochs": 1.0, "device": "cpu", "batch_size": 64}
    return Settings(**(quick | {"train_limit": 640, "warmup": Epochs(0)} | changes))


def weights_of(folder: Path, strategy: str = "traditional", **changes: object) -> torch.Tensor:
    found: list[torch.Tensor] = []

    def keep(run: Run, model: nn.Module) -> None:
        found.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))

    plan = Plan(settings(**changes), [strategy], [0.5], [0], matched=False)
    compare(plan, folder, Reporter(), on_model=keep)
    return found[0]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(count)
    ]


def test_the_average_is_that_of_weights_and_buffers_after_every_step() -> None:
    """After t updates the decay is the least of the one asked for and (1 + t) / (10 + t)."""
    model = small()
    stepper = Stepper(model, settings(ema=0.4), CPU)
    expected: dict[str, torch.Tensor] = {}
    for made, (x, y) in enumerate(batches(8)):
        decay = [None, 2 / 11, 3 / 12, 4 / 13, 5 / 14, 0.4, 0.4, 0.4][made]
        stepper.set_rate(0.5)
        stepper.backward(F.cross_entropy(model(x), y))
        stepper.step()
        for name, value in model.state_dict().items():
            if name not in expected:  # the first step's are its beginning
                expected[name] = value.clone()
            elif value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value
    assert stepper.tested is not model
    for name, value in stepper.tested.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[name])


def test_the_average_of_a_short_training_is_near_its_last_weights() -> None:
    """That of 40 steps by 0.999 would else be 96 % its first weights."""
    model = small()
    stepper = Stepper(model, settings(ema=0.999, momentum=0.0), CPU)
    first = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    for x, y in batches(40):
        stepper.set_rate(1.0)
        stepper.backward(F.cross_entropy(model(x), y))
        stepper.step()
    last = nn.utils.parameters_to_vector(model.parameters())
    average = nn.utils.parameters_to_vector(stepper.tested.parameters())
    assert (average - last).norm() < 0.3 * (first - last).norm()


def test_without_an_average_the_model_itself_is_tested() -> None:
    model = small()
    assert Stepper(model, settings(), CPU).tested is model


@pytest.mark.parametrize("most", [0.01, 1e6])
def test_a_gradient_is_scaled_down_to_the_norm(most: float) -> None:
    model, (x, y) = small(), batches(1)[0]
    plain = Stepper(model, settings(momentum=0.0, weight_decay=0.0, clip=most), CPU)
    before = [weight.detach().clone() for weight in model.parameters()]
    plain.set_rate(1.0)
    plain.backward(F.cross_entropy(model(x), y))
    gradients = [weight.grad.clone() for weight in model.parameters()]  # type: ignore[union-attr]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    plain.step()
    scale = 0.1 * min(1.0, most / float(norm))
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.detach(), old - scale * gradient, rtol=1e-4, atol=1e-7)
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_a_mixture_is_of_each_image_and_another(alpha: float) -> None:
    images = torch.rand(9, 1, 4, 4)
    mixed, partners, share = mix(images, alpha, seed=3, batch=7)
    assert 0 <= share <= 1
    assert sorted(partners.tolist()) == list(range(9))
    for row, partner in enumerate(partners.tolist()):
        torch.testing.assert_close(mixed[row], share * images[row] + (1 - share) * images[partner])


def test_mixtures_follow_from_seed_and_batch_alone_and_are_of_a_beta_distribution() -> None:
    images = torch.rand(4, 2)
    torch.manual_seed(5)
    assert mix(images, 0.5, 1, 2)[0].equal(mix(images, 0.5, 1, 2)[0])
    shares = np.array([mix(images, 0.5, 0, batch)[2] for batch in range(2000)])
    assert len(set(shares)) == 2000
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * (2 * 0.5 + 1)), rel=0.1)


def test_mixing_comes_after_selection(tmp_path: Path) -> None:
    """The same examples are seen and kept in the first batches, which no mixing can tell apart."""
    plain, mixed = (
        compare(
            Plan(settings(mixup=alpha), ["random"], [0.5], [0], False),
            tmp_path / name,
            Reporter(),
        )
        for name, alpha in (("plain", 0.0), ("mixed", 1.0))
    )
    one, other = plain.runs[0], mixed.runs[0]
    assert one.keep_measured == other.keep_measured
    losses = [c.evaluations(c.runs[0])[0].train_loss for c in (plain, mixed)]
    assert losses[1] > losses[0]


@pytest.mark.parametrize("strategy", ["sb", "stale-sb", "kath18-bound", "rs2", "sb-small"])
def test_strategies_with_passes_of_their_own_may_mix(tmp_path: Path, strategy: str) -> None:
    plain = weights_of(tmp_path / "a", strategy, train_limit=256)
    mixed = weights_of(tmp_path / "b", strategy, train_limit=256, mixup=0.4)
    assert mixed.isfinite().all()
    assert not mixed.equal(plain)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [("sb-memory", "Memory"), ("sb-single-pass", "SinglePass"), ("infobatch", "InfoBatch")],
)
def test_those_that_choose_by_trainings_losses_may_not(strategy: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"mixup=0.4 with {name}\("):
        Plan(settings(mixup=0.4), ["sb", strategy], [0.5], [0])


def test_who_chooses_by_trainings_losses_is_known_before_it() -> None:
    asked = settings()
    learning = [name for name, each in STRATEGIES.items() if learns(each.choice(0.5, asked))]
    assert learning == [
        *("sb-memory", "sb-memory-guarded", "sb-memory-weighted", "sb-memory-annealed"),
        *("sb-memory-ratio", "sb-memory-default", "sb-memory-ratio-guarded", "sb-memory-balanced"),
        *("sb-memory-balanced-weighted", "sb-memory-ratio-balanced", "sb-ewma", "sb-gp"),
        *("infobatch", "kakurenbo", "ucb", "seta", "ies"),
        *("evolved", "orderdp", "repb", "rcap", "alignprune", "evos"),
    ]


def test_smoothing_is_of_training_and_not_of_tests(tmp_path: Path) -> None:
    """A smoothed loss is never near 0: a tenth over ten classes leaves an entropy of 0.5."""
    asked = settings(epochs=15.0, label_smoothing=0.1, evaluations=1)
    comparison = compare(Plan(asked, ["traditional"], [0.5], [0]), tmp_path, Reporter())
    (evaluation,) = comparison.evaluations(comparison.runs[0])
    assert evaluation.train_loss > 0.5
    assert evaluation.test_loss < 0.5


@pytest.mark.parametrize("strategy", ["sb", "sb-memory", "sb-single-pass", "kakurenbo"])
def test_every_kind_of_loss_is_smoothed(tmp_path: Path, strategy: str) -> None:
    asked = {"model": "mlp", "epochs": 2.0}
    plain = weights_of(tmp_path / "a", strategy, **asked)
    smoothed = weights_of(tmp_path / "b", strategy, **asked, label_smoothing=0.3)
    assert not plain.equal(smoothed)


def test_layouts_differ_in_the_last_digits_alone(tmp_path: Path) -> None:
    last = weights_of(tmp_path / "a", "sb", rate="constant", lr=0.01)
    first = weights_of(tmp_path / "b", "sb", rate="constant", lr=0.01, channels_last=False)
    torch.testing.assert_close(last, first, rtol=1e-3, atol=1e-4)


def test_the_average_is_what_is_tested(tmp_path: Path) -> None:
    found = {}
    for name, decay in (("plain", None), ("averaged", 0.95)):
        asked = settings(ema=decay, epochs=3.0)
        comparison = compare(Plan(asked, ["sb"], [0.5], [0], False), tmp_path / name, Reporter())
        found[name] = Comparison.read(tmp_path / name).evaluations(comparison.runs[0])
    pairs = list(zip(found["plain"], found["averaged"], strict=True))
    assert all(one.train_loss == other.train_loss for one, other in pairs), "training sees it not"
    assert all(one.test_loss != other.test_loss for one, other in pairs)


def test_every_precision_has_a_type() -> None:
    assert set(AUTOCAST_TYPES) == set(get_args(TrainingPrecision))


def test_half_precision_needs_cuda() -> None:
    asked = settings(precision="fp16")
    with pytest.raises(ConfigError, match="'fp16' on cpu: its scaled losses need CUDA"):
        training_device(asked)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_half_precision_trains(tmp_path: Path) -> None:
    weights = weights_of(tmp_path, "sb", precision="fp16", device="cuda", clip=1.0, epochs=5.0)
    assert weights.isfinite().all()
    assert Comparison.read(tmp_path).runs[0].test_error_final < 50


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_runs_train_as_others_do(tmp_path: Path) -> None:
    plain, compiled = (
        compare(
            Plan(settings(compile=compiled, model="mlp"), ["sb"], [0.5], [0], False),
            tmp_path / name,
            Reporter(),
        )
        for name, compiled in (("plain", False), ("compiled", True))
    )
    one, other = (c.evaluations(c.runs[0])[0] for c in (plain, compiled))
    assert other.train_loss == pytest.approx(one.train_loss, rel=0.05)
