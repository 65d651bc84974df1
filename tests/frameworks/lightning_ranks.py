"""Small Lightning modules and trainings, and what one of several processes does with them.

For `test_lightning_processes`.
"""

import os
import warnings

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from siftback import Memory, SelectiveLoader, SinglePass
from siftback.errors import SiftbackError, StateError
from toys import AT_ONCE, numbered_examples

COUNT, BATCH, EPOCHS, RATE = 48, 8, 3, 0.1


def data(count=COUNT):
    return numbered_examples(count)


def plain(batch_size=BATCH, **options):
    return DataLoader(data(), batch_size, shuffle=True, **options)


def validation():
    return DataLoader(data(16), 8)


class Net(LightningModule):
    """Notes which examples it was trained on, in `steps`, and how often it was validated."""

    one_cycle = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(6, 3)
        self.steps, self.validations, self.totals, self.rates = [], 0, [], []

    def forward(self, inputs):
        return self.net(inputs * torch.tensor([0.02, 1, 1, 1, 1, 1]))

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = F.cross_entropy(self(inputs), targets)
        self.note(inputs)
        return loss

    def note(self, inputs):
        self.steps.append((self.current_epoch, inputs[:, 0].int().tolist()))

    def on_before_optimizer_step(self, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_epoch_start(self):
        self.totals.append(self.trainer.num_training_batches)

    def validation_step(self, batch, batch_idx):
        self.validations += batch_idx == 0
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), RATE, momentum=0.9)
        if not self.one_cycle:
            return optimizer
        self.total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, self.total)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    @property
    def examples(self):
        return [rows for _, rows in self.steps]

    def per_epoch(self):
        epochs = range(self.steps[-1][0] + 1)
        return [sum(of == epoch for of, _ in self.steps) for epoch in epochs]


class OneCycle(Net):
    one_cycle = True


class Single(Net):
    """A module around a single pass: its step is the loss of the kept rows."""

    def __init__(self):
        super().__init__()
        self.sift = SinglePass(self.net, F.cross_entropy, keep=1 / 2)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        scaled = inputs * torch.tensor([0.02, 1, 1, 1, 1, 1])
        loss = self.sift(scaled, targets)
        self.note(inputs[self.sift.selection.positions])
        return loss


def trainer_of(*callbacks, saved_to=None, every=1, **options):
    """A quiet trainer; with `saved_to`, one that saves a checkpoint after each step."""
    callbacks = list(callbacks)
    if saved_to is not None:
        more = {"save_top_k": -1, "filename": "{step}", "save_on_train_epoch_end": False}
        callbacks.append(ModelCheckpoint(saved_to, every_n_train_steps=every, **more))
    settings = {"max_epochs": EPOCHS, "accelerator": "cpu", "devices": 1, "logger": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    settings |= quiet | {"enable_checkpointing": saved_to is not None} | options
    return Trainer(callbacks=callbacks, **settings)


def fit_selecting(callback, module, loader=None, ckpt_path=None, **options):
    """Selective-Backprop within the step."""
    torch.manual_seed(5 if ckpt_path is None else 6)
    trainer = trainer_of(callback, **options)
    loader = plain() if loader is None else loader
    trainer.fit(module, loader, validation(), ckpt_path=ckpt_path)
    return trainer


def fit_remembering(module, loader=None, ckpt_path=None, memory=None, **options):
    """Memory, by a data module."""
    from siftback.frameworks.lightning import SelectiveDataModule

    torch.manual_seed(5 if ckpt_path is None else 6)
    trainer = trainer_of(**options)
    loader = plain() if loader is None else loader
    selective = SelectiveDataModule(
        loader, memory or Memory(keep=0.5), val_dataloaders=validation()
    )
    trainer.fit(module, datamodule=selective, ckpt_path=ckpt_path)
    return trainer, selective


def on_ranks(out):
    """Both forms, each without a stop and from a checkpoint within an epoch."""
    from siftback.frameworks.lightning import SelectiveCallback

    ddp, found = {"devices": 2, "strategy": "ddp"}, {}
    for name in ("selecting", "remembering"):
        for run, step in (("whole", None), ("resumed", 4)):
            module, path = OneCycle(), out / name / f"step={step}.ckpt"
            options = (
                {**ddp, "saved_to": out / name} if step is None else {**ddp, "ckpt_path": path}
            )
            if name == "selecting":
                callback = SelectiveCallback(keep=1 / 2, schedule=AT_ONCE)
                trainer = fit_selecting(callback, module, shared(), **options)
                stats = callback.stats
            else:
                trainer, selective = fit_remembering(module, **options)
                stats = selective.stats
            found[name, run] = {
                "steps": module.steps,
                "weights": module.net.weight.detach().clone(),
                "counts": (trainer.global_step, module.total, module.validations),
                "rates": module.rates,
                "stats": (stats.seen, stats.kept, stats.backwards),
            }
    return found


def single_pass():
    """A single pass within a module that DistributedDataParallel calls."""
    module = Single()
    trainer_of(devices=2, strategy="ddp").fit(module, plain(), validation())
    return {
        "steps": module.steps,
        "weights": module.net.weight.detach().clone(),
        "difference": module.sift.gradient_check.largest,
    }


def shared():
    """A loader that resumes for each process."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    rank = int(os.environ["RANK"])  # the trainer starts the processes later
    sampler = StatefulDistributedSampler(data(), 2, rank)
    return StatefulDataLoader(data(), BATCH, sampler=sampler)


def in_fabric():
    """Memory in a loop of Fabric: what each process read, and what is refused."""
    early = SelectiveLoader(plain(), memory=Memory(), epochs=2)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    refused = []
    for wrong in (
        lambda: next(iter(early)),
        lambda: fabric.setup_dataloaders(SelectiveLoader(plain(), memory=Memory(), epochs=2)),
        lambda: SelectiveLoader(fabric.setup_dataloaders(plain()), memory=Memory(), epochs=2),
    ):
        try:
            wrong()
        except (SiftbackError, TypeError) as error:
            refused.append(f"{type(error).__name__}: {error}")
    net = Net()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), RATE))
    loader = SelectiveLoader(plain(), memory=Memory(keep=0.5), epochs=2)
    steps = []
    for _ in range(2):
        for batch in loader:
            inputs, targets = fabric.to_device(batch)
            losses = F.cross_entropy(model(inputs), targets, reduction="none")
            fabric.backward(loader.loss(losses))
            optimizer.step()
            optimizer.zero_grad()
            steps.append((loader.epoch, inputs[:, 0].int().tolist()))
    try:
        states = [loader.state_dict()] * 2  # as saved by rank 0 for all
        dist.broadcast_object_list(states)
        SelectiveLoader(plain(), memory=Memory(keep=0.5), epochs=2).load_state_dict(states[0])
    except StateError as error:
        refused.append(f"StateError: {error}")
    return {"steps": steps, "weights": net.net.weight.detach().clone(), "refused": refused}


def main(folder):
    warnings.filterwarnings("ignore")
    found = {"fabric": in_fabric(), **on_ranks(folder), "single pass": single_pass()}
    torch.save(found, folder / f"{os.environ['RANK']}.pt")
