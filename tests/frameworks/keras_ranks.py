"""A process of two, for `test_keras_processes`."""

import copy
import datetime

import keras
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from siftback import Epochs, InBatch, Memory, SelectiveLoader
from siftback.errors import ConfigError
from siftback.frameworks.keras import LossRecorder, SelectiveDataset, SelectiveModel
from toys import AT_ONCE, numbered_examples

COUNT, BATCH, EPOCHS = 41, 4, 3  # 41 examples: an odd number for two processes
STOP = {"memory": 7, "selective-backprop": 7}  # steps, within an epoch
METHODS = ("memory", "selective-backprop", "in_batch")


def data():
    return numbered_examples(COUNT, 3)


class Network(nn.Module):
    """Calls a Keras model in its own mode, which a Keras model that is called alone is not."""

    def __init__(self, norm):
        super().__init__()
        start = keras.initializers.GlorotUniform(3 + distributed.get_rank())  # DDP makes it one
        layers = [keras.layers.Dense(8, kernel_initializer=start)]
        layers += [norm(), keras.layers.ReLU(), keras.layers.Dropout(0.3, seed=0)]
        self.keras = keras.Sequential(
            [keras.Input([2]), *layers, keras.layers.Dense(3, kernel_initializer=start)]
        )

    def forward(self, inputs):
        return self.keras(inputs[:, 1:], training=self.training)


def train(method, *, norm=keras.layers.LayerNormalization, epochs=EPOCHS, state=None):
    """Trains, or goes on from a state; saves the states after `STOP` steps."""
    keras.utils.clear_session()  # so that layers have the names that they have in a new process
    net, in_batch, saved = Network(norm), InBatch(keep=0.5), None
    if method == "in_batch":
        sampler = DistributedSampler(data(), seed=2, drop_last=True)
        loader = DataLoader(data(), BATCH, sampler=sampler)
    elif method == "memory":
        rule = Memory(keep=0.5, warmup=Epochs(1))
        plain = DataLoader(data(), BATCH, shuffle=True)
        loader = SelectiveLoader(plain, memory=rule, epochs=EPOCHS)
    else:
        plain = DataLoader(data(), BATCH, sampler=DistributedSampler(data(), drop_last=True))
        given = {"keep": 0.5, "exact": True, "schedule": AT_ONCE}
        loader = SelectiveLoader(plain, net, F.cross_entropy, epochs=EPOCHS, **given)
    ddp = DistributedDataParallel(net)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    if state is not None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    seen = []
    for epoch in range(0 if method == "in_batch" else loader.epoch, epochs):
        if method == "in_batch":
            sampler.set_epoch(epoch)
        net.train()
        for x, y in loader:
            seen.append((epoch, x[:, 0].long().tolist()))
            optimizer.zero_grad()
            losses = F.cross_entropy(ddp(x), y, reduction="none")
            if method == "in_batch":
                loss = losses[in_batch.select(losses.detach()).positions].mean()
            else:
                loss = loader.loss(losses)
            loss.backward()
            optimizer.step()
            if len(seen) == STOP.get(method) and state is None:
                whole = {"net": net, "optimizer": optimizer, "loader": loader}
                states = {name: each.state_dict() for name, each in whole.items()}
                saved = copy.deepcopy({"states": states, "before": seen})
    found = {"seen": seen, "rank": distributed.get_rank(), "saved": saved}
    found["weights"] = [p.detach().clone() for p in net.parameters() if p.requires_grad]
    found["others"] = [p.detach().clone() for p in net.parameters() if not p.requires_grad]
    return found


def refusals():
    """The errors of ``fit()`` of each wrapper in two processes."""
    x, y = (part.numpy() for part in data().tensors)
    dataset = SelectiveDataset((x, y), memory=Memory(), epochs=1)
    said = []
    for wrapper, given in ((SelectiveModel, (x, y)), (LossRecorder, (dataset,))):
        net = keras.Sequential([keras.Input([3]), keras.layers.Dense(3, activation="softmax")])
        model = wrapper(net, 0.5) if wrapper is SelectiveModel else wrapper(net)
        model.compile("sgd", "sparse_categorical_crossentropy")
        try:
            model.fit(*given, epochs=1, verbose=0)
        except ConfigError as error:
            said.append(str(error))
    return said


def main(out):
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    found = {method: train(method) for method in METHODS}
    for method in STOP:
        saved = found[method].pop("saved")
        resumed = train(method, state=saved["states"])
        found[f"{method} resumed"] = {**resumed, "before": saved["before"]}
    found["normalised"] = train("in_batch", norm=keras.layers.BatchNormalization, epochs=1)
    found["refused"] = refusals()
    torch.save(found, out / f"{distributed.get_rank()}.pt")
