"""Selection in Hugging Face's Trainer: what is trained on, counts, schedules and resuming."""

import copy
import functools
import math

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    MODELS,
    NO_DROPOUT,
    TINY,
    Plain,
    Selective,
    arguments,
    classifier,
    epochs_of,
    language_model,
    padded,
    selection,
    sentences,
    trainer,
    vocabulary,
    weights_of,
)

import transformers
from siftback import Epochs, InBatch, Memory, TopK, sequence_losses
from siftback.errors import BatchError, ConfigError
from siftback.frameworks.huggingface import SelectiveTrainerMixin
from siftback.seeding import Stream, generator_from

METHODS = ("two_pass", "memory")  # of a single pass there is a test of its own, as it compiles


def no_schedule(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


@pytest.mark.parametrize("kind", MODELS)
def test_two_passes_are_a_loop_that_scores_and_trains_on_the_kept_rows(kind, tmp_path):
    model = classifier(**NO_DROPOUT) if kind == "classifier" else language_model()
    ours = trainer(
        tmp_path,
        kind,
        model=model,
        train_sampling_strategy="sequential",
        max_grad_norm=0.0,
        num_train_epochs=1,
    )
    ours.optimizer, ours.lr_scheduler = no_schedule(model)
    expected = copy.deepcopy(model)
    ours.train()

    seed = generator_from(42, 0, Stream.SELECTION).initial_seed()
    choosing = InBatch(keep=1 / 2, seed=seed)
    optimizer, _ = no_schedule(expected)
    expected.train()
    data, batches = sentences(48, kind), []
    for start in range(0, 48, 8):
        batch = padded(data[start : start + 8])
        expected.eval()
        with torch.no_grad():
            alone = [
                sequence_losses(expected, padded(data[row : row + 1]))
                for row in range(start, start + 8)
            ]
        expected.train()
        rows = choosing.select(torch.cat(alone)).positions
        batches.append((rows + start).tolist())
        kept = {key: part[rows] for key, part in batch.items()}
        expected(**kept).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert ours.batches == batches
    for weight, reference in zip(ours.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, reference)
    assert ours.stats.seen == ours.stats.scored == 48
    assert ours.stats.backwards == 24


@pytest.mark.parametrize("kind", MODELS)
def test_accumulation_over_kept_rows_is_one_batch_of_them(kind, tmp_path):
    """The gradient and the loss, with different numbers of tokens in the two batches."""
    model = classifier(**NO_DROPOUT) if kind == "classifier" else language_model()
    # It takes any keyword, and ignores the number of items that the Trainer then relies on.
    model.accepts_loss_kwargs = kind != "classifier"
    settings = {"max_grad_norm": 0.0, "max_steps": 1, "train_sampling_strategy": "sequential"}
    ours = trainer(
        tmp_path,
        kind,
        16,
        model=copy.deepcopy(model),
        gradient_accumulation_steps=2,
        **settings,
    )
    result = ours.train()
    assert [len(batch) for batch in ours.batches] == [4, 4]
    rows = [row for batch in ours.batches for row in batch]
    whole = Plain(
        model=model,
        args=copy.copy(ours.args),
        data_collator=padded,
        train_dataset=[sentences(16, kind)[row] for row in rows],
    )
    whole.args.gradient_accumulation_steps = 1
    expected = whole.train()
    assert whole.batches == [rows]
    for found, reference in zip(ours.gradients[0], whole.gradients[0], strict=True):
        torch.testing.assert_close(found, reference)
    assert result.training_loss == pytest.approx(expected.training_loss, rel=1e-5)
    assert ours.state.log_history[0]["loss"] == pytest.approx(
        whole.state.log_history[0]["loss"], rel=1e-5
    )


def test_a_memory_has_the_loss_of_each_sequence_as_of_one_alone(tmp_path):
    rule = Memory(keep=0.5, warmup=Epochs(1))
    given = {"selection": {"memory": rule}, "learning_rate": 0.0}
    trainer(tmp_path, "language model", 42, **given).train()
    with torch.no_grad():
        alone = [
            sequence_losses(language_model(), padded([row]))
            for row in sentences(42, "language model")
        ]
    torch.testing.assert_close(rule.values[:, 0], torch.cat(alone))


def test_evaluation_is_not_selected(tmp_path):
    for method in ("two_pass", "memory"):
        ours = trainer(
            tmp_path,
            "language model",
            selection=selection(method),
            eval_strategy="epoch",
            num_train_epochs=1,
        )
        ours.train()
        within = [entry for entry in ours.state.log_history if "eval_loss" in entry]
        plain = trainer(tmp_path, "language model", of=Plain, model=ours.model)
        assert ours.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
        assert within[-1]["eval_loss"] == plain.evaluate()["eval_loss"]
        before = copy.copy(ours.stats)
        rule = ours.selection_given.get("memory")
        remembered = None if rule is None else rule.values.clone()
        ours.predict(sentences(12, "language model"))
        ours.evaluate()
        assert ours.stats == before
        assert rule is None or torch.equal(rule.values, remembered)


def test_group_by_length_keeps_its_batches_and_memory_refuses_it(tmp_path):
    grouped = {"train_sampling_strategy": "group_by_length", "num_train_epochs": 1}
    ours = trainer(tmp_path, "language model", **grouped)
    ours.train()
    plain = trainer(tmp_path, "language model", of=Plain, **grouped)
    plain.train()
    assert len(ours.batches) == len(plain.batches)
    for kept, whole in zip(ours.batches, plain.batches, strict=True):
        assert set(kept) < set(whole)
        assert len(kept) == len(whole) // 2
    with pytest.raises(ConfigError, match="group_by_length"):
        trainer(tmp_path, "language model", selection=selection("memory"), **grouped).train()


def translator():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=100, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def masked_model():
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**TINY))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_the_trainer_s_own_collators_columns_and_workers(method, workers, tmp_path):
    datasets = pytest.importorskip("datasets")
    tokenizer = vocabulary()
    classes, words = sentences(48, "classifier"), sentences(48, "language model")
    for example in words:
        del example["labels"]
    language = transformers.DataCollatorForLanguageModeling
    cases = [
        (classifier(), classes, transformers.DataCollatorWithPadding(tokenizer)),
        (language_model(), words, language(tokenizer, mlm=False)),
        (translator(), sentences(48, "language model"), padded),
    ]
    if not workers:  # masks are random: some short sentences have none, and so no label
        cases += [(masked_model(), words, language(tokenizer, mlm_probability=0.2))]
    for model, examples, collate in cases:
        columns = {key: [example[key] for example in examples] for key in examples[0]}
        data = datasets.Dataset.from_dict(columns | {"unused": ["text"] * 48})
        ours = Selective(
            model=model,
            args=arguments(tmp_path, dataloader_num_workers=workers),
            data_collator=collate,
            train_dataset=data,
            **selection(method),
        )
        ours.train()
        assert ours.state.global_step == 12
        if isinstance(model, transformers.BertForMaskedLM) and method == "two_pass":
            assert 0 < ours.stats.backwards <= 48
        else:
            assert ours.stats.backwards == (48 if method == "two_pass" else 96)
        if method == "memory":
            first, *passes = epochs_of(ours, [6, 3, 3])
            if not isinstance(model, transformers.BertForMaskedLM):  # whose first word is masked
                assert sorted(first) == list(range(48))
                assert [len(set(rows)) for rows in passes] == [24, 24]


