"""Lightning's searches for a learning rate and a batch size, before a training with selection."""

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

import lightning
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner
from lightning_parts import EXPECTED_WARNINGS, weights_of
from lightning_ranks import BATCH, COUNT, EPOCHS, Net, data, plain, trainer_of, validation
from torch.utils.data import DataLoader

from siftback import InfoBatch, Memory, ScoreTable, SelectiveLoader
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule
from toys import AT_ONCE

pytestmark = [
    *EXPECTED_WARNINGS,
    pytest.mark.filterwarnings("ignore:.*num_workers|.*checkpoint directory"),
]


class Tuned(Net):
    def __init__(self):
        super().__init__()
        self.lr = 0.1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


class Sized(LightningDataModule):
    """Makes its loader of the batch size that it has now."""

    def __init__(self, batch_size=BATCH):
        super().__init__()
        self.save_hyperparameters()
        self.batch_size, self.folder = batch_size, "here"

    def train_dataloader(self):
        return DataLoader(data(), self.batch_size, shuffle=True)

    def val_dataloader(self):
        return validation()


class OfHyperparameters(LightningDataModule):
    val_dataloader = Sized.val_dataloader

    def __init__(self, batch_size=BATCH):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        return DataLoader(data(), self.hparams.batch_size, shuffle=True)


def tuner_of(tmp_path, *callbacks):
    trainer = trainer_of(*callbacks, enable_checkpointing=True, default_root_dir=tmp_path)
    return trainer, Tuner(trainer)


def fresh_steps(memory, batch_size=BATCH):
    """The training without a search before it."""
    module = Tuned()
    trainer_of().fit(module, datamodule=SelectiveDataModule(Sized(batch_size), memory))
    return module


RULES = {
    "memory": lambda folder: Memory(),
    "fixed share": lambda folder: Memory(keep=0.5),
    "infobatch": lambda folder: InfoBatch(0.5),
    "in a file": lambda folder: Memory(keep=0.5, table=ScoreTable(path=folder / "table")),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_a_search_for_a_rate_learned_is_undone(rule, tmp_path):
    memory = RULES[rule](tmp_path)
    selective, module = SelectiveDataModule(Sized(), memory), Tuned()
    trainer, tuner = tuner_of(tmp_path)
    found = tuner.lr_find(module, datamodule=selective, num_training=2 * COUNT // BATCH)
    assert len(module.steps) > COUNT // BATCH, "so that it selected"
    assert len(found.results["loss"]) > 0
    assert "training_step" not in vars(module)
    assert selective.stats.seen == 0
    assert not memory.has_value.any()
    module.lr, module.steps = 0.1, []
    trainer.fit(module, datamodule=selective)
    without = fresh_steps(Memory() if rule == "memory" else RULES[rule](tmp_path.parent))
    assert module.steps == without.steps
    assert torch.equal(weights_of(module), weights_of(without))
    assert selective.stats.seen >= EPOCHS * COUNT


@pytest.mark.parametrize("kind", [Sized, OfHyperparameters])
@pytest.mark.parametrize("mode", ["power", "binsearch"])
@pytest.mark.sampled(3)
def test_a_search_for_a_batch_size_sets_that_of_the_wrapped_data_module(kind, mode, tmp_path):
    memory, inner, module = Memory(keep=0.5), kind(), Tuned()
    selective = SelectiveDataModule(inner, memory)
    trainer, tuner = tuner_of(tmp_path)
    size = tuner.scale_batch_size(
        module, datamodule=selective, mode=mode, init_val=4, steps_per_trial=2, max_trials=3
    )
    assert size not in (4, BATCH)
    assert inner.hparams.batch_size == size
    assert getattr(inner, "batch_size", size) == getattr(selective, "batch_size", size) == size
    assert {len(rows) for rows in module.examples} > {BATCH}
    assert not memory.has_value.any()
    module.steps = []
    trainer.fit(module, datamodule=selective)
    assert module.steps == fresh_steps(Memory(keep=0.5), size).steps


@pytest.mark.skipif(
    lightning.__version__ == "2.5.1",
    reason="after a search within training, it leaves out an epoch of plain training too",
)
def test_searches_by_callbacks_within_a_training_are_undone_too(tmp_path):
    memory = Memory(keep=0.5)
    finders = [
        BatchSizeFinder(steps_per_trial=2, init_val=4, max_trials=3),
        LearningRateFinder(num_training_steps=COUNT // 4, update_attr=False),
    ]
    selective = SelectiveDataModule(Sized(), memory)
    trainer, _ = tuner_of(tmp_path, *finders)
    module = Tuned()
    trainer.fit(module, datamodule=selective)
    without = fresh_steps(Memory(keep=0.5), selective.batch_size)
    assert module.steps[-len(without.steps) :] == without.steps
    assert selective.stats.released == EPOCHS * COUNT


def test_selection_within_the_step_takes_no_part_in_a_search(tmp_path):
    callback, module = SelectiveCallback(keep=0.5, schedule=AT_ONCE), Tuned()
    trainer, tuner = tuner_of(tmp_path, callback)
    tuner.lr_find(module, plain(), validation(), num_training=COUNT // BATCH)
    assert callback.stats.seen == 0
    trainer.fit(module, plain(), validation())
    assert callback.stats.seen == EPOCHS * COUNT


def test_attributes_are_those_of_the_wrapped_data_module():
    inner = Sized()
    selective = SelectiveDataModule(inner, Memory())
    assert selective.folder == "here"
    selective.batch_size, selective.folder = 4, "there"
    assert (inner.batch_size, inner.folder) == (4, "there")
    selective.other = 3
    assert not hasattr(inner, "other")
    assert selective.hparams is inner.hparams
    assert selective.prepare_data_per_node is True
    inner.prepare_data_per_node = False
    assert selective.prepare_data_per_node is False
    with pytest.raises(AttributeError, match="'Sized' object has no attribute 'missing'"):
        selective.missing  # noqa: B018


def test_a_loader_of_one_s_own_is_searched_with_a_rate(tmp_path):
    loader = SelectiveLoader(plain(), memory=Memory(keep=0.5), epochs=EPOCHS)
    selective = SelectiveDataModule(loader, val_dataloaders=validation())
    _, tuner = tuner_of(tmp_path)
    tuner.lr_find(Tuned(), datamodule=selective, num_training=2 * COUNT // BATCH)
    assert loader.stats.seen == 0
    assert not loader.memory.has_value.any()
