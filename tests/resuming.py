"""One harness for stopping after any step and going on elsewhere, for everything stateful."""

import copy
import io
import itertools

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from siftback import (
    Epochs,
    Fresh,
    Indexed,
    Memory,
    Percentile,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Share,
    Uniform,
)
from toys import All, assert_same, at_once, dataset, network, optimizer_of, seeded, shuffled

EPOCHS = 2


def check_resumes(make, every=1):
    """Stopping after any step, and going on elsewhere from what was saved, changes nothing.

    Args:
        make: ``make() -> (parts, steps, end)``: what has a state, by name; ``steps()``, which gives
            what each step gave, from wherever the parts are until the end, and None where a state
            is to be saved too; and ``end()``, what is compared then.
        every: Of how many steps one is stopped after.
    """
    parts, steps, end = make()
    torch.manual_seed(6)
    given, states = [], [(0, saved(parts))]
    for one in steps():
        given += [] if one is None else [copy.deepcopy(one)]
        states.append((len(given), saved(parts)))
    expected = copy.deepcopy(end())
    assert len(given) > 1
    for done, state in states[::every]:
        parts, steps, same_end = make()
        restore(parts, state)
        assert_same([one for one in steps() if one is not None], given[done:])
        assert_same(same_end(), expected)


def saved(parts):
    """The states of all parts and of PyTorch's global generator, as a file."""
    file = io.BytesIO()
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"parts": states, "random": torch.get_rng_state()}, file)
    return file.getvalue()


def restore(parts, state):
    """Loads what was saved, without running any code that may be in it."""
    state = torch.load(io.BytesIO(state), weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state["parts"][name])
    torch.set_rng_state(state["random"])


