"""Modules of Lightning, and what is asked of them, that several of its tests share."""

import pytest
import torch
from lightning_ranks import BATCH, COUNT, RATE, Net, data, plain, validation
from torch import nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset

from siftback import Memory
from siftback.frameworks.lightning import SelectiveDataModule
from siftback.seeding import Stream, generator_from

EXPECTED_WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint"),
    pytest.mark.filterwarnings("ignore:.*set_vital.*deprecated"),  # by importing torchdata
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
STEPS = COUNT // BATCH
LAST = RATE / 25 / 1e4  # where OneCycleLR ends


def remembering():
    return SelectiveDataModule(plain(), memory=Memory(0.55), val_dataloaders=validation())


def weights_of(module):
    return module.net.weight.detach().clone()


def seed_of(rank=0):
    return generator_from(0, rank, Stream.SELECTION).initial_seed()


class Manual(Net):
    """Manual optimization of two parts, toggled in turn, and accumulation by hand."""

    def __init__(self, every=1):
        super().__init__()
        self.automatic_optimization = False
        self.every, self.other = every, nn.Parameter(torch.zeros(3))

    def training_step(self, batch, batch_idx):
        first, _ = self.optimizers()
        self.toggle_optimizer(first)
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.note(batch[0])
        self.manual_backward(loss / self.every)
        if (batch_idx + 1) % self.every == 0:
            first.step()
            first.zero_grad()
        self.untoggle_optimizer(first)

    def configure_optimizers(self):
        own = torch.optim.SGD(self.net.parameters(), RATE, momentum=0.9)
        return own, torch.optim.SGD([self.other], RATE)


def examples_by_epoch(found):
    epochs = {epoch: [] for epoch, _ in found["steps"]}
    for epoch, rows in found["steps"]:
        epochs[epoch].extend(rows)
    return epochs


def of_cross_entropy(module, batch):
    return F.cross_entropy(module(batch[0]), batch[1], reduction="none")


class Alike(Net):
    """Validates by its training step."""

    def validation_step(self, batch, batch_idx):
        self.validated = [*getattr(self, "validated", []), len(batch[0])]
        return self.training_step(batch, batch_idx)

    def note(self, inputs):
        if self.trainer.training:
            super().note(inputs)


class TwoLosses(Net):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.note(batch[0])
        return F.cross_entropy(logits, batch[1]) + F.mse_loss(logits, torch.zeros_like(logits))


class NoLoss(Net):
    def training_step(self, batch, batch_idx):
        return -self(batch[0]).log_softmax(1)[torch.arange(len(batch[1])), batch[1]].mean()


class OfOutputs(Net):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        return F.cross_entropy(logits, batch[1]) + logits.square().mean()


class OfTokens(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]).repeat(2, 1), batch[1].repeat(2))


class Sorted(Net):
    def training_step(self, batch, batch_idx):
        order = batch[0][:, 0].argsort()
        return F.cross_entropy(self(batch[0][order]), batch[1][order])


class SortedByHand(Manual):
    def training_step(self, batch, batch_idx):
        order = batch[0][:, 0].argsort()
        super().training_step([rows[order] for rows in batch], batch_idx)


class Reversed(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0].flip(0)), batch[1].flip(0))


class Summed(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="sum")


class Unreduced(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none").mean()


class ClassWeights(Net):
    def training_step(self, batch, batch_idx):
        weight = torch.tensor([1.0, 2.0, 5.0])
        return F.cross_entropy(self(batch[0]), batch[1], weight=weight)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(data())
