"""Keras 3: what is refused, and in which words."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from siftback import InfoBatch, Kakurenbo, Memory, Percentile, Stale, Unbiased
from siftback.errors import BatchError, ConfigError, LossError

keras = pytest.importorskip("keras", reason="needs pip install siftback[keras]")

from keras_models import (  # noqa: E402
    BATCH,
    COUNT,
    KEEP,
    Batches,
    compiled,
    data,
    fit,
    network,
    remembering,
)

from siftback.frameworks.keras import LossRecorder, SelectiveDataset, SelectiveModel  # noqa: E402


def test_weights_that_the_reduction_would_undo_are_refused():
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    model = compiled(
        SelectiveModel(network(), selector=Unbiased(Percentile(keep=KEEP)), warmup=0), loss
    )
    with pytest.raises(ConfigError, match="mean_with_sample_weight"):
        fit(model, "arrays", data())


def two_outputs():
    inputs = keras.Input([6])
    return keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])


def test_several_outputs_are_refused():
    (x, _), y = data(), np.zeros((COUNT, 1), "float32")
    for loss in (["mse", "mse"], "mse"):
        model = compiled(SelectiveModel(two_outputs(), KEEP, warmup=0), loss)
        with pytest.raises(ConfigError, match="one loss per example, and there are"):
            model.fit(x, [y, y], verbose=0)


class Scalar(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 2)


class Columns(keras.losses.Loss):
    """As many numbers as there are columns, which may be as many as examples."""

    def call(self, y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 2, axis=0)


class Called(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return keras.ops.mean((y_true - y_pred) ** 2)


@pytest.mark.parametrize("loss", [Scalar(), Columns(), Called()], ids=lambda loss: loss.name)
def test_a_loss_that_is_not_one_per_example_is_refused(loss):
    x, y = data(3)
    model = compiled(SelectiveModel(network(), KEEP, warmup=0), loss)
    with pytest.raises(LossError, match=f"the loss {loss.name}"):
        model.fit(x, np.eye(3)[y], verbose=0)


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


def test_what_would_be_bypassed_is_refused():
    with pytest.raises(ConfigError, match="OwnStep overrides train_step"):
        SelectiveModel(OwnStep(), warmup=0)
    with pytest.raises(ConfigError, match="given a Linear"):
        SelectiveModel(torch.nn.Linear(6, 3), 0.5, warmup=0)
    with pytest.raises(ConfigError, match="given a SelectiveModel"):
        LossRecorder(SelectiveModel(network(), 0.5, warmup=0))
    net = keras.Sequential([keras.Input([6]), keras.layers.Dense(3, activity_regularizer="l2")])
    model = SelectiveModel(net, 0.5, warmup=0)
    model.compile("sgd")
    with pytest.raises(LossError, match="targets"):
        model.fit(data()[0], verbose=0)


def test_compiled_steps_and_several_steps_in_one_are_refused():
    with pytest.raises(ConfigError, match="jit_compile"):
        fit(
            compiled(SelectiveModel(network(), KEEP, warmup=0), jit_compile=True),
            "arrays",
            data(),
        )
    several = compiled(SelectiveModel(network(), KEEP, warmup=0), steps_per_execution=2)
    with pytest.raises(ValueError, match="steps_per_execution"):
        fit(several, "arrays", data())


def test_another_backend_is_refused_in_one_sentence(monkeypatch):
    net = network()
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    for wrapper in (SelectiveModel, LossRecorder):
        with pytest.raises(ConfigError) as error:
            wrapper(net)
        assert str(error.value) == (
            f"{wrapper.__name__} needs Keras's torch backend, and this is tensorflow: set the "
            "environment variable KERAS_BACKEND=torch before keras is imported"
        )


@pytest.mark.parametrize("backend", ["jax", "numpy", "tensorflow"])
def test_another_backend_that_is_installed_is_refused(backend):
    needed = "tensorflow" if backend == "tensorflow" else "jax"  # Keras's numpy backend needs it
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    code = (
        "import keras; from siftback.frameworks.keras import SelectiveModel\n"
        "SelectiveModel(keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]), 0.5)"
    )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert f"ConfigError: SelectiveModel needs Keras's torch backend, and this is {backend}" in (
        done.stderr
    )


def test_what_does_not_go_with_a_memory_data_set_is_refused():
    dataset, model = remembering(), compiled(LossRecorder(network()))
    for settings, reason in (
        ({"epochs": 2}, "epochs=2"),
        ({"epochs": 3, "class_weight": {0: 1.0}}, "class_weight"),
        ({"epochs": 3, "steps_per_epoch": 2}, "steps_per_epoch"),
        ({"epochs": 3, "y": data()[1]}, "has the targets"),
        ({"epochs": 3, "sample_weight": np.ones(48)}, "a third part, sample weights"),
        ({"epochs": 3, "validation_data": dataset}, "validation_data"),
        ({"epochs": 3, "validation_data": remembering()}, "validation_data"),
    ):
        with pytest.raises(ConfigError, match=reason):
            model.fit(dataset, verbose=0, **settings)
    with pytest.raises(ConfigError, match="given a ndarray"):
        model.fit(data()[0], verbose=0)
    with pytest.raises(ConfigError, match="given a SelectiveDataset without memory="):
        model.fit(SelectiveDataset(data(), BATCH, epochs=3), epochs=3, verbose=0)
    with pytest.raises(ConfigError, match="a list of callbacks"):
        model.fit(dataset, epochs=3, callbacks=keras.callbacks.CallbackList())
    with pytest.raises(ConfigError, match="carry the indices"):
        model.train_on_batch(*data(4))
    with pytest.raises(ConfigError, match="Stale is refreshed"):
        remembering(memory=Stale(keep=0.5, every=2))
    with pytest.raises(ConfigError, match="not an EpochRule"):
        remembering(memory=0.5)
    for given, name in (
        ((data()[0],), "tuple of 1 parts"),
        (DataLoader(TensorDataset(*map(torch.as_tensor, data()))), "DataLoader of batches"),
        (Batches(*data()), "Batches of batches"),
    ):
        with pytest.raises(BatchError, match=f"{name}: give arrays"):
            SelectiveDataset(given, memory=Memory(), epochs=3)
    x, y = pandas.DataFrame(data()[0]), pandas.Series(data()[1])
    for given, name in (
        ((x, y), r"batch\[0\] is a DataFrame"),
        ((x, x), r"batch\[0\] is a DataFrame"),  # which were two examples
        ((data()[0], y), r"batch\[1\] is a Series"),
    ):
        with pytest.raises(BatchError, match=rf"{name}, which has no rows.*to_numpy\(\)"):
            SelectiveDataset(given, epochs=3)
    with pytest.raises(ConfigError, match="correct"):
        model.fit(remembering(memory=Kakurenbo(0.3)), epochs=3, verbose=0)


def test_a_memory_data_set_is_neither_evaluated_on_nor_trained_on_without_a_recorder():
    dataset = remembering()
    for model in (compiled(network()), compiled(SelectiveModel(network(), 0.5, warmup=0))):
        with pytest.raises(ConfigError, match="LossRecorder"):
            model.fit(dataset, epochs=3, verbose=0)
    model = compiled(LossRecorder(network()))
    model.fit(dataset, epochs=3, verbose=0)
    with pytest.raises(ConfigError, match="with the data itself"):
        model.evaluate(dataset, verbose=0)
    assert np.isfinite(model.evaluate(*data(), verbose=0))


def test_a_memory_that_learned_with_another_model_is_refused():
    dataset = remembering(memory=InfoBatch())  # which draws in the first epoch
    model = compiled(LossRecorder(network()))
    model.fit(dataset, epochs=3, verbose=0)
    model.fit(dataset, epochs=3, verbose=0)
    with pytest.raises(ConfigError, match="InfoBatch has learned in another training: make a new"):
        compiled(LossRecorder(network())).fit(dataset, epochs=3, verbose=0)
    compiled(LossRecorder(network())).fit(dataset, initial_epoch=2, epochs=3, verbose=0)  # goes on


def test_a_collate_function_that_sorts_is_refused():
    examples = torch.utils.data.TensorDataset(*map(torch.as_tensor, data()))

    def by_sum(rows):
        return torch.utils.data.default_collate(sorted(rows, key=lambda row: float(row[0].sum())))

    dataset = SelectiveDataset(examples, BATCH, memory=Memory(), epochs=2, collate_fn=by_sum)
    with pytest.raises(ConfigError, match="collate_fn changes the order of examples"):
        compiled(LossRecorder(network())).fit(dataset, epochs=2, verbose=0)
    plain = SelectiveDataset(examples, BATCH, epochs=1, collate_fn=by_sum)  # remembers no losses
    compiled(SelectiveModel(network(), 0.5, warmup=0)).fit(plain, verbose=0)


def test_a_loss_that_is_not_finite_is_refused():
    x, y = data()
    x[7] = np.nan
    for model, given in (
        (LossRecorder(network()), (remembering_of(x, y),)),
        (SelectiveModel(network(), 0.5, warmup=0), (x, y)),
    ):
        with pytest.raises(LossError, match="is nan"):
            compiled(model).fit(*given, epochs=3, verbose=0)


def remembering_of(x, y):
    return SelectiveDataset((x, y), BATCH, memory=Memory(), epochs=3)
