"""Trainings of several processes of which one does not do as the others: ``python this OUT``.

The processes are forked from one that has imported everything, without ``torchrun``, which would
end the others too.
"""

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Memory, Schedule, SelectiveLoader, SelectiveSampler, Stale
from siftback.processes.distributed import states_of_ranks

AT_ONCE = Schedule(warmup=Epochs(0))
TIMEOUT, EPOCHS, BATCH = timedelta(seconds=10), 3, 3


def data(count):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 3, generator=generator)
    return TensorDataset(inputs, torch.randint(2, (count,), generator=generator))


class Training:
    """A model, and a loader that scores or remembers."""

    def __init__(self, count=20, memory=None, shard=False):
        torch.manual_seed(1)
        self.module = nn.Linear(3, 2)
        self.model = DistributedDataParallel(self.module)
        here = {"rank": 0, "world": 1} if shard else {}
        plain = DataLoader(data(count), BATCH, sampler=SelectiveSampler(data(count), **here))
        arguments = {"keep": 0.5} if memory is None else {"memory": memory}
        self.loader = SelectiveLoader(
            plain,
            self.module,
            F.cross_entropy,
            epochs=EPOCHS,
            **(arguments if "memory" in arguments else {"schedule": AT_ONCE} | arguments),
        )
        self.steps = 0

    def epoch(self):
        for inputs, targets in self.loader:
            losses = F.cross_entropy(self.model(inputs), targets, reduction="none")
            self.loader.loss(losses).backward()
            with torch.no_grad():
                for weight in self.module.parameters():
                    weight -= 0.1 * weight.grad
                    weight.grad = None
            self.steps += 1

    def found(self):
        return {"steps": self.steps, "weights": [w.detach() for w in self.module.parameters()]}


def raised(rank):
    training = Training()
    training.epoch()
    if rank == 1:
        raise ValueError("a validation failed")
    training.epoch()


def killed(rank, victim=2):
    training = Training(memory=Memory(0.5))
    training.epoch()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    training.epoch()


def first_killed(rank):
    killed(rank, victim=0)


def ended_early(rank):
    """Each process has a shard of its own, and that of the second one is smaller."""
    training = Training(count=18 - 6 * rank, shard=True)
    for _ in range(EPOCHS):
        training.epoch()


def joined(rank):
    """The same, as DistributedDataParallel allows it."""
    training = Training(count=18 - 6 * rank, shard=True)
    for _ in range(EPOCHS):
        with training.model.join():
            training.epoch()
    return training.found()


def joined_once(rank, epochs=EPOCHS):
    """A context round a whole training, in which what is remembered is exchanged."""
    training = Training(memory=Stale(0.5, every=2, warmup=Epochs(0)))
    with training.model.join():
        for _ in range(epochs):
            training.epoch()
    return training.found()


def never_joined(rank):
    training = Training(memory=Stale(0.5, every=2, warmup=Epochs(0)))
    for _ in range(EPOCHS):
        training.epoch()
    return training.found()


def joined_and_ended_early(rank):
    joined_once(rank, epochs=EPOCHS - rank)


def apart(rank):
    """One takes a state of all processes while the other goes on."""
    training = Training()
    training.epoch()
    if rank == 0:
        states_of_ranks(training.loader.state_dict())
    training.epoch()


# Each with the number of its processes, and whether the first of them keeps the store.
CASES = {
    raised: (3, False),
    killed: (3, False),
    first_killed: (3, True),
    ended_early: (2, False),
    joined: (2, False),
    joined_once: (2, False),
    never_joined: (2, False),
    joined_and_ended_early: (2, True),
    apart: (2, False),  # the first to say so would end with the store, before the other reads
}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def one_of_several(case, rank, world, where, out):
    """Runs a case in a process, and saves its findings or its error."""
    try:
        dist.init_process_group(
            "gloo", rank=rank, world_size=world, timeout=TIMEOUT, init_method=where
        )
        found = case(rank)
    except Exception as error:
        print(f"{case.__name__}, rank {rank}:", traceback.format_exc(), file=sys.stderr)
        found = f"{type(error).__name__}: {error}"
    torch.save(found, out / f"{case.__name__}-{rank}.pt")
    sys.stderr.flush()
    os._exit(0)


def main(out):
    waiting = {}
    for case, (world, by_first) in CASES.items():
        where = f"tcp://127.0.0.1:{free_port()}" if by_first else f"file://{out / case.__name__}"
        for rank in range(world):
            process = os.fork()
            if process == 0:
                one_of_several(case, rank, world, where, out)
            waiting[process] = f"{case.__name__}, rank {rank}"
    deadline = time.monotonic() + 5 * TIMEOUT.total_seconds()
    while waiting and time.monotonic() < deadline:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        waiting.pop(ended, None)
        time.sleep(0.1)
    for process, who in waiting.items():
        print(f"still waiting: {who}", file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    sys.exit(bool(waiting))


if __name__ == "__main__":
    import torch._dynamo  # which DistributedDataParallel would import in each of them

    main(Path(sys.argv[1]))
