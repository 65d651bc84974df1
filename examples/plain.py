"""A loop of one's own, with InBatch in the step or Memory around the loader (``--method``)."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import InBatch, Memory, SelectiveLoader

parser = argparse.ArgumentParser()
parser.add_argument("--method", choices=["plain", "in_batch", "memory"], default="in_batch")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--keep", type=float, default=0.5)
arguments = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
inputs, targets = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
train, (test_inputs, test_targets) = (
    TensorDataset(inputs[:1500], targets[:1500]),
    (
        inputs[1500:],
        targets[1500:],
    ),
)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(train, 64, shuffle=True)
in_batch = InBatch(keep=arguments.keep, steps_per_epoch=len(loader))
if arguments.method == "memory":
    loader = SelectiveLoader(loader, memory=Memory(arguments.keep), epochs=arguments.epochs)

forwards = backwards = 0
for _ in range(arguments.epochs):
    for x, y in loader:
        if arguments.method == "in_batch":  # a scoring forward, then a step on the kept rows
            with torch.no_grad():
                rows, _ = in_batch.select(F.cross_entropy(model(x), y, reduction="none"))
            forwards += len(x)
            x, y = x[rows], y[rows]
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = loader.loss(losses) if arguments.method == "memory" else losses.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        forwards, backwards = forwards + len(x), backwards + len(x)

with torch.no_grad():
    error = (model(test_inputs).argmax(1) != test_targets).float().mean().item()
plain = 3 * arguments.epochs * len(train)
print(f"test error {error:.1%}; {backwards} backwards of {plain // 3} in plain training")
print(
    f"cost {(forwards + 2 * backwards) / plain:.2f} of plain training's, a backward as 2 forwards"
)
