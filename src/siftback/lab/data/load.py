"""Data sets by name or address, decoded or tokenised once.

``digits`` comes with scikit-learn. The sets of ``PUBLISHED`` are read from files with the
Hugging Face hub's names and columns: those under ``SIFTBACK_DATA``, else those under
``../shared/data``, else the hub's own. A user's own data have an `Address`. Decoded images and
tokens are kept in ``SIFTBACK_CACHE``, or ``~/.cache/siftback``, until their source changes.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data import texts
from siftback.lab.data.augment import Augment
from siftback.lab.data.data_set import (
    KINDS,
    SUBSET_SEED,
    TEST_SHARE,
    DataSet,
    ImageData,
    TextData,
    add_test_split,
    ranks_in_classes,
)
from siftback.lab.data.images import read_arrays, read_folders, read_images, read_picture
from siftback.lab.data.rows import read_rows
from siftback.lab.data.source import OPTIONS, Address, Published, parse_address
from siftback.lab.data.tables import open_address, open_published
from siftback.lab.records.formatting import one_of

Data = TypeVar("Data", bound=DataSet)

SENTIMENT = ("negative", "positive")

MOST_HELD_OUT = 0.75
"""The most of a class that is held out while others have more, so that some of it is trained on."""

# What nearly every paper does to CIFAR, Jiang et al. 2019 among them.
CIFAR_AUGMENTATION = Augment(padding=4, flip=True)

# Without augmentation, as in DeVries & Taylor 2017, and with them Jiang et al. 2019.
SVHN = Published("ufldl-stanford/svhn", 73_257, ("image",), config="cropped_digits")

# A mirrored digit is another sign or none, so they are only shifted, and by little.
MNIST = Published("ylecun/mnist", 60_000, ("image",), Augment(padding=2), channels=1)

PUBLISHED = {
    "mnist": MNIST,
    "cifar10": Published("uoft-cs/cifar10", 50_000, ("img",), CIFAR_AUGMENTATION),
    "cifar100": Published(
        "uoft-cs/cifar100", 50_000, ("img",), CIFAR_AUGMENTATION, classes=100, label="fine_label"
    ),
    "svhn": SVHN,
    "svhn+extra": SVHN._replace(examples=604_388, train=("train", "extra"), folder="svhn"),
    "fashion_mnist": MNIST._replace(
        repository="zalando-datasets/fashion_mnist", augmentation=Augment(padding=2, flip=True)
    ),
    # A mirrored sign is another or none. The hub's copies have no tracks.
    "gtsrb": Published("", 39_209, ("image",), Augment(padding=2), classes=43, group="track"),
    "imdb": Published("stanfordnlp/imdb", 25_000, ("text",), names=SENTIMENT, length=192),
    "sst2": Published("SetFit/sst2", 6_920, ("sentence", "text"), names=SENTIMENT, length=64),
}

NAMES = ("digits", *PUBLISHED, texts.SHAKESPEARE, *OPTIONS)
"""The names and the forms of addresses that `load` takes."""

EXAMPLES = {name: published.examples for name, published in PUBLISHED.items()} | {
    "digits": 1437,
    texts.SHAKESPEARE: 7842,
}
"""The training examples of each set; of running text its windows of `texts.LENGTH`."""


def training_examples(name: str) -> int | None:
    """Returns the training examples of a set by its name, without reading it; None if not known.

    >>> [training_examples(name) for name in ("cifar10", "fonts:20000,hard=0.1", "npz:x")]
    [50000, 20000, None]
    """
    address = parse_address(name)
    if address and address.kind == "fonts":
        from siftback.lab.data.fonts import images_of_address

        return images_of_address(address)
    return EXAMPLES.get(name)


def load(
    name: str,
    train_limit: int | None = None,
    validation: int | None = None,
    flipped: float = 0.0,
    max_tokens: int | None = None,
    rare: int = 1,
) -> DataSet:
    """Loads a data set.

    Args:
        name: A name of ``NAMES``, or an address: ``imagefolder:PATH``, ``hf:NAME``,
            ``npz:PATH``, ``text:PATH``, ``fonts:N``, ``table:PATH`` or ``picture:PATH``, with
            options such as ``,size=32``.
        train_limit: Number of training examples to keep, as in ``limit``; all where None.
        validation: Number of them to hold out in place of the test set, as in ``hold_out``.
        flipped: Share of the labels left to train on that are made wrong, as in ``flip``.
        max_tokens: The most tokens of a text, and those of a window; the set's own where None.
        rare: How many examples of some classes one is left of to train on, as in ``make_rare``.

    Raises:
        ConfigError: For an unknown name, a limit out of range, data that are missing or damaged, or
            ``max_tokens`` of what has none.

    >>> load("digits").train_inputs.shape
    torch.Size([1437, 1, 8, 8])
    """
    address = parse_address(name)
    data = read_address(address, max_tokens) if address else read_named(name, max_tokens)
    if max_tokens is not None and not isinstance(data, TextData):
        raise ConfigError(
            f"max_tokens={max_tokens} of {name}, which holds {KINDS[data.kind]}: leave it out"
        )
    check_examples(data)
    if train_limit is not None:
        data = limit(data, train_limit)
    if validation is not None:
        data = hold_out(data, validation)
    if rare > 1:
        data = make_rare(data, rare)
    data = data.rescale_costs()
    return flip(data, flipped) if flipped else data


def check_examples(data: DataSet) -> None:
    """Checks that there are examples to train and to test on, and that labels are classes.

    Raises:
        ConfigError: If a split has no examples, there are fewer than two classes, a label lies
            outside of ``[0, classes)``, or augmentation may leave no part of an image in sight.
    """
    if isinstance(data, ImageData) and data.augmentation.padding >= min(data.size):
        raise ConfigError(
            f"crop={data.augmentation.padding} of images of {data.size[0]}x{data.size[1]} pixels "
            f"can shift all of an image out of sight: give fewer than {min(data.size)} pixels"
        )
    for split, labels in (("train", data.train_labels), ("test", data.test_labels)):
        if not len(labels):
            raise ConfigError(f"{data.name} has no examples to {split} on: give a set with some")
        if not data.has_classes:
            continue
        if data.classes < 2:
            raise ConfigError(f"{data.name} has {data.classes} class: give examples of two or more")
        least, most = int(labels.min()), int(labels.max())
        if least < 0 or most >= data.classes:
            raise ConfigError(
                f"{data.name}: labels to {split} on go from {least} to {most}, and there are "
                f"{data.classes} classes to train on: give labels from 0 to {data.classes - 1}"
            )


def hold_out(data: Data, n: int) -> Data:
    """Takes ``n`` training examples for the test set, class-balanced, the same in every run.

    The test set's own examples are left aside, so that settings can be chosen without them. Where
    examples have groups, whole groups are taken, the fewest that hold ``n`` examples. Of a class
    that has few, `MOST_HELD_OUT` of them are taken at most, while other classes have more.

    Raises:
        ConfigError: For ``n`` below 1 or not below the number of training examples, or where the
            groups that hold as many are all.

    >>> data = hold_out(load("digits"), 100)
    >>> len(data.train_labels), data.test_labels.bincount().tolist()
    (1337, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    available = len(data.train_labels)
    if not 1 <= n < available:
        raise ConfigError(f"validation={n}: give an integer from 1 to {available - 1}")
    numbers = data.group_numbers
    sizes = numbers.bincount()
    rows = torch.arange(available)
    first = torch.full_like(sizes, available).scatter_reduce(0, numbers, rows, "amin")
    order = balanced_order(data.train_labels[first], MOST_HELD_OUT)
    held_out = torch.isin(numbers, order[: 1 + int(torch.searchsorted(sizes[order].cumsum(0), n))])
    if held_out.all():
        raise ConfigError(
            f"validation={n}: whole groups of {data.name} that hold as many are all of its "
            f"{available} examples: give fewer"
        )
    return data.subset(rows[~held_out]).with_test(data, rows[held_out])


def limit(data: Data, n: int) -> Data:
    """Keeps a class-balanced subset of ``n`` training examples, the same one in every run.

    The classes' counts differ by at most one, until a class has no more examples. A smaller
    subset is part of every larger one.

    Raises:
        ConfigError: For ``n`` below 1 or above the number of training examples.

    >>> limit(load("digits"), 25).train_labels.bincount().tolist()
    [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]
    """
    available = len(data.train_labels)
    if not 1 <= n <= available:
        raise ConfigError(f"train_limit={n}: give an integer from 1 to {available}")
    return data.subset(balanced_order(data.train_labels)[:n].sort().values)


def flip(data: Data, share: float) -> Data:
    """Makes a share of the training labels wrong, the same ones in every run.

    The UniformFlip noise of Ren et al. 2018, which Jiang et al. 2019 train under (section 5.4):
    each drawn example gets a label drawn uniformly from the other classes. Labels that a larger
    share makes wrong include those of a smaller one, with the same wrong label.

    Args:
        data: The data set; its test set stays as it is.
        share: In [0, 1]; ``round(share * N)`` labels are flipped.

    Returns:
        The data, with the former labels in ``true_labels``, and the wrong ones in ``flipped``. The
        share and the number of labels decide both, so a run's settings are their record.

    Raises:
        ConfigError: For a share outside of [0, 1], or examples without a class.

    >>> noisy = flip(load("digits"), 0.2)
    >>> int((noisy.train_labels != noisy.true_labels).sum()), len(noisy.train_labels)
    (287, 1437)
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"flip={share}: give a share of the labels, in [0, 1]")
    check_has_classes(data, f"flip={share}")
    count = len(data.train_labels)
    generator = torch.Generator().manual_seed(SUBSET_SEED)
    order = torch.randperm(count, generator=generator)
    shifts = torch.randint(1, data.classes, (count,), generator=generator)
    labels, rows = data.train_labels.clone(), order[: round(share * count)]
    labels[rows] = (labels[rows] + shifts[rows]) % data.classes
    return replace(data, train_labels=labels, true_labels=data.train_labels)


def check_has_classes(data: DataSet, setting: str) -> None:
    """Checks that examples have the classes that a setting changes."""
    if not data.has_classes:
        raise ConfigError(f"{setting} of {data.name}, whose examples have no class: leave it out")


def make_rare(data: Data, times: int) -> Data:
    """Leaves 1 of ``times`` training examples of the rare classes, the same ones in every run.

    The test set stays as it is. The rare classes are those of `rare_classes`.

    Args:
        data: The data set.
        times: Of how many examples one is left, at least 1; of a class one at the least.

    Raises:
        ConfigError: For examples without a class.

    >>> make_rare(load("digits"), 30).train_labels.bincount().tolist()
    [5, 5, 5, 146, 145, 145, 145, 143, 139, 144]
    """
    check_has_classes(data, f"rare={times}")
    ranks, sizes = ranks_in_classes(data.train_labels)
    is_common = data.train_labels >= rare_classes(data.classes)
    is_left = is_common | (ranks < (sizes / times).round().clamp(min=1))
    return data.subset(is_left.nonzero().flatten())


def rare_classes(classes: int) -> int:
    """Returns how many of the classes are rare, the first of them: three in ten, one at least.

    >>> rare_classes(10), rare_classes(2)
    (3, 1)
    """
    return max(1, round(0.3 * classes))


def balanced_order(labels: Tensor, most: float = 1.0) -> Tensor:
    """Draws an order of examples of which each beginning has the classes evenly: int64 [N].

    Args:
        labels: int64 [N]; where there are no classes, of two dimensions.
        most: The share of each class that comes before the rest of all classes.
    """
    if labels.ndim == 1:
        ranks, sizes = ranks_in_classes(labels)
        is_rest = ranks + 1 > most * sizes
        return torch.from_numpy(np.lexsort((labels.numpy(), ranks.numpy(), is_rest.numpy())))
    return torch.randperm(len(labels), generator=torch.Generator().manual_seed(SUBSET_SEED))


def load_digits() -> ImageData:
    """Loads the digits of scikit-learn, a fifth of them to test on."""
    from sklearn import datasets, model_selection

    pixels, labels = datasets.load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    splits = model_selection.train_test_split(
        images, labels, test_size=TEST_SHARE, stratify=labels, random_state=SUBSET_SEED
    )
    train, test, *classes = map(torch.from_numpy, splits)
    # Without augmentation: at 8x8 a shift of one pixel cuts strokes off.
    return ImageData("digits", train, classes[0], test, classes[1], tuple("0123456789"))


def read_named(name: str, max_tokens: int | None) -> DataSet:
    """Loads a data set by its name.

    Raises:
        ConfigError: For an unknown name, or data that are missing or damaged.
    """
    if name == "digits":
        return load_digits()
    if name == texts.SHAKESPEARE:
        return texts.read_shakespeare(max_tokens or texts.LENGTH)
    if name not in PUBLISHED:
        raise ConfigError(f"data set {name!r} is not known: {one_of(name, NAMES)}")
    published = PUBLISHED[name]
    source = open_published(name, published)
    if source.is_text:
        return texts.read_texts(source, name, name, max_tokens or published.length)
    splits = read_images(source, name, None)
    arrays = *splits["train"], *splits["test"]
    return ImageData(
        name, *arrays, source.names, augmentation=published.augmentation, groups=source.groups
    )


def read_address(address: Address, max_tokens: int | None) -> DataSet:
    """Reads a user's data; a fifth of each class is held out where there is no test set."""
    if address.kind == "text":
        return texts.read_windows(address, max_tokens or texts.LENGTH, address.title, address.cache)
    if address.kind == "table":
        return read_rows(address)
    if address.kind == "picture":
        return read_picture(address)
    augmentation = address.augmentation  # refused before anything is read
    if address.kind == "fonts":  # with matplotlib's fonts, which no other set needs
        from siftback.lab.data.fonts import read_fonts

        return read_fonts(address)
    if address.kind == "npz":
        splits, names = read_arrays(address)
    else:
        source = open_address(address) if address.kind == "hf" else read_folders(address)
        if source.is_text:
            length, vocabulary = max_tokens or texts.LENGTH, texts.vocabulary_of(address)
            return texts.read_texts(source, address.title, address.cache, length, vocabulary)
        splits, names = read_images(source, address.cache, address.size), source.names
    splits = add_test_split(splits, str(address))
    arrays = *splits["train"], *splits["test"]
    return ImageData(address.title, *arrays, names, augmentation=augmentation)
