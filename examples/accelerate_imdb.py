"""Classifies IMDB's reviews in a loop of Accelerate, on the examples that are worth it.

Run it by python, or on several processes by torchrun. Data: SIFTBACK_DATA or ../shared/data.
"""

import argparse
import os
import re
from collections import Counter
from pathlib import Path

import torch
from accelerate import Accelerator
from pyarrow import parquet
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Memory
from siftback.frameworks.accelerate import prepare

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--examples", type=int, default=25000, help="to train on, and to test on")
parser.add_argument("--epochs", type=int, default=5)
asked = parser.parse_args()
folder = Path(os.environ.get("SIFTBACK_DATA", "../shared/data"), "imdb")
if not folder.is_dir():
    raise SystemExit(f"put IMDB's Parquet files into {folder}, or set SIFTBACK_DATA")
texts, labels = {}, {}
for split in ("train", "test"):
    table = parquet.read_table(next(folder.glob(f"{split}-*"))).slice(0, asked.examples).to_pydict()
    texts[split] = [set(re.findall("[a-z']+", text.lower())) for text in table["text"]]
    labels[split] = torch.tensor(table["label"])
often = Counter(word for words in texts["train"] for word in words).most_common(5000)
place = {word: n for n, (word, _) in enumerate(sorted(often))}
bags = {split: torch.zeros(len(texts[split]), 5000, dtype=torch.bool) for split in texts}
for split in texts:
    for bag, words in zip(bags[split], texts[split], strict=True):
        bag[[place[word] for word in words & place.keys()]] = True

accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5000, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
loader = DataLoader(TensorDataset(bags["train"], labels["train"]), batch_size=32, shuffle=True)
loader = prepare(accelerator, loader, memory=Memory(keep=0.5), epochs=asked.epochs)
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=2e-3))
for _ in range(asked.epochs):
    for x, y in loader:
        with accelerator.accumulate(model):
            losses = F.cross_entropy(model(x.float()), y, reduction="none")
            accelerator.backward(loader.loss(losses))
            optimizer.step()
            optimizer.zero_grad()
with torch.no_grad():
    right = model(bags["test"].float().to(accelerator.device)).argmax(1).cpu() == labels["test"]
stats = loader.stats
accelerator.print(
    f"test accuracy {right.float().mean():.1%} after {loader.total_steps} steps\n"
    f"{stats.backwards} examples run backward in each process, and {stats.unread} left unread"
)