class Counter:
    """The progress of a loop of a test's own."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Random:
    """A generator, as a part that has a state."""

    def __init__(self, seed):
        self.generator = seeded(seed)

    def state_dict(self):
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["state"])


class Stateful:
    """Batches in a new order each epoch, from a generator and a place that it saves itself."""

    batch_size = 8

    def __init__(self):
        self.batches = list(DataLoader(dataset(), self.batch_size))
        self.random, self.place, self.order = seeded(3), 0, None

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


class Wrapper:
    """Has the methods of a loader with a state, of one that has none."""

    batch_size = 8

    def __init__(self, answer):
        self.batches, self._answer = list(DataLoader(dataset(), self.batch_size)), answer

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)

    def state_dict(self):
        if isinstance(self._answer, type):
            raise self._answer("no state here")
        return self._answer

    def load_state_dict(self, state):
        raise AssertionError("it never gave a state")


class Stream(IterableDataset):
    """The examples one after the other."""

    def __iter__(self):
        return iter(dataset())


class ByLength(BatchSampler):
    """Batches of a sampler's examples, whose order is a generator's of their own."""

    def __init__(self, sampler, generator):
        super().__init__(sampler, 8, drop_last=False)
        self.order = generator

    def __iter__(self):
        batches = list(super().__iter__())
        if isinstance(self.order, torch.Generator):
            order = torch.randperm(len(batches), generator=self.order).tolist()
        else:
            order = self.order.permutation(len(batches)).tolist()
        return iter([batches[place] for place in order])


def sampled(sampler, **options):
    return DataLoader(dataset(), 8, sampler=sampler, **options)


def torchdatas(data=None, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset() if data is None else data, 8, **options)


# Their order cannot be known beforehand, or they have no state of their own.
UNORDERED = {
    "list": lambda: list(DataLoader(dataset(), 8)),
    "stateful": Stateful,
    "state_dict that raises": lambda: Wrapper(NotImplementedError),
    "state_dict that is missing": lambda: Wrapper(AttributeError),
    "state_dict of nothing": lambda: Wrapper(None),
    "stream": lambda: DataLoader(Stream(), 8),
    "torchdata's, of a stream": lambda: torchdatas(Stream()),
}
ORDERED = {
    "shuffled": shuffled,
    "shuffled, last batch dropped": lambda: shuffled(drop_last=True),
    "shuffled by the global generator": lambda: DataLoader(dataset(), 8, shuffle=True),
    "shuffled by the sampler's generator": lambda: sampled(
        RandomSampler(dataset(), generator=seeded(4))
    ),
    "shuffled by the epoch": lambda: sampled(DistributedSampler(dataset(), 1, 0)),
    "in order": lambda: DataLoader(dataset(), 8),
    "torchdata's": lambda: torchdatas(shuffle=True, generator=seeded(12)),
    "selective sampler": lambda: sampled(SelectiveSampler(dataset(), seed=3)),
    "torchdata's, selective sampler": lambda: torchdatas(
        sampler=SelectiveSampler(dataset(), seed=3)
    ),
    "batch sampler": lambda: DataLoader(
        dataset(), batch_sampler=BatchSampler(RandomSampler(dataset()), 8, True)
    ),
}
OWN = {
    "batch sampler with a generator": lambda: DataLoader(
        dataset(), batch_sampler=ByLength(RandomSampler(dataset(), generator=seeded(1)), seeded(2))
    ),
    "batch sampler with NumPy's generator": lambda: DataLoader(
        dataset(), batch_sampler=ByLength(range(44), np.random.default_rng(2))
    ),
    "drawn with replacement, in parts": lambda: sampled(
        RandomSampler(dataset(), replacement=True, num_samples=70, generator=seeded(1))
    ),
}
SOURCES = UNORDERED | ORDERED | OWN
FILTERED = {
    "weighted": lambda: sampled(
        WeightedRandomSampler(torch.rand(44, generator=seeded(0)), 60, generator=seeded(1))
    ),
    "batches of a selective sampler": lambda: DataLoader(
        dataset(), batch_sampler=ByLength(SelectiveSampler(dataset()), seeded(2))
    ),
    "stream": lambda: DataLoader(Indexed(Stream()), 8),
}
PERSISTENT = {"num_workers": 2, "persistent_workers": True}
WORKERS = {
    "persistent, loader's generator": lambda: shuffled(**PERSISTENT),
    "persistent, global generator": lambda: DataLoader(dataset(), 8, shuffle=True, **PERSISTENT),
    "persistent, sampler's generator": lambda: sampled(
        RandomSampler(dataset(), generator=seeded(4)), **PERSISTENT
    ),
    "torchdata's": lambda: torchdatas(shuffle=True, generator=seeded(12), num_workers=2),
}

SELECTIVE = {
    "released": {"keep": 0.5},
    "dropped": {"keep": 0.5, "pool": Pool(8, drop_last=True)},
    "carried": {"keep": 0.5, "pool": Pool(8, drop_last="carry")},
    "smaller batches": {"selector": Percentile(keep=0.8, history=20), "pool": Pool(3)},
    "larger batches": {"keep": 0.5, "pool": Pool(20, drop_last="carry")},
    "all": {"selector": All()},
    "uniform": {"selector": Uniform(keep=0.5)},
    "by chance": {"keep": 0.5, "exact": False},
    "warm-up": {
        "keep": 0.5,
        "schedule": Schedule(warmup=Share(0.25), end=Share(0.75)),
        "epochs": EPOCHS,
    },
    "train mode": {"keep": 0.5, "scorer": Fresh(mode="train")},
}
MEMORY = {
    "memory": {"memory": Memory(keep=0.5, warmup=Epochs(1))},
    "memory, carried": {
        "memory": Memory(keep=0.5, warmup=Epochs(0), decay=0.5),
        "pool": Pool(5, drop_last="carry"),
    },
    "memory with a tail": {"memory": Memory(keep=0.4, warmup=Share(0.0), tail=Share(0.25))},
}


def training(source, arguments, build=network, wrap=lambda loader, model: loader):
    """For `check_resumes`: a whole training over a source, or over what wraps it."""

    def make():
        model = build()
        optimizer = optimizer_of(model)
        loss_fn = None if "memory" in arguments else F.cross_entropy
        given = {"epochs": EPOCHS} | copy.deepcopy(arguments)
        wrapped = wrap(source(), model)
        if loss_fn is None:
            loader = SelectiveLoader(wrapped, **at_once(given))
        else:
            loader = SelectiveLoader(wrapped, model, loss_fn, **at_once(given))

        def steps():
            while loader.epoch < EPOCHS:
                loader.set_epoch(loader.epoch)
                for inputs, targets in loader:
                    weights = loader.weights.clone()
                    losses = F.cross_entropy(model(inputs), targets, reduction="none")
                    loader.loss(losses).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    yield inputs, targets, weights, loader.progress
                yield None

        def end():
            stats = vars(loader.stats) | {"seconds_selection": 0}
            scorer = None if loader.scorer is None else loader.scorer.state_dict()
            return model.state_dict(), scorer, stats, loader.progress

        return {"model": model, "optimizer": optimizer, "loader": loader}, steps, end

    return make


def selecting(make_selector, batches, count=None):
    """For `check_resumes`: a selector alone, over batches of scores."""
    seeds = itertools.count()  # a state takes the place of the seed

    def make():
        selector, random, done = make_selector(), Random(next(seeds)), Counter()

        def steps():
            for scores in batches[done.value :]:
                done.value += 1
                yield tuple(selector.select(scores, random.generator, count))

        return {"selector": selector, "random": random, "done": done}, steps, selector.state_dict

    return make
