"""Tokenizers, and texts as rows of tokens.

All are tokenizers of the ``tokenizers`` library, as JSON, so that what a run saves can be read
without the laboratory: ``tokenizers.Tokenizer.from_file("tokenizer.json")``.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from siftback.lab.data.text_data import PAD

PADDING = "[PAD]"
VOCABULARY = 4096
FEWEST = 257  # the bytes, and padding

_TOGETHER = 1000  # texts that are encoded at a time


def trained_on(texts: Iterable[str], vocabulary: int = VOCABULARY, lower: bool = True) -> str:
    """A byte-level BPE tokenizer of some texts (Sennrich et al. 2016), as JSON.

    Args:
        texts: What to train it on.
        vocabulary: The most tokens it may have, from 257 on: padding, the bytes, and merges.
        lower: Whether texts are lower-cased; a language model needs them as they are.

    >>> tokenizer = Tokenizer.from_str(trained_on(["low lower lowest"] * 9, 270))
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


def of_characters(text: str) -> str:
    """A tokenizer with a token for each character of a text, as JSON.

    >>> tokenizer = Tokenizer.from_str(of_characters("to be"))
    >>> tokenizer.encode("bet").ids, tokenizer.decode([5, 4, 1, 2, 3])
    ([2, 3, 5], 'to be')
    """
    vocabulary = {PADDING: PAD} | {each: 1 + place for place, each in enumerate(sorted({*text}))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return str(tokenizer.to_str())


def size_of(tokenizer: str) -> int:
    """Number of tokens that a tokenizer has, padding among them."""
    return int(Tokenizer.from_str(tokenizer).get_vocab_size())


def encoded(tokenizer: str, text: str) -> Tensor:
    """A long text as tokens: int32[n]."""
    ids = Tokenizer.from_str(tokenizer).encode(text).ids
    return torch.from_numpy(np.asarray(ids, np.int32))


def rows(tokenizer: str, texts: Sequence[str], length: int) -> Tensor:
    """Texts as rows of tokens, cut at a length and filled up: int32[N, length].

    Args:
        tokenizer: As JSON.
        texts: N of them.
        length: The most tokens of a text; of a longer one the first are taken.

    >>> rows(of_characters("to be"), ["bet", "b", "to be"], 4)
    tensor([[2, 3, 5, 0],
            [2, 0, 0, 0],
            [5, 4, 1, 2]], dtype=torch.int32)
    """
    reader = Tokenizer.from_str(tokenizer)
    reader.enable_truncation(length)
    table = np.full((len(texts), length), PAD, np.int32)
    for start in range(0, len(texts), _TOGETHER):
        together = texts[start : start + _TOGETHER]
        for row, found in enumerate(reader.encode_batch_fast(list(together)), start):
            table[row, : len(found.ids)] = found.ids
    return torch.from_numpy(table)
