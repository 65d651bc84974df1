"""Trainings of Lightning that are stopped and go on, in both forms of selection."""

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

import torch
from lightning_parts import EXPECTED_WARNINGS, STEPS, weights_of
from lightning_ranks import (
    BATCH,
    EPOCHS,
    Net,
    OneCycle,
    data,
    fit_remembering,
    fit_selecting,
    plain,
    trainer_of,
    validation,
)

from siftback import Epochs, InfoBatch, Memory
from siftback.errors import StateError
from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule
from toys import AT_ONCE

pytestmark = EXPECTED_WARNINGS


def stateful(**options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data(), BATCH, shuffle=True, **options)


@pytest.mark.parametrize("kind", [Net, OneCycle])
def test_selection_resumes_within_an_epoch_bit_for_bit(kind, tmp_path):
    pytest.importorskip("torchdata")
    whole, callback = kind(), SelectiveCallback(keep=1 / 2, schedule=AT_ONCE)
    fit_selecting(callback, whole, stateful(), saved_to=tmp_path)
    for step in (1, STEPS + 2, 3 * STEPS - 1):
        resumed, again = kind(), SelectiveCallback(keep=1 / 2, schedule=AT_ONCE)
        path = tmp_path / f"step={step}.ckpt"
        trainer = fit_selecting(again, resumed, stateful(), path)
        assert trainer.global_step == STEPS * EPOCHS
        assert resumed.steps == whole.steps[step:]
        assert torch.equal(weights_of(resumed), weights_of(whole))
        assert again.stats.kept == callback.stats.kept


@pytest.mark.parametrize(
    ("kind", "rule", "options", "steps"),
    [
        (Net, Memory, {}, [6, 6, 6]),
        (Net, lambda: Memory(keep=0.4), {}, [6, 6, 6]),  # passes end within batches
        (Net, lambda: InfoBatch(0.5), {}, [6, 6, 6]),
        (OneCycle, Memory, {"limit_train_batches": 4, "val_check_interval": 0.5}, [4, 4, 4]),
        (
            OneCycle,
            lambda: Memory(keep=0.5, warmup=Epochs(1)),
            {"max_epochs": -1, "max_steps": 11},
            [6, 5],
        ),
    ],
    ids=["adaptive", "fixed", "infobatch", "cut short", "by steps"],
)
def test_memory_resumes_anywhere_bit_for_bit_with_a_plain_loader(
    kind, rule, options, steps, tmp_path
):
    def fit(module, **more):
        return fit_remembering(module, memory=rule(), **options, **more)

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
