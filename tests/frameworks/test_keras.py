"""Keras 3 on its torch backend: selection within its step."""

import csv
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from siftback import Epochs, InBatch, InfoBatch, Memory, Percentile, SinglePass, TopK, Unbiased
from siftback.errors import ConfigError, TraceError

keras = pytest.importorskip("keras", reason="needs pip install siftback[keras]")

from keras_models import (  # noqa: E402
    BATCH,
    COUNT,
    KEEP,
    SPARSE,
    compiled,
    crossentropy,
    data,
    equal,
    fit,
    network,
    tagger,
)

from siftback.frameworks.keras import LossRecorder, SelectiveDataset, SelectiveModel  # noqa: E402

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("weighted", [False, True], ids=["", "sample_weight"])
@pytest.mark.parametrize("source", ["arrays", "DataLoader", "PyDataset1", "PyDataset0"])
def test_each_step_trains_on_the_rows_that_in_batch_chooses(source, weighted):
    arrays = data()
    if weighted:
        arrays += (np.random.default_rng(1).uniform(0, 3, COUNT).astype("float32"),)
    plain, model = compiled(network()), compiled(SelectiveModel(network(), KEEP, warmup=0))
    sizes = by_hand(plain, arrays, crossentropy)
    fit(model, source, arrays)
    assert sizes == [4, 4, 4, 2] * 2
    assert (model.stats.seen, model.stats.backwards) == (2 * COUNT, sum(sizes))
    assert equal(model, plain)


@pytest.mark.parametrize("source", ["arrays", "PyDataset1"])
def test_class_weights_stay_with_their_rows_and_are_part_of_the_score(source):
    (x, y), by_class = data(), {0: 0.1, 1: 5.0, 2: 1.0}
    plain, model = compiled(network()), compiled(SelectiveModel(network(), KEEP, warmup=0))
    weight = np.array([by_class[label] for label in y], dtype="float32")
    by_hand(plain, (x, y, weight), crossentropy)
    fit(model, source, (x, y), class_weight=by_class)
    assert equal(model, plain)


def test_keeping_all_is_training_without_selection_bit_for_bit():
    plain, model = compiled(network()), compiled(SelectiveModel(network(), keep=1.0, warmup=0))
    histories = [fit(each, "arrays", data()).history for each in (plain, model)]
    assert equal(model, plain)
    assert histories[0].items() <= histories[1].items()


def test_weights_of_a_selector_are_applied():
    plain = compiled(network())
    model = compiled(SelectiveModel(network(), selector=Unbiased(Percentile(keep=KEEP)), warmup=0))
    by_hand(plain, data(), crossentropy, selector=Unbiased(Percentile(keep=KEEP)))
    fit(model, "arrays", data())
    assert equal(model, plain)


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
    model = compiled(SelectiveModel(network(), KEEP, warmup=0), loss, 0.01)
    by_hand(plain, arrays, each)
    fit(model, "arrays", arrays)
    assert equal(model, plain)


@pytest.mark.parametrize("name", ["mse", "crossentropy", "huber", "BinaryCrossentropy"])
def test_losses_by_name_are_those_that_keras_trains_with(name):
    y = np.random.default_rng(0).integers(0, 2, 8)
    net = keras.Sequential([keras.Input([6]), keras.layers.Dense(1, activation="sigmoid")])
    model = compiled(SelectiveModel(net, 0.5, warmup=0), name)
    x = data(8)[0]
    found = model.losses_of(torch.as_tensor(y), net(x))
    one_by_one = [model.evaluate(x[i : i + 1], y[i : i + 1], verbose=0) for i in range(8)]
    assert found.tolist() == pytest.approx(one_by_one, rel=1e-5)


class Powers(keras.losses.Loss):
    """A loss of a user's own, whose power a callback may change."""

    power = 1.0

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** self.power, axis=-1)


def test_settings_of_a_loss_that_change_in_training_are_followed():
    loss = Powers()
    model = compiled(SelectiveModel(network(), 0.5, warmup=0), loss)
    y, outputs = torch.eye(3), torch.tensor([[0.5, 0.5, 0.0]] * 3)
    for power in (1.0, 2.0, 3.0):
        loss.power = power
        expected = (y - outputs).abs().pow(power).mean(1)
        assert model.losses_of(y, outputs).tolist() == pytest.approx(expected.tolist())


