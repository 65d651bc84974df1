"""Decoding of images: of folders by class, and of any other collection."""

import io
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.address import Address, Size
from siftback.lab.data.cache import cached
from siftback.lab.data.data_set import check_memory

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
TEST_FOLDERS = ("test", "val", "validation")
GREY = {"1", "L"}
# The errors of Pillow for damaged files, and for those of far more pixels than bytes.
BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
DEEP = ("I", "F")  # the beginnings of the modes whose values are not bytes


Cells = Collection[Any]
"""Encoded images: paths of their files, or cells of ``struct{bytes, path}``."""


def read_folders(address: Address) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Reads ``PATH/train/CLASS/*.png`` and ``PATH/test/CLASS/*.png``, or ``PATH/CLASS/*.png``.

    Classes are numbered in the order of their names. The options ``train`` and ``test`` name other
    folders; ``val`` and ``validation`` stand for ``test`` where that is missing.

    Returns:
        ``train_inputs``, ``train_labels`` and, where there is a folder to test on,
        ``test_inputs`` and ``test_labels``; and the names of the classes.

    Raises:
        ConfigError: If there is no such folder, a class has no images or is none to train
            on, an image cannot be read, or the sizes differ and none is asked for.
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
    paths: dict[str, list[Path]] = {}
    labels: dict[str, Tensor] = {}
    for split, folder in folders.items():
        if unknown := sorted({*list_classes(folder)} - {*classes}):
            raise ConfigError(
                f"{folder / unknown[0]} is not one of the classes to train on: remove it"
            )
        files = [
            sorted(file for file in (folder / name).glob("*") if file.suffix.lower() in SUFFIXES)
            for name in classes
        ]
        empty = [folder / name for name, group in zip(classes, files, strict=True) if not group]
        if empty and (split == "train" or len(empty) == len(classes)):
            raise ConfigError(
                f"{empty[0] if split == 'train' else folder} holds no images: give each class a "
                "folder of images, in train/ and test/ or side by side"
            )
        paths[split] = [*chain(*files)]
        counts = torch.tensor([len(group) for group in files])
        labels[f"{split}_labels"] = torch.arange(len(classes)).repeat_interleave(counts)
    sources = [*chain(*paths.values())]
    tensors = cached(
        address.cache,
        sources,
        lambda: decode_splits(paths, str(address), address.path.name, address.size),
        [str(path.relative_to(address.path)) for path in sources],
    )
    return tensors | labels, tuple(classes)


def find_folders(address: Address) -> dict[str, Path]:
    """Finds the folder to train on and, where there is one, the folder to test on."""
    root, options = address.path, address.options
    if not root.is_dir():
        raise ConfigError(f"{address}: there is no folder {root}: give one that holds images")
    for split in {"train", "test"} & {*options}:
        if not (root / options[split]).is_dir():
            raise ConfigError(f"{address}: {split}={options[split]}, but {root} has no such folder")
    if not {"train", "test"} & {*options} and not (root / "train").is_dir():
        return {"train": root}
    folders = {"train": root / options.get("train", "train")}
    names = [options["test"]] if "test" in options else TEST_FOLDERS
    tests = [root / name for name in names if (root / name).is_dir()]
    return folders | ({"test": tests[0]} if tests else {})


def list_classes(folder: Path) -> list[str]:
    """Lists the folders within a folder, by name."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name the one to train on by train=")
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def decode_splits(
    splits: Mapping[str, Cells], name: str, title: str, size: Size | None
) -> dict[str, Tensor]:
    """Decodes the images of all splits, in the mode and the size that they have in common.

    Args:
        splits: Images by split.
        name: Name of the set, for errors.
        title: Name of the set, for the progress bar.
        size: Height and width to bring all to; None where they have to be of one size.

    Returns:
        ``<split>_inputs``, as from `decode`.

    Raises:
        ConfigError: If there is no image, one cannot be read, or the sizes differ.
    """
    modes: set[str] = set()
    sizes: Counter[Size] = Counter()
    for number, cell in enumerate(chain(*splits.values())):
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
    mode, size = "L" if modes <= GREY else "RGB", size or next(iter(sizes))
    return {
        f"{split}_inputs": decode(images, mode, size, f"Decoding {title} ({split})")
        for split, images in splits.items()
    }


def decode(images: Cells, mode: str, size: Size, title: str) -> Tensor:
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
        console = Console(stderr=True)
        cells = track(images, title, total=count, console=console, transient=True)
    else:
        print(f"{title}: {count:,} images", file=sys.stderr)
    likely: str | None = None
    # One thread: for images this small, several only wait for each other's Python.
    for number, cell in enumerate(cells):
        with open_image(cell, number, title, likely) as image:
            likely = image.format
            try:
                converted = image.convert(mode)
            except BROKEN as error:  # its header was whole
                raise unreadable(cell, number, title, error) from error
        if (converted.height, converted.width) != size:
            converted = ImageOps.fit(converted, size[::-1], Image.Resampling.BICUBIC)
        pixels[number] = np.asarray(converted).reshape(pixels.shape[1:])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def open_image(cell: Any, number: int, title: str, likely: str | None = None) -> Image.Image:
    """Reads the header of an image; ``likely`` is the format to try before all others."""
    content = cell if isinstance(cell, Path) else cell.as_py() or {}
    if isinstance(content, dict):
        content = io.BytesIO(content["bytes"]) if content.get("bytes") else content.get("path")
    if content is None:
        raise unreadable(cell, number, title, "the row has none")
    if not isinstance(content, io.BytesIO) and not Path(content).is_file():
        # Reading a pipe would wait for ever.
        raise unreadable(Path(content), number, title, "it is not a file")
    try:
        try:
            image = Image.open(content, formats=[likely] if likely else None)
        except UnidentifiedImageError:
            image = Image.open(content)
    except BROKEN as error:
        raise unreadable(cell, number, title, error) from error
    if image.mode.startswith(DEEP):  # conversion to bytes would clip most values to 255
        image.close()
        raise unreadable(
            cell, number, title, f"mode {image.mode} has more than 8 bits in a channel"
        )
    return image


def unreadable(cell: Any, number: int, title: str, error: Exception | str) -> ConfigError:
    """Returns the error of an image that cannot be read."""
    name = cell if isinstance(cell, Path) else f"image {number} of {title}"
    return ConfigError(f"{name} cannot be read as an image ({error}): fix it or leave it out")
