"""The noise guard: whom it suspects, and how few of them a loader lets in."""

import io
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from siftback import (
    RS2,
    Indexed,
    Kath18,
    Memory,
    NoiseGuard,
    Percentile,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Stale,
    TopK,
    Unbiased,
    Uniform,
)
from siftback.errors import ConfigError, LossError, StateError
from toys import assert_same, dataset, network, optimizer_of, step

N, LIES = 40, (3, 17, 18, 30, 39)
LIE = torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor(LIES), True)


def slow_suspects(visits, m):
    """One example at a time: whose label was doubtful m times on end, as things then were."""
    last, streak = {}, {}
    for indices, losses in visits:
        last.update(zip(indices, losses, strict=True))
        t = sum(math.exp(-loss) for loss in last.values()) / len(last)
        for index, loss in zip(indices, losses, strict=True):
            doubtful = math.exp(-loss) < t * (1 - t)
            streak[index] = streak.get(index, 0) + 1 if doubtful else 0
    return sorted(index for index, length in streak.items() if length >= m)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_suspects_are_those_of_the_slow_reference(m):
    generator = torch.Generator().manual_seed(m)
    guard, visits, found = NoiseGuard(visits=m), [], 0
    for _ in range(40 * m):
        indices = torch.randperm(50, generator=generator)[:9]
        losses = 3 * torch.rand(9, generator=generator)
        visits.append((indices.tolist(), losses.tolist()))
        guard.observe(indices, losses)
        assert guard.suspects.tolist() == slow_suspects(visits, m)
        expected = [int(i) in guard.suspects.tolist() for i in indices]
        assert guard.suspected(indices).tolist() == expected
        found += sum(expected)
    assert found > 0


def test_an_example_that_is_learnt_after_all_is_no_suspect_any_more():
    guard, both = NoiseGuard(visits=2), torch.arange(2)
    guard.observe(both, torch.tensor([0.5, 4.0]))
    assert guard.suspects.tolist() == []
    guard.observe(both, torch.tensor([0.5, 4.0]))
    assert guard.suspects.tolist() == [1]
    guard.observe(both, torch.tensor([0.5, 0.7]))
    assert guard.suspects.tolist() == []


def test_who_guesses_doubts_nothing():
    guard = NoiseGuard(visits=1)
    guard.observe(torch.arange(10), torch.full((10,), math.log(10)))
    assert guard.suspects.tolist() == []
    assert guard.confidence == pytest.approx(0.1)


def test_a_streak_is_counted_beyond_what_a_byte_holds():
    guard = NoiseGuard(visits=255)
    for visit in range(300):
        guard.observe(torch.arange(2), torch.tensor([0.5, 4.0]))
        assert guard.suspects.tolist() == ([1] if visit >= 254 else [])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"cap": 1.5}, r"cap=1.5: give .* in \[0, 1\]"),
        ({"cap": float("nan")}, "cap=nan"),
        ({"visits": 0}, "visits=0: give a whole number from 1 to 255"),
        ({"visits": True}, "visits=True"),
    ],
)
def test_what_is_out_of_range_is_refused(arguments, told):
    with pytest.raises(ConfigError, match=told):
        NoiseGuard(**arguments)


class Told(nn.Module):
    """Losses by example and epoch: high at first, then low but for the lies."""

    def __init__(self):
        super().__init__()
        self.epoch = 0
        self.table = torch.full((9, N), 2.0)
        self.table[1:] = torch.rand(8, N, generator=torch.Generator().manual_seed(5))
        self.table[:, LIE] = 9.0

    def losses(self, _, numbers):
        return self.table[self.epoch][numbers]


def guarded(told, guard, **arguments):
    options = {"keep": 0.5, "batch_size": 4, "drop_last": "carry", "index_of": lambda batch: batch}
    batches = list(torch.arange(N).split(8))
    return SelectiveLoader(batches, told, losses=told.losses, guard=guard, **options | arguments)


def kept_by_epoch(loader, told, epochs):
    found = []
    for told.epoch in range(epochs):
        before = loader.stats.kept
        for _ in loader:
            if loader.selector.reweights:
                assert len(loader.weights) == len(loader.indices)
        found.append(loader.stats.kept - before)
    return found


SELECTORS = {
    "percentile": lambda: Percentile(keep=0.5),
    "top-k": lambda: TopK(keep=0.5),
    "unbiased": lambda: Unbiased(Percentile(keep=0.5), floor=0.1),
    "kath18": lambda: Kath18(keep=0.5),
}


