"""Texts as tokens: tables with a column of texts, and files of plain text.

A classifier's texts are cut at a length and tokenised by byte-level BPE, trained on the texts to
train on. A language model's text is cut into windows of that length, which are its examples; its
tokens are characters or byte-level BPE. The tokens are kept in the cache, with their tokenizer.

Tokenizers are those of the ``tokenizers`` library, as JSON, so that what a run saves can be read
without the laboratory: ``tokenizers.Tokenizer.from_file("tokenizer.json")``.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.data_set import PAD, TextData, add_test_split, check_memory, lengths_of
from siftback.lab.data.source import Address, EncodedSet, cached
from siftback.lab.data.tables import data_folders, naming_source

LENGTH = 128
"""The most tokens of an example, where the set has no length of its own."""

TRAIN_SHARE = 0.9
"""The share of a long text that is trained on, from its beginning."""

PADDING = "[PAD]"
VOCABULARY, FEWEST_TOKENS, MOST_TOKENS = 4096, 257, 2**16  # the fewest are bytes and padding
CHARACTERS, BPE = "characters", "bpe"
SHAKESPEARE = "tinyshakespeare"
SHAKESPEARE_FILE = "tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_ORIGIN = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TOGETHER = 1000  # texts that are encoded at a time


def read_texts(
    source: EncodedSet, name: str, cache: str, length: int, vocabulary: int = VOCABULARY
) -> TextData:
    """Reads texts of a class each, a fifth of each class to test on where there is no split.

    Args:
        source: Where they are.
        name: Name of the set in records.
        cache: Name of the file in the cache, without the length.
        length: The most tokens of a text.
        vocabulary: The most tokens of the tokenizer.

    Raises:
        ConfigError: If the texts cannot be read, or one is empty.
    """

    def tokenise() -> dict[str, Tensor]:
        splits = add_test_split(source.read(), source.name)
        tokenizer = train_tokenizer(splits["train"][0], vocabulary)
        tensors = {"tokenizer": torch.frombuffer(bytearray(tokenizer.encode()), dtype=torch.uint8)}
        for split, (texts, labels) in splits.items():
            check_memory(4 * length * len(texts), f"{name} in rows of {length} tokens")
            rows = encode_rows(tokenizer, texts, length)
            if (empty := (rows == PAD).all(1)).any():
                raise ConfigError(
                    f"{name} ({split}): text {int(empty.nonzero()[0])} is empty: leave it out"
                )
            tensors |= {f"{split}_inputs": rows, f"{split}_labels": labels}
        return tensors

    options = (f"length={length}", f"vocabulary={vocabulary}")
    tensors = cached(f"{cache}-{length}", source.files, tokenise, options)
    return text_data(name, tensors, source.names)


def read_shakespeare(length: int) -> TextData:
    """Reads Tiny Shakespeare (Karpathy 2015), of which each next character is predicted.

    Args:
        length: Characters of a window.

    Raises:
        ConfigError: If the file is missing, or another one.
    """
    path = next((file for d in data_folders() if (file := d / SHAKESPEARE_FILE).is_file()), None)
    if not path:
        folder = os.environ.get("SIFTBACK_DATA")
        raise ConfigError(
            f"{f'SIFTBACK_DATA={folder} holds' if folder else 'there is'} no {SHAKESPEARE_FILE}: "
            f"put {SHAKESPEARE_ORIGIN} there, or set SIFTBACK_DATA to a folder that holds it"
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHAKESPEARE_SHA256:
        raise ConfigError(
            f"{path} is not Tiny Shakespeare, whose SHA-256 is {SHAKESPEARE_SHA256}: put back the "
            f"file of {SHAKESPEARE_ORIGIN}, or give your own text as text:PATH"
        )
    return read_windows(Address("text", str(path), {}), length, SHAKESPEARE, SHAKESPEARE)


def read_windows(address: Address, length: int, name: str, cache: str) -> TextData:
    """Reads a plain text file, of which each next token is predicted: ``text:PATH``.

    Its first nine tenths are trained on, the last is for testing. Tokens are its characters; with
    the option ``tokens=bpe`` they are byte-level BPE of ``vocabulary=`` tokens.

    Args:
        address: Address of the file.
        length: Tokens of a window.
        name: Name of the set in records.
        cache: Name of the file in the cache, without the length.

    Raises:
        ConfigError: If the file cannot be read as text, or is shorter than two windows.
    """
    path, kind = address.path, address.options.get("tokens", CHARACTERS)
    if kind not in (CHARACTERS, BPE):
        raise ConfigError(f"tokens={kind}: give {CHARACTERS} or {BPE}")
    if kind == CHARACTERS and "vocabulary" in address.options:
        raise ConfigError(f"vocabulary= is that of tokens={BPE}: give both, or neither")
    if not path.is_file():
        raise ConfigError(f"{address}: there is no file {path}: give one of plain text")
    vocabulary = vocabulary_of(address)

    def tokenise() -> dict[str, Tensor]:
        with naming_source(path, "cannot be read as text in UTF-8", "save it in UTF-8"):
            whole = path.read_bytes().decode("utf-8-sig")
        middle = int(TRAIN_SHARE * len(whole))
        train, test = whole[:middle], whole[middle:]
        # All characters of the text have a token, as those without would be left out of the loss.
        tokenizer = (
            character_tokenizer(whole)
            if kind == CHARACTERS
            else train_tokenizer([train], vocabulary, lower=False)
        )
        tensors = {"tokenizer": torch.frombuffer(bytearray(tokenizer.encode()), dtype=torch.uint8)}
        for split, text in (("train", train), ("test", test)):
            tokens = torch.tensor(reader_of(tokenizer).encode(text).ids, dtype=torch.int32)
            inputs, labels = split_windows(tokens, length)
            if not len(inputs):
                raise ConfigError(
                    f"{name} has {len(tokens):,} tokens to {split} on, less than a window of "
                    f"{length}: give a longer text, or a smaller --max-tokens"
                )
            tensors |= {f"{split}_inputs": inputs, f"{split}_labels": labels}
        share = torch.tensor(len(tokens) / len(test), dtype=torch.float64)
        return tensors | {"tokens_per_character": share}

    options = (f"length={length}", kind, f"vocabulary={vocabulary}")
    return text_data(name, cached(f"{cache}-{length}", [path], tokenise, options), ())


def vocabulary_of(address: Address) -> int:
    """Returns the most tokens that an address asks for."""
    return address.integer("vocabulary", VOCABULARY, FEWEST_TOKENS, MOST_TOKENS)


def text_data(name: str, tensors: dict[str, Tensor], names: tuple[str, ...]) -> TextData:
    """Returns texts as tokens as a data set, with those to test on in the order of their lengths.

    Args:
        name: Name of the set in records.
        tensors: Inputs and labels of both splits, the bytes of the tokenizer, and for language
            ``tokens_per_character``.
        names: Names of the classes; empty for language.
    """
    tokenizer = bytes(tensors["tokenizer"].numpy()).decode()
    order = lengths_of(tensors["test_inputs"]).argsort(stable=True)
    return TextData(
        name,
        tensors["train_inputs"],
        tensors["train_labels"],
        tensors["test_inputs"][order],
        tensors["test_labels"][order],
        names,
        kind="texts" if names else "language",
        tokenizer=tokenizer,
        vocabulary=Tokenizer.from_str(tokenizer).get_vocab_size(),
        tokens_per_character=None if names else float(tensors["tokens_per_character"]),
    )


def split_windows(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cuts a long text into windows side by side, and gives each position its next token.

    Args:
        tokens: int32[n].
        length: T; tokens at the end that fill no window are left out.

    Returns:
        int32[N, T] and int64[N, T], with ``N = (n - 1) // T``.

    >>> inputs, labels = split_windows(torch.tensor([5, 6, 7, 8, 9, 5], dtype=torch.int32), 2)
    >>> inputs.tolist(), labels.tolist()
    ([[5, 6], [7, 8]], [[6, 7], [8, 9]])
    """
    count = max(0, len(tokens) - 1) // length
    inputs, labels = tokens[: count * length], tokens[1 : count * length + 1]
    return inputs.view(count, length), labels.view(count, length).long()


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY, lower: bool = True) -> str:
    """Trains a byte-level BPE tokenizer on texts (Sennrich et al. 2016); returns its JSON.

    Args:
        texts: Texts to train it on.
        vocabulary: The most tokens it may have, from 257 on: padding, the bytes, and merges.
        lower: Whether texts are lower-cased; a language model needs them as they are.

    >>> tokenizer = Tokenizer.from_str(train_tokenizer(["low lower lowest"] * 9, 270))
    >>> tokenizer.encode("Lower").tokens
    ['Ġlower']
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=lower)
    tokenizer.decoder = decoders.ByteLevel()
    if lower:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def character_tokenizer(text: str) -> str:
    """Returns the JSON of a tokenizer with a token for each character of a text.

    >>> tokenizer = Tokenizer.from_str(character_tokenizer("to be"))
    >>> tokenizer.encode("bet").ids, tokenizer.decode([5, 4, 1, 2, 3])
    ([2, 3, 5], 'to be')
    """
    vocabulary = {PADDING: PAD} | {c: number for number, c in enumerate(sorted({*text}), 1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return str(tokenizer.to_str())


def reader_of(tokenizer: str) -> Tokenizer:
    """Returns the tokenizer of a JSON; a text's own "[PAD]" is text to it, and not padding.

    >>> len(reader_of(train_tokenizer(["[PAD] or not"], 257)).encode("[PAD]").ids)
    6
    """
    reader = Tokenizer.from_str(tokenizer)
    reader.encode_special_tokens = True
    return reader


def encode_rows(tokenizer: str, texts: Sequence[str], length: int) -> Tensor:
    """Encodes texts as rows of tokens, cut at a length and filled up: int32[N, length].

    Args:
        tokenizer: As JSON.
        texts: N of them.
        length: The most tokens of a text; of a longer one the first are taken.

    >>> encode_rows(character_tokenizer("to be"), ["bet", "b", "to be"], 4)
    tensor([[2, 3, 5, 0],
            [2, 0, 0, 0],
            [5, 4, 1, 2]], dtype=torch.int32)
    """
    reader = reader_of(tokenizer)
    reader.enable_truncation(length)
    table = np.full((len(texts), length), PAD, np.int32)
    for start in range(0, len(texts), TOGETHER):
        encodings = reader.encode_batch_fast(list(texts[start : start + TOGETHER]))
        for row, encoding in enumerate(encodings, start):
            table[row, : len(encoding.ids)] = encoding.ids
    return torch.from_numpy(table)
