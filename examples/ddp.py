"""Memory in several processes, killed at any time and resumed from its last checkpoint.

``torchrun --nproc-per-node 2 examples/ddp.py``; the same command again goes on.
"""

import argparse
import io
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from siftback import Memory, SelectiveLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("runs/ddp"))
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--save-every", type=int, default=10, help="steps")
asked = parser.parse_args()

dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
if rank == 0:  # what was being saved as a training was killed
    shutil.rmtree(asked.out / "unfinished", ignore_errors=True)
torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16).float(), torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
plain = DataLoader(data, 32, shuffle=True)  # each process gets its own share of one order
loader = SelectiveLoader(plain, memory=Memory(0.5), epochs=asked.epochs)


def checkpoint():
    """What is saved; of the loader each process has its own state."""
    weights, moments = get_state_dict(model, optimizer)
    torch.save({"loader": loader.state_dict(), "step": step}, own := io.BytesIO())
    return {"model": weights, "optimizer": moments, f"rank{rank}": own.getvalue()}


saved = sorted(asked.out.glob("step-*"), key=lambda path: int(path.name[5:]))
if saved:
    dcp.load(state := checkpoint(), checkpoint_id=saved[-1])
    weights, moments = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    own = torch.load(io.BytesIO(state[f"rank{rank}"]), weights_only=True)
    loader.load_state_dict(own["loader"])
    step = own["step"]

for _ in range(loader.epoch, asked.epochs):
    for x, y in loader:
        loader.loss(F.cross_entropy(model(x), y, reduction="none")).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % asked.save_every == 0 or step == loader.total_steps:
            dcp.save(checkpoint(), checkpoint_id=asked.out / "unfinished")
            if rank == 0:  # one that is there under its name is whole
                (asked.out / "unfinished").rename(asked.out / f"step-{step}")
            dist.barrier()

if rank == 0:
    read, unread = loader.stats.released, loader.stats.unread
    print(f"{step} steps; each process read {read} examples, and left {unread} unread")
dist.destroy_process_group()
