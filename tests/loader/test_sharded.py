"""Shards of a data set in four real processes, two, one and four: one draw, whatever they are."""

import pytest
import torch
from sharded_ranks import COUNT, SHARDS, epoch_of, loader_of, losses_of, plain, rule, sampled
from torch.utils.data import WeightedRandomSampler

from siftback import SelectiveLoader, SelectiveSampler
from siftback.errors import ConfigError, StateError

pytestmark = pytest.mark.distributed

WORLDS = {"first": 4, "second": 2, "single": 1, "third": 4}


@pytest.fixture(scope="module")
def ranks(found_in):
    """The notes of each process, by rank."""
    return found_in("sharded_ranks", processes=4)


@pytest.fixture(scope="module")
def alone():
    """The same training in this process: what each epoch read, and what was remembered."""
    loader = loader_of()
    epochs = [torch.cat(epoch_of(loader)) for _ in range(5)]
    return epochs, loader


def of(ranks, stage):
    return [rank[stage] for rank in ranks[: WORLDS[stage]]]


def test_four_two_and_one_process_read_the_same_in_every_epoch(ranks, alone):
    # Each stage goes on from what the one before saved.
    for stage, first in (("first", 0), ("second", 2), ("single", 3), ("third", 4)):
        epochs = list(zip(*(rank["epochs"] for rank in of(ranks, stage)), strict=True))
        assert len(epochs) == (3 if stage == "first" else 1)
        for expected, processes in zip(alone[0][first:], epochs, strict=False):
            found = torch.cat([torch.cat(steps) for steps in processes])
            assert found.sort().values.equal(expected.sort().values)
            assert len(found.unique()) == len(found)


def test_processes_make_equal_steps_on_their_own_shards_and_mix_them(ranks):
    for rank, found in enumerate(of(ranks, "first")):
        sizes = [[len(step) for step in epoch] for epoch in found["epochs"]]
        assert sizes == [[len(step) for step in epoch] for epoch in ranks[0]["first"]["epochs"]]
        whole, *drawn = (torch.cat(epoch) for epoch in found["epochs"])
        for epoch in (whole, *drawn):
            assert set((epoch % SHARDS).tolist()) == {2 * rank, 2 * rank + 1}
        assert len(whole) == COUNT // SHARDS * 2
        assert [len(epoch) for epoch in drawn] == [round(COUNT / 2) // SHARDS * 2] * 2
        assert not whole.equal(whole.sort().values)
        mixed = [len((step % SHARDS).unique()) for step in found["epochs"][0]]
        assert sum(mixed) > 1.5 * len(mixed)
        left = set(range(COUNT)) & set(found["left_out"].tolist())
        expected = {i for i in range(COUNT) if i % SHARDS in (2 * rank, 2 * rank + 1)}
        assert left == expected - set(drawn[0].tolist())


def test_what_is_remembered_is_that_of_one_process(ranks, alone):
    shards = alone[1].memory.shards
    table = torch.cat([rank["table"] for rank in of(ranks, "third")])
    assert table.shape == (SHARDS * shards.height, 1)
    expected = alone[1].memory.values
    torch.testing.assert_close(table, expected, rtol=0, atol=0, equal_nan=True)
    indices = alone[0][-1]
    assert table[shards.rows_of(indices), 0].equal(losses_of(indices, 4))


def test_as_many_processes_go_on_within_an_epoch_bit_for_bit(ranks):
    for rank in of(ranks, "first"):
        steps = rank["epochs"][2]
        for found, expected in ((rank["between"], steps), (rank["within"], steps[2:])):
            assert len(found) == len(expected)
            assert all(map(torch.equal, found, expected))


def test_a_sampler_alone_reads_what_a_loader_does(ranks, alone):
    for epoch, expected in enumerate(alone[0][:3]):
        found = torch.cat([rank["sampled"][epoch] for rank in of(ranks, "first")])
        assert found.sort().values.equal(expected.sort().values)
        assert sampled()[epoch].sort().values.equal(expected.sort().values)


def test_what_is_not_a_processs_own_is_refused(ranks):
    for rank, found in enumerate(of(ranks, "first")):
        other = (rank + 1) % 4
        mine, theirs = (f"{2 * r} to {2 * r + 1}" for r in (rank, other))
        expected = f"StateError: the state has shards {theirs}, and this process holds {mine} of 8"
        assert found["other's between"].startswith(expected)
        assert (
            f"saved with rank={other}, and this loader has rank={rank}" in found["other's within"]
        )
        assert f"indices= holds {2 * other}, and the process of rank {rank}" in found["foreign"]


def test_another_number_of_processes_is_refused_but_for_a_checkpoint_between_epochs(ranks):
    for rank, found in enumerate(of(ranks, "second")):
        assert "StateError: the state was saved with world=4, and this loader" in found["within"]
        mine = f"{4 * rank} to {4 * rank + 3}"
        assert f"and this process holds {mine} of 8: each process loads" in found["between"]


def test_what_does_not_fit_all_processes_is_refused(ranks):
    for rank, found in enumerate(of(ranks, "second")):
        expected = f"seed={rank} in the process of rank {rank}, and {1 - rank} in that of"
        assert expected in found["seeds"]
        expected = "shards=9 cannot be shared equally among 2 processes: give a multiple of all"
        assert expected in found["unequal"]
        assert "a RandomSampler gives examples of all shards" in found["sampler"]
        assert "a _IndexedLoader does not let Memory say which process" in found["streamed"]


# Without other processes


def test_more_shards_than_examples_or_draws_are_refused():
    with pytest.raises(ConfigError, match="shards=8 of 7 examples: give a data set of a known"):
        rule().grow(7)
    few = rule(keep=0.11)
    few.grow(60)
    with pytest.raises(ConfigError, match="shards=8 and 7 examples to draw"):
        few.count(1)


def test_a_sampler_of_other_ranks_than_the_processes_is_refused(alone):
    weighted = plain(sampler=WeightedRandomSampler(torch.ones(COUNT), COUNT))
    with pytest.raises(ConfigError, match=r"a WeightedRandomSampler .*all shards"):
        SelectiveLoader(weighted, memory=rule(), epochs=2)
    with pytest.raises(ConfigError, match=f"remembers {COUNT} examples, and there are 99: give"):
        SelectiveSampler(range(99), alone[1].memory, epochs=2)


def test_states_of_other_shards_or_data_are_refused(alone):
    state = alone[1].memory.state_dict()
    other = rule(shards=4)
    other.grow(COUNT)
    with pytest.raises(StateError, match="saved with shards=8, and this Memory has shards=4"):
        other.load_state_dict(state)
    other = rule()
    other.grow(COUNT - 1)
    with pytest.raises(StateError, match="a state of 203 examples does not fit 202"):
        other.load_state_dict(state)


def test_without_shuffling_examples_are_in_their_order():
    loader = SelectiveLoader(plain(), memory=rule(), epochs=6, attach=True, shorter_epochs=True)
    whole, drawn = (torch.cat(epoch_of(loader)) for _ in range(2))
    assert whole.tolist() == list(range(COUNT // SHARDS * SHARDS))
    assert drawn.equal(drawn.sort().values)
    assert len(drawn) == round(COUNT / 2) // SHARDS * SHARDS
