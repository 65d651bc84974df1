"""A state carries a digest of its contents: what was changed after it was saved is refused."""

import inspect
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import siftback
from damaging import changed, comparable
from siftback import (
    EVOS,
    RCAP,
    RS2,
    UCB,
    AlignPrune,
    Ema,
    EpochRule,
    Epochs,
    EvolvedSampling,
    Fresh,
    GradientBound,
    InBatch,
    InBatchRank,
    InfoBatch,
    Irreducible,
    Kakurenbo,
    Kath18,
    Memory,
    NoiseGuard,
    OrderDP,
    Percentile,
    Pool,
    Reduced,
    RePB,
    Schedule,
    ScoreTable,
    SelectiveLoader,
    SelectiveSampler,
    SeTa,
    Share,
    SoftTopK,
    Stale,
    Threshold,
    TopK,
    Unbiased,
    Uniform,
)
from siftback.contrib import IES, Downsampled, GaussianProcess, Int8, Pipelined, Proxy
from siftback.contrib.ewma import Ewma
from siftback.errors import StateError
from siftback.language import TokenMemory
from siftback.pruning import AUM, Forgetting
from siftback.state import check_digest, seal
from siftback.tables.shards import Shards
from stateful_objects import KINDS, Single
from toys import AT_ONCE, dataset, network, shuffled