@pytest.mark.parametrize("name", SELECTORS)
def test_with_a_cap_of_0_no_suspect_is_trained_on_and_all_are_counted(name):
    told, guard = Told(), NoiseGuard(cap=0.0, visits=2)
    loader = guarded(told, guard, keep=None, selector=SELECTORS[name](), batch_size=1)
    given = []
    for told.epoch in range(4):
        for batch in loader:
            loader.weights.sum()
            given.append((told.epoch, int(batch)))
    assert guard.suspects.tolist() == list(LIES)
    assert {i for epoch, i in given if epoch == 0} & set(LIES)  # not yet known
    assert not {i for epoch, i in given if epoch >= 1} & set(LIES)
    assert loader.stats.capped == 3 * len(LIES)


def test_the_others_are_selected_as_if_there_were_no_suspects():
    """The same losses to the same selector, with the same chance, but for suspects' rows."""
    told, guard = Told(), NoiseGuard(cap=0.0, visits=1)
    guard.observe(torch.arange(N), torch.where(LIE, 9.0, 2.0))  # known from the beginning
    loader, selector = guarded(told, guard, batch_size=1), Percentile(keep=0.5)
    generator = torch.Generator().manual_seed(0)
    for told.epoch in range(1, 4):
        expected = []
        for rows in torch.arange(N).split(8):
            trusted = rows[~LIE[rows]]
            expected += trusted[
                selector.select(told.table[told.epoch][trusted], generator).indices
            ].tolist()
            torch.rand(int(LIE[rows].sum()), generator=generator)
        assert [int(batch) for batch in loader] == expected


@pytest.mark.parametrize(("cap", "keep"), [(0.2, 0.5), (0.9, 0.3)])
def test_a_suspect_has_the_chance_of_the_cap_and_never_more_than_the_share_kept(cap, keep):
    told, guard, draws = Told(), NoiseGuard(cap=cap, visits=1), 120
    loader, times = guarded(told, guard, keep=keep, batch_size=1), 0
    told.epoch = 1
    for _ in range(draws):
        times += sum(bool(LIE[batch]) for batch in loader)
    expected = min(cap, keep) * len(LIES) * draws
    assert abs(times - expected) < 4 * (expected * (1 - min(cap, keep))) ** 0.5


def test_as_long_as_there_are_no_suspects_nothing_changes():
    plain, other = Told(), Told()
    for told in (plain, other):
        told.table[:, LIE] = 0.5
        told.table[0] = 5.0
    loaders = guarded(plain, False), guarded(other, NoiseGuard())
    for epoch in range(3):
        plain.epoch = other.epoch = epoch
        for one, two in zip(*loaders, strict=True):
            assert_same(one, two)
    assert loaders[1].stats.capped == 0


def test_the_guard_of_the_cost_is_not_the_guard_of_labels():
    assert guarded(Told(), True).stats.capped == 0
    list(guarded(Told(), False, index_of=None))


@pytest.mark.parametrize("on_nonfinite", ["error", "keep", "drop"])
def test_losses_that_are_not_finite_are_no_matter_of_the_guard(on_nonfinite):
    told, guard = Told(), NoiseGuard(cap=0.0, visits=1)
    told.table[1:, 3] = torch.nan
    loader = guarded(told, guard, on_nonfinite=on_nonfinite, batch_size=1)
    list(loader)
    told.epoch = 1
    if on_nonfinite == "error":
        with pytest.raises(LossError, match="example 3 in batch 0 of epoch 1 is nan"):
            list(loader)
        return
    given = [int(batch) for batch in loader]
    assert (3 in given) == (on_nonfinite == "keep")
    assert not set(given) & {17, 18, 30, 39}


def test_only_what_is_scored_is_judged():
    told, guard = Told(), NoiseGuard(cap=0.0, visits=1)
    loader = guarded(told, guard, score_share=0.5, batch_size=1)
    list(loader)
    seen = int((~guard.losses.isnan()).sum())
    assert seen == loader.stats.scored == N // 2


def test_while_selection_is_off_everything_passes():
    told, guard = Told(), NoiseGuard(cap=0.0, visits=1)
    loader = guarded(told, guard, schedule=Schedule(start=1))
    assert kept_by_epoch(loader, told, 2)[0] == 0
    assert loader.stats.released >= N
    assert guard.suspects.tolist() == list(LIES)


def indexed(count=44):
    data = dataset(count)
    return DataLoader(Indexed(data), batch_size=8, sampler=SelectiveSampler(data, seed=3))


