"""Data sets in memory: images, texts as tokens, rows of a table, or pixels of a picture."""

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.augment import Augment
from siftback.lab.data.source import Splits
from siftback.lab.records.environment import memory_gib

Kind = Literal["images", "texts", "language", "rows", "pixels"]
"""Kind of examples: images, texts or rows of a class each; text whose next tokens are predicted, or
coordinates whose colours are."""

KINDS: dict[Kind, str] = {
    "images": "images",
    "texts": "texts of a class each",
    "language": "text of which each next token is predicted",
    "rows": "rows of a table",
    "pixels": "pixels of a picture",
}

NOUNS: dict[Kind, str] = {kind: kind for kind in KINDS} | {"language": "windows"}
"""Names of the examples."""

PAD = 0
"""The token that fills a text up; it is part of no text."""

IGNORED = -100
"""The label of a position that has no next token."""

COLOUR_RANGE = 2.0
"""The difference of the brightest colour of a pixel and the darkest, 1 and -1."""

SUBSET_SEED = 0
"""One seed for all runs: a split or a subset is a property of the task, not of a run."""

TEST_SHARE = 0.2
"""The share of each class that is left to test on, where a set has no split for that."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Examples to train and to test on, in memory.

    Attributes:
        name: Its name in records: of the data set, or the title of its address.
        train_inputs: [N, ...]; of pixels their coordinates, float32 [N, 2] in [-1, 1], x before y.
        train_labels: int64 [N], the classes, from 0; of language int64 [N, T], the next tokens,
            `IGNORED` where there is none; of pixels float32 [N, C], their colours in [-1, 1].
        test_inputs: [M, ...].
        test_labels: The same for testing.
        names: Names of the classes, in the order of the labels, or of a pixel's colours; empty
            where there are none.
        kind: The kind of its examples.
        true_labels: int64 [N], the training labels before some of them were made wrong; None where
            none are known to be.
        groups: int64 [N], the group of each training example, such as the video that a frame is of.
            Examples of a group are much alike, and none is held out while another is trained on.
            None where each example stands alone.
        tokens_per_character: Of the text to test on, for language; None for the others.
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    names: tuple[str, ...]
    _: KW_ONLY
    kind: Kind
    true_labels: Tensor | None = None
    groups: Tensor | None = None
    tokens_per_character: float | None = None

    @property
    def classes(self) -> int:
        """Number of outputs of a model, which are logits or the colours of a pixel."""
        return len(self.names)

    @property
    def has_classes(self) -> bool:
        """Whether each example is of a class."""
        return self.kind not in ("language", "pixels")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images; of others 1 and 1."""
        return 1, 1

    @property
    def model_sizes(self) -> dict[str, Any]:
        """The sizes that a model of it depends on, by the arguments of ``models.build``."""
        return {"classes": self.classes, "channels": self.train_inputs.shape[1], "size": self.size}

    @property
    def former_labels(self) -> Tensor:
        """The training labels before some of them were made wrong: int64 [N]."""
        return self.train_labels if self.true_labels is None else self.true_labels

    @property
    def flipped(self) -> Tensor:
        """Which training labels are known to be wrong: bool [N]."""
        return self.train_labels != self.former_labels

    @property
    def group_numbers(self) -> Tensor:
        """The group of each training example by its number, from 0: int64 [N].

        An example that stands alone is a group.
        """
        if self.groups is None:
            return torch.arange(len(self.train_labels))
        return torch.from_numpy(np.unique(self.groups.numpy(), return_inverse=True)[1])

    def subset(self, indices: Tensor) -> Self:
        """Returns these training examples alone, int64[k]; the unit of costs stays."""
        return replace(
            self,
            train_inputs=self.train_inputs[indices],
            train_labels=self.train_labels[indices],
            true_labels=None if self.true_labels is None else self.true_labels[indices],
            groups=None if self.groups is None else self.groups[indices],
        )

    def with_test(self, other: Self, indices: Tensor) -> Self:
        """Takes training examples of another set, int64[k], to test on."""
        return replace(
            self, test_inputs=other.train_inputs[indices], test_labels=other.train_labels[indices]
        )

    def rescale_costs(self) -> Self:
        """Returns it with its mean training example as the unit of cost."""
        return self

    def sizes(self, inputs: Tensor) -> Tensor | None:
        """Computes the cost of inputs, in mean training examples: float32[B].

        Args:
            inputs: Of B examples, as batches have them.

        Returns:
            None if all cost the same.
        """
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageData(DataSet):
    """Images, uint8 [N, C, H, W], of a class each.

    Attributes:
        augmentation: Augmentation that is known to help this set and harm no label.
    """

    kind: Kind = "images"
    augmentation: Augment = field(default_factory=Augment)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        height, width = self.train_inputs.shape[2:]
        return height, width

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the training images scaled to [0, 1]: float32 [C] each.

        The deviation is 1 for a channel of one value, which cannot be scaled.
        """
        # Counting the 256 values is exact and needs no float copy of the whole set.
        counts = torch.stack(
            [channel.flatten().bincount(minlength=256) for channel in self.train_inputs.unbind(1)]
        ).double()
        share = counts / counts.sum(1, keepdim=True)
        value = torch.arange(256, dtype=torch.float64) / 255
        mean = share @ value
        variance = (share * (value - mean[:, None]) ** 2).sum(1)
        # A channel of one value would be divided by 0, and all losses would be NaN.
        return mean.float(), torch.where(variance > 0, variance.sqrt(), 1.0).float()


@dataclass(frozen=True, eq=False, kw_only=True)
class TableData(DataSet):
    """Rows of a table, float32 [N, F], of a class each.

    The first inputs are numbers, NaN where one is missing; the others are 0 or 1.

    Attributes:
        numbers: How many inputs are numbers.
    """

    kind: Kind = "rows"
    numbers: int

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each number over the training rows that have it.

        Two times float32 [F]. The deviation is 1 for numbers that are all equal, which cannot be
        scaled; of other inputs the mean is 0 and it is 1.
        """
        values = self.train_inputs.double()
        valid = ~values.isnan()
        valid[:, self.numbers :] = False
        count = valid.sum(0).clamp(min=1)
        mean = values.where(valid, 0.0).sum(0) / count
        std = (values - mean).square().where(valid, 0.0).sum(0).div(count).sqrt()
        return mean.float(), std.where(std > 0, 1.0).float()


