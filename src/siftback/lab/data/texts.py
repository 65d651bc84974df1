"""Texts become tokens, once: data sets by name, files of text, and tables with a column of texts.

A classifier's texts are cut at a length and tokenised by byte-level BPE, trained on the texts to
train on. A language model's text is cut into windows of that length, which are its examples; its
tokens are characters unless asked otherwise. Both are kept in the cache, their tokenizer with
them.
"""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data import parquet, tokens
from siftback.lab.data.address import Address
from siftback.lab.data.cache import cached
from siftback.lab.data.data_set import check_memory
from siftback.lab.data.text_data import PAD, Text, TextData, by_length

LENGTH = 128
"""The most tokens of an example, where the set has no length of its own."""

TRAIN_SHARE = 0.9
"""Of a long text, what is trained on, from its beginning."""

CHARACTERS, BPE = "characters", "bpe"
_VERSION = "1"  # of how texts become tokens: another one has them made again


class Split(NamedTuple):
    """Some texts, and the class of each, int64[N]."""

    texts: Sequence[str]
    labels: Tensor


Reader = Callable[[], tuple[Split, Split]]
"""Gives the texts to train and to test on, once they are needed."""


class Stored(NamedTuple):
    """A set that is stored as tables of texts.

    Attributes:
        repository: Where it is on the hub.
        columns: What the column of texts may be called.
        names: Of its classes.
        length: The most tokens of a text, unless asked otherwise.
    """

    repository: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    length: int


STORED = {
    "imdb": Stored("stanfordnlp/imdb", ("text",), ("negative", "positive"), 192),
    "sst2": Stored("SetFit/sst2", ("sentence", "text"), ("negative", "positive"), 64),
}

SHAKESPEARE = "tinyshakespeare"
_SHAKESPEARE_FILE = "tinyshakespeare/input.txt"
_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_SHAKESPEARE_ORIGIN = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)


def stored(name: str, length: int | None = None) -> TextData:
    """A set of `STORED`, from local files where there are any, else from the hub.

    Args:
        name: Its name.
        length: The most tokens of a text; the set's own where None.
    """
    held = STORED[name]
    files = parquet.find(name, held.repository)

    def read(split: str) -> Split:
        texts, labels = parquet.texts(files[split], held.columns)
        # Breaks of lines, as reviews of IMDB have them.
        return Split([text.replace("<br />", " ") for text in texts], labels)

    sources = [file for each in files.values() for file in each]
    length = held.length if length is None else length
    return classified(
        name, lambda: (read("train"), read("test")), held.names, f"{name}-{length}", sources, length
    )


def classified(
    name: str,
    read: Reader,
    names: tuple[str, ...],
    cache: str,
    sources: Sequence[Path],
    length: int,
    vocabulary: int = tokens.VOCABULARY,
) -> TextData:
    """Texts of a class each.

    Args:
        name: What records call the set.
        read: Gives the texts to train and to test on.
        names: Of the classes.
        cache: Name of the file in the cache.
        sources: The files that the texts are from.
        length: The most tokens of a text.
        vocabulary: The most tokens there may be.

    Raises:
        ConfigError: If a text is empty, or a label is that of no class.
    """

    def made() -> dict[str, Tensor]:
        train, test = read()
        tokenizer = tokens.trained_on(train.texts, vocabulary)
        found = {"tokenizer": _as_bytes(tokenizer)}
        for part, split in (("train", train), ("test", test)):
            check_memory(4 * length * len(split.texts), f"{name} in rows of {length} tokens")
            rows = tokens.rows(tokenizer, split.texts, length)
            _check(rows, split.labels, len(names), f"{name} ({part})")
            found |= {f"{part}_tokens": rows, f"{part}_labels": split.labels}
        return found

    asked = (_VERSION, f"length={length}", f"vocabulary={vocabulary}")
    held = cached(cache, sources, made, asked) if sources else made()
    return _data(name, held, names, length)


def shakespeare(length: int | None = None) -> TextData:
    """Tiny Shakespeare (Karpathy 2015), of whose characters each next one is predicted.

    Args:
        length: Characters of a window; `LENGTH` where None.
    """
    path = _shakespeare_path()
    whole = path.read_bytes()
    if hashlib.sha256(whole).hexdigest() != _SHAKESPEARE_SHA256:
        raise ConfigError(
            f"{path} is not Tiny Shakespeare, whose SHA-256 is {_SHAKESPEARE_SHA256}: put back the "
            f"file of {_SHAKESPEARE_ORIGIN}, or give your own text as text:PATH"
        )
    length = LENGTH if length is None else length
    return _language(SHAKESPEARE, path, f"{SHAKESPEARE}-{length}", length, CHARACTERS)


