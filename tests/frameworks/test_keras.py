"""Keras 3 on its torch backend: selection within its step, and memory by a PyDataset."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from siftback import (
    Epochs,
    InBatch,
    InfoBatch,
    Kakurenbo,
    Memory,
    Percentile,
    SelectiveSampler,
    Stale,
    Unbiased,
)
from siftback.errors import BatchError, ConfigError, LossError, StateError

keras = pytest.importorskip("keras", reason="needs pip install siftback[keras]")

from siftback.frameworks.keras import LossRecorder, MemoryDataset, SelectiveBackprop  # noqa: E402

ROOT = Path(__file__).parents[2]
COUNT, BATCH, KEEP = 40, 12, 1 / 3  # the last batch of an epoch has 4 examples
SPARSE = "sparse_categorical_crossentropy"
ACTIVITY = 1e-3


def data(count=COUNT, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, count)
    x = generator.normal(size=(count, 6)) + np.eye(6)[y] * 2
    return x.astype("float32"), y


def network(seed=0, dropout=0.5):
    """One with all that a scoring pass could disturb, the same for a seed."""
    layers, start = keras.layers, keras.initializers.GlorotUniform(seed)
    return keras.Sequential(
        [
            keras.Input([6]),
            layers.Dense(8, kernel_initializer=start, activity_regularizer="l2"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(dropout, seed=seed),
            layers.Dense(
                3, activation="softmax", kernel_initializer=start, kernel_regularizer="l2"
            ),
        ]
    )


def compiled(model, loss=SPARSE, rate=0.1, **more):
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, **more)
    return model


def weights(model):
    return [np.asarray(weight.value.detach()) for weight in getattr(model, "model", model).weights]


def equal(one, other):
    pairs = zip(weights(one), weights(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


class Batches(keras.utils.PyDataset):
    """Arrays in their order."""

    def __init__(self, *arrays, **settings):
        super().__init__(**settings)
        self.arrays = arrays

    def __len__(self):
        return -(-len(self.arrays[0]) // BATCH)

    def __getitem__(self, index):
        return tuple(part[index * BATCH : (index + 1) * BATCH] for part in self.arrays)


def fit(model, source, arrays, epochs=2, **more):
    """Trains on batches in their order, from any kind of source."""
    if source == "arrays":
        x, y, *weight = arrays
        settings = {"batch_size": BATCH, "shuffle": False, **more}
        weight = weight[0] if weight else None
        return model.fit(x, y, sample_weight=weight, epochs=epochs, verbose=0, **settings)
    if source == "DataLoader":
        batches = DataLoader(TensorDataset(*map(torch.as_tensor, arrays)), BATCH)
    else:
        batches = Batches(*arrays, workers=int(source.removeprefix("PyDataset")))
    return model.fit(batches, epochs=epochs, shuffle=False, verbose=0, **more)


def by_hand(model, arrays, each, *, keep=KEEP, epochs=2, selector=None):
    """Selective-Backprop batch by batch: scores by `predict`, steps by `train_on_batch`."""
    in_batch, sizes = InBatch(None if selector else keep, selector=selector), []
    for _ in range(epochs):
        for start in range(0, len(arrays[0]), BATCH):
            x, y, *weight = (part[start : start + BATCH] for part in arrays)
            scores = torch.as_tensor(np.array(each(y, model.predict_on_batch(x))))
            if weight:
                scores = scores * torch.as_tensor(weight[0])
            rows, factors = (part.numpy() for part in in_batch.select(scores))
            weight = weight[0][rows] if weight else None
            if selector is not None and selector.reweights:
                weight = factors if weight is None else weight * factors
            model.train_on_batch(x[rows], y[rows], sample_weight=weight)
            sizes.append(len(rows))
    return sizes


def crossentropy(y, y_pred):
    return -np.log(y_pred[np.arange(len(y)), y])


@pytest.mark.parametrize("weighted", [False, True], ids=["", "sample_weight"])
@pytest.mark.parametrize("source", ["arrays", "DataLoader", "PyDataset1", "PyDataset0"])
def test_each_step_trains_on_the_rows_that_in_batch_chooses(source, weighted):
    arrays = data()
    if weighted:
        arrays += (np.random.default_rng(1).uniform(0, 3, COUNT).astype("float32"),)
    plain, model = compiled(network()), compiled(SelectiveBackprop(network(), KEEP, warmup=0))
    sizes = by_hand(plain, arrays, crossentropy)
    fit(model, source, arrays)
    assert sizes == [4, 4, 4, 1] * 2
    assert (model.stats.seen, model.stats.backwards) == (2 * COUNT, sum(sizes))
    assert equal(model, plain)


@pytest.mark.parametrize("source", ["arrays", "PyDataset1"])
def test_class_weights_stay_with_their_rows_and_are_part_of_the_score(source):
    (x, y), by_class = data(), {0: 0.1, 1: 5.0, 2: 1.0}
    plain, model = compiled(network()), compiled(SelectiveBackprop(network(), KEEP, warmup=0))
    weight = np.array([by_class[label] for label in y], dtype="float32")
    by_hand(plain, (x, y, weight), crossentropy)
    fit(model, source, (x, y), class_weight=by_class)
    assert equal(model, plain)


def test_keeping_all_is_training_without_selection_bit_for_bit():
    plain, model = compiled(network()), compiled(SelectiveBackprop(network(), keep=1.0, warmup=0))
    histories = [fit(each, "arrays", data()).history for each in (plain, model)]
    assert equal(model, plain)
    assert histories[0] == histories[1]


def test_weights_of_a_selector_are_applied():
    plain = compiled(network())
    model = compiled(
        SelectiveBackprop(network(), selector=Unbiased(Percentile(keep=KEEP)), warmup=0)
    )
    by_hand(plain, data(), crossentropy, selector=Unbiased(Percentile(keep=KEEP)))
    fit(model, "arrays", data())
    assert equal(model, plain)


def test_weights_that_the_reduction_would_undo_are_refused():
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    model = compiled(
        SelectiveBackprop(network(), selector=Unbiased(Percentile(keep=KEEP)), warmup=0), loss
    )
    with pytest.raises(ConfigError, match="mean_with_sample_weight"):
        fit(model, "arrays", data())


def lopsided(y_true, y_pred):
    """Too low costs ten times what too high does."""
    error = y_true - y_pred
    return keras.ops.mean(keras.ops.where(error > 0, 10 * error, -error), axis=-1)


class Lopsided(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return lopsided(y_true, y_pred)


@pytest.mark.parametrize("loss", [lopsided, Lopsided(), Lopsided(reduction="sum")])
def test_losses_are_called_with_the_targets_first(loss):
    def each(y, y_pred):
        error = y - y_pred
        return np.where(error > 0, 10 * error, -error).mean(1)

    x, y = data()
    arrays = x, np.eye(3)[y].astype("float32")
    plain = compiled(network(), loss, 0.01)
    model = compiled(SelectiveBackprop(network(), KEEP, warmup=0), loss, 0.01)
    by_hand(plain, arrays, each)
    fit(model, "arrays", arrays)
    assert equal(model, plain)


@pytest.mark.parametrize("name", ["mse", "crossentropy", "huber", "BinaryCrossentropy"])
def test_losses_by_name_are_those_that_keras_trains_with(name):
    y = np.random.default_rng(0).integers(0, 2, 8)
    net = keras.Sequential([keras.Input([6]), keras.layers.Dense(1, activation="sigmoid")])
    model = compiled(SelectiveBackprop(net, 0.5, warmup=0), name)
    x = data(8)[0]
    found = model.losses_of(torch.as_tensor(y), net(x))
    one_by_one = [model.evaluate(x[i : i + 1], y[i : i + 1], verbose=0) for i in range(8)]
    assert found.tolist() == pytest.approx(one_by_one, rel=1e-5)


def test_masked_positions_are_no_part_of_a_sequence_s_loss():
    x = np.array([[1, 2, 0, 0], [1, 2, 3, 4], [2, 0, 0, 0]])
    y = np.arange(12).reshape(3, 4) % 3
    layers = [keras.layers.Embedding(5, 4, mask_zero=True), keras.layers.Dense(3, "softmax")]
    net = keras.Sequential([keras.Input([4]), *layers])
    model = compiled(SelectiveBackprop(net, 0.5, warmup=0), SPARSE)
    outputs = net(x)
    found = model.losses_of(torch.as_tensor(y), outputs)
    wanted = -torch.log(outputs.detach().gather(2, torch.as_tensor(y)[..., None]))[..., 0]
    lengths = (x != 0).sum(1)
    assert found.tolist() == pytest.approx(
        [float(row[:length].mean()) for row, length in zip(wanted, lengths, strict=True)]
    )
    first = torch.tensor([[1.0, 0, 0, 0]] * 3)
    found = model.losses_of(torch.as_tensor(y), outputs, first)
    assert found.tolist() == pytest.approx(wanted[:, 0].tolist())
    model.fit(x, y, epochs=1, batch_size=3, verbose=0)
    assert model.stats.backwards == 2


@pytest.mark.parametrize("kind", [list, dict])
def test_several_inputs_stay_together(kind):
    def made():
        inputs = {name: keras.Input([3], name=name) for name in ("left", "right")}
        joined = keras.layers.Concatenate()([*inputs.values()])
        start = keras.initializers.GlorotUniform(0)
        outputs = keras.layers.Dense(3, "softmax", kernel_initializer=start)(joined)
        return keras.Model(inputs if kind is dict else [*inputs.values()], outputs)

    def parts(x):
        halves = {"left": x[:, :3], "right": x[:, 3:]}
        return halves if kind is dict else [*halves.values()]

    (x, y), in_batch = data(), InBatch(KEEP)
    plain, model = compiled(made()), compiled(SelectiveBackprop(made(), KEEP, warmup=0))
    for start in range(0, COUNT, BATCH):
        some, labels = x[start : start + BATCH], y[start : start + BATCH]
        scores = crossentropy(labels, plain.predict_on_batch(parts(some)))
        rows = in_batch.select(torch.as_tensor(scores)).positions.numpy()
        plain.train_on_batch(parts(some[rows]), labels[rows])
    model.fit(parts(x), y, batch_size=BATCH, shuffle=False, verbose=0)
    assert equal(model, plain)


class Counter(keras.layers.Layer):
    """Counts its calls, draws from a seed generator and reports a metric in any mode."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.seeds = keras.random.SeedGenerator(0)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, inputs):
        self.calls.assign(self.calls + 1)
        self.mean.update_state(keras.ops.mean(inputs))
        return inputs + 0 * keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)


