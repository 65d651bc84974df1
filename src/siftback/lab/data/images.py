"""Images: of folders by class, of one file of arrays, and of any other collection; a picture.

The examples of a picture are the coordinates of its pixels, the targets their colours.
"""

import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.data_set import DataSet, check_memory
from siftback.lab.data.source import Address, EncodedSet, Size, Splits, cached
from siftback.lab.data.tables import TEST_SPLITS, naming_source

# Of HEIC too, which Pillow cannot read: an error is better than a set without these. What it
# registers of documents, films and arrays is no image.
SUFFIXES = {*Image.registered_extensions(), ".heic", ".heif"} - {".pdf", ".mpg", ".mpeg", ".h5"}
GREY = {"1", "L"}
# The errors of Pillow for damaged files, and for those of far more pixels than bytes.
BROKEN = (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError)
DEEP = ("I", "F")  # the beginnings of the modes whose values are not bytes

CHANNELS = (1, 3)
COLOURS = ("red", "green", "blue")  # of which a grey picture has three equal ones
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def read_folders(address: Address) -> EncodedSet:
    """Finds ``PATH/train/CLASS/*.png`` and ``PATH/test/CLASS/*.png``, or ``PATH/CLASS/*.png``.

    Classes are numbered in the order of their names. The options ``train`` and ``test`` name other
    folders; ``validation``, ``valid``, ``val`` or ``dev`` stands for ``test`` where that is
    missing. Capitals in these names make no difference.

    Raises:
        ConfigError: If there is no such folder, one beside ``train/`` with images by class would
            not be read, a class has no images or is none to train on, an image lies in a folder
            within its class or cannot be read, or the sizes differ and none is asked for.
    """
    # Not by the imagefolder of datasets: it reads a class named "test" as a split, adds a class of
    # the test folder alone to the classes, passes over a class without images, and drops all labels
    # where an image lies a folder deeper.
    folders = find_folders(address)
    classes = list_classes(folders["train"])
    if len(classes) < 2:
        raise ConfigError(
            f"{folders['train']} holds {len(classes)} folders of images: give one with a folder "
            "for each class, or one with train/ and test/ that have"
        )
    splits: Splits = {}
    for split, folder in folders.items():
        if unknown := sorted({*list_classes(folder)} - {*classes}):
            raise ConfigError(f"{folder / unknown[0]} is no class to train on: remove it")
        files = [images_in(folder / name) for name in classes]
        empty = [folder / name for name, group in zip(classes, files, strict=True) if not group]
        if empty and (split == "train" or len(empty) == len(classes)):
            raise ConfigError(
                f"{empty[0] if split == 'train' else folder} holds no images: give each class a "
                "folder of images, in train/ and test/ or side by side"
            )
        if nested := [*chain(*(images_in(folder / name, "[!.]*/**/*") for name in classes))]:
            raise ConfigError(
                f"{nested[0]} lies in a folder within that of its class, and would be left out: "
                "put all images of a class side by side, or the folder elsewhere"
            )
        counts = torch.tensor([len(group) for group in files])
        splits[split] = [*chain(*files)], torch.arange(len(classes)).repeat_interleave(counts)
    paths = [path for files, _ in splits.values() for path in files]
    return EncodedSet(
        name=str(address),
        title=address.path.name,
        read=lambda: splits,
        names=tuple(classes),
        files=paths,
        options=[str(path.relative_to(address.path)) for path in paths],
    )


