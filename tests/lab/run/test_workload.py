"""The computation of a run is counted, and bounds its length."""

import os

import pytest
import torch

from siftback.errors import ConfigError
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.load import load
from siftback.lab.forward import batch_work, check_model_fits
from siftback.lab.run.workload import SMALL, is_short, most_work, threads_for
from siftback.lab.settings import Settings


def settings(**others):
    return Settings("digits", device="cpu", **{"epochs": 10.0} | others)


def test_work_is_that_of_the_layers():
    mlp = settings(model="mlp", width=32, batch_size=100)
    multiplied = 64 * 32 + 32 * 32 + 32 * 10  # a multiplication and an addition each
    assert batch_work(mlp, load("digits")) == 100 * 2 * multiplied
    assert most_work([mlp, settings(model="mlp", width=32, batch_size=50)]) == 200 * multiplied


@pytest.mark.parametrize(
    ("model", "smallest"), [("cnn", 4), ("fastcnn", 7), ("densenet121", 8), ("vit", 4), ("mlp", 1)]
)
def test_images_smaller_than_a_model_takes_are_refused_before_training(model, smallest):
    asked = settings(model=model, width=4)
    pixels, labels = torch.zeros(4, 3, 1, 1, dtype=torch.uint8), torch.arange(4) % 2
    for size in sorted({1, smallest - 1, smallest, 8} - {0}):  # others take as long to build
        images = pixels.expand(4, 3, size, 9)
        data = ImageData("dots", images, labels, images, labels, names=("a", "b"))
        if size >= smallest:
            check_model_fits(asked, data)
            continue
        with pytest.raises(ConfigError, match="give larger images or another --model"):
            check_model_fits(asked, data)


def test_a_run_is_short_by_its_work_or_its_time():
    data = load("digits")
    assert is_short(settings(), data)
    assert not is_short(settings(epochs=1e5), data)
    assert is_short(settings(epochs=None, budget=2.0), data)
    assert not is_short(settings(epochs=None, cost_budget=1e12), data)
    assert is_short(settings(epochs=None, time_budget=60.0), data)
    assert not is_short(settings(epochs=None, time_budget=61.0), data)


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("load_now", "free"), [(0.0, 4), (0.4, 4), (1.0, 3), (2.6, 1), (4.0, 1), (64.0, 1)]
)
def test_threads_are_what_other_work_leaves(monkeypatch, four_threads, load_now, free):
    monkeypatch.setattr(os, "getloadavg", lambda: (load_now, 9.0, 9.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    threads, why = threads_for(lambda: SMALL)
    assert threads == free
    assert (why == "the processors are free") == (free == 4)
    assert threads_for(lambda: SMALL - 1) == (1, "the model is small")


def test_threads_are_no_more_than_torch_takes():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert threads_for(lambda: 1e12) == (1, "torch takes no more here")
    finally:
        torch.set_num_threads(before)