def test_a_scoring_pass_leaves_no_trace():
    def made():
        return keras.Sequential([keras.Input([6]), Counter(), *network().layers])

    plain, model = compiled(made()), compiled(SelectiveBackprop(made(), 1.0, warmup=0))
    histories = []
    for each in (plain, model):
        torch.manual_seed(0)
        histories.append(fit(each, "arrays", data(), epochs=1).history)
        histories[-1]["chance"] = torch.rand(1).item()
    assert int(model.model.layers[0].calls) == 4
    one, other = (each.layers[0].seeds.state.value for each in (plain, model.model))
    assert torch.equal(one, other)
    assert histories[0] == histories[1]
    assert equal(model, plain)


def test_a_torch_module_within_is_in_training_mode_after_a_scoring_pass():
    def made():
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
        inside = keras.layers.TorchModuleWrapper(module, output_shape=(None, 4))
        return keras.Sequential(
            [
                keras.Input([6]),
                inside,
                keras.layers.Dense(
                    3, activation="softmax", kernel_initializer=keras.initializers.GlorotUniform(0)
                ),
            ]
        )

    plain, model = compiled(made()), compiled(SelectiveBackprop(made(), 1.0, warmup=0))
    for each in (plain, model):
        fit(each, "arrays", data(36))
    assert equal(model, plain)
    batch_norms = [each.layers[0].module[1] for each in (plain, model.model)]
    assert torch.equal(batch_norms[0].running_mean, batch_norms[1].running_mean)
    assert int(batch_norms[1].num_batches_tracked) == 6


