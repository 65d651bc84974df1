"""The work that every peer does: the data, the network, the learning rates, the budget, the test.

It needs torch alone, of 2.6 or newer, so that it runs beside a peer that pins an older one.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

BATCH, PEAK, MOMENTUM, DECAY = 128, 0.1, 0.9, 5e-4
WARMUP = 0.3  # share of the budget in which the learning rate rises
WIDTH = 8

Batches = Iterable[tuple[Tensor, Tensor]]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images, float32[N, C, H, W], and their classes; flipped at random if asked for."""

    def __init__(self, pixels: Tensor, labels: Tensor, *, flip: bool = False) -> None:
        self.pixels, self.labels, self.flip = pixels, labels, flip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pixels = self.pixels[index]
        if self.flip and torch.rand(()) < 0.5:
            pixels = pixels.flip(-1)
        return pixels, self.labels[index]

    @property
    def targets(self) -> Tensor:
        """The labels, under the name that torchvision's data sets have for them."""
        return self.labels


def read(path: Path) -> tuple[Images, Images]:
    """The training and the test set in a file that `compare.py` wrote."""
    parts = torch.load(path, weights_only=True)
    mean, deviation = parts["mean"], parts["deviation"]
    sets = []
    for name in ("train", "test"):
        pixels = (parts[f"{name}_pixels"].float() - mean) / deviation
        flip = name == "train" and bool(parts["flip"])
        sets.append(Images(pixels, parts[f"{name}_labels"], flip=flip))
    return sets[0], sets[1]


class Block(nn.Module):
    """Two convolutions with batch normalisation, and a shortcut; halves the image."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(channels, width, 1, 2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Float32[N, C, H, W] to half of H and W."""
        out = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(out)) + self.norms[2](self.shortcut(x)))


def network(channels: int, classes: int, width: int = WIDTH) -> nn.Module:
    """A residual network of eight layers, the first of ``width`` channels."""
    widths = (width, 2 * width, 4 * width, 8 * width)
    stem = (nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    blocks = [Block(*pair) for pair in itertools.pairwise(widths)]
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*stem, *blocks, *pool, nn.Linear(widths[-1], classes))


class Work:
    """One training: until its budget is spent.

    Args:
        train: The training set.
        seed: Of weights, order and selection.
        budget: In epochs of plain training, each of which costs 3 forwards of every example.
        batch: Examples of a batch.
        peak: The highest learning rate.
        width: Channels of the network's first layer.

    Attributes:
        cost: Spent so far, in forwards of one example; a backward costs two.
        seconds: Of training.
    """

    def __init__(
        self, train: Images, seed: int, budget: float, *, batch: int = BATCH, peak: float = PEAK,
        width: int = WIDTH,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.train, self.seed, self.budget = train, seed, budget
        self.batch, self.peak = batch, peak
        self.model = network(train.pixels.shape[1], int(train.labels.max()) + 1, width)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), peak, MOMENTUM, weight_decay=DECAY, nesterov=True
        )
        self.cost, self.seconds, self.steps = 0.0, 0.0, 0

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        return self.cost / (3 * len(self.train) * self.budget)

    def loader(self, dataset: Dataset[tuple[Tensor, Tensor]] | None = None) -> DataLoader:
        """Shuffled batches of the training set, or of another."""
        return DataLoader(self.train if dataset is None else dataset, self.batch, shuffle=True)

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each example, and the logits."""
        logits = self.model(x)
        return F.cross_entropy(logits, y, reduction="none"), logits

    def set_rate(self, scale: float = 1.0) -> None:
        """Sets the optimizer's learning rate to the one-cycle rate of the progress."""
        rising = self.progress < WARMUP
        share = self.progress / WARMUP if rising else (1 - self.progress) / (1 - WARMUP)
        rate = self.peak * scale * (1 - math.cos(math.pi * min(max(share, 0.0), 1.0))) / 2
        self.optimizer.param_groups[0]["lr"] = max(rate, self.peak * 1e-3)

    def step(self, loss: Tensor, scale: float = 1.0) -> None:
        """One step of the optimizer, at the rate of the progress."""
        self.set_rate(scale)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.steps += 1

    def fit(
        self,
        epoch: Callable[[], Iterable[tuple[Tensor, Tensor]]],
        train_on: Callable[[Tensor, Tensor], float],
    ) -> None:
        """Trains on epochs of batches until the budget is spent.

        Args:
            epoch: Gives the batches of the next epoch.
            train_on: Trains on one, and gives what that cost, in forwards of one example.
        """
        started = time.perf_counter()
        while self.progress < 1:
            for x, y in epoch():
                self.cost += train_on(x, y)
                if self.progress >= 1:
                    break
        self.seconds += time.perf_counter() - started

    @torch.no_grad()
    def test(self, data: Images) -> tuple[float, float]:
        """Error in percent and mean loss."""
        self.model.eval()
        wrong, loss = 0, 0.0
        for x, y in zip(data.pixels.split(1000), data.labels.split(1000), strict=True):
            logits = self.model(x)
            wrong += int((logits.argmax(1) != y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
        return 100 * wrong / len(data), loss / len(data)
