"""A process of two, for `test_accelerate`."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, WeightedRandomSampler

from siftback import Epochs, Memory
from siftback.errors import ConfigError
from siftback.frameworks.accelerate import prepare
from toys import AT_ONCE, numbered_examples

COUNT, BATCH, EPOCHS = 45, 4, 3  # 45 examples: an odd number for two processes

STOP = {"memory": 8, "selective-backprop": 5}  # batches: within an epoch, after a step


def data():
    return numbered_examples(COUNT, 3, classes=2)


class Network(nn.Module):
    def __init__(self, norm=nn.BatchNorm1d):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(2, 8), norm(8), nn.Dropout(0.3))
        self.head = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs[:, 1:]))


def rate_of(loader, accelerator, accumulated):
    """Steps of the optimizer in the whole training, as Accelerate's schedulers count them."""
    steps = [-(-loader.steps(epoch) // accumulated) for epoch in range(EPOCHS)]
    return sum(steps) * (1 if accelerator.split_batches else accelerator.num_processes)


def train(accelerator, method, *, folder=None, resume=False, batch=BATCH, accumulated=2):
    """Trains; saves its state at `STOP` where it is given a folder."""
    net, plain = Network(), DataLoader(data(), batch, shuffle=True)
    if method == "memory":
        given = {"memory": Memory(keep=0.5, warmup=Epochs(1))}
    else:
        given = {"model": net, "loss_fn": F.cross_entropy, "keep": 0.5, "schedule": AT_ONCE}
    loader = prepare(accelerator, plain, epochs=EPOCHS, **given)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    steps = rate_of(loader, accelerator, accumulated)
    schedule = LinearLR(optimizer, 1.0, 0.1, steps)
    model, optimizer, schedule = accelerator.prepare(net, optimizer, schedule)
    torch.manual_seed(accelerator.process_index)  # of dropout
    if resume:
        accelerator.load_state(folder)
    seen, devices, synchronized, done = [], set(), [], 0
    for epoch in range(loader.epoch, EPOCHS):
        for x, y in loader:
            seen.append((epoch, x[:, 0].long().tolist()))
            devices.add(str(x.device))
            with accelerator.accumulate(model):
                losses = F.cross_entropy(model(x), y, reduction="none")
                accelerator.backward(loader.loss(losses))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            synchronized.append(accelerator.sync_gradients)
            done += 1
            if folder is not None and not resume and done == STOP[method]:
                accelerator.save_state(folder)
    found = {
        "seen": seen,
        "devices": devices,
        "synchronized": synchronized,
        "rate": schedule.get_last_lr()[0],
        "weights": {k: v.clone() for k, v in accelerator.unwrap_model(model).state_dict().items()},
        "stats": vars(loader.stats),
        "generator": loader._loader._generator.initial_seed(),
    }
    accelerator.free_memory()
    accelerator._custom_objects.clear()
    return found


def refused(accelerator, **arguments):
    try:
        prepare(accelerator, **arguments)
    except ConfigError as error:
        return str(error)
    return None


def main(out):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rank = accelerator.process_index
    found = {"world": accelerator.num_processes, "kind": accelerator.distributed_type.value}
    for method in ("memory", "selective-backprop"):
        folder = out / method
        found[method] = train(accelerator, method, folder=folder)
        found[f"{method} resumed"] = train(accelerator, method, folder=folder, resume=True)
    net, weighted = Network(), WeightedRandomSampler(torch.ones(COUNT), COUNT)
    found["refused"] = refused(
        accelerator,
        loader=DataLoader(data(), BATCH, sampler=weighted),
        model=net,
        loss_fn=F.cross_entropy,
        keep=0.5,
    )
    halves = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
    )
    found["split"] = train(halves, "memory", batch=2 * BATCH)
    found["odd"] = refused(halves, loader=DataLoader(data(), 3), memory=Memory(), epochs=2)
    accelerator.wait_for_everyone()
    AcceleratorState._reset_state(reset_partial_state=True)
    alone = Accelerator()  # which may not see the other process, without an accelerator
    reason = refused(alone, loader=DataLoader(data(), 4), memory=Memory(), epochs=2)
    found["alone"] = alone.num_processes, reason
    torch.save(found, out / f"{rank}.pt")
