"""Losses of sentence-transformers: those of whole batches are refused, and others are watched."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from siftback import Epochs, Memory, Schedule, SelectiveLoader
from siftback.errors import ConfigError, LossError

losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")  # of release 6
pytestmark = pytest.mark.filterwarnings("ignore")

from datasets import Dataset  # noqa: E402
from sentence_transformers import (  # noqa: E402
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import modules  # noqa: E402

from siftback.frameworks.huggingface import SelectiveTrainerMixin  # noqa: E402
from transformers import BertConfig, BertModel, BertTokenizerFast  # noqa: E402

WORDS = ["cat", "dog", "sun", "rain", "red", "blue", "runs", "sleeps", "##s", "##ing"]
PAIRS, BATCH = 24, 8


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    """A BERT with a WordPiece vocabulary of a few words, as ``from_pretrained`` reads it."""
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(vocabulary), intermediate_size=16, **sizes)
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def encoder(encoder_folder):
    layers = [modules.Transformer(str(encoder_folder)), modules.Pooling(16)]
    return SentenceTransformer(modules=layers, device="cpu")


def pairs():
    """Pairs of sentences, of which every second has the score 1, as they are the same."""
    first = [f"{WORDS[n % 8]} {WORDS[3 * n % 8]}" for n in range(PAIRS)]
    second = [text if n % 2 else f"{WORDS[5 * n % 8]}" for n, text in enumerate(first)]
    scores = [float(n % 2) for n in range(PAIRS)]
    return Dataset.from_dict({"first": first, "second": second, "score": scores})


class SelectiveSentences(SelectiveTrainerMixin, SentenceTransformerTrainer):
    pass


IN_BATCH = ["MultipleNegativesRankingLoss", "MultipleNegativesSymmetricRankingLoss", "CoSENTLoss"]
SELECTIONS = {
    "two_pass": {"keep": 0.5, "schedule": Schedule(warmup=Epochs(0))},
    "single_pass": {"keep": 0.5, "method": "single_pass"},
    "memory": {"memory": Memory()},
    "losses": {"keep": 0.5, "losses": lambda model, batch: torch.zeros(BATCH)},
}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", IN_BATCH)
def test_a_trainer_refuses_a_loss_of_the_whole_batch_by_name(encoder, name, selection, tmp_path):
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), per_device_train_batch_size=BATCH, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = SelectiveSentences(
        model=encoder, args=arguments, train_dataset=pairs(), loss=getattr(losses, name)(encoder),
        **SELECTIONS[selection],
    )  # fmt: skip
    before = [weight.detach().clone() for weight in encoder.parameters()]
    with pytest.raises(ConfigError, match=name):
        trainer.train()
    assert trainer.state.global_step == 0
    assert all(map(torch.equal, before, encoder.parameters()))


def features_of(encoder, batch):
    return [encoder.preprocess(batch[column]) for column in ("first", "second")]


@pytest.mark.parametrize("name", IN_BATCH)
def test_a_loop_refuses_a_loss_of_the_whole_batch_by_name(encoder, name):
    loader = SelectiveLoader(DataLoader(pairs(), BATCH), memory=Memory(), epochs=2)
    watched = loader.watch(getattr(losses, name)(encoder))
    batch = next(iter(loader))
    with pytest.raises(LossError, match=name):
        watched(features_of(encoder, batch), batch["score"])


def test_a_loss_that_can_be_split_is_remembered_row_by_row(encoder):
    encoder.eval()  # without dropout, so that losses can be computed again
    rule = Memory(keep=0.5, warmup=Epochs(1))
    loader = SelectiveLoader(DataLoader(pairs(), BATCH, shuffle=True), memory=rule, epochs=3)
    mean = losses.CosineSimilarityLoss(encoder)
    watched = loader.watch(
        losses.CosineSimilarityLoss(encoder, loss_fct=nn.MSELoss(reduction="none"))
    )
    steps = 0
    for _ in range(3):
        for batch in loader:
            loss = watched(features_of(encoder, batch), batch["score"])
            torch.testing.assert_close(loss, mean(features_of(encoder, batch), batch["score"]))
            steps += 1
    assert steps == loader.total_steps == 3 * PAIRS // BATCH
    assert loader.stats.unread == 4 * PAIRS // 2
    for index, row in enumerate(pairs()):
        pair = {column: [value] for column, value in row.items()}
        expected = mean(features_of(encoder, pair), torch.tensor(pair["score"]))
        expected = expected.detach().reshape(1).float()
        torch.testing.assert_close(rule.values[index], expected, rtol=1e-3, atol=1e-5)
