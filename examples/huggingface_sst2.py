"""Sentiment of film reviews with Hugging Face's Trainer, on the examples worth a backward pass."""

import argparse
import os
from pathlib import Path

from datasets import load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import transformers
from siftback import Memory
from siftback.frameworks.huggingface import SelectiveTrainerMixin


class MyTrainer(SelectiveTrainerMixin, transformers.Trainer):
    pass


def main(method, keep, examples, epochs, out):
    # Set SIFTBACK_DATA to a folder with sst2/train-*.parquet and so on, or be online.
    here = Path(os.environ.get("SIFTBACK_DATA", "../shared/data"), "sst2")
    data = load_dataset(str(here) if here.is_dir() else "stanfordnlp/sst2")
    train = data["train"].select(range(min(examples, len(data["train"]))))
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    learning = trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"])
    words.train_from_iterator(train["sentence"], learning)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    # A single pass is compiled once more if the lengths of batches vary.
    cut = {"truncation": True, "max_length": 40}
    cut["padding"] = "max_length" if method == "single_pass" else False
    encode = {"function": lambda rows: tokenizer(rows["sentence"], **cut), "batched": True}
    size = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    size |= {"vocab_size": len(tokenizer), "intermediate_size": 128, "pad_token_id": 0}
    args = {"num_train_epochs": epochs, "learning_rate": 2e-3, "warmup_steps": 20}
    args |= {"report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    if method == "memory":
        selection = {"memory": Memory(keep=keep)}
    else:
        selection = {"method": method, "keep": keep}
    trainer = MyTrainer(
        transformers.BertForSequenceClassification(transformers.BertConfig(**size)),
        transformers.TrainingArguments(out, per_device_train_batch_size=32, **args),
        train_dataset=train.map(**encode),
        eval_dataset=data["validation"].map(**encode),
        processing_class=tokenizer,
        compute_metrics=lambda found: {"accuracy": (found[0].argmax(1) == found[1]).mean()},
        **selection,
    )
    steps, stats = trainer.train().global_step, trainer.stats
    print(f"validation accuracy {trainer.evaluate()['eval_accuracy']:.1%} after {steps} steps")
    plain = f"plain training of as many epochs: {epochs * len(train)} of both"
    print(f"{stats.backwards} backwards and {stats.forwards} forwards; {plain}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=("two_pass", "single_pass", "memory"), default="memory")
    for name, value in {"keep": 0.5, "examples": 6920, "epochs": 4, "out": "runs/sst2"}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    main(**vars(parser.parse_args()))
