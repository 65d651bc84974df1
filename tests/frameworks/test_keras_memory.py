"""Keras 3: examples left out before they are read, by a SelectiveDataset and its losses."""

import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from siftback import Epochs, InfoBatch, Memory, SelectiveSampler

keras = pytest.importorskip("keras", reason="needs pip install siftback[keras]")

from keras_models import (  # noqa: E402
    BATCH,
    COUNT,
    Counts,
    Examples,
    compiled,
    crossentropy,
    data,
    equal,
    network,
    tagger,
)

from siftback.frameworks.keras import LossRecorder, SelectiveDataset  # noqa: E402


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_only_what_is_drawn_is_read_and_each_once(workers):
    examples, counts = Examples(*data()), Counts()
    dataset = SelectiveDataset(
        examples, BATCH, memory=Memory(keep=0.5, warmup=Epochs(1)), epochs=3, workers=workers
    )
    model, seen = compiled(LossRecorder(network()), metrics=["accuracy"]), []

    class Reads(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            examples.reads[:] = 0

        def on_epoch_end(self, epoch, logs=None):
            seen.append(sorted(examples.reads))

    assert len(dataset) == 4
    model.fit(dataset, epochs=3, verbose=0, callbacks=[counts, Reads()])
    assert seen[0] == [1] * 40
    for reads in seen[1:]:  # of two passes over half of them
        assert (sum(reads), max(reads)) == (40, 2)
    assert counts.steps == [4, 4, 4]
    assert counts.batches == int(model.optimizer.iterations) == dataset.total_steps == 12
    assert (model.stats.unread, model.stats.released, model.stats.scored) == (80, 120, 0)


def test_a_data_set_in_training_can_be_sent_to_processes_that_are_spawned():
    dataset = SelectiveDataset(data(), BATCH, memory=Memory(), epochs=3, use_multiprocessing=True)
    dataset.begin_epoch(0)
    sent = pickle.loads(ForkingPickler.dumps(dataset))
    assert np.array_equal(sent[0][0], dataset[0][0])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["", "threads", "processes"])
def test_each_loss_is_recorded_for_its_own_example(kind):
    arrays = (*data(), np.random.default_rng(1).uniform(1, 2, COUNT).astype("float32"))
    memory = Memory(keep=0.5, warmup=Epochs(1))
    reading = {"workers": 3, "use_multiprocessing": kind == "processes"} if kind else {}
    dataset = SelectiveDataset(arrays, BATCH, memory=memory, epochs=3, **reading)
    net = network(dropout=0.0)
    net.layers[1].trainable = False  # whose outputs in training are those of its batch
    model = compiled(LossRecorder(net), rate=0.0)
    model.fit(dataset, epochs=3, verbose=0, validation_data=data(seed=2))
    x, y, weight = arrays
    losses = crossentropy(y, net.predict(x, verbose=0)) * weight
    assert memory.values[:, 0].tolist() == pytest.approx(losses.tolist(), rel=1e-4)


@pytest.mark.parametrize("make", [network, tagger])
def test_loss_weights_of_a_rule_are_applied(make):
    arrays, settings = data(), {"seed": 4, "epochs": 4}
    losses = crossentropy(arrays[1], np.arange(COUNT)[:, None] + np.ones((COUNT, 3)))
    if make is tagger:
        tokens = np.arange(COUNT * 4).reshape(COUNT, 4)
        arrays = tokens % 5 * (tokens % 4 < 3), tokens % 3
    plain, model = compiled(make()), compiled(LossRecorder(make()))
    sampler = SelectiveSampler(range(COUNT), InfoBatch(), **settings)
    given, weighed = torch.as_tensor(losses), 0
    for _ in range(4):
        for batch in sampler.batches(BATCH):
            indices = torch.tensor(batch)
            sampler.draw.advance(len(batch))
            factors = sampler.draw.weights_of(indices).numpy()
            if make is tagger:  # of which Keras takes weights of positions alone
                factors = np.repeat(factors[:, None], 4, 1)
            plain.train_on_batch(*(part[batch] for part in arrays), sample_weight=factors)
            weighed += (factors != 1).sum()
            sampler.update(indices, given[indices])
    assert weighed > 0

    dataset = SelectiveDataset(arrays, BATCH, memory=InfoBatch(), **settings)
    update = dataset.update
    dataset.update = lambda indices, _: update(indices, given[indices])
    model.fit(dataset, epochs=4, verbose=0)
    assert equal(model, plain)
    assert int(model.optimizer.iterations) == dataset.total_steps == 16
