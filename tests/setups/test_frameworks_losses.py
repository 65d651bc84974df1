"""In frameworks, rows are chosen by the loss that is trained on, or the training is refused."""

import contextlib
import functools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Memory, Schedule, TopK, Uniform
from siftback.errors import ConfigError

WEIGHTS = torch.tensor([1.0, 1.0, 100.0])
AT_ONCE = Schedule(warmup=Epochs(0))


def examples(count=64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 6, generator=generator), torch.arange(count) % 3


# Of each loss, given the logits, targets, weights of the layer and the step, whether it ranks the
# examples as its call of a loss function does.
def mean(logits, targets, layer, step):
    return F.cross_entropy(logits, targets)


def unreduced(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none")


def divergence(logits):
    return logits.square().sum(1).mean()


ALIKE = {
    "itself": mean,
    "half": lambda *given: mean(*given) * 0.5,
    "of a group of four": lambda *given: mean(*given) / 4,
    "a penalty": lambda x, y, layer, step: F.cross_entropy(x, y) + layer.square().sum(),
    "half and a penalty": lambda x, y, layer, step: F.cross_entropy(x, y) / 2 + layer.norm(),
    "a penalty from step 2 on": lambda x, y, layer, step: (
        F.cross_entropy(x, y) + layer.norm() * (step >= 2)
    ),
    "a constant": lambda *given: mean(*given) + 3,
    "the sum": lambda x, y, layer, step: F.cross_entropy(x, y, reduction="sum"),
    "the step's mean": lambda x, y, layer, step: unreduced(x, y).mean(),
    "class weights of the loss": lambda x, y, layer, step: F.cross_entropy(x, y, WEIGHTS),
    "smoothing of the loss": lambda x, y, layer, step: F.cross_entropy(x, y, label_smoothing=0.2),
    "half precision": lambda x, y, layer, step: F.cross_entropy(x.bfloat16(), y) * 0.5,
}
OTHER = {
    "class weights": lambda x, y, layer, step: (unreduced(x, y) * WEIGHTS[y]).mean(),
    "the hard ones": lambda x, y, layer, step: unreduced(x, y).topk(4).values.mean(),
    "smoothing": lambda x, y, layer, step: (
        0.8 * F.cross_entropy(x, y) - 0.2 * x.log_softmax(1).mean()
    ),
    "a term of the examples": lambda x, y, layer, step: F.cross_entropy(x, y) + divergence(x),
    "one that anneals in": lambda x, y, layer, step: (
        F.cross_entropy(x, y) + divergence(x) * 0.1 * step
    ),
    "another loss": lambda x, y, layer, step: F.cross_entropy(x, y).detach() + divergence(x),
    "less of it": lambda *given: -mean(*given),
    "its square": lambda *given: mean(*given).square(),
}


RULE = functools.partial(Memory, keep=0.5, warmup=Epochs(1))


def lightning_fit(loss, form, *, manual=False, losses=None, **options):
    """Trains for two epochs of four steps; gives the module, and how many steps it made."""
    lightning = pytest.importorskip("lightning", reason="needs siftback[lightning]")
    from siftback.frameworks.lightning import SelectiveCallback, SelectiveDataModule

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Linear(6, 3)
            self.automatic_optimization = not manual
            self.rows = []

        def training_step(self, batch, batch_idx):
            self.log("calls", 1.0, reduce_fx="sum", on_step=False, on_epoch=True)
            x, y = batch
            value = loss(self.net(x), y, self.net.weight, self.global_step)
            self.rows.append(len(y))
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(value)
                optimizer.step()
            return value

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    module, loader = Net(), DataLoader(TensorDataset(*examples()), 16)
    callbacks = {"callback": [SelectiveCallback(0.5, schedule=AT_ONCE, losses=losses)]}
    callbacks["warm callback"] = [SelectiveCallback(0.5, losses=losses)]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=callbacks.get(form),
        accelerator="cpu",
        enable_checkpointing=False,
        **(quiet | options),
    )
    if form in callbacks:
        trainer.fit(module, loader)
    else:
        trainer.fit(module, datamodule=SelectiveDataModule(loader, RULE()))
    return module, trainer


@pytest.mark.parametrize("form", ["callback", "memory"])
@pytest.mark.parametrize("loss", ALIKE)
def test_lightning_takes_a_loss_that_ranks_examples_as_its_loss_function(loss, form):
    module, trainer = lightning_fit(ALIKE[loss], form)
    assert trainer.global_step == 8
    assert len(module.rows) == 8  # what was run again for a few rows is undone
    assert trainer.callback_metrics["calls"] == 4


@pytest.mark.parametrize("form", ["callback", "warm callback", "memory"])
@pytest.mark.parametrize("loss", OTHER)
def test_lightning_refuses_a_loss_that_prefers_other_examples(loss, form):
    with pytest.raises(ConfigError, match=r"training_step trains on .* cross_entropy") as error:
        lightning_fit(OTHER[loss], form)
    advice = "return self.trainer.datamodule.loss" if form == "memory" else "losses=fn"
    assert advice in str(error.value)