def find_folders(address: Address) -> dict[str, Path]:
    """Finds the folder to train on and, where there is one, the folder to test on."""
    root, options = address.path, address.options
    siblings = list_classes(root)
    for split in {"train", "test"} & {*options}:
        if not (root / options[split]).is_dir():
            raise ConfigError(f"{address}: {split}={options[split]}, but {root} has no such folder")
    known = {name.lower(): name for name in siblings if name.lower() in ("train", *TEST_SPLITS)}
    nested = [name for name in siblings if images_in(root / name, "[!.]*/*")]
    splits = known | options
    train = splits.get("train", "train")
    tests = [splits[split] for split in TEST_SPLITS if split in splits]
    # Train/ of images alone is a class, as of vehicles, unless it has a Test/ beside it.
    is_class = train not in ("train", *nested) and not tests
    if not {"train", "test"} & {*options} and (is_class or "train" not in known):
        return {"train": root}
    unread = [name for name in nested if name not in (train, *known.values())]
    if unread and "test" not in options:
        raise ConfigError(
            f"{root / unread[0]} holds images by class beside {train}/, and would not be read: "
            f"name the folder to test on by test=, as ,test={unread[0]}, or remove it"
        )
    return {"train": root / train} | ({"test": root / tests[0]} if tests else {})


def images_in(folder: Path, pattern: str = "*") -> list[Path]:
    """Lists the images within a folder, by name, whose paths match a pattern of ``Path.glob``."""
    return sorted(file for file in folder.glob(pattern) if file.suffix.lower() in SUFFIXES)


