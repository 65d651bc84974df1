"""Rules that draw every epoch, a row each, and a loop that tells them what they ask for."""

import torch

from remembering import Numbered, indexed, selective, spread
from siftback import IES, RS2, UCB, InfoBatch, Kakurenbo, SeTa

METHODS = {
    "infobatch": lambda: InfoBatch(0.6, 0.7),
    "rs2": lambda: RS2(0.3),
    "rs2, replaced": lambda: RS2(0.5, replacement=True, tail=0.25),
    "kakurenbo": lambda: Kakurenbo(0.6),
    "ucb": lambda: UCB(0.4, every=2),
    "seta": lambda: SeTa(0.2, groups=5, delta=1.0),
    "ies": lambda: IES(threshold=0.3, window=1),
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def loss_in(epoch, number):
    """Falls for each example, at a pace of its own, and not smoothly."""
    return 3 / (1 + epoch * ((number * 7) % 5 + 1) / 4) + 0.2 * torch.sin(number + epoch * 2.0)


def losses_of(epoch, batch):
    return batch["loss"] * loss_in(epoch, batch["number"].double()).float().clamp(min=0.01)


def steps_of(loader, epoch):
    """An epoch: the numbers and weights of each batch, as training found them."""
    for batch in loader:
        number = batch["number"]
        confidence = (number * 7 % 10).float() / 10
        losses = losses_of(epoch, batch)
        loader.remember(losses, correct=number % 4 != 0, confidence=confidence)
        yield number.tolist(), loader.weights.tolist()


def epoch_of(loader, epoch):
    """The weight of each example that an epoch trained on."""
    found = {}
    for numbers, weights in steps_of(loader, epoch):
        assert not found.keys() & set(numbers)
        found |= dict(zip(numbers, weights, strict=True))
    return found


def loader_of(scorer, count=60, **arguments):
    wrapped = arguments.pop("wrapped", None) or indexed(Numbered(spread(count)))
    return selective(wrapped, losses=None, scorer=scorer, **({"epochs": 8} | arguments))
