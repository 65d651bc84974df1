"""The faster of two methods, measured as training begins."""

from functools import partial

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    BASIC,
    TINY,
    lookup_model,
    padded,
    same,
    selection,
    trainer,
    weights_of,
)
from test_huggingface_single_pass import BranchingForSequenceClassification

import transformers
from siftback.frameworks import huggingface_refusals


@pytest.fixture(autouse=True)
def _briefly(monkeypatch):
    monkeypatch.setattr(huggingface_refusals, "MEASURED_SECONDS", 0.1)


def cross_entropy(outputs, labels, num_items_in_batch=None):
    return torch.nn.functional.cross_entropy(outputs.logits, labels)


def trained(folder, method, resume=None, *, kind="classifier", compute_loss_func=None, **settings):
    torch.manual_seed(0)
    ours = trainer(folder, kind, selection=selection(method), **settings)
    assert ours.method == method
    ours.data_collator = partial(padded, longest=12)
    ours.compute_loss_func = compute_loss_func
    ours.train(resume_from_checkpoint=resume)
    return ours


def lookup_trained(folder, method, resume=None, **settings):
    return trained(folder, method, resume, kind="language model", model=lookup_model(), **settings)


def test_a_training_is_that_of_the_method_it_took(tmp_path):
    auto = lookup_trained(tmp_path / "auto", "auto")
    assert auto.method in ("two_pass", "single_pass")
    given = lookup_trained(tmp_path / "given", auto.method)
    assert same(weights_of(auto), weights_of(given))
    assert auto.stats.kept == given.stats.kept > 0


def test_two_passes_are_taken_where_a_single_one_cannot_be_had(tmp_path):
    model = BranchingForSequenceClassification(transformers.BertConfig(**TINY, num_labels=3))
    untraced = trained(tmp_path, "auto", model=model, max_steps=2)
    assert untraced.method == "two_pass"
    own = trained(tmp_path, "auto", compute_loss_func=cross_entropy, max_steps=2)
    assert own.method == "two_pass"


def test_a_resumed_training_goes_on_with_the_method_of_its_checkpoint(tmp_path):
    saving = {**BASIC, "save_strategy": "steps", "save_steps": 5}
    whole = lookup_trained(tmp_path, "single_pass", **saving)
    again = lookup_trained(tmp_path, "auto", str(tmp_path / "checkpoint-5"), **saving)
    assert again.method == "single_pass"
    assert same(weights_of(again), weights_of(whole))
    assert again.stats.backwards == whole.stats.backwards > 0
