"""Image data sets, decoded once and held as bytes.

``digits`` comes with scikit-learn. The other sets of ``DATASETS`` are read from Parquet files
with the Hugging Face hub's names and columns: those under ``SIFTBACK_DATA``, else those under
``../shared/data``, else the hub's own. A user's own data have an `Address`. What was decoded is
kept in ``SIFTBACK_CACHE``, or ``~/.cache/siftback``, until its source changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data import address, arrays, folder, hub, parquet
from siftback.lab.data.address import Address
from siftback.lab.data.augment import Augment
from siftback.lab.data.cache import cached

# One seed for all runs: a split or a subset is part of the task, not of a run.
SUBSET_SEED = 0

# Of each class, what is left to test on where a set has no part for that.
TEST_SHARE = 0.2


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
    def classes(self) -> int:
        """Number of classes."""
        return len(self.names)

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
        """Standard deviation of the training images scaled to [0, 1], per channel: float32 [C]."""
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
        return mean.float(), variance.sqrt().float()


def load(
    name: str,
    train_limit: int | None = None,
    validation: int | None = None,
    flipped: float = 0.0,
) -> ImageData:
    """Loads a data set.

    Args:
        name: A name of ``DATASETS``, or an address: ``imagefolder:PATH``, ``hf:NAME`` or
            ``npz:PATH``, with options such as ``,size=32``.
        train_limit: How many training examples to keep, as ``limit`` does; all where None.
        validation: How many of them to hold out in place of the test set, as ``hold_out`` does.
        flipped: Share of the labels left to train on that are made wrong, as ``flip`` does.

    Raises:
        ConfigError: For an unknown name, a limit out of range, or data that are nowhere found.

    >>> load("digits").train_images.shape
    torch.Size([1437, 1, 8, 8])
    """
    data = _own(own) if (own := address.parse(name)) else _known(name)
    data = data if train_limit is None else limit(data, train_limit)
    data = data if validation is None else hold_out(data, validation)
    return flip(data, flipped) if flipped else data


def hold_out(data: ImageData, n: int) -> ImageData:
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
    left = subset(data, rest.nonzero().flatten())
    return replace(left, test_images=data.train_images[held], test_labels=data.train_labels[held])


def limit(data: ImageData, n: int) -> ImageData:
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


def subset(data: ImageData, kept: Tensor) -> ImageData:
    """Keeps some training examples.

    Args:
        data: Of N training examples.
        kept: int64[k], their indices.

    >>> subset(load("digits"), torch.tensor([3, 5])).train_images.shape
    torch.Size([2, 1, 8, 8])
    """
    true = None if data.true_labels is None else data.true_labels[kept]
    return replace(
        data,
        train_images=data.train_images[kept],
        train_labels=data.train_labels[kept],
        true_labels=true,
    )


def flip(data: ImageData, share: float) -> ImageData:
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
        ConfigError: For a share outside of [0, 1].

    >>> noisy = flip(load("digits"), 0.2)
    >>> int((noisy.train_labels != noisy.true_labels).sum()), len(noisy.train_labels)
    (287, 1437)
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"flip={share}: give a share of the labels, in [0, 1]")
    count = len(data.train_labels)
    generator = torch.Generator().manual_seed(SUBSET_SEED)
    order = torch.randperm(count, generator=generator)
    shifts = torch.randint(1, data.classes, (count,), generator=generator)
    labels, chosen = data.train_labels.clone(), order[: round(share * count)]
    labels[chosen] = (labels[chosen] + shifts[chosen]) % data.classes
    return replace(data, train_labels=labels, true_labels=data.train_labels)


def _balanced(data: ImageData, n: int) -> Tensor:
    """The indices of n training examples, ascending."""
    available = len(data.train_labels)
    order = torch.randperm(available, generator=torch.Generator().manual_seed(SUBSET_SEED))
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


def _known(name: str) -> ImageData:
    if name not in DATASETS:
        known = ", ".join(NAMES)
        raise ConfigError(f"data set {name!r} is not known: give one of {known}")
    return DATASETS[name]()


def _own(place: Address) -> ImageData:
    augmentation = place.augmentation
    tensors, names = READERS[place.kind](place)
    if "test_images" not in tensors:
        tensors = _split(tensors, len(names), place)
    return ImageData(place.title, **tensors, names=names, augmentation=augmentation)


def _split(tensors: dict[str, Tensor], classes: int, place: Address) -> dict[str, Tensor]:
    """Takes a fixed fifth of each class to test on."""
    images, labels = tensors["train_images"], tensors["train_labels"]
    held = torch.zeros(len(labels), dtype=torch.bool)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SUBSET_SEED))
    for label in range(classes):
        of_class = order[labels[order] == label]
        held[of_class[: round(TEST_SHARE * len(of_class))]] = True
    if not held.any():
        raise ConfigError(
            f"{place} has no part to test on, and a fifth of no class is an image: give more"
        )
    return {
        "train_images": images[~held],
        "train_labels": labels[~held],
        "test_images": images[held],
        "test_labels": labels[held],
    }


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

READERS = {"imagefolder": folder.read, "hf": hub.read, "npz": arrays.read}

NAMES = (*DATASETS, *address.NAMES)
"""What may be asked for."""