def test_rows_without_a_label_are_never_kept(tmp_path):
    ours = trainer(tmp_path, "language model", num_train_epochs=1)
    for example in ours.train_dataset[::2]:
        example["labels"] = [-100] * len(example["labels"])
    ours.train()
    assert all(row % 2 for batch in ours.batches for row in batch)
    assert len(ours.batches) == 6
    for example in ours.train_dataset:
        example["labels"] = [-100] * len(example["labels"])
    with pytest.raises(BatchError, match="no row to choose among"):
        ours.train()
    single = trainer(tmp_path, "language model", selection=selection("single_pass"))
    single.train_dataset = ours.train_dataset
    with pytest.raises(BatchError, match="has no label"):
        single.train()


def test_rows_without_a_label_are_known_where_the_shift_is_given(tmp_path):
    def of_the_same_position(logits, labels, vocab_size, **_):
        return torch.nn.functional.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))

    unshifted = functools.partial(sequence_losses, shift=False)
    model = language_model()
    model.loss_function = of_the_same_position
    ours = trainer(
        tmp_path,
        "language model",
        model=model,
        selection={"method": "two_pass", "losses": unshifted},
        num_train_epochs=1,
    )
    for example in ours.train_dataset[::2]:
        example["labels"] = [-100] * len(example["labels"])
    ours.train()
    assert all(row % 2 for batch in ours.batches for row in batch)


