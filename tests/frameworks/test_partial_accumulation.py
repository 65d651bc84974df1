"""Schedules in shares of a training that ends by steps, where an epoch ends with a smaller step."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Memory, Schedule, Share
from siftback.frameworks.step_selection import epochs_of_steps

FIRST_HALF = Schedule(warmup=Epochs(0), end=Share(0.5))
EXAMPLES, BATCH, ACCUMULATION = (
    48,
    8,
    4,
)  # 6 batches of an epoch, which are a step of 4 and one of 2


@pytest.mark.parametrize("batches", range(1, 14))
@pytest.mark.parametrize("accumulation", range(1, 6))
def test_epochs_of_steps_are_those_of_a_loop_that_counts(batches, accumulation):
    steps, expected = 0, {0: 0.0}
    for batch in range(1, 3 * batches + 1):
        of_epoch = (batch - 1) % batches + 1
        if of_epoch % accumulation == 0 or of_epoch == batches:
            steps += 1
            expected[steps] = batch / batches
    assert epochs_of_steps(steps, batches, accumulation) == 3
    for count, epochs in expected.items():
        # A smaller last step ends the epoch, and a training that it ends, there.
        assert epochs_of_steps(count, batches, accumulation) == pytest.approx(epochs)


@pytest.mark.parametrize("method", ["two_pass", "single_pass"])
def test_a_trainer_that_ends_by_steps_selects_in_its_first_half(tmp_path, method):
    models = pytest.importorskip("hugging_face_models")
    ends = {"max_steps": 4, "gradient_accumulation_steps": ACCUMULATION}
    selection = {"method": method, "keep": 1 / 2, "schedule": FIRST_HALF}
    data, model = "language model", models.lookup_model()
    trainer = models.trainer(tmp_path, data, EXAMPLES, model=model, selection=selection, **ends)
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.state.epoch == 2
    assert trainer.stats.backwards == EXAMPLES // 2 + EXAMPLES


def test_a_trainer_that_ends_by_steps_draws_in_its_first_half(tmp_path):
    models = pytest.importorskip("hugging_face_models")
    ends = {"max_steps": 6, "gradient_accumulation_steps": ACCUMULATION}  # three epochs
    rule = Memory(keep=1 / 2, warmup=Epochs(1), tail=Share(1 / 3))
    selection = {"memory": rule}
    trainer = models.trainer(tmp_path, "classifier", EXAMPLES, selection=selection, **ends)
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.stats.backwards == 3 * EXAMPLES
    assert trainer.stats.unread == EXAMPLES  # two passes over half, in the second epoch alone


@pytest.mark.parametrize("ends", [{"max_epochs": -1, "max_steps": 4}, {"max_steps": 4}], ids=str)
def test_a_lightning_trainer_that_ends_by_steps_selects_in_its_first_half(ends):
    lightning = pytest.importorskip("lightning.pytorch")
    from siftback.frameworks.lightning import SelectiveCallback

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 3)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    data = TensorDataset(torch.randn(EXAMPLES, 4), torch.randint(3, (EXAMPLES,)))
    selects = SelectiveCallback(keep=1 / 2, schedule=FIRST_HALF)
    trainer = lightning.Trainer(
        callbacks=[selects], accumulate_grad_batches=ACCUMULATION, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, **({"max_epochs": 9} | ends),
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(data, BATCH, shuffle=True))
    assert trainer.global_step == 4
    assert selects.stats.backwards == EXAMPLES // 2 + EXAMPLES
