"""Selection inside Lightning, in its own `Trainer` and `Fabric`."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning_ranks import (
    BATCH,
    COUNT,
    EPOCHS,
    RATE,
    Net,
    OneCycle,
    Single,
    data,
    fit_remembering,
    fit_selecting,
    plain,
    trainer_of,
    validation,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric

from siftback import (
    EpochRule,
    Epochs,
    Fresh,
    InBatch,
    InfoBatch,
    Memory,
    Schedule,
    SelectiveLoader,
    Stale,
)
from siftback.errors import BatchError, ConfigError, LossError, StateError
from siftback.frameworks.lightning import SelectiveBackprop, SelectiveDataModule
from siftback.loading.seeding import Stream, generator_of
from siftback.loss_functions import per_example
from torchrun import found_by_ranks
from toys import AT_ONCE

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint"),
    pytest.mark.filterwarnings("ignore:.*set_vital.*deprecated"),  # by importing torchdata
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

STEPS = COUNT // BATCH
LAST = RATE / 25 / 1e4  # where OneCycleLR ends


def remembering():
    return SelectiveDataModule(plain(), memory=Memory(), val_dataloaders=validation())


def weights_of(module):
    return module.net.weight.detach().clone()


def seed_of(rank=0):
    return generator_of(0, rank, Stream.SELECTION).initial_seed()


# Selection within the step.


class Noted(OneCycle):
    """Also notes the precision, mode and rows of each forward."""

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        SEEN.append((logits.dtype, self.training, len(logits)))
        loss = F.cross_entropy(logits, batch[1])
        self.note(batch[0])
        return loss


SEEN = []


def test_exactly_k_rows_are_trained_on_as_a_loop_by_hand_does():
    module = Net()
    callback = SelectiveBackprop(keep=1 / 3, schedule=AT_ONCE)
    fit_selecting(callback, module, DataLoader(data(), BATCH))
    by_hand, in_batch, rows = Net(), InBatch(keep=1 / 3, seed=seed_of()), []
    optimizer = by_hand.configure_optimizers()
    for _ in range(EPOCHS):
        for inputs, targets in DataLoader(data(), BATCH):
            with torch.no_grad():
                losses = F.cross_entropy(by_hand(inputs), targets, reduction="none")
            positions = in_batch.select(losses).positions
            F.cross_entropy(by_hand(inputs[positions]), targets[positions]).backward()
            optimizer.step()
            optimizer.zero_grad()
            rows.append(inputs[positions, 0].int().tolist())
    assert {len(step) for step in rows} == {round(BATCH / 3)}
    assert module.examples == rows
    assert torch.equal(weights_of(module), weights_of(by_hand))
    stats = callback.stats
    assert (stats.seen, stats.kept, stats.scored) == (
        COUNT * EPOCHS,
        3 * STEPS * EPOCHS,
        stats.seen,
    )
    assert stats.backwards == stats.kept == sum(map(len, rows))


class Deep(Net):
    """Everything that a pass could disturb: dropout, batch normalisation, logs and metrics."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.front = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.3))
        self.mean = MeanMetric()
        self.calls, self.batches = 0, []

    def training_step(self, batch, batch_idx):
        self.calls += 1
        self.batches.append(batch_idx)
        self.mean.update(batch[0][:, 1])
        self.log("first", batch[0][:, 1].mean(), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log_dict({"second": 1.0}, on_step=False, on_epoch=True, reduce_fx="sum")
        return F.cross_entropy(self(self.front(batch[0])), batch[1])


def test_keeping_all_is_training_without_it_bit_for_bit():
    with_it, without = Deep(), Deep()
    for module in (with_it, without):
        module.net.load_state_dict(Net().net.state_dict())
    trainers = [fit_selecting(SelectiveBackprop(keep=1.0, schedule=AT_ONCE), with_it)]
    trainers.append(trainer_of())
    torch.manual_seed(5)
    trainers[1].fit(without, plain(), validation())
    assert with_it.calls == without.calls == STEPS * EPOCHS
    assert with_it.batches == without.batches
    for name, value in without.state_dict().items():
        assert torch.equal(with_it.state_dict()[name], value), name
    assert float(with_it.mean.compute()) == float(without.mean.compute())
    logged = [trainer.callback_metrics for trainer in trainers]
    assert {**logged[0]} == {**logged[1]}
    assert logged[0]["second"] == STEPS


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_grad_batches": 4},
        {"limit_train_batches": 0.5, "val_check_interval": 0.5},
        {"limit_train_batches": 5, "val_check_interval": 0.4, "accumulate_grad_batches": 2},
        {
            "max_epochs": -1,
            "max_steps": 11,
            "val_check_interval": 4,
            "check_val_every_n_epoch": None,
        },
    ],
    ids=str,
)
def test_steps_validations_and_rates_are_those_without_it(options):
    found = []
    for callbacks in ([SelectiveBackprop(keep=1 / 3, schedule=AT_ONCE)], []):
        module, trainer = OneCycle(), trainer_of(*callbacks, **options)
        trainer.fit(module, plain(), validation())
        counted = module.total, module.validations, module.totals
        found.append((trainer.global_step, *counted, module.rates))
    assert found[0] == found[1]
    steps, total, *_, rates = found[0]
    assert steps == total == len(rates)
    assert rates[-1] == pytest.approx(LAST)


