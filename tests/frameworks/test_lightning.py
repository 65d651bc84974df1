"""Selection within the step, by a callback of Lightning's own `Trainer`."""

import gc
import weakref

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

import pytorch_lightning
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning_parts import (
    EXPECTED_WARNINGS,
    STEPS,
    Alike,
    ClassWeights,
    Manual,
    NoLoss,
    OfOutputs,
    OfTokens,
    Reversed,
    Sorted,
    Summed,
    TwoLosses,
    Unreduced,
    of_cross_entropy,
    remembering,
    seed_of,
    weights_of,
)
from lightning_ranks import (
    BATCH,
    COUNT,
    EPOCHS,
    RATE,
    Net,
    OneCycle,
    data,
    fit_remembering,
    fit_selecting,
    plain,
    trainer_of,
    validation,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from siftback import Epochs, InBatch, Memory, Schedule, SelectiveLoader, Share
from siftback.errors import BatchError, ConfigError, LossError
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule
from siftback.losses.per_example import per_example
from toys import AT_ONCE

pytestmark = EXPECTED_WARNINGS


class Noted(OneCycle):
    """Also notes the precision, mode and rows of each forward."""

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        SEEN.append((logits.dtype, self.training, len(logits)))
        loss = F.cross_entropy(logits, batch[1])
        self.note(batch[0])
        return loss


SEEN = []


def half():
    return SelectiveCallback(keep=1 / 2, schedule=AT_ONCE)


def test_exactly_k_rows_are_trained_on_as_a_loop_by_hand_does():
    module = Net()
    callback = SelectiveCallback(keep=1 / 3, schedule=AT_ONCE)
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
    trainers = [fit_selecting(SelectiveCallback(keep=1.0, schedule=AT_ONCE), with_it)]
    trainers.append(trainer_of())
    torch.manual_seed(5)
    trainers[1].fit(without, plain(), validation())
    assert with_it.calls == without.calls == STEPS * EPOCHS
    assert with_it.batches == without.batches
    for name, value in without.state_dict().items():
        assert torch.equal(with_it.state_dict()[name], value), name
    assert float(with_it.mean.compute()) == float(without.mean.compute())
    logged = [trainer.callback_metrics for trainer in trainers]
    own = {name: value for name, value in logged[0].items() if not name.startswith("sift/")}
    assert own == {**logged[1]}
    assert logged[0]["second"] == STEPS


def test_a_step_scores_under_the_autocast_of_training_and_in_eval_mode():
    SEEN.clear()
    trainer = fit_selecting(half(), Noted(), precision="bf16-mixed")
    each = [(torch.bfloat16, False, BATCH), (torch.bfloat16, True, BATCH // 2)]
    order = [(torch.bfloat16, False, BATCH // 2)] * 2  # of the first step's rows
    assert each + order + each * (STEPS * EPOCHS - 1) == SEEN
    assert trainer.global_step == STEPS * EPOCHS


def test_manual_optimization_trains_as_automatic_does():
    manual, automatic = Manual(), Net()
    trainer = fit_selecting(half(), manual)
    fit_selecting(half(), automatic)
    assert manual.examples == automatic.examples
    assert torch.equal(weights_of(manual), weights_of(automatic))
    assert trainer.global_step == STEPS * EPOCHS
    assert manual.other.requires_grad
    accumulated, by_trainer = Manual(every=2), Net()
    fit_selecting(half(), accumulated)
    fit_selecting(half(), by_trainer, accumulate_grad_batches=2)
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
    fit_selecting(half(), module, DataLoader(rows, BATCH))
    assert module.names == [str(row) for step in module.examples for row in step]
    uneven = [{"of": {"x": x}, "y": y, "name": "ab"} for x, y in data()]
    loader = DataLoader(
        uneven, BATCH, collate_fn=lambda rows: {**rows[0], "of": {"x": rows[1]["of"]["x"]}}
    )
    with pytest.raises(BatchError, match=r"batch.*has no rows"):
        fit_selecting(half(), Nested(), loader)


def test_a_schedule_says_when_and_annealing_how_much():
    module, callback = Net(), SelectiveCallback(keep=1 / 2, schedule=Schedule(warmup=Epochs(1)))
    fit_selecting(callback, module)
    assert [len(rows) for rows in module.examples] == [BATCH] * STEPS + [BATCH // 2] * 2 * STEPS
    assert callback.stats.scored == callback.stats.considered == 2 * COUNT


class Popping(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch.pop("x")), batch.pop("y"))


def test_a_step_may_take_its_batch_apart():
    rows = [{"x": x, "y": y} for x, y in data()]
    module, other = Popping(), Net()
    fit_selecting(half(), module, DataLoader(rows, BATCH))
    fit_selecting(half(), other, DataLoader(data(), BATCH))
    assert torch.equal(weights_of(module), weights_of(other))


class Sequences(Net):
    """Of three positions each, some of them padding."""

    reduction = "mean"

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(*self.positions(batch), reduction=self.reduction)

    def positions(self, batch):
        logits = self(batch[0])[..., None] * torch.tensor([1.0, 2.0, 3.0])
        first = batch[1][:, None].expand(-1, 3)
        return logits, first.where(torch.tensor([True, True, False]), torch.tensor(-100))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_sequences_are_those_of_per_example(reduction):
    memory, module, callback = Memory(keep=0.5), Sequences(), half()
    module.reduction = reduction
    fit_remembering(module, memory=memory)
    loss_fn = per_example(nn.CrossEntropyLoss(reduction=reduction))
    losses = loss_fn(*module.positions(data().tensors)).detach()
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
    module, callback = Unlabelled(), half()
    fit_selecting(callback, module)
    examples = [example for step in module.examples for example in step]
    assert examples
    assert all(example % 3 for example in examples)
    with pytest.raises(LossError, match=r'is nan: .*on_nonfinite="keep" or "drop"'):
        fit_remembering(Unlabelled(), memory=Memory(keep=0.5))


class Images(Net):
    """Images of several sizes in lists, as those of detection."""

    def training_step(self, batch, batch_idx):
        images, targets = batch
        logits = self(torch.stack([image.mean((1, 2)).repeat(2) for image in images]))
        return F.cross_entropy(logits, torch.stack([target["label"] for target in targets]))


@pytest.mark.parametrize("count", [18, 19])  # whose last batch has as many as an image has channels
def test_lists_of_images_are_told_from_their_channels_by_the_first_batch(count):
    rows = [(torch.randn(3, 4 + n % 5, 6), {"label": torch.tensor(n % 3)}) for n in range(count)]
    callback = SelectiveCallback(keep=0.5)
    loader = DataLoader(rows, BATCH, collate_fn=lambda rows: tuple(zip(*rows, strict=True)))
    fit_selecting(callback, Images(), loader)
    assert callback.stats.kept == 2 * (4 + 4 + max(2, count // 2 - 8))


def test_a_checkpoint_of_the_last_batch_of_an_epoch_loses_no_epoch(tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loaders = (stateful.StatefulDataLoader(data(), BATCH, shuffle=True) for _ in range(2))
    fit_selecting(half(), OneCycle(), next(loaders), saved_to=tmp_path, every=STEPS)
    module, path = OneCycle(), tmp_path / f"step={2 * STEPS}.ckpt"
    fit_selecting(half(), module, next(loaders), ckpt_path=path)
    assert [epoch for epoch, _ in module.steps] == [2] * STEPS


class Masked(Net):
    def training_step(self, batch, batch_idx):
        mask = torch.ones(len(batch[1]), 3)
        self.masks = [*getattr(self, "masks", []), weakref.ref(mask)]
        targets = F.one_hot(batch[1], 3).float()
        return F.binary_cross_entropy_with_logits(self(batch[0]), targets, weight=mask)


def test_what_a_step_gives_its_loss_function_is_not_kept():
    module = Masked()
    fit_selecting(half(), module)
    gc.collect()
    assert not any(mask() is not None for mask in module.masks)


class InPlace(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0].mul_(2)), batch[1])


class MovingAverage(Net):
    """Changes the weights of a part without gradients, and leaves no trace of it."""

    def __init__(self):
        super().__init__()
        self.average = nn.Linear(6, 3).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        self.average.weight.data.mul_(0.9).add_(self.net.weight.data, alpha=0.1)
        return super().training_step(batch, batch_idx)


class CatchesAll(Net):
    def training_step(self, batch, batch_idx):
        try:
            return F.cross_entropy(self(batch[0]), batch[1])
        except:  # noqa: E722
            return None


REFUSED = [
    (TwoLosses, ConfigError, r"calls 2 loss functions \(cross_entropy, mse_loss\).*losses=fn"),
    (NoLoss, ConfigError, "calls no loss function.*losses=fn"),
    (OfOutputs, ConfigError, "training_step trains on .*cross_entropy in it .*losses=fn"),
    (OfTokens, LossError, r"losses of shape \[16\], and the batch 8 examples.*losses=fn"),
    (Sorted, ConfigError, "gives cross_entropy its examples in another order.*losses=fn"),
    (Reversed, ConfigError, "gives cross_entropy its examples in another order.*losses=fn"),
    (InPlace, ConfigError, "changes its batch in place, or weights without gradients.*losses=fn"),
    (MovingAverage, ConfigError, "changes its batch in place, or weights without gradients"),
    (CatchesAll, ConfigError, "catches every exception"),
]


@pytest.mark.parametrize(("kind", "error", "message"), REFUSED, ids=lambda case: str(case)[-20:])
def test_a_step_whose_losses_are_not_known_is_refused_before_it_trains(kind, error, message):
    module = kind()
    before = weights_of(module)
    with pytest.raises(error, match=message):
        fit_selecting(half(), module)
    assert torch.equal(weights_of(module), before)
    assert "training_step" not in vars(module)


class Keeping(Net):
    """Keeps counts in containers of its own."""

    def __init__(self):
        super().__init__()
        self.counts, self.rows = {"steps": 0}, []

    def training_step(self, batch, batch_idx):
        self.counts["steps"] += 1
        self.rows.append(len(batch[0]))
        return super().training_step(batch, batch_idx)


def test_what_a_step_notes_in_containers_before_its_loss_is_noted_once():
    module = Keeping()
    fit_selecting(half(), module)
    assert module.counts == {"steps": EPOCHS * STEPS}
    assert module.rows == [BATCH // 2] * EPOCHS * STEPS


@pytest.mark.parametrize("options", [{"max_steps": 9}, {"max_steps": 9, "max_epochs": -1}], ids=str)
def test_steps_by_hand_say_no_share_of_a_training(options):
    callback = SelectiveCallback(keep=1 / 2, schedule=Schedule(warmup=Share(0.5)))
    with pytest.raises(ConfigError, match="counts in shares of the training"):
        fit_selecting(callback, Manual(), **options)


def test_losses_of_the_user_s_own_are_taken_in_place_of_the_step_s():
    module, plain_one = TwoLosses(), Net()
    fit_selecting(SelectiveCallback(keep=1 / 2, losses=of_cross_entropy, schedule=AT_ONCE), module)
    fit_selecting(
        SelectiveCallback(keep=1 / 2, losses=of_cross_entropy, schedule=AT_ONCE), plain_one
    )
    assert module.examples[0] == plain_one.examples[0]
    assert {len(rows) for rows in module.examples} == {BATCH // 2}


def test_losses_of_the_user_s_own_may_replace_parts_of_their_batch():
    def replacing(module, batch):
        batch[0] = batch[0] / 2
        return of_cross_entropy(module, batch)

    def apart(module, batch):
        return of_cross_entropy(module, [batch[0] / 2, batch[1]])

    module, plain_one = Net(), Net()
    fit_selecting(SelectiveCallback(keep=1 / 2, losses=replacing), module)
    fit_selecting(SelectiveCallback(keep=1 / 2, losses=apart), plain_one)
    assert torch.equal(weights_of(module), weights_of(plain_one))


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
        SelectiveCallback(selector=Weighing(), schedule=AT_ONCE), module, DataLoader(data(), BATCH)
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
        SelectiveCallback(selector=Weighing(), losses=of_cross_entropy, schedule=AT_ONCE)


@pytest.mark.parametrize("kind", [Summed, Unreduced, ClassWeights])
def test_weights_that_cannot_be_applied_are_refused(kind):
    with pytest.raises(ConfigError, match="weights"):
        fit_selecting(SelectiveCallback(selector=Weighing(), schedule=AT_ONCE), kind())


def test_a_callback_beside_a_selective_loader_is_refused():
    selecting = SelectiveLoader(plain(), memory=Memory(0.55), epochs=EPOCHS)
    with pytest.raises(ConfigError, match="one of them"):
        fit_selecting(half(), Net(), selecting)


def test_a_validation_by_the_training_step_is_of_all_rows():
    module, callback = Alike(), half()
    fit_selecting(callback, module)
    assert set(module.validated) == {BATCH}
    assert callback.stats.seen == COUNT * EPOCHS
    assert {len(rows) for rows in module.examples} == {BATCH // 2}


class Closures(Net):
    """Its optimizer has each step run several times."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), RATE, max_iter=3)


def test_an_optimizer_that_runs_a_step_several_times_gets_the_same_rows():
    module, callback = Closures(), half()
    fit_selecting(callback, module)
    steps = [tuple(map(tuple, step)) for step in zip(*[iter(module.examples)] * 3, strict=True)]
    assert len(steps) == STEPS * EPOCHS
    assert all(len(set(step)) == 1 for step in steps)
    assert callback.stats.seen == COUNT * EPOCHS


def test_a_step_that_runs_several_times_is_one_of_the_warm_up():
    callback = SelectiveCallback(keep=1 / 2, schedule=Schedule(warmup=Epochs(1)))
    fit_selecting(callback, Closures())
    assert callback.stats.considered == COUNT * (EPOCHS - 1)


class Normed(Net):
    """Normalises inputs, the first of which are the numbers of their examples."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(self.norm(batch[0])), batch[1])


class NormedAndRecording(Normed):
    def training_step(self, batch, batch_idx):
        logits = self.net(self.norm(batch[0]))
        return self.trainer.datamodule.loss(F.cross_entropy(logits, batch[1], reduction="none"))


@pytest.mark.parametrize("form", ["callback", "memory", "memory of losses that a step records"])
def test_statistics_that_averaged_weights_get_at_the_end_are_of_all_examples(form):
    module = NormedAndRecording() if "records" in form else Normed()
    average = StochasticWeightAveraging(RATE, swa_epoch_start=1)
    if form == "callback":
        trainer_of(half(), average).fit(module, plain(), validation())
    else:
        memory = Memory(keep=0.25, warmup=Epochs(1))
        selective = SelectiveDataModule(plain(), memory, val_dataloaders=validation())
        trainer_of(average).fit(module, datamodule=selective)
        assert selective.stats.released == COUNT * EPOCHS
    torch.testing.assert_close(module.norm.running_mean, data().tensors[0].mean(0))


class OtherPackage(pytorch_lightning.LightningModule):
    def training_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        pass


def test_a_trainer_of_the_other_package_is_refused_by_its_name():
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "max_epochs": 1}
    trainer = pytorch_lightning.Trainer(**quiet, callbacks=[half()])
    with pytest.raises(ConfigError, match=r"pytorch_lightning.* of lightning\.pytorch"):
        trainer.fit(OtherPackage(), plain())
    trainer = pytorch_lightning.Trainer(**quiet)
    with pytest.raises(ConfigError, match=r"pytorch_lightning.* from lightning\.pytorch"):
        trainer.fit(OtherPackage(), datamodule=remembering())


class Raising(Net):
    def on_train_batch_end(self, *args):
        raise RuntimeError("on purpose")


def test_the_module_and_the_trainer_are_put_back_after_an_error():
    module = Raising()
    with pytest.raises(RuntimeError, match="on purpose"):
        fit_selecting(half(), module)
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
    fit_selecting(half(), other, max_epochs=1)
    fit_remembering(remembered, max_epochs=2)
    for fit, expected in (
        (
            lambda module: fit_selecting(half(), module, max_epochs=1),
            other,
        ),
        (lambda module: fit_remembering(module, max_epochs=2), remembered),
    ):
        module = {"part": CompiledPart, "loss": CompiledLoss}.get(kind, Bare)()
        fit(torch.compile(module, backend="eager") if kind == "module" else module)
        assert torch.allclose(weights_of(module), weights_of(expected))
