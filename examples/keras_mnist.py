"""Trains on MNIST in Keras 3, on the examples that are worth it.

With --method selective-backprop a third of each batch is trained on, after a scoring pass. With
--method memory an epoch has as many batches as without, of passes over half of the examples, drawn
by their last losses; the others are not even read. MNIST is read from the folder SIFTBACK_DATA or
../shared/data, or else from the Hugging Face hub; loading it needs the extras lab and keras.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # before keras is imported

import keras

from siftback import Memory
from siftback.frameworks.keras import LossRecorder, SelectiveDataset, SelectiveModel
from siftback.lab.data.load import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--method", choices=["selective-backprop", "memory"], default="memory")
parser.add_argument("--examples", type=int, default=60000, help="of the training set")
parser.add_argument("--epochs", type=int, default=5)
asked = parser.parse_args()

data = load("mnist", train_limit=asked.examples)
x, y = (data.train_inputs.permute(0, 2, 3, 1) / 255).numpy(), data.train_labels.numpy()
test = data.test_inputs.permute(0, 2, 3, 1)[: len(x)] / 255, data.test_labels[: len(x)]

keras.utils.set_random_seed(0)
net = keras.Sequential(
    [
        keras.Input([28, 28, 1]),
        keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
if asked.method == "memory":
    model = LossRecorder(net)
    batches = SelectiveDataset((x, y), 64, memory=Memory(keep=0.5), epochs=asked.epochs)
    source, steps = {"x": batches}, batches.total_steps
else:
    model = SelectiveModel(net, keep=1 / 3)
    source, steps = {"x": x, "y": y, "batch_size": 64}, -(-len(x) // 64) * asked.epochs
rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
optimizer, loss = keras.optimizers.Adam(rate), "sparse_categorical_crossentropy"
model.compile(optimizer, loss, metrics=["accuracy"])
model.fit(**source, epochs=asked.epochs, verbose=2, validation_data=test, validation_batch_size=500)

accuracy = model.evaluate(*test, batch_size=500, verbose=0)[1]
stats, plain = model.stats, asked.epochs * len(x)
print(f"test accuracy {accuracy:.2%} after {int(model.optimizer.iterations)} of {steps} steps")
print(
    f"{stats.backwards} examples run backward, {stats.scored} scored and {stats.unread} left "
    f"unread; plain training of as many epochs runs {plain} backward"
)
