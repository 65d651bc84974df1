"""CIFAR-10 with Lightning, selecting in the step (``--method in_step``) or by memory."""

import argparse
import os
from pathlib import Path

import torch
from datasets import load_dataset
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Memory
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule


def cifar10(split, count):
    # Set SIFTBACK_DATA to a folder with cifar10/train-*.parquet and so on, or be online.
    here = Path(os.environ.get("SIFTBACK_DATA", "../shared/data"), "cifar10")
    rows = load_dataset(str(here) if here.is_dir() else "cifar10", split=split, streaming=True)
    rows = list(rows.with_format("torch").take(count))
    return TensorDataset(*(torch.stack([row[name] for row in rows]) for name in ("img", "label")))


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        first = nn.Sequential(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
        second = nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2))
        self.net = nn.Sequential(first, second, nn.Flatten(), nn.Linear(64 * 25, 10))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0] / 255), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def main(method, keep, examples, epochs):
    seed_everything(0, verbose=False)
    model, train = Net(), DataLoader(cifar10("train", examples), 128, shuffle=True)
    callback = SelectiveCallback(keep) if method == "in_step" else None
    remembers = None if callback else SelectiveDataModule(train, memory=Memory(keep))
    quiet = {"logger": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=epochs, callbacks=callback, **quiet)
    trainer.fit(model, train if callback else None, datamodule=remembers)
    images, labels = cifar10("test", examples // 5).tensors
    accuracy = (model.net(images / 255).argmax(1) == labels).float().mean()
    stats, plain = (callback or remembers).stats, epochs * len(train.dataset)
    print(f"{stats.backwards} backwards and {stats.forwards} forwards; plain: {plain} of each")
    print(f"test accuracy {accuracy:.1%} after {trainer.global_step} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, value in {"method": "memory", "keep": 0.5, "examples": 10000, "epochs": 5}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    main(**vars(parser.parse_args()))
