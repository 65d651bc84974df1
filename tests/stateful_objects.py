"""Everything public that has a state: how it is made, put to use, and made with other settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import pictures
from resuming import Stateful, Stream, sampled
from siftback import (
    IES,
    RS2,
    UCB,
    Annealing,
    Ema,
    Epochs,
    Fresh,
    GradientBound,
    InBatch,
    InBatchRank,
    Indexed,
    InfoBatch,
    Irreducible,
    Kakurenbo,
    Kath18,
    Memory,
    NoiseGuard,
    Percentile,
    Pool,
    Reduced,
    Schedule,
    ScoreTable,
    SelectiveLoader,
    SelectiveSampler,
    SeTa,
    Share,
    SinglePass,
    SoftTopK,
    Stale,
    Threshold,
    TopK,
    Unbiased,
    Uniform,
)
from siftback.contrib import Downsampled, GaussianProcess, Int8, Pipelined, Proxy
from siftback.pruning import AUM, Forgetting
from siftback.rules.ewma import Ewma
from siftback.selectors.history import LossHistory
from siftback.selectors.uniform import All
from toys import dataset, network, seeded

COUNT = 24


@dataclass(frozen=True)
class Kind:
    """An object with a state.

    Attributes:
        make: Makes it; keyword arguments change its settings.
        use: Has it come by a state.
        others: Other settings, by name, with which it is another object.
        free: Of which entries of its state any value of the right type and shape is right, as a
            regular expression: values that training found, and counts for the user to read.
        theirs: Which entries are the user's own objects, and anything may be right.
    """

    make: Callable[..., Any]
    use: Callable[[Any], None]
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    free: str = "^$"
    theirs: str = "^$"


def select(selector):
    for seed in range(3):
        selector.select(torch.rand(COUNT, generator=seeded(seed)), seeded(seed))


def with_defaults(kind, **defaults):
    return lambda **changes: kind(**(defaults | changes))


def selector(kind, defaults, others, free="^$"):
    return Kind(with_defaults(kind, **defaults), select, others, free)


def unbiased(*, inner=None, keep=0.5, **arguments):
    return Unbiased(inner or Percentile(keep=keep, history=30), **({"floor": 0.2} | arguments))


KEEP = {"keep": {"keep": 0.3}}
SELECTORS = {
    "percentile": selector(
        Percentile, {"keep": 0.5, "history": 30},
        KEEP | {"floor": {"floor": 0.2}, "history": {"history": 40}}, r"history\.losses",
    ),
    "uniform": selector(Uniform, {"keep": 0.5}, KEEP),
    "all": selector(All, {}, {}),
    "kath18": selector(
        Kath18, {"keep": 0.5},
        KEEP | {"replace": {"replace": False}, "reweight": {"reweight": False},
                "threshold": {"threshold": 2.0}, "momentum": {"momentum": 0.5}},
    ),
    "top-k": selector(TopK, {"keep": 0.5}, KEEP),
    "soft top-k": selector(
        SoftTopK, {"keep": 0.5}, KEEP | {"temperature": {"temperature": 2.0}}
    ),
    "in-batch rank": selector(InBatchRank, {"keep": 0.5}, KEEP),
    "moving threshold": selector(
        Threshold, {"keep": 0.5, "history": 30}, KEEP | {"history": {"history": 40}},
        r"history\.losses",
    ),
    "fixed threshold": selector(Threshold, {"above": 0.5}, {"above": {"above": 0.4}}),
    "unbiased": Kind(
        unbiased, select,
        KEEP | {"floor": {"floor": 0.1}, "inner": {"inner": TopK(keep=0.5)},
                "self_normalised": {"self_normalised": True}}, r"history\.losses",
    ),
}  # fmt: skip

MODEL = nn.Sequential(
    nn.Conv2d(1, 2, 3),
    nn.BatchNorm2d(2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(2, pictures.CLASSES),
)


def score(scorer):
    for seed in range(3):
        batch = pictures.batch(seed)
        scorer.score(pictures.CROSS_ENTROPY, MODEL, batch, torch.arange(COUNT))
        scorer.after_step(pictures.CROSS_ENTROPY, MODEL, batch)
    scorer.score(pictures.CROSS_ENTROPY, MODEL, pictures.batch(3), torch.arange(COUNT))


def proxy(trained=True, inner=None, wider=False, momentum=0.9):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5 if wider else 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=momentum)
    return Proxy(model, optimizer if trained else None, inner)


def irreducible(count=COUNT, inner=None):
    return Irreducible(torch.linspace(0, 1, count), inner)


PASS = {"mode": {"mode": "train"}}
INNER = {"inner": {"scorer": GradientBound()}}
SCORERS = {
    "fresh": Kind(Fresh, score, PASS | {"autocast": {"autocast": torch.bfloat16}}),
    "gradient bound": Kind(
        GradientBound, score, PASS | {"autocast": {"autocast": torch.bfloat16}}
    ),
    "reduced": Kind(
        with_defaults(Reduced, refresh=5), score,
        PASS | {"precision": {"precision": "fp16"}, "refresh": {"refresh": 6},
                "channels_last": {"channels_last": True}}, r"copy\.",
    ),
    "ema": Kind(Ema, score, INNER | {"decay": {"decay": 0.5}}, r"average\."),
    "irreducible": Kind(
        irreducible, score,
        {"inner": {"inner": GradientBound()}, "examples": {"count": 25}}, "losses",
    ),
    "proxy": Kind(
        proxy, score,
        {"inner": {"inner": GradientBound()}, "trained": {"trained": False},
         "model": {"wider": True}},
        r"model\.|optimizer\.state|forwards|backwards|param_groups\.\d\.(?!params)",
        theirs=r"^optimizer\.state",
    ),
    "downsampled": Kind(Downsampled, score, INNER | {"factor": {"factor": 4}}),
    "int8": Kind(
        with_defaults(Int8, refresh=5, activations="static"), score,
        PASS | {"activations": {"activations": "dynamic"}, "refresh": {"refresh": 6},
                "channels_last": {"channels_last": True}}, r"copy\.",
        theirs=r"range$",  # which is measured again where there is none
    ),
}  # fmt: skip


def teach(rule):
    rule.grow(COUNT)
    for epoch in range(4):
        indices = torch.randperm(COUNT, generator=seeded(epoch))[: COUNT // 2]
        losses = torch.rand(len(indices), generator=seeded(epoch + 9)) * 3
        if isinstance(rule, Stale | Ewma | GaussianProcess):
            rule.rescore(indices, losses, epoch)
        rule.update(indices, losses, epoch, correct=losses > 1, confidence=losses / 3)
        rule.draw(epoch, seeded(epoch))


def rule(kind, defaults, others, free=r"table\.values"):
    return Kind(with_defaults(kind, **defaults), teach, others, free)


def guarded(**arguments):
    guard = {name: arguments.pop(name) for name in ("cap", "visits") if name in arguments}
    return Memory(**({"keep": 0.5, "guard": NoiseGuard(**({"visits": 1} | guard))} | arguments))


PREDICT = {"predict": {"predict": "loss"}, "threshold_share": {"threshold_share": 0.5},
           "optimism": {"optimism": 1.0}, "every": {"every": 4},
           "scorer": {"scorer": GradientBound()}}  # fmt: skip
RULES = {
    "memory": rule(
        Memory, {"keep": 0.5}, KEEP | {"floor": {"floor": 0.2}, "decay": {"decay": 0.5},
                                       "guard": {"guard": NoiseGuard()}},
    ),
    "guarded memory": rule(
        guarded, {}, KEEP | {"cap": {"cap": 0.1}, "visits": {"visits": 2}, "none": {"guard": None}},
        r"table\.values|guard\.(losses|held_back)",
    ),
    "infobatch": rule(
        InfoBatch, {"ratio": 0.5}, {"ratio": {"ratio": 0.4}, "delta": {"delta": 0.5}}
    ),
    "rs2": rule(RS2, {"keep": 0.3}, {"keep": {"keep": 0.4}, "replaced": {"replacement": True}}),
    "kakurenbo": rule(
        Kakurenbo, {"ratio": 0.3}, {"ratio": {"ratio": 0.4}, "threshold": {"threshold": 0.2}}
    ),
    "ucb": rule(
        UCB, {"keep": 0.5, "every": 2},
        KEEP | {"c": {"c": 2.0}, "decay": {"decay": 0.5}, "every": {"every": 3}},
        r"table\.values",
    ),
    "seta": rule(
        SeTa, {}, {"ratio": {"ratio": 0.3}, "groups": {"groups": 5}, "window": {"window": 1.0},
                   "delta": {"delta": 0.5}}, r"table\.values|draws",
    ),
    "ies": rule(
        IES, {"window": 1}, {"threshold": {"threshold": 0.3}, "window": {"window": 2},
                             "keep": {"keep": 0.5}},
    ),
    "stale": rule(
        Stale, {"keep": 0.5}, KEEP | {"every": {"every": 4}, "scorer": {"scorer": GradientBound()}}
    ),
    "ewma": rule(
        Ewma, {"keep": 0.5, "predict": "probability"}, KEEP | PREDICT | {"decay": {"decay": 0.2}},
        r"table\.values|threshold\.recent",
    ),
    "process": rule(
        GaussianProcess, {"keep": 0.5, "predict": "probability", "history": 2},
        KEEP | PREDICT | {"noise": {"noise": 0.5}, "length_scale": {"length_scale": 2.0},
                          "history": {"history": 3}},
        r"table\.values|threshold\.recent",
    ),
}  # fmt: skip


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
        found = loader.indices % 7 / 7 + 0.1
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
        if isinstance(made, Stale):
            model = {"model": NET, "loss_fn": F.cross_entropy}
        return SelectiveLoader(source, memory=made, **({"epochs": 4} | model | arguments))
    given = {"keep": 0.5, "pool": Pool(5)} | arguments
    if "selector" in given:
        given["selector"] = given["selector"]()
        del given["keep"]
    return SelectiveLoader(source, NET, F.cross_entropy, **given)


def loader(defaults, others):
    free = (
        r"history\.losses|table\.values|guard\.(losses|held_back)|stats\.|pool\.dropped|"
        # An index that no example has is an error as it is read; the number of a loader's batches
        # bounds the place in it, which of a loader with a state of its own is in that.
        r"drawn\.weights|rest\.indices|rows\.indices|source\.(batches|position)|"
        r"pool\.pool\.\d+\.[12]"
    )
    return Kind(
        lambda **changes: selective(**(defaults | changes)),
        train,
        others,
        free,
        theirs=r"pool\.pool\.\d+\.0|source\.loader",
    )


SOURCES = {
    "examples": {"count": 45}, "batch size of the source": {"batch_size": 4},
    "another order": {"shuffle": False}, "seed": {"seed": 5},
}  # fmt: skip
HALF = Schedule(end=Share(0.5))
LOADERS = {
    "selective": loader(
        {},
        SOURCES | KEEP | {
            "floor": {"selector": lambda: Percentile(keep=0.5, floor=0.2)},
            "history": {"selector": lambda: Percentile(keep=0.5, history=99)},
            "selector": {"selector": lambda: TopK(keep=0.5)},
            "scorer": {"scorer": GradientBound()},
            "setting of the scorer": {"scorer": Fresh("train")},
            "schedule": {"schedule": Schedule(end=Epochs(2))},
            "exact": {"exact": True},
            "batch size": {"pool": Pool(6)},
            "drop last": {"pool": Pool(5, drop_last=True)},
            "source that drops": {"drop_last": True, "count": 44},
            "non-finite": {"on_nonfinite": "keep"},
            "memory": {"memory": lambda: Memory(keep=0.5, warmup=Epochs(1)), "keep": None,
                       "epochs": 4},
        },
    ),
    "annealed": loader(
        {"schedule": Schedule(end=HALF.end, anneal=Annealing(until=Share(0.5))), "epochs": 4},
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
        {"memory": lambda: Stale(0.5, every=2)},
        {"every": {"memory": lambda: Stale(0.5, every=3)}},
    ),
    "memory of a stream": loader(
        {"memory": lambda: Memory(keep=0.5, warmup=Epochs(1)), "kind": "stream"}, {}
    ),
}  # fmt: skip


def draw_from(sampler):
    for _ in range(2):
        for index in sampler:
            if sampler.draw is not None:
                sampler.update(torch.tensor([index]), torch.tensor([index / 7]))
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
        in_batch.select(torch.rand(COUNT, generator=seeded(seed)))


def step(sift):
    inputs, targets = dataset(8).tensors
    for _ in range(2):
        sift(inputs, targets).backward()


def fill(pool):
    pool.add((torch.arange(3.0), torch.arange(3)))
    pool.add((torch.arange(2.0), torch.arange(2)))


def recorded(recorder):
    indices = torch.arange(5)
    for seed in range(2):
        if isinstance(recorder, Forgetting):
            recorder.update(indices, torch.rand(5, generator=seeded(seed)) > 0.5)
        else:
            recorder.update(indices, torch.rand(5, 3, generator=seeded(seed)), indices % 3)


class Single:
    """The part of a `SinglePass` that a state of its own describes, without the model's."""

    def __init__(self, **arguments):
        self.sift = SinglePass(
            nn.Linear(5, 3), F.cross_entropy, **({"keep": 0.5, "check": False} | arguments)
        )

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
        guard.observe(torch.arange(COUNT), torch.rand(COUNT, generator=seeded(seed)) * 3)


