"""Two processes that differ in one setting, case by case: `main`, or ``torchrun ... this OUT``."""

import faulthandler
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import siftback
from siftback import (
    RS2,
    Ema,
    Epochs,
    Fresh,
    InfoBatch,
    Memory,
    NoiseGuard,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    SoftTopK,
    Stale,
    TopK,
)
from siftback.errors import SiftbackError

COUNT, BATCH, TIMEOUT = 24, 4, timedelta(seconds=60)
AT_ONCE = Schedule(warmup=Epochs(0))


def data(count=COUNT):
    return TensorDataset(torch.arange(count * 2.0).view(count, 2), torch.arange(count) % 2)


def plain(count=COUNT, batch_size=BATCH, shuffle=True, **options):
    return DataLoader(data(count), batch_size, shuffle=shuffle, **options)


class Renamed(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def shard(examples):
    return DataLoader(examples, BATCH, shuffle=True)


def remembering(rule=None, wrapped=None, epochs=4, **settings):
    return SelectiveLoader(
        wrapped or plain(), memory=rule or Memory(warmup=Epochs(1)), epochs=epochs, **settings
    )


def scoring(sampler=None, batch_size=BATCH, loss_fn=F.cross_entropy, **settings):
    wrapped = DataLoader(data(), batch_size, sampler=sampler or SelectiveSampler(data()))
    selects = {} if {"selector", "memory"} & settings.keys() else {"keep": 0.5}
    at_once = {} if "memory" in settings else {"schedule": AT_ONCE}
    return SelectiveLoader(
        wrapped, nn.Linear(2, 2), loss_fn, epochs=4, **(selects | at_once | settings)
    )


def distributed_sampler(**settings):
    return DistributedSampler(data(), **settings)


def squared(outputs, targets):
    return (outputs[:, 0] - targets) ** 2


def loaded(batches):
    """A loader that goes on within an epoch, after some batches."""
    stopped, loader = remembering(), remembering()
    for _, _ in zip(range(batches), stopped, strict=False):
        stopped.record(torch.ones(len(stopped.indices)))
        state = stopped.state_dict()
    loader.load_state_dict(state)
    return loader


def stepped(**settings):
    """The first step of a single pass, when it is asked for."""
    sift = siftback.SinglePass(nn.Linear(2, 2), F.cross_entropy, **({"keep": 0.5} | settings))
    model = nn.parallel.DistributedDataParallel(sift)
    yield model(torch.randn(8, 2), torch.randint(2, (8,)))


# What a process of a rank iterates, the setting that is named, and its value in each process.
CASES = {
    "shuffle": (
        lambda rank: remembering(wrapped=plain(shuffle=rank == 0)),
        ("loader.shuffle", "True", "False"),
    ),
    "batch_size": (
        lambda rank: remembering(wrapped=plain(batch_size=4 + rank)),
        ("batch_size", "4", "5"),
    ),
    "drop_last": (
        lambda rank: remembering(wrapped=plain(drop_last=rank == 1)),
        ("drop_last", "False", "True"),
    ),
    "num_workers": (
        lambda rank: remembering(wrapped=plain(num_workers=rank)),
        ("loader.num_workers", "0", "1"),
    ),
    "prefetch_factor": (
        lambda rank: remembering(wrapped=plain(num_workers=1, prefetch_factor=2 + rank)),
        ("loader.prefetch_factor", "2", "3"),
    ),
    "pool": (lambda rank: remembering(pool=Pool(6 - rank)), ("batch_size", "6", "5")),
    "pool's rest": (
        lambda rank: remembering(pool=Pool(4, "carry" if rank else False)),
        ("drop_last", "False", "carry"),
    ),
    "pad": (lambda rank: remembering(pool=Pool(4, pad={0: rank})), ("pad.0", "0", "1")),
    "seed": (lambda rank: remembering(seed=rank), ("seed", "0", "1")),
    "epochs": (lambda rank: remembering(epochs=4 + rank), ("epochs", "4", "5")),
    "examples": (
        lambda rank: remembering(wrapped=plain(COUNT + 2 * rank)),
        ("examples", "24", "26"),
    ),
    "a Subset for each": (
        lambda rank: remembering(wrapped=shard(Subset(data(2 * COUNT), range(rank, 48, 2)))),
        ("dataset", "(int64(24) of digest *", "(int64(24) of digest *"),
    ),
    "Subsets that are joined for each": (
        lambda rank: remembering(
            wrapped=shard(ConcatDataset([data(4), Subset(data(40), range(rank, 40, 2))]))
        ),
        ("dataset", "*(int64(20) of digest *", "*(int64(20) of digest *"),
    ),
    "a Subset under another name for each": (
        lambda rank: remembering(wrapped=shard(Renamed(Subset(data(48), range(rank, 48, 2))))),
        ("dataset", "*(int64(24) of digest *", "*(int64(24) of digest *"),
    ),
    "rows for each": (
        lambda rank: remembering(wrapped=shard(TensorDataset(torch.rand(COUNT) + rank))),
        ("dataset", "(float32(8) of digest *)", "(float32(8) of digest *)"),
    ),
    "on_nonfinite": (
        lambda rank: remembering(on_nonfinite=("error", "drop")[rank]),
        ("on_nonfinite", "error", "drop"),
    ),
    "attach": (lambda rank: remembering(attach=rank == 1), ("attach", "False", "True")),
    "rule": (
        lambda rank: remembering(RS2() if rank else Memory(keep=0.5)),
        ("memory", "Memory", "RS2"),
    ),
    "rule's keep": (
        lambda rank: remembering(Memory(0.5 + rank / 4)),
        ("memory.keep", "0.5", "0.75"),
    ),
    "a fixed share": (
        lambda rank: remembering(Memory(keep=0.5 if rank else None, tail=Epochs(0))),
        ("memory.keep", "None", "0.5"),
    ),
    "rule's floor": (
        lambda rank: remembering(Memory(0.5, floor=rank / 4)),
        ("memory.floor", "0", "0.25"),
    ),
    "rule's warmup": (
        lambda rank: remembering(Memory(warmup=Epochs(1 + rank))),
        ("schedule", "*warmup=Epochs(1)*", "*warmup=Epochs(2)*"),
    ),
    "rule's tail": (
        lambda rank: remembering(Memory(tail=Epochs(rank))),
        ("schedule", "*)", "*, tail=Epochs(1))"),
    ),
    "guard": (
        lambda rank: remembering(Memory(guard=NoiseGuard(2, visits=2 + rank))),
        ("memory.guard.visits", "2", "3"),
    ),
    "ratio": (
        lambda rank: remembering(InfoBatch(0.5 + rank / 4)),
        ("memory.ratio", "0.5", "0.75"),
    ),
    "replacement": (
        lambda rank: remembering(RS2(0.5, replacement=rank == 1)),
        ("memory.replacement", "False", "True"),
    ),
    "rule's every": (
        lambda rank: scoring(memory=Stale(0.5, every=2 + rank)),
        ("memory.every", "2", "3"),
    ),
    "memory of one": (
        lambda rank: scoring(memory=Memory()) if rank else scoring(),
        ("memory", "None", "Memory"),
    ),
    "keep": (lambda rank: scoring(keep=0.5 + rank / 4), ("keep", "0.5", "0.75")),
    "selector": (
        lambda rank: scoring(selector=SoftTopK(keep=0.5) if rank else TopK(keep=0.5)),
        ("selector", "TopK", "SoftTopK"),
    ),
    "selector's temperature": (
        lambda rank: scoring(selector=SoftTopK(keep=0.5, temperature=1.0 + rank)),
        ("selector.temperature", "1", "2"),
    ),
    "scorer": (
        lambda rank: scoring(scorer=Ema() if rank else Fresh()),
        ("scorer", "Fresh", "Ema"),
    ),
    "scorer's decay": (
        lambda rank: scoring(scorer=Ema(0.5 + rank / 4)),
        ("scorer.decay", "0.5", "0.75"),
    ),
    "schedule": (
        lambda rank: scoring(schedule=Schedule(warmup=Epochs(rank))),
        ("schedule", "*warmup=Epochs(0)*", "*warmup=Epochs(1)*"),
    ),
    "interrupt": (
        lambda rank: scoring(schedule=Schedule(interrupt=2 + rank)),
        ("schedule", "*interrupt=2)", "*interrupt=3)"),
    ),
    "loss_fn": (
        lambda rank: scoring(loss_fn=squared if rank else F.cross_entropy),
        ("loss", "cross_entropy", "squared"),
    ),
    "scored batch_size": (lambda rank: scoring(batch_size=4 + rank), ("batch_size", "4", "5")),
    "sampler": (
        lambda rank: scoring(distributed_sampler() if rank else SelectiveSampler(data())),
        ("loader.sampler", "SelectiveSampler", "DistributedSampler"),
    ),
    "DistributedSampler's shuffle": (
        lambda rank: scoring(distributed_sampler(shuffle=rank == 0)),
        ("loader.shuffle", "True", "False"),
    ),
    "DistributedSampler's seed": (
        lambda rank: scoring(distributed_sampler(seed=rank)),
        ("loader.seed", "0", "1"),
    ),
    "the position of a state": (lambda rank: loaded(1 + rank), ("state.position", "1", "2")),
    "SelectiveSampler's seed": (
        lambda rank: DataLoader(data(), BATCH, sampler=SelectiveSampler(data(), seed=rank)),
        ("seed", "0", "1"),
    ),
    "SelectiveSampler's shuffle": (
        lambda rank: SelectiveSampler(data(), shuffle=rank == 0),
        ("shuffle", "True", "False"),
    ),
    "SelectiveSampler's examples": (
        lambda rank: SelectiveSampler(data(COUNT + rank)),
        ("examples", "24", "25"),
    ),
    "SelectiveSampler's dataset": (
        lambda rank: SelectiveSampler(Subset(data(), range(rank, COUNT, 2))),
        ("dataset", "(int64(12) of digest *", "(int64(12) of digest *"),
    ),
    "SelectiveSampler's rule": (
        lambda rank: SelectiveSampler(data(), Memory() if rank else RS2(), epochs=4),
        ("memory", "RS2", "Memory"),
    ),
    "SelectiveSampler's epochs": (
        lambda rank: SelectiveSampler(data(), Memory(), epochs=4 + rank),
        ("epochs", "4", "5"),
    ),
    "SinglePass's keep": (
        lambda rank: stepped(keep=0.5 + rank / 4),
        ("keep", "0.5", "0.75"),
    ),
    "SinglePass's selector": (
        lambda rank: stepped(keep=None, selector=SoftTopK(keep=0.5) if rank else TopK(keep=0.5)),
        ("selector", "TopK", "SoftTopK"),
    ),
}


def first(iterated):
    """The first batch or index, or the error."""
    try:
        next(iter(iterated))
    except SiftbackError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def resumed(rank):
    """One goes on within an epoch, the other begins it."""
    stopped = remembering()
    next(iter(stopped))
    loader = remembering()
    if rank == 1:
        loader.load_state_dict(stopped.state_dict())
    return first(loader)


def changed(rank):
    """One sets another epoch between two that all have trained on."""
    loader = remembering()
    for _ in loader:
        loader.record(torch.ones(len(loader.indices)))
    loader.set_epoch(1 + rank)
    return first(loader)


def alike(make):
    """The examples of an epoch after all that was refused."""
    loader = make()
    found = []
    for _ in loader:
        found.append(loader.indices.clone())
        loader.record(torch.ones(len(loader.indices)))
    return torch.cat(found)


def warned(rank, rule, **settings):
    """What an epoch over each process's own half of the data warns of."""
    half = Subset(data(), range(rank, COUNT, 2))
    wrapped = DataLoader(half, BATCH, sampler=SelectiveSampler(half, rank=0, world=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        alike(lambda: remembering(rule, wrapped, **settings))
    return [str(warning.message) for warning in caught]


def of_own_labels(rank, rule):
    """The examples of an epoch over each process's own half, by a rule that has labels of it."""
    half = Subset(data(), range(rank * 8, COUNT - 8 + rank * 8))
    sampler = SelectiveSampler(half, rank=0, world=1)
    rule = rule([label for _, label in half] if rank else [0, 1, 2, 0] * 4)
    return alike(lambda: remembering(rule, DataLoader(half, BATCH, sampler=sampler)))


def in_a_thread(rule, **settings):
    """A batch that is read in another thread than the one that trains."""
    loader = remembering(rule, epochs=8, **settings)
    batches = iter(loader)
    with ThreadPoolExecutor(1) as reader:
        try:
            for _ in range(2):
                reader.submit(next, batches).result()
                loader.record(torch.ones(len(loader.indices)))
        except SiftbackError as error:
            return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def main(out):
    faulthandler.dump_traceback_later(200, exit=True)  # that no process outlives the test
    rank = int(os.environ["RANK"])
    where = f"file://{out}/store"  # as these processes may have had a group before
    dist.init_process_group("gloo", init_method=where, timeout=TIMEOUT, rank=rank, world_size=2)
    found = {name: first(make(rank)) for name, (make, _) in CASES.items()}
    found["resumed"], found["changed"] = resumed(rank), changed(rank)
    found["remembering"] = alike(remembering)
    # Where an epoch is a pass, all draw as it begins, however far ahead they read.
    shorter = {"wrapped": plain(num_workers=rank), "shorter_epochs": True}
    found["shorter"] = alike(lambda: remembering(**shorter))
    shares = {None: Memory(warmup=Epochs(1)), 0.5: Memory(0.5, warmup=Epochs(1))}
    for share, rule in shares.items():
        found["warned", share] = warned(rank, rule, shorter_epochs=True)
    found["thread"] = [in_a_thread(rule) for rule in (Memory(0.5), RS2(0.5))]
    found["thread", "shards"] = in_a_thread(Memory(0.5, shards=2))
    found["thread", "shorter"] = in_a_thread(Memory(0.5), shorter_epochs=True)
    found["warned", "epochs as long"] = warned(rank, InfoBatch())
    balanced = partial(Memory, 0.5, warmup=Epochs(1))
    rules = [
        lambda labels: balanced(balance=labels),
        lambda labels: siftback.RCAP(labels, keep=0.5),
    ]
    found["own labels"] = [of_own_labels(rank, rule) for rule in rules]
    # Each may select by random numbers of its own.
    found["scoring"] = alike(lambda: scoring(seed=rank))
    torch.save(found, Path(out) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
