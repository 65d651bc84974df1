"""Loss weights in Hugging Face's Trainer: of a column of the data, of selectors and of rules."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    BASIC,
    MODELS,
    NO_DROPOUT,
    Plain,
    Watching,
    classifier,
    language_model,
    lookup_model,
    padded,
    same,
    selection,
    sentences,
    trainer,
    vocabulary,
    weights_of,
)

from siftback import Epochs, Memory, Schedule, TopK, sequence_losses, token_losses
from siftback.errors import BatchError, ConfigError
from siftback.frameworks.huggingface import SelectiveTrainerMixin

STEP = {"max_steps": 1, "max_grad_norm": 0.0, "train_sampling_strategy": "sequential"}
ALL = Schedule(warmup=Epochs(100))  # no row is left out


def weighing(folder, kind, column, *, given, model=None, **settings):
    """A trainer whose examples have weights, of row % 4 where there is no other."""
    ours = trainer(
        folder,
        kind,
        model=model or (classifier(**NO_DROPOUT) if kind == "classifier" else language_model()),
        selection=given | {"weight_column": "w"},
        **settings,
    )
    for row, example in enumerate(ours.train_dataset):
        example["w"] = column(row)
    return ours


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    return [weight.grad for weight in model.parameters()]


def check_step(ours, model, loss):
    """Compares the first step of a trainer with a loss of the same model."""
    for found, gradient in zip(ours.gradients[0], gradients_of(model, loss), strict=True):
        torch.testing.assert_close(found, gradient)
    assert ours.state.log_history[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.* (leaves nothing out of|never selects) :UserWarning")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_a_column_s_weights_multiply_the_losses_of_all_labels_of_a_step(method, kind, tmp_path):
    given = {"memory": Memory()} if method == "memory" else {"keep": 1 / 2, "schedule": ALL}
    ours = weighing(
        tmp_path, kind, lambda row: row % 4, given=given, gradient_accumulation_steps=2, **STEP
    )
    ours.model.accepts_loss_kwargs = kind != "classifier"
    model = copy.deepcopy(ours.model).train()
    ours.train()
    batch = padded(sentences(48, kind)[:16])
    weights = torch.arange(16) % 4
    if kind == "classifier":
        loss = (sequence_losses(model, batch) * weights).mean()
    else:
        losses, valid = token_losses(model, batch)
        loss = (losses * weights[:, None]).sum() / valid.sum()
    check_step(ours, model, loss)
    if method == "memory":
        remembered = ours.selection_given["memory"].values[:16, 0]
        with torch.no_grad():
            torch.testing.assert_close(remembered, sequence_losses(model, batch) * weights)


@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_weights_of_one_are_training_without_them(method, tmp_path):
    weighted = weighing(tmp_path, "language model", lambda row: 1, given=selection(method))
    weighted.train()
    without = trainer(tmp_path, "language model", selection=selection(method))
    without.train()
    assert weighted.batches == without.batches
    for found, weight in zip(weights_of(weighted), weights_of(without), strict=True):
        torch.testing.assert_close(found, weight, rtol=1e-4, atol=1e-5)


def test_rows_are_chosen_by_their_losses_times_their_weights(tmp_path):
    weights = {row: 100.0 if row % 4 == 3 else 0.01 for row in range(48)}
    given = selection("two_pass") | {"keep": None, "selector": TopK(keep=1 / 4)}
    ours = weighing(
        tmp_path, "language model", weights.get, given=given, **(STEP | {"max_steps": 6})
    )
    ours.train()
    assert all(row % 4 == 3 for batch in ours.batches for row in batch)


class Rising(TopK):
    """The highest losses, with weights of 1, 2, 3 and so on."""

    reweights = True

    def select(self, scores, generator, count=None):
        chosen = super().select(scores, generator, count)
        return chosen._replace(weights=torch.arange(1.0, len(chosen.positions) + 1))


def test_a_selector_s_weights_are_applied_in_two_passes(tmp_path):
    given = {"method": "two_pass", "selector": Rising(keep=1 / 2)}
    ours = trainer(tmp_path, "classifier", model=classifier(**NO_DROPOUT), selection=given, **STEP)
    model = copy.deepcopy(ours.model).train()
    ours.train()
    batch = padded(sentences(48, "classifier")[:8])
    losses = sequence_losses(model, batch)
    rows = losses.topk(4).indices.sort().values
    check_step(ours, model, (losses[rows] * torch.arange(1, 5)).mean())


@pytest.mark.filterwarnings("ignore:.* (leaves nothing out of|never selects) :UserWarning")
def test_losses_of_one_s_own_have_weights(tmp_path):
    def doubled(model_or_outputs, batch):
        return 2 * sequence_losses(model_or_outputs, batch)

    for given in ({"keep": 1 / 2, "schedule": ALL}, {"memory": Memory()}):
        ours = weighing(
            tmp_path,
            "classifier",
            lambda row: row % 4,
            given=given | {"losses": doubled},
            gradient_accumulation_steps=2,
            **STEP,
        )
        model = copy.deepcopy(ours.model).train()
        ours.train()
        losses = sequence_losses(model, padded(sentences(48, "classifier")[:16]))
        check_step(ours, model, 2 * (losses * (torch.arange(16) % 4)).mean())


def test_a_single_pass_has_weights(tmp_path):
    given = selection("single_pass") | {"keep": None, "selector": TopK(keep=1 / 2)}
    ours = weighing(
        tmp_path, "language model", lambda row: row % 4, given=given, model=lookup_model(), **STEP
    )
    model = copy.deepcopy(ours.model).train()
    ours.train()
    batch = padded(sentences(48, "language model")[:8], longest=12)
    losses = sequence_losses(model, batch) * (torch.arange(8) % 4)
    check_step(ours, model, losses.topk(4).values.mean())


@pytest.mark.filterwarnings("ignore:.* (leaves nothing out of|never selects) :UserWarning")
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_a_column_of_a_hugging_face_data_set_reaches_training_alone(tmp_path):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")

    class Tuning(Watching, SelectiveTrainerMixin, trl.SFTTrainer):
        pass

    rows = [{"input_ids": row["input_ids"]} for row in sentences(16, "language model")]
    data = datasets.Dataset.from_list([row | {"w": n % 4} for n, row in enumerate(rows)])
    settings = BASIC | STEP | {"output_dir": str(tmp_path), "bf16": False}
    ours = Tuning(
        model=language_model(),
        args=trl.SFTConfig(**settings),
        train_dataset=data,
        eval_dataset=data,
        processing_class=vocabulary(),
        memory=Memory(),
        weight_column="w",
    )
    ours.train()
    assert "mean_token_accuracy" in ours.state.log_history[0]
    batch = padded([row | {"labels": row["input_ids"]} for row in rows[:8]])
    items = ours._get_num_items_in_batch([batch], torch.device("cpu"))
    losses, _ = token_losses(language_model(), batch)
    expected = (losses * (torch.arange(8) % 4)[:, None]).sum() / items
    assert ours.state.log_history[0]["loss"] == pytest.approx(expected.item(), rel=1e-4)
    ours.evaluate()


def test_weights_that_cannot_be_applied_are_refused(tmp_path):
    def given(method="two_pass"):
        return selection(method)

    for value in (-1, float("nan"), None):
        wrong = weighing(tmp_path, "classifier", lambda _, value=value: value, given=given())
        with pytest.raises(BatchError, match=rf"weight_column='w' has .*{value}.*from 0 on"):
            wrong.train()
    missing = weighing(tmp_path, "classifier", lambda row: 1, given=given())
    del missing.train_dataset[0]["w"]
    with pytest.raises(BatchError, match="no 'w'"):
        missing.train()
    datasets = pytest.importorskip("datasets")
    without = weighing(tmp_path, "classifier", lambda row: 1, given=given())
    without.train_dataset = datasets.Dataset.from_list(sentences(48, "classifier"))
    with pytest.raises(ConfigError, match="weight_column='w', as the data set has input_ids"):
        without.train()

    def sequence(model_or_outputs, batch):
        return sequence_losses(model_or_outputs, batch)

    def classes(outputs, labels, num_items_in_batch=None):
        weight = torch.tensor([1.0, 5.0, 9.0])
        return torch.nn.functional.cross_entropy(outputs.logits, labels, weight)

    for method in ("two_pass", "memory"):
        other = weighing(tmp_path, "classifier", lambda row: row % 4, given=given(method))
        other.compute_loss_func = classes
        with pytest.raises(ConfigError, match="loss of a step without weights"):
            other.train()

        both = weighing(
            tmp_path, "classifier", lambda row: 1, given=given(method) | {"losses": sequence}
        )
        both.compute_loss_func = classes
        with pytest.raises(ConfigError, match="compute_loss_func: leave the last out"):
            both.train()

    class Twice(SelectiveTrainerMixin, Plain):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs).loss + model(**inputs).loss

    own = weighing(tmp_path, "classifier", lambda row: row % 4, given=given(), of=Twice)
    with pytest.raises(ConfigError, match="called the model 2 times"):
        own.train()


def test_a_training_with_weights_resumes_bit_for_bit(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3}

    def fresh():
        column = torch.rand(48, generator=torch.Generator().manual_seed(0)).tolist()
        return weighing(
            tmp_path, "classifier", column.__getitem__, given=selection("memory"), **settings
        )

    whole = fresh()
    whole.train()
    again = fresh()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert again.batches == whole.batches[-len(again.batches) :]
    assert same(weights_of(again), weights_of(whole))
