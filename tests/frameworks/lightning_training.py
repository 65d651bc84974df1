"""The training of every framework, by Lightning's trainer."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from trainings import BATCH, EPOCHS, IN_STEP, KEEP, data, predictions, run_of

from siftback import Kakurenbo
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule
from toys import AT_ONCE

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Module(LightningModule):
    def __init__(self, training):
        super().__init__()
        self.net, self.training_of = training.network, training
        self.validations, self.totals = 0, []

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        logits = self.net(inputs)
        if not isinstance(self.training_of.selection, Kakurenbo):
            return F.cross_entropy(logits, targets)
        losses = F.cross_entropy(logits, targets, reduction="none")
        return self.trainer.datamodule.loss(losses, **predictions(logits, targets))

    def on_train_epoch_start(self):
        self.totals.append(self.trainer.num_training_batches)

    def validation_step(self, batch, batch_idx):
        self.validations += batch_idx == 0
        F.cross_entropy(self.net(batch[0]), batch[1] * 0)

    def configure_optimizers(self):
        optimizer = self.training_of.optimizer(self.parameters())
        if not self.training_of.decays:
            return optimizer
        steps = self.trainer.estimated_stepping_batches
        schedule = self.training_of.schedule(optimizer, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(training):
    module, callbacks = Module(training), []
    if training.saves:
        more = {"save_top_k": -1, "every_n_train_steps": 1, "save_on_train_epoch_end": False}
        callbacks.append(ModelCheckpoint(training.folder, filename="{step}", **more))
    if training.selection == IN_STEP:
        callbacks.append(SelectiveCallback(keep=KEEP, schedule=AT_ONCE))
    options = {"max_epochs": EPOCHS, "accumulate_grad_batches": training.accumulated}
    options |= {"accelerator": "cpu", "devices": 1, "enable_checkpointing": training.saves}
    trainer = Trainer(callbacks=callbacks, **QUIET | options | training.options)
    kind = DataLoader if training.rule else StatefulDataLoader  # a memory knows where it is
    loader, validation = kind(data(), BATCH, shuffle=True), DataLoader(data(), BATCH)
    path = training.folder / f"step={training.resumed}.ckpt" if training.resumed else None
    torch.manual_seed(6 if training.resumed else 5)
    stats = callbacks[-1].stats if training.selection == IN_STEP else None
    if training.rule:
        length = {"epochs": EPOCHS} if "max_steps" in training.options else {}
        selective = SelectiveDataModule(loader, training.rule, val_dataloaders=validation, **length)
        trainer.fit(module, datamodule=selective, ckpt_path=path)
        stats = selective.stats
    else:
        trainer.fit(module, loader, validation, ckpt_path=path)
    assert "training_step" not in vars(module)
    lengths = {"steps": trainer.global_step, "totals": module.totals}
    return run_of(training, lengths | {"validations": module.validations}, stats)