def test_a_step_scores_under_the_autocast_of_training_and_in_eval_mode():
    SEEN.clear()
    trainer = fit_selecting(
        SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), Noted(), precision="bf16-mixed"
    )
    each = [(torch.bfloat16, False, BATCH), (torch.bfloat16, True, BATCH // 2)]
    assert each * STEPS * EPOCHS == SEEN
    assert trainer.global_step == STEPS * EPOCHS


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


def test_manual_optimization_trains_as_automatic_does():
    manual, automatic = Manual(), Net()
    trainer = fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), manual)
    fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), automatic)
    assert manual.examples == automatic.examples
    assert torch.equal(weights_of(manual), weights_of(automatic))
    assert trainer.global_step == STEPS * EPOCHS
    assert manual.other.requires_grad
    accumulated, by_trainer = Manual(every=2), Net()
    fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), accumulated)
    fit_selecting(
        SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), by_trainer, accumulate_grad_batches=2
    )
    assert torch.equal(weights_of(accumulated), weights_of(by_trainer))


class Nested(Net):
    def training_step(self, batch, batch_idx):
        assert len(batch["name"]) == len(batch["of"]["x"])
        self.names = [*getattr(self, "names", []), *batch["name"]]
        loss = nn.CrossEntropyLoss()(self(batch["of"]["x"]), batch["y"])
        self.note(batch["of"]["x"])
        return {"loss": loss, "more": None}


def test_batches_are_any_tree_whose_parts_have_a_row_per_example():
    rows = [
        {"of": {"x": x}, "y": y, "name": str(int(x[0]))}
        for x, y in zip(*data().tensors, strict=True)
    ]
    module = Nested()
    fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), module, DataLoader(rows, BATCH))
    assert module.names == [str(row) for step in module.examples for row in step]
    uneven = [{"of": {"x": x}, "y": y, "name": "ab"} for x, y in data()]
    loader = DataLoader(
        uneven, BATCH, collate_fn=lambda rows: {**rows[0], "of": {"x": rows[1]["of"]["x"]}}
    )
    with pytest.raises(BatchError, match="has no rows"):
        fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), Nested(), loader)


def test_a_schedule_says_when_and_annealing_how_much():
    module, callback = Net(), SelectiveBackprop(keep=1 / 2, schedule=Schedule(warmup=Epochs(1)))
    fit_selecting(callback, module)
    assert [len(rows) for rows in module.examples] == [BATCH] * STEPS + [BATCH // 2] * 2 * STEPS
    assert callback.stats.scored == callback.stats.considered == 2 * COUNT


class Popping(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch.pop("x")), batch.pop("y"))


def test_a_step_may_take_its_batch_apart():
    rows = [{"x": x, "y": y} for x, y in data()]
    module, other = Popping(), Net()
    fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), module, DataLoader(rows, BATCH))
    fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), other, DataLoader(data(), BATCH))
    assert torch.equal(weights_of(module), weights_of(other))


