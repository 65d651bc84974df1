"""Everything public that has a state: how it is made, put to use, and made with other settings."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import siftback
from pools import add
from resuming import Stateful, Stream, sampled
from siftback import (
    RS2,
    Annealing,
    Epochs,
    Fresh,
    GradientBound,
    InBatch,
    Indexed,
    InfoBatch,
    Kath18,
    Memory,
    NoiseGuard,
    Percentile,
    Pool,
    Schedule,
    ScoreTable,
    SelectiveLoader,
    SelectiveSampler,
    Share,
    Stale,
    TopK,
    Uniform,
)
from siftback.contrib import Pipelined
from siftback.pruning import AUM, Forgetting
from siftback.selectors.percentile import LossHistory
from stateful_parts import (
    COUNT,
    KEEP,
    RULES,
    SCORERS,
    SELECTORS,
    Kind,
    guarded,
    rand,
    with_defaults,
)
from toys import at_once, dataset, network


def train(loader, count=2):
    """An epoch, and a few steps of the next."""
    steps = iter(loader)
    for _ in steps:
        learn(loader)
    loader.batches_in_use = iter(loader)
    for _ in range(min(count, loader.stats.released)):
        if next(loader.batches_in_use, None) is not None:
            learn(loader)


def learn(loader):
    if loader.memory is not None:
        found = (loader.indices % 7).float() / 7 + 0.1
        assert loader.weights.shape == found.shape  # read, as a loop does to apply them
        loader.record(found, correct=found > 0.5, confidence=found.clamp(max=1))


NET = network()


def plain(count=44, batch_size=8, shuffle=True, drop_last=False, kind="shuffled"):
    if kind == "sampler":
        return sampled(SelectiveSampler(dataset(count), seed=3))
    if kind == "stream":
        return DataLoader(Indexed(Stream()), batch_size)
    if kind == "stateful":
        return Stateful()
    generator = torch.Generator().manual_seed(12)
    return DataLoader(
        dataset(count), batch_size, shuffle=shuffle, drop_last=drop_last, generator=generator
    )


SOURCE = ("count", "batch_size", "shuffle", "drop_last", "kind")


def selective(**arguments):
    source = plain(**{name: arguments.pop(name) for name in SOURCE if name in arguments})
    if "memory" in arguments:
        made = arguments.pop("memory")()
        model = {}
        if made.needs_passes:
            model = {"model": NET, "loss_fn": F.cross_entropy}
        return SelectiveLoader(source, memory=made, **({"epochs": 4} | model | arguments))
    given = {"keep": 0.5, "pool": Pool(5)} | arguments
    given["pool"] = copy.deepcopy(given["pool"])
    if "selector" in given:
        given["selector"] = given["selector"]()
        del given["keep"]
    return SelectiveLoader(source, NET, F.cross_entropy, **at_once(given))


def loader(defaults, others):
    return Kind(lambda **changes: selective(**(defaults | changes)), train, others)


SOURCES = {
    "examples": {"count": 45}, "batch size of the source": {"batch_size": 4},
    "another order": {"shuffle": False}, "seed": {"seed": 5},
}  # fmt: skip
HALF = Schedule(end=Share(0.5), warmup=Epochs(0))
LOADERS = {
    "selective": loader(
        {},
        SOURCES | KEEP | {
            "floor": {"selector": lambda: Percentile(keep=0.5, floor=0.2)},
            "history": {"selector": lambda: Percentile(keep=0.5, history=99)},
            "selector": {"selector": lambda: TopK(keep=0.5)},
            "scorer": {"scorer": GradientBound()},
            "setting of the scorer": {"scorer": Fresh("train")},
            "schedule": {"schedule": Schedule(end=Epochs(2), warmup=Epochs(0))},
            "exact": {"exact": False},
            "batch size": {"pool": Pool(6)},
            "drop last": {"pool": Pool(5, drop_last=True)},
            "source that drops": {"drop_last": True, "count": 44},
            "non-finite": {"on_nonfinite": "keep"},
            "memory": {"memory": lambda: Memory(keep=0.5, warmup=Epochs(1)), "keep": None,
                       "epochs": 4},
        },
    ),
    "annealed": loader(
        {"schedule": Schedule(warmup=Epochs(0), end=HALF.end, anneal=Annealing(until=Share(0.5))),
         "epochs": 4},
        {"epochs": {"epochs": 5}, "anneal": {"schedule": HALF}},
    ),
    "carried": loader(
        {"pool": Pool(30, drop_last="carry"), "batch_size": 20},
        {"carry": {"pool": Pool(30)}},
    ),
    "weighted": loader(
        {"selector": lambda: Kath18(keep=0.5), "attach": True},
        {"momentum": {"selector": lambda: Kath18(keep=0.5, momentum=0.5)}},
    ),
    "uniform over another's state": loader(
        {"selector": lambda: Uniform(keep=0.5), "kind": "stateful"},
        {"another loader": {"kind": "shuffled"}},
    ),
    "memory": loader(
        {"memory": lambda: Memory(keep=0.5, warmup=Epochs(1))},
        SOURCES | {
            "keep": {"memory": lambda: Memory(keep=0.3, warmup=Epochs(1))},
            "floor": {"memory": lambda: Memory(keep=0.5, floor=0.2, warmup=Epochs(1))},
            "decay": {"memory": lambda: Memory(keep=0.5, decay=0.2, warmup=Epochs(1))},
            "guard": {"memory": lambda: guarded(warmup=Epochs(1))},
            "warm-up": {"memory": lambda: Memory(keep=0.5, warmup=Epochs(2))},
            "tail": {"memory": lambda: Memory(keep=0.5, warmup=Epochs(1), tail=Share(0.2))},
            "rule": {"memory": lambda: RS2(keep=0.5, warmup=Epochs(1))},
            "pool": {"pool": Pool(5)},
            "schedule": {"schedule": Schedule(warmup=Epochs(1), end=Epochs(3))},
        },
    ),
    "guarded memory, in shares": loader(
        {"memory": lambda: guarded(warmup=Share(0.25), tail=Share(0.25)), "attach": True},
        {"epochs": {"epochs": 8}},
    ),
    "infobatch of a sampler": loader(
        {"memory": lambda: InfoBatch(0.5, 1.0), "kind": "sampler"},
        {"ratio": {"memory": lambda: InfoBatch(0.4, 1.0)}},
    ),
    "stale": loader(
        {"memory": lambda: Stale(0.5, every=2, warmup=Epochs(0))},
        {"every": {"memory": lambda: Stale(0.5, every=3, warmup=Epochs(0))}},
    ),
    "memory of a stream": loader(
        {"memory": lambda: Memory(keep=0.5, warmup=Epochs(1)), "kind": "stream"}, {}
    ),
}  # fmt: skip


def draw_from(sampler):
    for _ in range(2):
        for index in sampler:
            if sampler.draw is not None:
                loss = torch.tensor([index / 7], dtype=torch.float32)
                sampler.update(torch.tensor([index]), loss)
    order = iter(sampler)
    next(order)


def sampler(rule=lambda: Memory(keep=0.5, warmup=Epochs(1)), count=COUNT, **arguments):
    made = None if rule is None else rule()
    return SelectiveSampler(range(count), made, **({"seed": 3, "epochs": 4} | arguments))


def in_stateful_loader(**arguments):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(torch.arange(COUNT), 4, sampler=sampler(**arguments))


def read_some(loader):
    batches = iter(loader)
    next(batches), next(batches)
    loader.batches_in_use = batches


def choose(in_batch):
    for seed in range(3):
        in_batch.select(rand(COUNT, seed))


def step(sift):
    inputs, targets = dataset(8).tensors
    for _ in range(2):
        sift(inputs, targets).backward()


def fill(pool):
    add(pool, (torch.arange(3).float(), torch.arange(3)))
    add(pool, (torch.arange(2).float(), torch.arange(2)))


def recorded(recorder):
    indices = torch.arange(5)
    for seed in range(2):
        if isinstance(recorder, Forgetting):
            recorder.update(indices, rand(5, seed) > 0.5)
        else:
            recorder.update(indices, rand(15, seed).view(5, 3), indices % 3)


class Single:
    """The part of a `SinglePass` that a state of its own describes, without the model's."""

    def __init__(self, **arguments):
        model = nn.Linear(5, 3, dtype=torch.float32)
        arguments = {"keep": 0.5, "check": False} | arguments
        self.sift = siftback.SinglePass(model, F.cross_entropy, **arguments)

    def __call__(self, *batch):
        return self.sift(*batch)

    def state_dict(self):
        return self.sift.get_extra_state()

    def load_state_dict(self, state):
        self.sift.set_extra_state(state)


