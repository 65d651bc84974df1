"""Texts as tokens, and batches of them."""

import datasets
import numpy as np
import pytest
import texts as made
import torch
from tokenizers import Tokenizer

from siftback.errors import ConfigError
from siftback.lab.data import texts as reader
from siftback.lab.data.data_set import PAD, lengths_of
from siftback.lab.data.load import flip, load
from siftback.lab.data.stream import BUCKET, BatchStream, evaluation_batches
from siftback.lab.data.tables import local_folder
from siftback.lab.data.texts import split_windows

# The real set, before a test's own folder takes its place.
SST2 = local_folder("sst2")


@pytest.fixture
def sst2(tmp_path, monkeypatch):
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SIFTBACK_DATA", str(made.write_sst2(tmp_path / "data")))
    return tmp_path


@pytest.fixture
def verses(tmp_path, monkeypatch):
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    return made.write_verses(tmp_path / "verses.txt")


def test_texts_are_cut_padded_and_kept(sst2, monkeypatch):
    data = load("sst2", max_tokens=8)
    written, labels = made.reviews(200)
    tokenizer = Tokenizer.from_str(data.tokenizer)
    for row in (0, 1, 7, 199):
        whole = tokenizer.encode(written[row]).ids
        assert data.train_inputs[row].tolist() == (whole[:8] + [PAD] * 8)[:8]
        assert tokenizer.decode(whole).strip() == written[row]
    assert data.train_labels.tolist() == labels
    assert (data.kind, data.classes, data.names) == ("texts", 2, ("negative", "positive"))
    assert data.unit == pytest.approx(float(lengths_of(data.train_inputs).float().mean()))
    # What is tested on is in the order of the lengths, and whole.
    lengths = lengths_of(data.test_inputs)
    assert bool((lengths.diff() >= 0).all())
    assert data.test_labels.bincount().tolist() == [20, 20]
    # Once tokenised they are kept, by length.
    monkeypatch.setattr(reader, "train_tokenizer", None)
    again = load("sst2", max_tokens=8)
    assert torch.equal(again.train_inputs, data.train_inputs)
    assert again.tokenizer == data.tokenizer
    with pytest.raises(TypeError):
        load("sst2", max_tokens=9)


def test_the_tokenizer_is_of_the_training_texts_alone_and_the_same_again(sst2):
    data = load("sst2")
    written, _ = made.reviews(200)
    assert data.tokenizer == reader.train_tokenizer(written)
    vocabulary = Tokenizer.from_str(data.tokenizer).get_vocab_size()
    assert data.vocabulary == vocabulary <= reader.VOCABULARY


def test_limits_and_holding_out_keep_classes_and_count_in_their_own_mean_example(sst2):
    data = load("sst2", train_limit=60, validation=10, flipped=0.2)
    assert len(data.train_labels) == 50
    assert data.true_labels.bincount().tolist() == [25, 25]
    assert int(data.flipped.sum()) == 10
    assert data.test_labels.bincount().tolist() == [5, 5]
    sizes = data.sizes(data.train_inputs)
    assert float(sizes.mean()) == pytest.approx(1.0)
    # What pruning leaves is still counted in the mean of all.
    longest = sizes.argsort()[-10:].sort().values
    left = data.subset(longest)
    assert torch.equal(left.sizes(left.train_inputs), sizes[longest])