def test_masked_positions_are_no_part_of_a_sequence_s_loss():
    x = np.array([[1, 2, 0, 0], [1, 2, 3, 4], [2, 0, 0, 0]])
    y = np.arange(12).reshape(3, 4) % 3
    net = tagger()
    model = compiled(SelectiveModel(net, 0.5, warmup=0), SPARSE)
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


def test_positions_that_a_loss_ignores_are_no_part_of_a_sequence_s_loss():
    y, outputs = torch.tensor([[1, 0, 0], [1, 2, 0], [1, 2, 1]]), torch.rand(3, 3, 3).softmax(2)
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    model = compiled(SelectiveModel(network(), KEEP), loss)
    found = model.losses_of(y, outputs)
    wanted = -torch.log(outputs.gather(2, y[..., None]))[..., 0]
    means = [float(row[labels != 0].mean()) for row, labels in zip(wanted, y, strict=True)]
    assert found.tolist() == pytest.approx(means)


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
    plain, model = compiled(made()), compiled(SelectiveModel(made(), KEEP, warmup=0))
    for start in range(0, COUNT, BATCH):
        some, labels = x[start : start + BATCH], y[start : start + BATCH]
        scores = crossentropy(labels, plain.predict_on_batch(parts(some)))
        rows = in_batch.select(torch.as_tensor(scores)).positions.numpy()
        plain.train_on_batch(parts(some[rows]), labels[rows])
    model.fit(parts(x), y, batch_size=BATCH, shuffle=False, verbose=0)
    assert equal(model, plain)


@pytest.mark.parametrize("reweights", [False, True])
@pytest.mark.parametrize("nest", [lambda part: [part], lambda part: {"class": part}])
def test_an_output_alone_in_a_list_or_dict_is_as_without(nest, reweights):
    x, y = data()
    weight, models = np.linspace(0.5, 2, COUNT, dtype="float32"), []
    for pack in (lambda part: part, nest):
        net, selector = network(), Unbiased(Percentile(keep=KEEP)) if reweights else None
        inner = keras.Model(net.inputs, pack(net.outputs[0]))
        model = SelectiveModel(inner, None if reweights else KEEP, selector=selector, warmup=0)
        compiled(model, pack(SPARSE)).fit(
            x, pack(y), BATCH, sample_weight=pack(weight), shuffle=False, verbose=0
        )
        assert model.stats.kept < COUNT
        models.append(model)
    assert equal(*models)


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

    plain, model = compiled(made()), compiled(SelectiveModel(made(), 1.0, warmup=0))
    histories = []
    for each in (plain, model):
        torch.manual_seed(0)
        histories.append(fit(each, "arrays", data(), epochs=1).history)
        histories[-1]["chance"] = torch.rand(1).item()
    assert int(model.model.layers[0].calls) == 4
    one, other = (each.layers[0].seeds.state.value for each in (plain, model.model))
    assert torch.equal(one, other)
    assert histories[0].items() <= histories[1].items()
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

    plain, model = compiled(made()), compiled(SelectiveModel(made(), 1.0, warmup=0))
    for each in (plain, model):
        fit(each, "arrays", data(36))
    assert equal(model, plain)
    batch_norms = [each.layers[0].module[1] for each in (plain, model.model)]
    assert torch.equal(batch_norms[0].running_mean, batch_norms[1].running_mean)
    assert int(batch_norms[1].num_batches_tracked) == 6


class Own(torch.nn.Module):
    """A Keras model in a loop of one's own, which is in training when the module is."""

    def __init__(self, *layers):
        super().__init__()
        dense = keras.layers.Dense
        self.keras = keras.Sequential([keras.Input([6]), dense(8), *layers, dense(3)])

    def forward(self, x):
        return self.keras(x, training=self.training)


@pytest.mark.skipif(
    keras.__version__.startswith("3.10."),
    reason="torch.compile cannot trace the layers of Keras 3.10, which is a TraceError",
)
def test_a_keras_model_as_a_torch_module_is_trained_in_a_single_pass_where_it_can_be_traced():
    x, y = map(torch.as_tensor, data(12))
    cross_entropy = torch.nn.functional.cross_entropy
    net = Own(keras.layers.Dropout(0.0), keras.layers.LayerNormalization())
    single = SinglePass(net, cross_entropy, selector=TopK(keep=0.5))
    single(x, y).backward()
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    losses = cross_entropy(net(x), y, reduction="none")
    losses.topk(6).values.mean().backward()
    for one, other in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)
    with pytest.raises(TraceError, match="cannot trace"):
        SinglePass(Own(keras.layers.BatchNormalization()), cross_entropy, keep=0.5)(x, y)


