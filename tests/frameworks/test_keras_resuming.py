"""Keras 3: training goes on from saved weights as if it had not stopped."""

import numpy as np
import pytest
import torch

from siftback import Epochs, InfoBatch, Memory, Percentile, Unbiased
from siftback.errors import ConfigError, StateError

keras = pytest.importorskip("keras", reason="needs pip install siftback[keras]")

from keras_kills import kills_of  # noqa: E402
from keras_models import (  # noqa: E402
    BATCH,
    COUNT,
    KEEP,
    Stop,
    compiled,
    data,
    equal,
    fit,
    network,
    remembering,
)

from siftback.frameworks.keras import (  # noqa: E402
    LossRecorder,
    SelectiveDataset,
    SelectiveModel,
)


def test_a_saved_model_predicts_the_same_and_goes_on_as_if_not_stopped(tmp_path):
    x, y = data()
    whole = compiled(SelectiveModel(network(), KEEP, seed=3), metrics=["accuracy"])
    fit(whole, "arrays", (x, y), epochs=4)
    half = compiled(SelectiveModel(network(), KEEP, seed=3), metrics=["accuracy"])
    fit(half, "arrays", (x, y), epochs=2)
    half.save(tmp_path / "half.keras")
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    assert isinstance(loaded, SelectiveModel)
    assert np.array_equal(loaded.predict(x, verbose=0), half.predict(x, verbose=0))
    assert loaded.evaluate(x, y, verbose=0) == half.evaluate(x, y, verbose=0)
    fit(loaded, "arrays", (x, y), epochs=4, initial_epoch=2)
    assert equal(loaded, whole)

    whole.model.save(tmp_path / "inner.keras")
    inner = keras.saving.load_model(tmp_path / "inner.keras")
    assert type(inner) is keras.Sequential
    assert np.array_equal(inner.predict(x, verbose=0), whole.predict(x, verbose=0))


def test_backup_and_restore_goes_on_as_if_not_stopped(tmp_path):
    def made():
        return compiled(SelectiveModel(network(), KEEP, seed=3))

    whole, stopped, resumed = made(), made(), made()
    fit(whole, "arrays", data(), epochs=4)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, "arrays", data(), epochs=4, callbacks=[backup, Stop(2)])
    fit(resumed, "arrays", data(), epochs=4, callbacks=[backup])
    assert resumed.stats.seen == 2 * COUNT
    assert equal(resumed, whole)


def test_memory_goes_on_from_a_saved_model_as_if_not_stopped(tmp_path):
    def made():
        return compiled(LossRecorder(network())), remembering(epochs=5)

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


def test_weights_of_other_settings_or_of_a_bare_model_are_refused(tmp_path):
    third, half = (compiled(SelectiveModel(network(), keep)) for keep in (1 / 3, 1 / 2))
    third.save_weights(tmp_path / "third.weights.h5")
    with pytest.raises(ValueError, match=r"keep=0\.333"):
        half.load_weights(tmp_path / "third.weights.h5")
    third.model.save_weights(tmp_path / "bare.weights.h5")
    with pytest.raises(ValueError, match=r"wrapped\.model\.load_weights"):
        half.load_weights(tmp_path / "bare.weights.h5")


