"""Selectors, scorers and rules with a state, and other settings of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import pictures
from siftback import (
    EVOS,
    RCAP,
    RS2,
    UCB,
    AlignPrune,
    Ema,
    EvolvedSampling,
    Fresh,
    GradientBound,
    InBatchRank,
    InfoBatch,
    Irreducible,
    Kakurenbo,
    Kath18,
    Memory,
    NoiseGuard,
    OrderDP,
    Percentile,
    Reduced,
    RePB,
    SeTa,
    SoftTopK,
    Stale,
    Threshold,
    TopK,
    Unbiased,
    Uniform,
)
from siftback.contrib import IES, Downsampled, GaussianProcess, Int8, Proxy
from siftback.contrib.ewma import Ewma
from toys import All, seeded

COUNT = 24


@dataclass(frozen=True)
class Kind:
    """An object with a state.

    Attributes:
        make: Makes it; keyword arguments change its settings.
        use: Has it come by a state.
        others: Other settings, by name, with which it is another object.
    """

    make: Callable[..., Any]
    use: Callable[[Any], None]
    others: dict[str, dict[str, Any]] = field(default_factory=dict)


def rand(count, seed=0):
    """float32[count], whatever the default type is."""
    return torch.rand(count, generator=seeded(seed), dtype=torch.float32)


def select(selector):
    for seed in range(3):
        selector.select(rand(COUNT, seed), seeded(seed))


def with_defaults(kind, **defaults):
    return lambda **changes: kind(**(defaults | changes))


def selector(kind, defaults, others):
    return Kind(with_defaults(kind, **defaults), select, others)


def unbiased(*, inner=None, keep=0.5, **arguments):
    return Unbiased(inner or Percentile(keep=keep, history=30), **({"floor": 0.2} | arguments))


KEEP = {"keep": {"keep": 0.3}}
SELECTORS = {
    "percentile": selector(
        Percentile, {"keep": 0.5, "history": 30},
        KEEP | {"floor": {"floor": 0.2}, "history": {"history": 40}},
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
    ),
    "fixed threshold": selector(Threshold, {"above": 0.5}, {"above": {"above": 0.4}}),
    "unbiased": Kind(
        unbiased, select,
        KEEP | {"floor": {"floor": 0.1}, "inner": {"inner": TopK(keep=0.5)},
                "self_normalised": {"self_normalised": True}},
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
    classes = 5 if wider else 4
    layer = nn.Linear(64, classes, bias=False, dtype=torch.float32)
    model = nn.Sequential(nn.Flatten(), layer)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=momentum)
    return Proxy(model, optimizer if trained else None, inner)


def irreducible(count=COUNT, inner=None):
    return Irreducible(torch.linspace(0, 1, count, dtype=torch.float32), inner)


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
                "channels_last": {"channels_last": True}},
    ),
    "ema": Kind(Ema, score, INNER | {"decay": {"decay": 0.5}}),
    "irreducible": Kind(
        irreducible, score,
        {"inner": {"inner": GradientBound()}, "examples": {"count": 25}},
    ),
    "proxy": Kind(
        proxy, score,
        {"inner": {"inner": GradientBound()}, "trained": {"trained": False},
         "model": {"wider": True}},
    ),
    "downsampled": Kind(Downsampled, score, INNER | {"factor": {"factor": 4}}),
    "int8": Kind(
        with_defaults(Int8, refresh=5, activations="static"), score,
        PASS | {"activations": {"activations": "dynamic"}, "refresh": {"refresh": 6},
                "channels_last": {"channels_last": True}},
    ),
}  # fmt: skip


def teach(rule):
    rule.grow(COUNT)
    for epoch in range(4):
        indices = torch.randperm(COUNT, generator=seeded(epoch))[: COUNT // 2]
        losses = rand(len(indices), epoch + 9) * 3
        if rule.needs_passes:
            rule.rescore(indices, losses, epoch)
        rule.update(indices, losses, epoch, correct=losses > 1, confidence=losses / 3)
        rule.draw(epoch, seeded(epoch))


def rule(kind, defaults, others):
    return Kind(with_defaults(kind, **defaults), teach, others)


def guarded(**arguments):
    asked = {"classes": 4, "visits": 1}
    own = {name: arguments.pop(name) for name in asked | {"cap": 0} if name in arguments}
    return Memory(**({"keep": 0.5, "guard": NoiseGuard(**asked | own)} | arguments))


PREDICT = {"predict": {"predict": "loss"}, "threshold_share": {"threshold_share": 0.5},
           "optimism": {"optimism": 1.0}, "every": {"every": 4},
           "scorer": {"scorer": GradientBound()}}  # fmt: skip
LABELS = torch.arange(500) % 3
RULES = {
    "memory": rule(
        Memory, {"keep": 0.5}, KEEP | {"floor": {"floor": 0.2}, "decay": {"decay": 0.5},
                                       "guard": {"guard": NoiseGuard(4)}},
    ),
    "guarded memory": rule(
        guarded, {}, KEEP | {"cap": {"cap": 0.1}, "visits": {"visits": 2},
                             "classes": {"classes": 5}, "none": {"guard": None}},
    ),
    "infobatch": rule(
        InfoBatch, {"ratio": 0.5}, {"ratio": {"ratio": 0.4}, "delta": {"delta": 0.5}}
    ),
    "ratio memory": rule(
        Memory, {}, {"floor": {"floor": 0.2}, "decay": {"decay": 0.5}, "share": {"keep": 0.55},
                     "guard": {"guard": NoiseGuard(4)}},
    ),
    "guarded ratio memory": rule(
        lambda **changes: Memory(**{"guard": NoiseGuard(4, visits=1)} | changes),
        {}, {"floor": {"floor": 0.2}, "visits": {"guard": NoiseGuard(4)}, "none": {"guard": None}},
    ),
    "rs2": rule(RS2, {"keep": 0.3}, {"keep": {"keep": 0.4}, "replaced": {"replacement": True}}),
    "kakurenbo": rule(
        Kakurenbo, {"ratio": 0.3}, {"ratio": {"ratio": 0.4}, "threshold": {"threshold": 0.2}}
    ),
    "ucb": rule(
        UCB, {"keep": 0.5, "every": 2},
        KEEP | {"c": {"c": 2.0}, "decay": {"decay": 0.5}, "every": {"every": 3}},
    ),
    "seta": rule(
        SeTa, {}, {"ratio": {"ratio": 0.3}, "groups": {"groups": 5}, "window": {"window": 1.0},
                   "delta": {"delta": 0.5}},
    ),
    "ies": rule(
        IES, {"window": 1}, {"threshold": {"threshold": 0.3}, "window": {"window": 2},
                             "keep": {"keep": 0.5}},
    ),
    "evolved": rule(
        EvolvedSampling, {}, {"keep": {"keep": 0.3}, "fast": {"fast": 0.3}, "slow": {"slow": 0.7}}
    ),
    "orderdp": rule(OrderDP, {}, {"subset": {"subset": 0.4}, "top": {"top": 0.5}}),
    "repb": rule(RePB, {}, {"ratio": {"ratio": 0.4}}),
    "rcap": rule(
        RCAP,
        {"labels": LABELS[:24]},
        {
            "labels": {"labels": LABELS[:24].flip(0)},
            "keep": {"keep": 0.3},
            "temperature": {"temperature": 1.0},
        },
    ),
    "alignprune": rule(
        AlignPrune,
        {"window": 3, "reference": [1, 2]},
        {
            "ratio": {"ratio": 0.4},
            "window": {"window": 4},
            "delta": {"delta": 0.7},
            "reference": {"reference": [1, 3]},
        },
    ),
    "evos": rule(
        EVOS, {}, {"keep": {"keep": 0.3}, "mutation": {"mutation": 0.2}, "every": {"every": 7}}
    ),
    "stale": rule(
        Stale, {"keep": 0.5}, KEEP | {"every": {"every": 4}, "scorer": {"scorer": GradientBound()}}
    ),
    "ewma": rule(
        Ewma, {"keep": 0.5, "predict": "probability"}, KEEP | PREDICT | {"decay": {"decay": 0.2}},
    ),
    "process": rule(
        GaussianProcess, {"keep": 0.5, "predict": "probability", "history": 2},
        KEEP | PREDICT | {"noise": {"noise": 0.5}, "length_scale": {"length_scale": 2.0},
                          "history": {"history": 3}},
    ),
}  # fmt: skip
