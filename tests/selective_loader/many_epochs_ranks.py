"""Many epochs of a number of examples that no number of processes divides, for `test_many_epochs`.

``torchrun --nproc-per-node 4 tests/selective_loader/many_epochs_ranks.py OUT EPOCHS``
"""

import faulthandler
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from siftback import InfoBatch, Memory, SelectiveLoader, SelectiveSampler, Stale

COUNT, BATCH = 47, 3
METHODS = {
    "memory": lambda epochs: {"memory": Memory(0.4)},
    "stale": lambda epochs: {"memory": Stale(0.4, every=3)},
    "infobatch": lambda epochs: {"memory": InfoBatch(0.5, 1.0)},
    "selective-backprop": lambda epochs: {"keep": 0.4},
}


def trained(arguments, epochs):
    """Batches of each epoch, and the weights at the end."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randn(COUNT, 3, generator=generator), torch.randint(2, (COUNT,), generator=generator)
    )
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    plain = DataLoader(data, BATCH, shuffle=True)
    if "memory" not in arguments:
        plain = DataLoader(data, BATCH, sampler=SelectiveSampler(data))
    loader = SelectiveLoader(plain, module, F.cross_entropy, epochs=epochs, **arguments)
    steps = []
    for _ in range(epochs):
        steps.append(0)
        for inputs, targets in loader:
            losses = F.cross_entropy(model(inputs), targets, reduction="none")
            loader.loss(losses).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps[-1] += 1
    return {"steps": steps, "weights": module.state_dict()}


def main(out, epochs):
    faulthandler.dump_traceback_later(600, exit=True)
    dist.init_process_group("gloo")
    found = {name: trained(make(epochs), epochs) for name, make in METHODS.items()}
    torch.save(found, out / f"{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        counts = {name: sum(one["steps"]) for name, one in found.items()}
        print(f"{dist.get_world_size()} processes, {epochs} epochs: steps of each {counts}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