def pipelined(**arguments):
    given = {"place": "cpu", "depth": 2, "sync_every": 2} | arguments
    return Pipelined(plain(shuffle=False), NET, F.cross_entropy, **given)


def observe(guard):
    for seed in range(3):
        guard.observe(torch.arange(COUNT), rand(COUNT, seed) * 3)


SELDOM = Schedule(interrupt=3, warmup=Epochs(0))
OTHERS = {
    "sampler": Kind(
        sampler, draw_from,
        KEEP_OF_SAMPLER := {
            "keep": {"rule": lambda: Memory(keep=0.3, warmup=Epochs(1))},
            "rule": {"rule": lambda: RS2(0.5, warmup=Epochs(1))},
            "no rule": {"rule": None}, "seed": {"seed": 4}, "examples": {"count": 25},
            "in order": {"shuffle": False}, "rank": {"rank": 0, "world": 2, "rule": None},
            "warm-up": {"rule": lambda: Memory(keep=0.5, warmup=Epochs(2))},
        },
    ),
    "sampler without a rule": Kind(
        lambda **given: sampler(**({"rule": None} | given)), draw_from,
        {"rule": {"rule": lambda: Memory(keep=0.5, warmup=Epochs(1))}, "seed": {"seed": 4}},
    ),
    "sampler in shares": Kind(
        lambda **given: sampler(rule=lambda: Memory(keep=0.5), **given), draw_from,
        {"epochs": {"epochs": 40}},
    ),
    "batches of a sampler": Kind(
        lambda **given: sampler(**given).batches(4), lambda batches: next(iter(batches)),
        {"seed": {"seed": 4}, "examples": {"count": 25}},
    ),
    "in batch": Kind(
        with_defaults(InBatch, keep=0.5, schedule=SELDOM, steps_per_epoch=9),
        choose,
        KEEP | {"selector": {"keep": None, "selector": TopK(keep=0.5)}, "seed": {"seed": 1},
                "schedule": {"schedule": Schedule(interrupt=2, warmup=Epochs(0))},
                "no schedule": {"schedule": None}, "steps": {"steps_per_epoch": 8}},
    ),
    "single pass": Kind(
        Single, step,
        KEEP | {"selector": {"keep": None, "selector": TopK(keep=0.5)}, "seed": {"seed": 1}},
    ),
    "pool": Kind(
        with_defaults(Pool, batch_size=9, drop_last="carry"), fill,
        {"batch size": {"batch_size": 8}, "drop last": {"drop_last": True}},
    ),
    "history": Kind(
        with_defaults(LossHistory, size=9),
        lambda history: history.rank(rand(12)),
        {"size": {"size": 8}},
    ),
    "table": Kind(
        lambda columns=2: ScoreTable(3, columns),
        lambda table: table.record(torch.arange(2), rand(2 * table.columns).view(2, -1)),
        {"columns": {"columns": 1}},
    ),
    "guard": Kind(
        with_defaults(NoiseGuard, classes=4), observe,
        {"cap": {"cap": 0.5}, "visits": {"visits": 2}, "classes": {"classes": 5}},
    ),
    "forgetting": Kind(
        lambda examples=5: Forgetting(examples), recorded, {"examples": {"examples": 6}},
    ),
    "aum": Kind(lambda examples=5: AUM(examples), recorded, {"examples": {"examples": 6}}),
    "pipelined": Kind(
        pipelined, read_some, {"depth": {"depth": 1}, "sync_every": {"sync_every": 3}},
    ),
}  # fmt: skip

KINDS = {
    f"{room}: {name}": kind
    for room, kinds in (
        ("selector", SELECTORS), ("scorer", SCORERS), ("rule", RULES), ("loader", LOADERS),
        ("other", OTHERS),
    )
    for name, kind in kinds.items()
}  # fmt: skip
