"""Loops of one's own: what users do around a step works with selection in it."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import InBatch, Memory, Percentile, SelectiveLoader
from toys import at_once, seeded

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain.py"
X = torch.randn(64, 5, generator=seeded(0))
Y = torch.randint(3, (64,), generator=seeded(1))


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def loader_of(model=None, **arguments):
    """Two epochs over numbered examples, which batches carry last."""
    data = DataLoader(TensorDataset(X, Y, torch.arange(64)), 16, shuffle=True, generator=seeded(3))
    if model is not None:
        arguments["losses"] = lambda model, batch: each(model, *batch[:2])
    return SelectiveLoader(data, model, epochs=2, **at_once(arguments))


def each(model, x, y):
    return F.cross_entropy(model(x).float(), y, reduction="none")


def remembered(loader):
    return loader.memory.values[:, 0]


def trained(step, loss_of=each, call=lambda model: model):
    """The model, and what its memory knows after two epochs; ``step`` is called with each loss."""
    model = network()
    called = call(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = loader_of(memory=Memory(0.5))
    expected = torch.full((64,), torch.nan)
    for _ in range(2):
        for number, (x, y, rows) in enumerate(loader):
            losses = loss_of(called, x, y)
            expected[rows] = losses.detach().float()
            step(loader.loss(losses), optimizer, number)
    torch.testing.assert_close(remembered(loader), expected, equal_nan=True)
    return model


def plain_step(loss, optimizer, number):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def assert_same(one, other, **tolerances):
    torch.testing.assert_close(one.state_dict(), other.state_dict(), **tolerances)


def test_gradients_accumulated_over_two_batches_are_those_of_one():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    in_batch = InBatch(keep=0.5)
    expected = [torch.zeros_like(parameter) for parameter in model.parameters()]
    kept = []
    for start in (0, 16):
        x, y = X[start : start + 16], Y[start : start + 16]
        rows, weights = in_batch.select(each(model, x, y).detach())
        (each(model, x[rows], y[rows]) * weights).mean().div(2).backward()
        kept.append(start + rows)
    rows = torch.cat(kept)
    expected = torch.autograd.grad(each(model, X[rows], Y[rows]).mean(), [*model.parameters()])
    torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()


def test_a_memory_records_each_batch_of_an_accumulated_step():
    def every_other(loss, optimizer, number):
        (loss / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()

    trained(every_other)


def test_a_gradient_scaler_changes_nothing():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def scaled(loss, optimizer, number):
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert_same(trained(scaled), trained(plain_step))


def test_scores_are_computed_under_the_autocast_of_training():
    dtypes = []

    class Watched(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            outputs = self.inner(x)
            dtypes.append((torch.is_grad_enabled(), outputs.dtype))
            return outputs

    model = Watched(network())
    with torch.autocast("cpu", torch.bfloat16):
        for x, y, _ in loader_of(model, keep=0.5):
            each(model, x, y).mean().backward()
    assert set(dtypes) == {(False, torch.bfloat16), (True, torch.bfloat16)}


def test_losses_under_autocast_are_remembered_as_float32():
    def losses_of(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y, reduction="none")

    trained(plain_step, losses_of)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_compiled_model_trains_as_the_model_does():
    def compiled(model):
        return torch.compile(model, backend="aot_eager")

    assert_same(trained(plain_step, call=compiled), trained(plain_step))


def test_a_compiled_model_selects_the_same():
    kept = []
    for call in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager")):
        model = call(network())
        loader = loader_of(model, selector=Percentile(keep=0.5), seed=4)
        kept.append(torch.cat([rows for _, _, rows in loader]))
    assert torch.equal(*kept)


@pytest.mark.parametrize("method", ["plain", "in_batch", "memory"])
def test_the_example_runs_and_says_what_it_saved(method, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--method", method, "--epochs", "8"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    error, backwards, plain, cost = map(
        float,
        re.fullmatch(
            r"test error ([\d.]+)%; (\d+) backwards of (\d+) in plain training\n"
            r"cost ([\d.]+) of plain training's, a backward as 2 forwards\n",
            capsys.readouterr().out,
        ).groups(),
    )
    assert error < 20
    assert plain == 8 * 1500
    # A scoring pass adds a forward for each example, also in the first epoch, which trains on all;
    # epochs of Memory cost as much as plain ones.
    least, most = {"plain": (1, 1), "in_batch": (0.56, 0.57), "memory": (1, 1)}[method]
    assert least <= backwards / plain <= most
    passes = plain if method == "in_batch" else 0
    assert cost == pytest.approx((3 * backwards + passes) / (3 * plain), abs=0.01)
