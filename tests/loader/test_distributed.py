"""Two real processes: one common draw, of which each has a share."""

import re

import pytest
import torch
from distributed_ranks import COUNT, EPOCHS, RATE, REMEMBERED, RULES, data, loader_of, network
from torch.nn import functional as F
from torch.utils.data import DataLoader

from siftback import Epochs, InfoBatch, Memory, SelectiveLoader, SelectiveSampler
from siftback.errors import ConfigError
from siftback.seeding import Stream, generator_from

pytestmark = pytest.mark.distributed

DRAWN = [*RULES, *REMEMBERED]


@pytest.fixture(scope="module")
def ranks(found_in):
    """The notes of both processes, by rank."""
    return found_in("distributed_ranks", processes=2)


def joined(epoch, part):
    """Indices, weights or losses of an epoch, in one."""
    return torch.cat([step[part] for step in epoch["steps"]])


def looked_at(epoch):
    """Those left out that were forwarded after it."""
    return epoch["left_out"][: len(epoch["losses"])]


def epochs_of(ranks, name):
    return list(zip(*(rank[name]["epochs"] for rank in ranks), strict=True))


def state_of(ranks, name):
    return [rank[name]["memory"] for rank in ranks]


@pytest.mark.parametrize("name", [*DRAWN, "exact"])
def test_each_has_its_share_of_one_draw_in_equally_many_steps(ranks, name):
    for one, other in epochs_of(ranks, name):
        assert len(one["steps"]) == len(other["steps"]) > 0
        sizes = [[len(step[0]) for step in rank["steps"]] for rank in (one, other)]
        assert sizes[0] == sizes[1]
        drawn = torch.cat((joined(one, 0), joined(other, 0)))
        left_out = torch.cat((one["left_out"], other["left_out"]))
        assert len(drawn.unique()) == len(drawn)
        assert len(left_out.unique()) == len(left_out)
        # All but the odd one of the draw, which nobody has.
        if name not in ("stale", "exact"):  # of whose first epoch the scoring passes leave more out
            missing = COUNT - len(drawn) - len(left_out)
            assert missing == (COUNT - len(left_out)) % 2
        assert not set(drawn.tolist()) & set(left_out.tolist())


@pytest.mark.parametrize("name", [*RULES, "memory"])
def test_the_draw_is_that_of_one_process_given_all_losses(ranks, name):
    rule = (RULES | REMEMBERED)[name]()
    rule.grow(COUNT)
    for epoch, both in enumerate(epochs_of(ranks, name)):
        expected = torch.ones(COUNT)
        if rule.schedule.is_on(epoch, EPOCHS):
            expected = rule.draw(epoch, generator_from(0, epoch, Stream.DRAW))
        for rank in both:
            torch.testing.assert_close(joined(rank, 1), expected[joined(rank, 0)])
            given = [(indices, losses) for indices, _, losses in rank["steps"]]
            for indices, losses in [*given, (looked_at(rank), rank["losses"])]:
                correct, confidence = judged(losses)
                rule.update(indices, losses, epoch, correct=correct, confidence=confidence)
        left_out = torch.cat([rank["left_out"] for rank in both]).sort().values
        assert left_out.equal((expected == 0).nonzero().squeeze(1))


def judged(losses):
    """Of two classes, what a loss says: the probability of the target is exp(-loss)."""
    probability = torch.exp(-losses)
    return probability > 0.5, torch.maximum(probability, 1 - probability)


@pytest.mark.parametrize("name", ["infobatch", "memory"])
def test_training_is_that_of_one_process_on_both_halves_of_each_batch(ranks, name):
    model = network()
    inputs, targets = data().tensors
    for both in epochs_of(ranks, name):
        for steps in zip(*(rank["steps"] for rank in both), strict=True):
            indices, weights = (torch.cat([step[part] for step in steps]) for part in range(2))
            losses = F.cross_entropy(model(inputs[indices]), targets[indices], reduction="none")
            torch.testing.assert_close(torch.cat([step[2] for step in steps]), losses.detach())
            (losses * weights).mean().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= RATE * weight.grad
                    weight.grad = None
    for rank in ranks:
        for found, weight in zip(rank[name]["weights"], model.parameters(), strict=True):
            torch.testing.assert_close(found, weight.detach())


def test_what_one_was_given_the_other_remembers(ranks):
    for name in DRAWN:
        one, other = state_of(ranks, name)
        # As the last epoch began; what was given in it is not yet shared.
        last = epochs_of(ranks, name)[-1]
        given = torch.cat(
            [*(joined(rank, 0) for rank in last), *(looked_at(rank) for rank in last)]
        )
        before = torch.ones(COUNT, dtype=torch.bool)
        before[given] = False
        of_one, of_other = (state["table"]["values"] for state in (one, other))
        torch.testing.assert_close(of_one[before], of_other[before], equal_nan=True, rtol=0, atol=0)
        if name != "rs2":  # which learns nothing
            assert not of_one.isnan().all()