class Sequences(Net):
    """Of three positions each, some of them padding."""

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(*self.positions(batch))

    def positions(self, batch):
        logits = self(batch[0])[..., None] * torch.tensor([1.0, 2.0, 3.0])
        first = batch[1][:, None].expand(-1, 3)
        return logits, first.where(torch.tensor([True, True, False]), torch.tensor(-100))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def test_losses_of_sequences_are_those_of_per_example():
    memory, module, callback = (
        Memory(keep=0.5),
        Sequences(),
        SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE),
    )
    fit_remembering(module, memory=memory)
    losses = per_example(F.cross_entropy)(*module.positions(data().tensors)).detach()
    assert torch.allclose(memory.values[:, 0], losses)
    fit_selecting(callback, module)
    assert callback.stats.kept == EPOCHS * COUNT // 2


class Unlabelled(Sequences):
    """Every third example has no target."""

    def positions(self, batch):
        logits, targets = super().positions(batch)
        self.note(batch[0])
        return logits, targets.masked_fill(batch[0][:, :1] % 3 == 0, -100)


def test_examples_without_a_target_are_never_chosen():
    module, callback = Unlabelled(), SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE)
    fit_selecting(callback, module)
    examples = [example for step in module.examples for example in step]
    assert examples
    assert all(example % 3 for example in examples)
    with pytest.raises(LossError, match=r'is nan: .*give the loader on_nonfinite="keep" or "drop"'):
        fit_remembering(Unlabelled(), memory=Memory(keep=0.5))


class TwoLosses(Net):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.note(batch[0])
        return F.cross_entropy(logits, batch[1]) + F.mse_loss(logits, torch.zeros_like(logits))


class NoLoss(Net):
    def training_step(self, batch, batch_idx):
        return -self(batch[0]).log_softmax(1)[torch.arange(len(batch[1])), batch[1]].mean()


class Penalised(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1]) + self.net.weight.norm()


class OfTokens(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]).repeat(2, 1), batch[1].repeat(2))


class InPlace(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0].mul_(2)), batch[1])


class CatchesAll(Net):
    def training_step(self, batch, batch_idx):
        try:
            return F.cross_entropy(self(batch[0]), batch[1])
        except:  # noqa: E722
            return None


REFUSED = [
    (TwoLosses, ConfigError, r"calls 2 loss functions \(cross_entropy, mse_loss\).*losses=fn"),
    (NoLoss, ConfigError, "calls no loss function.*losses=fn"),
    (Penalised, ConfigError, "training_step returns .*cross_entropy in it .*losses=fn"),
    (OfTokens, LossError, r"losses of shape \[16\], and the batch 8 examples.*losses=fn"),
    (InPlace, ConfigError, "changes its batch in place before its loss.*losses=fn"),
    (CatchesAll, ConfigError, "catches every exception"),
]


@pytest.mark.parametrize(("kind", "error", "message"), REFUSED, ids=lambda case: str(case)[-20:])
def test_a_step_whose_losses_are_not_known_is_refused_before_it_trains(kind, error, message):
    module = kind()
    before = weights_of(module)
    with pytest.raises(error, match=message):
        fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), module)
    assert torch.equal(weights_of(module), before)
    assert "training_step" not in vars(module)


def of_cross_entropy(module, batch):
    return F.cross_entropy(module(batch[0]), batch[1], reduction="none")


