"""Bad values of every kind, and everything public that takes an argument."""

import copy
import inspect

import numpy as np
import torch
from test_states_sealed import SETTINGS
from torch import nn
from torch.nn import functional as F

from siftback import (
    RS2,
    Annealing,
    Epochs,
    Indexed,
    Percentile,
    Schedule,
    Share,
    TopK,
)
from stateful_objects import Single
from toys import seeded

NAN, INF = float("nan"), float("inf")


class Unshown:
    """An object of the user's own that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no")


VALUES = {
    "None": None, "True": True, "a string": "a", "no string": "", "a digit": "0", "bytes": b"",
    "-1": -1, "0": 0, "5": 5, "1.5": 1.5, "-0.5": -0.5, "nan": NAN, "inf": INF, "-inf": -INF,
    "10**400": 10**400, "-10**400": -(10**400), "10**5000": 10**5000, "2**63": 2**63,
    "complex": 1j, "a list": [], "a list of strings": ["a"], "a list of floats": [0.5, 2.0],
    "a dict": {}, "a dict of one": {"a": 1}, "a set": {1}, "an object": object(),
    "what cannot be shown": Unshown(), "a function": lambda *_: 1.5, "a class": Percentile,
    "a module": nn.Linear(2, 2), "a generator": seeded(), "a rule": RS2(),
    "a selector": TopK(keep=0.5),
    "an array": np.ones(3), "no array": np.array([]), "an array of objects": np.array([None, "a"]),
    "float64": torch.ones(3, dtype=torch.float64), "of nan": torch.full((3,), NAN),
    "int": torch.arange(3), "bool": torch.tensor([True, False, True]), "0-d": torch.tensor(1.5),
    "2-d": torch.ones(3, 2), "empty": torch.zeros(0), "complex tensor": torch.ones(3) * 1j,
    "sparse": torch.ones(3).to_sparse(), "meta": torch.ones(3, device="meta"),
    "fp8": torch.ones(3).to(torch.float8_e4m3fn), "half": torch.ones(3).half(),
    "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged),
    "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "on the graph": torch.ones(3, requires_grad=True),
}  # fmt: skip

SLOW = {"model", "loss_fn"}


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
    from siftback import SinglePass

    for name in [*inspect.signature(SinglePass.__init__).parameters][1:]:
        yield f"SinglePass({name}=)", name, build(SinglePass, single, name)


def build(kind, settings, name):
    def call(value):
        others = copy.deepcopy({k: v for k, v in settings.items() if k != name})
        return kind(**others, **{name: value})

    return call