def test_batches_from_pinned_memory_are_lists_and_keep_their_indices(tmp_path):
    ours = trainer(tmp_path, "classifier", selection=selection("memory"), max_steps=1)
    ours.train()
    batch = padded(sentences(4, "classifier"))
    given = iter([[torch.arange(4), batch]])
    (found,), _ = ours.get_batch_samples(given, 1, ours.args.device)
    assert found["sift_index"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="get_train_dataloader"):
        ours.get_batch_samples(iter([batch]), 1, ours.args.device)


def test_scores_are_computed_in_the_precision_of_training(tmp_path):
    ours = trainer(tmp_path, "classifier", bf16=True, max_steps=2)
    dtypes = {True: set(), False: set()}
    ours.model.bert.encoder.register_forward_hook(
        lambda module, given, outputs: dtypes[torch.is_grad_enabled()].add(outputs[0].dtype)
    )
    linear = ours.model.bert.encoder.layer[0].intermediate.dense
    linear.register_forward_hook(
        lambda module, given, output: dtypes[torch.is_grad_enabled()].add(output.dtype)
    )
    ours.train()
    assert dtypes[True] == dtypes[False]
    assert torch.bfloat16 in dtypes[True]


class OwnStep(transformers.Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs, labels = self._prepare_inputs(inputs), inputs["labels"]
        loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        assert outputs.logits.shape[:1] == labels.shape[:1]
        again = self.compute_loss(model, inputs)  # as an adversarial step computes it
        torch.testing.assert_close(again, loss)
        self.accelerator.backward((loss + again) / 2)
        return loss.detach()


class Owned(SelectiveTrainerMixin, OwnStep):
    pass


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", [*METHODS, "losses"])
def test_a_step_of_one_s_own_computes_the_loss_as_trainers_may(method, weighted, tmp_path):
    ends = []
    for of in (Selective, Owned):
        given = {"losses": lambda *step: sequence_losses(*step)} if method == "losses" else {}
        given |= selection("two_pass" if method == "losses" else method)
        given |= {"weight_column": "weight"} if weighted else {}
        model = classifier(**NO_DROPOUT)
        ours = trainer(tmp_path, "classifier", of=of, model=model, selection=given)
        for row, example in enumerate(ours.train_dataset):
            example["weight"] = float(row % 4)
        ours.train()
        ends.append(weights_of(ours))
    for found, weight in zip(*ends, strict=True):
        torch.testing.assert_close(found, weight, rtol=1e-4, atol=1e-5)


class Perturbed(transformers.Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        weight = model.classifier.weight.data
        weight.mul_(8)  # as a step of SAM or of an adversary changes weights for another loss
        self.accelerator.backward(self.compute_loss(model, inputs))
        weight.div_(8)
        return loss.detach()


class OfPerturbed(SelectiveTrainerMixin, Perturbed):
    pass


def test_the_first_loss_that_a_step_computes_is_remembered(tmp_path):
    given, model = selection("memory"), classifier(**NO_DROPOUT)
    settings = {"of": OfPerturbed, "model": model, "selection": given, "learning_rate": 0.0}
    ours = trainer(tmp_path, "classifier", **settings)
    ours.train()
    with torch.no_grad():
        losses = sequence_losses(model, padded(ours.train_dataset))
    torch.testing.assert_close(given["memory"].values[:, 0], losses)


class Penalised(transformers.Trainer):
    """Has another term in its loss, which it notes and logs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noted = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        self.noted.append(outputs.loss.item())
        self.log({"own": outputs.loss.item()})
        loss = outputs.loss + 0.1 * model.classifier.weight.square().sum()
        return (loss, outputs) if return_outputs else loss


class OfPenalised(SelectiveTrainerMixin, Penalised):
    pass


@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_checks_of_a_loss_leave_what_it_notes_and_logs_as_it_is(method, tmp_path):
    ours = trainer(tmp_path, "classifier", of=OfPenalised, selection=selection(method))
    ours.train()
    logged = [entry["own"] for entry in ours.state.log_history if "own" in entry]
    assert len(logged) == ours.state.global_step == 12
    assert logged == ours.noted


def test_a_memory_takes_batches_with_parts_that_have_no_rows(tmp_path):
    given, model = selection("memory"), classifier(**NO_DROPOUT)
    ours = trainer(tmp_path, "classifier", model=model, selection=given, learning_rate=0.0)

    def positioned(examples):
        batch = padded(examples)
        return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}

    ours.data_collator = positioned
    ours.train()
    with torch.no_grad():
        losses = sequence_losses(model, padded(ours.train_dataset))
    torch.testing.assert_close(given["memory"].values[:, 0], losses)


@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_stream_without_a_length_resumes_after_its_end(step, tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(sentences(24, "classifier"))

    settings = {"max_steps": 8, "save_strategy": "steps", "save_steps": 1}
    for checkpoint in (None, str(tmp_path / f"checkpoint-{step}")):
        ours = trainer(tmp_path, "classifier", **settings)
        ours.train_dataset = Stream()
        ours.train(resume_from_checkpoint=checkpoint)
        assert ours.state.global_step == 8
        assert len(ours.batches) == (8 - step if checkpoint else 8)


def test_losses_and_selectors_of_one_s_own(tmp_path):
    def shortest(model, batch):
        return -batch["attention_mask"].sum(1).float()

    ours = trainer(
        tmp_path,
        "language model",
        selection={"method": "two_pass", "losses": shortest, "selector": TopK(keep=1 / 4)},
        train_sampling_strategy="sequential",
        num_train_epochs=1,
    )
    ours.train()
    lengths = torch.tensor([len(example["input_ids"]) for example in ours.train_dataset])
    for start, kept in zip(range(0, 48, 8), ours.batches, strict=True):
        whole = lengths[start : start + 8].sort().values
        assert lengths[kept].sort().values.tolist() == whole[:2].tolist()

    def confidence(outputs, batch):
        return outputs.logits.logsumexp(1) - outputs.logits.max(1).values

    rule = Memory(0.55, warmup=Epochs(1))
    trainer(
        tmp_path,
        "classifier",
        selection={"memory": rule, "losses": confidence},
        num_train_epochs=1,
    ).train()
    assert 0 < float(rule.values.max()) <= math.log(3) + 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_each_logging_step_has_the_statistics_in_the_history(method, tmp_path):
    ours = trainer(
        tmp_path,
        "classifier",
        selection=selection(method),
        logging_steps=3,
        eval_strategy="epoch",
    )
    ours.train()
    history = [entry for entry in ours.state.log_history if "loss" in entry]
    entries = ours.stats.log_entries(share=0.5)
    assert [entry["step"] for entry in history] == [3, 6, 9, 12]
    for entry in ours.state.log_history:
        assert (entries.keys() <= entry.keys()) == ("loss" in entry)
    for name in entries.keys() - {"sift/seconds_selection"}:
        assert history[-1][name] == entries[name]
    rows = 4 if method == "two_pass" else 8
    assert [entry["sift/backwards"] for entry in history] == [
        3 * rows,
        6 * rows,
        9 * rows,
        12 * rows,
    ]
