"""Selection before reading, under Lightning's own `Trainer`."""

import pickle

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    ModelCheckpoint,
    TQDMProgressBar,
)
from lightning_parts import (
    EXPECTED_WARNINGS,
    STEPS,
    Alike,
    ClassWeights,
    Endless,
    Manual,
    NoLoss,
    OfOutputs,
    OfTokens,
    Reversed,
    Sorted,
    SortedByHand,
    Summed,
    TwoLosses,
    Unreduced,
    examples_by_epoch,
    remembering,
    weights_of,
)
from lightning_ranks import (
    BATCH,
    COUNT,
    EPOCHS,
    Net,
    OneCycle,
    data,
    fit_remembering,
    plain,
    trainer_of,
    validation,
)
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, default_collate

from siftback import (
    EpochRule,
    InfoBatch,
    Memory,
    NoiseGuard,
    SelectiveLoader,
)
from siftback.errors import ConfigError, LossError, StateError
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule
from toys import AT_ONCE

pytestmark = EXPECTED_WARNINGS


class Bar(TQDMProgressBar):
    def __init__(self):
        super().__init__()
        self.totals = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.totals.append((self.train_progress_bar.n, self.train_progress_bar.total))
        super().on_train_epoch_end(trainer, pl_module)


def test_the_progress_bar_counts_the_batches_of_an_epoch():
    bar = Bar()
    trainer_of(bar, enable_progress_bar=True).fit(Net(), datamodule=remembering())
    assert bar.totals == [(STEPS, STEPS)] * EPOCHS


def test_an_epoch_that_the_trainer_cuts_short_is_followed_by_the_next_one():
    module = OneCycle()
    trainer, _ = fit_remembering(module, memory=Memory(keep=1.0), limit_train_batches=0.5)
    assert module.per_epoch() == [3, 3, 3]
    assert trainer.global_step == module.total == 9
    by_epoch = examples_by_epoch({"steps": module.steps})
    assert len({tuple(rows) for rows in by_epoch.values()}) == 3


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"max_steps": 15}, 2.5),
        ({"max_steps": 15, "limit_train_batches": 0.5}, 5),
        ({"max_steps": 5, "accumulate_grad_batches": 4}, 2 + 4 / STEPS),
        ({"max_steps": 900}, 50),
        ({"max_steps": 15, "max_epochs": -1}, 2.5),  # as of a trainer that is given steps alone
    ],
)
def test_a_training_is_as_long_as_its_steps_where_these_are_fewer(options, epochs):
    settings = {"max_epochs": 50} | options
    trainer, selective = fit_remembering(Net(), memory=Memory(), **settings)
    assert selective.loader.epochs == epochs
    assert trainer.global_step == min(options["max_steps"], 50 * STEPS)


class Recording(Net):
    """Records losses itself, and would record those of validation too; learns nothing."""

    def training_step(self, batch, batch_idx):
        losses = F.cross_entropy(self(batch[0]), batch[1], reduction="none")
        return self.trainer.train_dataloader.loss(losses)

    def validation_step(self, batch, batch_idx):
        losses = F.cross_entropy(self(batch[0]), batch[1] * 0, reduction="none") + 7
        self.log("loss", self.trainer.datamodule.loss(losses))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def test_a_step_records_losses_itself_and_validation_does_not():
    memory, module = Memory(keep=0.5), Recording()
    fit_remembering(module, memory=memory)
    inputs, targets = data().tensors
    losses = F.cross_entropy(module(inputs), targets, reduction="none").detach()
    assert torch.allclose(memory.values[:, 0], losses)


def test_a_validation_by_the_training_step_is_not_remembered():
    module = Alike()
    _, selective = fit_remembering(module)
    assert set(module.validated) == {BATCH}
    assert len(module.examples) == STEPS * EPOCHS
    assert selective.stats.released == COUNT * EPOCHS


def test_a_data_module_of_loaders_can_be_sent_to_processes_that_are_spawned():
    module, same = Net(), Net()
    sent = pickle.loads(pickle.dumps(remembering()))
    for trained, selective in ((module, remembering()), (same, sent)):
        torch.manual_seed(5)
        trainer_of().fit(trained, datamodule=selective)
    assert module.examples == same.examples
    assert module.validations == same.validations > 0


