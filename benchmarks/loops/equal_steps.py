"""Steps, validations and the last learning rate of eight training loops, without and with a rule.

``python benchmarks/loops/equal_steps.py`` prints the table; with ``--json FILE`` it is written too.
In each loop the schedule gets its length as users of the framework get it, and nothing from
Siftback.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from siftback import EpochRule, Memory, SelectiveLoader

EXAMPLES, BATCH, EPOCHS, RATE = 200, 16, 4, 0.1


@dataclass(frozen=True)
class Run:
    """Counts of a training: optimizer steps, validations, and the learning rate it ends with."""

    steps: int
    validations: int
    rate: float


def tensors() -> tuple[Tensor, Tensor]:
    """Returns inputs and targets of a few classes that can be learned."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def parts(rule: EpochRule | None) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    """Returns a loader, selective where there is a rule, a model and its optimizer."""
    torch.manual_seed(0)
    loader: Any = DataLoader(TensorDataset(*tensors()), BATCH, shuffle=True)
    if rule:
        loader = SelectiveLoader(loader, memory=rule, epochs=EPOCHS)
    model = nn.Linear(8, 3)
    return loader, model, torch.optim.SGD(model.parameters(), RATE)


def loss_of(loader: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the loss to run backward: through the loader, where that is selective."""
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return loader.loss(losses) if isinstance(loader, SelectiveLoader) else losses.mean()


def rate_of(optimizer: Any) -> float:
    """Returns the learning rate of an optimizer of PyTorch."""
    return float(optimizer.param_groups[0]["lr"])


def plain(rule: EpochRule | None) -> Run:
    """A loop of plain PyTorch."""
    loader, model, optimizer = parts(rule)
    schedule = OneCycleLR(optimizer, RATE, epochs=EPOCHS, steps_per_epoch=len(loader))
    steps = validations = 0
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            loss_of(loader, model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            steps += 1
        validations += 1
    return Run(steps, validations, rate_of(optimizer))


def timm(rule: EpochRule | None) -> Run:
    """A loop as timm's ``train.py`` has it: the rate follows updates counted by ``len(loader)``."""
    loader, model, optimizer = parts(rule)
    accumulation, validations, num_updates = 3, 0, 0
    updates_per_epoch = (len(loader) + accumulation - 1) // accumulation
    total = EPOCHS * updates_per_epoch
    for epoch in range(EPOCHS):
        num_updates = epoch * updates_per_epoch
        for index, (inputs, targets) in enumerate(loader):
            is_last = index == len(loader) - 1
            loss_of(loader, model(inputs), targets).backward()
            if (index + 1) % accumulation and not is_last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            num_updates += 1
            optimizer.param_groups[0]["lr"] = RATE * (1 - num_updates / total)
        validations += 1
    return Run(num_updates, validations, rate_of(optimizer))


def ignite(rule: EpochRule | None) -> Run:
    """An Ignite engine, whose handlers read its ``epoch_length``."""
    from ignite.engine import Engine, Events

    loader, model, optimizer = parts(rule)
    schedule = OneCycleLR(optimizer, RATE, epochs=EPOCHS, steps_per_epoch=len(loader))
    validated = []

    def update(engine: Any, batch: Any) -> float:
        loss = loss_of(loader, model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        return float(loss)

    trainer = Engine(update)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: validated.append(0))
    state = trainer.run(loader, max_epochs=EPOCHS)
    assert state.epoch_length * EPOCHS == state.iteration
    return Run(state.iteration, len(validated), rate_of(optimizer))


def skorch(rule: EpochRule | None) -> Run:
    """A skorch net, whose training iterator is the loader, and which validates each epoch."""
    from skorch import NeuralNet
    from skorch.callbacks import LRScheduler
    from skorch.helper import predefined_split

    data = TensorDataset(*tensors())
    steps_of_epoch = -(-EXAMPLES // BATCH)

    class Net(NeuralNet):  # type: ignore[misc]
        steps = 0

        def get_iterator(self, dataset: Any, training: bool = False) -> Any:
            if not training:
                return super().get_iterator(dataset, training)
            if not hasattr(self, "loader"):
                self.loader = super().get_iterator(dataset, training)
                if rule:
                    self.loader = SelectiveLoader(self.loader, memory=rule, epochs=EPOCHS)
            return self.loader

        def get_loss(self, outputs: Any, targets: Any, X: Any, training: bool = False) -> Any:  # noqa: N803
            if not training:
                return F.cross_entropy(outputs, targets)
            self.steps += 1
            return loss_of(self.loader, outputs, targets)

    torch.manual_seed(0)
    schedule = LRScheduler(
        OneCycleLR, step_every="batch", max_lr=RATE, epochs=EPOCHS, steps_per_epoch=steps_of_epoch
    )
    net = Net(
        nn.Linear(8, 3), nn.CrossEntropyLoss, max_epochs=EPOCHS, lr=RATE, batch_size=BATCH,
        iterator_train__shuffle=True, train_split=predefined_split(data), verbose=0,
        callbacks=[("schedule", schedule)],
    )  # fmt: skip
    net.fit(data, None)
    validations = len([loss for loss in net.history[:, "valid_loss"] if loss is not None])
    return Run(net.steps, validations, rate_of(net.optimizer_))


def accelerate(rule: EpochRule | None) -> Run:
    """A loop of Accelerate that accumulates gradients."""
    from accelerate import Accelerator

    from siftback.frameworks.accelerate import prepare

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    loader, model, optimizer = parts(None)
    if rule:
        loader = prepare(accelerator, loader, memory=rule, epochs=EPOCHS)
        model, optimizer = accelerator.prepare(model, optimizer)
    else:
        loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
    total = EPOCHS * -(-len(loader) // 3)
    schedule = accelerator.prepare(OneCycleLR(optimizer.optimizer, RATE, total_steps=total))
    steps = validations = 0
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                losses = F.cross_entropy(model(inputs), targets, reduction="none")
                accelerator.backward(loader.loss(losses) if rule else losses.mean())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
        validations += 1
    return Run(steps, validations, rate_of(optimizer))


def lightning(rule: EpochRule | None) -> Run:
    """A trainer of Lightning, with its own estimate of the steps."""
    from lightning.pytorch import LightningModule, Trainer

    from siftback.frameworks.lightning import SelectiveDataModule

    class Net(LightningModule):
        validations = 0

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 3)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            """Validates nothing."""

        def on_validation_epoch_end(self) -> None:
            self.validations += 1

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), RATE)
            total = int(self.trainer.estimated_stepping_batches)
            schedule = OneCycleLR(optimizer, RATE, total_steps=total)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    loader, _, _ = parts(None)
    validation = DataLoader(TensorDataset(*tensors()), BATCH)
    net = Net()
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=False, num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    if rule:
        module = SelectiveDataModule(loader, rule, val_dataloaders=validation)
        trainer.fit(net, datamodule=module)
    else:
        trainer.fit(net, loader, validation)
    return Run(trainer.global_step, net.validations, rate_of(trainer.optimizers[0]))


