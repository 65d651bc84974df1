"""A small problem of images, and models that learn it in a second."""

import torch
from torch import nn
from torch.nn import functional as F

from siftback.lab.models import build
from siftback.losses.per_example import pair_losses

CLASSES = 4
CROSS_ENTROPY = pair_losses(F.cross_entropy)


def batch(seed, count=24, side=8):
    """Images of which each class has its own bright row, under noise."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    images = torch.randn(count, 1, side, side, generator=generator, dtype=torch.float32)
    images[torch.arange(count), 0, 2 * targets] += 2
    return images, targets


def network(name="cnn"):
    torch.manual_seed(2)
    return build(name, width=4, classes=CLASSES, channels=1)


def proxy_network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, CLASSES))


def trained(model, steps=30):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for seed in range(steps):
        step(model, optimizer, batch(seed))
    return model


def step(model, optimizer, examples):
    CROSS_ENTROPY(model, examples).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def change(model, amount=0.1):
    """As a training step does, in place."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount * torch.randn_like(parameter))
