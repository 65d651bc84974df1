"""Texts as tokens: reviews and sentences of a class each, or windows of a long text."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from torch import Tensor

from siftback.lab.data.data_set import Kind

PAD = 0
"""The token that fills a text up; it is part of no text."""

IGNORED = -100
"""The label of a position that has no next token."""


class Text(NamedTuple):
    """What is particular to the texts of a set.

    Attributes:
        tokenizer: The tokenizer, as the JSON of the ``tokenizers`` library.
        vocabulary: Number of tokens, `PAD` among them.
        length: The most tokens that an example has.
        tokens_per_character: Of the text to test on, for language; 1 if tokens are characters.
    """

    tokenizer: str
    vocabulary: int
    length: int
    tokens_per_character: float = 1.0


@dataclass(frozen=True, eq=False)
class TextData:
    """Texts to train and to test on, cut at a length and filled up with `PAD`.

    Attributes:
        name: The set's name, or its address's title.
        train_tokens: int32 [N, T], from 1 to ``vocabulary - 1``, then `PAD`.
        train_labels: int64 [N], from 0 to ``classes - 1``; or int64 [N, T], the next tokens of a
            language model, `IGNORED` where there is none.
        test_tokens: int32 [M, T]. Texts are in the order of their lengths, so that batches of
            them in order hold little padding.
        test_labels: int64 [M] or [M, T].
        names: What the classes are called; empty for language.
        text: What is particular to the texts.
        unit: Tokens of the mean training example, which costs are counted in.
        true_labels: int64 [N], the training labels before some were made wrong; None where none
            are known to be.
    """

    name: str
    train_tokens: Tensor
    train_labels: Tensor
    test_tokens: Tensor
    test_labels: Tensor
    names: tuple[str, ...]
    text: Text
    unit: float
    true_labels: Tensor | None = None

    @property
    def kind(self) -> Kind:
        """Language if each position has a label."""
        return "language" if self.train_labels.ndim == 2 else "texts"

    @property
    def classes(self) -> int:
        """Number of logits: the classes, or the tokens of language."""
        return len(self.names) or self.text.vocabulary

    @property
    def flipped(self) -> Tensor:
        """Which training labels are known to be wrong: bool [N]."""
        true = self.train_labels if self.true_labels is None else self.true_labels
        return self.train_labels != true

    @property
    def model_sizes(self) -> dict[str, Any]:
        """The sizes that a model of these texts depends on."""
        text = self.text
        return {"classes": self.classes, "vocabulary": text.vocabulary, "length": text.length}

    @property
    def tokens_per_character(self) -> float | None:
        """Of the text to test on, for language; None for classifiers."""
        return self.text.tokens_per_character if self.kind == "language" else None

    def taken(self, kept: Tensor) -> Self:
        """With these training examples alone, int64[k]; the unit of costs stays."""
        true = None if self.true_labels is None else self.true_labels[kept]
        return replace(
            self,
            train_tokens=self.train_tokens[kept],
            train_labels=self.train_labels[kept],
            true_labels=true,
        )

    def tested_on(self, other: Self, chosen: Tensor) -> Self:
        """With these training examples of another set, int64[k], to test on, in their order."""
        return replace(
            self, test_tokens=other.train_tokens[chosen], test_labels=other.train_labels[chosen]
        )

    def relabelled(self, labels: Tensor) -> Self:
        """With other training labels, and its own as the true ones."""
        return replace(self, train_labels=labels, true_labels=self.train_labels)

    def with_own_unit(self) -> Self:
        """With the mean length of these training examples as the unit of cost."""
        return replace(self, unit=float(lengths_of(self.train_tokens).double().mean()))

    def sizes(self, inputs: Tensor) -> Tensor:
        """Valid tokens of each example over those of the mean training example: float32[B].

        Args:
            inputs: int64[B, T].
        """
        return lengths_of(inputs) / self.unit


def lengths_of(tokens: Tensor) -> Tensor:
    """Valid tokens of each text: int64[N].

    >>> from torch import tensor
    >>> lengths_of(tensor([[5, 6, PAD], [7, PAD, PAD]])).tolist()
    [2, 1]
    """
    return (tokens != PAD).sum(-1)


def by_length(tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Texts and their labels, the shortest first.

    Args:
        tokens: int [N, T].
        labels: [N] or [N, T].
    """
    order = lengths_of(tokens).argsort(stable=True)
    return tokens[order], labels[order]
