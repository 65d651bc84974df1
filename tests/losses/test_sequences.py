"""Losses per sequence and per token, compared with a loop over single tokens and with each model's
own loss.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from siftback import SelectiveLoader, SinglePass, sequence_losses, token_losses
from siftback.errors import BatchError, ConfigError, LossError
from siftback.losses.sequences import find_head, has_loss
from toys import AT_ONCE

transformers = pytest.importorskip("transformers")

BATCH, LENGTH, WORDS = 4, 7, 23
TINY = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "pad_token_id": 0,
}


def bert(kind, **settings):
    return getattr(transformers, kind)(transformers.BertConfig(**TINY, **settings))


def t5():
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def bart(kind, config="BartConfig"):
    sizes = {f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers",)}
    sizes |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 16 for side in ("encoder", "decoder")}
    sizes |= {"pad_token_id": 0, "decoder_start_token_id": 0}
    config = getattr(transformers, config)(vocab_size=WORDS, d_model=16, **sizes)
    return getattr(transformers, kind)(config)


def gpt2():
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))


# Of each model, whether its logits at a position are of the next token.
OF_TOKENS = {
    "llama": (llama, True),
    "gpt2": (gpt2, True),
    "bert-decoder": (partial(bert, "BertLMHeadModel", is_decoder=True), True),
    "masked": (partial(bert, "BertForMaskedLM"), False),
    "tagger": (partial(bert, "BertForTokenClassification", num_labels=WORDS), False),
    "t5": (t5, False),
    "bart": (partial(bart, "BartForConditionalGeneration"), False),
    "marian": (partial(bart, "MarianMTModel", "MarianConfig"), False),
}


def batch():
    """Sequences of different lengths, some of whose tokens have no label."""
    torch.manual_seed(1)
    ids = torch.randint(3, WORDS, (BATCH, LENGTH))
    labels, mask = ids.clone(), torch.ones_like(ids)
    for row, length in enumerate((7, 3, 5, 2)):
        ids[row, length:], mask[row, length:], labels[row, length:] = 0, 0, -100
    labels[0, 2] = labels[2, :2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def one_at_a_time(logits, labels, shift):
    """The loss of each token, by its definition."""
    losses = torch.zeros(labels.shape)
    valid = torch.zeros(labels.shape, dtype=torch.bool)
    for row in range(len(labels)):
        for place in range(labels.shape[1]):
            at = place - 1 if shift else place
            if at >= 0 and labels[row, place] != -100:
                losses[row, place] = -logits[row, at].log_softmax(0)[labels[row, place]]
                valid[row, place] = True
    return losses, valid


@pytest.mark.parametrize("name", OF_TOKENS)
def test_each_token_has_its_own_loss_and_together_they_are_the_model_s(name):
    make, shift = OF_TOKENS[name]
    torch.manual_seed(0)
    model, inputs = make().eval(), batch()
    with torch.no_grad():
        outputs = model(**inputs)
        losses, valid = token_losses(model, inputs)
        expected, expected_valid = one_at_a_time(outputs.logits, inputs["labels"], shift)
        assert torch.equal(valid, expected_valid)
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(losses.sum() / valid.sum(), outputs.loss)
        each = torch.stack([losses[row][valid[row]].mean() for row in range(BATCH)])
        torch.testing.assert_close(sequence_losses(model, inputs), each)
        torch.testing.assert_close((each * valid.sum(1)).sum() / valid.sum(), outputs.loss)


@pytest.mark.parametrize("name", ["llama", "masked", "tagger", "t5"])
def test_outputs_that_name_their_kind_are_enough(name):
    make, _ = OF_TOKENS[name]
    model, inputs = make().eval(), batch()
    with torch.no_grad():
        outputs = model(**inputs)
        for part, other in zip(
            token_losses(outputs, inputs), token_losses(model, inputs), strict=True
        ):
            torch.testing.assert_close(part, other)


@pytest.mark.parametrize("name", ["llama", "tagger"])
def test_padding_changes_no_sequence_s_loss(name):
    make, _ = OF_TOKENS[name]
    model, inputs = make().eval(), batch()
    longer = {
        "input_ids": nn.functional.pad(inputs["input_ids"], (0, 5)),
        "attention_mask": nn.functional.pad(inputs["attention_mask"], (0, 5)),
        "labels": nn.functional.pad(inputs["labels"], (0, 5), value=-100),
    }
    with torch.no_grad():
        torch.testing.assert_close(sequence_losses(model, longer), sequence_losses(model, inputs))


PROBLEMS = {
    "regression": (torch.tensor([[0.5], [1.0], [-2.0], [0.0]]).squeeze(1), 1),
    "regression of two": (torch.randn(BATCH, 2, generator=torch.Generator().manual_seed(0)), 2),
    "single_label_classification": (torch.tensor([0, 2, 1, 1]), 3),
    "multi_label_classification": (torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]), 3),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_sequence_s_loss_is_the_model_s_own_of_it_alone(name, known):
    labels, count = PROBLEMS[name]
    problem = name.split()[0] if known or name == "regression of two" else None
    model = bert("BertForSequenceClassification", num_labels=count, problem_type=problem).eval()
    inputs = {**batch(), "labels": labels}
    with torch.no_grad():
        found = sequence_losses(model, inputs)
        alone = [
            model(**{key: part[row : row + 1] for key, part in inputs.items()}).loss
            for row in range(BATCH)
        ]
        torch.testing.assert_close(found, torch.stack(alone))
        torch.testing.assert_close(found.mean(), model(**inputs).loss)


def test_a_sequence_without_a_valid_token_has_no_value():
    model, inputs = llama().eval(), batch()
    inputs["labels"][1] = -100
    inputs["labels"][3, 1:] = -100  # only the first token has a label, which nothing predicts
    with torch.no_grad():
        losses = sequence_losses(model, inputs)
    assert losses.isnan().tolist() == [False, True, False, True]
    assert has_loss(find_head(model), inputs).tolist() == [True, False, True, False]
    tagger = find_head(bert("BertForTokenClassification"))
    assert has_loss(tagger, inputs).tolist() == [True, False, True, True]


def test_labels_that_are_shifted_already_are_not_shifted_again():
    model, inputs = llama().eval(), batch()
    shifted = nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=-100)
    with torch.no_grad():
        found = sequence_losses(model, {**inputs, "shift_labels": shifted})
        torch.testing.assert_close(found, sequence_losses(model, inputs))


@pytest.mark.parametrize("name", ["BartForCausalLM", "BertForQuestionAnswering"])
def test_a_loss_that_is_not_known_is_refused_by_name(name):
    model = bart(name) if name.startswith("Bart") else bert(name)
    with pytest.raises(ConfigError, match=rf"{name}.*losses=fn.*sequence_losses, shift="):
        sequence_losses(model, batch())


def test_whether_to_shift_can_be_given():
    model, inputs = bart("BartForCausalLM").eval(), batch()
    with torch.no_grad():
        losses, valid = token_losses(model, inputs, shift=False)
        own = model(**inputs).loss  # which does not shift
    torch.testing.assert_close(losses.sum() / valid.sum(), own)


def test_a_loss_function_of_the_user_s_own_is_not_guessed_at():
    model = llama()
    model.loss_function = lambda **_: torch.tensor(0.0)
    with pytest.raises(ConfigError, match="LlamaForCausalLM"):
        sequence_losses(model, batch())


def test_outputs_that_do_not_name_their_kind_are_refused():
    inputs = batch()
    with torch.no_grad():
        outputs = gpt2()(**inputs)
    with pytest.raises(ConfigError, match=r"CausalLMOutputWithCrossAttentions.*give the model"):
        sequence_losses(outputs, inputs)
    two = SimpleNamespace(logits=torch.zeros(BATCH, 2))
    with pytest.raises(ConfigError, match="numbers to predict or"):
        sequence_losses(two, {"labels": torch.zeros(BATCH, 2)})


def test_what_does_not_fit_is_refused():
    inputs = batch()
    with pytest.raises(BatchError, match="without labels"):
        sequence_losses(llama(), {"input_ids": inputs["input_ids"]})
    with pytest.raises(LossError, match=r"\[4, 3, 8\].*\[4, 7\]"):
        sequence_losses(SimpleNamespace(logits=torch.zeros(BATCH, 3, 8)), inputs, shift=True)
    with pytest.raises(LossError, match="no logits"):
        sequence_losses(SimpleNamespace(), inputs, shift=True)
    model = bert("BertForSequenceClassification")
    with pytest.raises(ConfigError, match="one loss per sequence"):
        token_losses(model, {**inputs, "labels": torch.zeros(BATCH, dtype=torch.int64)})


def test_wrappers_do_not_hide_the_model():
    model, inputs = llama().eval(), batch()
    compiled = torch.compile(model, backend="eager")
    assert find_head(compiled) == find_head(nn.DataParallel(model)) == find_head(model)
    with torch.no_grad():
        torch.testing.assert_close(
            sequence_losses(compiled, inputs), sequence_losses(model, inputs)
        )


def test_it_is_the_losses_of_a_loader():
    model, inputs = llama(), batch()
    loader = SelectiveLoader(
        [inputs] * 3, model, losses=sequence_losses, keep=1 / 2, exact=True, schedule=AT_ONCE
    )
    kept = list(loader)
    assert sum(len(part["labels"]) for part in kept) == 3 * BATCH // 2
    # A sequence whose only label is the first one has no loss: never an easy one, but an error.
    inputs["labels"][3, 1:] = -100
    with pytest.raises(LossError, match="nan"):
        list(SelectiveLoader([inputs], model, losses=sequence_losses, keep=1 / 2, schedule=AT_ONCE))


def test_a_single_pass_has_the_gradient_of_the_kept_sequences():
    torch.manual_seed(0)
    model, inputs = bert("BertForSequenceClassification", hidden_dropout_prob=0.0), batch()
    inputs["labels"] = torch.tensor([0, 1, 1, 0])
    sift = SinglePass(model, losses=sequence_losses, keep=1 / 2)
    loss = sift(inputs)
    loss.backward()
    rows = sift.selection.positions
    expected = sequence_losses(model, inputs)[rows].mean()
    torch.testing.assert_close(loss, expected)
    assert bool(loss.isfinite())
    assert len(rows) == BATCH // 2
