"""Adapters of PEFT are trained on what is selected, and nothing else is."""

import pytest
from hugging_face_models import MODELS, same, selection, trainer, weights_of

from siftback.errors import LossError

peft = pytest.importorskip("peft")
# PEFT asks models of transformers for what these call otherwise now.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")

KINDS = {
    "classifier": {"task_type": "SEQ_CLS", "target_modules": ["query", "value"]},
    "language model": {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"]},
}


def adapted(kind):
    model = MODELS[kind]()  # which seeds what is random of the adapters too
    return peft.get_peft_model(model, peft.LoraConfig(r=2, lora_dropout=0.1, **KINDS[kind]))


@pytest.mark.parametrize("method", ["memory", "two_pass", "single_pass"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(4)
def test_adapters_are_trained_and_gone_on_with_bit_for_bit(kind, method, tmp_path):
    ended = []
    for checkpoint in (None, tmp_path / "checkpoint-7"):
        ours = trainer(
            tmp_path, kind, model=adapted(kind), selection=selection(method),
            save_strategy="steps", save_steps=7,
        )  # fmt: skip
        before = weights_of(ours)
        ours.train(resume_from_checkpoint=checkpoint)
        for weight, first in zip(ours.model.parameters(), before, strict=True):
            assert weight.requires_grad is not weight.equal(first)
        ended.append((weights_of(ours), ours.state.global_step, ours.stats.backwards))
    (whole, *counts), (again, *same_counts) = ended
    assert same(whole, again)
    assert counts == same_counts
    assert ours.stats.backwards < ours.stats.seen


def test_learned_tokens_before_a_text_are_refused_as_labels_are_of_the_text(tmp_path):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(MODELS["language model"](), config)
    ours = trainer(tmp_path, "language model", model=model, selection=selection("memory"))
    with pytest.raises(LossError, match=r"logits of shape \[8, \d+, 100\] and labels of shape"):
        ours.train()
