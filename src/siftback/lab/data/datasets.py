"""Data sets, decoded or tokenised once and held as bytes or tokens.

``digits`` comes with scikit-learn. The other sets of ``DATASETS`` are read from files with the
Hugging Face hub's names and columns: those under ``SIFTBACK_DATA``, else those under
``../shared/data``, else the hub's own. A user's own data have an `Address`. What was decoded or
tokenised is kept in ``SIFTBACK_CACHE``, or ``~/.cache/siftback``, until its source changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data import address, arrays, folder, hub, parquet, texts
from siftback.lab.data.address import Address
from siftback.lab.data.augment import Augment
from siftback.lab.data.cache import cached
from siftback.lab.data.data_set import (
    SUBSET_SEED,
    TEST_SHARE,
    DataSet,
    Kind,
    check_labels,
)
from siftback.lab.data.text_data import TextData
from siftback.lab.records.formatting import one_of

Data = TypeVar("Data", bound=DataSet)


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images to train and to test on.

    Attributes:
        name: The set's name in ``DATASETS``, or its address's title.
        train_images: uint8 [N, C, H, W].
        train_labels: int64 [N], from 0 to ``classes - 1``.
        test_images: uint8 [M, C, H, W].
        test_labels: int64 [M].
        names: What its classes are called, in the order of the labels.
        augmentation: What is known to help this set and harm no label.
        true_labels: int64 [N], the training labels before `flip` made some of them wrong; None
            where none are known to be.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    names: tuple[str, ...]
    augmentation: Augment = field(default_factory=Augment)
    true_labels: Tensor | None = None

    @property
    def kind(self) -> Kind:
        """Images."""
        return "images"

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.names)

    @property
    def model_sizes(self) -> dict[str, Any]:
        """The sizes that a model of these images depends on."""
        channels = self.train_images.shape[1]
        return {"classes": self.classes, "channels": channels, "size": self.size}

    @property
    def tokens_per_character(self) -> None:
        """None: images are no text."""

    def taken(self, kept: Tensor) -> Self:
        """With these training examples alone, int64[k]."""
        true = None if self.true_labels is None else self.true_labels[kept]
        return replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            true_labels=true,
        )

    def tested_on(self, other: Self, chosen: Tensor) -> Self:
        """With these training examples of another set, int64[k], to test on."""
        return replace(
            self, test_images=other.train_images[chosen], test_labels=other.train_labels[chosen]
        )

    def relabelled(self, labels: Tensor) -> Self:
        """With other training labels, and its own as the true ones."""
        return replace(self, train_labels=labels, true_labels=self.train_labels)

    def sizes(self, inputs: Tensor) -> None:
        """None: an image costs what any other does."""

    @property
    def flipped(self) -> Tensor:
        """Which training labels are known to be wrong: bool [N]."""
        if self.true_labels is None:
            return torch.zeros_like(self.train_labels, dtype=torch.bool)
        return self.train_labels != self.true_labels

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        height, width = self.train_images.shape[2:]
        return height, width

    @property
    def mean(self) -> Tensor:
        """Mean of the training images scaled to [0, 1], per channel: float32 [C]."""
        return self._moments[0]

    @property
    def std(self) -> Tensor:
        """Standard deviation of the training images scaled to [0, 1], per channel: float32 [C].

        It is 1 for a channel of one value, which has nothing to be scaled by.
        """
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        # Counting the 256 values is exact and needs no float copy of the whole set.
        counts = torch.stack(
            [channel.flatten().bincount(minlength=256) for channel in self.train_images.unbind(1)]
        ).double()
        share = counts / counts.sum(1, keepdim=True)
        value = torch.arange(256, dtype=torch.float64) / 255
        mean = share @ value
        variance = (share * (value - mean[:, None]) ** 2).sum(1)
        # A channel of one value would be divided by 0, and have all losses NaN.
        std = torch.where(variance > 0, variance.sqrt(), 1.0)
        return mean.float(), std.float()


def load(
    name: str,
    train_limit: int | None = None,
    validation: int | None = None,
    flipped: float = 0.0,
    max_tokens: int | None = None,
) -> ImageData | TextData:
    """Loads a data set.

    Args:
        name: A name of ``DATASETS``, or an address: ``imagefolder:PATH``, ``hf:NAME``,
            ``npz:PATH`` or ``text:PATH``, with options such as ``,size=32``.
        train_limit: How many training examples to keep, as ``limit`` does; all where None.
        validation: How many of them to hold out in place of the test set, as ``hold_out`` does.
        flipped: Share of the labels left to train on that are made wrong, as ``flip`` does.
        max_tokens: The most tokens of a text, and those of a window; the set's own where None.

    Raises:
        ConfigError: For an unknown name, a limit out of range, data that are nowhere found, or
            ``max_tokens`` of images.

    >>> load("digits").train_images.shape
    torch.Size([1437, 1, 8, 8])
    """
    own = address.parse(name)
    data = _known(name, max_tokens) if own is None else _own(own, max_tokens)
    if max_tokens is not None and data.kind == "images":
        raise ConfigError(f"max_tokens={max_tokens} of {name}, which are images: leave it out")
    check_labels(data)
    data = data if train_limit is None else limit(data, train_limit)
    data = data if validation is None else hold_out(data, validation)
    data = with_own_unit(data)
    return flip(data, flipped) if flipped else data


def with_own_unit(data: Data) -> Data:
    """The data, whose unit of cost is the mean of their own training examples."""
    return data.with_own_unit() if isinstance(data, TextData) else data


def hold_out(data: Data, n: int) -> Data:
    """Takes ``n`` training examples for the test set, class-balanced, the same in every run.

    The test set's own examples are left aside, so that settings can be chosen without them.

    Raises:
        ConfigError: For ``n`` below 1 or not below the number of training examples.

    >>> held = hold_out(load("digits"), 100)
    >>> len(held.train_labels), held.test_labels.bincount().tolist()
    (1337, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    available = len(data.train_labels)
    if not 1 <= n < available:
        raise ConfigError(f"validation={n}: give an integer from 1 to {available - 1}")
    held = _balanced(data, n)
    rest = torch.ones(available, dtype=torch.bool)
    rest[held] = False
    return data.taken(rest.nonzero().flatten()).tested_on(data, held)


def limit(data: Data, n: int) -> Data:
    """Keeps a class-balanced subset of ``n`` training examples, the same one in every run.

    The classes' counts differ by at most one, until a class has no more to give. A smaller
    subset is part of every larger one.

    Raises:
        ConfigError: For ``n`` below 1 or above the number of training examples.

    >>> limit(load("digits"), 25).train_labels.bincount().tolist()
    [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]
    """
    available = len(data.train_labels)
    if not 1 <= n <= available:
        raise ConfigError(f"train_limit={n}: give an integer from 1 to {available}")
    return subset(data, _balanced(data, n))


def subset(data: Data, kept: Tensor) -> Data:
    """Keeps some training examples.

    Args:
        data: Of N training examples.
        kept: int64[k], their indices.

    >>> subset(load("digits"), torch.tensor([3, 5])).train_images.shape
    torch.Size([2, 1, 8, 8])
    """
    return data.taken(kept)


def flip(data: Data, share: float) -> Data:
    """Makes a share of the training labels wrong, the same ones in every run.

    The UniformFlip noise of Ren et al. 2018, which Jiang et al. 2019 train under (section 5.4):
    each chosen example gets a label drawn uniformly from the other classes. Labels that a larger
    share makes wrong include those of a smaller one, with the same wrong label.

    Args:
        data: Whose training labels; the test set stays as it is.
        share: In [0, 1]; ``round(share * N)`` labels are flipped.

    Returns:
        The data, what the labels were in ``true_labels``, which are wrong in ``flipped``. The
        share and the number of labels decide both, so a run's settings are their record.

    Raises:
        ConfigError: For a share outside of [0, 1], or examples without a class.

    >>> noisy = flip(load("digits"), 0.2)
    >>> int((noisy.train_labels != noisy.true_labels).sum()), len(noisy.train_labels)
    (287, 1437)
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"flip={share}: give a share of the labels, in [0, 1]")
    if data.kind == "language":
        raise ConfigError(
            f"flip={share} of {data.name}, whose examples have no class that could be made wrong: "
            "leave it out"
        )
    count = len(data.train_labels)
    generator = torch.Generator().manual_seed(SUBSET_SEED)
    order = torch.randperm(count, generator=generator)
    shifts = torch.randint(1, data.classes, (count,), generator=generator)
    labels, chosen = data.train_labels.clone(), order[: round(share * count)]
    labels[chosen] = (labels[chosen] + shifts[chosen]) % data.classes
    return data.relabelled(labels)


def _balanced(data: DataSet, n: int) -> Tensor:
    """The indices of n training examples, ascending."""
    available = len(data.train_labels)
    order = torch.randperm(available, generator=torch.Generator().manual_seed(SUBSET_SEED))
    if data.kind == "language":
        return order[:n].sort().values
    labels = data.train_labels[order]
    by_class = labels.argsort(stable=True)
    counts = labels.bincount(minlength=data.classes)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.empty_like(order)  # among the examples of its own class
    rank[by_class] = torch.arange(available) - first
    return order[(rank * data.classes + labels).argsort()[:n]].sort().values


def _digits() -> ImageData:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    split = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=SUBSET_SEED
    )
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, split)
    # No augmentation: at 8x8 a shift of one pixel cuts strokes off.
    train, test = (train_images, train_labels), (test_images, test_labels)
    return ImageData("digits", *train, *test, arrays.numbered(10))


def _known(name: str, max_tokens: int | None) -> ImageData | TextData:
    if name in TEXTS:
        return TEXTS[name](max_tokens)
    if name not in DATASETS:
        raise ConfigError(f"data set {name!r} is not known: {one_of(name, NAMES)}")
    return DATASETS[name]()


def _own(place: Address, max_tokens: int | None) -> ImageData | TextData:
    if place.kind == "text":
        return texts.from_file(place, max_tokens)
    augmentation = place.augmentation  # refused before anything is read
    if place.kind == "hf":
        splits = hub.opened(place)
        column = hub.text_column(splits, place)
        if column is not None:
            return _texts_of_hub(place, splits, column, max_tokens)
        tensors, names = hub.read(place, splits)
    else:
        tensors, names = READERS[place.kind](place)
    if "test_images" not in tensors:
        images, labels = tensors["train_images"], tensors["train_labels"]
        held = _held(labels, place)
        tensors = {
            "train_images": images[~held],
            "train_labels": labels[~held],
            "test_images": images[held],
            "test_labels": labels[held],
        }
    height, width = tensors["train_images"].shape[2:]
    if augmentation.padding >= min(height, width):
        raise ConfigError(
            f"crop={augmentation.padding} of images of {height}x{width} pixels can shift all of an "
            f"image out of sight: give fewer than {min(height, width)} pixels"
        )
    return ImageData(place.title, **tensors, names=names, augmentation=augmentation)


def _texts_of_hub(
    place: Address, splits: hub.Splits, column: str, max_tokens: int | None
) -> TextData:
    length = texts.LENGTH if max_tokens is None else max_tokens
    found, names = hub.texts(place, splits, column)

    def read() -> tuple[texts.Split, texts.Split]:
        whole = texts.Split(*found["train"])
        if "test" in found:
            return whole, texts.Split(*found["test"])
        held = _held(whole.labels, place)
        train, test = (
            texts.Split([whole.texts[row] for row in rows], whole.labels[rows])
            for rows in ((~held).nonzero().flatten(), held.nonzero().flatten())
        )
        return train, test

    cache, sources = f"{place.cache}-{length}", hub.sources_of(splits)
    vocabulary = texts.vocabulary_of(place)
    return texts.classified(place.title, read, names, cache, sources, length, vocabulary)


def _held(labels: Tensor, place: Address) -> Tensor:
    """A fixed fifth of each class, to test on: bool[N]."""
    held = torch.zeros(len(labels), dtype=torch.bool)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SUBSET_SEED))
    for label in sorted({*labels.tolist()}):
        of_class = order[labels[order] == label]
        held[of_class[: round(TEST_SHARE * len(of_class))]] = True
    if not held.any():
        raise ConfigError(
            f"{place} has no part to test on, and a fifth of no class is an example: give more"
        )
    return held


class _Stored(NamedTuple):
    """A set that is stored as tables of encoded images.

    Attributes:
        repository: Where it is on the hub.
        image: Name of the images' column.
        mode: Pillow's mode of the images.
        augmentation: What is known to help it.
        classes: Number of classes.
        label: Name of the labels' column.
        config: Which of the repository's configurations.
        parts: Splits to train on.
        folder: Name of its folder; None where it is the set's.
    """

    repository: str
    image: str
    mode: str
    augmentation: Augment
    classes: int = 10
    label: str = "label"
    config: str | None = None
    parts: tuple[str, ...] = ("train",)
    folder: str | None = None


def _stored(name: str, stored: _Stored) -> ImageData:
    splits = {"train": stored.parts, "test": ("test",)}
    wanted = [part for parts in splits.values() for part in parts]
    files = parquet.find(stored.folder or name, stored.repository, wanted, stored.config)

    def decoded() -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for split, parts in splits.items():
            images, labels = parquet.decode(
                [file for part in parts for file in files[part]],
                stored.image,
                stored.mode,
                f"Decoding {name} ({split})",
                stored.label,
            )
            tensors |= {f"{split}_images": images, f"{split}_labels": labels}
        return tensors

    sources = [file for part in wanted for file in files[part]]
    names = parquet.class_names(files["train"][0], stored.label)
    return ImageData(
        name,
        **cached(name, sources, decoded),
        names=names or arrays.numbered(stored.classes),
        augmentation=stored.augmentation,
    )


# What nearly every paper does to CIFAR, Jiang et al. 2019 among them.
_CIFAR = Augment(padding=4, flip=True)

_SVHN = _Stored(
    "ufldl-stanford/svhn",
    "image",
    "RGB",
    Augment(),  # as DeVries & Taylor 2017, and with them Jiang et al. 2019: cutout alone
    config="cropped_digits",
)

STORED = {
    # A mirrored digit is another sign or none, so they are only shifted, and by little.
    "mnist": _Stored("ylecun/mnist", "image", "L", Augment(padding=2)),
    "cifar10": _Stored("uoft-cs/cifar10", "img", "RGB", _CIFAR),
    "cifar100": _Stored("uoft-cs/cifar100", "img", "RGB", _CIFAR, classes=100, label="fine_label"),
    "svhn": _SVHN,
    "svhn+extra": _SVHN._replace(parts=("train", "extra"), folder="svhn"),
    "fashion_mnist": _Stored(
        "zalando-datasets/fashion_mnist", "image", "L", Augment(padding=2, flip=True)
    ),
}

DATASETS: dict[str, Callable[[], ImageData]] = {"digits": _digits} | {
    name: partial(_stored, name, stored) for name, stored in STORED.items()
}

TEXTS: dict[str, Callable[[int | None], TextData]] = {
    name: partial(texts.stored, name) for name in texts.STORED
} | {texts.SHAKESPEARE: texts.shakespeare}

READERS = {"imagefolder": folder.read, "npz": arrays.read}

NAMES = (*DATASETS, *TEXTS, *address.NAMES)
"""What may be asked for."""