class Counts(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps, self.batches, self.validations, self.rates = [], 0, 0, []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(self.params["steps"])

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_test_begin(self, logs=None):
        self.validations += 1


def test_steps_validations_and_learning_rates_are_those_of_plain_training():
    found = []
    for wrap in (lambda net: net, lambda net: SelectiveBackprop(net, KEEP, warmup=0)):
        rate = keras.optimizers.schedules.CosineDecay(0.1, 4 * 4)
        counts, early = Counts(), keras.callbacks.EarlyStopping(patience=9)
        model = compiled(wrap(network()), rate=rate, metrics=["accuracy"])
        history = fit(
            model, "arrays", data(), 4, validation_data=data(20, seed=1), callbacks=[counts, early]
        )
        found.append((counts.steps, counts.batches, counts.validations, counts.rates))
        names = {"accuracy", "loss", "val_accuracy", "val_loss"}
        assert set(history.history) == names
        assert int(model.optimizer.iterations) == 16
    assert found[0] == found[1]
    assert found[1][1:3] == (16, 4)
    assert found[1][3][-1] < 1e-3


def test_a_saved_model_predicts_the_same_and_goes_on_as_if_not_stopped(tmp_path):
    x, y = data()
    net = functools.partial(network, dropout=0.0)  # whose seeds Keras does not save
    whole = compiled(SelectiveBackprop(net(), KEEP, seed=3, warmup=0), metrics=["accuracy"])
    fit(whole, "arrays", (x, y), epochs=4)
    half = compiled(SelectiveBackprop(net(), KEEP, seed=3, warmup=0), metrics=["accuracy"])
    fit(half, "arrays", (x, y), epochs=2)
    half.save(tmp_path / "half.keras")
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    assert isinstance(loaded, SelectiveBackprop)
    assert np.array_equal(loaded.predict(x, verbose=0), half.predict(x, verbose=0))
    assert loaded.evaluate(x, y, verbose=0) == half.evaluate(x, y, verbose=0)
    fit(loaded, "arrays", (x, y), epochs=4, initial_epoch=2)
    assert equal(loaded, whole)

    whole.model.save(tmp_path / "inner.keras")
    inner = keras.saving.load_model(tmp_path / "inner.keras")
    assert type(inner) is keras.Sequential
    assert np.array_equal(inner.predict(x, verbose=0), whole.predict(x, verbose=0))


class Stop(keras.callbacks.Callback):
    """Breaks training off as an epoch begins."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def test_backup_and_restore_goes_on_as_if_not_stopped(tmp_path):
    def made():
        return compiled(SelectiveBackprop(network(dropout=0.0), KEEP, seed=3, warmup=0))

    whole, stopped, resumed = made(), made(), made()
    fit(whole, "arrays", data(), epochs=4)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, "arrays", data(), epochs=4, callbacks=[backup, Stop(2)])
    fit(resumed, "arrays", data(), epochs=4, callbacks=[backup])
    assert resumed.stats.seen == 2 * COUNT
    assert equal(resumed, whole)


def test_weights_of_other_settings_or_of_a_bare_model_are_refused(tmp_path):
    third, half = (
        compiled(SelectiveBackprop(network(), keep, warmup=0)) for keep in (1 / 3, 1 / 2)
    )
    third.save_weights(tmp_path / "third.weights.h5")
    with pytest.raises(ValueError, match=r"keep=0\.333"):
        half.load_weights(tmp_path / "third.weights.h5")
    third.model.save_weights(tmp_path / "bare.weights.h5")
    with pytest.raises(ValueError, match=r"wrapped\.model\.load_weights"):
        half.load_weights(tmp_path / "bare.weights.h5")


def test_a_selector_of_one_s_own_cannot_be_saved_with_the_model(tmp_path):
    model = compiled(
        SelectiveBackprop(network(), selector=Unbiased(Percentile(keep=KEEP)), warmup=0)
    )
    with pytest.raises(ConfigError, match="save_weights"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="softmax")

    def call(self, inputs):
        return self.dense(inputs)


def test_a_subclassed_model_that_is_not_built_yet_is_wrapped():
    model = compiled(SelectiveBackprop(Subclassed(), KEEP, warmup=0), metrics=["accuracy"])
    fit(model, "arrays", data())
    assert model.stats.backwards == 26
    assert model.predict(data()[0], verbose=0).shape == (COUNT, 3)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_that_of_the_wrapped_model(policy):
    keras.config.set_dtype_policy(policy)
    try:
        net = network(dropout=0.0)
    finally:
        keras.config.set_dtype_policy("float32")
    model = compiled(SelectiveBackprop(net, KEEP, warmup=0))
    fit(model, "arrays", data())
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales == (policy == "mixed_float16")
    assert model.stats.backwards == 26


def test_train_on_batch_and_eager_running_select_too():
    x, y = data(12)
    model = compiled(SelectiveBackprop(network(), KEEP, warmup=0), run_eagerly=True)
    model.train_on_batch(x, y)
    model.train_on_batch(x, y, sample_weight=np.ones(12))
    assert model.stats.backwards == 8


def two_outputs():
    inputs = keras.Input([6])
    return keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])


def test_several_outputs_are_refused():
    (x, _), y = data(), np.zeros((COUNT, 1), "float32")
    for loss in (["mse", "mse"], "mse"):
        model = compiled(SelectiveBackprop(two_outputs(), KEEP, warmup=0), loss)
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
    model = compiled(SelectiveBackprop(network(), KEEP, warmup=0), loss)
    with pytest.raises(LossError, match=f"the loss {loss.name}"):
        model.fit(x, np.eye(3)[y], verbose=0)


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


def test_what_would_be_bypassed_is_refused():
    with pytest.raises(ConfigError, match="OwnStep overrides train_step"):
        SelectiveBackprop(OwnStep(), warmup=0)
    with pytest.raises(ConfigError, match="given a Linear"):
        SelectiveBackprop(torch.nn.Linear(6, 3), 0.5, warmup=0)
    with pytest.raises(ConfigError, match="given a SelectiveBackprop"):
        LossRecorder(SelectiveBackprop(network(), 0.5, warmup=0))
    net = keras.Sequential([keras.Input([6]), keras.layers.Dense(3, activity_regularizer="l2")])
    model = SelectiveBackprop(net, 0.5, warmup=0)
    model.compile("sgd")
    with pytest.raises(LossError, match="targets"):
        model.fit(data()[0], verbose=0)


def test_compiled_steps_and_several_steps_in_one_are_refused():
    with pytest.raises(ConfigError, match="jit_compile"):
        fit(
            compiled(SelectiveBackprop(network(), KEEP, warmup=0), jit_compile=True),
            "arrays",
            data(),
        )
    several = compiled(SelectiveBackprop(network(), KEEP, warmup=0), steps_per_execution=2)
    with pytest.raises(ValueError, match="steps_per_execution"):
        fit(several, "arrays", data())


def test_another_backend_is_refused_in_one_sentence(monkeypatch):
    net = network()
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    for wrapper in (SelectiveBackprop, LossRecorder):
        with pytest.raises(ConfigError) as error:
            wrapper(net)
        assert str(error.value) == (
            f"{wrapper.__name__} needs Keras's torch backend, and this is tensorflow: set the "
            "environment variable KERAS_BACKEND=torch before keras is imported"
        )


def test_keras_that_is_not_installed_is_named_with_its_extra():
    code = "import sys; sys.modules['keras'] = None; import siftback.frameworks.keras"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs Keras 3: pip install siftback[keras]" in done.stderr


@pytest.mark.parametrize("backend", ["jax", "numpy", "tensorflow"])
def test_another_backend_that_is_installed_is_refused(backend):
    needed = "tensorflow" if backend == "tensorflow" else "jax"  # Keras's numpy backend needs it
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    code = (
        "import keras; from siftback.frameworks.keras import SelectiveBackprop\n"
        "SelectiveBackprop(keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]), 0.5)"
    )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert f"ConfigError: SelectiveBackprop needs Keras's torch backend, and this is {backend}" in (
        done.stderr
    )


def test_several_processes_are_refused(monkeypatch, tmp_path):
    from siftback.frameworks import keras_wrapper as ours

    monkeypatch.setattr(ours, "rank_and_world", lambda: (0, 2))
    with pytest.raises(ConfigError, match="one process"):
        fit(compiled(SelectiveBackprop(network(), KEEP, warmup=0)), "arrays", data())


# Memory


class Examples(Dataset):
    """Counts how often each example is read."""

    def __init__(self, *arrays):
        self.arrays, self.reads = arrays, np.zeros(len(arrays[0]), int)

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, index):
        self.reads[index] += 1
        return tuple(part[index] for part in self.arrays)


def remembering(**settings):
    settings = {"memory": Memory(keep=0.5, warmup=Epochs(1)), "epochs": 3, **settings}
    return MemoryDataset(data(), BATCH, **settings)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_only_what_is_drawn_is_read_and_each_once(workers):
    examples, counts = Examples(*data()), Counts()
    dataset = MemoryDataset(
        examples, BATCH, memory=Memory(keep=0.5, warmup=Epochs(1)), epochs=3, workers=workers
    )
    model, seen = compiled(LossRecorder(network()), metrics=["accuracy"]), []

    class Reads(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            examples.reads[:] = 0

        def on_epoch_end(self, epoch, logs=None):
            seen.append(sorted(examples.reads))

    assert (len(dataset), [dataset.steps(epoch) for epoch in range(3)]) == (4, [4, 2, 2])
    model.fit(dataset, epochs=3, verbose=0, callbacks=[counts, Reads()])
    half = [0] * 20 + [1] * 20
    assert seen == [[1] * 40, half, half]
    assert counts.steps == [4, 2, 2]
    assert counts.batches == int(model.optimizer.iterations) == dataset.total_steps == 8
    assert (model.stats.unread, model.stats.released, model.stats.scored) == (40, 80, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["", "threads", "processes"])
def test_each_loss_is_recorded_for_its_own_example(kind):
    arrays = (*data(), np.random.default_rng(1).uniform(1, 2, COUNT).astype("float32"))
    memory = Memory(keep=0.5, warmup=Epochs(1))
    reading = {"workers": 3, "use_multiprocessing": kind == "processes"} if kind else {}
    dataset = MemoryDataset(arrays, BATCH, memory=memory, epochs=3, **reading)
    net = network(dropout=0.0)
    net.layers[1].trainable = False  # whose outputs in training are those of its batch
    model = compiled(LossRecorder(net), rate=0.0)
    model.fit(dataset, epochs=3, verbose=0, validation_data=data(seed=2))
    x, y, weight = arrays
    losses = crossentropy(y, net.predict(x, verbose=0)) * weight
    assert memory.values[:, 0].tolist() == pytest.approx(losses.tolist(), rel=1e-4)


def test_loss_weights_of_a_rule_are_applied():
    arrays, settings = data(), {"seed": 4, "epochs": 4}
    plain, model = compiled(network()), compiled(LossRecorder(network()))
    sampler = SelectiveSampler(range(COUNT), InfoBatch(), **settings)
    weighed = 0
    for _ in range(4):
        order = torch.tensor(list(sampler))
        for indices in order.split(BATCH):
            x, y = (part[indices] for part in arrays)
            factors = sampler.draw.weights[indices].numpy()
            plain.train_on_batch(x, y, sample_weight=factors)
            weighed += (factors != 1).sum()
        losses = crossentropy(arrays[1], np.arange(COUNT)[:, None] + np.ones((COUNT, 3)))
        sampler.update(torch.arange(COUNT), torch.as_tensor(losses))
    assert weighed > 0

    dataset = MemoryDataset(arrays, BATCH, memory=InfoBatch(), **settings)
    given = torch.as_tensor(losses)
    update = dataset.update
    dataset.update = lambda indices, _: update(indices, given[indices])
    model.fit(dataset, epochs=4, verbose=0)
    assert equal(model, plain)
    with pytest.raises(TypeError, match="InfoBatch"):
        dataset.total_steps  # noqa: B018


def test_memory_goes_on_from_a_saved_model_as_if_not_stopped(tmp_path):
    def made():
        return compiled(LossRecorder(network(dropout=0.0))), remembering(epochs=5)

    (whole, data_set), (half, other) = made(), made()
    whole.fit(data_set, epochs=5, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        half.fit(other, epochs=5, verbose=0, callbacks=[Stop(3)])
    half.save(tmp_path / "half.keras")
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    loaded.fit(remembering(epochs=5), epochs=5, initial_epoch=3, verbose=0)
    assert equal(loaded, whole)

    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    (stopped, other), (resumed, another) = made(), made()
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(other, epochs=5, verbose=0, callbacks=[backup, Stop(2)])
    resumed.fit(another, epochs=5, verbose=0, callbacks=[backup])
    assert equal(resumed, whole)
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    with pytest.raises(StateError, match="seed=0"):
        loaded.fit(remembering(epochs=5, seed=1), epochs=5, verbose=0)


def test_what_does_not_go_with_a_memory_data_set_is_refused():
    dataset, model = remembering(), compiled(LossRecorder(network()))
    for settings, reason in (
        ({"epochs": 2}, "epochs=2"),
        ({"epochs": 3, "class_weight": {0: 1.0}}, "class_weight"),
        ({"epochs": 3, "steps_per_epoch": 2}, "steps_per_epoch"),
        ({"epochs": 3, "validation_data": dataset}, "validation_data"),
    ):
        with pytest.raises(ConfigError, match=reason):
            model.fit(dataset, verbose=0, **settings)
    with pytest.raises(ConfigError, match="given a ndarray"):
        model.fit(data()[0], verbose=0)
    with pytest.raises(ConfigError, match="carry the indices"):
        model.train_on_batch(*data(4))
    with pytest.raises(ConfigError, match="Stale is refreshed"):
        remembering(memory=Stale(keep=0.5, every=2, warmup=Epochs(0)))
    with pytest.raises(ConfigError, match="not an EpochRule"):
        remembering(memory=0.5)
    with pytest.raises(BatchError, match="1 parts"):
        MemoryDataset((data()[0],), memory=Memory(), epochs=3)
    with pytest.raises(ConfigError, match="correct"):
        model.fit(remembering(memory=Kakurenbo(0.3)), epochs=3, verbose=0)


def test_a_memory_data_set_is_neither_evaluated_on_nor_trained_on_without_a_recorder():
    dataset = remembering()
    for model in (compiled(network()), compiled(SelectiveBackprop(network(), 0.5, warmup=0))):
        with pytest.raises(ConfigError, match="LossRecorder"):
            model.fit(dataset, epochs=3, verbose=0)
    model = compiled(LossRecorder(network()))
    model.fit(dataset, epochs=3, verbose=0)
    with pytest.raises(ConfigError, match="with the data itself"):
        model.evaluate(dataset, verbose=0)
    assert np.isfinite(model.evaluate(*data(), verbose=0))


def test_a_loss_that_is_not_finite_is_refused():
    x, y = data()
    x[7] = np.nan
    for model, given in (
        (LossRecorder(network()), (remembering_of(x, y),)),
        (SelectiveBackprop(network(), 0.5, warmup=0), (x, y)),
    ):
        with pytest.raises(LossError, match="is nan"):
            compiled(model).fit(*given, epochs=3, verbose=0)


def remembering_of(x, y):
    return MemoryDataset((x, y), BATCH, memory=Memory(), epochs=3)


# Real data


@pytest.mark.slow
@pytest.mark.parametrize("method", ["memory", "selective-backprop"])
def test_the_keras_example_learns_mnist_and_prints_what_it_saved(method):
    example = [ROOT / "examples" / "keras_mnist.py", "--method", method]
    done = subprocess.run(
        [sys.executable, *example, "--examples", "1280", "--epochs", "4"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "holds no mnist" in done.stderr or "be reached" in done.stderr:
        pytest.skip("needs MNIST in SIFTBACK_DATA or ../shared/data")
    assert done.returncode == 0, done.stderr
    accuracy, counts = done.stdout.splitlines()[-2:]
    assert float(re.match(r"test accuracy ([\d.]+)%", accuracy)[1]) > 75
    if method == "memory":
        assert accuracy.endswith("after 50 of 50 steps")
        wanted = "3200 examples run backward, 0 scored and 1920 not read; "
    else:
        assert accuracy.endswith("after 80 of 80 steps")
        wanted = "2540 examples run backward, 3840 scored and 0 not read; "
    assert counts.startswith(wanted + "plain training: 5120 backward, ")