TABLE = torch.tensor([[1.0, 2.0], [3.0, torch.nan]])
ALIKE = {
    "order of a dict": ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    "tuple and list": ({"a": (1, (2.5, None))}, {"a": [1, [2.5, None]]}),
    "strides": ({"a": TABLE}, {"a": TABLE.t().contiguous().t()}),
    "a part of a larger tensor": ({"a": TABLE[:, 0]}, {"a": TABLE[:, 0].clone()}),
    "a parameter": ({"a": nn.Parameter(TABLE)}, {"a": TABLE}),
    "numbers of NumPy": (
        {"a": np.int64(3), "b": np.float64(0.5), "c": np.True_}, {"a": 3, "b": 0.5, "c": True},
    ),
    "a digest of before": (seal({"a": 1}) | {"b": 2}, {"a": 1, "b": 2}),
    "no entry": ({}, {}),
}  # fmt: skip
UNLIKE = {
    "a number": ({"a": 1}, {"a": 2}),
    "its type": ({"a": 1}, {"a": 1.0}),
    "a flag": ({"a": True}, {"a": 1}),
    "nothing": ({"a": None}, {"a": "None"}),
    "a sign": ({"a": 0.0}, {"a": -0.0}),
    "a name in a dict": ({"a": {"x": 1}}, {"a": {"y": 1}}),
    "strings joined": ({"a": ["ab", "c"]}, {"a": ["a", "bc"]}),
    "lists joined": ({"a": [[1], [2]]}, {"a": [[1, 2]]}),
    "the last bit": ({"a": torch.ones(9)}, {"a": torch.nextafter(torch.ones(9), TABLE[0, 1])}),
    "a shape": ({"a": torch.ones(2, 3)}, {"a": torch.ones(3, 2)}),
    "a tensor's type": ({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.int32)}),
    "a permutation": ({"a": torch.arange(9)}, {"a": torch.arange(9).flip(0)}),
    "tensor and array": ({"a": torch.zeros(2)}, {"a": np.zeros(2, np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), ALIKE.values(), ids=ALIKE)
def test_a_digest_does_not_depend_on_what_saving_may_change(one, other):
    assert seal(one)["digest"] == seal(other)["digest"]


@pytest.mark.parametrize(("one", "other"), UNLIKE.values(), ids=UNLIKE)
def test_a_digest_depends_on_all_else(one, other):
    assert seal(one)["digest"] != seal(other)["digest"]
    check_digest(self := object(), seal(one))
    with pytest.raises(StateError, match="the state is damaged: its entries"):
        check_digest(self, seal(one) | other | {"digest": seal(one)["digest"]})


def test_a_damaged_state_in_a_state_is_found_from_outside():
    inner = seal({"losses": torch.arange(3.0)})
    outer = seal({"inner": inner, "count": 3})
    check_digest(self := object(), outer)
    for spoilt in (
        {**inner, "losses": torch.zeros(3)}, {**inner, "digest": seal({"losses": 1})["digest"]},
        {**inner, "more": 1}, {"digest": inner["digest"]}, {},
    ):  # fmt: skip
        with pytest.raises(StateError, match="the state is damaged"):
            check_digest(self, {**outer, "inner": spoilt})


def reordered(state):
    """As another saver might give it back: dicts in another order, lists for tuples."""
    if isinstance(state, dict):
        return {key: reordered(state[key]) for key in reversed(state)}
    return [*map(reordered, state)] if isinstance(state, tuple) else state


@pytest.mark.parametrize("name", KINDS)
def test_a_state_comes_through_a_file_and_is_refused_without_its_digest(name):
    kind = KINDS[name]
    saved, loaded = kind.make(), kind.make()
    kind.use(saved)
    state = saved.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded.load_state_dict(reordered(torch.load(file, weights_only=True)))
    assert comparable(loaded.state_dict()) == comparable(state)
    with pytest.raises(StateError, match="a state without digest: give what state_dict"):
        loaded.load_state_dict({key: part for key, part in state.items() if key != "digest"})


# Damages that no description of a state tells from a right one


def in_epoch(**arguments):
    loader = SelectiveLoader(shuffled(), memory=Memory(keep=0.5, warmup=Epochs(1)), epochs=4)
    for _ in loader:
        loader.record(loader.indices / 44)
    batches = iter(loader)
    next(batches)
    loader.record(loader.indices / 44)
    loader.batches = batches
    return loader


def by_losses():
    loader = SelectiveLoader(
        shuffled(), network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE, pool=Pool(5)
    )
    loader.batches = iter(loader)
    next(loader.batches), next(loader.batches)
    assert loader.state_dict()["pool"]["counts"]
    return loader


def spoilt(value):
    def spoil(state, path):
        values = state
        for key in path:
            values = values[key]
        values = values.clone()
        values.view(-1)[-1] = value
        return changed(state, path, values)

    return spoil


def replaced(function):
    def replace(state, path):
        value = state
        for key in path:
            value = value[key]
        return changed(state, path, function(value))

    return replace


VALUES = ("draw", "rule", "table", "values")
SILENT = {
    "an infinite loss": (in_epoch, VALUES, spoilt(torch.inf)),
    "a loss that is NaN": (in_epoch, VALUES, spoilt(torch.nan)),
    "losses of other examples": (in_epoch, VALUES, replaced(lambda values: values.roll(1, 0))),
    "weights in place of none": (in_epoch, ("draw", "reweights"), replaced(lambda flag: not flag)),
    "a draw of others": (
        in_epoch, ("draw", "passes", 0, "drawn", "bits"), replaced(lambda bits: bits.flip(0))
    ),
    "an index again": (
        by_losses, ("source", "rest", "indices"), replaced(lambda rest: rest[:1].expand_as(rest))
    ),
    "indices in another order": (
        by_losses, ("source", "rest", "indices"), replaced(lambda rest: rest.flip(0))
    ),
    "a history of others": (
        by_losses, ("selector", "history", "losses"), replaced(lambda losses: losses + 1)
    ),
    "pooled examples of others": (
        by_losses, ("pool", "pool"),
        replaced(lambda pool: [((x + 1, y), *more) for (x, y), *more in pool]),
    ),
    "a seed's state": (by_losses, ("generator",), replaced(lambda state: torch.Generator().manual_seed(7).get_state())),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize(("make", "path", "damage"), SILENT.values(), ids=SILENT)
def test_a_plausible_value_in_place_of_another_is_refused(make, path, damage):
    state, other = make().state_dict(), make()
    before = comparable(other.state_dict())
    with pytest.raises(StateError, match=r"the state is damaged: its entries .* are not those"):
        other.load_state_dict(damage(state, path))
    assert comparable(other.state_dict()) == before
    other.load_state_dict(state)


class Counting:
    """A selector of the user's own, whose state has no digest."""

    needs_scores, reweights, keep = True, False, 0.5

    def __init__(self):
        self.count = 0

    def select(self, scores, generator, count=None):
        self.count += 1
        return TopK(keep=self.keep).select(scores, generator, count)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_what_users_write_is_covered_by_what_saves_it():
    def loader():
        return SelectiveLoader(
            shuffled(), network(), F.cross_entropy, selector=Counting(), schedule=AT_ONCE
        )

    saved, other = loader(), loader()
    next(iter(saved))
    state = saved.state_dict()
    with pytest.raises(StateError, match="the state is damaged: its entries"):
        other.load_state_dict(changed(state, ("selector", "count"), 99))
    other.load_state_dict(state)
    assert other.selector.count == saved.selector.count > 0


class Patient(EpochRule):
    """A rule that adds to the state of the base class, which covers its entries alone."""

    patience = 3

    def draw(self, epoch, generator):
        return torch.ones(self.examples)

    def state_dict(self):
        return {**super().state_dict(), "patience": self.patience}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.patience = state["patience"]


def test_a_rule_may_add_to_the_state_of_its_base_class():
    rules = Patient(), Patient()
    loaders = [SelectiveLoader(shuffled(), memory=rule, epochs=2) for rule in rules]
    rules[0].patience = 7
    state = loaders[0].state_dict()
    with pytest.raises(StateError, match="the state is damaged: its entries"):
        loaders[1].load_state_dict(changed(state, ("draw", "rule", "patience"), 8))
    loaders[1].load_state_dict(state)
    assert rules[1].patience == 7


@pytest.mark.parametrize("damage", ["values", "shards", "digests", "digest"])
def test_each_shard_answers_for_its_values(damage):
    rules = [Memory(keep=0.5, shards=4) for _ in range(2)]
    for rule in rules:
        rule.grow(10)
    rules[0].table.record(torch.arange(10), torch.rand(10))
    state = rules[0].state_dict()
    rules[1].load_state_dict(state)
    new = state["table"][damage]
    new = "crc32" if damage == "digest" else new.flip(0)
    with pytest.raises(StateError, match=r"the state (is damaged|has shards)|without digest"):
        rules[1].load_state_dict(changed(state, ("table", damage), new))
    # What is re-sharded is left out of the digests round it, and comes in other pieces.
    assert seal(state)["digest"] == seal(changed(state, ("table", "values"), 0))["digest"]
    assert comparable(Shards(4, 10).rows_of_state(state["table"])) == comparable(rules[0].values)


# States of other settings: every argument is in one of these, or says why it is not

MODEL = nn.Linear(5, 3)
WEIGHTED = {"weights": [1.0, 2.0], "balance": [0, 1, 1]}
WHEN = {"warmup": Epochs(2), "tail": Share(0.25)}
# Arguments that change the speed alone; and objects, of which the states are parts.
SPEED = {"compile", "place", "threads", "timeout", "backend", "check"}
OBJECTS = {"dataset", "inputs", "loader", "loss_fn", "losses", "model", "optimizer", "table"}
# Arguments that change what a batch or a call returns, and not what is selected.
RETURNED = {"attach", "outputs"}
PLACES = {"path"}
SHARE = {"keep": 0.3}
PASS = {"mode": "train", "autocast": torch.bfloat16}
AHEAD = {"every": 4, "scorer": GradientBound(), "warmup": Epochs(2), "keep": 0.3}
PREDICT = {"predict": "probability", "threshold_share": 0.5, "optimism": 1.0}
STEPS = {"schedule": Schedule(interrupt=3), "epochs": 8, "steps_per_epoch": 8, "seed": 1}
IN_SHARES = {"schedule": Schedule(warmup=Share(0.5)), "epochs": 4, "steps_per_epoch": 9}
SETTINGS = [
    (Percentile, {"keep": 0.5}, {"keep": 0.3, "history": 9, "floor": 0.2}),
    (Percentile, {"beta": 1.0}, {"beta": 2.0}),
    (Uniform, {"keep": 0.5}, SHARE),
    (TopK, {"keep": 0.5}, SHARE),
    (InBatchRank, {"keep": 0.5}, SHARE),
    (SoftTopK, {"keep": 0.5}, SHARE | {"temperature": 2.0}),
    (Threshold, {"keep": 0.5}, SHARE | {"history": 9}),
    (Threshold, {"above": 0.5}, {"above": 0.6, "history": 9}),
    (Unbiased, {"selector": TopK(keep=0.5)},
     {"selector": TopK(keep=0.3), "floor": 0.2, "self_normalised": True}),
    (Kath18, {"keep": 0.5},
     SHARE | {"replace": False, "reweight": False, "threshold": 1.0, "momentum": 0.5}),
    (Fresh, {}, PASS), (GradientBound, {}, PASS),
    (Reduced, {}, {"precision": "fp16", "refresh": 2, "mode": "train", "channels_last": True}),
    (Ema, {}, {"decay": 0.5, "scorer": GradientBound()}),
    (Irreducible, {"losses": torch.ones(4)},
     {"losses": torch.ones(5), "scorer": GradientBound()}),
    (Downsampled, {}, {"factor": 4, "scorer": GradientBound()}),
    (Int8, {}, {"refresh": 2, "mode": "train", "channels_last": True, "activations": "static"}),
    (Proxy, {"model": MODEL},
     {"optimizer": lambda: torch.optim.SGD(MODEL.parameters(), 0.1), "scorer": GradientBound()}),
    (Memory, {"keep": 0.5},
     WHEN | {"keep": 0.3, "floor": 0.2, "decay": 0.5, "guard": NoiseGuard(3), "shards": 2}),
    (Memory, {"beta": 1.0}, {"beta": 2.0} | WEIGHTED | {"unbiased": True}),
    (Memory, {},
     WHEN | {"keep": 0.5, "floor": 0.2, "decay": 0.5, "guard": NoiseGuard(3)}),
    (InfoBatch, {}, {"ratio": 0.4, "delta": 0.5, "warmup": Epochs(2)}),
    (RS2, {}, WHEN | {"keep": 0.3, "replacement": True}),
    (RS2, {"replacement": True}, WEIGHTED),
    (UCB, {}, WHEN | {"keep": 0.3, "c": 2.0, "decay": 0.5, "every": 2}),
    (Kakurenbo, {}, WHEN | {"ratio": 0.4, "threshold": 0.2}),
    (SeTa, {}, {"ratio": 0.3, "groups": 5, "window": 1.0, "delta": 0.5, "warmup": Epochs(2)}),
    (IES, {}, WHEN | {"threshold": 0.3, "window": 2, "keep": 0.5}),
    (EvolvedSampling, {}, WHEN | {"keep": 0.3, "fast": 0.3, "slow": 0.7}),
    (OrderDP, {}, WHEN | {"subset": 0.4, "top": 0.5}),
    (RePB, {}, WHEN | {"ratio": 0.4}),
    (RCAP, {"labels": [0, 1]}, WHEN | {"keep": 0.3, "temperature": 1.0, "labels": [1, 1]}),
    (AlignPrune, {}, {"ratio": 0.4, "window": 4, "delta": 0.5, "reference": [0],
                      "warmup": Epochs(2)}),
    (EVOS, {}, WHEN | {"keep": 0.3, "mutation": 0.2, "every": 7}),
    (Stale, {"keep": 0.5}, AHEAD), (Stale, {"beta": 1.0}, {"beta": 2.0}),
    (Ewma, {"keep": 0.5}, AHEAD | PREDICT | {"decay": 0.2}), (Ewma, {"beta": 1.0}, {"beta": 2.0}),
    (GaussianProcess, {"keep": 0.5},
     AHEAD | PREDICT | {"length_scale": 2.0, "noise": 0.5, "history": 3}),
    (GaussianProcess, {"beta": 1.0}, {"beta": 2.0}),
    (NoiseGuard, {"classes": 3}, {"classes": 4, "cap": 0.5, "visits": 9}),
    (Pool, {"batch_size": 8, "pad": {"x": 0}},
     {"batch_size": 9, "drop_last": True, "pad": {"x": 1}}),
    (ScoreTable, {"rows": 3}, {"rows": 4, "columns": 2}),
    (TokenMemory, {"examples": 3, "length": 5}, {"examples": 4, "length": 4}),
    (Forgetting, {"examples": 3}, {"examples": 4}), (AUM, {"examples": 3}, {"examples": 4}),
    (InBatch, {"keep": 0.5} | IN_SHARES, STEPS | {"keep": 0.3}),
    (InBatch, {"beta": 1.0}, {"beta": 2.0}), (InBatch, {"selector": TopK(keep=0.5)},
                                              {"selector": TopK(keep=0.3)}),
    (Single, {"keep": 0.5} | IN_SHARES, STEPS | {"keep": 0.3}),
    (Single, {"keep": None, "beta": 1.0}, {"beta": 2.0}),
    (Single, {"keep": None, "selector": TopK(keep=0.5)}, {"selector": TopK(keep=0.3)}),
    (SelectiveSampler, {"dataset": range(20), "rule": Memory(keep=0.5), "epochs": 4},
     {"rule": Memory(keep=0.3), "shuffle": False, "seed": 1, "epochs": 8,
      "shorter_epochs": True}),
    (SelectiveSampler, {"dataset": range(20), "rank": 0, "world": 3},
     {"rank": 1, "world": 2, "dataset": range(21)}),
    (SelectiveLoader, {"loader": [1], "model": MODEL, "loss_fn": F.cross_entropy, "keep": 0.5,
                       "schedule": Schedule(warmup=Share(0.5)), "epochs": 4, "pool": Pool(4)},
     {"keep": 0.3, "scorer": GradientBound(), "schedule": AT_ONCE, "epochs": 8, "pool": Pool(5),
      "exact": False, "on_nonfinite": "keep", "seed": 1}),
    (SelectiveLoader, {"loader": DataLoader(dataset(), 8), "epochs": 4, "memory": Memory()},
     {"memory": Memory(keep=0.3), "shorter_epochs": True}),
    (SelectiveLoader, {"loader": [1], "selector": Uniform(keep=0.5)},
     {"selector": Uniform(keep=0.3)}),
    (Pipelined, {"loader": [1], "model": MODEL, "loss_fn": F.cross_entropy},
     {"depth": 2, "sync_every": 2, "scorer": GradientBound()}),
]  # fmt: skip
OTHERS = [
    (kind, settings, name, value)
    for kind, settings, others in SETTINGS
    for name, value in others.items()
]


def setting(row):
    kind, settings, name, _ = row
    return f"{kind.__name__}({', '.join(settings)}), {name}"


@pytest.mark.parametrize("row", OTHERS, ids=map(setting, OTHERS))
def test_a_state_of_another_argument_is_refused(row):
    kind, settings, name, value = row
    value = value() if name == "optimizer" else value  # made now, as it takes long
    saved, loaded = kind(**settings), kind(**settings | {name: value})
    kind(**settings).load_state_dict(saved.state_dict())
    with pytest.raises(StateError):
        loaded.load_state_dict(saved.state_dict())


def test_every_argument_of_what_has_a_state_is_in_a_row():
    named = {}
    for kind, _, others in SETTINGS:
        kind = siftback.SinglePass if kind is Single else kind
        named.setdefault(kind, set()).update(others)
    for kind, names in named.items():
        arguments = {*inspect.signature(kind.__init__).parameters} - {"self"}
        assert arguments - names - SPEED - OBJECTS - RETURNED - PLACES == set(), kind
