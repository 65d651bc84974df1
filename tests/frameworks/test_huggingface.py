"""Selection in Hugging Face's Trainer: what is trained on, counts, schedules and resuming."""

import copy
import math

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    MODELS,
    Plain,
    Selective,
    classifier,
    language_model,
    padded,
    sentences,
    trainer,
    weights_of,
)

from siftback import InBatch, Memory, Percentile, RS2, SinglePass, Stale, TopK, Unbiased
from siftback import Epochs, EpochRule, InfoBatch, sequence_losses
from siftback.errors import BatchError, ConfigError, LossError, StateError
from siftback.frameworks.huggingface import SelectiveTrainerMixin
from siftback.loading.seeding import Stream, generator_of

METHODS = ("two_pass", "single_pass", "memory")
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def selection(method):
    if method == "memory":
        return {"method": "memory", "memory": Memory(keep=0.5, warmup=Epochs(1))}
    return {"method": method, "keep": 1 / 2}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Tracing logs much, which a failure would print."""
    caplog.set_level("ERROR")


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


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
    rows = sum(ours.batches, [])
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
    if method == "single_pass" and length != "accumulation":
        pytest.skip("compiling takes seconds: once is enough")
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
    return [sum((next(batches) for _ in range(count)), []) for count in lengths]


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
    if method == "single_pass" and kind == "classifier":
        pytest.skip("compiling takes seconds: once is enough")
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
    for stop in (2, steps - 1, 4) if method != "single_pass" else (5,):
        again = fresh()
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
        assert again.state.global_step == steps
        assert again.batches == whole.batches[-len(again.batches) :]
        assert same(weights_of(again), weights_of(whole))
        assert again.sift_stats.seen == whole.sift_stats.seen
        assert again.sift_stats.backwards == whole.sift_stats.backwards


def test_a_checkpoint_of_other_arguments_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    trainer(tmp_path, "classifier", **settings).train()
    place = str(tmp_path / "checkpoint-2")
    for other, message in {
        "method": (selection("memory"), "method='two_pass'"),
        "seed": ({"method": "two_pass", "seed": 1}, "seed=42"),
        "keep": ({"method": "two_pass", "keep": 1 / 4}, "keeps 0.5"),
    }.values():
        with pytest.raises(StateError, match=message):
            trainer(tmp_path, "classifier", selection=other, **settings).train(place)
    with pytest.raises(StateError, match="batch_size=8"):
        trainer(
            tmp_path, "classifier", per_device_train_batch_size=4, **settings
        ).train(resume_from_checkpoint=place)
    (tmp_path / "checkpoint-2" / "sift_state.pth").unlink()
    with pytest.raises(StateError, match=r"no sift_state\.pth"):
        trainer(tmp_path, "classifier", **settings).train(resume_from_checkpoint=place)


def test_memory_resumes_only_where_its_epochs_were_as_long(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 8, "num_train_epochs": 3}
    share = {"method": "memory", "keep": 0.5}  # a warm-up of a share of the training
    trainer(tmp_path, "classifier", selection=share, **settings).train()
    place = str(tmp_path / "checkpoint-8")
    with pytest.raises(StateError, match=r"\[6, 3\].*\[6, 6\]"):
        trainer(
            tmp_path, "classifier", selection=share, **(settings | {"num_train_epochs": 12})
        ).train(resume_from_checkpoint=place)
    with pytest.raises(ConfigError, match="ignore_data_skip"):
        trainer(
            tmp_path, "classifier", selection=share, ignore_data_skip=True, **settings
        ).train(resume_from_checkpoint=place)


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
        ours.predict(sentences(12, "language model"))
        assert ours.sift_stats == before


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