def test_losses_of_the_user_s_own_are_taken_in_place_of_the_step_s():
    module, plain_one = TwoLosses(), Net()
    fit_selecting(SelectiveBackprop(keep=1 / 2, losses=of_cross_entropy, schedule=AT_ONCE), module)
    fit_selecting(
        SelectiveBackprop(keep=1 / 2, losses=of_cross_entropy, schedule=AT_ONCE), plain_one
    )
    assert module.examples[0] == plain_one.examples[0]
    assert {len(rows) for rows in module.examples} == {BATCH // 2}


class Weighing:
    """Keeps the first k rows, with weights 1, 2, 3, ...."""

    needs_scores, reweights, keep = True, True, 0.5

    def select(self, scores, generator, count=None):
        from siftback.selectors.selection import Selection

        return Selection(torch.arange(count), torch.arange(1.0, count + 1))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_weights_of_a_selection_are_applied_to_the_mean():
    module = Net()
    fit_selecting(
        SelectiveBackprop(selector=Weighing(), schedule=AT_ONCE), module, DataLoader(data(), BATCH)
    )
    by_hand, weights = Net(), torch.arange(1.0, BATCH // 2 + 1)
    optimizer = by_hand.configure_optimizers()
    for _ in range(EPOCHS):
        for inputs, targets in DataLoader(data(), BATCH):
            half = inputs[: len(weights)], targets[: len(weights)]
            losses = of_cross_entropy(by_hand, half)
            (losses * weights).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(weights_of(module), weights_of(by_hand))
    with pytest.raises(ConfigError, match=r"Weighing gives weights.*leave losses= out"):
        SelectiveBackprop(selector=Weighing(), losses=of_cross_entropy, schedule=AT_ONCE)


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


@pytest.mark.parametrize("kind", [Summed, Unreduced, ClassWeights])
def test_weights_that_cannot_be_applied_are_refused(kind):
    with pytest.raises(ConfigError, match="weights"):
        fit_selecting(SelectiveBackprop(selector=Weighing(), schedule=AT_ONCE), kind())


class Odd(SingleDeviceStrategy):
    pass


def test_what_a_callback_cannot_do_is_refused_as_fit_starts():
    with pytest.raises(ConfigError, match="not tried with Odd"):
        fit_selecting(SelectiveBackprop(keep=0.5, schedule=AT_ONCE), Net(), strategy=Odd("cpu"))
    both = trainer_of(SelectiveBackprop(keep=0.5, schedule=AT_ONCE))
    with pytest.raises(ConfigError, match="one of them"):
        both.fit(Net(), datamodule=remembering())
    selecting = SelectiveLoader(plain(), memory=Memory(), epochs=EPOCHS)
    with pytest.raises(ConfigError, match="one of them"):
        fit_selecting(SelectiveBackprop(keep=0.5, schedule=AT_ONCE), Net(), selecting)
    endless = Schedule(warmup=Epochs(1))
    with pytest.raises(ConfigError, match="number of batches of an epoch"):
        fit_selecting(
            SelectiveBackprop(keep=0.5, schedule=endless), Net(), DataLoader(Endless(), BATCH)
        )


class Endless(IterableDataset):
    def __iter__(self):
        return iter(data())


class Raising(Net):
    def on_train_batch_end(self, *args):
        raise RuntimeError("on purpose")


def test_the_module_and_the_trainer_are_put_back_after_an_error():
    module = Raising()
    with pytest.raises(RuntimeError, match="on purpose"):
        fit_selecting(SelectiveBackprop(keep=0.5, schedule=AT_ONCE), module)
    assert "training_step" not in vars(module)
    trainer, selective = trainer_of(), remembering()
    kind = type(trainer)
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.fit(module, datamodule=selective)
    assert "training_step" not in vars(module)
    assert type(trainer) is kind
    assert trainer.reload_dataloaders_every_n_epochs == 0


class Bare(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])


class CompiledPart(Bare):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(self.net, backend="eager")


class CompiledLoss(Bare):
    def __init__(self):
        super().__init__()
        self.loss = torch.compile(nn.CrossEntropyLoss(), backend="eager")

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]), batch[1])


@pytest.mark.parametrize("kind", [pytest.param("module", marks=pytest.mark.slow), "part", "loss"])
def test_compiled_code_trains_on_the_same_rows(kind):
    """Which rows those are, the weights tell."""
    torch._dynamo.reset()
    other, remembered = Bare(), Bare()
    fit_selecting(SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), other, max_epochs=1)
    fit_remembering(remembered, max_epochs=2)
    for fit, expected in (
        (
            lambda module: fit_selecting(
                SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE), module, max_epochs=1
            ),
            other,
        ),
        (lambda module: fit_remembering(module, max_epochs=2), remembered),
    ):
        module = {"part": CompiledPart, "loss": CompiledLoss}.get(kind, Bare)()
        fit(torch.compile(module, backend="eager") if kind == "module" else module)
        assert torch.allclose(weights_of(module), weights_of(expected))


# Resuming.


def stateful(**options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data(), BATCH, shuffle=True, **options)


@pytest.mark.parametrize("kind", [Net, OneCycle])
def test_selection_resumes_within_an_epoch_bit_for_bit(kind, tmp_path):
    pytest.importorskip("torchdata")
    whole, callback = kind(), SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE)
    fit_selecting(callback, whole, stateful(), saved_to=tmp_path)
    for step in (1, STEPS + 2, 3 * STEPS - 1):
        resumed, again = kind(), SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE)
        path = tmp_path / f"step={step}.ckpt"
        trainer = fit_selecting(again, resumed, stateful(), path)
        assert trainer.global_step == STEPS * EPOCHS
        assert resumed.steps == whole.steps[step:]
        assert torch.equal(weights_of(resumed), weights_of(whole))
        assert again.stats.kept == callback.stats.kept