def test_a_selector_of_one_s_own_cannot_be_saved_with_the_model(tmp_path):
    model = compiled(SelectiveModel(network(), selector=Unbiased(Percentile(keep=KEEP))))
    with pytest.raises(ConfigError, match="save_weights"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")


# Within an epoch


@pytest.mark.parametrize("form", ["memory", "selective-backprop"])
def test_a_training_that_is_killed_again_and_again_is_the_same_bit_for_bit(form, tmp_path):
    assert kills_of(form, tmp_path) >= 3

    def steps(folder):
        found = {}
        for line in (tmp_path / folder / "steps.txt").read_text().splitlines():
            step, *read = map(int, line.split())
            assert found.setdefault(step, read) == read
        return found

    whole = steps(form)
    assert len(whole) == 15
    assert steps(f"{form}-killed") == whole
    one, other = (np.load(tmp_path / name / "weights.npz") for name in (form, f"{form}-killed"))
    assert len(one.files) > 5
    assert all(np.array_equal(one[name], other[name]) for name in one.files)


class Saves(keras.callbacks.Callback):
    """Saves the weights after every step and every epoch."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        self.model.save_weights(self.folder / f"{step}.weights.h5")

    def on_epoch_end(self, epoch, logs=None):
        self.model.save_weights(self.folder / f"epoch{epoch}.weights.h5")


RULES = {
    "memory": lambda: Memory(keep=0.5, warmup=Epochs(1)),
    "adaptive memory": lambda: Memory(warmup=Epochs(1)),
    "weights": lambda: InfoBatch(0.7, 1.0),
}


def training(form, arrays=None, **settings):
    """A compiled model and its data set, of 4 batches an epoch where it is of no other arrays."""
    net = network(unseeded=True)
    if form in RULES:
        return compiled(LossRecorder(net)), remembering(memory=RULES[form](), **settings)
    model = compiled(SelectiveModel(net, 1 / 3))
    return model, SelectiveDataset(arrays or data(), BATCH, epochs=3, **settings)


def loaded(form, path, **settings):
    model, dataset = training(form, **settings)
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    return model, dataset


@pytest.fixture(scope="module", params=[*RULES, "selective-backprop"])
def saved(request, tmp_path_factory):
    """A training without a stop, and the weights that it saved on its way."""
    folder = tmp_path_factory.mktemp("saved")
    keras.utils.set_random_seed(5)
    model, dataset = training(request.param)
    model.fit(dataset, epochs=3, verbose=0, callbacks=[Saves(folder)])
    return request.param, folder, model


@pytest.mark.sampled(3)
def test_weights_go_on_where_workers_read_and_between_epochs(saved):
    form, folder, whole = saved
    assert int(whole.optimizer.iterations) == 12
    for name, epoch in (("3", 0), ("7", 1), ("epoch0", 1)):
        torch.manual_seed(epoch)
        model, dataset = loaded(form, folder / f"{name}.weights.h5", workers=2)
        model.fit(dataset, epochs=3, initial_epoch=epoch, verbose=0)
        assert equal(model, whole)


@pytest.mark.parametrize("stop", [2, 3])  # the last batch of an epoch is next, or a full one
def test_a_first_batch_of_one_row_is_trained_on(stop, tmp_path):
    form, arrays = "selective-backprop", data(2 * BATCH + 1)
    whole, dataset = training(form, arrays)
    whole.fit(dataset, epochs=3, verbose=0, callbacks=[Saves(tmp_path)])
    resumed, dataset = loaded(form, tmp_path / f"{stop}.weights.h5", arrays=arrays)
    resumed.fit(dataset, epochs=3, initial_epoch=stop // 3, verbose=0)
    assert equal(resumed, whole)


@pytest.mark.sampled(3)
def test_weights_saved_within_an_epoch_are_refused_where_it_does_not_go_on(saved, tmp_path):
    form, folder, _ = saved
    path = folder / "2.weights.h5"
    for settings, given, reason in (
        (
            {},
            {"initial_epoch": 1},
            r"after 2 batches of epoch 0 .* epoch 1 .*initial_epoch=0",
        ),
        ({"seed": 1}, {}, "seed=0"),
        ({"shuffle": False}, {}, "shuffle=True"),
    ):
        model, dataset = loaded(form, path, **settings)
        with pytest.raises(StateError, match=reason):
            model.fit(dataset, epochs=3, verbose=0, **given)
    model, dataset = loaded(form, path)
    dataset.batch_size = 10
    with pytest.raises(StateError, match="batch_size=12"):
        model.fit(dataset, epochs=3, verbose=0)

    class Loads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.load_weights(path)

    model, dataset = training(form)
    with pytest.raises(ValueError, match="loaded within epoch 0"):
        model.fit(dataset, epochs=3, verbose=0, callbacks=[Loads()])
    again, dataset = loaded(form, path)
    again.save_weights(tmp_path / "again.weights.h5")  # with the place that was loaded
    model, dataset = loaded(form, tmp_path / "again.weights.h5")
    with pytest.raises(StateError, match="after 2 batches of epoch 0"):
        model.fit(dataset, epochs=3, initial_epoch=1, verbose=0)


def test_arrays_go_on_between_epochs_bit_for_bit_and_warn_within_one(tmp_path):
    def made():
        model = compiled(SelectiveModel(network(unseeded=True), KEEP))
        model.optimizer.build(model.trainable_variables)
        return model

    shuffled = {"batch_size": BATCH, "epochs": 3, "verbose": 0}
    keras.utils.set_random_seed(5)
    whole = made()
    whole.fit(*data(), **shuffled, callbacks=[Saves(tmp_path)])
    for epoch in (0, 1):
        torch.manual_seed(epoch)
        model = made()
        model.load_weights(tmp_path / f"epoch{epoch}.weights.h5")
        model.fit(*data(), **shuffled, initial_epoch=epoch + 1)
        assert equal(model, whole)
    for source in ("arrays", "DataLoader", "PyDataset0"):
        model = made()
        model.load_weights(tmp_path / "5.weights.h5")
        with pytest.warns(UserWarning, match="after 1 batches of epoch 1, .* begins epoch 1"):
            fit(model, source, data(), 3, initial_epoch=1)
    model = made()
    model.load_weights(tmp_path / "5.weights.h5")
    with pytest.raises(StateError, match="of epoch 1 of other data"):
        model.fit(SelectiveDataset(data(), BATCH, epochs=3), epochs=3, initial_epoch=1, verbose=0)


def test_a_training_that_was_interrupted_is_saved_where_it_stands(tmp_path):
    class Interrupts(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 5:
                raise KeyboardInterrupt

    (whole, dataset), (half, other) = training("memory"), training("memory")
    keras.utils.set_random_seed(5)
    whole.fit(dataset, epochs=3, verbose=0)
    keras.utils.set_random_seed(5)
    with pytest.raises(KeyboardInterrupt):
        half.fit(other, epochs=3, verbose=0, callbacks=[Interrupts()])
    half.save(tmp_path / "half.keras")
    model = keras.saving.load_model(tmp_path / "half.keras")
    model.fit(remembering(), epochs=3, initial_epoch=1, verbose=0)
    assert equal(model, whole)
    # In the rest of an epoch and one more, 68 were read, each of which stands for two.
    assert (model.stats.seen, model.stats.released) == (2 * 68, 68)
