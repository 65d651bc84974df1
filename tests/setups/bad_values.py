"""Bad values of every kind, and everything public that takes an argument."""

import copy
import functools
import inspect

import numpy as np
import torch
from test_states_sealed import SETTINGS
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import siftback
from siftback import (
    RS2,
    Annealing,
    Epochs,
    InBatch,
    Indexed,
    Memory,
    NoiseGuard,
    Percentile,
    Pool,
    Schedule,
    ScoreTable,
    SelectiveLoader,
    SelectiveSampler,
    Share,
    TopK,
    Uniform,
    irreducible_losses,
    per_example,
)
from siftback.language import TokenMemory
from siftback.pruning import AUM, Forgetting, el2n, prune
from stateful_objects import KINDS, Single
from toys import AT_ONCE, network, seeded, shuffled

NAN, INF = float("nan"), float("inf")


class Unshown:
    """An object of the user's own that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no")


@functools.cache
def values():
    """Bad values by name, made when they are needed, as a nested tensor takes long."""
    return {
        "None": None, "True": True, "a string": "a", "no string": "", "a digit": "0", "bytes": b"",
        "-1": -1, "0": 0, "5": 5, "1.5": 1.5, "-0.5": -0.5, "nan": NAN, "inf": INF, "-inf": -INF,
        "10**400": 10**400, "-10**400": -(10**400), "10**5000": 10**5000, "2**63": 2**63,
        "complex": 1j, "a list": [], "a list of strings": ["a"], "a list of floats": [0.5, 2.0],
        "a dict": {}, "a dict of one": {"a": 1}, "a set": {1}, "an object": object(),
        "what cannot be shown": Unshown(), "a function": lambda *_: 1.5, "a class": Percentile,
        "a module": nn.Linear(2, 2), "a generator": seeded(), "a rule": RS2(),
        "a selector": TopK(keep=0.5),
        "an array": np.ones(3), "no array": np.array([]),
        "an array of objects": np.array([None, "a"]),
        "float64": torch.ones(3, dtype=torch.float64), "of nan": torch.full((3,), NAN),
        "int": torch.arange(3), "bool": torch.tensor([True, False, True]), "0-d": torch.tensor(1.5),
        "2-d": torch.ones(3, 2), "empty": torch.zeros(0), "complex tensor": torch.ones(3) * 1j,
        "sparse": torch.ones(3).to_sparse(), "meta": torch.ones(3, device="meta"),
        "fp8": torch.ones(3).to(torch.float8_e4m3fn), "half": torch.ones(3).half(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged),
        "on the graph": torch.ones(3, requires_grad=True),
    }  # fmt: skip


def constructors():
    """Each argument of each class with a state, whose others are right."""
    for kind, settings, _ in SETTINGS:
        for name in [*inspect.signature(kind.__init__).parameters][1:]:
            if kind is not Single:
                yield f"{kind.__name__}({name}=)", name, build(kind, settings, name)
    for kind, settings in (
        (Epochs, {}), (Share, {}), (Annealing, {}), (Schedule, {}), (Indexed, {"source": [1, 2]}),
    ):  # fmt: skip
        for name in inspect.signature(kind).parameters:
            yield f"{kind.__name__}({name}=)", name, build(kind, settings, name)
    single = {"model": nn.Linear(2, 2), "loss_fn": F.cross_entropy, "keep": 0.5, "check": False}
    for name in [*inspect.signature(siftback.SinglePass.__init__).parameters][1:]:
        yield f"SinglePass({name}=)", name, build(siftback.SinglePass, single, name)


def build(kind, settings, name):
    def call(value):
        others = copy.deepcopy({k: v for k, v in settings.items() if k != name})
        return kind(**others, **{name: value})

    return call


def method(make, name, argument, **others):
    """One argument of a method of a new object, whose other arguments are right."""

    def call(value):
        return getattr(make(), name)(**copy.deepcopy(others), **{argument: value})

    return call


def each_argument(of, make, name, right):
    """Each argument of a method in turn, the others being right."""
    for argument in right:
        others = {key: value for key, value in right.items() if key != argument}
        yield f"{of}.{name}({argument}=)", argument, method(make, name, argument, **others)


ROWS, LOSSES = torch.arange(3), torch.rand(3, generator=seeded())
LOGITS = torch.rand(3, 4, generator=seeded(1))
EIGHT = torch.rand(8, generator=seeded(2))
OF_ROWS = {"indices": ROWS, "losses": LOSSES}
OF_SCORES = {"scores": LOSSES, "generator": seeded(), "count": None}
ANNEALED = Schedule(anneal=Annealing(until=Epochs(4)))


def loader():
    return SelectiveLoader(shuffled(), memory=Memory(), epochs=4)


def within():
    """A loader whose training was given a batch of eight."""
    made = loader()
    made.batches = iter(made)
    next(made.batches)
    return made


def scoring():
    return SelectiveLoader(
        shuffled(), network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE, epochs=4
    )


def sampler():
    made = SelectiveSampler(range(3), Memory(keep=0.5, warmup=Epochs(1)), epochs=4)
    next(iter(made))
    return made


def methods():
    """Each argument of the public methods and functions, whose others are right."""
    for name, kind in KINDS.items():
        room, make = name.partition(": ")[0], kind.make
        if room == "selector":
            yield from each_argument(name, make, "select", OF_SCORES)
        for method_name, argument in (
            ("probabilities", "scores"), ("set_keep", "keep"), ("grow", "examples"),
            ("load_state_dict", "state"), ("check_state", "state"),
        ):  # fmt: skip
            public = method_name != "grow" or room == "rule"
            is_single = name == "other: single pass"  # whose state is that of a module
            if public and not is_single and hasattr(make(), method_name):
                called = method(make, method_name, argument)
                yield f"{name}.{method_name}()", argument, called
    right = {"losses": LOSSES, "mask": None}
    yield from each_argument("InBatch", lambda: InBatch(keep=0.5), "select", right)
    right = {"indices": ROWS, "scores": LOSSES, "column": 0}
    yield from each_argument("ScoreTable", lambda: ScoreTable(3), "record", right)
    yield from each_argument("ScoreTable", lambda: ScoreTable(3), "grow", {"rows": 3})
    right = {"indices": ROWS, "correct": LOSSES > 0.5}
    yield from each_argument("Forgetting", lambda: Forgetting(3), "update", right)
    right = {"indices": ROWS, "logits": LOGITS, "labels": ROWS}
    yield from each_argument("AUM", lambda: AUM(3), "update", right)
    right = {"indices": ROWS, "losses": LOGITS, "mask": LOGITS > 0}
    yield from each_argument("TokenMemory", lambda: TokenMemory(3, 4), "excess", right)
    right = {"losses": EIGHT, "correct": None, "confidence": None, "indices": None}
    yield from each_argument("SelectiveLoader", within, "record", right)
    right |= {"weights": None, "reduced": False}
    yield from each_argument("SelectiveLoader", within, "loss", right)
    for make in (loader, scoring):
        for name in ("set_epoch", "steps"):
            yield from each_argument(f"SelectiveLoader, {make.__name__}", make, name, {"epoch": 1})
    yield from each_argument("SelectiveSampler", sampler, "set_epoch", {"epoch": 1})
    yield from each_argument("SelectiveSampler", sampler, "update", OF_ROWS)
    yield from each_argument("NoiseGuard", lambda: NoiseGuard(4), "observe", OF_ROWS)
    right = {"epochs_done": 1.0, "epochs": None, "batch": None}
    yield from each_argument("Schedule", lambda: Schedule(end=Epochs(3)), "is_on", right)
    right = {"epochs_done": 1.0, "epochs": None}
    for argument in right:
        others = {key: value for key, value in right.items() if key != argument}
        called = method(lambda: ANNEALED, "keep", argument, own=0.5, **others)
        yield f"Schedule.keep({argument}=)", argument, called
    yield "per_example()", "loss_fn", per_example


def functions():
    """Each argument of functions of a data set, whose others are right."""
    data = TensorDataset(torch.ones(3, 2), torch.tensor([0, 1, 0]))
    for function, right in (
        (prune, {"scores": LOSSES, "drop": 0.5, "keep": "hardest", "per_class": None, "seed": 0}),
        (prune, {"scores": LOSSES, "window": (0.1, 0.9)}),
        (irreducible_losses, {"model": nn.Linear(2, 2), "loader": DataLoader(data, 2),
                              "loss_fn": F.cross_entropy}),
        (el2n, {"models": nn.Linear(2, 2), "data": data}),
    ):  # fmt: skip
        for argument in right:
            others = {key: value for key, value in right.items() if key != argument}

            def call(value, function=function, others=others, argument=argument):
                return function(**others, **{argument: value})

            yield f"{function.__name__}({argument}=)", argument, call


def batches():
    """Each value as the batch of a loader that is read to its end."""
    drawn = {"selector": Uniform(keep=0.5), "pool": Pool(4)}
    scored = {"keep": 0.5, "schedule": AT_ONCE, "pool": Pool(4)}
    for how, arguments, settings in (
        ("by chance", (), drawn), ("by losses", (nn.Linear(2, 2), F.cross_entropy), scored),
    ):  # fmt: skip

        def call(value, arguments=arguments, settings=settings):
            return list(SelectiveLoader([value], *arguments, **copy.deepcopy(settings)))

        yield f"a batch of a loader that selects {how}", "", call
