"""Errors in a replica's process are reported, and none is left behind, however it ends."""

import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_pipelined import Steps, steps_made
from torch import nn

from siftback.contrib import Pipelined, ReplicaError
from toys import numbered

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def state_of(pid):
    """The state of a process, as /proc says it; None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def wait_until_gone(pids):
    until = time.monotonic() + 60
    while any(state_of(pid) not in (None, "Z") for pid in pids):
        assert time.monotonic() < until, f"still there: {[(p, state_of(p)) for p in pids]}"
        time.sleep(0.05)


def replica_of_this_process():
    (process,) = multiprocessing.active_children()
    return process.pid


# What goes wrong


def in_replica():
    return multiprocessing.parent_process() is not None


def raising(model, batch):
    if (batch["number"] == 9).any():
        raise KeyError("the user's losses fail")
    return batch["loss"]


def sleeping(model, batch):
    while (batch["number"] == 9).any():
        time.sleep(0.1)
    return batch["loss"]


def crashing(model, batch):
    if (batch["number"] == 9).any() and in_replica():
        ctypes.string_at(0)
    return batch["loss"]


def exiting(model, batch):
    if (batch["number"] == 9).any() and in_replica():
        os._exit(3)
    return batch["loss"]


FAILURES = {
    "exception": (raising, r"failed while scoring a batch(.|\n)*in raising(.|\n)*KeyError: .*fail"),
    "timeout": (sleeping, r"did not answer within 2 s while scoring(.|\n)*in sleeping"),
    "crash": (crashing, r"ended by SIGSEGV while scoring(.|\n)*in string_at(.|\n)*in crashing"),
    "exit": (exiting, r"ended with exit code 3 while scoring a batch"),
}


@pytest.mark.sampled(2)
@linux
@pytest.mark.parametrize(("losses", "message"), FAILURES.values(), ids=FAILURES)
def test_what_goes_wrong_in_the_replica_is_reported_with_its_own_traceback(losses, message):
    scored = Pipelined(
        numbered(torch.arange(24.0), 4), nn.Linear(1, 1), losses=losses,
        timeout=2 if losses is sleeping else 60,
    )  # fmt: skip
    batches = iter(scored)
    assert next(batches).batch["number"].tolist() == [0, 1, 2, 3]
    replica = replica_of_this_process()
    assert next(batches).batch["number"].tolist() == [4, 5, 6, 7]
    with pytest.raises(ReplicaError, match=message):
        list(batches)
    assert state_of(replica) is None
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("forked_replicas")
@linux
def test_a_killed_replica_is_an_error_and_the_next_epoch_has_a_new_one():
    scored = Pipelined(numbered(torch.arange(24.0), 4), Steps(), losses=steps_made)
    batches = iter(scored)
    next(batches)
    replica = replica_of_this_process()
    os.kill(replica, signal.SIGKILL)
    with pytest.raises(ReplicaError, match="ended by SIGKILL"):
        list(batches)
    assert state_of(replica) is None
    assert len(list(scored)) == 6
    assert replica_of_this_process() != replica
    scored.close()
    assert not multiprocessing.active_children()


# What a process leaves behind


SCRIPT = """
import multiprocessing, os, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from siftback import SelectiveLoader
from siftback.contrib import Pipelined

def main(end):
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
    source = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)
    model = nn.Linear(4, 3)
    scored = Pipelined(source, model, F.cross_entropy, depth=2)
    loader = SelectiveLoader(scored, model, F.cross_entropy, keep=0.9)
    said = False
    while True:
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets).backward()
            if not said:
                print(*(child.pid for child in multiprocessing.active_children()), flush=True)
                said = True
        if end == "normally":
            return
        if end == "error":
            raise ValueError("training fails")

if __name__ == "__main__":
    main(sys.argv[1])
"""

ENDS = {
    "normally": (None, 0),
    "error": (None, 1),
    "ctrl-c": (signal.SIGINT, -signal.SIGINT),
    "killed": (signal.SIGKILL, -signal.SIGKILL),
}


def of_session(leader):
    """The processes of a session that are not dead."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.sampled(2)
