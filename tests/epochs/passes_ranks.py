"""Passes that two processes share, whose workers read ahead. Run by ``torchrun`` with a folder."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from siftback import Epochs, Memory, RePB, SelectiveLoader

EPOCHS, COUNT, SIZE = 6, 61, 5
RULES = {
    "memory": lambda: Memory(keep=0.3, floor=0.05, warmup=Epochs(1)),
    "repb": lambda: RePB(0.6),
}


def losses_of(numbers, step):
    """The losses of some examples in a step, the same for whoever computes them."""
    return (numbers * 7 % 11).float() / 11 + step * 0.01


def trained(rule, workers):
    # Workers that are forked beside the threads of gloo may hang, so that each is started once.
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    plain = DataLoader(torch.arange(COUNT), SIZE, shuffle=True, **options)
    loader = SelectiveLoader(plain, memory=rule, epochs=EPOCHS)
    draw, steps, drawn = loader._pipeline.draw, [], {}
    for _ in range(EPOCHS):
        for numbers in loader:
            loader.loss(losses_of(numbers, len(steps)))
            steps.append(numbers.clone())
        drawn |= {each.number: each.weights.clone() for each in draw.passes}
    draw.losses.take_up_others()
    return {"steps": steps, "drawn": drawn, "length": len(loader), "values": rule.values.clone()}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = {
        (name, workers): trained(make(), workers)
        for name, make in RULES.items()
        for workers in (0, 2)
    }
    torch.save(found, Path(sys.argv[1], f"{dist.get_rank()}.pt"))
    dist.destroy_process_group()