def list_classes(folder: Path) -> list[str]:
    """Lists the folders within a folder, by name."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: give one of images, by PATH or by train=")
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def read_images(source: EncodedSet, cache: str, size: Size | None) -> Splits:
    """Reads images of a class each.

    Args:
        source: Where they are.
        cache: Name of the file in the cache.
        size: Height and width to bring all to; None where they have to be of one size.

    Returns:
        Images as from `decode`, in the mode and the size that all have in common, and labels.

    Raises:
        ConfigError: If there is no image, one cannot be read, or the sizes differ.
    """

    def decode_all() -> dict[str, Tensor]:
        splits = source.read()
        mode, common_size = common_format(source.name, splits, size)
        tensors = {}
        for split, (images, labels) in splits.items():
            title = f"Decoding {source.title} ({split})"
            tensors[f"{split}_inputs"] = decode(images, mode, common_size, title)
            tensors[f"{split}_labels"] = labels
        return tensors

    tensors = cached(cache, source.files, decode_all, source.options)
    return {
        split: (tensors[f"{split}_inputs"], tensors[f"{split}_labels"])
        for split in ("train", "test")
        if f"{split}_inputs" in tensors
    }


def common_format(name: str, splits: Splits, size: Size | None) -> tuple[str, Size]:
    """Returns the mode that fits all images, and the size that is asked for or that they have."""
    modes: set[str] = set()
    sizes: Counter[Size] = Counter()
    for number, cell in enumerate(chain(*(images for images, _ in splits.values()))):
        with open_image(cell, number, name) as image:
            modes.add(image.mode)
            sizes[image.height, image.width] += 1
    if not sizes:
        raise ConfigError(f"{name} holds no images: give a set that does")
    if size is None and len(sizes) > 1:
        some = " and ".join(f"{height}x{width}" for (height, width), _ in sizes.most_common(2))
        raise ConfigError(
            f"{name} holds images of {len(sizes)} sizes, such as {some}: add ,size=32 or "
            ",size=HEIGHTxWIDTH to bring all to one"
        )
    return "L" if modes <= GREY else "RGB", size or next(iter(sizes))


def decode(images: Sequence[Any], mode: str, size: Size, title: str) -> Tensor:
    """Decodes images, with a progress bar on stderr.

    Args:
        images: N of them.
        mode: Pillow's mode: ``"L"`` for grey, ``"RGB"`` for colour.
        size: Height and width. An image of another size is cut to their ratio about its middle,
            then scaled.
        title: Text beside the bar.

    Returns:
        uint8 [N, C, H, W], in ``channels_last`` memory format.

    Raises:
        ConfigError: If an image cannot be read.
    """
    count, bands = len(images), Image.getmodebands(mode)
    check_memory(count * size[0] * size[1] * bands, f"{count} images of {size[0]}x{size[1]} pixels")
    pixels = np.empty((count, *size, bands), np.uint8)
    cells: Iterable[Any] = images
    if sys.stderr.isatty():
        cells = track(images, title, total=count, console=Console(stderr=True), transient=True)
    else:
        print(f"{title}: {count:,} images", file=sys.stderr)
    # One thread: for images this small, several only wait for each other's Python.
    for number, cell in enumerate(cells):
        pixels[number] = decode_image(cell, number, title, mode, size).reshape(pixels.shape[1:])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def decode_image(cell: Any, number: int, title: str, mode: str, size: Size) -> NDArray[np.uint8]:
    """Decodes an image: uint8 [H, W], or [H, W, 3] in colour. Arguments are those of `decode`."""
    with open_image(cell, number, title) as image:
        image.info.pop("transparency", None)  # which Pillow would warn to leave out
        try:
            converted = image.convert(mode)
        except BROKEN as error:  # its header was whole
            raise unreadable(cell, number, title, error) from error
    if (converted.height, converted.width) != size:
        converted = ImageOps.fit(converted, size[::-1], Image.Resampling.BICUBIC)
    return np.array(converted)


def open_image(cell: Any, number: int, title: str) -> Image.Image:
    """Reads the header of an image, and turns it upright where its EXIF data say how it lies."""
    content = cell if isinstance(cell, Path) else cell.as_py() or {}
    if isinstance(content, dict):
        content = io.BytesIO(content["bytes"]) if content.get("bytes") else content.get("path")
    if content is None:
        raise unreadable(cell, number, title, "the row has none")
    if not isinstance(content, io.BytesIO) and not Path(content).is_file():
        # Reading a pipe would wait for ever.
        raise unreadable(Path(content), number, title, "it is not a file")
    try:
        image = Image.open(content)
    except BROKEN as error:
        raise unreadable(cell, number, title, error) from error
    # Conversion to bytes would clip most values to 255; Pillow itself cuts those of colours.
    if image.mode.startswith(DEEP) or ";16" in str(image.tile):
        image.close()
        raise unreadable(cell, number, title, f"mode {image.mode} has more than 8 bits a channel")
    # Damaged EXIF data say nothing. Where an image has none, asking for them would decode it.
    with suppress(Exception):
        if "exif" in image.info:
            ImageOps.exif_transpose(image, in_place=True)
    return image


def unreadable(cell: Any, number: int, title: str, error: Exception | str) -> ConfigError:
    """Returns the error of an image that cannot be read."""
    name = cell if isinstance(cell, Path) else f"image {number} of {title}"
    return ConfigError(f"{name} cannot be read as an image ({error}): fix it or leave it out")


def read_arrays(address: Address) -> tuple[Splits, tuple[str, ...]]:
    """Reads ``x_train``, ``y_train``, ``x_test`` and ``y_test`` of an ``.npz`` file.

    Images are uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], with 1 or 3 channels; labels are
    whole numbers [N] or [N, 1] from 0. ``x_test`` and ``y_test`` may be left out; other arrays are
    not read.

    Returns:
        Images and labels of each split, and the names of the classes, up to the largest label to
        train on.

    Raises:
        ConfigError: If the file cannot be read, or holds something else.
    """
    arrays = read_members(address)
    splits = ["train"] + ["test"] * ("x_test" in arrays or "y_test" in arrays)
    missing = [f"{k}_{split}" for split in splits for k in "xy" if f"{k}_{split}" not in arrays]
    if missing:
        raise ConfigError(
            f"{address} holds {', '.join(arrays) or 'nothing'} and no {' and no '.join(missing)}: "
            "save it by numpy.savez(PATH, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    tensors: Splits = {}
    for split in splits:
        images = as_images(arrays[f"x_{split}"], f"x_{split} of {address}")
        labels = as_labels(arrays[f"y_{split}"], f"y_{split} of {address}")
        if len(images) != len(labels):
            raise ConfigError(
                f"{address} has {len(images)} images and {len(labels)} labels to {split} on: "
                "give a label for each image"
            )
        tensors[split] = images, labels
    if len({images.shape[1:] for images, _ in tensors.values()}) > 1:
        raise ConfigError(f"{address}: x_train and x_test have images of different shapes")
    labels = tensors["train"][1]
    classes = int(labels.max()) + 1
    if classes > len(labels):  # a model has a logit for each
        raise ConfigError(
            f"y_train of {address} has classes up to {classes - 1} for {len(labels)} images: "
            "number the classes without gaps, as numpy.unique(y, return_inverse=True)[1] does"
        )
    return tensors, tuple(map(str, range(classes)))


def read_members(address: Address) -> dict[str, Any]:
    """Reads the arrays of the file by name: those of `ARRAYS`, and None for the others."""
    if not address.path.is_file():  # reading a pipe would wait for ever
        raise ConfigError(f"{address}: there is no file {address.path}: give one of arrays")
    with naming_source(address, "cannot be read as a file of arrays", "save it by numpy.savez"):
        with zipfile.ZipFile(address.path) as file:
            names = [name.removesuffix(".npy") for name in file.namelist()]
            if len(set(names)) < len(names):
                raise ValueError("it holds an array twice")
            for name in filter(names.__contains__, ARRAYS):
                check_memory(file.getinfo(f"{name}.npy").file_size, f"{name} of {address}")
            # NumPy stops where a header says that an array ends, before its checksum is compared.
            if (damaged := file.testzip()) is not None:
                raise ValueError(f"{damaged} is damaged")
        with np.load(address.path) as arrays:
            return {n: np.asarray(arrays[n]) if n in ARRAYS else None for n in arrays.files}


def as_images(array: Any, name: str) -> Tensor:
    """Returns an array of images as uint8 [N, C, H, W], in ``channels_last`` memory format."""
    shape = list(array.shape)
    if array.dtype != np.uint8:
        raise ConfigError(
            f"{name} is of type {array.dtype}: give bytes, as (255 * x).round().astype('uint8') "
            "makes of numbers from 0 to 1"
        )
    if array.ndim == 3:
        array = array[..., None]
    elif array.ndim == 4 and shape[3] not in CHANNELS and shape[1] in CHANNELS:
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] not in CHANNELS or not array.size:
        raise ConfigError(f"{name} is of shape {shape}: give images [N, H, W] or [N, H, W, 3]")
    return torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2)


def as_labels(array: Any, name: str) -> Tensor:
    """Returns an array of labels as int64 [N]."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    numbers = array.ndim == 1 and array.dtype.kind in "iu"
    # The largest of uint64 would become negative as int64.
    if not numbers or (len(array) and not 0 <= int(array.min()) <= int(array.max()) < 2**63):
        raise ConfigError(
            f"{name} is of type {array.dtype} and shape {list(array.shape)}, or below 0: give "
            "the number of a class, from 0, for each image"
        )
    return torch.from_numpy(array.astype(np.int64))


def read_picture(address: Address) -> DataSet:
    """Reads a picture as examples: ``picture:PATH``, brought to a size by the option ``size``.

    The pixel in row i of H and column j of W is the example ``i * W + j``, with the coordinates
    ``x = 2 j / (W - 1) - 1`` and ``y = 2 i / (H - 1) - 1``; its targets are the bytes of its
    colours over 127.5, less 1. The test set is the whole picture, as what is asked of the model is
    to remember it.

    Raises:
        ConfigError: If the file cannot be read as an image, or all of its pixels are alike.
    """
    size = address.size
    if size is None:
        with open_image(address.path, 0, str(address)) as image:
            size = image.height, image.width
    height, width = size
    check_memory(4 * (2 + len(COLOURS)) * height * width, f"{address} of {height}x{width} pixels")
    colours = decode_image(address.path, 0, str(address), "RGB", size)
    targets = torch.from_numpy(colours).view(-1, len(COLOURS)) / 127.5 - 1
    if bool((targets == targets[0]).all()):
        raise ConfigError(f"{address} is of a single colour: give a picture of something")
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    split = torch.stack((x.flatten(), y.flatten()), 1), targets
    return DataSet(address.title, *split, *split, COLOURS, kind="pixels")