class WithLoss(nn.Module):
    """A linear model that returns its loss, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 3)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Returns the mean loss, and the logits."""
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def losses_of(outputs: Any, batch: Any) -> Tensor:
    """Returns the losses of each example of a batch, of what `WithLoss` returned."""
    return F.cross_entropy(outputs["logits"], batch["labels"], reduction="none")


def huggingface(rule: EpochRule | None) -> Run:
    """A Trainer of Hugging Face, with its own schedule."""
    from siftback.frameworks.huggingface import SelectiveTrainerMixin
    from transformers import Trainer, TrainingArguments

    class Selective(SelectiveTrainerMixin, Trainer):
        pass

    torch.manual_seed(0)
    data = [{"inputs": x, "labels": y} for x, y in zip(*tensors(), strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, use_cpu=True,
            eval_strategy="epoch", save_strategy="no", report_to="none", disable_tqdm=True,
            learning_rate=RATE, gradient_accumulation_steps=3, remove_unused_columns=False,
        )  # fmt: skip
        options: dict[str, Any] = {"train_dataset": data, "eval_dataset": data}
        if rule:
            trainer = Selective(WithLoss(), arguments, memory=rule, losses=losses_of, **options)
        else:
            trainer = Trainer(WithLoss(), arguments, **options)
        trainer.train()
    validations = len([entry for entry in trainer.state.log_history if "eval_loss" in entry])
    return Run(trainer.state.global_step, validations, rate_of(trainer.optimizer))


def keras(rule: EpochRule | None) -> Run:
    """Keras's ``fit`` on its torch backend."""
    keras: Any = importlib.import_module("keras")
    from siftback.frameworks.keras import LossRecorder, SelectiveDataset

    keras.utils.set_random_seed(0)
    inputs, targets = (part.numpy() for part in tensors())
    layers = [keras.Input([8]), keras.layers.Dense(3, activation="softmax")]
    model, data = keras.Sequential(layers), {"x": inputs, "y": targets, "batch_size": BATCH}
    batches = -(-EXAMPLES // BATCH)
    if rule:
        model = LossRecorder(model)
        dataset = SelectiveDataset((inputs, targets), BATCH, memory=rule, epochs=EPOCHS)
        data, batches = {"x": dataset}, len(dataset)
    rate = keras.optimizers.schedules.CosineDecay(RATE, EPOCHS * batches)
    model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    data |= {"validation_data": (inputs, targets), "validation_batch_size": BATCH}
    history = model.fit(**data, epochs=EPOCHS, verbose=0)
    iterations = int(model.optimizer.iterations)
    return Run(iterations, len(history.history["val_loss"]), float(rate(iterations)))


LOOPS: dict[str, Callable[[EpochRule | None], Run]] = {
    "plain PyTorch": plain,
    "Lightning": lightning,
    "Hugging Face Trainer": huggingface,
    "Accelerate": accelerate,
    "Keras": keras,
    "timm's loop": timm,
    "Ignite": ignite,
    "skorch": skorch,
}


ACCUMULATING = ("Hugging Face Trainer", "Accelerate")
"""Of the frameworks, those of whose loops three batches make a step."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the numbers to")
    output = parser.parse_args().json
    print("| loop | steps | with | validations | with | last rate | with |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    found = {}
    for name, run in LOOPS.items():
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            without, selective = run(None), run(Memory())
        pairs = zip(asdict(without).values(), asdict(selective).values(), strict=True)
        print(f"| {name} | " + " | ".join(f"{a:.6g} | {b:.6g}" for a, b in pairs) + " |")
        found[name] = {"without": asdict(without), "with": asdict(selective)}
    if output:
        output.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
