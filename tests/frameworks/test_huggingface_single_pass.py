"""The single pass in Hugging Face's Trainer."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    TINY,
    Lengths,
    Plain,
    padded,
    selection,
    sentences,
    trainer,
)

import transformers
from siftback import TopK, sequence_losses
from siftback.errors import TraceError


@pytest.mark.slow
def test_a_single_pass_is_the_mean_of_the_kept_rows(tmp_path):
    settings = {
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.0,
        "num_train_epochs": 2,
        "train_sampling_strategy": "sequential",
        "eval_strategy": "steps",
        "eval_steps": 2,
    }

    ours = trainer(
        tmp_path,
        "language model",
        32,
        selection={"method": "single_pass", "selector": TopK(keep=1 / 2)},
        **settings,
    )
    expected = copy.deepcopy(ours.model)
    ours.train()
    means = []
    for start in (0, 8):
        losses = sequence_losses(expected, padded(sentences(32, "language model")[start:][:8]))
        means.append(losses.topk(4).values.mean())
    loss = torch.stack(means).mean()
    loss.backward()
    for found, weight in zip(ours.gradients[0], expected.parameters(), strict=True):
        torch.testing.assert_close(found, weight.grad)
    assert ours.state.log_history[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert (ours.stats.forwards, ours.stats.backwards) == (64, 32)

    plain = trainer(tmp_path / "plain", "language model", 32, of=Plain, **settings)
    plain.train()
    assert Lengths(ours) == Lengths(plain)
    within = [entry["eval_loss"] for entry in ours.state.log_history if "eval_loss" in entry]
    assert ours.evaluate()["eval_loss"] == within[-1]


def test_a_single_pass_is_computed_and_checked_in_the_precision_of_training(tmp_path):
    single = selection("single_pass")
    ours = trainer(tmp_path, "classifier", selection=single, bf16=True, max_steps=1)
    dtypes = []
    linear = ours.model.bert.encoder.layer[0].intermediate.dense
    ours.train()
    linear.register_forward_hook(lambda module, given, output: dtypes.append(output.dtype))
    evaluated = ours.evaluate()["eval_loss"]
    assert set(dtypes) == {torch.bfloat16}
    assert 0 < ours.model_wrapped.gradient_check.largest < 0.02  # of rounding
    plain = trainer(tmp_path, "classifier", of=Plain, model=ours.model, bf16=True)
    assert plain.evaluate()["eval_loss"] == evaluated


class BranchingForSequenceClassification(transformers.BertForSequenceClassification):
    def forward(self, input_ids, attention_mask, labels=None):
        if float(input_ids.sum()) % 2:  # which a trace cannot follow
            attention_mask = torch.ones_like(attention_mask)
        return super().forward(input_ids, attention_mask, labels=labels)


def test_a_model_that_cannot_be_traced_is_refused_by_a_single_pass(tmp_path):
    model = BranchingForSequenceClassification(transformers.BertConfig(**TINY, num_labels=3))
    ours = trainer(tmp_path, "classifier", model=model, selection=selection("single_pass"))
    with pytest.raises(TraceError, match=r"cannot trace the model.*single_pass\.py"):
        ours.train()