SELDOM = Schedule(interrupt=3)
OTHERS = {
    "sampler": Kind(
        sampler, draw_from,
        KEEP_OF_SAMPLER := {
            "keep": {"rule": lambda: Memory(keep=0.3, warmup=Epochs(1))},
            "rule": {"rule": lambda: RS2(0.5, warmup=Epochs(1))},
            "no rule": {"rule": None}, "seed": {"seed": 4}, "examples": {"count": 25},
            "in order": {"shuffle": False}, "rank": {"rank": 0, "world": 2, "rule": None},
            "warm-up": {"rule": lambda: Memory(keep=0.5, warmup=Epochs(2))},
        }, r"table\.values",
    ),
    "sampler without a rule": Kind(
        lambda **given: sampler(**({"rule": None} | given)), draw_from,
        {"rule": {"rule": lambda: Memory(keep=0.5, warmup=Epochs(1))}, "seed": {"seed": 4}},
    ),
    "sampler in shares": Kind(
        lambda **given: sampler(rule=lambda: Memory(keep=0.5), **given), draw_from,
        {"epochs": {"epochs": 40}}, r"table\.values",
    ),
    "in batch": Kind(
        with_defaults(InBatch, keep=0.5, schedule=SELDOM, steps_per_epoch=9),
        choose,
        KEEP | {"selector": {"keep": None, "selector": TopK(keep=0.5)}, "seed": {"seed": 1},
                "schedule": {"schedule": Schedule(interrupt=2)},
                "no schedule": {"schedule": None}, "steps": {"steps_per_epoch": 8}},
        r"history\.losses|steps",
    ),
    "single pass": Kind(
        Single, step,
        KEEP | {"selector": {"keep": None, "selector": TopK(keep=0.5)}, "seed": {"seed": 1}},
        r"history\.losses|stats",
    ),
    "pool": Kind(
        with_defaults(Pool, batch_size=9, drop_last="carry"), fill,
        {"batch size": {"batch_size": 8}, "drop last": {"drop_last": True}},
        r"dropped", theirs=r"^pool\.\d",
    ),
    "history": Kind(
        with_defaults(LossHistory, size=9),
        lambda history: history.rank(torch.rand(12, generator=seeded())),
        {"size": {"size": 8}}, "losses",
    ),
    "table": Kind(
        lambda columns=2: ScoreTable(3, columns),
        lambda table: table.record(torch.arange(2), torch.rand(2, table.columns)),
        {"columns": {"columns": 1}}, "values",
    ),
    "guard": Kind(
        NoiseGuard, observe, {"cap": {"cap": 0.5}, "visits": {"visits": 2}},
        r"losses|held_back",
    ),
    "forgetting": Kind(
        lambda examples=5: Forgetting(examples), recorded, {"examples": {"examples": 6}},
    ),
    "aum": Kind(lambda examples=5: AUM(examples), recorded, {"examples": {"examples": 6}}, "sum"),
    "pipelined": Kind(
        pipelined, read_some, {"depth": {"depth": 1}, "sync_every": {"sync_every": 3}},
        r"waiting|weights|syncs|lag|turn|rest\.indices|source\.(batches|position)",
        theirs=r"waiting\.\d+\.0|^lags",
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