def test_processes_of_different_seeds_are_refused(ranks):
    first, second = (rank["apart"] for rank in ranks)
    assert first.startswith("seed=0 in the process of rank 0, and 1 in that of rank 1: give all")
    assert second.startswith("seed=1 in the process of rank 1, and 0 in that of rank 0: give all")


def test_processes_of_different_rules_are_refused(ranks):
    for rank in ranks:
        message = r"memory.ratio=0.[56] in the process of rank \d, and 0.[56] in"
        assert re.match(message, rank["unlike"])
        assert "give all processes the same memory" in rank["of another kind"]


def test_a_state_between_epochs_holds_what_the_others_do_not_know_yet(ranks):
    for rank in ranks:
        whole, resumed = rank["infobatch"], rank["resumed"]
        for one, other in zip(whole["epochs"], resumed["epochs"], strict=True):
            for step, same in zip(one["steps"], other["steps"], strict=True):
                assert all(a.equal(b) for a, b in zip(step, same, strict=True))


@pytest.mark.parametrize("how", ["handed on", "handed on by a state"])
def test_a_rule_in_a_new_loader_knows_what_the_others_recorded_in_the_one_before(ranks, how):
    known = [rank[how] for rank in ranks]
    torch.testing.assert_close(*known, equal_nan=True)
    is_known = ~known[0].isnan()
    assert int(is_known.sum()) == COUNT - 1  # of an odd number nobody has the last
    assert torch.equal(known[0][is_known], torch.arange(1.0, COUNT + 1)[is_known])


def test_each_counts_its_share(ranks):
    for rank in ranks:
        for name in DRAWN:
            seen, unread, _ = rank[name]["stats"]
            assert seen == EPOCHS * (COUNT // 2)
            assert (unread > 0) or name == "stale"


@pytest.mark.parametrize("name", ["scored", "all"])
def test_scoring_passes_keep_equally_many_of_other_examples_in_each_process(ranks, name):
    for one, other in epochs_of(ranks, name):
        sizes = [[len(step[0]) for step in rank["steps"]] for rank in (one, other)]
        assert sizes[0] == sizes[1]
        assert not set(joined(one, 0).tolist()) & set(joined(other, 0).tolist())
    for rank in ranks:
        assert rank[name]["counts"] == [len(epoch["steps"]) for epoch in rank[name]["epochs"]]
    one, other = (rank[name]["weights"] for rank in ranks)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_one_that_drops_examples_keeps_others_in_their_place(ranks):
    (sizes, nonfinite), (others, dropped) = (rank["nonfinite"] for rank in ranks)
    assert sizes == others
    assert (nonfinite, dropped) == (0, 6)  # one of each of 22 / 4 batches


def test_the_state_of_another_process_is_refused(ranks):
    for rank, found in enumerate(ranks):
        assert f"rank={1 - rank}" in found["state of another"]
        assert f"rank={rank}" in found["state of another"]
    messages = [rank["state of a common name"] for rank in ranks]  # of the one that it is not of
    assert any(message and "each under a name of its own" in message for message in messages)


def test_all_examples_for_each_process_are_refused(ranks):
    for rank in ranks:
        for message in rank["unshared"]:
            assert "gives each of 2 processes all examples: give the DataLoader" in message


# Without other processes


def test_shares_are_every_other_of_one_order():
    whole = list(SelectiveSampler(range(11), seed=3))
    for world in (2, 3):
        shares = [
            SelectiveSampler(range(11), seed=3, rank=rank, world=world) for rank in range(world)
        ]
        for rank, share in enumerate(shares):
            assert list(share) == whole[rank::world][: 11 // world]
            assert len(share) == 11 // world
            assert share.examples == 11


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [
        (2, 2, "rank=2 is none of world=2 processes"),
        (1, 1, "rank=1 is none of world=1 processes"),
        (-1, 2, "rank=-1: give an integer, at least 0"),
        (0, 0, "world=0: give an integer, at least 1"),
    ],
)
def test_a_rank_that_is_none_is_refused(rank, world, message):
    with pytest.raises(ConfigError, match=message):
        SelectiveSampler(range(4), rank=rank, world=world)


def test_sharing_what_is_remembered_needs_the_processes():
    loader_of(network(), memory=InfoBatch())  # where one has everything
    half = SelectiveSampler(data(), rank=0, world=2)
    with pytest.raises(ConfigError, match=r"rank=0, world=2 shares what InfoBatch remembers"):
        SelectiveLoader(DataLoader(data(), 4, sampler=half), memory=InfoBatch(), epochs=4)
    with pytest.raises(ConfigError, match=r"rank=0, world=2 shares what Memory remembers"):
        SelectiveSampler(data(), Memory(warmup=Epochs(1), tail=Epochs(0)), rank=0, world=2)
