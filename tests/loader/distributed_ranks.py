"""A process of several, for `test_distributed`: `main`, or ``torchrun ... this OUT``."""

import faulthandler
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from siftback import (
    EVOS,
    RCAP,
    RS2,
    UCB,
    AlignPrune,
    Epochs,
    EvolvedSampling,
    InfoBatch,
    Kakurenbo,
    Memory,
    OrderDP,
    Percentile,
    RePB,
    SelectiveLoader,
    SelectiveSampler,
    SeTa,
    Stale,
)
from siftback.contrib import IES
from siftback.errors import ConfigError, StateError
from toys import AT_ONCE, All, at_once

COUNT, BATCH, EPOCHS, RATE = 45, 4, 4, 0.5  # 45 examples: an odd number for two processes


RULES = {
    "infobatch": lambda: InfoBatch(0.5, 1.0),
    "rs2": lambda: RS2(0.4),
    "kakurenbo": lambda: Kakurenbo(0.5, 0.3),
    "ucb": lambda: UCB(0.6, every=2),
    "seta": lambda: SeTa(0.2, groups=4, delta=1.0),
    "ies": lambda: IES(threshold=0.1, window=1),
    "evolved": lambda: EvolvedSampling(0.4),
    "orderdp": lambda: OrderDP(0.7),
    "repb": lambda: RePB(0.5),
    "rcap": lambda: RCAP(torch.arange(COUNT) % 3, 0.4),
    "alignprune": lambda: AlignPrune(0.5, window=3, delta=1.0),
    "evos": lambda: EVOS(0.4, every=2),
    "learned": lambda: Memory(warmup=Epochs(1)),
}
REMEMBERED = {
    "memory": lambda: Memory(0.55, warmup=Epochs(1)),
    "stale": lambda: Stale(0.5, every=2, warmup=Epochs(0)),
}


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(COUNT, 3, generator=generator)
    return TensorDataset(inputs, torch.randint(2, (COUNT,), generator=generator))


def network():
    torch.manual_seed(1)
    return nn.Linear(3, 2)


def loader_of(model, seed=0, **arguments):
    """Over a plain loader, whose examples a rule shares out; without one a sampler does."""
    loader = DataLoader(data(), BATCH, shuffle=True)
    if "memory" not in arguments:
        loader = DataLoader(data(), BATCH, sampler=SelectiveSampler(data(), seed=1))
    return SelectiveLoader(
        loader,
        model,
        F.cross_entropy,
        epochs=EPOCHS,
        seed=seed,
        **at_once(arguments),
    )


def epoch_of(loader, model, module):
    """An epoch of training: indices, weights and losses of each step."""
    steps = []
    for inputs, targets in loader:
        outputs = model(inputs)
        losses = F.cross_entropy(outputs, targets, reduction="none")
        confidence, guess = outputs.detach().softmax(1).max(1)
        indices, weights = loader.indices.clone(), loader.weights.clone()
        loader.loss(losses, correct=guess == targets, confidence=confidence).backward()
        with torch.no_grad():
            for weight in module.parameters():
                weight -= RATE * weight.grad
                weight.grad = None
        steps.append((indices, weights, losses.detach()))
    return steps


def recorded_of_left_out(loader, module):
    """Forwards this process's share of what the epoch left out."""
    left_out = loader.left_out
    inputs, targets = data()[left_out]
    with torch.no_grad():
        outputs = module(inputs)
        losses = F.cross_entropy(outputs, targets, reduction="none")
    confidence, guess = outputs.softmax(1).max(1)
    loader.record(losses, correct=guess == targets, confidence=confidence, indices=left_out)
    return left_out, losses


def trained(stopped_after=None, seed=0, **arguments):
    """A whole training; or one that goes on in another loader after some epochs."""
    module = network()
    model = DistributedDataParallel(module)
    loader = loader_of(module, seed, **arguments)
    epochs = []
    for epoch in range(EPOCHS):
        steps = epoch_of(loader, model, module)
        left_out, losses = loader.left_out, torch.empty(0)
        if isinstance(loader.memory, Kakurenbo | IES):
            left_out, losses = recorded_of_left_out(loader, module)
        epochs.append({"steps": steps, "left_out": left_out, "losses": losses})
        if epoch == stopped_after:
            state = loader.state_dict()
            loader = loader_of(module, seed, **arguments)
            loader.load_state_dict(state)
    stats = loader.stats
    return {
        "epochs": epochs,
        "weights": [weight.detach().clone() for weight in module.parameters()],
        "memory": None if loader.memory is None else loader.memory.state_dict(),
        "stats": (stats.seen, stats.unread, stats.forwards),
        "counts": counted(loader),
    }