def test_lightning_refuses_before_the_first_step_changes_a_weight():
    before = []

    def noting(logits, targets, layer, step):
        before.append(layer.detach().clone())
        return OTHER["class weights"](logits, targets, layer, step)

    with pytest.raises(ConfigError, match="training_step trains on"):
        lightning_fit(noting, "callback")
    assert all(torch.equal(before[0], layer) for layer in before)


@pytest.mark.parametrize("loss", ["itself", "half", "a constant"])
def test_lightning_takes_a_factor_in_manual_optimization(loss):
    if loss == "a constant":  # a manual step cannot be run for a few rows again
        with pytest.raises(ConfigError, match="training_step trains on"):
            lightning_fit(ALIKE[loss], "callback", manual=True)
        return
    module, trainer = lightning_fit(ALIKE[loss], "callback", manual=True)
    assert trainer.global_step == len(module.rows) == 8


@pytest.mark.parametrize("loss", OTHER)
def test_lightning_refuses_other_losses_in_manual_optimization(loss):
    with pytest.raises(ConfigError, match="training_step trains on"):
        lightning_fit(OTHER[loss], "callback", manual=True)


def test_lightning_divides_by_accumulated_batches_after_the_step():
    _, trainer = lightning_fit(mean, "callback", accumulate_grad_batches=2)
    assert trainer.global_step == 4


# Hugging Face: an override of compute_loss in the class itself or in one that the mixin is of,
# and functions, of which the second kind trains on other losses than the model's own.
def weighted(outputs, labels):
    return F.cross_entropy(outputs.logits, labels, WEIGHTS)


def hidden_penalty(outputs):
    return outputs.hidden_states[-1][:, :, :4].square().mean()


TRAINED = {
    "the model's own": (lambda outputs, model, labels: outputs.loss, True),
    "twice it": (lambda outputs, model, labels: outputs.loss * 2, True),
    "the same by hand": (
        lambda outputs, model, labels: F.cross_entropy(outputs.logits.float(), labels),
        True,
    ),
    "a penalty of weights": (
        lambda outputs, model, labels: outputs.loss + model.classifier.weight.square().sum(),
        True,
    ),
    "class weights": (lambda outputs, model, labels: weighted(outputs, labels), False),
    "focal": (
        lambda outputs, model, labels: (lambda each: ((1 - (-each).exp()) ** 2 * each).mean())(
            unreduced(outputs.logits, labels)
        ),
        False,
    ),
    "a penalty of hidden states": (
        lambda outputs, model, labels: outputs.loss + hidden_penalty(outputs),
        False,
    ),
    "another part of the model": (
        lambda outputs, model, labels: hidden_penalty(outputs),
        False,
    ),
}


