"""A process of several, for `test_processes`: `main`, or ``torchrun ... this OUT``."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from siftback import SelectiveSampler, SinglePass, probe
from siftback.errors import ConfigError

KEEP, STEPS, RATE = 1 / 2, 4, 0.1


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def batch_of(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


class Training(nn.Module):
    """A model whose forward is that of a step, as a framework wraps it."""

    def __init__(self, sift):
        super().__init__()
        self.sift = sift

    def forward(self, *batch):
        return self.sift(*batch) * 2


def trained(wrap, rank, factor=1.0, state=None, steps=range(STEPS)):
    """The weights and the state after some steps, and the rows kept in each."""
    sift = SinglePass(network(), F.cross_entropy, keep=KEEP)
    if state is not None:
        sift.load_state_dict(state)
    step_loss = DistributedDataParallel(wrap(sift))
    optimizer = torch.optim.SGD(sift.parameters(), RATE / factor)
    kept = []
    for step in steps:
        step_loss(*batch_of(step, rank)).backward()
        kept.append(sift.selection.positions)
        optimizer.step()
        optimizer.zero_grad()
    found = {"weights": sift.model.state_dict(), "kept": kept, "state": sift.state_dict()}
    return found | {"check": sift.gradient_check.largest}


def refusal(make):
    try:
        make()(*batch_of(0, 0))
    except ConfigError as error:
        return str(error)
    return None


def unaveraged():
    return SinglePass(DistributedDataParallel(network()).module, F.cross_entropy, keep=KEEP)


def inner():
    return SinglePass(DistributedDataParallel(network()), F.cross_entropy, keep=KEEP)


def beside():
    """Some other model's forward is the one that DistributedDataParallel calls."""
    sift = SinglePass(network(), F.cross_entropy, keep=KEEP)

    class Other(nn.Linear):
        def forward(self, *batch):
            return sift(*batch)

    return DistributedDataParallel(Other(2, 2))


class Scaled(nn.Module):
    """A loss with a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs * self.scale, targets, reduction="none")


class Holding(nn.Module):
    """A network that has its loss as a part."""

    def __init__(self):
        super().__init__()
        self.network, self.loss_fn = network(), Scaled()

    def forward(self, inputs):
        return self.network(inputs)


def loss_beside():
    return DistributedDataParallel(SinglePass(network(), Scaled(), keep=KEEP))


def loss_in_a_function():
    loss_fn = Scaled()

    def losses(model, batch):
        return loss_fn(model(batch[0]), batch[1])

    return DistributedDataParallel(SinglePass(network(), losses=losses, keep=KEEP))


def loss_within():
    model = Holding()
    return DistributedDataParallel(SinglePass(model, model.loss_fn, keep=KEEP))


def sharded():
    model = network()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return SinglePass(model, F.cross_entropy, keep=KEEP)


def sharded_later():
    sift = SinglePass(network(), F.cross_entropy, keep=KEEP)
    return fully_shard(sift, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))


def by_hand():
    return SinglePass(network(), F.cross_entropy, keep=KEEP, check=False)


def probed(rank):
    """What could not be measured by rank 0 alone, and then by each, for as long as it likes.

    And the number of examples that the loader gives after that.
    """
    pairs = zip(batch_of(0, 0), batch_of(1, 0), strict=True)
    data = TensorDataset(*map(torch.cat, pairs))
    loader = DataLoader(data, 4, sampler=SelectiveSampler(data))

    def failures(seconds):
        found = probe(network(), loader, F.cross_entropy, keep=[KEEP], seconds=seconds)
        return found.failures

    alone = {} if rank else failures(0.1)
    dist.barrier()
    each = failures(0.1 + 0.2 * rank)
    return alone, each, sum(len(targets) for _, targets in loader)


def main(out):
    rank = int(os.environ["RANK"])
    # A store of its own, as these processes may have had a group before.
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    found = {
        "plain": trained(lambda sift: sift, rank),
        "wrapped": trained(Training, rank, factor=2.0),
    }
    half = trained(lambda sift: sift, rank, steps=range(STEPS // 2))["state"]
    rest = range(STEPS // 2, STEPS)
    found["resumed"] = trained(lambda sift: sift, rank, state=half, steps=rest)
    losses = loss_beside, loss_in_a_function, loss_within
    for make in (unaveraged, inner, beside, *losses, sharded, sharded_later, by_hand):
        found[make.__name__] = refusal(make)
    with torch.no_grad():
        found["evaluation"] = refusal(unaveraged)
    found["probed"] = probed(rank)
    torch.save(found, out / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
