"""A model and data for the tests of Keras, and trainings of it."""

import keras
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from siftback import Epochs, Memory
from siftback.frameworks.keras import SelectiveDataset

COUNT, BATCH, KEEP = 40, 12, 1 / 3  # the last batch of an epoch has 4 examples
SPARSE = "sparse_categorical_crossentropy"


def data(count=COUNT, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, count)
    x = generator.normal(size=(count, 6)) + np.eye(6)[y] * 2
    return x.astype("float32"), y


def network(seed=0, dropout=0.5, unseeded=False):
    """One with all that a scoring pass could disturb, the same for a seed.

    A second dropout, which is unseeded, draws from PyTorch's own random numbers.
    """
    layers, start = keras.layers, keras.initializers.GlorotUniform(seed)
    return keras.Sequential(
        [
            keras.Input([6]),
            layers.Dense(8, kernel_initializer=start, activity_regularizer="l2"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(dropout, seed=seed),
            *([layers.Dropout(0.2)] if unseeded else []),
            layers.Dense(
                3, activation="softmax", kernel_initializer=start, kernel_regularizer="l2"
            ),
        ]
    )


def tagger():
    """One that labels each token of a sequence, from which zeros are masked."""
    embedding = keras.layers.Embedding(5, 4, mask_zero=True, embeddings_initializer="ones")
    start = keras.initializers.GlorotUniform(0)
    dense = keras.layers.Dense(3, activation="softmax", kernel_initializer=start)
    return keras.Sequential([keras.Input([4]), embedding, dense])


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


def crossentropy(y, y_pred):
    return -np.log(y_pred[np.arange(len(y)), y])


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


class Stop(keras.callbacks.Callback):
    """Breaks training off as an epoch begins."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


class Examples(Dataset):
    """Counts how often each example is read, and in which order."""

    def __init__(self, *arrays):
        self.arrays, self.reads, self.order = arrays, np.zeros(len(arrays[0]), int), []

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, index):
        self.reads[index] += 1
        self.order.append(index)
        return tuple(part[index] for part in self.arrays)


def remembering(**settings):
    settings = {"memory": Memory(keep=0.5, warmup=Epochs(1)), "epochs": 3, **settings}
    return SelectiveDataset(data(), BATCH, **settings)
