"""The training of every framework, by Hugging Face's Trainer."""

import tempfile

from torch import nn
from torch.nn import functional as F
from trainings import BATCH, EPOCHS, KEEP, data, run_of

from siftback.frameworks.huggingface import SelectiveTrainerMixin
from toys import AT_ONCE
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.net = network

    def forward(self, inputs, labels):
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Selective(SelectiveTrainerMixin, Trainer):
    pass


def losses(model_or_outputs, batch):
    """Of the outputs of a step, or of a model."""
    outputs = model_or_outputs
    if isinstance(outputs, nn.Module):
        outputs = outputs(**batch)
    return F.cross_entropy(outputs["logits"], batch["labels"], reduction="none")


def train(training):
    with tempfile.TemporaryDirectory() as folder:
        return train_in(training.folder or folder, training)


def train_in(folder, training):
    # An evaluation draws random numbers, after the state at the end of an epoch is saved.
    evaluates = training.folder is None
    settings = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": training.accumulated,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "cosine" if training.decays else "constant",
        "save_strategy": "steps" if training.saves else "no",
        "save_steps": 1,
        "eval_strategy": "epoch" if evaluates else "no",
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_steps": 1,
    }
    rows = [{"inputs": x, "labels": y} for x, y in data()]
    others = [{"inputs": x, "labels": y * 0} for x, y in data()]
    given = {"train_dataset": rows, "eval_dataset": others}
    given["optimizers"] = (training.optimizer(), None)
    arguments = TrainingArguments(str(folder), **settings | training.options)
    model = Model(training.network)
    if training.selection is None:
        trainer = Trainer(model, arguments, **given)
    elif training.rule:
        trainer = Selective(model, arguments, memory=training.rule, losses=losses, seed=0, **given)
    else:
        within = {"keep": KEEP, "schedule": AT_ONCE, "losses": losses}
        trainer = Selective(model, arguments, **within, **given)
    path = str(folder / f"checkpoint-{training.resumed}") if training.resumed else None
    trainer.train(resume_from_checkpoint=path)
    log = trainer.state.log_history
    lengths = {"steps": trainer.state.global_step, "max_steps": trainer.state.max_steps}
    lengths |= {"validations": sum("eval_loss" in entry for entry in log)}
    lengths |= {"scheduled": trainer.lr_scheduler.last_epoch}
    return run_of(training, lengths, getattr(trainer, "stats", None))
