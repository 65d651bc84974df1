"""Stopping after any step and going on elsewhere equals never stopping."""

import pytest
import torch
from torch import nn

from resuming import ARGUMENTS, EPOCHS, SOURCES, run
from siftback import Percentile, SelectiveLoader, Uniform
from siftback.errors import StateError
from toys import assert_same, dataset, given_losses, numbered

VARIANTS = [(source, "released") for source in SOURCES]
VARIANTS += [(source, "smaller batches") for source in list(SOURCES)[1:]]
VARIANTS += [("shuffled", arguments) for arguments in list(ARGUMENTS)[1:]]


@pytest.mark.parametrize(("source", "arguments"), VARIANTS)
def test_stopping_anywhere_equals_never_stopping(source, arguments):
    source, arguments = SOURCES[source], ARGUMENTS[arguments]
    batches, checkpoints, end = run(source, arguments)
    for done, checkpoint in checkpoints:
        rest, _, same_end = run(source, arguments, checkpoint)
        assert_same(rest, batches[done:])
        assert_same(same_end, end)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own
def test_torchdatas_loader_goes_on_from_any_step():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def examples(checkpoint=None):
        torch.manual_seed(5)
        loader = SelectiveLoader(
            stateful(dataset(), batch_size=8, shuffle=True), nn.Identity(),
            losses=lambda model, batch: batch[0][:, 0], keep=0.5, batch_size=5,
        )  # fmt: skip
        if checkpoint:
            loader.load_state_dict(checkpoint)
        batches, checkpoints = [], []
        while loader.epoch < EPOCHS:
            for batch in loader:
                batches.append(batch)
                checkpoints.append(loader.state_dict())
        return batches, checkpoints

    batches, checkpoints = examples()
    for done, checkpoint in enumerate(checkpoints, start=1):
        assert_same(examples(checkpoint)[0], batches[done:])


def stopped(**arguments):
    """A loader stopped within its first epoch."""
    loader = SelectiveLoader(
        numbered(torch.arange(40.0), 8), nn.Identity(), losses=given_losses, **arguments
    )
    next(iter(loader))
    return loader


def test_a_state_does_not_change_as_its_loader_goes_on():
    loader = SelectiveLoader(
        numbered(torch.zeros(12), 4), nn.Identity(), losses=given_losses, keep=1, batch_size=3
    )
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    for batch in batches:
        batch["number"].fill_(-1)  # as a loop that changes its inputs in place
    resumed = stopped(keep=1, batch_size=3)
    for _ in range(2):  # and may be loaded more than once
        resumed.load_state_dict(state)
        first = next(iter(resumed))
        assert first["number"][0] == 3
        first["number"].fill_(-1)


def test_a_loader_that_was_used_takes_up_a_state_from_before_anything_was():
    fresh = SelectiveLoader(
        numbered(torch.arange(40.0), 8), nn.Identity(), losses=given_losses, keep=0.5
    )
    used = stopped(keep=0.5)
    used.load_state_dict(fresh.state_dict())
    assert_same(list(used), list(fresh))


def without(state, key):
    return {name: value for name, value in state.items() if name != key}


def elsewhere(state):
    return {"source": state["source"] | {"epoch": 7, "position": 1}}


REFUSED = {
    "another version": (lambda s: s | {"version": 99}, r"version 99; this release reads version 2"),
    "no version": (lambda s: without(s, "version"), r"version None"),
    "a part is missing": (lambda s: without(s, "generator"), r"without generator: give what"),
    "wrapped loader of the other kind": (
        lambda s: s | {"source": s["source"] | {"loader": {}}},
        r"with a state_dict.*list",
    ),
    "wrapped loader of other generators": (
        lambda s: s | {"source": s["source"] | {"order": [*s["source"]["order"] * 2]}},
        r"saved with 1 generators.*here are 0",
    ),
    "history of another size": (
        lambda s: stopped(keep=0.5, history=9).state_dict() | elsewhere(s),
        r"a history of 9 losses does not fit one of 1024",
    ),
    "another selector": (
        lambda _: stopped(selector=Uniform(keep=0.5)).state_dict(),
        r"Uniform.*Percentile",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    loader = stopped(selector=Percentile(keep=0.5))
    before = loader.state_dict()
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(change(stopped(keep=0.5).state_dict()))
    assert_same(loader.state_dict(), before)