@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        (Net, {}, [6, 3, 3]),
        (OneCycle, {"limit_train_batches": 4, "val_check_interval": 0.5}, [4, 3, 3]),
        (OneCycle, {"max_epochs": -1, "max_steps": 8}, [6, 2]),
    ],
)
def test_memory_resumes_anywhere_bit_for_bit_with_a_plain_loader(kind, options, steps, tmp_path):
    def fit(module, **more):
        memory = Memory(keep=0.5, warmup=Epochs(1))
        return fit_remembering(module, memory=memory, **options, **more)

    whole = kind()
    trainer, selective = fit(whole, saved_to=tmp_path)
    assert whole.per_epoch() == steps
    for step in range(1, trainer.global_step + 1):
        resumed = kind()
        other, again = fit(resumed, ckpt_path=tmp_path / f"step={step}.ckpt")
        assert other.global_step == trainer.global_step
        assert resumed.steps == whole.steps[step:]
        assert torch.equal(weights_of(resumed), weights_of(whole))
        assert again.stats.backwards == selective.stats.backwards


def test_memory_resumes_between_epochs(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    whole, more = OneCycle(), {"save_top_k": -1, "filename": "{epoch}"}
    keep = ModelCheckpoint(tmp_path, **more, save_on_train_epoch_end=True)
    torch.manual_seed(5)
    trainer = trainer_of(keep, enable_checkpointing=True)
    memory = SelectiveDataModule(plain(), Memory(keep=0.5), val_dataloaders=validation())
    trainer.fit(whole, datamodule=memory)
    for epoch, done in ((0, 6), (1, 9)):
        resumed = OneCycle()
        fit_remembering(resumed, ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
        assert resumed.steps == whole.steps[done:]
        assert torch.equal(weights_of(resumed), weights_of(whole))


def test_a_state_of_another_number_of_processes_is_refused():
    callback, selective = (
        SelectiveBackprop(keep=0.5, schedule=AT_ONCE),
        SelectiveDataModule(plain(), Memory()),
    )
    for part in (callback, selective):
        with pytest.raises(StateError, match="saved by 2 processes, and here are 1"):
            part.load_state_dict({"ranks": [{}, {}], "datamodule": {}})


# Memory.


def test_memory_s_steps_validations_and_rates_are_those_without_it():
    """Of a training without it that makes as many steps in each epoch."""
    for options in ({}, {"val_check_interval": 0.34}, {"accumulate_grad_batches": 2}):
        module, other = OneCycle(), OneCycle()
        trainer, _ = fit_remembering(module, memory=Memory(keep=0.5, warmup=Epochs(0)), **options)
        without = trainer_of(limit_train_batches=3, **options)
        without.fit(other, plain(), validation())
        assert module.per_epoch() == other.per_epoch() == [3, 3, 3]
        assert trainer.global_step == without.global_step == module.total == other.total
        assert module.validations == other.validations
        assert module.totals == other.totals
        assert module.rates == other.rates
        assert module.rates[-1] == pytest.approx(LAST)


class Bar(TQDMProgressBar):
    def __init__(self):
        super().__init__()
        self.totals = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.totals.append((self.train_progress_bar.n, self.train_progress_bar.total))
        super().on_train_epoch_end(trainer, pl_module)


def test_memory_s_epochs_of_different_lengths_are_counted_shown_and_validated():
    module, bar = OneCycle(), Bar()
    trainer = trainer_of(bar, enable_progress_bar=True, val_check_interval=0.5)
    selective = SelectiveDataModule(plain(), Memory(keep=0.5), val_dataloaders=validation())
    trainer.fit(module, datamodule=selective)
    assert module.per_epoch() == module.totals == [6, 3, 3]
    assert bar.totals == [(6, 6), (3, 3), (3, 3)]
    assert trainer.global_step == module.total == 12
    assert module.validations == 1 + 2 + 3 + 3  # sanity; every 3 of 6; every one of 3
    assert module.rates[-1] == pytest.approx(LAST)
    assert selective.stats.backwards == 12 * BATCH
    assert selective.stats.seen == EPOCHS * COUNT


def test_an_epoch_that_the_trainer_cuts_short_is_followed_by_the_next_one():
    module = OneCycle()
    trainer, _ = fit_remembering(module, memory=Memory(keep=1.0), limit_train_batches=0.5)
    assert module.per_epoch() == [3, 3, 3]
    assert trainer.global_step == module.total == 9
    by_epoch = examples_by_epoch({"steps": module.steps})
    assert len({tuple(rows) for rows in by_epoch.values()}) == 3
    cut = OneCycle()
    trainer, _ = fit_remembering(cut, limit_train_batches=4)
    assert cut.per_epoch() == [4, 3, 3]
    assert trainer.global_step == cut.total == 10


class Still(Net):
    """Learns nothing, so that the loss of each example stays what it is."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


class Recording(Still):
    """Records losses itself, and would record those of validation too."""

    def training_step(self, batch, batch_idx):
        losses = F.cross_entropy(self(batch[0]), batch[1], reduction="none")
        return self.trainer.train_dataloader.loss(losses)

    def validation_step(self, batch, batch_idx):
        losses = F.cross_entropy(self(batch[0]), batch[1] * 0, reduction="none") + 7
        self.log("loss", self.trainer.datamodule.loss(losses))


@pytest.mark.parametrize("kind", [Still, Recording])
def test_the_losses_recorded_are_those_of_the_examples_trained_on(kind):
    memory, module = Memory(keep=0.5), kind()
    fit_remembering(module, memory=memory)
    inputs, targets = data().tensors
    losses = F.cross_entropy(module(inputs), targets, reduction="none").detach()
    assert torch.allclose(memory.values[:, 0], losses)


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
    fit_remembering(module, loader=DataLoader(data(), BATCH), memory=rule, max_epochs=1)
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


@pytest.mark.parametrize("kind", [TwoLosses, NoLoss, Penalised, OfTokens])
def test_a_step_whose_losses_cannot_be_recorded_is_refused(kind):
    with pytest.raises((ConfigError, LossError), match=r"record|datamodule\.loss"):
        fit_remembering(kind())


def test_memory_under_manual_optimization_is_that_under_automatic():
    manual, automatic = Manual(), Net()
    fit_remembering(manual)
    fit_remembering(automatic)
    assert manual.examples == automatic.examples
    assert torch.equal(weights_of(manual), weights_of(automatic))


class Lists(LightningDataModule):
    def val_dataloader(self):
        return validation()

    def train_dataloader(self):
        return [plain(), plain()]


def refused_modules():
    yield plain(), Stale(0.5, every=2, warmup=Epochs(0)), {}, "scoring passes"
    yield plain(), InfoBatch(), {}, "Lightning reads a batch ahead.*InfoBatch"
    yield Lists(), Memory(), {}, "returned a list"
    yield plain(), None, {}, "memory=None"
    yield DataLoader(Endless(), BATCH), Memory(), {}, "IterableDataset"
    yield plain(), Memory(), {"overfit_batches": 2}, "overfit_batches"
    yield plain(), Memory(), {"reload_dataloaders_every_n_epochs": 1}, "leave them out"
    yield plain(), Memory(keep=0.5), {"val_check_interval": 5}, "shortest epoch has 3"
    yield plain(), Memory(keep=0.5), {"limit_train_batches": 0.2}, "no batch of the shortest"
    yield (
        SelectiveLoader(plain(), Net(), F.cross_entropy, keep=0.5, schedule=AT_ONCE),
        None,
        {},
        "SelectiveBackprop",
    )
    yield [plain()], Memory(), {}, "give a LightningDataModule"


@pytest.mark.parametrize("case", range(len(list(refused_modules()))))
def test_what_a_memory_excludes_is_refused_as_fit_starts(case):
    loader, memory, options, message = list(refused_modules())[case]
    module, also = Net(), None if isinstance(loader, Lists) else validation()
    with pytest.raises(ConfigError, match=message):
        trainer_of(**options).fit(
            module, datamodule=SelectiveDataModule(loader, memory, val_dataloaders=also)
        )
    assert module.steps == []


def test_a_memory_is_of_one_training():
    selective = remembering()
    with pytest.raises(ConfigError, match=r"call trainer\.fit first"):
        selective.train_dataloader()
    trainer_of(max_epochs=1).fit(Net(), datamodule=selective)
    with pytest.raises(ConfigError, match="make a new one, with a new memory"):
        trainer_of().fit(Net(), datamodule=selective)


def test_a_loader_wrapped_by_hand_trains_as_the_data_module_does():
    one, other = Net(), Net()
    fit_remembering(one)
    wrapped = SelectiveLoader(plain(), memory=Memory(keep=0.5), epochs=EPOCHS)
    torch.manual_seed(5)
    selective = SelectiveDataModule(wrapped, val_dataloaders=validation())
    trainer_of().fit(other, datamodule=selective)
    assert selective.loader is wrapped
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
    assert module.per_epoch() == [6, 3, 3]
    (found,) = trainer.test(module, datamodule=selective, verbose=False)
    assert "tested" in found
    other = Whole()
    again = SelectiveDataModule(other, Memory(keep=0.5))
    trainer_of().fit(WithTest(), datamodule=again, ckpt_path=tmp_path / "step=7.ckpt")
    assert {"own": 3} in other.done
    saved = torch.load(tmp_path / "step=7.ckpt")
    assert saved["datamodule_hyper_parameters"] == {"folder": "here"}


# Several processes.


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both processes found, by rank, and where they saved checkpoints."""
    pytest.importorskip("torchdata")
    out = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("lightning_ranks.py")
    return out, found_by_ranks(script, out, timeout=180)


def examples_by_epoch(found):
    epochs = {epoch: [] for epoch, _ in found["steps"]}
    for epoch, rows in found["steps"]:
        epochs[epoch].extend(rows)
    return epochs


def assert_shared(one, other, at_most):
    """Disjoint examples, equally many, and equal weights in the end."""
    assert torch.equal(one["weights"], other["weights"])
    first, second = examples_by_epoch(one), examples_by_epoch(other)
    assert first.keys() == second.keys()
    for epoch, rows in first.items():
        both = [*rows, *second[epoch]]
        assert len(rows) == len(second[epoch])
        assert len(set(both)) == len(both) <= at_most[epoch]


@pytest.mark.distributed
def test_two_processes_train_a_module_around_a_single_pass_as_one(ranks):
    _, (one, other) = ranks
    one, other = one["single pass"], other["single pass"]
    assert_shared(one, other, [COUNT // 2] * EPOCHS)
    assert all(len(rows) == BATCH // 2 for found in (one, other) for _, rows in found["steps"])
    # The same rows, one batch of both processes at a time.
    model = Single()
    optimizer = model.configure_optimizers()
    inputs, targets = data().tensors
    scaled = inputs * torch.tensor([0.02, 1, 1, 1, 1, 1])
    for (_, mine), (_, others) in zip(one["steps"], other["steps"], strict=True):
        rows = torch.tensor(mine + others)
        F.cross_entropy(model.net(scaled[rows]), targets[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(one["weights"], model.net.weight.detach())
    assert one["difference"] < 1e-5


@pytest.mark.distributed
@pytest.mark.parametrize("form", ["selecting", "remembering"])
def test_two_processes_share_the_data_and_end_with_equal_weights(ranks, form):
    _, (one, other) = ranks
    one, other = one[form, "whole"], other[form, "whole"]
    half, each = COUNT // 2, EPOCHS * COUNT // 2
    assert_shared(one, other, [half] * 3 if form == "selecting" else [COUNT, half, half])
    for found in (one, other):
        steps, total, validations = found["counts"]
        assert steps == total == len(found["rates"]) == (9 if form == "selecting" else 7)
        assert validations == 1 + EPOCHS
        assert found["rates"][-1] == pytest.approx(LAST)
        seen, _, backwards = found["stats"]
        assert seen == each
        assert backwards == sum(len(rows) for _, rows in found["steps"])


@pytest.mark.distributed
@pytest.mark.parametrize("form", ["selecting", "remembering"])
def test_two_processes_resume_within_an_epoch_bit_for_bit(ranks, form):
    for found in ranks[1]:
        whole, resumed = found[form, "whole"], found[form, "resumed"]
        assert resumed["steps"] == whole["steps"][4:]
        assert torch.equal(resumed["weights"], whole["weights"])
        assert resumed["stats"] == whole["stats"]


@pytest.mark.distributed
def test_each_process_has_random_numbers_and_a_state_of_its_own(ranks):
    out, _ = ranks
    callbacks = torch.load(out / "selecting" / "step=4.ckpt")["callbacks"]
    (state,) = (state for name, state in callbacks.items() if "Selective" in name)
    one, other = (rank["in_batch"]["generator"] for rank in state["ranks"])
    assert not torch.equal(one, other)
    saved = torch.load(out / "remembering" / "step=4.ckpt")["SelectiveDataModule"]["ranks"]
    assert [state["settings"]["rank"] for state in saved] == [0, 1]
    callback = SelectiveBackprop(keep=0.5, schedule=AT_ONCE)
    with pytest.raises(StateError, match="saved by 2 processes"):
        callback.load_state_dict(state)


# Fabric.


@pytest.mark.distributed
def test_fabric_s_processes_share_a_memory_s_data(ranks):
    _, (one, other) = ranks
    assert_shared(one["fabric"], other["fabric"], [COUNT, COUNT, COUNT])


@pytest.mark.distributed
def test_fabric_loaders_that_would_be_shared_wrongly_are_refused(ranks):
    for rank, found in enumerate(ranks[1]):
        early, handed, wrapped, *states = found["fabric"]["refused"]
        assert early.startswith("ConfigError: the sampler was made when")
        assert handed.startswith("TypeError: Only PyTorch DataLoader")
        assert wrapped.startswith("ConfigError: Memory needs the index of each example")
        assert [state.startswith("StateError") for state in states] == [True] * rank


def test_fabric_selects_in_a_loop_under_its_precision():
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    net, seen, rows_of = Net(), [], []
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), RATE))
    net.net.register_forward_hook(lambda part, _, out: seen.append((part.training, out.dtype)))
    loader, in_batch = fabric.setup_dataloaders(plain()), InBatch(keep=1 / 2)
    for batch in loader:
        with fabric.autocast():
            rows, _ = in_batch.select(Fresh().score(of_cross_entropy, model, batch, None))
            loss = of_cross_entropy(model, [part[rows] for part in batch]).mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        rows_of.append(len(rows))
    assert rows_of == [BATCH // 2] * STEPS
    assert seen == [(False, torch.bfloat16), (True, torch.bfloat16)] * STEPS


# Real data.


def mnist(count):
    """Digits of the real set, as many of training and half as many of testing."""
    data = pytest.importorskip("siftback.lab.data.datasets")
    if "SIFTBACK_DATA" not in os.environ:
        pytest.skip("needs the real sets in SIFTBACK_DATA")
    digits = data.limit(data.load("mnist"), count)
    train = digits.train_images.float() / 255, digits.train_labels
    test = digits.test_images[: count // 2].float() / 255, digits.test_labels[: count // 2]
    return TensorDataset(*train), test


class Digits(Net):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, inputs):
        return self.net(inputs)

    def note(self, inputs):
        pass

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["selecting", "remembering"])
def test_digits_are_learned(form):
    train, (images, labels) = mnist(2000)
    module, loader = Digits(), DataLoader(train, 32, shuffle=True)
    trainer = trainer_of(
        *([SelectiveBackprop(keep=1 / 2, schedule=AT_ONCE)] if form == "selecting" else [])
    )
    if form == "selecting":
        trainer.fit(module, loader, DataLoader(train, 500))
    else:
        also = DataLoader(train, 500)
        trainer.fit(
            module, datamodule=SelectiveDataModule(loader, Memory(keep=0.6), val_dataloaders=also)
        )
    assert float((module(images).argmax(1) == labels).float().mean()) > 0.85


def saved(backwards, forwards):
    """What the example says of 300 examples in four epochs."""
    return f"{backwards} backwards and {forwards} forwards; plain: 1200 of each"


@pytest.fixture
def example():
    if "SIFTBACK_DATA" not in os.environ:
        pytest.skip("needs the real sets in SIFTBACK_DATA")
    return Path(__file__).parents[2] / "examples" / "lightning_cifar10.py"


@pytest.mark.slow
def test_the_example_trains_and_says_what_it_saved(example, tmp_path):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60
    done = subprocess.run(
        [sys.executable, example, "--examples", "300", "--epochs", "4"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    # Memory leaves examples out of the epochs after the first 15% of training: of all but one.
    assert saved(backwards=750, forwards=750) in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_example_selects_within_the_step_too(example, capsys):
    main = runpy.run_path(str(example))["main"]
    main(method="in_step", keep=0.5, examples=300, epochs=4)
    assert saved(backwards=750, forwards=1650) in capsys.readouterr().out
