"""Selection in Hugging Face's Trainer refuses by name, before it trains."""

import copy
import warnings

import pytest
import torch

pytest.importorskip("transformers")

from accelerate import ParallelismConfig
from hugging_face_models import (
    BASIC,
    NO_DROPOUT,
    TINY,
    Watching,
    classifier,
    language_model,
    same,
    selection,
    sentences,
    trainer,
    vocabulary,
    weights_of,
)

import transformers
from siftback import Epochs, InfoBatch, Kakurenbo, Memory, NoiseGuard, Schedule, Stale, TopK
from siftback.errors import BatchError, ConfigError, LossError, StateError
from siftback.frameworks.huggingface import SelectiveTrainerMixin

REFUSED = {
    "method": ({"method": "three_pass"}, {}, "three_pass"),
    "neither": ({"method": "two_pass", "keep": None}, {}, "give one of them"),
    "memory in a single pass": ({"method": "single_pass", "memory": Memory()}, {}, "memory=Memory"),
    "selector in memory": ({"memory": Memory(), "selector": TopK(keep=0.5)}, {}, "selector= given"),
    "both": ({"memory": Memory(), "keep": 0.5}, {}, "keep= given"),
    "no rule": ({"memory": Memory}, {}, "is not an EpochRule"),
    "scoring passes": (
        {"memory": Stale(keep=0.5, every=2, warmup=Epochs(0))},
        {},
        "Stale is",
    ),
    "predictions": ({"memory": Kakurenbo()}, {}, "with Kakurenbo, which needs predictions: give"),
    "small batches": ({"method": "two_pass"}, {"per_device_train_batch_size": 1}, "batches of 1"),
    "batch sizes": ({"method": "two_pass"}, {"auto_find_batch_size": True}, "auto_find_batch"),
    "split": ({"memory": Memory()}, {"accelerator_config": {"split_batches": True}}, "split_bat"),
    "order of workers": (
        {"memory": Memory()},
        {"dataloader_in_order": False, "dataloader_num_workers": 2},
        "dataloader_in_order=False",
    ),
    "smoothing": ({"method": "single_pass"}, {"label_smoothing_factor": 0.1}, "label_smoothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_by_name(name, tmp_path):
    given, settings, message = REFUSED[name]
    in_order = hasattr(transformers.TrainingArguments, "dataloader_in_order")
    if name == "order of workers" and not in_order:
        pytest.skip("this release of transformers has no dataloader_in_order")
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path, "classifier", selection=given, **settings).train()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collator_that_sorts_is_refused_with_a_rule(tmp_path, workers):
    chosen = trainer(
        tmp_path, "classifier", selection={"memory": Memory()}, dataloader_num_workers=workers
    )
    collate = chosen.data_collator
    chosen.data_collator = lambda rows: collate(
        sorted(rows, key=lambda row: -sum(row["input_ids"]))
    )
    with pytest.raises(ConfigError, match="data_collator changes the order of examples"):
        chosen.train()


class OwnLoader(Watching, SelectiveTrainerMixin, transformers.Trainer):
    def get_train_dataloader(self):
        loader = torch.utils.data.DataLoader(
            self.train_dataset, self.args.train_batch_size, collate_fn=self.data_collator
        )
        return self.accelerator.prepare(loader)


class OwnSampler(Watching, SelectiveTrainerMixin, transformers.Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


@pytest.mark.parametrize("of", [OwnLoader, OwnSampler])
def test_a_loader_of_one_s_own_is_selected_from_within_the_step_alone(of, tmp_path):
    with pytest.raises(ConfigError, match="training loader or sampler of its own"):
        trainer(tmp_path, "classifier", of=of, selection=selection("memory")).train()
    primed = {"method": "two_pass", "schedule": Schedule(warmup=Epochs(1))}
    ours = trainer(tmp_path, "classifier", of=of, selection=primed)
    ours.train()
    assert [len(rows) for rows in ours.batches] == [8] * 6 + [4] * 6
    assert [rows[0] for rows in ours.batches[:6]] == list(range(0, 48, 8))


class OwnStep(transformers.Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        names = ("input_ids", "attention_mask", "labels")
        loss = model(**{name: inputs[name] for name in names}).loss
        self.accelerator.backward(loss)
        return loss.detach()


class Below(SelectiveTrainerMixin, OwnStep):
    pass


class Above(OwnStep, SelectiveTrainerMixin):
    pass


@pytest.mark.parametrize("of", [Below, Above])
@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_a_step_whose_losses_are_never_seen_is_refused_at_the_next(method, of, tmp_path):
    ours = trainer(tmp_path, "classifier", of=of, selection=selection(method))
    with pytest.raises(ConfigError, match=f"{of.__name__} did not call its compute_loss"):
        ours.train()
    assert ours.state.global_step == 1


class Asking(transformers.TrainerCallback):
    """Asks for another training loader within a training."""

    def on_step_end(self, args, state, control, **kwargs):
        assert len(self.trainer.get_train_dataloader()) == 6


@pytest.mark.parametrize(
    "given",
    [
        {"memory": Memory(keep=0.5, warmup=Epochs(1))},
        {"memory": InfoBatch(0.7, 1.0)},
        {"method": "two_pass", "schedule": Schedule(warmup=Epochs(1))},
    ],
    ids=["Memory", "InfoBatch", "two passes"],
)
def test_another_loader_that_a_callback_asks_for_changes_nothing(given, tmp_path):
    settings = {"num_train_epochs": 3, "train_sampling_strategy": "sequential"}
    trainers = []
    for _ in range(2):
        model = classifier(**NO_DROPOUT)
        chosen = copy.deepcopy(given)
        trainers.append(trainer(tmp_path, "classifier", model=model, selection=chosen, **settings))
    asking = Asking()
    asking.trainer = trainers[1]
    trainers[1].add_callback(asking)
    for ours in trainers:
        ours.train()
        ours.stats.seconds_selection = 0.0
    assert trainers[0].batches == trainers[1].batches
    assert trainers[0].stats == trainers[1].stats
    assert same(*map(weights_of, trainers))


@pytest.mark.parametrize("method", ["two_pass", "single_pass"])
@pytest.mark.parametrize("warmup", [0, 1])
def test_batches_of_one_row_for_all_examples_are_refused(method, warmup, tmp_path):
    given = {"method": method, "schedule": Schedule(warmup=Epochs(warmup))}
    ours = trainer(tmp_path, "language model", selection=given)
    ours.data_collator = transformers.DataCollatorWithFlattening()
    with pytest.raises(BatchError, match=r"has 1 rows, all of which keep=0\.5 keeps"):
        ours.train()


def test_a_guard_takes_losses_that_are_minus_log_probabilities_alone(tmp_path):
    def weighed(outputs, batch):
        weights = torch.tensor([1.0, 2.0, 5.0])
        each = torch.nn.functional.cross_entropy
        return each(outputs.logits, batch["labels"], weights, reduction="none")

    for losses in ({}, {"losses": weighed}):
        given = {"memory": Memory(keep=0.5, guard=NoiseGuard(3)), **losses}
        ours = trainer(tmp_path, "classifier", selection=given)
        if losses:
            with pytest.raises(ConfigError, match="the losses are cross-entropy with weights"):
                ours.train()
        else:
            ours.train()
        assert ours.state.global_step == (0 if losses else 12)


def parallel(trainer):
    trainer.accelerator.state.parallelism_config = ParallelismConfig(cp_size=2)


def attribute(name, value=True):
    """Leaves on the Trainer the trace of a setting that needs other hardware."""
    return lambda trainer: setattr(trainer, name, value)


UNFIT = {  # of any method
    "several GPUs": (lambda trainer: setattr(trainer.args, "_n_gpu", 2), "several GPUs in one"),
    "fsdp": (attribute("is_fsdp_enabled"), "FSDP or DeepSpeed"),
    "deepspeed": (attribute("is_deepspeed_enabled"), "FSDP or DeepSpeed"),
    "sharded": (attribute("is_distributed_loading_by_transformers"), "sharded as it is loaded"),
    "tensor parallel": (lambda trainer: setattr(trainer.model, "_tp_size", 2), "tensor, context"),
    "context parallel": (parallel, "tensor, context or sequence parallelism"),
}


@pytest.mark.parametrize("method", ["two_pass", "single_pass", "memory"])
@pytest.mark.parametrize("name", UNFIT)
def test_what_no_method_works_with_is_refused_before_training(name, method, tmp_path):
    fit, message = UNFIT[name]
    argument = "memory=" if method == "memory" else f'method="{method}"'
    ours = trainer(tmp_path, "classifier", selection=selection(method))
    fit(ours)
    with pytest.raises(ConfigError, match=f"{argument} does not work with .*{message}"):
        ours.train()
    assert not ours.batches


def test_trl_s_batches_without_rows_are_refused(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")

    class Tuning(SelectiveTrainerMixin, trl.SFTTrainer):
        pass

    data = [{"input_ids": example["input_ids"]} for example in sentences(16, "language model")]
    settings = BASIC | {
        "output_dir": str(tmp_path),
        "bf16": False,
        "padding_free": True,
        "max_length": None,
    }
    with warnings.catch_warnings(action="ignore"):  # about kernels that this needs
        args = trl.SFTConfig(**settings)
        data = datasets.Dataset.from_list(data)
        given = {"train_dataset": data, "processing_class": vocabulary(), "keep": 1 / 2}
        ours = Tuning(model=language_model(), args=args, **given)
    with pytest.raises(ConfigError, match="padding_free=True, whose batches have no rows"):
        ours.train()


def mixture():
    sizes = {"num_local_experts": 2, "num_key_value_heads": 1, "output_router_logits": True}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**TINY, **sizes))


def test_losses_that_a_single_pass_does_not_compute_are_refused(tmp_path):
    single = {"kind": "language model", "selection": selection("single_pass")}
    with pytest.raises(ConfigError, match="a router's auxiliary loss"):
        trainer(tmp_path, model=mixture(), **single).train()
    with pytest.raises(ConfigError, match="torch_compile"):
        trainer(tmp_path, torch_compile=True, **single).train()
    ours = trainer(tmp_path, **single)
    ours.compute_loss_func = lambda outputs, labels, num_items_in_batch: outputs.logits.sum()
    with pytest.raises(ConfigError, match="compute_loss_func"):
        ours.train()

    class Doubling(Watching, SelectiveTrainerMixin, Doubled):
        pass

    with pytest.raises(ConfigError, match=r"a compute_loss of Doubled's own"):
        trainer(tmp_path, of=Doubling, **single).train()
    # Two passes train by the Trainer's own loss, whatever it is.
    two = trainer(tmp_path, "language model", model=mixture(), max_steps=1)
    two.train()
    assert [len(batch) for batch in two.batches] == [4]


class Doubled(transformers.Trainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) * 2

    def get_train_dataloader(self):
        return super().get_train_dataloader()


def test_orders_and_loaders_that_a_memory_does_not_have_are_refused(tmp_path):
    memory = {"kind": "classifier", "selection": selection("memory")}

    class Loading(Watching, SelectiveTrainerMixin, Doubled):
        pass

    with pytest.raises(ConfigError, match=r"a training loader of \['Doubled'\]"):
        trainer(tmp_path, of=Loading, **memory).train()
    with pytest.raises(ConfigError, match="torch_compile"):
        trainer(tmp_path, torch_compile=True, **memory).train()
    with pytest.raises(ConfigError, match="another trial of a search"):
        trainer(tmp_path, **memory).train(trial={"learning_rate": 0.1})


def test_a_compute_loss_of_one_s_own_is_refused_by_a_single_pass(tmp_path):
    class Own(SelectiveTrainerMixin, transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs).loss

    with pytest.raises(ConfigError, match=r"a compute_loss of Own's own.*losses=fn"):
        trainer(tmp_path, "classifier", of=Own, selection=selection("single_pass")).train()
    trainer(tmp_path, "classifier", of=Own, selection=selection("two_pass"), max_steps=1).train()
    memory = selection("memory")
    trainer(tmp_path, "classifier", of=Own, selection=memory, num_train_epochs=1).train()
    assert not memory["memory"].values.isnan().any()


def test_a_model_whose_loss_is_not_known_is_refused_before_training(tmp_path):
    model = transformers.BertForNextSentencePrediction(transformers.BertConfig(**TINY))
    ours = trainer(tmp_path, "classifier", model=model)
    with pytest.raises(ConfigError, match="BertForNextSentencePrediction"):
        ours.train()


@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_batches_without_labels_are_refused_with_what_they_have(method, tmp_path):
    class Rewards(SelectiveTrainerMixin, transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs).logits.square().mean()

    ours = trainer(tmp_path, "classifier", of=Rewards, selection=selection(method))
    collate, names = ours.data_collator, ("input_ids", "attention_mask")
    ours.data_collator = lambda rows: {name: collate(rows)[name] for name in names}
    with pytest.raises(BatchError, match="a dict with input_ids, attention_mask, without labels"):
        ours.train()


@pytest.mark.parametrize("method", ["two_pass", "memory"])
def test_a_model_that_returns_tuples_is_refused_in_words(method, tmp_path):
    ours = trainer(tmp_path, "classifier", selection=selection(method), max_steps=1)
    ours.model.config.return_dict = False
    with pytest.raises(LossError, match="a tuple has no logits"):
        ours.train()


def test_streams_of_examples_are_refused_by_memory_and_fine_in_two_passes(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(sentences(48, "classifier"))

    for method in ("two_pass", "memory"):
        ours = trainer(tmp_path, "classifier", selection=selection(method), max_steps=4)
        ours.train_dataset = Stream()
        if method == "memory":
            with pytest.raises(ConfigError, match="Stream without length or index"):
                ours.train()
        else:
            ours.train()
            assert [len(batch) for batch in ours.batches] == [4] * 4


def test_a_checkpoint_of_other_arguments_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    trainer(tmp_path, "classifier", **settings).train()
    place = str(tmp_path / "checkpoint-2")
    for other, message in {
        "method": (selection("memory"), "method='two_pass'"),
        "seed": ({"method": "two_pass", "seed": 1}, "seed=42"),
        "keep": ({"method": "two_pass", "keep": 1 / 4}, "keep=0.5"),
    }.values():
        with pytest.raises(StateError, match=message):
            trainer(tmp_path, "classifier", selection=other, **settings).train(place)
    with pytest.raises(StateError, match="batch_size=8"):
        trainer(tmp_path, "classifier", per_device_train_batch_size=4, **settings).train(
            resume_from_checkpoint=place
        )
    (tmp_path / "checkpoint-2" / "sift_state.pth").unlink()
    with pytest.raises(StateError, match=r"no sift_state\.pth"):
        trainer(tmp_path, "classifier", **settings).train(resume_from_checkpoint=place)


def test_memory_resumes_at_its_place_alone(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 8}
    trainer(tmp_path, "classifier", selection=selection("memory"), **settings).train()
    again = trainer(
        tmp_path,
        "classifier",
        selection=selection("memory"),
        ignore_data_skip=True,
        **settings,
    )
    with pytest.raises(ConfigError, match="ignore_data_skip"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))


class EndingEpochs(transformers.TrainerCallback):
    """Ends the first epoch two steps early."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step == 4


def test_memory_is_not_resumed_after_an_epoch_that_a_callback_ended(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3}
    settings |= {"save_total_limit": None, "eval_strategy": "no"}

    def ended(place=None):
        ours = trainer(tmp_path, "classifier", selection=selection("memory"), **settings)
        ours.add_callback(EndingEpochs())
        ours.train(resume_from_checkpoint=place and str(tmp_path / place))
        return ours

    whole = ended()
    assert whole.state.global_step == 4 + 6 + 6
    assert ended("checkpoint-3").batches == whole.batches[3:]
    for step, epochs, skipped in (
        (6, "1.33333", "1"),
        (8, "1.66667", "1.33333"),
        (10, "2", "1.6"),
    ):
        message = f"is of epoch {epochs}, and the Trainer goes on from {skipped}"
        with pytest.raises(StateError, match=message):
            ended(f"checkpoint-{step}")