@dataclass(frozen=True, eq=False, kw_only=True)
class TextData(DataSet):
    """Texts as tokens, int32 [N, T] from 1 to ``vocabulary - 1``, cut at T and filled with `PAD`.

    Those to test on are in the order of their lengths, so that batches hold little padding.

    Attributes:
        tokenizer: The tokenizer, as the JSON of the ``tokenizers`` library.
        vocabulary: Number of tokens, `PAD` among them.
        unit: Tokens of the mean training example, the unit of costs.
    """

    tokenizer: str
    vocabulary: int
    unit: float = 1.0

    @property
    def classes(self) -> int:
        """Number of logits: the classes, or the tokens of language."""
        return len(self.names) or self.vocabulary

    @property
    def model_sizes(self) -> dict[str, Any]:
        """The sizes that a model of these texts depends on."""
        length = self.train_inputs.shape[1]
        return {"classes": self.classes, "vocabulary": self.vocabulary, "length": length}

    def rescale_costs(self) -> Self:
        """Returns it with the mean length of its training examples as the unit of cost."""
        return replace(self, unit=float(lengths_of(self.train_inputs).double().mean()))

    def sizes(self, inputs: Tensor) -> Tensor:
        """Divides the valid tokens of each example by those of the mean example: float32[B]."""
        return lengths_of(inputs) / self.unit


def lengths_of(tokens: Tensor) -> Tensor:
    """Counts the valid tokens of each text: int64[N].

    >>> from torch import tensor
    >>> lengths_of(tensor([[5, 6, PAD], [7, PAD, PAD]])).tolist()
    [2, 1]
    """
    return (tokens != PAD).sum(-1)


def check_memory(size: int, name: str) -> None:
    """Checks that an array fits in this machine's memory, before it is allocated.

    Args:
        size: Bytes of the array.
        name: Content of the array, for the error.

    Raises:
        ConfigError: If it does not fit.
    """
    limit = memory_gib() or math.inf
    if size > limit * 2**30:
        raise ConfigError(
            f"{name} needs {size / 2**30:,.0f} GiB, and this machine has {limit:g}: give fewer or "
            "smaller examples"
        )


def ranks_in_classes(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Draws an order of the examples of each class, the same one in every run.

    Args:
        labels: int64 [N].

    Returns:
        The rank of each example in its class, from 0, int64 [N]; and the size of its class, float64
        [N].

    >>> ranks_in_classes(torch.tensor([7, 7, 3, 7]))
    (tensor([0, 1, 0, 2]), tensor([3., 3., 1., 3.], dtype=torch.float64))
    """
    import pandas as pd  # takes longer to import than most data to read

    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SUBSET_SEED))
    drawn = pd.Series(labels[order].numpy(), order.numpy())
    by_class = drawn.groupby(drawn)
    ranks, sizes = by_class.cumcount().sort_index(), by_class.transform("size").sort_index()
    return torch.tensor(ranks.to_numpy()), torch.tensor(sizes.to_numpy(float))


def add_test_split(splits: Splits, name: str) -> Splits:
    """Leaves a fixed fifth of each class to test on, where there is no split for that.

    Args:
        splits: Inputs and labels.
        name: Name of the data, for the error.

    Raises:
        ConfigError: If a fifth of no class is an example.
    """
    if "test" in splits:
        return splits
    inputs, labels = splits["train"]
    ranks, sizes = ranks_in_classes(labels)
    drawn = ranks < (TEST_SHARE * sizes).round()
    if not drawn.any():
        raise ConfigError(
            f"{name} has no examples to test on, and a fifth of no class is an example: give more"
        )
    divided: Splits = {}
    for split, mask in (("train", ~drawn), ("test", drawn)):
        rows = mask.nonzero().flatten()
        taken = inputs[rows] if isinstance(inputs, Tensor) else [inputs[i] for i in rows.tolist()]
        divided[split] = taken, labels[rows]
    return divided