def huggingface_trainer(folder, method, kind="mixin", trained=None, settings=None, **given):
    """A tiny classifier whose trainer computes its loss by `trained`."""
    transformers = pytest.importorskip("transformers")
    from siftback.frameworks.huggingface import SelectiveTrainerMixin

    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs["labels"]
            outputs = model(**inputs, output_hidden_states=True)
            loss = trained(outputs, self.model, labels)
            self.computed = getattr(self, "computed", 0) + 1
            return (loss, outputs) if return_outputs else loss

    if kind == "base":

        class Tried(SelectiveTrainerMixin, Own):
            pass

    elif kind == "itself":

        class Tried(SelectiveTrainerMixin, transformers.Trainer):
            compute_loss = Own.compute_loss

    else:

        class Tried(SelectiveTrainerMixin, transformers.Trainer):
            pass

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=70, hidden_size=16, num_labels=3, **sizes)
    torch.manual_seed(0)
    basic = {"per_device_train_batch_size": 8, "num_train_epochs": 2, "report_to": "none"}
    basic |= {"disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    basic |= {"train_sampling_strategy": "sequential"}
    args = transformers.TrainingArguments(str(folder), **(basic | (settings or {})))
    selection = {"memory": RULE()} if method == "memory" else {"selector": TopK(keep=0.5)}
    data = [{"input_ids": [row + 1, row % 5, 2], "labels": row % 3} for row in range(32)]
    model = transformers.BertForSequenceClassification(config)
    with torch.no_grad():
        model.classifier.weight.mul_(50)  # so that the losses differ
    if method != "memory":
        selection["method"] = method
    return Tried(model, args, train_dataset=data, **(selection | given))


@pytest.mark.parametrize("kind", ["base", "itself"])
@pytest.mark.parametrize("method", ["two_pass", "memory"])
@pytest.mark.parametrize("loss", TRAINED)
@pytest.mark.sampled(3)
def test_a_trainer_chooses_by_the_loss_that_it_trains_on(loss, method, kind, tmp_path):
    trained, alike = TRAINED[loss]
    ours = huggingface_trainer(tmp_path, method, kind, trained)
    if alike:
        ours.train()
        assert ours.state.global_step == ours.computed == 8
        return
    before = [weight.detach().clone() for weight in ours.model.parameters()]
    with pytest.raises(ConfigError, match=r"trains on another loss.*losses=fn\(model, batch\)"):
        ours.train()
    assert ours.state.global_step == 0
    assert all(map(torch.equal, before, ours.model.parameters()))


@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_a_trainer_refuses_a_term_that_anneals_in(method, tmp_path):
    def annealed(outputs, model, labels):
        return outputs.loss + 0.1 * ours.state.global_step * hidden_penalty(outputs)

    ours = huggingface_trainer(tmp_path, method, "itself", annealed)
    with pytest.raises(ConfigError, match="trains on another loss"):
        ours.train()
    assert 1 <= ours.state.global_step <= 3


GIVEN = {
    "bfloat16": {"bf16": True},
    "accumulation": {"gradient_accumulation_steps": 2},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
}


@pytest.mark.filterwarnings("ignore:Schedule.* never selects:UserWarning")
@pytest.mark.parametrize("method", ["two_pass", "memory"])
@pytest.mark.parametrize("setting", GIVEN)
def test_a_trainer_with_other_settings_is_not_refused(setting, method, tmp_path):
    ours = huggingface_trainer(tmp_path, method, settings=GIVEN[setting] | {"max_steps": 2})
    refuses = (method, setting) == ("memory", "compiled")
    with pytest.raises(ConfigError, match="torch_compile") if refuses else contextlib.nullcontext():
        ours.train()
        assert ours.state.global_step == 2


def test_class_weights_of_a_compiled_trainer_are_refused(tmp_path):
    trained, _ = TRAINED["class weights"]
    ours = huggingface_trainer(tmp_path, "two_pass", "itself", trained, GIVEN["compiled"])
    with pytest.raises(ConfigError, match="trains on another loss"):
        ours.train()


def of_classes(outputs_or_model, batch):
    """The losses that `weighted` is the mean of, up to a factor."""
    outputs = outputs_or_model
    if callable(outputs):
        outputs = outputs(**{name: part for name, part in batch.items() if name != "labels"})
    labels = batch["labels"]
    return F.cross_entropy(outputs.logits, labels, WEIGHTS, reduction="none")


def loss_func(outputs, labels, num_items_in_batch=None):
    return weighted(outputs, labels)


@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_a_trainer_s_loss_function_is_compared_too_and_its_losses_can_be_given(method, tmp_path):
    ours = huggingface_trainer(tmp_path, method, compute_loss_func=loss_func)
    with pytest.raises(ConfigError, match=r"trains on another loss.*losses=fn\(model, batch\)"):
        ours.train()
    given = {"losses": of_classes, "compute_loss_func": loss_func}
    if method == "two_pass":
        given["schedule"] = AT_ONCE
    ours = huggingface_trainer(tmp_path, method, settings={"learning_rate": 0.0}, **given)
    batches = []
    compute = ours.compute_loss

    def computing(model, inputs, *args, **kwargs):
        batches.append((inputs["input_ids"][:, 0] - 1).tolist())
        return compute(model, inputs, *args, **kwargs)

    ours.compute_loss = computing
    ours.train()
    ours.model.eval()
    if method == "two_pass":  # the rows of the highest weighted losses, of the rare class first
        for start, kept in zip(range(0, 32, 8), batches, strict=False):
            batch = ours.data_collator([ours.train_dataset[row] for row in range(start, start + 8)])
            with torch.no_grad():
                expected = of_classes(ours.model, dict(batch)).topk(4).indices.sort().values + start
            assert kept == expected.tolist()
        kept = torch.tensor([row for batch in batches for row in batch])
        assert (kept % 3 == 2).sum() == 2 * 10  # each of the ten examples of it, in both epochs
    else:
        values = ours._rule.values[:, 0]
        assert values[2::3].min() > values[torch.arange(32) % 3 != 2].max()


@pytest.mark.parametrize("method", ["two_pass", "memory", "single_pass"])
def test_label_smoothing_is_refused_before_training(method, tmp_path):
    ours = huggingface_trainer(tmp_path, method, settings={"label_smoothing_factor": 0.1})
    with pytest.raises(ConfigError, match=r"label_smoothing_factor.*losses=fn"):
        ours.train()


def test_a_selector_that_needs_no_losses_is_not_compared(tmp_path):
    trained, _ = TRAINED["class weights"]
    ours = huggingface_trainer(tmp_path, "two_pass", "itself", trained, selector=Uniform(keep=0.5))
    ours.train()
    assert ours.state.global_step == 8
