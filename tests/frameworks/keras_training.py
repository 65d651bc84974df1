"""The training of every framework, by ``fit`` of Keras on its torch backend."""

import keras
import numpy as np
import torch
from trainings import BATCH, EPOCHS, IN_STEP, KEEP, Run, data

from siftback.frameworks.keras import LossRecorder, SelectiveDataset, SelectiveModel


class Noting(keras.layers.Layer):
    """Notes the examples of each batch that the model is trained on."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def call(self, inputs, training=False):
        if training and isinstance(inputs, torch.Tensor) and inputs.device.type != "meta":
            self.batches.append(inputs[:, 0].int().tolist())
        return inputs[:, 1:]


class Progress(keras.callbacks.Callback):
    """Notes rates and lengths, and saves the weights after each step."""

    def __init__(self, training):
        super().__init__()
        self.training_of, self.validations, self.totals = training, 0, []

    def on_epoch_begin(self, epoch, logs=None):
        self.totals.append(self.params["steps"])

    def on_train_batch_end(self, batch, logs=None):
        self.training_of.rates.append(float(self.model.optimizer.learning_rate))
        if self.training_of.saves:
            self.model.save_weights(self.path(int(self.model.optimizer.iterations)))

    def on_test_begin(self, logs=None):
        self.validations += 1

    def path(self, step):
        return self.training_of.folder / f"{step}.weights.h5"


def train(training):
    keras.utils.set_random_seed(6 if training.resumed else 5)
    start, noting = keras.initializers.GlorotUniform(0), Noting()
    layers = [noting, keras.layers.Dense(8, kernel_initializer=start)]
    if training.dropout:  # one with random numbers of Keras, and one with PyTorch's
        rates = training.dropout
        layers += [keras.layers.BatchNormalization()]
        layers += [keras.layers.Dropout(rates, seed=0), keras.layers.Dropout(rates)]
    layers += [keras.layers.Dense(3, activation="softmax", kernel_initializer=start)]
    model = net = keras.Sequential([keras.Input([6]), *layers])
    arrays = tuple(part.numpy() for part in data().tensors)
    dataset, steps = dict(zip("xy", arrays, strict=True)) | {"batch_size": BATCH}, 6 * EPOCHS
    if training.selection:
        model = (
            SelectiveModel(net, KEEP, warmup=0)
            if training.selection == IN_STEP
            else (LossRecorder(net))
        )
        selective = SelectiveDataset(arrays, BATCH, memory=training.rule, epochs=EPOCHS)
        dataset, steps = {"x": selective}, selective.total_steps
    rate = training.rate
    if training.decays:
        rate = keras.optimizers.schedules.CosineDecay(rate, steps)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy")
    progress = Progress(training)
    if training.resumed:
        model.optimizer.build(model.trainable_variables)
        model.load_weights(progress.path(training.resumed))
    model.fit(
        **dataset, epochs=EPOCHS, initial_epoch=training.resumed // 6, verbose=0,
        validation_data=(arrays[0], arrays[1] * 0), callbacks=[progress], **training.options,
    )  # fmt: skip
    lengths = {"steps": int(model.optimizer.iterations), "totals": progress.totals}
    lengths |= {"validations": progress.validations}
    inputs, targets = arrays
    predicted = net.predict(inputs, verbose=0)[np.arange(len(targets)), targets]
    weights = [torch.as_tensor(np.asarray(each.value.detach())) for each in net.weights]
    stats = model.stats if training.selection else None
    losses = -torch.as_tensor(np.log(predicted))
    return Run(noting.batches, training.rates, lengths, weights, stats, losses)
