"""The forecast of a budget ratio: its formula, what it does not depend on, and what it refuses."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import RS2, Epochs, Forecast, Memory, SelectiveLoader, forecast
from siftback.errors import ConfigError, LossError
from siftback.rules.forecast import (
    LEAST_SHARE,
    MOST_EPOCHS,
    SLOPE,
    SPREAD,
)


def cubes(count=2000):
    return torch.rand(count, generator=torch.Generator().manual_seed(0)) ** 3


def same(first, second):
    assert vars(first) == pytest.approx(vars(second), nan_ok=True)


def test_it_is_the_formula():
    losses = cubes().tolist()
    mean = sum(losses) / len(losses)
    share = sum(max(0.1, min(1, loss / mean)) for loss in losses) / len(losses)
    ratio = (1 / 4 + (3 / 4) / share) ** SLOPE
    expected = Forecast(ratio, ratio / SPREAD, ratio * SPREAD, share)
    same(forecast(cubes(), epochs=4, done=1), expected)


@pytest.mark.parametrize(
    "changed",
    [
        lambda losses: 1000 * losses,
        lambda losses: losses / 1000,
        lambda losses: losses.flip(0),
        lambda losses: losses.double(),
        lambda losses: losses.clone().requires_grad_(),
        lambda losses: torch.cat((losses, torch.full((500,), torch.nan))),
        lambda losses: losses.repeat(3),
    ],
    ids=["large", "small", "order", "float64", "gradient", "unknown", "repeated"],
)
def test_scale_order_and_number_do_not_matter(changed):
    same(forecast(changed(cubes()), epochs=4), forecast(cubes(), epochs=4))


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_losses_that_are_alike_promise_nothing(value):
    assert forecast(torch.full((2000,), value), epochs=4).ratio == 1


def test_more_concentrated_losses_promise_more():
    ratios = [forecast(cubes() ** power, epochs=4).ratio for power in (0.1, 0.5, 0.9)]
    assert 1 < ratios[0] < ratios[1] < ratios[2]


def test_less_is_promised_the_later_it_is():
    ratios = [forecast(cubes(), epochs=4, done=done).ratio for done in (1, 2, 3)]
    assert 1 < ratios[2] < ratios[1] < ratios[0]


@pytest.mark.parametrize(
    ("losses", "length", "reason"),
    [
        (cubes(), {"epochs": 4, "done": 0.25}, "25% of the first epoch"),
        (cubes(), {"epochs": MOST_EPOCHS + 1}, f"more than the {MOST_EPOCHS:g}"),
        (cubes(999), {"epochs": 4}, "999 losses are known, and 1,000 are needed"),
        (torch.full((2000,), torch.nan), {"epochs": 4}, "0 losses are known"),
        (torch.eye(2000)[0], {"epochs": 4}, f"recorded, of {LEAST_SHARE:.2f} or more"),
    ],
)
def test_what_was_not_recorded_is_not_told(losses, length, reason):
    told = forecast(losses, **length)
    assert math.isnan(told.ratio)
    assert (told.low, told.high) == (0, math.inf)
    assert reason in told.reason
    assert str(told).endswith(told.reason)


@pytest.mark.parametrize(
    ("losses", "named"),
    [
        ([1.0, 2.0], r"losses=\[1.0, 2.0\]"),
        (torch.arange(3), "float"),
        (torch.rand(3, 2), "losses="),
        (torch.tensor([1.0, -0.5]), "from -0.5 to 1"),
        (torch.tensor([1.0, torch.inf]), "from 1 to inf"),
    ],
)
def test_losses_that_are_none_are_refused(losses, named):
    with pytest.raises(LossError, match=named):
        forecast(losses, epochs=4)


@pytest.mark.parametrize(
    ("length", "named"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": math.inf}, "epochs=inf"),
        ({"epochs": 4, "done": -1}, "done=-1"),
        ({"epochs": 4, "done": 4}, "done=4 of epochs=4"),
    ],
)
def test_a_length_that_is_none_is_refused(length, named):
    with pytest.raises(ConfigError, match=named):
        forecast(cubes(), **length)


def loader_of(rule, **options):
    data = TensorDataset(torch.randn(1280, 4), torch.randint(3, (1280,)))
    return SelectiveLoader(DataLoader(data, batch_size=128, shuffle=True), memory=rule, **options)


def test_a_loader_tells_it_between_the_first_epoch_and_the_first_draw():
    model, memory = torch.nn.Linear(4, 3), Memory()
    loader, told = loader_of(memory, epochs=4), []
    for _ in range(2):
        for x, y in loader:
            loader.loss(F.cross_entropy(model(x), y, reduction="none")).backward()
            if loader.epochs_done == 0.5:
                told.append(loader.forecast)
        told.append(loader.forecast)
    early, warmed, *late = told
    assert "50% of the first epoch" in early.reason
    same(warmed, forecast(memory.scores(1), epochs=4))
    assert warmed.ratio > 1
    assert all("were left out already" in forecast.reason for forecast in late)


@pytest.mark.parametrize(
    ("rule", "options", "named"),
    [
        (Memory(warmup=Epochs(1), tail=Epochs(0)), {}, "memory=Memory and epochs=None"),
        (RS2(0.5), {"epochs": 4}, "memory=RS2"),
    ],
)
def test_a_loader_without_losses_or_length_tells_none(rule, options, named):
    loader = loader_of(rule, **options)
    with pytest.raises(ConfigError, match=named):
        _ = loader.forecast
