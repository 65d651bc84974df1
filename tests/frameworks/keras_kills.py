"""Trainings in Keras that are killed again and again, for `test_keras_resuming`.

Each attempt is a process of its own.
"""

import os

import keras
import numpy as np
import torch
from keras_models import Examples, compiled, data, network, weights

from siftback import Epochs, Memory
from siftback.frameworks.keras import LossRecorder, SelectiveDataset, SelectiveModel
from started import processes

BATCH, EPOCHS, KILLED_AFTER = 8, 3, 4  # 5 batches of 8 an epoch
KILLED = 9  # the exit code


class Notes(keras.callbacks.Callback):
    """Writes down which examples each step trained on, and kills the process after some."""

    def __init__(self, examples, path, steps):
        super().__init__()
        self.examples, self.path, self.left = examples, path, steps

    def on_epoch_begin(self, epoch, logs=None):
        self.examples.order.clear()  # of what was read to build the model

    def on_train_batch_end(self, batch, logs=None):
        step, read = int(self.model.optimizer.iterations), self.examples.order
        with self.path.open("a") as file:
            print(step, *read, file=file)
        read.clear()
        self.left -= 1
        if self.left == 0:
            os._exit(KILLED)


def train(form, folder, steps):
    """Goes on with a training from its backup; kills this process after some steps."""
    torch.set_num_threads(1)  # a fork has none of the others
    folder.mkdir(exist_ok=True)
    if (folder / "backup").exists():
        torch.manual_seed(os.getpid())  # a restart has other random numbers
    else:
        torch.manual_seed(0)
    examples = Examples(*data())
    memory = Memory(keep=0.5, warmup=Epochs(1)) if form == "memory" else None
    dataset = SelectiveDataset(examples, BATCH, memory=memory, epochs=EPOCHS)
    net = network(dropout=0.5, unseeded=True)
    model = compiled(LossRecorder(net) if memory else SelectiveModel(net, 1 / 3), rate=0.01)
    model.optimizer.build(model.trainable_variables)
    backup = keras.callbacks.BackupAndRestore(folder / "backup", save_freq=3)
    notes = Notes(examples, folder / "steps.txt", steps)
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[backup, notes])
    np.savez(folder / "weights.npz", *weights(model))


def attempt(*arguments):
    """Whether a training in a process of its own came to its end."""
    process = processes().Process(target=train, args=arguments)
    process.start()
    process.join()
    assert process.exitcode in (0, KILLED)
    return process.exitcode == 0


def kills_of(form, out):
    """Trains without a stop, and with kills, and counts these."""
    assert attempt(form, out / form, -1)
    kills = 0
    while not attempt(form, out / f"{form}-killed", KILLED_AFTER):
        kills += 1
        assert kills < 30
    return kills
