"""Two real processes under ``torchrun``: one common draw, of which each has a share."""

import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
import torch
from distributed_ranks import COUNT, EPOCHS, FROM_MEMORY, RATE, RULES, data, loader_of, network
from torch.nn import functional as F

from siftback import InfoBatch, SelectiveSampler
from siftback.errors import ConfigError

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("distributed_ranks.py")
DRAWN = [*RULES, *FROM_MEMORY]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both processes found, by rank."""
    out = tmp_path_factory.mktemp("ranks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    done = subprocess.run(
        [*torchrun, *rendezvous, str(SCRIPT), str(out)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


def joined(epoch, part):
    """Indices, weights or losses of an epoch, in one."""
    return torch.cat([step[part] for step in epoch["steps"]])


def looked_at(epoch):
    """Those left out that were forwarded after it."""
    return epoch["left_out"][: len(epoch["losses"])]


def epochs_of(ranks, name):
    return list(zip(*(rank[name]["epochs"] for rank in ranks), strict=True))


def state_of(ranks, name):
    return [rank[name]["scorer"] for rank in ranks]


@pytest.mark.parametrize("name", [*DRAWN, "apart"])
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
        if name != "stale":  # of whose first epoch the selection passes leave more out
            missing = COUNT - len(drawn) - len(left_out)
            assert missing == (COUNT - len(left_out)) % 2
        assert not set(drawn.tolist()) & set(left_out.tolist())


@pytest.mark.parametrize("name", RULES)
def test_the_draw_is_that_of_one_process_told_all_losses(ranks, name):
    scorer, generator = RULES[name](), torch.Generator().manual_seed(0)
    scorer.grow(COUNT)
    for epoch, both in enumerate(epochs_of(ranks, name)):
        expected = scorer.draw(epoch, generator)
        for rank in both:
            indices, weights, losses = (joined(rank, part) for part in range(3))
            torch.testing.assert_close(weights, expected[indices])
            told = torch.cat((indices, looked_at(rank)))
            losses = torch.cat((losses, rank["losses"]))
            correct, confidence = judged(losses)
            scorer.judged(told, correct, confidence)
            scorer.trained(told, losses, epoch)
        left_out = torch.cat([rank["left_out"] for rank in both]).sort().values
        assert left_out.equal((expected == 0).nonzero().squeeze(1))


def judged(losses):
    """Of two classes, what a loss says: the probability of the target is exp(-loss)."""
    chance = torch.exp(-losses)
    return chance > 0.5, torch.maximum(chance, 1 - chance)


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


def test_what_one_was_told_the_other_remembers(ranks):
    for name in DRAWN:
        one, other = state_of(ranks, name)
        store = "table" if name in FROM_MEMORY else "store"
        # As the last epoch began; what was told in it is not yet shared.
        last = epochs_of(ranks, name)[-1]
        told = torch.cat([*(joined(rank, 0) for rank in last), *(looked_at(rank) for rank in last)])
        before = torch.ones(COUNT, dtype=torch.bool)
        before[told] = False
        if name != "rs2":  # which is told nothing
            (of_one,), (of_other,) = (state[store].values() for state in (one, other))
            assert of_one[before].equal(of_other[before])


def test_a_state_between_epochs_holds_what_the_others_do_not_know_yet(ranks):
    for rank in ranks:
        whole, resumed = rank["infobatch"], rank["resumed"]
        for one, other in zip(whole["epochs"], resumed["epochs"], strict=True):
            for step, same in zip(one["steps"], other["steps"], strict=True):
                assert all(a.equal(b) for a, b in zip(step, same, strict=True))


def test_each_counts_its_share(ranks):
    for rank in ranks:
        for name in DRAWN:
            seen, unread, _ = rank[name]["stats"]
            assert seen == EPOCHS * (COUNT // 2)
            assert (unread > 0) or name == "stale"


def test_batches_chosen_by_chance_differ_in_number_and_are_joined(ranks):
    lengths = [[len(epoch["steps"]) for epoch in rank["joined"]["epochs"]] for rank in ranks]
    assert lengths[0] != lengths[1]
    for one, other in zip_longest(*(rank["joined"]["weights"] for rank in ranks)):
        torch.testing.assert_close(one, other)


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
        for share in shares:
            share.only(torch.tensor([1, 4, 9, 10, 2]))
        shared = [number for share in shares for number in share]
        assert len(shared) == len(set(shared)) == 5 // world * world
        assert set(shared) <= {1, 4, 9, 10, 2}


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), (1, 1)])
def test_a_rank_that_is_none_is_refused(rank, world):
    with pytest.raises(ConfigError, match=f"rank={rank} is none of world={world} processes"):
        SelectiveSampler(range(4), rank=rank, world=world)


def test_sharing_what_is_remembered_needs_the_processes(monkeypatch):
    loader_of(network(), scorer=InfoBatch())  # where one has everything
    monkeypatch.setattr("distributed_ranks.SelectiveSampler", half)
    with pytest.raises(ConfigError, match=r"rank=0, world=2 shares what InfoBatch remembers"):
        loader_of(network(), scorer=InfoBatch())


def half(examples, seed):
    return SelectiveSampler(examples, seed=seed, rank=0, world=2)
