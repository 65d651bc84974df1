"""A process that raises, is killed, or has fewer batches: the others name it, and none hangs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from missing_ranks import EPOCHS
from torch import nn

from siftback.processes.barrier import _Passed

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("missing_ranks.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The findings of a process of a case, or its error."""
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "ignore", SCRIPT, out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr  # none was still waiting
    return lambda case, rank: torch.load(out / f"{case}-{rank}.pt")


@pytest.mark.parametrize(("case", "missing"), [("raised", 1), ("killed", 2)])
def test_a_process_that_does_not_come_is_named_by_the_others(found, case, missing):
    for rank in {0, 1, 2} - {missing}:
        assert found(case, rank).startswith(
            f"ProcessError: rank {rank} waited 10 seconds at the beginning of epoch 1, and rank "
            f"{missing} did not come: it was killed or raised an error, see its own output"
        )


def test_the_first_process_is_named_though_it_keeps_the_store(found):
    for rank in (1, 2):
        assert f"ProcessError: rank {rank} waited at the beginning of" in found(
            "first_killed", rank
        )
        assert "mostly that of rank 0, is gone" in found("first_killed", rank)


def test_one_that_has_fewer_batches_averages_no_other_epoch_but_names_the_other(found):
    message = found("ended_early", 1)
    assert "rank 1 waited 10 seconds at the beginning of epoch 1, and rank 0 did not" in message
    assert "it is still in a step, as it has more batches than this one" in message


def test_processes_at_different_places_name_each_other(found):
    for rank, other, there in ((0, 1, "the beginning of epoch 1"), (1, 0, "a checkpoint")):
        assert f"and rank {other} at {there}: all processes must" in found("apart", rank)


def test_a_join_round_each_epoch_makes_up_for_fewer_batches(found):
    one, other = (found("joined", rank) for rank in range(2))
    # Of each 3 examples 2 are kept: 18 make 4 batches, and 12 make 3.
    assert (one["steps"], other["steps"]) == (EPOCHS * 4, EPOCHS * 3)
    torch.testing.assert_close(one["weights"], other["weights"], rtol=0, atol=0)


def test_a_join_round_a_whole_training_changes_nothing_of_equal_steps(found):
    expected = found("never_joined", 0)
    for rank in range(2):
        torch.testing.assert_close(found("joined_once", rank), expected, rtol=0, atol=0)


def test_a_join_round_a_whole_training_that_one_leaves_names_that_one(found):
    message = found("joined_and_ended_early", 0)
    assert "rank 0 waited 10 seconds at the beginning of epoch 2, and rank 1 did not" in message
    assert "`with model.join():` may go round an epoch, not round several" in message


def test_processes_that_torchrun_starts_again_meet_whoever_of_before_was_there(monkeypatch):
    """Its store is that of the processes that ended, of which one may have come to no barrier."""
    store = dist.HashStore()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")

    def keys_of(processes, restarts):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        passed = [_Passed(nn.Module(), store, 2) for _ in range(processes)]
        return {each.key(0) for each in passed}

    (first,) = keys_of(1, "0")
    (again,) = keys_of(2, "1")
    (later,) = keys_of(2, "1")  # a group that the same processes made after the first
    assert len({first, again, later}) == 3
