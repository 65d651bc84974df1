"""The statistics of selection as four frameworks' own loggers write them, in one picture.

``python benchmarks/loops/logged_statistics.py docs/logged_statistics.png`` trains the same small
network in Lightning and Keras, with their CSV loggers, and in the Trainer and Accelerate, with
TensorBoard, and draws what it reads from the files that they wrote.
"""

import argparse
import contextlib
import csv
import importlib
import io
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import torch
from equal_steps import WithLoss, losses_of
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Memory, Share

EXAMPLES, BATCH, EPOCHS, EVERY = 1024, 32, 6, 8
STATISTICS = ("kept_share", "backwards", "seconds_selection", "left_out", "share")

Series = dict[str, list[tuple[int, float]]]
"""Of each statistic, the steps and values that a framework logged."""


def rule() -> Memory:
    """Returns the rule that all of them select by."""
    return Memory(warmup=Epochs(1), tail=Share(0.45))


def tensors() -> tuple[Tensor, Tensor]:
    """Returns inputs and targets of three classes that can be learned."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def read_csv(path: Path, step: Callable[[int, dict[str, str]], int]) -> Series:
    """Reads a table of a row per entry, in which a cell may be empty."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        name: [(step(at, row), float(row[f"sift/{name}"])) for at, row in enumerate(rows)
               if row.get(f"sift/{name}")]
        for name in STATISTICS
    }  # fmt: skip


def read_events(folder: Path) -> Series:
    """Reads the event files of TensorBoard below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    series: Series = {}
    for path in folder.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(path)).Reload()
        for tag in events.Tags()["scalars"]:
            name = tag.rpartition("sift/")[2]  # the Trainer writes train/sift/share
            if name in STATISTICS and "sift/" in tag:
                series[name] = [(event.step, event.value) for event in events.Scalars(tag)]
    return series


def lightning(folder: Path) -> Series:
    """Trains by Lightning, with its ``CSVLogger``."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    from siftback.frameworks.lightning import SelectiveDataModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 3)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    loader = DataLoader(TensorDataset(*tensors()), BATCH, shuffle=True)
    logger = CSVLogger(folder, name="", version="")
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=logger, log_every_n_steps=EVERY,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Net(), datamodule=SelectiveDataModule(loader, rule()))
    return read_csv(folder / "metrics.csv", lambda _, row: int(row["step"]))


def huggingface(folder: Path) -> Series:
    """Trains by the Trainer, which reports to TensorBoard."""
    from siftback.frameworks.huggingface import SelectiveTrainerMixin
    from transformers import Trainer, TrainingArguments

    class Selective(SelectiveTrainerMixin, Trainer):
        pass

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "events")
    arguments = TrainingArguments(
        str(folder), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, use_cpu=True,
        save_strategy="no", report_to="tensorboard", disable_tqdm=True, logging_steps=EVERY,
        learning_rate=1e-2, remove_unused_columns=False,
    )  # fmt: skip
    data = [{"inputs": x, "labels": y} for x, y in zip(*tensors(), strict=True)]
    Selective(WithLoss(), arguments, memory=rule(), losses=losses_of, train_dataset=data).train()
    return read_events(folder)


def accelerate(folder: Path) -> Series:
    """Trains in a loop of Accelerate, with its tracker for TensorBoard."""
    from accelerate import Accelerator

    from siftback.frameworks.accelerate import prepare

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=folder)
    accelerator.init_trackers("run")
    loader = DataLoader(TensorDataset(*tensors()), BATCH, shuffle=True)
    loader = prepare(accelerator, loader, memory=rule(), epochs=EPOCHS)
    model = nn.Linear(8, 3)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 1e-2))
    step = 0
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            losses = F.cross_entropy(model(inputs), targets, reduction="none")
            accelerator.backward(loader.loss(losses))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % EVERY == 0:
                accelerator.log(loader.log_entries(), step)
    accelerator.end_training()
    return read_events(folder)


def keras(folder: Path) -> Series:
    """Trains by Keras's ``fit``, with its ``CSVLogger``, which writes a row per epoch."""
    keras: Any = importlib.import_module("keras")
    from siftback.frameworks.keras import LossRecorder, SelectiveDataset

    inputs, targets = (part.numpy() for part in tensors())
    layers = [keras.Input([8]), keras.layers.Dense(3, activation="softmax")]
    model = LossRecorder(keras.Sequential(layers))
    dataset = SelectiveDataset((inputs, targets), BATCH, memory=rule(), epochs=EPOCHS)
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    logger = keras.callbacks.CSVLogger(str(folder / "log.csv"))
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[logger])
    return read_csv(folder / "log.csv", lambda at, _: (at + 1) * len(dataset))


LOGGERS: dict[str, Callable[[Path], Series]] = {
    "Lightning, CSVLogger": lightning,
    "Trainer, TensorBoard": huggingface,
    "Accelerate, TensorBoard": accelerate,
    "Keras, CSVLogger": keras,
}


def draw(logged: dict[str, Series], path: Path) -> None:
    """Draws a row of panels per statistic, and a column per framework."""
    figure = Figure(figsize=(10, 8.5), layout="constrained")
    panels = figure.subplots(len(STATISTICS), len(logged), sharex=True, sharey="row")
    for column, (name, series) in enumerate(logged.items()):
        panels[0, column].set_title(name, fontsize=10)
        for row, statistic in enumerate(STATISTICS):
            panel = panels[row, column]
            panel.plot(*zip(*series[statistic], strict=True), marker=".", markersize=4, lw=1)
            panel.grid(alpha=0.3)
            if column == 0:
                panel.set_ylabel(f"sift/{statistic}", fontsize=9)
        panels[-1, column].set_xlabel("step", fontsize=9)
    for panel in panels[:, 0]:
        panel.set_ylim(bottom=0)  # once all of its row are drawn, which share the axis
    canvas = io.BytesIO()
    figure.savefig(canvas, dpi=90)
    # In 256 colours, which is less than half of the bytes.
    Image.open(canvas).convert("RGB").quantize(256).save(path, optimize=True)


def main() -> None:
    """Trains in all of them, and draws what they logged."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path, help="where to draw it: a name in .png or .svg")
    picture = parser.parse_args().picture
    logged = {}
    for name, run in LOGGERS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            logged[name] = run(Path(folder))
    draw(logged, picture)


if __name__ == "__main__":
    main()
