"""A process of several, for `test_matrix`: `main`, or ``torchrun ... this OUT``."""

import faulthandler
import io
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from siftback import (
    RS2,
    Ema,
    Epochs,
    InfoBatch,
    Memory,
    SelectiveLoader,
    SelectiveSampler,
    Stale,
)
from siftback.errors import SiftbackError
from toys import AT_ONCE, at_once

COUNT, BATCH, EPOCHS, RATE = 43, 3, 3, 0.5  # 43 examples: neither 2 nor 4 processes divide them
KEEP, STOP = 0.4, (2, 1)  # the epoch and the step that a training is stopped after
BAD, MARK = 7, 9.0  # the example whose loss is not finite, where there is one, and its input
METHODS = {
    "selective-backprop": lambda: {"keep": KEEP},
    "memory": lambda: {"memory": Memory(KEEP, warmup=Epochs(1))},
    "stale": lambda: {"memory": Stale(KEEP, every=2, warmup=Epochs(0))},
    "infobatch": lambda: {"memory": InfoBatch(0.5, 1.0)},
    "rs2": lambda: {"memory": RS2(KEEP)},
}
WRAPPERS = ("ddp", "fsdp2")


def data(count=COUNT, bad=False):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 3, generator=generator)
    if bad:
        inputs[BAD] = MARK
    return TensorDataset(inputs, torch.randint(2, (count,), generator=generator))


def losses_of(model, batch):
    inputs, targets = batch
    losses = F.cross_entropy(model(inputs), targets, reduction="none")
    return losses.masked_fill((inputs == MARK).all(1), torch.nan)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def wrapped(module, wrapper):
    """The model to train and the one to score with, which is the same where it is sharded."""
    if wrapper == "ddp":
        return DistributedDataParallel(module), module
    from torch.distributed.fsdp import fully_shard  # which takes long

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return (fully_shard(module, mesh=mesh),) * 2


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Training:
    """A model, its optimizer, and a loader: what is stopped and gone on with."""

    def __init__(self, method, wrapper, dataset, **arguments):
        self.model, self.module = wrapped(network(), wrapper)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        arguments = METHODS[method]() | arguments
        plain = DataLoader(dataset, BATCH, shuffle=True)
        if "memory" not in arguments:
            plain = DataLoader(dataset, BATCH, sampler=SelectiveSampler(dataset))
        self.loader = SelectiveLoader(
            plain,
            self.module,
            losses=losses_of,
            epochs=EPOCHS,
            **at_once(arguments),
        )
        # DistributedDataParallel orders its gradients anew after its first backward, which decides
        # in which order four numbers are added; so that it is the same in a training gone on with:
        self.model(dataset[:2][0]).sum().backward()
        self.optimizer.zero_grad()
        self.forwards, self.steps = 0, []
        self.module.register_forward_hook(self._count)

    def _count(self, *called):
        self.forwards += 1

    def train(self, stop=None):
        """Trains to the end, or to a step of an epoch."""
        for epoch in range(self.loader.epoch, EPOCHS):
            for batch in self.loader:
                losses = losses_of(self.model, batch)
                self.steps.append((epoch, self.loader.indices.clone(), self.loader.weights.clone()))
                self.loader.loss(losses).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                if (epoch, sum(1 for step in self.steps if step[0] == epoch)) == stop:
                    return self
        return self

    def _tensors(self):
        moments = [moment["momentum_buffer"] for moment in self.optimizer.state.values()]
        return [*map(local, self.model.parameters()), *map(local, moments)]

    def saved(self):
        own = [tensor.detach().clone() for tensor in self._tensors()]
        torch.save({"tensors": own, "loader": self.loader.state_dict()}, saved := io.BytesIO())
        return saved.getvalue()

    def resumed(self, saved):
        """Goes on from another's state, with an optimizer that has moments to write to."""
        state = torch.load(io.BytesIO(saved), weights_only=True)
        for parameter in self.model.parameters():
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        with torch.no_grad():
            for tensor, own in zip(self._tensors(), state["tensors"], strict=True):
                tensor.copy_(own)
        self.loader.load_state_dict(state["loader"])
        return self

    def weights(self):
        found = (parameter.detach() for parameter in self.model.parameters())
        return [one.full_tensor() if hasattr(one, "full_tensor") else one.clone() for one in found]

    def found(self):
        return {
            "steps": self.steps,
            "weights": self.weights(),
            "forwards": self.forwards,
            "scored": self.loader.stats.scored,
            "nonfinite": self.loader.stats.nonfinite,
        }


def left_out_of(training):
    """The examples that the draw of the last epoch left out, of all processes."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, training.loader.left_out)
    return torch.cat(found)


def matrix(method, wrapper):
    """A whole training; one stopped and gone on with; and one with a loss that is not finite."""
    whole = Training(method, wrapper, data()).train()
    stopped = Training(method, wrapper, data()).train(STOP)
    again = Training(method, wrapper, data()).resumed(stopped.saved()).train()
    found = {"whole": whole.found(), "again": again.found(), "before": len(stopped.steps)}
    found["left out"] = left_out_of(whole)
    bad = Training(method, wrapper, data(bad=True), on_nonfinite="drop")
    return found | {"bad": bad.train().found()}


def refusal(make):
    try:
        make()
    except SiftbackError as error:
        return str(error)
    return None


def of_few(method, count):
    """The error of a training of fewer examples than processes."""
    return refusal(lambda: Training(method, "ddp", data(count)))


def of_unlike_orders(**arguments):
    """The error of processes whose samplers have seeds of their own."""
    sampler = SelectiveSampler(data(), seed=dist.get_rank())
    loader = SelectiveLoader(
        DataLoader(data(), BATCH, sampler=sampler),
        network(),
        losses=losses_of,
        **at_once(arguments),
    )
    return refusal(lambda: next(iter(loader)))


def of_few_kept(count):
    """The error of a training whose epochs draw fewer examples than there are processes."""
    training = Training("rs2", "ddp", data(count), memory=RS2(0.15))
    return refusal(training.train), len(training.steps)


def main(out):
    faulthandler.dump_traceback_later(200, exit=True)  # that no process outlives the test
    early = SelectiveSampler(data())
    loaders = [
        SelectiveLoader(
            DataLoader(data(), sampler=early),
            network(),
            losses=losses_of,
            keep=KEEP,
            schedule=AT_ONCE,
        ),
        SelectiveLoader(DataLoader(data(), shuffle=True), memory=RS2(KEEP), epochs=EPOCHS),
    ]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    found = {(name, wrapper): matrix(name, wrapper) for name in METHODS for wrapper in WRAPPERS}
    found["few"] = {method: of_few(method, world - 1) for method in METHODS}
    found["few kept"] = of_few_kept(2 * world)
    found["unlike"] = of_unlike_orders(keep=KEEP), of_unlike_orders(memory=RS2(KEEP))
    found["unequal"] = refusal(Training("memory", "ddp", data(COUNT + rank)).train)
    sharded = Training("selective-backprop", "fsdp2", data(), scorer=Ema())
    found["copied"] = refusal(sharded.train)
    found["early"] = [refusal(lambda one=one: next(iter(one))) for one in (early, *loaders)]
    torch.save(found, Path(out) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
