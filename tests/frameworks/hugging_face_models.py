"""Tiny models, data and trainers of Hugging Face, for tests in one process and in several."""

from functools import partial

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

import transformers
from siftback import Epochs, Memory
from siftback.frameworks.huggingface import SelectiveTrainerMixin
from toys import AT_ONCE
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

# Older releases load an optimizer's state to the device "cpu:0", which torch does not know.
RESUMES_PROCESSES = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 23)

WORDS = 100
TINY = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "pad_token_id": 0,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def classifier(**settings):
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**TINY, num_labels=3, **settings))


def language_model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**TINY))


class LookupForCausalLM(PreTrainedModel):
    """Predicts from each token alone, so that it is traced in a tenth of the time of a Llama."""

    config_class = LlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        logits, loss = self.head(self.embedding(input_ids)), None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return CausalLMOutput(loss=loss, logits=logits)


def lookup_model():
    torch.manual_seed(0)
    return LookupForCausalLM(LlamaConfig(**TINY))


def sentences(count, kind):
    """Examples of different lengths, whose first token says which one it is."""
    generator = torch.Generator().manual_seed(count)
    examples = []
    for index in range(count):
        length = int(torch.randint(3, 9, (1,), generator=generator))
        ids = [index + 1, *torch.randint(1, WORDS, (length,), generator=generator).tolist()]
        labels = index % 3 if kind == "classifier" else [-100, *ids[1:]]
        examples.append({"input_ids": ids, "labels": labels})
    return examples


def padded(examples, longest=0):
    """A batch as long as its longest example."""
    longest = longest or max(len(example["input_ids"]) for example in examples)

    def of(key, filler):
        rows = [example[key] for example in examples]
        return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])

    ids = of("input_ids", 0)
    if isinstance(examples[0]["labels"], int):
        labels = torch.tensor([example["labels"] for example in examples])
    else:
        labels = of("labels", -100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


MODELS = {"classifier": classifier, "language model": language_model}


class Watching:
    """Notes which examples each backward trains on, with what loss, and the gradient of steps."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches, self.losses, self.gradients = [], [], []
        self.add_callback(_Gradients(self))

    def training_step(self, model, inputs, *args, **kwargs):
        self.batches.append((inputs["input_ids"][:, 0] - 1).tolist())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.losses.append(loss)
        return loss


class _Gradients(TrainerCallback):
    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        weights = self.trainer.model.parameters()
        found = [weight.grad.clone() for weight in weights if weight.requires_grad]
        self.trainer.gradients.append(found)


class Plain(Watching, Trainer):
    pass


class Selective(Watching, SelectiveTrainerMixin, Trainer):
    pass


WITHIN_THE_STEP = ("two_pass", "single_pass", "auto")
BASIC = {
    "per_device_train_batch_size": 8,
    "num_train_epochs": 2,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "dataloader_pin_memory": False,
}


def arguments(folder, **settings):
    return TrainingArguments(str(folder), **(BASIC | settings))


def trainer(folder, kind, count=48, *, of=Selective, model=None, selection=None, **settings):
    given = {"method": "two_pass"} if selection is None and of is Selective else selection or {}
    if given.get("method") in WITHIN_THE_STEP and "selector" not in given:
        given = {"keep": 1 / 2} | given
    if given.get("method") in WITHIN_THE_STEP:
        given = {"schedule": AT_ONCE} | given
    # A single pass is compiled once more if lengths vary.
    collate = partial(padded, longest=12) if given.get("method") == "single_pass" else padded
    ours = of(
        model=MODELS[kind]() if model is None else model,
        args=arguments(folder, **settings),
        data_collator=collate,
        train_dataset=sentences(count, kind),
        eval_dataset=sentences(12, kind),
        **given,
    )
    ours.selection_given = given
    return ours


def selection(method):
    if method == "memory":
        return {"memory": Memory(keep=0.5, warmup=Epochs(1))}
    return {"method": method, "keep": 1 / 2, "schedule": AT_ONCE}


def weights_of(trainer):
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def vocabulary():
    """A tokenizer of a few words, with padding and a mask."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[MASK]", *(f"w{number}" for number in range(90))]
    model = tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model),
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )


def epochs_of(trainer, lengths):
    """The rows that were trained on, by epoch, from the numbers of batches."""
    batches = iter(trainer.batches)
    return [[row for _ in range(count) for row in next(batches)] for count in lengths]


class Lengths:
    """Counts and learning rates of a training."""

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
