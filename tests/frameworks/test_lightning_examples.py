"""Selection under Lightning on real data, and the example."""

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

import torch
from lightning_parts import EXPECTED_WARNINGS
from lightning_ranks import Net, trainer_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from siftback import Memory
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule
from toys import AT_ONCE

pytestmark = EXPECTED_WARNINGS


def folder_of(name):
    """Where a real set lies."""
    folder = pytest.importorskip("siftback.lab.data.tables").local_folder(name)
    if folder is None:
        pytest.skip("needs the real sets in SIFTBACK_DATA or ../shared/data")
    return folder.resolve()


def mnist(count):
    """Digits of the real set, as many of training and half as many of testing."""
    data = pytest.importorskip("siftback.lab.data.load")
    folder_of("mnist")
    digits = data.limit(data.load("mnist"), count)
    train = digits.train_inputs.float() / 255, digits.train_labels
    test = digits.test_inputs[: count // 2].float() / 255, digits.test_labels[: count // 2]
    return TensorDataset(*train), test


class Digits(Net):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, inputs):
        return self.net(inputs)

    def note(self, inputs):
        pass

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["selecting", "remembering"])
def test_digits_are_learned(form):
    train, (images, labels) = mnist(2000)
    module, loader = Digits(), DataLoader(train, 32, shuffle=True)
    trainer = trainer_of(
        *([SelectiveCallback(keep=1 / 2, schedule=AT_ONCE)] if form == "selecting" else [])
    )
    if form == "selecting":
        trainer.fit(module, loader, DataLoader(train, 500))
    else:
        also = DataLoader(train, 500)
        trainer.fit(
            module, datamodule=SelectiveDataModule(loader, Memory(keep=0.6), val_dataloaders=also)
        )
    assert float((module(images).argmax(1) == labels).float().mean()) > 0.85


def saved(backwards, forwards):
    """The line that the example prints of 300 examples in four epochs."""
    return f"{backwards} backwards and {forwards} forwards; plain: 1200 of each"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setenv("SIFTBACK_DATA", str(folder_of("cifar10").parent))
    return Path(__file__).parents[2] / "examples" / "lightning_cifar10.py"


@pytest.mark.slow
def test_the_example_trains_and_says_what_it_saved(example, tmp_path, monkeypatch, capsys):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example), "--examples=300", "--epochs=4"])
    runpy.run_path(str(example), run_name="__main__")
    # An epoch has as many examples as without memory, of passes over those that are worth more.
    assert saved(backwards=1200, forwards=1200) in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_example_selects_within_the_step_too(example, capsys):
    main = runpy.run_path(str(example))["main"]
    main(method="in_step", keep=0.5, examples=300, epochs=4)
    assert saved(backwards=750, forwards=1650) in capsys.readouterr().out
