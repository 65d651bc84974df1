"""Stopping after any step and going on elsewhere equals never stopping."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from resuming import (
    FILTERED,
    MEMORY,
    ORDERED,
    SELECTIVE,
    SOURCES,
    UNORDERED,
    WORKERS,
    Counter,
    Stream,
    check_resumes,
    torchdatas,
    training,
)
from siftback import (
    Epochs,
    Indexed,
    InfoBatch,
    Memory,
    Percentile,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Uniform,
)
from siftback.errors import StateError
from siftback.state import seal
from toys import AT_ONCE, assert_same, at_once, dataset, given_losses, numbered, shuffled

# torchdata's own
vital = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
in_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")

VARIANTS = [(SOURCES[name], SELECTIVE["released"]) for name in SOURCES]
IDS = [f"{name}, released" for name in SOURCES]
VARIANTS += [(SOURCES[name], SELECTIVE["smaller batches"]) for name in SOURCES]
IDS += [f"{name}, smaller batches" for name in SOURCES]
VARIANTS += [(shuffled, SELECTIVE[name]) for name in SELECTIVE]
IDS += [f"shuffled, {name}" for name in SELECTIVE]
REMEMBERED = ORDERED | FILTERED
VARIANTS += [(REMEMBERED[name], MEMORY["memory"]) for name in REMEMBERED]
IDS += [f"{name}, memory" for name in REMEMBERED]
VARIANTS += [(shuffled, MEMORY[name]) for name in MEMORY]
IDS += [f"shuffled, {name}" for name in MEMORY]


# Where many small steps are stopped after each.
AS_EVER = [*UNORDERED.values()][:2] + [*ORDERED.values()][:6]


@vital
@pytest.mark.parametrize(("source", "arguments"), VARIANTS, ids=IDS)
@pytest.mark.sampled(4)
def test_stopping_anywhere_equals_never_stopping(source, arguments):
    small = arguments is SELECTIVE["smaller batches"] and source not in AS_EVER
    check_resumes(training(source, arguments), every=3 if small else 1)


@vital
@in_workers
@pytest.mark.parametrize(
    "arguments", [SELECTIVE["released"], MEMORY["memory"]], ids=["sb", "memory"]
)
@pytest.mark.parametrize("source", WORKERS.values(), ids=WORKERS)
@pytest.mark.sampled(4)
def test_with_workers_too(source, arguments):
    check_resumes(training(source, arguments), every=3)


RULES = {"memory": lambda: Memory(keep=0.5, warmup=Epochs(1)), "none": lambda: None}


@vital
@in_workers
# With workers, torchdata's state of a sampler lacks the losses of batches that are being read.
@pytest.mark.parametrize(("rule", "workers"), [("memory", 0), ("none", 0), ("none", 2)])
def test_a_sampler_alone_goes_on_in_torchdatas_loader(rule, workers):
    def make():
        sampler = SelectiveSampler(dataset(), RULES[rule](), seed=3, epochs=3)
        loader, done = (
            torchdatas(Indexed(dataset()), sampler=sampler, num_workers=workers),
            Counter(),
        )

        def steps():
            while done.value < 3:
                for indices, (inputs, _) in loader:
                    if sampler.draw is not None:
                        sampler.update(indices, inputs[:, 0].abs() + done.value)
                    yield indices
                done.value += 1

        return {"loader": loader, "done": done}, steps, lambda: None

    check_resumes(make, every=1 if workers == 0 else 3)


@vital
@in_workers
@pytest.mark.parametrize("shorter", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [2, 4, 8])  # of 17 examples or of 9, whose last row is shared
@pytest.mark.sampled(3)
def test_batches_of_a_sampler_alone_go_on_in_torchdatas_loader(size, drop_last, shorter):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make():
        data = dataset(17)
        rule = Memory(keep=0.55, warmup=Epochs(1))
        sampler = SelectiveSampler(data, rule, seed=3, epochs=3, shorter_epochs=shorter)
        batches = sampler.batches(size, drop_last)
        loader, done = StatefulDataLoader(Indexed(data), batch_sampler=batches), Counter()

        def steps():
            while done.value < 3:
                for indices, (inputs, _) in loader:
                    sampler.update(indices, inputs[:, 0].abs() + done.value)
                    yield indices
                done.value += 1

        return {"loader": loader, "done": done}, steps, lambda: None

    check_resumes(make)


@vital
def test_a_sampler_alone_is_drawn_from_again_in_each_epoch():
    rule = Memory(keep=0.5, warmup=Epochs(1))
    sampler = SelectiveSampler(range(40), rule, seed=3, epochs=3, shorter_epochs=True)
    orders = []
    for _ in range(3):
        for index in sampler:
            sampler.update(torch.tensor([index]), torch.tensor([float(index)]))
            orders.append(index)
    assert len(orders) == 40 + 2 * 20
    assert orders[40:60] != orders[60:]


def stopped(**arguments):
    """A loader stopped within its first epoch."""
    loader = loader_of(**arguments)
    next(iter(loader))
    return loader


def loader_of(**arguments):
    return SelectiveLoader(
        numbered(torch.arange(40.0), 8), nn.Identity(), losses=given_losses, **at_once(arguments)
    )


def test_a_state_does_not_change_as_its_loader_goes_on():
    loader = SelectiveLoader(
        numbered(torch.zeros(12), 4),
        nn.Identity(),
        losses=given_losses,
        keep=1,
        pool=Pool(3),
        schedule=AT_ONCE,
    )
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    for batch in batches:
        batch["number"].fill_(-1)  # as a loop that changes its inputs in place
    resumed = stopped(keep=1, pool=Pool(3))
    for _ in range(2):  # and may be loaded more than once
        resumed.load_state_dict(state)
        first = next(iter(resumed))
        assert first["number"][0] == 3
        first["number"].fill_(-1)


def test_a_loader_that_was_used_takes_up_a_state_from_before_anything_was():
    fresh, used = loader_of(keep=0.5), stopped(keep=0.5)
    used.load_state_dict(fresh.state_dict())
    assert_same(list(used), list(fresh))


def test_a_state_of_an_order_that_nothing_repeats_is_refused_within_an_epoch():
    source = DataLoader(Indexed(dataset()), 8, num_workers=2, in_order=False)
    loader = SelectiveLoader(source, selector=Uniform(keep=0.5))
    loader.state_dict()
    batches = iter(loader)
    next(batches)
    with pytest.raises(StateError, match=r"in_order=False .* save the state between epochs"):
        loader.state_dict()
    list(batches)
    assert loader.state_dict()["source"]["epoch"] == 1


test_a_state_of_an_order_that_nothing_repeats_is_refused_within_an_epoch = in_workers(
    test_a_state_of_an_order_that_nothing_repeats_is_refused_within_an_epoch
)


def without(state, key):
    return {name: value for name, value in state.items() if name != key}


def elsewhere(state):
    return {"source": state["source"] | {"epoch": 7, "position": 1}}


def remembering(count=40, batch_size=8, **arguments):
    arguments = {"memory": Memory(keep=0.5, warmup=Epochs(1))} | arguments
    return SelectiveLoader(
        DataLoader(dataset(count), batch_size, shuffle=True), **at_once(arguments)
    )


BASE = {"selector": Percentile(keep=0.5)}
REFUSED = {
    "another version": (lambda s: s | {"version": 99}, r"version 99; this release reads version 5"),
    "no version": (lambda s: without(s, "version"), r"version None"),
    "no dict": (lambda s: [s], r"version None"),
    "a part is missing": (lambda s: without(s, "generator"), r"without generator: give what"),
    "wrapped loader of another kind": (
        lambda s: s | {"source": s["source"] | {"kind": "stateful", "loader": {}}},
        r"a loader that has a state of its own, and this list is not one",
    ),
    "wrapped loader of other generators": (
        lambda s: s | {"source": s["source"] | {"generators": s["source"]["generators"] * 2}},
        r"saved with 1 generators.*here are 0",
    ),
    "history of another size": (
        lambda s: stopped(selector=Percentile(keep=0.5, history=9)).state_dict() | elsewhere(s),
        r"size=9, and this LossHistory has size=1024",
    ),
    "another selector": (
        lambda _: stopped(selector=Uniform(keep=0.5)).state_dict(),
        r"selector='Uniform', and this SelectiveLoader has selector='Percentile': build",
    ),
    "another share": (lambda _: stopped(keep=0.1).state_dict(), r"keep=0.1, .* has keep=0.5"),
    "exact": (lambda _: stopped(keep=0.5, exact=False).state_dict(), r"exact=False, .* exact=True"),
    "another seed": (lambda _: stopped(keep=0.5, seed=4).state_dict(), r"seed=4, .* seed=0"),
    "another batch size": (
        lambda _: stopped(keep=0.5, pool=Pool(3)).state_dict(), r"batch_size=3, .* batch_size=8",
    ),
    "another schedule": (
        lambda _: stopped(keep=0.5, schedule=Schedule(warmup=Epochs(1))).state_dict(),
        r"schedule='Schedule\(warmup=Epochs\(1\)",
    ),
    "memory": (
        lambda _: remembering().state_dict(), r"memory='Memory', and this .* has memory=None",
    ),
    "damaged": (
        lambda s: s | {"pool": seal({"batch_size": 8})}, r"a state without weighted, counts",
    ),
    "damaged statistics": (
        lambda s: s | {"stats": {"lost": 1}}, r"stats is .*, and should be a dict of seen",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    loader, other = (SelectiveLoader(numbered(torch.arange(40.0), 8), nn.Identity(),
                                     losses=given_losses, pool=Pool(8),
                                      **at_once(copy.deepcopy(BASE)))
                     for _ in range(2))  # fmt: skip
    batches = iter(loader)
    next(batches), next(iter(other))
    before = loader.state_dict()
    state = change(other.state_dict())
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(seal(state) if isinstance(state, dict) else state)
    assert_same(without_times(loader.state_dict()), without_times(before))
    # And the loop that was going on goes on.
    other.load_state_dict(before)
    assert_same(list(batches), list(other))


def without_times(state):
    return seal(state | {"stats": state["stats"] | {"seconds_selection": 0}})


OF_RULES = {
    "another share": (
        {"memory": Memory(keep=0.2, floor=0.1, warmup=Epochs(1))},
        r"keep=0.5.*keep=0.2",
    ),
    "another floor": ({"memory": Memory(keep=0.5, floor=0.2)}, r"floor=0.1.*floor=0.2"),
    "another rule": (
        {"memory": InfoBatch(0.5), "epochs": 9},
        r"memory='Memory', and .* memory='InfoBatch'",
    ),
    "another seed": ({"seed": 2}, r"seed=0, .* seed=2"),
    "more examples": ({"count": 41}, r"examples=40, .* examples=41"),
    "another batch size": ({"batch_size": 4}, r"batch_size=8, .* batch_size=4"),
    "another warm-up": ({"memory": Memory(keep=0.5, warmup=Epochs(2))}, r"schedule=.*Epochs\(2\)"),
}


@pytest.mark.parametrize(("arguments", "message"), OF_RULES.values(), ids=OF_RULES)
def test_a_state_of_another_rule_is_refused_and_changes_nothing(arguments, message):
    warm = {"schedule": Schedule(warmup=Epochs(1))} if message[:4] in ("keep", "floo") else {}
    saved, loader = remembering(**warm), remembering(**warm, **arguments)
    for one in (saved, loader):
        for inputs, _ in one:
            one.record(inputs[:, 0].abs())
    before = loader.state_dict()
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(saved.state_dict())
    assert_same(without_times(loader.state_dict()), without_times(before))


def test_a_batch_size_that_was_found_out_fits_one_that_is_not_yet():
    source = [*DataLoader(Stream(), 8)]
    one, other = (SelectiveLoader(source, selector=Uniform(keep=0.5)) for _ in range(2))
    batches = iter(one)
    next(batches)
    other.load_state_dict(one.state_dict())
    assert other.batch_size == 8
    assert_same(list(other), list(batches))


@pytest.mark.parametrize(
    "arguments", [{"keep": 1}, {"memory": Memory(keep=0.5, warmup=Epochs(1)), "epochs": 4}]
)
def test_stopping_twice_within_what_was_made_of_one_batch_repeats_nothing(arguments):
    def make():
        source = DataLoader(dataset(40), 8, shuffle=True, generator=torch.Generator())
        return SelectiveLoader(
            source, nn.Identity(), lambda outputs, targets: outputs.sum(1), pool=Pool(2),
            **at_once(copy.deepcopy(arguments)),
        )  # fmt: skip

    loader, batches = make(), []
    for count in (1, 1, 1, 20):
        iterator = iter(loader)
        for _, (inputs, _) in zip(range(count), iterator, strict=False):
            batches.append(inputs)
            loader.record(inputs.sum(1))
        state, loader = loader.state_dict(), make()
        loader.load_state_dict(state)
    assert len(torch.cat(batches).unique(dim=0)) == len(torch.cat(batches)) == 40
