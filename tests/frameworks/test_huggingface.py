"""Selection in Hugging Face's Trainer: what is trained on, counts, schedules and resuming."""

import copy
import functools
import math
import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    BASIC,
    MODELS,
    TINY,
    Plain,
    Selective,
    Watching,
    arguments,
    classifier,
    language_model,
    padded,
    same,
    selection,
    sentences,
    trainer,
    vocabulary,
    weights_of,
)

import transformers
from siftback import (
    Epochs,
    InBatch,
    Memory,
    TopK,
    sequence_losses,
    token_losses,
)
from siftback.errors import BatchError, ConfigError, TraceError
from siftback.frameworks.huggingface import SelectiveTrainerMixin
from siftback.loading.seeding import Stream, generator_of

METHODS = ("two_pass", "memory")  # of a single pass there is a test of its own, as it compiles
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Tracing logs much, which a failure would print."""
    caplog.set_level("ERROR")


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

    seed = generator_of(42, 0, Stream.SELECTION).initial_seed()
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
    assert ours.sift_stats.seen == ours.sift_stats.scored == 48
    assert ours.sift_stats.backwards == 24


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


class Lengths:
    """How many of everything there was."""

    def __init__(self, trainer):
        log = trainer.state.log_history
        self.steps = trainer.state.global_step
        self.max_steps = trainer.state.max_steps
        self.evaluations = sum("eval_loss" in entry for entry in log)
        self.rate = trainer.lr_scheduler.get_last_lr()[0]
        self.rates = [entry["learning_rate"] for entry in log if "learning_rate" in entry]
        self.scheduled = trainer.lr_scheduler.last_epoch

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __repr__(self):
        return repr(vars(self))


LENGTHS = {
    "epochs": {"num_train_epochs": 3},
    "a part of an epoch": {"num_train_epochs": 2.5},
    "steps": {"max_steps": 7},
    "accumulation": {"num_train_epochs": 2, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("method", METHODS)
def test_steps_evaluations_and_learning_rates_are_those_of_a_plain_trainer(
    method, length, tmp_path
):
    settings = LENGTHS[length] | {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "warmup_steps": 2,
        "lr_scheduler_type": "cosine",
    }
    ours = trainer(tmp_path, "classifier", selection=selection(method), **settings)
    ours.train()
    if method == "memory":
        settings["max_steps"] = ours.state.max_steps
    plain = trainer(tmp_path, "classifier", of=Plain, **settings)
    plain.train()
    assert Lengths(ours) == Lengths(plain)
    assert ours.state.global_step == ours.state.max_steps == Lengths(ours).scheduled
    print(method, length, Lengths(ours), ours.sift_stats)


def epochs_of(trainer, lengths):
    """What was trained on, by epoch, from the numbers of batches."""
    batches = iter(trainer.batches)
    return [[row for _ in range(count) for row in next(batches)] for count in lengths]


@pytest.mark.parametrize("kind", MODELS)
def test_memory_reads_each_example_once_or_as_drawn_and_remembers_its_loss(kind, tmp_path):
    rule = Memory(keep=0.5, warmup=Epochs(1))
    ours = trainer(tmp_path, kind, 42, selection={"memory": rule, "method": "memory"})
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
    assert ours.sift_stats.seen == 84
    assert ours.sift_stats.unread == 21
    assert (ours.sift_stats.considered, ours.sift_stats.kept) == (42, 21)
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
    ours = trainer(
        tmp_path, "classifier", selection={"memory": rule, "method": "memory"}, num_train_epochs=3
    )
    ours.train()
    for (known, drawn), rows in zip(seen, epochs_of(ours, [6, 3, 3])[1:], strict=True):
        assert not known.isnan().any()
        assert sorted(rows) == drawn.nonzero().squeeze(1).tolist()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_a_training_resumed_within_an_epoch_is_the_same_bit_for_bit(method, kind, tmp_path):
    settings = {
        "num_train_epochs": 3,
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 1,
    }

    def fresh():
        return trainer(tmp_path, kind, 56, selection=selection(method), **settings)

    whole = fresh()
    whole.train()
    steps = whole.state.global_step
    # Within the first epoch; within a drawn one; and at an epoch's end.
    for stop in (2, steps - 1, 4):
        again = fresh()
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
        assert again.state.global_step == steps
        assert again.batches == whole.batches[-len(again.batches) :]
        assert same(weights_of(again), weights_of(whole))
        assert again.sift_stats.seen == whole.sift_stats.seen
        assert again.sift_stats.backwards == whole.sift_stats.backwards


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
        before = copy.copy(ours.sift_stats)
        rule = ours.selection_given.get("memory")
        remembered = None if rule is None else rule.values.clone()
        ours.predict(sentences(12, "language model"))
        ours.evaluate()
        assert ours.sift_stats == before
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
        assert ours.state.global_step == (12 if method == "two_pass" else 9)
        if isinstance(model, transformers.BertForMaskedLM) and method == "two_pass":
            assert 0 < ours.sift_stats.backwards <= 48
        else:
            assert ours.sift_stats.backwards == (48 if method == "two_pass" else 72)
        if method == "memory":
            first, second = epochs_of(ours, [6, 3])
            if not isinstance(model, transformers.BertForMaskedLM):  # whose first word is masked
                assert sorted(first) == list(range(48))
                assert len(set(second)) == 24


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
    unshifted = functools.partial(sequence_losses, shift=False)  # as of a model like Bart's decoder
    ours = trainer(
        tmp_path,
        "language model",
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

    rule = Memory(warmup=Epochs(1))
    trainer(
        tmp_path,
        "classifier",
        selection={"method": "memory", "memory": rule, "losses": confidence},
        num_train_epochs=1,
    ).train()
    assert 0 < float(rule.values.max()) <= math.log(3) + 1e-6


@pytest.mark.slow
def test_a_single_pass_is_the_mean_of_the_kept_rows_and_resumes(tmp_path):
    settings = {
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.0,
        "num_train_epochs": 2,
        "train_sampling_strategy": "sequential",
        "eval_strategy": "steps",
        "eval_steps": 2,
    }

    def fresh():
        return trainer(
            tmp_path,
            "language model",
            32,
            selection={"method": "single_pass", "selector": TopK(keep=1 / 2)},
            **settings | {"save_strategy": "steps", "save_steps": 3},
        )

    ours = fresh()
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
    assert (ours.sift_stats.forwards, ours.sift_stats.backwards) == (64, 32)

    plain = trainer(tmp_path / "plain", "language model", 32, of=Plain, **settings)
    plain.train()
    assert Lengths(ours) == Lengths(plain)
    within = [entry["eval_loss"] for entry in ours.state.log_history if "eval_loss" in entry]
    assert ours.evaluate()["eval_loss"] == within[-1]

    again = fresh()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same(weights_of(again), weights_of(ours))
    assert again.sift_stats.backwards == ours.sift_stats.backwards


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
    with pytest.raises(TraceError, match=r"cannot trace the model.*test_huggingface\.py"):
        ours.train()


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_trl_s_trainer(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")

    class Tuning(Watching, SelectiveTrainerMixin, trl.SFTTrainer):
        pass

    def tuning(given, model=None, **settings):
        data = datasets.Dataset.from_list(
            [{"input_ids": example["input_ids"]} for example in sentences(48, "language model")]
        )
        args = trl.SFTConfig(**{**BASIC, "output_dir": str(tmp_path), "bf16": False, **settings})
        return Tuning(
            model=model or language_model(),
            args=args,
            train_dataset=data,
            processing_class=vocabulary(),
            **given,
        )

    ours = tuning(selection("two_pass"), train_sampling_strategy="sequential")
    ours.train()
    assert [len(batch) for batch in ours.batches] == [4] * 12
    logged = [entry for entry in ours.state.log_history if "mean_token_accuracy" in entry]
    assert len(logged) == 12
    # TRL's loss of the first step is that of the rows that were kept, over as many tokens as the
    # Trainer counts: releases before 5.23 count the first of each row too, which has no loss.
    kept = padded([sentences(48, "language model")[row] for row in ours.batches[0]])
    kept["labels"] = kept["input_ids"].masked_fill(kept["input_ids"] == 0, -100)
    items = ours._get_num_items_in_batch([kept], torch.device("cpu"))
    with torch.no_grad():
        losses, mask = token_losses(language_model(), kept)
    expected = float(losses.sum() / items)
    assert logged[0]["loss"] == pytest.approx(expected, rel=1e-4)
    assert int(items) - int(mask.sum()) in (0, 4)

    rule = Memory(keep=0.5, warmup=Epochs(1))
    remembering = tuning({"method": "memory", "memory": rule}, learning_rate=0.0)
    remembering.train()
    first, second = epochs_of(remembering, [6, 3])
    assert sorted(first) == list(range(48))
    assert len(set(second)) == 24
    batch = padded(sentences(48, "language model"))
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)
    with torch.no_grad():  # the weights never changed
        torch.testing.assert_close(rule.values[:, 0], sequence_losses(language_model(), batch))

    with pytest.raises(ConfigError, match="a compute_loss of SFTTrainer's own"):
        tuning(selection("single_pass")).train()


EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface_sst2.py"
SST2 = Path(os.environ.get("SIFTBACK_DATA", EXAMPLE.parents[2] / "shared" / "data"), "sst2")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning")
@pytest.mark.skipif(not SST2.is_dir(), reason="needs SST-2 in SIFTBACK_DATA or ../shared/data")
@pytest.mark.parametrize("method", ["two_pass", "single_pass", "memory"])
def test_the_example_learns_and_says_what_it_saved(method, tmp_path, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("tokenizers")
    given = {"method": method, "keep": 0.5, "examples": 1600, "epochs": 4, "out": tmp_path / "out"}
    options = [f"--{name}={value}" for name, value in given.items()]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options])
    monkeypatch.setenv("SIFTBACK_DATA", str(SST2.parent))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    accuracy, steps = re.search(r"accuracy ([\d.]+)% after (\d+) steps", printed).groups()
    assert float(accuracy) > 60  # of two classes, of 872 sentences: six standard deviations
    counts = r"(\d+) backwards and (\d+) forwards; plain training: (\d+)"
    backwards, forwards, plain = map(int, re.search(counts, printed).groups())
    whole = 4 * 1600
    assert plain == whole
    expected = {  # steps, backwards, forwards
        "two_pass": (200, 1600 + 3 * 800, 1600 + 3 * (800 + 1600)),
        "single_pass": (200, 1600 + 3 * 800, whole),
        "memory": (50 + 3 * 25, 1600 + 3 * 800, 1600 + 3 * 800),
    }
    assert (int(steps), backwards, forwards) == expected[method]
