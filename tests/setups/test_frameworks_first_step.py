"""In frameworks, the first step tells what is wrong, and no row is alone in its batch."""

import os
from types import SimpleNamespace

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Memory, Percentile, Schedule, Unbiased
from siftback.batches.order import SelectiveBatches
from siftback.errors import BatchError, ConfigError, LossError

AT_ONCE = Schedule(warmup=Epochs(0))


def examples(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 6, generator=generator), torch.arange(count) % 3


class Stack(nn.Sequential):
    """Notes how many rows it is trained on."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.rows = []

    def forward(self, x):
        if torch.is_grad_enabled() and self.training:
            self.rows.append(len(x))
        return super().forward(x)


# Lightning
def lightning_net(step):
    lightning = pytest.importorskip("lightning", reason="needs siftback[lightning]")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = Stack()

        def training_step(self, batch, batch_idx):
            return step(self.net, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return Net()


def lightning_fit(module, count=48, batch=8, *, memory=None, epochs=2, collate=None, **settings):
    import lightning

    from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule

    loader = DataLoader(TensorDataset(*examples(count)), batch, shuffle=True, collate_fn=collate)
    callbacks = [SelectiveCallback(**settings)] if memory is None else []
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=callbacks,
        accelerator="cpu",
        enable_checkpointing=False,
        **quiet,
    )
    data = {"train_dataloaders": loader}
    if memory is not None:
        data = {"datamodule": SelectiveDataModule(loader, memory)}
    trainer.fit(module, **data)
    return trainer


def cross_entropy(net, batch):
    return F.cross_entropy(net(batch[0]), batch[1])


def in_place(net, batch):
    return F.cross_entropy(net(batch[0].mul_(2)), batch[1])


def ragged(rows):
    x, y = map(torch.stack, zip(*rows, strict=True))
    return x, y, torch.tensor(3)


WRONG_IN_LIGHTNING = {
    "losses that are a mean": (
        {"losses": lambda module, batch: cross_entropy(module.net, batch)},
        cross_entropy,
        LossError,
        "reduced",
    ),
    "losses of each class": (
        {"losses": lambda module, batch: module.net(batch[0])},
        cross_entropy,
        LossError,
        r"float32\[8, 3\]",
    ),
    "no loss": ({}, lambda net, batch: net(batch[0]).sum(), ConfigError, "no loss function"),
    "a batch changed in place": ({}, in_place, ConfigError, "in place"),
    "a part without rows": ({"collate": ragged}, cross_entropy, BatchError, "has no rows"),
    "weights of a sum": (
        {"selector": Unbiased(Percentile(keep=0.5))},
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], reduction="sum"),
        ConfigError,
        "weights of the selection",
    ),
    "weights of a step's mean": (
        {"selector": Unbiased(Percentile(keep=0.5))},
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], reduction="none").mean(),
        ConfigError,
        "weights",
    ),
}


@pytest.mark.parametrize("case", WRONG_IN_LIGHTNING)
def test_lightning_s_first_step_tells_during_warm_up(case):
    settings, step, error, message = WRONG_IN_LIGHTNING[case]
    keep = {} if "selector" in settings else {"keep": 0.5}
    module = lightning_net(step)
    before = [weight.detach().clone() for weight in module.parameters()]
    with pytest.raises(error, match=message):
        lightning_fit(module, **(keep | settings))
    assert not module.net.rows or module.net.rows == [8]
    assert all(map(torch.equal, before, module.parameters()))


@pytest.mark.parametrize(("count", "kept"), [(51, 2), (50, 2), (52, 2), (54, 2), (55, 2)])
def test_lightning_keeps_two_rows_of_a_small_last_batch(count, kept):
    module = lightning_net(cross_entropy)
    lightning_fit(module, count, keep=1 / 3, schedule=AT_ONCE)
    assert min(module.net.rows) >= kept
    assert sorted(set(module.net.rows)) == sorted({3, max(2, round((count % 8) / 3))})


# Hugging Face
def huggingface_trainer(folder, count=33, model=None, **given):
    transformers = pytest.importorskip("transformers")
    from siftback.frameworks.huggingface import SelectiveTrainerMixin

    class Output(dict):
        logits = property(lambda self: self["logits"])
        loss = property(lambda self: self["loss"])

    class TinyForSequenceClassification(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = Stack()

        def forward(self, x, labels=None):
            logits = self.net(x)
            loss = None if labels is None else F.cross_entropy(logits, labels)
            return Output(loss=loss, logits=logits)

    class Tried(SelectiveTrainerMixin, transformers.Trainer):
        pass

    args = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=8,
        num_train_epochs=3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
    )
    model = TinyForSequenceClassification() if model is None else model
    data = [{"x": x, "labels": y} for x, y in zip(*examples(count), strict=True)]
    return Tried(model, args, train_dataset=data, **given)


class Tuple(nn.Module):
    """Gives ``(loss, logits)``, though its name says what it is."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, x, labels=None):
        logits = self.net(x)
        return F.cross_entropy(logits, labels) if labels is not None else None, logits


