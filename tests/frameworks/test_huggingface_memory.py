"""Memory in Hugging Face's Trainer: what is read, drawn and remembered."""

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    MODELS,
    epochs_of,
    padded,
    sentences,
    trainer,
)

from siftback import Epochs, Memory, sequence_losses


@pytest.mark.parametrize("kind", MODELS)
def test_memory_reads_each_example_once_or_as_drawn_and_remembers_its_loss(kind, tmp_path):
    rule = Memory(keep=0.5, warmup=Epochs(1))
    ours = trainer(tmp_path, kind, 42, selection={"memory": rule})
    own = []  # the losses of each training batch, computed one example at a time
    inner = ours.compute_loss

    def computing(model, inputs, *args, **kwargs):
        if torch.is_grad_enabled() and kind == "language model":
            with torch.no_grad():
                rows = inputs["input_ids"][:, 0] - 1
                each = [padded([sentences(42, kind)[row]]) for row in rows]
                own.append((rows, torch.cat([sequence_losses(model, one) for one in each])))
        return inner(model, inputs, *args, **kwargs)

    ours.compute_loss = computing
    ours.train()
    first, second = epochs_of(ours, [6, 3])
    assert sorted(first) == list(range(42))
    assert len(second) == len(set(second)) == 21
    assert ours.stats.seen == 84
    assert ours.stats.unread == 21
    assert (ours.stats.considered, ours.stats.kept) == (42, 21)
    if kind == "language model":
        expected = torch.full((42,), torch.nan)
        for rows, losses in own:
            expected[rows] = losses
        torch.testing.assert_close(rule.values[:, 0], expected)
    assert ours.state.epoch == 2


def test_memory_draws_by_what_was_remembered(tmp_path):
    seen = []

    class Spying(Memory):
        def draw(self, epoch, generator):
            seen.append((self.values[:, 0].clone(), super().draw(epoch, generator)))
            return seen[-1][1]

    rule = Spying(keep=0.5, warmup=Epochs(1))
    ours = trainer(tmp_path, "classifier", selection={"memory": rule}, num_train_epochs=3)
    ours.train()
    for (known, drawn), rows in zip(seen, epochs_of(ours, [6, 3, 3])[1:], strict=True):
        assert not known.isnan().any()
        assert sorted(rows) == drawn.nonzero().squeeze(1).tolist()
