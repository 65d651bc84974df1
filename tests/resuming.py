"""One harness for stopping after any step and going on elsewhere."""

import copy
import io

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from siftback import Fresh, Percentile, Pool, Schedule, SelectiveLoader, Share, Uniform
from siftback.selectors.uniform import All
from toys import dataset, network, optimizer_of, shuffled, step

EPOCHS = 2


class Stateful:
    """Batches in a new order each epoch, from a generator and a place that it saves itself."""

    batch_size = 8

    def __init__(self):
        self.batches = list(DataLoader(dataset(), self.batch_size))
        self.random, self.place, self.order = torch.Generator().manual_seed(3), 0, None

    def __iter__(self):
        if self.order is None:
            self.order = torch.randperm(len(self.batches), generator=self.random).tolist()
        while self.place < len(self.batches):
            self.place += 1
            yield self.batches[self.order[self.place - 1]]
        self.place, self.order = 0, None

    def state_dict(self):
        return {"random": self.random.get_state(), "place": self.place, "order": self.order}

    def load_state_dict(self, state):
        self.random.set_state(state["random"])
        self.place, self.order = state["place"], state["order"]


def with_own_sampler():
    sampler = RandomSampler(dataset(), generator=torch.Generator().manual_seed(4))
    return DataLoader(dataset(), batch_size=8, sampler=sampler)


def by_epoch():
    sampler = DistributedSampler(dataset(), num_replicas=1, rank=0)
    return DataLoader(dataset(), batch_size=8, sampler=sampler)


SOURCES = {
    "shuffled": shuffled,
    "shuffled, last batch dropped": lambda: shuffled(drop_last=True),
    "shuffled by the global generator": lambda: DataLoader(dataset(), 8, shuffle=True),
    "shuffled by the sampler's generator": with_own_sampler,
    "shuffled by the epoch": by_epoch,
    "in order": lambda: DataLoader(dataset(), 8),
    "list": lambda: list(DataLoader(dataset(), 8)),
    "stateful": Stateful,
}
ARGUMENTS = {
    "released": {"keep": 0.5},
    "dropped": {"keep": 0.5, "pool": Pool(8, drop_last=True)},
    "carried": {"keep": 0.5, "pool": Pool(8, drop_last="carry")},
    "smaller batches": {"selector": Percentile(keep=0.8, history=20), "pool": Pool(3)},
    "larger batches": {"keep": 0.5, "pool": Pool(20, drop_last="carry")},
    "all": {"selector": All()},
    "uniform": {"selector": Uniform(keep=0.5)},
    "warm-up": {
        "keep": 0.5,
        "schedule": Schedule(warmup=Share(0.25), end=Share(0.75)),
        "epochs": EPOCHS,
    },
    "train mode": {"keep": 0.5, "scorer": Fresh("train")},
}


def run(source, arguments, checkpoint=None, wrap=lambda loader, model: loader):
    """Trains, from a checkpoint on; gives batches, checkpoints of every step and the end state."""
    model = network()
    optimizer = optimizer_of(model)
    loader = SelectiveLoader(
        wrap(source(), model), model, F.cross_entropy, **copy.deepcopy(arguments)
    )
    torch.manual_seed(6)
    if checkpoint:
        state = torch.load(io.BytesIO(checkpoint), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["rng"])

    def save():
        file = io.BytesIO()
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "rng": torch.get_rng_state()}, file)
        checkpoints.append(file.getvalue())
        steps.append(len(batches))

    batches, checkpoints, steps = [], [], []
    save()
    while loader.epoch < EPOCHS:
        loader.set_epoch(loader.epoch)
        for batch in loader:
            step(model, optimizer, batch)
            batches.append(batch)
            save()
        save()
    end = {**model.state_dict(), "kept": loader.stats.kept, "seen": loader.stats.seen}
    return batches, list(zip(steps, checkpoints, strict=True)), end