WRAPPED = {
    "selective": lambda net: (SelectiveModel(net, KEEP, warmup=0), None),
    "memory": lambda net: (LossRecorder(net), Memory(warmup=Epochs(1))),
    "fixed memory": lambda net: (LossRecorder(net), Memory(keep=0.3, warmup=Epochs(1))),
    "weights": lambda net: (LossRecorder(net), InfoBatch()),
}


@pytest.mark.parametrize("wrap", ["selective", "fixed memory"])
def test_history_files_and_the_progress_bar_have_the_statistics(wrap, tmp_path, capsys):
    model, memory = WRAPPED[wrap](network())
    dataset = SelectiveDataset(data(), BATCH, memory=memory, epochs=3)
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = compiled(model).fit(dataset, epochs=3, callbacks=[logger]).history
    entries = model.stats.log_entries(model.share)
    assert {name: values[-1] for name, values in history.items() if name in entries} == entries
    assert 0 < entries["sift/share"] < 1
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    for name in entries:
        assert [float(row[name]) for row in rows] == history[name]
    printed = capsys.readouterr().out
    assert "sift/share" in printed
    assert not any(name in printed for name in entries.keys() - {"sift/share"})


def test_a_wrapper_shows_the_inputs_outputs_and_layers_of_its_model(capsys):
    for wrapper in (SelectiveModel(network(), KEEP), LossRecorder(network())):
        net = wrapper.model
        assert [tensor.shape for tensor in wrapper.inputs] == [(None, 6)]
        assert wrapper.outputs == net.outputs
        assert wrapper.layers == net.layers
        wrapper.summary()
        shown = capsys.readouterr().out
        net.summary()
        assert shown == capsys.readouterr().out


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="softmax")

    def call(self, inputs):
        return self.dense(inputs)


def test_a_subclassed_model_that_is_not_built_yet_is_wrapped():
    model = compiled(SelectiveModel(Subclassed(), KEEP, warmup=0), metrics=["accuracy"])
    fit(model, "arrays", data())
    assert model.stats.backwards == 28
    assert model.predict(data()[0], verbose=0).shape == (COUNT, 3)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_that_of_the_wrapped_model(policy):
    keras.config.set_dtype_policy(policy)
    try:
        net = network(dropout=0.0)
    finally:
        keras.config.set_dtype_policy("float32")
    model = compiled(SelectiveModel(net, KEEP, warmup=0))
    fit(model, "arrays", data())
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales == (policy == "mixed_float16")
    assert model.stats.backwards == 28


def test_train_on_batch_and_eager_running_select_too():
    x, y = data(12)
    model = compiled(SelectiveModel(network(), KEEP, warmup=0), run_eagerly=True)
    model.train_on_batch(x, y)
    model.train_on_batch(x, y, sample_weight=np.ones(12))
    assert model.stats.backwards == 8


@pytest.mark.slow
@pytest.mark.parametrize("method", ["memory", "selective-backprop"])
def test_the_keras_example_learns_mnist_and_prints_what_it_saved(method, monkeypatch, capsys):
    example = ROOT / "examples" / "keras_mnist.py"
    asked = [str(example), "--method", method, "--examples", "1280", "--epochs", "4"]
    monkeypatch.setattr(sys, "argv", asked)
    try:
        runpy.run_path(str(example), run_name="__main__")  # in this process, as imports are slow
    except ConfigError as error:
        if "holds no mnist" in str(error) or "could not be read" in str(error):
            pytest.skip("needs MNIST in SIFTBACK_DATA or ../shared/data")
        raise
    accuracy, counts = capsys.readouterr().out.splitlines()[-2:]
    assert float(re.match(r"test accuracy ([\d.]+)%", accuracy)[1]) > 75
    if method == "memory":
        assert accuracy.endswith("after 80 of 80 steps")
        wanted = "5120 examples run backward, 0 scored and 3840 left unread; "
    else:
        assert accuracy.endswith("after 80 of 80 steps")
        wanted = "2540 examples run backward, 3840 scored and 0 left unread; "
    assert counts == wanted + "plain training of as many epochs runs 5120 backward"