def from_file(address: Address, length: int | None = None) -> TextData:
    """A plain text file, of which each next token is predicted: ``text:PATH``.

    Its first nine tenths are trained on, the last is for testing. Tokens are its characters; the
    option ``tokens=bpe`` has byte-level BPE of ``vocabulary=`` tokens in their place.

    Args:
        address: Which.
        length: Tokens of a window; `LENGTH` where None.

    Raises:
        ConfigError: If the file cannot be read as text, or is shorter than two windows.
    """
    kind = address.options.get("tokens", CHARACTERS)
    if kind not in (CHARACTERS, BPE):
        raise ConfigError(f"tokens={kind}: give {CHARACTERS} or {BPE}")
    if kind == CHARACTERS and "vocabulary" in address.options:
        raise ConfigError(f"vocabulary= is that of tokens={BPE}: give both, or neither")
    if not address.path.is_file():
        raise ConfigError(f"{address}: there is no file {address.path}: give one of plain text")
    length = LENGTH if length is None else length
    cache = f"{address.cache}-{length}"
    return _language(address.title, address.path, cache, length, kind, vocabulary_of(address))


def vocabulary_of(address: Address) -> int:
    """The most tokens that an address asks for."""
    text = address.options.get("vocabulary", str(tokens.VOCABULARY))
    if not re.fullmatch(r"\d{1,5}", text) or not tokens.FEWEST <= int(text) <= 2**16:
        raise ConfigError(f"vocabulary={text}: give an integer from {tokens.FEWEST} to {2**16}")
    return int(text)


def windows(ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """A long text as examples: windows side by side, and of each position the next token.

    Args:
        ids: int32[n].
        length: T; what fills no window at the end is left out.

    Returns:
        int32[N, T] and int64[N, T], with ``N = (n - 1) // T``.

    >>> inputs, targets = windows(torch.tensor([5, 6, 7, 8, 9, 5], dtype=torch.int32), 2)
    >>> inputs.tolist(), targets.tolist()
    ([[5, 6], [7, 8]], [[6, 7], [8, 9]])
    """
    count = max(0, len(ids) - 1) // length
    inputs, targets = ids[: count * length], ids[1 : count * length + 1]
    return inputs.view(count, length), targets.view(count, length).long()


def _language(
    name: str,
    path: Path,
    cache: str,
    length: int,
    kind: str,
    vocabulary: int = tokens.VOCABULARY,
) -> TextData:
    def made() -> dict[str, Tensor]:
        try:
            whole = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as text in UTF-8 ({error})") from error
        middle = int(TRAIN_SHARE * len(whole))
        parts = {"train": whole[:middle], "test": whole[middle:]}
        # All characters of the text have a token, as one without would be left out of the loss.
        tokenizer = (
            tokens.of_characters(whole)
            if kind == CHARACTERS
            else tokens.trained_on([parts["train"]], vocabulary, lower=False)
        )
        found = {"tokenizer": _as_bytes(tokenizer)}
        for part, text in parts.items():
            ids = tokens.encoded(tokenizer, text)
            inputs, targets = windows(ids, length)
            if not len(inputs):
                raise ConfigError(
                    f"{name} has {len(ids):,} tokens to {part} on, less than a window of {length}: "
                    "give a longer text, or a smaller --max-tokens"
                )
            found |= {f"{part}_tokens": inputs, f"{part}_labels": targets}
        share = torch.tensor(len(ids) / len(text), dtype=torch.float64)  # of the part to test on
        return found | {"tokens_per_character": share}

    asked = (_VERSION, f"length={length}", kind, f"vocabulary={vocabulary}")
    return _data(name, cached(cache, [path], made, asked), (), length)


def _data(name: str, held: dict[str, Tensor], names: tuple[str, ...], length: int) -> TextData:
    tokenizer = bytes(held["tokenizer"].numpy()).decode()
    share = float(held.get("tokens_per_character", torch.tensor(1.0)))
    train = held["train_tokens"], held["train_labels"]
    test = held["test_tokens"], held["test_labels"]
    text = Text(tokenizer, tokens.size_of(tokenizer), length, share)
    return TextData(name, *train, *by_length(*test), names, text, unit=1.0).with_own_unit()


def _as_bytes(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())


def _check(rows: Tensor, labels: Tensor, classes: int, what: str) -> None:
    empty = (rows == PAD).all(1)
    if empty.any():
        raise ConfigError(
            f"{what}: text {int(empty.nonzero()[0])} is empty, of which no loss can be had: leave "
            "it out"
        )
    if not bool(((labels >= 0) & (labels < classes)).all()):
        raise ConfigError(
            f"{what}: labels go from {int(labels.min())} to {int(labels.max())}, and there are "
            f"{classes} classes: give labels from 0 to {classes - 1}"
        )


def _shakespeare_path() -> Path:
    given = os.environ.get("SIFTBACK_DATA")
    found = next(
        (at for place in parquet.places() if (at := place / _SHAKESPEARE_FILE).is_file()), None
    )
    if found is None:
        where = f"SIFTBACK_DATA={given} holds no" if given else "there is no"
        raise ConfigError(
            f"{where} {_SHAKESPEARE_FILE}: put {_SHAKESPEARE_ORIGIN} there, or set SIFTBACK_DATA "
            "to a folder that holds it"
        )
    return found