Tuple.__name__ = "TupleForSequenceClassification"


class Wide(Tuple):
    def forward(self, x, labels=None):
        logits = self.net(x)[:, :, None].expand(-1, -1, 2)
        loss = F.cross_entropy(logits[..., 0], labels) if labels is not None else None
        from types import SimpleNamespace

        return SimpleNamespace(loss=loss, logits=logits)


Wide.__name__ = "WideForSequenceClassification"


def of_model(model, batch):
    return F.cross_entropy(model(batch["x"]).logits, batch["labels"])


WRONG_IN_HUGGING_FACE = {
    "losses that are a mean": ({"losses": of_model}, LossError, "reduced"),
    "losses of each class": (
        {"losses": lambda model, batch: model(batch["x"]).logits},
        LossError,
        r"float32\[8, 3\]",
    ),
    "a tuple of loss and logits": ({"model": Tuple()}, LossError, "no logits.*return_dict"),
    "logits of another width": ({"model": Wide()}, LossError, r"logits of shape \[8, 3, 2\]"),
}


@pytest.mark.parametrize("case", WRONG_IN_HUGGING_FACE)
def test_a_trainer_s_first_step_tells_during_warm_up(case, tmp_path):
    given, error, message = WRONG_IN_HUGGING_FACE[case]
    ours = huggingface_trainer(tmp_path, keep=0.5, **given)
    for _ in range(2):  # as where the cell of a notebook is run again
        with pytest.raises(error, match=message):
            ours.train()
        assert ours.state.global_step == 0