def counted(loader):
    """The loader's number of steps; None where it has none."""
    try:
        return [loader.steps(epoch) for epoch in range(EPOCHS)]
    except TypeError:
        return None


def refused(seed=0, rule=None):
    """The errors of processes with different seeds or rules."""
    loader = loader_of(network(), seed, memory=rule or InfoBatch(0.5, 1.0))
    try:
        next(iter(loader))
    except ConfigError as error:
        return str(error)


def unshared():
    """A loader that gives each process all examples."""
    return SelectiveLoader(
        DataLoader(data(), BATCH), network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE
    )


def refused_unshared(make):
    """The error of such a loader, as it is made or iterated."""
    try:
        next(iter(make()))
    except ConfigError as error:
        return str(error)


def refused_state(rank):
    """The error of loading the state of another process."""
    loader = loader_of(network(), memory=RS2(0.4))
    next(iter(loader))
    states = [None, None]
    dist.all_gather_object(states, loader.state_dict())
    try:
        loader_of(network(), memory=RS2(0.4)).load_state_dict(states[1 - rank])
    except StateError as error:
        return str(error)


def refused_common_name(out):
    """The error of a checkpoint in which the states of all processes have one name."""
    loader = loader_of(network(), memory=RS2(0.4))
    next(iter(loader))
    state, path = {"loader": loader.state_dict()}, Path(out, "common")
    dist.checkpoint.save(state, checkpoint_id=path)
    dist.checkpoint.load(state, checkpoint_id=path)
    try:
        loader_of(network(), memory=RS2(0.4)).load_state_dict(state["loader"])
    except StateError as error:
        return str(error)


def trained_on_nonfinite(rank):
    """The number of batches of each process, of which one drops examples."""

    def losses(model, batch):
        found = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return found.index_fill(0, torch.arange(rank), torch.nan)

    sampler = SelectiveSampler(data(), seed=1)
    loader = DataLoader(data(), BATCH, sampler=sampler)
    arguments = {"keep": 0.5, "on_nonfinite": "drop", "losses": losses}
    loader = SelectiveLoader(
        loader,
        network(),
        **at_once(arguments),
    )
    return [len(targets) for _, targets in loader], loader.stats.nonfinite


def handed_on(*, by_state=False):
    """What a rule knows as it draws in a new loader, after an epoch of everything in another."""

    def made(memory, epochs):
        return SelectiveLoader(
            DataLoader(data(), BATCH, shuffle=True), memory=memory, epochs=epochs
        )

    loader = made(Memory(keep=0.5, warmup=Epochs(1)), EPOCHS)
    for _ in loader:
        loader.loss(loader.indices + 1.0)
    longer = made(loader.memory, 2 * EPOCHS)
    longer.set_epoch(loader.epoch)
    if by_state:  # saved before its first epoch
        state = longer.state_dict()
        longer = made(Memory(keep=0.5, warmup=Epochs(1)), 2 * EPOCHS)
        longer.load_state_dict(state)
    next(iter(longer))
    return longer.memory.scores(1)


def main(out):
    faulthandler.dump_traceback_later(100, exit=True)  # that no process outlives the test
    rank = int(os.environ["RANK"])
    early = unshared()  # before the processes know of each other
    # A store of its own, as these processes may have had a group before.
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    found = {name: trained(memory=make()) for name, make in (RULES | REMEMBERED).items()}
    found["resumed"] = trained(stopped_after=1, memory=InfoBatch(0.5, 1.0))
    found["exact"] = trained(memory=Stale(0.5, every=2, warmup=Epochs(0)), exact=True)
    found["handed on"] = handed_on()
    found["handed on by a state"] = handed_on(by_state=True)
    found["apart"] = refused(seed=rank)
    found["unlike"] = refused(rule=InfoBatch(0.5 + rank / 10, 1.0))
    found["of another kind"] = refused(rule=RS2(0.4) if rank else InfoBatch(0.5, 1.0))
    found["scored"] = trained(seed=rank, selector=Percentile(keep=0.4))
    found["nonfinite"] = trained_on_nonfinite(rank)
    found["all"] = trained(selector=All())
    found["unshared"] = [refused_unshared(make) for make in (unshared, lambda: early)]
    found["state of another"] = refused_state(rank)
    found["state of a common name"] = refused_common_name(out)
    torch.save(found, Path(out) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