class Half(EpochRule):
    """Every other example, with weights that differ; learns."""

    learned = ()

    def draw(self, epoch, generator):
        weights = torch.arange(float(self.examples))
        return weights * ((torch.arange(self.examples) + epoch) % 2)

    def count(self, epoch):
        return self.examples // 2 - (epoch % 2 == 1)  # the first one has weight 0

    def update(self, indices, losses, epoch, *, correct=None, confidence=None):
        self.learned = [*self.learned, *indices.tolist()]


def test_weights_of_a_rule_are_applied_to_the_mean():
    rule, module = Half(), Net()
    one_pass = {"max_epochs": 1, "limit_train_batches": COUNT // 2 // BATCH}
    fit_remembering(module, loader=DataLoader(data(), BATCH), memory=rule, **one_pass)
    by_hand = Net()
    optimizer = by_hand.configure_optimizers()
    inputs, targets = data().tensors
    for rows in torch.arange(1, COUNT, 2).split(BATCH):
        losses = F.cross_entropy(by_hand(inputs[rows]), targets[rows], reduction="none")
        (losses * rows).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert module.examples == [rows.tolist() for rows in torch.arange(1, COUNT, 2).split(BATCH)]
    assert rule.learned == list(range(1, COUNT, 2))
    assert torch.allclose(weights_of(module), weights_of(by_hand))
    for kind in (Summed, Unreduced, ClassWeights):
        with pytest.raises(ConfigError, match="weights"):
            fit_remembering(kind(), memory=Half(), max_epochs=1)


class Recomputed(Net):
    """Its loss is computed without a gradient, and again in backward."""

    def training_step(self, batch, batch_idx):
        losses = lambda x: F.cross_entropy(self(x), batch[1])  # noqa: E731
        return checkpoint(losses, batch[0].requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("kind", [Summed, Unreduced, ClassWeights, Recomputed])
def test_weights_to_come_that_cannot_be_applied_are_refused_in_the_first_step(kind):
    module = kind()
    with pytest.raises(ConfigError, match="weights"):
        fit_remembering(module, memory=InfoBatch())
    assert module.trainer.global_step == 0
    if kind is Recomputed:
        fit_remembering(kind(), memory=Memory(keep=0.5))


class Averaging(Sorted):
    """Changes weights after its loss, as a moving average of weights."""

    def __init__(self):
        super().__init__()
        self.average = torch.nn.Linear(6, 3).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.average.weight.data.lerp_(self.net.weight.data, 0.1)
        return loss


@pytest.mark.parametrize(
    "kind",
    [TwoLosses, NoLoss, OfOutputs, OfTokens, Sorted, Reversed, SortedByHand, Averaging],
)
def test_a_step_whose_losses_cannot_be_recorded_is_refused(kind):
    with pytest.raises((ConfigError, LossError), match=r"record|datamodule\.loss"):
        fit_remembering(kind())


def named(examples):
    return [*default_collate(examples), "digits"]


class Decaying(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch[:2], batch_idx) + 0.1 * self.net.weight.square().sum()


def test_a_value_beside_the_columns_of_a_batch_leaves_the_checks_as_they_are():
    fit_remembering(Decaying(), plain(collate_fn=named))
    with pytest.raises(ConfigError, match="in another order"):
        fit_remembering(Sorted(), plain(collate_fn=named))


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_weights_are_applied_to_losses_of_half_precision(precision):
    module = Net()
    module.forward = lambda inputs: module.net(inputs.to(module.net.weight.dtype) / 8)
    fit_remembering(module, memory=InfoBatch(), precision=precision)
    assert len(module.steps) == EPOCHS * STEPS


def by_first_feature(batch):
    order = batch[0][:, 1].argsort()
    return [rows[order] for rows in batch]


class BeforeTransfer(Net):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return by_first_feature(batch)


class AfterTransfer(Net):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return by_first_feature(batch)


class BatchStart(Net):
    def on_train_batch_start(self, batch, batch_idx):
        for rows, ordered in zip(batch, by_first_feature(batch), strict=True):
            rows[:] = ordered


class Scaled(Net):
    """Keeps the order of rows, whose inputs are others."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * torch.tensor([1, 2, 2, 2, 2, 2]), batch[1]]


@pytest.mark.filterwarnings("ignore:You have overridden .*_batch_transfer:UserWarning")
@pytest.mark.parametrize("kind", [BeforeTransfer, AfterTransfer, BatchStart])
def test_a_hook_that_sorts_the_rows_of_a_batch_is_refused_at_the_first(kind):
    module = kind()
    with pytest.raises(ConfigError, match="on_after_batch_transfer changes the order of examples"):
        fit_remembering(module)
    assert not module.steps


@pytest.mark.filterwarnings("ignore:You have overridden .*_batch_transfer:UserWarning")
def test_a_hook_that_changes_what_rows_hold_is_not():
    module = Scaled()
    fit_remembering(module)
    assert module.per_epoch() == [STEPS] * EPOCHS


class Smoothed(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], label_smoothing=0.1)


@pytest.mark.parametrize("kind", [ClassWeights, Smoothed, Net])
def test_a_guard_takes_losses_that_are_minus_log_probabilities_alone(kind):
    guarded = Memory(keep=0.5, guard=NoiseGuard(3))
    if kind is Net:
        fit_remembering(kind(), memory=guarded)
        return
    with pytest.raises(ConfigError, match="is not minus the log probability of the label"):
        fit_remembering(kind(), memory=guarded)


class Counting(Net):
    """Counts its steps in a weight, as a moving average of weights changes it."""

    def __init__(self):
        super().__init__()
        self.count = torch.nn.Parameter(torch.zeros(()), requires_grad=False)

    def training_step(self, batch, batch_idx):
        self.count.data += 1
        return super().training_step(batch, batch_idx)


def test_a_step_that_changes_weights_is_not_run_again_to_check_its_losses():
    module = Counting()
    fit_remembering(module)
    assert module.count == EPOCHS * STEPS


class FromTheStart(Manual):
    """Accumulates by hand: forgets gradients, or steps, at the beginning of a step."""

    steps_first = False

    def training_step(self, batch, batch_idx):
        first, _ = self.optimizers()
        if batch_idx % 2 == 0:
            if self.steps_first:
                first.step()
            first.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]) / 2)
        if batch_idx % 2 and not self.steps_first:
            first.step()


def test_checks_of_a_step_by_hand_change_neither_gradients_nor_weights():
    module, other = FromTheStart(), Manual(every=2)
    fit_remembering(module)
    fit_remembering(other)
    assert torch.equal(weights_of(module), weights_of(other))
    stepping, plainly = FromTheStart(), FromTheStart()
    stepping.steps_first = plainly.steps_first = True
    fit_remembering(stepping)
    trainer_of().fit(plainly, plain(), validation())
    assert stepping.net.weight._version == plainly.net.weight._version


def test_memory_under_manual_optimization_is_that_under_automatic():
    manual, automatic = Manual(), Net()
    fit_remembering(manual)
    fit_remembering(automatic)
    assert manual.examples == automatic.examples
    assert torch.equal(weights_of(manual), weights_of(automatic))


def refused_modules():
    yield plain(), None, {}, "memory=None"
    yield DataLoader(Endless(), BATCH), Memory(), {}, "IterableDataset"
    yield plain(), Memory(), {"overfit_batches": 2}, "overfit_batches"
    yield (
        SelectiveLoader(plain(), Net(), F.cross_entropy, keep=0.5, schedule=AT_ONCE),
        None,
        {},
        "SelectiveCallback",
    )
    yield [plain()], Memory(), {}, "give a LightningDataModule"


@pytest.mark.parametrize("case", range(len(list(refused_modules()))))
def test_what_a_memory_excludes_is_refused_as_fit_starts(case):
    loader, memory, options, message = list(refused_modules())[case]
    module = Net()
    with pytest.raises(ConfigError, match=message):
        trainer_of(**options).fit(
            module, datamodule=SelectiveDataModule(loader, memory, val_dataloaders=validation())
        )
    assert module.steps == []


def test_steps_of_several_numbers_of_batches_say_no_share_of_a_training():
    trainer = trainer_of(GradientAccumulationScheduler({0: 2, 1: 4}), max_steps=9)
    selective = SelectiveDataModule(plain(), Memory(), val_dataloaders=validation())
    with pytest.raises(ConfigError, match="counts in shares of the training"):
        trainer.fit(Net(), datamodule=selective)


def test_a_memory_gives_loaders_to_a_training_alone():
    selective = remembering()
    with pytest.raises(ConfigError, match=r"call trainer\.fit first"):
        selective.train_dataloader()


def test_a_loader_wrapped_by_hand_trains_as_the_data_module_does():
    one, other = Net(), Net()
    fit_remembering(one)
    wrapped = SelectiveLoader(plain(), memory=Memory(keep=0.5), epochs=EPOCHS)
    torch.manual_seed(5)
    selective = SelectiveDataModule(wrapped, val_dataloaders=validation())
    trainer_of().fit(other, datamodule=selective)
    assert selective.loader is wrapped
    assert other.trainer.train_dataloader.batch_size == BATCH
    assert one.steps == other.steps
    assert torch.equal(weights_of(one), weights_of(other))


class Whole(LightningDataModule):
    def __init__(self, folder="here"):
        super().__init__()
        self.save_hyperparameters()
        self.done = []

    def prepare_data(self):
        self.done.append("prepare_data")

    def setup(self, stage):
        self.done.append((stage, self.trainer.world_size))

    def train_dataloader(self):
        return plain()

    def val_dataloader(self):
        self.done.append("val_dataloader")
        return validation()

    def test_dataloader(self):
        return validation()

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] * 1.0, batch[1]

    def teardown(self, stage):
        self.done.append(("teardown", stage))

    def state_dict(self):
        return {"own": 3}

    def load_state_dict(self, state):
        self.done.append(state)


class WithTest(Net):
    def test_step(self, batch, batch_idx):
        self.log("tested", F.cross_entropy(self(batch[0]), batch[1]))


def test_the_data_module_that_is_wrapped_does_all_that_it_did(tmp_path):
    inner, module = Whole(), WithTest()
    selective = SelectiveDataModule(inner, Memory(keep=0.5))
    trainer = trainer_of(saved_to=tmp_path)
    trainer.fit(module, datamodule=selective)
    done = ["prepare_data", ("fit", 1), "val_dataloader", ("teardown", "fit")]
    assert inner.done == done
    assert module.per_epoch() == [STEPS] * EPOCHS
    (found,) = trainer.test(module, datamodule=selective, verbose=False)
    assert "tested" in found
    other = Whole()
    again = SelectiveDataModule(other, Memory(keep=0.5))
    trainer_of().fit(WithTest(), datamodule=again, ckpt_path=tmp_path / "step=7.ckpt")
    assert {"own": 3} in other.done
    saved = torch.load(tmp_path / "step=7.ckpt")
    assert saved["datamodule_hyper_parameters"] == {"folder": "here"}


@pytest.mark.parametrize("remembers", [True, False])
def test_a_checkpoint_of_several_processes_is_evaluated_by_one(remembers, tmp_path):
    """Which Lightning advises, so that no example is evaluated twice."""

    def source():
        if not remembers:
            return plain(), validation()
        return (SelectiveDataModule(plain(), Memory(keep=0.5), val_dataloaders=validation()),)

    callbacks = [] if remembers else [SelectiveCallback(keep=1 / 2, schedule=AT_ONCE)]
    path, trained = tmp_path / "step=7.ckpt", source()
    trainer_of(*callbacks, saved_to=tmp_path).fit(WithTest(), *trained)
    saved = torch.load(path)
    own = "SelectiveDataModule" if remembers else "SelectiveCallback"
    (saved if remembers else saved["callbacks"])[own]["ranks"] *= 2
    torch.save(saved, path)
    trainer_of(*callbacks).validate(WithTest(), trained[-1], ckpt_path=path, verbose=False)
    assert not remembers or len(trained[0].state_dict()["ranks"]) == 1  # its own as before
    with pytest.raises(StateError, match="saved by 2 processes"):
        trainer_of(*callbacks).fit(WithTest(), *source(), ckpt_path=path)


def test_memory_resumes_between_epochs(tmp_path):
    whole, more = OneCycle(), {"save_top_k": -1, "filename": "{epoch}"}
    keep = ModelCheckpoint(tmp_path, **more, save_on_train_epoch_end=True)
    torch.manual_seed(5)
    trainer = trainer_of(keep, enable_checkpointing=True)
    memory = SelectiveDataModule(plain(), Memory(keep=0.5), val_dataloaders=validation())
    trainer.fit(whole, datamodule=memory)
    for epoch, done in ((0, STEPS), (1, 2 * STEPS)):
        resumed = OneCycle()
        fit_remembering(resumed, ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
        assert resumed.steps == whole.steps[done:]
        assert torch.equal(weights_of(resumed), weights_of(whole))


def test_a_state_of_another_number_of_processes_is_refused():
    callback, selective = (
        SelectiveCallback(keep=0.5, schedule=AT_ONCE),
        SelectiveDataModule(plain(), Memory()),
    )
    for part in (callback, selective):
        with pytest.raises(StateError, match="saved by 2 processes, and there are 1"):
            part.load_state_dict({"ranks": [{}, {}], "datamodule": {}})
