"""Any set of images or texts of the Hugging Face hub, or of its client's files on disk."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data import images, parquet
from siftback.lab.data.address import COMMON, Address
from siftback.lab.data.cache import cached

TESTS = ("test", "validation", "valid", "val", "dev")
LABEL = "label"
_STRINGS = ("string", "large_string")

Splits = dict[str, Any]  # of datasets.Dataset, which brings no types


def opened(address: Address) -> Splits:
    """A set of the hub, a folder of ``save_to_disk``, or one that ``load_dataset`` takes.

    Returns:
        Its split to train on, and the one to test on where there is one: the options ``train``
        and ``test`` name them, ``config`` the configuration.

    Raises:
        ConfigError: If the set cannot be had, or a split is missing.
    """
    return _chosen(_open(address), address)


def text_column(splits: Splits, address: Address) -> str | None:
    """The column of texts: the one of strings, but for labels; the option ``text`` names another.

    Returns:
        None where the set is of images.

    Raises:
        ConfigError: If there are several and none is named, or it holds no texts; or if an option
            is that of images.
    """
    features, asked = splits["train"].features, address.options
    strings = [name for name, each in features.items() if getattr(each, "dtype", "") in _STRINGS]
    found = [name for name in strings if name != asked.get("label", LABEL)]
    if "text" not in asked and (_image_columns(splits["train"]) or "image" in asked or not found):
        if "vocabulary" in asked:
            raise ConfigError(f"{address}: vocabulary= is of texts, and these are images")
        return None
    column = _column(splits["train"], address, "text", found)
    if column not in strings:
        raise ConfigError(f"{address}: column {column!r} holds no texts: give text= one that does")
    if of_images := sorted({*COMMON, "image"} & {*asked}):
        raise ConfigError(f"{address}: {of_images[0]}= is of images, and these are texts")
    return column


def texts(
    address: Address, splits: Splits, column: str
) -> tuple[dict[str, tuple[list[str], Tensor]], tuple[str, ...]]:
    """The texts and labels of each split, and the names of the classes.

    Args:
        address: What was asked for.
        splits: As `opened` gives them.
        column: As `text_column` gives it.

    Raises:
        ConfigError: If there are no labels, or something in the column is no text.
    """
    labels, names = _labels(splits, address)
    found = {split: _cells(data, column) for split, data in splits.items()}
    for split, cells in found.items():
        if not all(isinstance(cell, str) for cell in cells):
            raise ConfigError(
                f"{address}: something in column {column!r} to {split} on is no text: leave it out"
            )
    return {split: (found[split], labels[split]) for split in splits}, names


def sources_of(splits: Splits) -> list[Path]:
    """The files that a set is read from; none where it is in memory."""
    return [Path(file["filename"]) for data in splits.values() for file in data.cache_files]


def read(address: Address, splits: Splits) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Reads images.

    The images' column is the one of that feature, the labels' the one of class labels, or the
    one named ``label``; the options ``image`` and ``label`` name others. Labels that are no class
    labels are numbered in their order.

    Args:
        address: What was asked for.
        splits: As `opened` gives them.

    Returns:
        ``train_images``, ``train_labels`` and, where there is a split to test on,
        ``test_images`` and ``test_labels``; and the names of the classes.

    Raises:
        ConfigError: If a column is missing or not named from others, or an image cannot be read.
    """
    image = _image_column(splits["train"], address)
    labels, names = _labels(splits, address)

    def decoded() -> dict[str, Tensor]:
        every = chain.from_iterable(_encoded(data, image) for data in splits.values())
        mode, size = images.survey(every, str(address), address.size)
        tensors: dict[str, Tensor] = {}
        for split, data in splits.items():
            title = f"Decoding {address.path.name} ({split})"
            pictures = images.decode(_encoded(data, image), len(data), mode, size, title)
            tensors |= {f"{split}_images": pictures, f"{split}_labels": labels[split]}
        return tensors

    sources = sources_of(splits)
    return cached(address.cache, sources, decoded) if sources else decoded(), names