def draw(scorer, guard, epochs):
    """Trains over told losses; gives which examples each epoch had, and the loader."""
    model, found = network(), []
    loader = SelectiveLoader(
        indexed(), model, F.cross_entropy, scorer=scorer, guard=guard, keep=0.5, seed=1
    )
    for _ in range(epochs):
        rows = []
        for x, _ in loader:
            rows += loader.indices.tolist()
            loader.remember(torch.where(loader.indices < 5, 9.0, 1 / (1 + len(found))))
            assert len(x) == len(loader.indices)
        found.append(set(rows))
    return found, loader


def test_a_draw_from_memory_leaves_suspects_out():
    guard = NoiseGuard(cap=0.0, visits=2)
    found, loader = draw(Memory(warmup=2), guard, 6)
    assert guard.suspects.tolist() == [0, 1, 2, 3, 4]
    assert all(found[epoch] == set(range(44)) for epoch in (0, 1))
    assert all(not rows & {0, 1, 2, 3, 4} for rows in found[2:])
    assert all(10 <= len(rows) <= 30 for rows in found[2:])
    assert loader.stats.capped == 4 * 5


def test_a_draw_from_memory_lets_suspects_in_by_the_cap():
    guard = NoiseGuard(cap=0.3, visits=1)
    found, _ = draw(Memory(warmup=1), guard, 60)
    times = sum(len(rows & {0, 1, 2, 3, 4}) for rows in found[1:])
    expected = 0.3 * 5 * 59
    assert abs(times - expected) < 4 * (expected * 0.7) ** 0.5


def test_selection_passes_of_a_scorer_that_remembers_are_what_is_judged():
    told, guard = Told(), NoiseGuard(cap=0.0, visits=1)
    loader = guarded(told, guard, scorer=Stale(every=2), batch_size=1)
    told.epoch = 1
    list(loader)
    assert guard.suspects.tolist() == list(LIES)
    given = [int(batch) for batch in loader]  # drawn from what is remembered
    assert not set(given) & set(LIES)
    assert loader.stats.capped == 2 * len(LIES)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"selector": Uniform(keep=0.5), "keep": None}, "Uniform looks at no losses"),
        ({"index_of": None}, "NoiseGuard needs each example's index: wrap the data set"),
        ({"scorer": RS2(0.5), "keep": None}, "RS2 chooses by a rule of its own"),
    ],
)
def test_what_cannot_be_guarded_says_so(arguments, told):
    with pytest.raises(ConfigError, match=told):
        guarded(Told(), NoiseGuard(), **arguments)


def run(checkpoint=None, epochs=3):
    """Trains a network under a guard that suspects many; gives batches and checkpoints."""
    data = Indexed(dataset())
    source = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(2))
    model, guard = network(), NoiseGuard(cap=0.3, visits=2)
    optimizer = optimizer_of(model)
    loader = SelectiveLoader(
        source, model, F.cross_entropy, keep=0.6, guard=guard, batch_size=5, drop_last="carry"
    )
    if checkpoint is not None:
        saved = torch.load(io.BytesIO(checkpoint))
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
    batches, checkpoints = [], []
    while loader.epoch < epochs:
        for batch in loader:
            step(model, optimizer, batch)
            batches.append(batch)
            file = io.BytesIO()
            torch.save(
                {
                    "loader": loader.state_dict(),
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "random": torch.get_rng_state(),
                },
                file,
            )
            checkpoints.append(file.getvalue())
    return batches, checkpoints, loader


def test_stopping_after_any_step_and_going_on_equals_never_stopping():
    batches, checkpoints, loader = run()
    assert loader.stats.capped > 0
    for done in range(1, len(batches), 4):
        rest, _, resumed = run(checkpoints[done - 1])
        assert_same(rest, batches[done:])
        assert resumed.stats.capped == loader.stats.capped


def test_a_state_of_another_guard_is_refused():
    with_guard, without = guarded(Told(), NoiseGuard()), guarded(Told(), False)
    with pytest.raises(StateError, match="guard NoiseGuard, and this loader has a None"):
        without.load_state_dict(with_guard.state_dict())
    with pytest.raises(StateError, match="guard None, and this loader has a NoiseGuard"):
        with_guard.load_state_dict(without.state_dict())
    list(with_guard)
    other = guarded(Told(), NoiseGuard(visits=2))
    with pytest.raises(StateError, match=r"NoiseGuard\(visits=3\), and this one has visits=2"):
        other.load_state_dict(with_guard.state_dict())