def test_batches_are_sorted_within_a_few_and_padded_to_their_own_longest(sst2):
    data = load("sst2")
    stream = BatchStream(data, 10, seed=3, indexed=True)
    epochs = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        epochs.append(list(stream))
    first, second, again = ([b[0] for b in epoch] for epoch in epochs)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, second))
    assert torch.cat(first).sort().values.tolist() == list(range(200))
    plain = torch.zeros(200, 64, dtype=torch.int64)
    for indices, (inputs, labels) in epochs[0]:
        assert torch.equal(labels, data.train_labels[indices])
        assert inputs.shape[1] == int(lengths_of(inputs).max())
        plain[indices, : inputs.shape[1]] = inputs
    assert torch.equal(plain, data.train_inputs.long())
    lengths = [lengths_of(data.train_inputs)[part] for part in torch.cat(first).split(10 * BUCKET)]
    for number, part in enumerate(lengths):
        assert bool((part.diff() * (-1) ** number >= 0).all())
    # Left in part, they are as good as sorted, each of them once.
    chosen = torch.arange(0, 200, 3)
    stream.only(chosen)
    stream.set_epoch(1)
    drawn = list(stream)
    assert torch.cat([b[0] for b in drawn]).sort().values.tolist() == chosen.tolist()
    assert [len(b[0]) for b in drawn] == [10] * 6 + [7]
    # A place within an epoch is gone on from.
    stream.only(None)
    stream.set_epoch(2)
    batches = iter(stream)
    next(batches)
    state, expected = stream.state_dict(), next(batches)
    other = BatchStream(data, 10, seed=3, indexed=True)
    other.load_state_dict(state)
    assert torch.equal(next(iter(other))[0], expected[0])
    tested = list(evaluation_batches(data, 16))
    assert torch.equal(torch.cat([labels for _, labels in tested]), data.test_labels)


def test_a_file_is_windows_of_characters(verses):
    data = load(f"text:{verses}", max_tokens=16)
    whole = verses.read_text()
    tokenizer = Tokenizer.from_str(data.tokenizer)
    assert (data.kind, data.name) == ("language", "text:verses.txt")
    assert data.classes == len({*whole}) + 1
    train = int(0.9 * len(whole))
    assert len(data.train_inputs) == (train - 1) // 16
    text = tokenizer.decode(data.train_inputs.flatten().tolist())
    assert text == whole[: len(text)]
    assert tokenizer.decode(data.train_labels[3].tolist()) == whole[49:65]
    last = data.test_inputs
    assert tokenizer.decode(last.flatten().tolist()) == whole[train:][: last.numel()]
    assert (data.unit, data.tokens_per_character) == (16.0, 1.0)
    assert load(f"text:{verses}", train_limit=9, max_tokens=16).train_labels.shape == (9, 16)


def test_the_mark_of_a_file_of_windows_is_no_character(verses):
    plain = load(f"text:{verses}", max_tokens=16)
    verses.write_text(verses.read_text(), encoding="utf-8-sig")
    data = load(f"text:{verses}", max_tokens=16)
    assert data.classes == plain.classes
    assert torch.equal(data.train_inputs, plain.train_inputs)


def test_a_file_may_be_windows_of_byte_pairs(verses):
    data = load(f"text:{verses},tokens=bpe,vocabulary=300", max_tokens=8)
    whole = verses.read_text()
    encoding = Tokenizer.from_str(data.tokenizer).encode(whole[int(0.9 * len(whole)) :])
    ids = torch.tensor(encoding.ids, dtype=torch.int32)
    assert data.vocabulary <= 300
    share = len(ids) / (len(whole) - int(0.9 * len(whole)))
    assert data.tokens_per_character == pytest.approx(share)
    assert torch.equal(data.test_inputs, split_windows(ids, 8)[0])


