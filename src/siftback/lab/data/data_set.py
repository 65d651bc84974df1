"""What the laboratory asks of a data set, whatever its examples are."""

import math
from typing import Any, Literal, Protocol, Self

from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.records.environment import memory_gib

Kind = Literal["images", "texts", "language"]
"""What examples are: images or texts of a class each, or text whose next tokens are asked."""

KINDS: dict[Kind, str] = {
    "images": "images",
    "texts": "texts of a class each",
    "language": "text of which each next token is predicted",
}

NOUNS: dict[Kind, str] = {"images": "images", "texts": "texts", "language": "windows"}
"""What examples are called."""

SUBSET_SEED = 0
"""One seed for all runs: a split or a subset is part of the task, not of a run."""

TEST_SHARE = 0.2
"""Of each class, what is left to test on where a set has no part for that."""


def check_memory(size: int, name: str) -> None:
    """Raises if an array cannot fit in this machine's memory, before it is allocated.

    Args:
        size: Bytes of the array.
        name: What the array holds, for the error.

    Raises:
        ConfigError: If it cannot.
    """
    limit = memory_gib() or math.inf
    if size > limit * 2**30:
        raise ConfigError(
            f"{name} needs {size / 2**30:,.0f} GiB, and this machine has {limit:g}: give fewer or "
            "smaller examples"
        )


def check_labels(data: "DataSet") -> None:
    """Raises if there is nothing to train or to test on, or a label is no class.

    Args:
        data: A data set as it was read.

    Raises:
        ConfigError: If a part has no examples, there are fewer than two classes, or a label lies
            outside of ``[0, classes)``.
    """
    parts = {"train": data.train_labels, "test": data.test_labels}
    for part, labels in parts.items():
        if not len(labels):
            raise ConfigError(f"{data.name} has no examples to {part} on: give a set that has some")
    if data.kind == "language":
        return
    if data.classes < 2:
        raise ConfigError(f"{data.name} has {data.classes} class: give examples of two or more")
    for part, labels in parts.items():
        least, most = int(labels.min()), int(labels.max())
        if least < 0 or most >= data.classes:
            raise ConfigError(
                f"{data.name}: labels to {part} on go from {least} to {most}, and there are "
                f"{data.classes} classes to train on: give labels from 0 to {data.classes - 1}"
            )


class DataSet(Protocol):
    """Examples to train and to test on, in memory.

    Attributes:
        name: What records call it.
        kind: What its examples are.
        train_labels: int64 [N], the classes, from 0; of language int64 [N, T], the next tokens,
            -100 where there is none.
        test_labels: The same for testing.
        names: What its classes are called, in the order of the labels; empty for language.
        true_labels: int64 [N], the training labels before some of them were made wrong; None where
            none are known to be.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> Kind: ...  # noqa: D102
    @property
    def train_labels(self) -> Tensor: ...  # noqa: D102
    @property
    def test_labels(self) -> Tensor: ...  # noqa: D102
    @property
    def names(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def true_labels(self) -> Tensor | None: ...  # noqa: D102

    @property
    def flipped(self) -> Tensor:
        """Which training labels are known to be wrong: bool [N]."""

    @property
    def classes(self) -> int:
        """Number of logits."""

    @property
    def model_sizes(self) -> dict[str, Any]:
        """The sizes that a model of it depends on, by the arguments of ``models.build``."""

    @property
    def tokens_per_character(self) -> float | None:
        """Of the text to test on, for language; None for classifiers."""

    def taken(self, kept: Tensor) -> Self:
        """With these training examples alone, int64[k]."""

    def tested_on(self, other: Self, chosen: Tensor) -> Self:
        """With these training examples of another set, int64[k], to test on."""

    def relabelled(self, labels: Tensor) -> Self:
        """With other training labels, and its own as the true ones."""

    def sizes(self, inputs: Tensor) -> Tensor | None:
        """What each of some inputs costs, in mean training examples; None if all cost the same.

        Args:
            inputs: Of B examples, as batches have them.

        Returns:
            float32[B].
        """
