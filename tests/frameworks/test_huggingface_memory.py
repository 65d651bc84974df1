"""Memory in Hugging Face's Trainer: what is read, drawn and remembered."""

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    MODELS,
    Lengths,
    Plain,
    epochs_of,
    padded,
    same,
    sentences,
    trainer,
    weights_of,
)

from siftback import Epochs, InfoBatch, Memory, sequence_losses


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
    first, second = epochs_of(ours, [6, 6])
    assert sorted(first) == list(range(42))
    assert len(second) == 42
    for drawn in (second[:21], second[21:]):  # two passes
        assert len(set(drawn)) == 21
    assert ours.stats.seen == 126
    assert ours.stats.unread == 42
    assert (ours.stats.considered, ours.stats.kept) == (84, 42)
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
    assert len(seen) == 4  # two passes in each of two epochs
    for (known, drawn), rows in zip(seen, epochs_of(ours, [6, 3, 3, 3, 3])[1:], strict=True):
        assert not known.isnan().any()
        assert sorted(rows) == drawn.nonzero().squeeze(1).tolist()


RULES = {
    "adaptive": lambda: Memory(warmup=Epochs(1)),
    "fixed": lambda: Memory(keep=0.3, warmup=Epochs(1)),
    "weights": lambda: InfoBatch(0.7, 1.0),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_the_steps_of_a_plain_trainer_and_resumes_at_each(rule, workers, tmp_path):
    settings = {
        "num_train_epochs": 3,
        "save_strategy": "steps",
        "save_steps": 1,
        "dataloader_num_workers": workers,
    }

    def fresh():
        selection = {"memory": RULES[rule]()}
        return trainer(tmp_path / "ours", "classifier", 44, selection=selection, **settings)

    whole = fresh()
    whole.train()
    plain = trainer(tmp_path / "plain", "classifier", 44, of=Plain, **settings)
    plain.train()
    assert Lengths(whole) == Lengths(plain)
    assert [len(batch) for batch in whole.batches] == [len(batch) for batch in plain.batches]
    assert whole.stats.unread > 0
    for stop in range(6, 18, 3 if workers else 1):
        again = fresh()
        again.train(resume_from_checkpoint=str(tmp_path / "ours" / f"checkpoint-{stop}"))
        assert again.batches == whole.batches[stop:]
        assert same(weights_of(again), weights_of(whole))
        assert again.stats.seen == whole.stats.seen