def _open(address: Address) -> Splits:
    """All splits of the set, by name."""
    places = [place / address.target for place in parquet.places()]
    place = next((each for each in (address.path, *places) if each.exists()), None)
    if place is None:
        parquet.stay_offline_without_network()
    # Imported here, as it takes seconds and most runs read local files.
    import datasets

    config = [address.options["config"]] if "config" in address.options else []
    try:
        if place is None:
            found = datasets.load_dataset(address.target, *config)
        elif (place / "dataset_dict.json").exists() or (place / "state.json").exists():
            found = datasets.load_from_disk(str(place))
        elif place.is_file():
            found = datasets.load_dataset("parquet", data_files=str(place))
        else:
            found = datasets.load_dataset(str(place.resolve()), *config)
    except Exception as error:
        # The client raises errors of its own, of no common kind.
        if place is not None:
            raise ConfigError(
                f"{place} cannot be read as a data set ({error}): give a folder that "
                "Dataset.save_to_disk wrote, one of Parquet files, or one of images by class"
            ) from error
        raise ConfigError(
            f"{address}: there is no such file or folder here, and {address.target} could not be "
            f"read from the Hugging Face hub ({error}): connect to the internet, or where it is "
            f'at hand call datasets.load_dataset("{address.target}").save_to_disk("FOLDER"), put '
            "the folder here, and give hf:FOLDER"
        ) from error
    return dict(found) if isinstance(found, Mapping) else {"train": found}


def _chosen(splits: Splits, address: Address) -> Splits:
    """The split to train on, and the one to test on where there is one."""
    asked, names = address.options, ", ".join(splits)
    train = asked.get("train", next(iter(splits)) if len(splits) == 1 else "train")
    test = asked.get("test") or next((name for name in TESTS if name in splits), None)
    for role, name in (("train", train), ("test", test)):
        if name is not None and name not in splits:
            raise ConfigError(
                f"{address} has no split {name!r}: name the one to {role} on by {role}=, one of "
                f"{names}"
            )
        if name is not None and not len(splits[name]):
            raise ConfigError(f"{address}: split {name!r} is empty: give another of {names}")
    chosen = {"train": splits[train]}
    return chosen | ({"test": splits[test]} if test not in (None, train) else {})


def _image_column(data: Any, address: Address) -> str:
    return _column(data, address, "image", _image_columns(data))


def _image_columns(data: Any) -> list[str]:
    import datasets

    return [name for name, each in data.features.items() if isinstance(each, datasets.Image)]


def _label_column(data: Any, address: Address) -> str:
    import datasets

    found = [name for name, each in data.features.items() if isinstance(each, datasets.ClassLabel)]
    return _column(data, address, "label", found or [LABEL] * (LABEL in data.features))


def _column(data: Any, address: Address, role: str, found: list[str]) -> str:
    """The column that is asked for, or the one that was found."""
    columns = ", ".join(data.features)
    asked = address.options.get(role)
    if asked is not None and asked not in data.features:
        raise ConfigError(f"{address} has no column {asked!r}: give {role}= one of {columns}")
    if asked is None and len(found) != 1:
        what = f"{len(found)} columns of {role}s" if found else f"no column known to be of {role}s"
        raise ConfigError(f"{address} has {what}: name it by {role}=, one of {found or columns}")
    return asked or found[0]


def _labels(splits: Splits, address: Address) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Each split's labels, int64 from 0, and the names of the classes."""
    import datasets

    column = _label_column(splits["train"], address)
    feature = splits["train"].features[column]
    given = {split: _values(data, column, split, address) for split, data in splits.items()}
    if isinstance(feature, datasets.ClassLabel):
        for split, values in given.items():
            if min(values) < 0:
                raise ConfigError(
                    f"{address} keeps the labels to {split} on to itself (they are below 0): "
                    f"name another split by {split}="
                )
        found = {split: torch.tensor(values) for split, values in given.items()}
        return found, tuple(feature.names)
    classes = sorted({*given["train"]})
    unknown = {*given.get("test", [])} - {*classes}
    if unknown:
        raise ConfigError(
            f"{address} has {min(unknown)!r} among the labels to test on, and not to train on: "
            "name other splits by train= and test="
        )
    numbers = {name: number for number, name in enumerate(classes)}
    return {
        split: torch.tensor([numbers[value] for value in values]) for split, values in given.items()
    }, tuple(map(str, classes))


def _values(data: Any, column: str, split: str, address: Address) -> list[Any]:
    if column not in data.features:
        raise ConfigError(f"{address} has no column {column!r} to {split} on: give label=")
    values = _cells(data, column)
    if any(not isinstance(value, int | str) for value in values):
        raise ConfigError(
            f"{address}: column {column!r} does not hold an integer or a name for each example: "
            f"name the one of labels by label=, one of {', '.join(data.features)}"
        )
    return values


def _cells(data: Any, column: str) -> list[Any]:
    found: list[Any] = data.select_columns([column]).with_format("arrow")[:][column].to_pylist()
    return found


def _encoded(data: Any, column: str) -> Iterator[images.Encoded]:
    """What each image's file holds, or where it is."""
    import datasets

    rows = data.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    for number, row in enumerate(rows.with_format(None)):
        cell = row[column]
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise ConfigError(
                f"row {number} of column {column!r} has no image: leave the row out, or name "
                "another column by image="
            )
        yield cell["bytes"] if cell["bytes"] is not None else Path(cell["path"])