def test_the_name_of_padding_in_a_text_is_no_padding(tmp_path, monkeypatch):
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    text = "to be [PAD] or not [PAD] to be, "
    (tmp_path / "text.txt").write_text(text * 40)
    for tokens in ("characters", "bpe,vocabulary=300"):
        data = load(f"text:{tmp_path / 'text.txt'},tokens={tokens}", max_tokens=8)
        assert PAD not in data.train_inputs
        assert PAD not in data.train_labels
        decoded = Tokenizer.from_str(data.tokenizer).decode(data.train_inputs.flatten().tolist())
        assert decoded == (text * 40)[: len(decoded)]
    rows = reader.encode_rows(data.tokenizer, [text, "to be"], 40)
    assert lengths_of(rows).tolist() == [(row.nonzero().max() + 1).item() for row in rows]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("npz:{images}", {"max_tokens": 8}, "max_tokens=8 of npz:.*, which holds images"),
        ("text:/nowhere/at/all.txt", {}, "there is no file /nowhere/at/all.txt"),
        ("text:{verses},tokens=words", {}, "tokens=words: give characters or bpe"),
        ("text:{verses},vocabulary=300", {}, "vocabulary= is that of tokens=bpe"),
        ("text:{verses},tokens=bpe,vocabulary=9", {}, "vocabulary=9: give an integer from 257"),
        ("text:{verses}", {"max_tokens": 10**4}, "less than a window of 10000: give a longer"),
        ("text:{verses}", {"flipped": 0.1, "max_tokens": 8}, "whose examples have no class"),
        ("text:{verses}", {"train_limit": 10**6, "max_tokens": 8}, "train_limit=1000000"),
    ],
)
def test_what_texts_cannot_be_is_refused(name, options, message, verses, tmp_path):
    images = tmp_path / "images.npz"
    pixels, labels = np.zeros((9, 8, 8), np.uint8), np.arange(9) % 2
    np.savez(images, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    with pytest.raises(ConfigError, match=message):
        load(name.format(verses=verses, images=images), **options)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text in UTF-8"):
        load(f"text:{tmp_path / 'bytes.txt'}")


def test_tables_of_texts_are_read_by_their_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    written, labels = made.reviews(100)
    names = datasets.ClassLabel(names=["worse", "better"])
    features = datasets.Features({"review": datasets.Value("string"), "label": names})
    table = datasets.Dataset.from_dict({"review": written, "label": labels}, features=features)
    table.save_to_disk(str(tmp_path / "one"))
    data = load(f"hf:{tmp_path / 'one'},vocabulary=300", max_tokens=12)
    assert (data.kind, data.names) == ("texts", ("worse", "better"))
    assert (len(data.train_labels), data.test_labels.bincount().tolist()) == (80, [10, 10])
    tokenizer = Tokenizer.from_str(data.tokenizer)
    kept = {tokenizer.decode(row.tolist()).strip() for row in data.train_inputs}
    assert len(kept) == 10
    more = table.add_column("title", ["a"] * 100)
    more.save_to_disk(str(tmp_path / "two"))
    with pytest.raises(ConfigError, match="has 2 columns of texts: name it by text="):
        load(f"hf:{tmp_path / 'two'}")
    assert load(f"hf:{tmp_path / 'two'},text=review").kind == "texts"
    with pytest.raises(ConfigError, match="column 'label' holds no texts"):
        load(f"hf:{tmp_path / 'one'},text=label")
    with pytest.raises(ConfigError, match="crop= is of images, and these are texts"):
        load(f"hf:{tmp_path / 'one'},crop=4")
    empty = datasets.Dataset.from_dict({"review": ["", "b"] * 9, "label": [0, 1] * 9})
    empty.save_to_disk(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"text \d+ is empty"):
        load(f"hf:{tmp_path / 'empty'}")


def test_flipping_spares_the_test_labels(sst2):
    data = load("sst2")
    assert torch.equal(flip(data, 0.5).test_labels, data.test_labels)


def test_tiny_shakespeare_is_what_it_should_be(tmp_path, monkeypatch):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not to be")
    monkeypatch.setenv("SIFTBACK_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match="is not Tiny Shakespeare, whose SHA-256"):
        load("tinyshakespeare")
    monkeypatch.setenv("SIFTBACK_DATA", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"holds no tinyshakespeare/input.txt: put https"):
        load("tinyshakespeare")


@pytest.mark.skipif(SST2 is None, reason="needs SST-2 in SIFTBACK_DATA or ../shared/data")
def test_real_sentences_become_tokens_that_say_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path))
    data = load("sst2")
    assert (len(data.train_labels), len(data.test_labels)) == (6920, 1821)
    tokenizer = Tokenizer.from_str(data.tokenizer)
    row = SST2 / "train-00000-of-00001.parquet"
    first = datasets.Dataset.from_parquet(str(row), cache_dir=str(tmp_path))[0]
    assert tokenizer.decode(data.train_inputs[0].tolist()).strip() == first["sentence"]
