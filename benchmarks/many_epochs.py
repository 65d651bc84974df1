"""Many epochs of a number of examples that no number of processes divides: no hang, equal steps.

``python benchmarks/many_epochs.py`` starts ``torchrun`` with 2, 4 and 8 processes, one after
another, and prints what all processes did: steps of each method, and seconds.
``--epochs`` and ``--processes`` make it shorter.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from siftback import InfoBatch, Memory, SelectiveLoader, SelectiveSampler, Stale

COUNT, BATCH = 47, 3
METHODS: dict[str, Any] = {
    "memory": lambda: {"memory": Memory(0.4)},
    "stale": lambda: {"memory": Stale(0.4, every=3)},
    "infobatch": lambda: {"memory": InfoBatch(0.5, 1.0)},
    "selective-backprop": lambda: {"keep": 0.4},
}


def trained(arguments: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Steps of each epoch, and the weights at the end."""
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


def one_of_several(out: Path, epochs: int) -> None:
    """Runs one process."""
    dist.init_process_group("gloo")
    found = {}
    for name, make in METHODS.items():
        started = time.perf_counter()
        found[name] = trained(make(), epochs) | {"seconds": time.perf_counter() - started}
    torch.save(found, out / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()
    # All is saved; now and then a thread of gloo's aborts when the interpreter ends
    # (pytorch/pytorch#179291), so the process ends without that.
    os._exit(0)


def run(processes: int, epochs: int) -> None:
    """Starts the processes, compares what they did, and prints it.

    Raises:
        RuntimeError: If they made unequal steps, or ended with unequal weights.
    """
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d"]
        command += ["--rdzv-endpoint=127.0.0.1:0", f"--nproc-per-node={processes}"]
        command += [__file__, "--epochs", str(epochs), "--out", out]
        subprocess.run(command, check=True)
        ranks = [torch.load(Path(out) / f"{rank}.pt") for rank in range(processes)]
    for name in METHODS:
        first = ranks[0][name]
        for rank in ranks:
            equal = all(map(torch.equal, rank[name]["weights"].values(), first["weights"].values()))
            if rank[name]["steps"] != first["steps"] or not equal or len(first["steps"]) != epochs:
                raise RuntimeError(f"{name}: the processes differ in their steps or weights")
        print(
            f"{processes} processes, {epochs} epochs of {COUNT} examples, {name}: each made "
            f"{sum(first['steps'])} steps and has the same weights; {first['seconds']:.0f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # of one of several
    asked = parser.parse_args()
    if "RANK" in os.environ:
        one_of_several(asked.out, asked.epochs)
        return
    for processes in asked.processes:
        run(processes, asked.epochs)


if __name__ == "__main__":
    main()