@pytest.mark.parametrize("count", [34, 66, 50])
def test_a_trainer_s_epochs_have_the_batches_of_the_data(count, tmp_path):
    rule = Memory(keep=0.5, warmup=Epochs(1))
    ours = huggingface_trainer(tmp_path, count, memory=rule)
    ours.train()
    assert ours.model.net.rows == ([8] * (count // 8) + [count % 8]) * 3
    assert len(ours.model.net.rows) == ours.state.global_step == ours.state.max_steps


def test_a_trainer_keeps_two_rows_of_a_small_last_batch(tmp_path):
    ours = huggingface_trainer(tmp_path, 35, keep=1 / 3, schedule=AT_ONCE)
    ours.train()
    assert ours.model.net.rows == [3, 3, 3, 3, 2] * 3


# Keras
def keras_model(kind, **settings):
    keras = pytest.importorskip("keras", reason="needs siftback[keras]")
    from siftback.frameworks import keras as framework

    keras.utils.set_random_seed(0)
    layers = keras.layers
    inner = keras.Sequential(
        [keras.Input([6]), layers.Dense(8), layers.BatchNormalization(), layers.Dense(3)]
    )
    return getattr(framework, kind)(inner, **settings)


def keras_losses():
    keras = pytest.importorskip("keras", reason="needs siftback[keras]")

    class Scalar(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.mean((y_true - y_pred) ** 2)

    mean = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    return {"a mean": (Scalar(), {"keep": 0.5}, LossError, "one loss per example")} | {
        "weights that the reduction undoes": (
            mean,
            {"selector": Unbiased(Percentile(keep=0.5))},
            ConfigError,
            "mean_with_sample_weight",
        )
    }


@pytest.mark.parametrize("case", ["a mean", "weights that the reduction undoes"])
def test_keras_s_first_step_tells_during_warm_up(case):
    loss, settings, error, message = keras_losses()[case]
    model = keras_model("SelectiveModel", **settings)
    model.compile("sgd", loss)
    x, y = (part.numpy() for part in examples(32))
    y = np.eye(3, dtype="float32")[y] if case == "a mean" else y
    for _ in range(2):
        with pytest.raises(error, match=message):
            model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize("count", [34, 66, 50])
def test_keras_s_epochs_have_the_batches_of_the_data(count):
    from siftback.frameworks.keras import SelectiveDataset

    data = tuple(part.numpy() for part in examples(count))
    rule = Memory(keep=0.5, warmup=Epochs(1))
    dataset = SelectiveDataset(data, 8, memory=rule, epochs=3)
    read = []
    for epoch in range(3):
        dataset.begin_epoch(epoch)
        for index in range(len(dataset)):
            dataset.draw_batch(index)
            *_, carried = dataset[index]
            read.append(carried["sift_index"])
            dataset.update(read[-1], torch.rand(len(read[-1])))
        dataset.end_epoch()
    assert [len(indices) for indices in read] == ([8] * (count // 8) + [count % 8]) * 3
    passes = torch.cat(read).split([count, *[count // 2] * 4])
    assert [len(indices.unique()) for indices in passes] == [count, *[count // 2] * 4]
    model = keras_model("LossRecorder")
    model.compile("sgd", "mse", loss_weights=None)
    rule = Memory(keep=0.5, warmup=Epochs(1))
    targets = (data[0], np.eye(3, dtype="float32")[data[1]])
    dataset = SelectiveDataset(targets, 8, memory=rule, epochs=3)
    model.fit(dataset, epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == dataset.total_steps


def test_keras_keeps_two_rows_of_a_small_last_batch():
    model = keras_model("SelectiveModel", keep=1 / 3, warmup=0)
    model.compile("sgd", "mse")
    x, y = (part.numpy() for part in examples(35))
    model.fit(x, np.eye(3, dtype="float32")[y], batch_size=8, epochs=2, verbose=0)
    assert model.stats.kept == 2 * (4 * 3 + 2)


# Accelerate, whose batches are those of a SelectiveLoader
def test_accelerate_s_first_batch_tells_a_batch_without_rows():
    accelerate = pytest.importorskip("accelerate", reason="needs siftback[accelerate]")
    from siftback.frameworks.accelerate import prepare

    loader = DataLoader(TensorDataset(*examples(32)), 8, collate_fn=ragged)
    accelerator = accelerate.Accelerator(cpu=True)
    loader = prepare(accelerator, loader, nn.Linear(6, 3), F.cross_entropy, keep=0.5)
    with pytest.raises(BatchError, match="has no rows"):
        next(iter(loader))


# How batches are cut, in all frameworks
class Shortened(list):
    """An order with a draw that says whether it left examples out."""


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_torch_s_but_for_a_last_one_of_one_row(size, drop_last):
    for count in range(40):
        for whole in (count, count + 5):
            order = Shortened(range(count))
            order.draw = SimpleNamespace(leaves_out=count < whole)
            batches = list(SelectiveBatches(order, size, drop_last))
            lengths = [len(batch) for batch in batches]
            plain = list(DataLoader(range(count), size, drop_last=drop_last)) if count else []
            given = [index for batch in batches for index in batch]
            assert given == [int(index) for batch in plain for index in batch]
            if whole == count or count % size != 1 or drop_last or size == 1 or count == 1:
                assert lengths == [len(batch) for batch in plain]
            else:
                assert min(lengths) >= 2
                assert len(lengths) == len(plain) - (size == 2)