@linux
@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), ENDS.values(), ids=ENDS)
def test_no_process_is_left_behind(stop, code, tmp_path, request):
    script = tmp_path / "training.py"
    script.write_text(SCRIPT)
    training = subprocess.Popen(
        [sys.executable, "-W", "error", script, request.node.callspec.id],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        children = [int(pid) for pid in training.stdout.readline().split()]
        if stop == signal.SIGINT:  # as a terminal does: to all of them
            os.killpg(training.pid, stop)
        elif stop:
            training.send_signal(stop)
        _, errors = training.communicate(timeout=120)
    finally:
        training.kill()
    assert len(children) >= 1, errors
    assert training.returncode == code, errors
    wait_until_gone([*children, *of_session(training.pid)])
    if code == 0:
        assert errors == ""
    if code == 1:
        assert errors.count("Traceback") == 1
        assert errors.endswith("ValueError: training fails\n")
    if stop == signal.SIGINT:
        assert "replica" not in errors.rpartition("KeyboardInterrupt")[2]


FORKED = """
import multiprocessing, os, signal, time
import torch
from torch import nn
from siftback.contrib import Pipelined

def losses(model, batch):
    return batch[:, 0]

if __name__ == "__main__":
    scored = Pipelined([torch.ones(4, 1)], nn.Linear(1, 1), losses=losses)
    list(scored)
    (replica,) = multiprocessing.active_children()
    fork = os.fork()
    if fork == 0:  # holds the connection open, and lets go of the loader
        del scored
        time.sleep(600)
        os._exit(0)
    time.sleep(1)
    assert [scores.sum() for _, scores in scored] == [4]
    print(replica.pid, fork, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@linux
@pytest.mark.slow
def test_a_fork_of_training_neither_ends_the_replica_nor_keeps_it(tmp_path):
    script = tmp_path / "training.py"
    script.write_text(FORKED)
    with (tmp_path / "said").open("w+") as said:
        done = subprocess.run([sys.executable, script], stdout=said, timeout=120)
        said.seek(0)
        replica, fork = map(int, said.read().split())
    try:
        assert done.returncode == -signal.SIGKILL
        wait_until_gone([replica])
        assert state_of(fork) not in (None, "Z")
    finally:
        os.kill(fork, signal.SIGKILL)


UNGUARDED = SCRIPT.replace('if __name__ == "__main__":\n    main(sys.argv[1])', 'main("normally")')


@linux
@pytest.mark.slow
def test_a_script_without_its_guard_is_reported(tmp_path):
    script = tmp_path / "training.py"
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert re.search(r"ReplicaError: .* below `if __name__ == '__main__':`", done.stderr)


FULL = """
import resource
import torch
from torch import nn
from siftback.contrib import Pipelined, ReplicaError

def losses(model, batch):
    return batch[:, 0]

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # counts for shared memory too
    source = [torch.ones(10, 1), torch.ones(100_000, 1)]
    batches = iter(Pipelined(source, nn.Linear(1, 1), losses=losses, depth=0))
    print(next(batches).scores.sum())
    try:
        next(batches)
    except ReplicaError as error:
        print(error)
"""


@linux
@pytest.mark.slow
def test_shared_memory_that_runs_out_is_an_error(tmp_path):
    script = tmp_path / "training.py"
    script.write_text(FULL)
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert re.fullmatch(r"tensor\(10\.\)\nno shared memory for a replica .*\n", done.stdout)


@pytest.mark.usefixtures("forked_replicas")
@linux
def test_memory_and_descriptors_are_used_again():
    def held():
        shared = Path("/proc/self/maps").read_text().count("/torch_")
        return shared, len(list(Path("/proc/self/fd").iterdir()))

    scored = Pipelined(numbered(torch.arange(64.0), 4), Steps(), losses=steps_made, depth=2)
    before = held()
    assert len(list(scored)) == 16
    first = held()
    assert len(list(scored)) == 16
    assert held() == first
    assert first[0] == before[0] + 1 + 3  # the weights and a place for each batch
    assert not list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))
    assert len(multiprocessing.active_children()) == 1
    del scored  # with which the process ends
    assert not multiprocessing.active_children()
    assert held()[0] == before[0]
